//! Flags that were given and change nothing, because of others: better told than found out.

use super::SamplingArgs;
use crate::sampler::{Params, Stage};

/// A sentence for each.
pub fn idle(args: &SamplingArgs) -> Vec<String> {
    let (asked, usual) = (args.params_but_for_tokens(), Params::default());
    let with_mirostat = asked.mirostat.is_some();
    let mut idle = Vec::new();
    for (stage, flag, is_given, off) in of_stages(args, &asked, &usual) {
        if !is_given || (with_mirostat && flag == "--temp") {
            continue;
        }
        if with_mirostat {
            idle.push(format!("{flag} changes nothing with --mirostat 2, which leaves out all but the temperature"));
        } else if !asked.chain.has(stage) {
            idle.push(format!("{flag} changes nothing: --samplers leaves out {}", stage.name()));
        } else if let Some(why) = off {
            idle.push(format!("{flag} changes nothing {why}"));
        }
    }
    if with_mirostat && asked.chain != usual.chain {
        let flag = if args.sampler_seq.is_some() { "--sampler-seq" } else { "--samplers" };
        idle.push(format!("{flag} changes nothing with --mirostat 2, which leaves out all but the temperature"));
    }
    let usual = crate::sampler::Mirostat::default();
    for (flag, is_given) in
        [("--mirostat-lr", args.mirostat_lr != usual.rate), ("--mirostat-ent", args.mirostat_ent != usual.target)]
    {
        if is_given && !with_mirostat {
            idle.push(format!("{flag} changes nothing without --mirostat 2"));
        }
    }
    idle
}

/// The stage of each flag, whether another value than the usual was given, and why that is without effect, if it is.
fn of_stages(
    args: &SamplingArgs,
    asked: &Params,
    usual: &Params,
) -> [(Stage, &'static str, bool, Option<&'static str>); 19] {
    let when = |is_off: bool, why| is_off.then_some(why);
    let no_last_n = when(asked.repeat_last_n == 0, "with --repeat-last-n 0");
    let no_penalty = when(
        asked.repeat_penalty == 1.0 && asked.presence_penalty == 0.0 && asked.frequency_penalty == 0.0,
        "without --repeat-penalty, --presence-penalty or --frequency-penalty",
    );
    let no_dry = when(asked.dry.multiplier == 0.0, "without --dry-multiplier");
    let no_dry_last_n = when(asked.dry.last_n == 0, "with --dry-penalty-last-n 0");
    let no_xtc = when(asked.xtc.probability == 0.0, "without --xtc-probability");
    let no_xtc_threshold = when(asked.xtc.threshold > 0.5, "with an --xtc-threshold above 0.5");
    let no_range = when(asked.dynatemp.range == 0.0, "without --dynatemp-range");
    [
        (Stage::Penalties, "--repeat-penalty", asked.repeat_penalty != usual.repeat_penalty, no_last_n),
        (Stage::Penalties, "--presence-penalty", asked.presence_penalty != usual.presence_penalty, no_last_n),
        (Stage::Penalties, "--frequency-penalty", asked.frequency_penalty != usual.frequency_penalty, no_last_n),
        (Stage::Penalties, "--repeat-last-n", asked.repeat_last_n != usual.repeat_last_n, no_penalty),
        (Stage::Dry, "--dry-multiplier", asked.dry.multiplier != usual.dry.multiplier, no_dry_last_n),
        (Stage::Dry, "--dry-base", asked.dry.base != usual.dry.base, no_dry),
        (Stage::Dry, "--dry-allowed-length", asked.dry.allowed_length != usual.dry.allowed_length, no_dry),
        (Stage::Dry, "--dry-penalty-last-n", asked.dry.last_n != usual.dry.last_n, no_dry),
        (Stage::Dry, "--dry-sequence-breaker", !args.dry_sequence_breaker.is_empty(), no_dry),
        (Stage::TopNSigma, "--top-nsigma", asked.top_n_sigma != usual.top_n_sigma, None),
        (Stage::TopK, "--top-k", asked.top_k != usual.top_k, None),
        (Stage::Typical, "--typical", asked.typical != usual.typical, None),
        (Stage::TopP, "--top-p", asked.top_p != usual.top_p, None),
        (Stage::MinP, "--min-p", asked.min_p != usual.min_p, None),
        (Stage::Xtc, "--xtc-probability", asked.xtc.probability != usual.xtc.probability, no_xtc_threshold),
        (Stage::Xtc, "--xtc-threshold", asked.xtc.threshold != usual.xtc.threshold, no_xtc),
        (Stage::Temperature, "--temp", asked.temperature != usual.temperature, None),
        (Stage::Temperature, "--dynatemp-range", asked.dynatemp.range != usual.dynatemp.range, None),
        (Stage::Temperature, "--dynatemp-exp", asked.dynatemp.exponent != usual.dynatemp.exponent, no_range),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;

    #[test]
    fn a_flag_whose_stage_is_left_out_is_told() {
        let idle = parsed(&["--samplers", "top_k;temperature", "--top-p", "0.5", "--top-k", "5"]).idle();
        assert_eq!(idle, ["--top-p changes nothing: --samplers leaves out top_p"]);
        let idle = parsed(&["--sampler-seq", "k", "--temp", "0"]).idle();
        assert_eq!(idle, ["--temp changes nothing: --samplers leaves out temperature"]);
    }

    #[test]
    fn mirostat_leaves_out_all_but_the_temperature() {
        let flags = ["--mirostat", "2", "--temp", "0.5", "--mirostat-lr", "0.2", "--top-k", "5", "--sampler-seq", "kt"];
        let idle = parsed(&flags).idle();
        assert_eq!(idle.len(), 2, "{idle:?}");
        assert!(idle[0].starts_with("--top-k changes nothing with --mirostat 2"), "{idle:?}");
        assert!(idle[1].starts_with("--sampler-seq changes nothing with --mirostat 2"), "{idle:?}");
    }

    #[test]
    fn a_flag_that_needs_another_is_told() {
        for (flags, without) in [
            (["--dry-base", "2"], "without --dry-multiplier"),
            (["--dry-allowed-length", "5"], "without --dry-multiplier"),
            (["--dry-penalty-last-n", "5"], "without --dry-multiplier"),
            (["--dry-sequence-breaker", "."], "without --dry-multiplier"),
            (["--xtc-threshold", "0.3"], "without --xtc-probability"),
            (["--dynatemp-exp", "2"], "without --dynatemp-range"),
            (["--mirostat-lr", "0.2"], "without --mirostat 2"),
            (["--mirostat-ent", "3"], "without --mirostat 2"),
            (["--repeat-last-n", "0"], "without --repeat-penalty, --presence-penalty or --frequency-penalty"),
        ] {
            assert_eq!(parsed(&flags).idle(), [format!("{} changes nothing {without}", flags[0])]);
        }
        for (flags, with) in [
            (["--repeat-penalty", "2", "--repeat-last-n", "0"], "with --repeat-last-n 0"),
            (["--dry-multiplier", "2", "--dry-penalty-last-n", "0"], "with --dry-penalty-last-n 0"),
            (["--xtc-probability", "1", "--xtc-threshold", "0.6"], "with an --xtc-threshold above 0.5"),
        ] {
            assert_eq!(parsed(&flags).idle(), [format!("{} changes nothing {with}", flags[0])]);
        }
    }
}
