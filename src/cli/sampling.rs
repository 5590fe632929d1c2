//! Flags of the sampler, under llama.cpp's names and with its defaults. Ranges are checked here, so that an error names
//! the flag and exits with 2.

mod bias;
mod idle;

use clap::Args;

use self::bias::LogitBias;
use super::args::{above_zero, number, unescape};
use super::terminal::Terminal;
use crate::sampler::{Breakers, Chain, Dry, Dynatemp, Mirostat, Params, UnknownStage, Xtc};
use crate::tokenizer::{TokenId, Tokenizer};

const DEFAULT_CHAIN: &str = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";

/// llama.cpp's: what ends a line, a speaker's name, a quotation or an emphasis.
const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0: always the likeliest token that is left
    #[arg(long, alias = "temperature", value_name = "X", default_value_t = 0.8, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub temp: f32,

    /// Let the temperature move by up to X around --temp; 0: off
    ///
    /// Up where many tokens are likely, down where few are.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub dynatemp_range: f32,

    /// Exponent of that: above 1 it rises late, below 1 early
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub dynatemp_exp: f32,

    /// Keep the K likeliest tokens; 0 or less: all
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub top_k: i64,

    /// Keep the likeliest tokens that together reach this probability; 1: all
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub top_p: f32,

    /// Keep tokens at least this likely, as a part of the likeliest; 0: all
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub min_p: f32,

    /// Keep what surprises as much as is to be expected, up to this probability; 1: all
    #[arg(long, alias = "typical-p", value_name = "P", default_value_t = 1.0, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub typical: f32,

    /// Keep tokens whose logit is within N standard deviations of the best; 0 or less: all
    #[arg(long, alias = "top-n-sigma", value_name = "N", default_value_t = -1.0, value_parser = finite, allow_negative_numbers = true)]
    pub top_nsigma: f32,

    /// How often XTC leaves out all likely tokens but the least likely of them; 0: never
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub xtc_probability: f32,

    /// From which probability on XTC calls a token likely; above 0.5: none
    #[arg(long, value_name = "P", default_value_t = 0.1, value_parser = zero_to_one, allow_negative_numbers = true)]
    pub xtc_threshold: f32,

    /// Weaken tokens of the last ones by this factor; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = above_zero, allow_negative_numbers = true)]
    pub repeat_penalty: f32,

    /// How many of the last tokens the penalties look at; 0: none, -1: all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i64).range(-1..), allow_negative_numbers = true)]
    pub repeat_last_n: i64,

    /// Subtracted from tokens that were there at all; 0: off
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    pub presence_penalty: f32,

    /// Subtracted from tokens for each time they were there; 0: off
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    pub frequency_penalty: f32,

    /// DRY: subtracted from a token that would go on with a repetition; 0: off
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub dry_multiplier: f32,

    /// By this factor DRY subtracts more for each token of the repetition beyond the allowed length
    #[arg(long, value_name = "X", default_value_t = 1.75, value_parser = one_or_more, allow_negative_numbers = true)]
    pub dry_base: f32,

    /// Repetitions of fewer tokens cost nothing in DRY
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=1 << 31), allow_negative_numbers = true)]
    pub dry_allowed_length: usize,

    /// How many of the last tokens DRY looks at; 0: none, -1: all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i64).range(-1..), allow_negative_numbers = true)]
    pub dry_penalty_last_n: i64,

    /// Text at which repetitions end for DRY; none: there is no such text [default: \n : " *]
    ///
    /// May be given several times. \n and the like are read as escapes.
    #[arg(long, value_name = "S", value_parser = clap::builder::NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,

    /// 2: keep the surprise of the text about the same
    ///
    /// Mirostat takes the place of all stages but the temperature. There is no version 1.
    #[arg(long, value_name = "0|2", default_value_t = 0, value_parser = mirostat, allow_negative_numbers = true)]
    pub mirostat: u8,

    /// How fast Mirostat learns (eta)
    #[arg(long, value_name = "X", default_value_t = 0.1, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub mirostat_lr: f32,

    /// The surprise that Mirostat aims at, in bits a token (tau)
    #[arg(long, value_name = "X", default_value_t = 5.0, value_parser = zero_or_more, allow_negative_numbers = true)]
    pub mirostat_ent: f32,

    /// The stages between the model and the draw, in their order [default: all nine]
    ///
    /// Those that are not named are left out. All nine are
    /// penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature.
    #[arg(long, value_name = "NAMES", default_value = DEFAULT_CHAIN, hide_default_value = true, overrides_with = "sampler_seq")]
    pub samplers: Chain,

    /// The same in letters, such as kpt
    ///
    /// e: penalties, d: dry, s: top_n_sigma, k: top_k, y: typ_p, p: top_p, m: min_p, x: xtc, t: temperature.
    #[arg(long, alias = "sampling-seq", value_name = "LETTERS", value_parser = letters, overrides_with = "samplers")]
    pub sampler_seq: Option<Chain>,

    /// Make a token likelier or less likely: 15043+1, 15043-0.5; 15043-inf: never
    ///
    /// The token's id, or its text as in JSON: '" Hello"-0.5'. May be given several times.
    #[arg(short, long, value_name = "TOKEN+BIAS", value_parser = LogitBias::parse, allow_hyphen_values = true)]
    pub logit_bias: Vec<LogitBias>,

    /// Seed of the random numbers; the same seed gives the same text; -1: a new one each time
    #[arg(short, long, value_name = "SEED", default_value = "-1", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Seed,

    /// Never end the answer: no end token can come
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    pub fn chain(&self) -> &Chain {
        self.sampler_seq.as_ref().unwrap_or(&self.samplers)
    }

    /// What was asked for and changes nothing, each in a sentence.
    pub fn idle(&self) -> Vec<String> {
        idle::idle(self)
    }

    pub fn warn_of_idle(&self, terminal: &Terminal) {
        self.idle().iter().for_each(|sentence| terminal.warn(sentence));
    }

    /// The error names tokens that the vocabulary does not have.
    pub fn params(&self, tokenizer: &Tokenizer) -> anyhow::Result<Params> {
        let mut params = self.params_but_for_tokens();
        for bias in &self.logit_bias {
            for token in bias.token.find(tokenizer)? {
                match bias.bias {
                    Some(bias) => params.biases.push((token, bias)),
                    None => params.banned.push(token),
                }
            }
        }
        if self.ignore_eos {
            params.banned.extend(tokenizer.end_of_generation());
        }
        if !params.dry.is_off() {
            let pieces = (0..tokenizer.vocab() as TokenId).map(|id| tokenizer.bytes(id));
            params.dry.breakers = Breakers::new(&self.breakers(), pieces);
        }
        Ok(params)
    }

    fn params_but_for_tokens(&self) -> Params {
        let mirostat = Mirostat { target: self.mirostat_ent, rate: self.mirostat_lr };
        Params {
            chain: self.chain().clone(),
            temperature: self.temp,
            dynatemp: Dynatemp { range: self.dynatemp_range, exponent: self.dynatemp_exp },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical: self.typical,
            top_n_sigma: self.top_nsigma,
            xtc: Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold },
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self.repeat_last_n,
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                last_n: self.dry_penalty_last_n,
                breakers: Breakers::default(),
            },
            mirostat: (self.mirostat == 2).then_some(mirostat),
            seed: self.seed.0,
            biases: Vec::new(),
            banned: Vec::new(),
        }
    }

    /// Escapes processed: a line end is what one wants most.
    pub fn breakers(&self) -> Vec<String> {
        match self.dry_sequence_breaker.as_slice() {
            [] => DEFAULT_BREAKERS.map(str::to_string).to_vec(),
            given => given.iter().filter(|text| *text != "none").map(|text| unescape(text)).collect(),
        }
    }
}

