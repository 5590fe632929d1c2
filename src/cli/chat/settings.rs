//! What `/set NAME VALUE` can change: the flags of the command line, checked by the same parsers, under ollama's names.

use std::error::Error;

use anyhow::{bail, ensure};
use clap::Parser;

use super::words::{quoted, unquoted, words};
use crate::cli::args::{GenerationArgs, unescape};
use crate::cli::sampling::SamplingArgs;
use crate::cli::usage::expected;
use crate::sampler::Chain;

#[derive(Clone, Debug, Parser)]
#[command(no_binary_name = true)]
pub struct Settings {
    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

struct Parameter {
    /// The first one is shown.
    names: &'static [&'static str],
    flag: &'static str,
    show: fn(&Settings) -> String,
    copy: fn(&mut Settings, Settings),
}

macro_rules! parameter {
    ($names:expr, $flag:literal, $($field:ident).+) => {
        Parameter {
            names: &$names,
            flag: $flag,
            show: |settings| settings.$($field).+.to_string(),
            copy: |to, from| to.$($field).+ = from.$($field).+,
        }
    };
}

const PARAMETERS: &[Parameter] = &[
    parameter!(["temperature", "temp"], "--temp", sampling.temp),
    parameter!(["dynatemp_range"], "--dynatemp-range", sampling.dynatemp_range),
    parameter!(["dynatemp_exponent", "dynatemp_exp"], "--dynatemp-exp", sampling.dynatemp_exp),
    parameter!(["top_k"], "--top-k", sampling.top_k),
    parameter!(["top_p"], "--top-p", sampling.top_p),
    parameter!(["min_p"], "--min-p", sampling.min_p),
    parameter!(["typical_p", "typical"], "--typical", sampling.typical),
    parameter!(["top_n_sigma", "top_nsigma"], "--top-nsigma", sampling.top_nsigma),
    parameter!(["xtc_probability"], "--xtc-probability", sampling.xtc_probability),
    parameter!(["xtc_threshold"], "--xtc-threshold", sampling.xtc_threshold),
    parameter!(["repeat_penalty"], "--repeat-penalty", sampling.repeat_penalty),
    parameter!(["repeat_last_n"], "--repeat-last-n", sampling.repeat_last_n),
    parameter!(["presence_penalty"], "--presence-penalty", sampling.presence_penalty),
    parameter!(["frequency_penalty"], "--frequency-penalty", sampling.frequency_penalty),
    parameter!(["dry_multiplier"], "--dry-multiplier", sampling.dry_multiplier),
    parameter!(["dry_base"], "--dry-base", sampling.dry_base),
    parameter!(["dry_allowed_length"], "--dry-allowed-length", sampling.dry_allowed_length),
    parameter!(["dry_penalty_last_n"], "--dry-penalty-last-n", sampling.dry_penalty_last_n),
    Parameter {
        names: &["dry_sequence_breakers", "dry_sequence_breaker"],
        flag: "--dry-sequence-breaker",
        show: |settings| list(settings.sampling.breakers().iter().map(|text| quoted(text))),
        copy: |to, from| to.sampling.dry_sequence_breaker = from.sampling.dry_sequence_breaker,
    },
    parameter!(["mirostat"], "--mirostat", sampling.mirostat),
    parameter!(["mirostat_tau", "mirostat_ent"], "--mirostat-ent", sampling.mirostat_ent),
    parameter!(["mirostat_eta", "mirostat_lr"], "--mirostat-lr", sampling.mirostat_lr),
    Parameter {
        names: &["samplers", "sampler_seq"],
        flag: "--samplers",
        show: |settings| settings.sampling.chain().to_string(),
        copy: |to, from| {
            to.sampling.samplers = from.sampling.samplers;
            to.sampling.sampler_seq = None;
        },
    },
    Parameter {
        names: &["logit_bias", "l"],
        flag: "--logit-bias",
        show: |settings| list(settings.sampling.logit_bias.iter().map(ToString::to_string)),
        copy: |to, from| to.sampling.logit_bias = from.sampling.logit_bias,
    },
    parameter!(["ignore_eos"], "--ignore-eos", sampling.ignore_eos),
    parameter!(["num_predict", "predict", "n"], "--predict", generation.predict),
    Parameter {
        names: &["seed", "s"],
        flag: "--seed",
        show: |settings| settings.sampling.seed.0.map_or("-1".to_string(), |seed| seed.to_string()),
        copy: |to, from| to.sampling.seed = from.sampling.seed,
    },
    Parameter {
        names: &["stop", "r", "reverse_prompt"],
        flag: "--stop",
        show: |settings| list(settings.generation.stops().iter().map(|text| quoted(text))),
        copy: |to, from| to.generation.stop = from.generation.stop,
    },
];

/// What `/set` cannot change, and the flag that does it at the start.
const AT_START: &[(&[&str], &str)] = &[
    (&["num_ctx", "ctx_size", "c"], "-c"),
    (&["num_gpu", "n_gpu_layers", "gpu_layers", "ngl"], "-ngl"),
    (&["num_thread", "threads", "t"], "-t"),
    (&["num_batch", "batch_size", "b"], "-b"),
    (&["num_keep", "keep"], "--keep"),
];

impl Settings {
    /// Changes one parameter, and gives its new value as it is shown. The error names it and says what it takes.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<String> {
        // The flags' own names do as well: n, top-p, --top-p.
        let plain = name.trim_start_matches('-').replace('-', "_");
        if let Some((_, flag)) = AT_START.iter().find(|(names, _)| names.contains(&plain.as_str())) {
            bail!("{name} is settled when the program starts: the flag {flag} sets it there");
        }
        let Some(parameter) = PARAMETERS.iter().find(|parameter| parameter.names.contains(&plain.as_str())) else {
            bail!("no parameter '{name}': there are {}", names().join(", "));
        };
        ensure!(!value.is_empty(), "{name} needs a value; it is {}", (parameter.show)(self));
        let is_none = ["none", "[]", r#""""#, "''"].contains(&value);
        let values = words(value).into_iter();
        match parameter.flag {
            "--ignore-eos" => match unquoted(value) {
                "true" | "on" | "1" => self.sampling.ignore_eos = true,
                "false" | "off" | "0" => self.sampling.ignore_eos = false,
                other => bail!("{name}: '{other}' is not true or false"),
            },
            "--stop" if is_none => self.generation.stop.clear(),
            "--logit-bias" if is_none => self.sampling.logit_bias.clear(),
            "--dry-sequence-breaker" if is_none => self.sampling.dry_sequence_breaker = vec!["none".to_string()],
            "--stop" => {
                // Escapes are read within quotes; elsewhere only where -e asks for it, as on the command line.
                let escape = self.generation.escape;
                let text = |word| match unquoted(word) {
                    inner if inner != word && !escape => unescape(inner),
                    inner => inner.to_string(),
                };
                self.parse(parameter, name, value, values.map(text))?;
            }
            "--logit-bias" | "--dry-sequence-breaker" => {
                self.parse(parameter, name, value, values.map(|word| unquoted(word).to_string()))?;
            }
            "--samplers" => {
                // The letters of --sampler-seq, where the word names no stage.
                let of_letters = |value| Chain::of_letters(value).ok().filter(|_| value.parse::<Chain>().is_err());
                let value = unquoted(value);
                let names = of_letters(value).map_or_else(|| value.to_string(), |chain| chain.to_string());
                self.parse(parameter, name, value, std::iter::once(names))?;
            }
            _ => self.parse(parameter, name, value, std::iter::once(unquoted(value).to_string()))?,
        }
        Ok((parameter.show)(self))
    }

    fn parse(
        &mut self,
        parameter: &Parameter,
        name: &str,
        typed: &str,
        values: impl Iterator<Item = String>,
    ) -> anyhow::Result<()> {
        let parsed = Settings::try_parse_from(values.map(|value| format!("{}={value}", parameter.flag)));
        let parsed = parsed.map_err(|error| match error.source() {
            Some(source) => match expected(&source.to_string()) {
                Some(wanted) => anyhow::anyhow!("{name}: '{typed}' is not {wanted}"),
                None => anyhow::anyhow!("{name}: '{typed}': {source}"),
            },
            None => anyhow::anyhow!("{name}: '{typed}' is not a value for it"),
        })?;
        (parameter.copy)(self, parsed);
        Ok(())
    }