/// `None`: a new one each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

fn seed(text: &str) -> Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed(None));
    }
    text.parse().map(|seed| Seed(Some(seed))).map_err(|_| "not a whole number from -1 to 2^64 - 1".to_string())
}

fn mirostat(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "1" => Err("there is no version 1 of Mirostat here, only 2, which came after it".to_string()),
        "2" => Ok(2),
        _ => Err("not 0 or 2".to_string()),
    }
}

fn letters(text: &str) -> Result<Chain, UnknownStage> {
    Chain::of_letters(text)
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, "a finite number", |_| true)
}

fn zero_or_more(text: &str) -> Result<f32, String> {
    number(text, "a number of 0 or more", |value| value >= 0.0)
}

fn one_or_more(text: &str) -> Result<f32, String> {
    number(text, "a number of 1 or more", |value| value >= 1.0)
}

fn zero_to_one(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_cover_all_of_u64_and_minus_one_is_random() {
        assert_eq!(seed("-1"), Ok(Seed(None)));
        assert_eq!(seed("0"), Ok(Seed(Some(0))));
        assert_eq!(seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        assert!(seed("-2").is_err() && seed("18446744073709551616").is_err() && seed("x").is_err());
    }

    pub fn parsed(flags: &[&str]) -> SamplingArgs {
        #[derive(clap::Parser)]
        #[command(no_binary_name = true)]
        struct Flags {
            #[command(flatten)]
            sampling: SamplingArgs,
        }
        <Flags as clap::Parser>::try_parse_from(flags).map(|flags| flags.sampling).unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_sampler() {
        assert_eq!(parsed(&[]).params_but_for_tokens(), Params::default());
        assert_eq!(parsed(&[]).breakers(), ["\n", ":", "\"", "*"]);
        assert!(parsed(&[]).idle().is_empty());
        let mirostat = parsed(&["--mirostat", "2"]).params_but_for_tokens().mirostat;
        assert_eq!(mirostat, Some(Mirostat::default()));
    }

    #[test]
    fn every_flag_reaches_the_sampler() {
        let flags = "--temp 0.5 --dynatemp-range 0.25 --dynatemp-exp 2 --top-k 7 --top-p 0.25 --min-p 0.125 --typical 0.75 \
                     --top-nsigma 1.5 --xtc-probability 0.5 --xtc-threshold 0.25 --repeat-penalty 1.5 \
                     --repeat-last-n -1 --presence-penalty -0.5 --frequency-penalty 2 --dry-multiplier 0.75 \
                     --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n -1 --mirostat 2 --mirostat-lr 0.5 \
                     --mirostat-ent 3 --samplers top_k;temperature --seed 9";
        let params = parsed(&flags.split_whitespace().collect::<Vec<_>>()).params_but_for_tokens();
        let want = Params {
            chain: Chain::of_letters("kt").unwrap(),
            temperature: 0.5,
            dynatemp: Dynatemp { range: 0.25, exponent: 2.0 },
            top_k: 7,
            top_p: 0.25,
            min_p: 0.125,
            typical: 0.75,
            top_n_sigma: 1.5,
            xtc: Xtc { probability: 0.5, threshold: 0.25 },
            repeat_penalty: 1.5,
            presence_penalty: -0.5,
            frequency_penalty: 2.0,
            repeat_last_n: -1,
            dry: Dry { multiplier: 0.75, base: 2.0, allowed_length: 3, last_n: -1, ..Dry::default() },
            mirostat: Some(Mirostat { target: 3.0, rate: 0.5 }),
            seed: Some(9),
            ..Params::default()
        };
        assert_eq!(params, want);
    }

    #[test]
    fn the_last_of_the_two_forms_of_the_chain_counts() {
        let chain = |flags: &[&str]| parsed(flags).chain().to_string();
        assert_eq!(chain(&["--sampler-seq", "kt"]), "top_k;temperature");
        assert_eq!(chain(&["--samplers", "top_p", "--sampler-seq", "kt"]), "top_k;temperature");
        assert_eq!(chain(&["--sampler-seq", "kt", "--samplers", "top_p"]), "top_p");
    }

    #[test]
    fn breakers_are_unescaped_and_none_is_none() {
        let breakers = |texts: &[&str]| {
            parsed(&texts.iter().flat_map(|text| ["--dry-sequence-breaker", text]).collect::<Vec<_>>()).breakers()
        };
        assert_eq!(breakers(&[r"\n\n", "--", "終"]), ["\n\n", "--", "終"]);
        assert!(breakers(&["none"]).is_empty());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for text in ["nan", "inf", "-0.1", "1.5", "", "x"] {
            assert!(zero_to_one(text).is_err(), "{text}");
        }
        assert!(above_zero("0").is_err() && above_zero("-1").is_err() && zero_or_more("0").is_ok());
        assert!(finite("nan").is_err() && finite("-2").is_ok());
        assert!(one_or_more("0.9").is_err() && one_or_more("1").is_ok());
        assert_eq!(mirostat("2"), Ok(2));
        assert!(mirostat("1").unwrap_err().contains("version 1") && mirostat("3").is_err() && mirostat("-1").is_err());
    }
}