    /// A line for each parameter.
    pub fn show(&self) -> Vec<String> {
        PARAMETERS.iter().map(|parameter| format!("{:<21} {}", parameter.names[0], (parameter.show)(self))).collect()
    }
}

/// Values as they can be typed back.
fn list(values: impl Iterator<Item = String>) -> String {
    let values = values.collect::<Vec<_>>().join(" ");
    if values.is_empty() { "none".to_string() } else { values }
}

/// A sentence that is about flags, with the names they have in a chat.
pub fn in_chat_words(sentence: &str) -> String {
    let called = |word: &str| {
        let flag = word.trim_end_matches([',', ':', ';']);
        let parameter = PARAMETERS.iter().find(|parameter| parameter.flag == flag);
        parameter.map_or_else(|| word.to_string(), |parameter| word.replacen(flag, parameter.names[0], 1))
    };
    sentence.split(' ').map(called).collect::<Vec<_>>().join(" ")
}

/// Names for people and for completion.
pub fn names() -> Vec<&'static str> {
    PARAMETERS.iter().map(|parameter| parameter.names[0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::try_parse_from::<_, &str>([]).unwrap()
    }

    #[test]
    fn every_parameter_takes_a_value_and_shows_it() {
        let mut settings = settings();
        let values = [
            ("temperature", "0.5"),
            ("dynatemp_range", "0.125"),
            ("dynatemp_exponent", "2.5"),
            ("top_k", "7"),
            ("top_p", "0.25"),
            ("min_p", "0.125"),
            ("typical_p", "0.75"),
            ("top_n_sigma", "1.25"),
            ("xtc_probability", "0.375"),
            ("xtc_threshold", "0.3125"),
            ("repeat_penalty", "1.5"),
            ("repeat_last_n", "32"),
            ("presence_penalty", "-0.5"),
            ("frequency_penalty", "2"),
            ("dry_multiplier", "0.875"),
            ("dry_base", "3.5"),
            ("dry_allowed_length", "4"),
            ("dry_penalty_last_n", "-1"),
            ("dry_sequence_breakers", "--x"),
            ("mirostat", "2"),
            ("mirostat_tau", "3.25"),
            ("mirostat_eta", "0.625"),
            ("samplers", "top_p;top_k"),
            ("logit_bias", "15043-2"),
            ("ignore_eos", "true"),
            ("num_predict", "9"),
            ("seed", "3"),
            ("stop", "END"),
        ];
        assert_eq!(values.map(|(name, _)| name).as_slice(), names());
        for (name, value) in values {
            settings.set(name, value).unwrap();
            let shown = settings.show().into_iter().find(|line| line.starts_with(name)).unwrap();
            assert!(shown.contains(value), "{name} {value} is shown as: {shown}");
        }
        let sampling = &settings.sampling;
        assert_eq!((sampling.temp, sampling.top_k, sampling.seed.0), (0.5, 7, Some(3)));
        assert_eq!((settings.generation.max_tokens(), settings.generation.stops()), (Some(9), vec!["END".to_string()]));
    }

    #[test]
    fn one_parameter_changes_and_the_others_stay() {
        let mut settings = settings();
        settings.set("temp", "0").unwrap();
        settings.set("top_k", "-1").unwrap();
        assert_eq!((settings.sampling.temp, settings.sampling.top_k, settings.sampling.top_p), (0.0, -1, 0.95));
    }

    #[test]
    fn the_names_of_the_flags_do_too() {
        let mut settings = settings();
        for (name, value) in [("n", "7"), ("--top-p", "0.5"), ("min-p", "0.25"), ("-s", "3")] {
            settings.set(name, value).unwrap();
        }
        let sampling = &settings.sampling;
        assert_eq!((settings.generation.predict, sampling.top_p, sampling.min_p), (7, 0.5, 0.25));
        assert_eq!(sampling.seed.0, Some(3));
    }

    #[test]
    fn several_stop_strings_are_words_that_quotes_hold_together() {
        let mut settings = settings();
        let mut stops = |value: &str| {
            settings.set("stop", value).unwrap();
            settings.generation.stops()
        };
        assert_eq!(stops("a b"), ["a", "b"]);
        assert_eq!(stops(r#""foo bar" baz"#), ["foo bar", "baz"]);
        assert_eq!(stops(r#""\n\n" \n "say \"x\"" --x"#), ["\n\n", r"\n", r#"say "x""#, "--x"]);
        for none in [r#""""#, "none", "[]"] {
            assert_eq!(stops("x"), ["x"]);
            assert!(stops(none).is_empty(), "{none}");
        }
        assert_eq!(stops(r#""none""#), ["none"]);
    }

    #[test]
    fn lists_are_shown_as_they_can_be_typed() {
        for escape in [false, true] {
            let mut settings = settings();
            settings.generation.escape = escape;
            for (name, value) in [
                ("stop", r#""foo bar" "\n" "\"" "\\n""#),
                ("stop", "none"),
                ("dry_sequence_breakers", r#""\n" "a b""#),
                ("dry_sequence_breakers", "none"),
                ("logit_bias", r#"15043-2 " Hello"-inf"#),
                ("logit_bias", "none"),
                ("samplers", "top_k;temperature"),
            ] {
                assert_eq!(settings.set(name, value).unwrap(), value);
                let shown = settings.show().into_iter().find(|line| line.starts_with(name)).unwrap();
                assert_eq!(shown, format!("{name:<21} {value}"));
            }
        }
    }

    #[test]
    fn quotes_around_a_value_are_no_part_of_it() {
        let mut settings = settings();
        for (name, value, shown) in [
            ("temperature", r#""0.5""#, "0.5"),
            ("top_k", "'7'", "7"),
            ("ignore_eos", r#""true""#, "true"),
            ("ignore_eos", "false", "false"),
            ("samplers", "kpt", "top_k;top_p;temperature"),
            ("sampler_seq", "x", "xtc"),
            ("samplers", "xtc", "xtc"),
            ("logit_bias", r#"'" Hello"-inf'"#, r#"" Hello"-inf"#),
        ] {
            assert_eq!(settings.set(name, value).unwrap(), shown, "{name}");
        }
    }

    #[test]
    fn flags_have_other_names_in_a_chat() {
        let told = in_chat_words("--typical changes nothing with --mirostat 2: --samplers, --temp and -c stay");
        assert_eq!(told, "typical_p changes nothing with mirostat 2: samplers, temperature and -c stay");
    }

    #[test]
    fn the_breakers_may_be_taken_away() {
        let mut settings = settings();
        assert_eq!(settings.sampling.breakers().len(), 4);
        settings.set("dry_sequence_breakers", r#""""#).unwrap();
        assert!(settings.sampling.breakers().is_empty());
    }

    #[test]
    fn errors_are_sentences_that_name_the_parameter() {
        let error = |name, value| settings().set(name, value).unwrap_err().to_string();
        assert_eq!(error("top_p", "7"), "top_p: '7' is not a number from 0 to 1");
        assert_eq!(error("seed", "x"), "seed: 'x' is not a whole number from -1 to 2^64 - 1");
        assert_eq!(error("temp", ""), "temp needs a value; it is 0.8");
        assert_eq!(error("top_k", "many"), "top_k: 'many' is not a whole number");
        assert_eq!(error("n", "-5"), "n: '-5' is not a whole number from -2 to 2147483648");
        assert_eq!(error("mirostat", "5"), "mirostat: '5' is not 0 or 2");
        assert_eq!(error("num_ctx", "4"), "num_ctx is settled when the program starts: the flag -c sets it there");
        assert_eq!(error("ignore_eos", "x"), "ignore_eos: 'x' is not true or false");
        assert!(error("mirostat", "1").contains("version 1"));
        assert!(error("samplers", "top_q").contains("there is no stage 'top_q', only penalties, dry"));
        assert!(error("logit_bias", "x").starts_with("logit_bias: 'x' is not a token's id"));
        assert!(error("num_foo", "4").starts_with("no parameter 'num_foo': there are temperature, dynatemp_range"));
    }
}
