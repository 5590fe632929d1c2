use serde_json::Value;

use super::*;

pub fn candidates(logits: &[f32]) -> Vec<Candidate> {
    (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }).collect()
}

/// Logits whose softmax is proportional to `weights`, up to rounding.
pub fn of_weights(weights: &[f32]) -> Vec<Candidate> {
    candidates(&weights.iter().map(|&weight| libm::logf(weight)).collect::<Vec<_>>())
}

pub fn ids(candidates: &[Candidate]) -> Vec<TokenId> {
    candidates.iter().map(|candidate| candidate.id).collect()
}

pub fn logits(candidates: &[Candidate]) -> Vec<f32> {
    candidates.iter().map(|candidate| candidate.logit).collect()
}

/// Plausible logits: a few high ones, a long tail.
fn some_logits(vocab: usize) -> Vec<f32> {
    let mut rng = Rng::new(42);
    (0..vocab).map(|_| 15.0 * rng.unit().powi(8) as f32 - 5.0 * rng.unit() as f32).collect()
}

fn draws(params: &Params, logits: &[f32], n: usize) -> Vec<TokenId> {
    let mut sampler = Sampler::new(params.clone());
    (0..n).map(|_| sampler.sample(logits).unwrap()).collect()
}

fn greedy() -> Params {
    Params { temperature: 0.0, ..Params::default() }
}

#[test]
fn temperature_zero_or_less_is_the_arg_max_whatever_the_seed() {
    for temperature in [0.0, -1.0] {
        for seed in 0..5 {
            let params = Params { temperature, seed: Some(seed), ..Params::default() };
            assert_eq!(draws(&params, &[1.0, 3.0, 3.0, 2.0], 20), [1; 20]);
            assert_eq!(draws(&params, &[-1.0, -0.0, 0.0], 1), [1]);
        }
    }
}

#[test]
fn a_seed_repeats_and_another_does_not() {
    let logits = some_logits(1000);
    let with = |seed| Params { seed: Some(seed), temperature: 1.5, ..Params::default() };
    assert_eq!(draws(&with(0), &logits, 50), draws(&with(0), &logits, 50));
    assert_ne!(draws(&with(0), &logits, 50), draws(&with(1), &logits, 50));
}

#[test]
fn without_a_seed_runs_differ_and_the_seed_told_repeats_them() {
    let mut first = Sampler::new(Params::default());
    let other = Sampler::new(Params::default());
    assert_ne!(first.seed(), other.seed());
    let logits = some_logits(1000);
    let text: Vec<_> = (0..50).map(|_| first.sample(&logits).unwrap()).collect();
    assert_eq!(draws(&Params { seed: Some(first.seed()), ..Params::default() }, &logits, 50), text);
}

#[test]
fn the_best_is_enough_only_where_nothing_can_change_it() {
    let wants_best = |params: Params| Sampler::new(params).wants_best();
    assert!(wants_best(greedy()));
    assert!(wants_best(Params { top_k: 1, top_p: 0.0, min_p: 1.0, top_n_sigma: 1.0, ..greedy() }));
    assert!(wants_best(Params { mirostat: Some(Mirostat::default()), ..greedy() }));
    let dry = Dry { multiplier: 1.0, ..Dry::default() };
    let xtc = Xtc { probability: 0.1, threshold: 0.1 };
    for params in [
        Params::default(),
        Params { banned: vec![1], ..greedy() },
        Params { biases: vec![(1, 0.5)], ..greedy() },
        Params { repeat_penalty: 1.1, ..greedy() },
        Params { presence_penalty: 0.1, ..greedy() },
        Params { frequency_penalty: -0.1, ..greedy() },
        Params { dry: dry.clone(), ..greedy() },
        Params { xtc, ..greedy() },
        Params { typical: 0.9, ..greedy() },
        Params { dynatemp: Dynatemp { range: 0.1, exponent: 1.0 }, ..greedy() },
        Params { chain: Chain(vec![Stage::TopK]), ..greedy() },
    ] {
        assert!(!wants_best(params.clone()), "{params:?}");
    }
    // Stages that are not in the chain change nothing.
    let chain = Chain(vec![Stage::Temperature]);
    assert!(wants_best(Params { chain, repeat_penalty: 1.1, typical: 0.9, dry, xtc, ..greedy() }));
}

/// Where `wants_best` says so, `sample` gives the best.
#[test]
fn greedy_sampling_is_the_arg_max_through_every_truncation() {
    let logits = some_logits(2000);
    let best = (0..2000).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as TokenId;
    for letters in ["edskypmxt", "t", "tkp", "smkpt"] {
        let chain = Chain::of_letters(letters).unwrap();
        let params = Params { chain, top_n_sigma: 1.0, top_p: 0.1, ..greedy() };
        assert!(Sampler::new(params.clone()).wants_best());
        assert_eq!(draws(&params, &logits, 3), [best; 3], "{letters}");
    }
    assert_eq!(draws(&Params { mirostat: Some(Mirostat::default()), ..greedy() }, &logits, 3), [best; 3]);
}

#[test]
fn everything_filtered_away_leaves_the_best() {
    let logits = some_logits(500);
    let best = draws(&greedy(), &logits, 1)[0];
    let strict = Params {
        temperature: 1.0,
        top_k: 1,
        top_p: 0.0,
        min_p: 1.0,
        typical: 0.0,
        top_n_sigma: f32::MIN_POSITIVE,
        xtc: Xtc { probability: 1.0, threshold: 0.0 },
        ..Params::default()
    };
    assert_eq!(draws(&strict, &logits, 20), [best; 20]);
}

#[test]
fn one_stage_alone_is_as_strict_as_it_says() {
    let off = Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Params::default() };
    let logits = [2.0, 1.0, 0.0, -1.0];
    let seen = |params: &Params| {
        let mut ids = draws(params, &logits, 500);
        ids.sort();
        ids.dedup();
        ids
    };
    assert_eq!(seen(&off), [0, 1, 2, 3]);
    assert_eq!(seen(&Params { top_k: 2, ..off.clone() }), [0, 1]);
    // Softmax of the logits: 0.644, 0.237, 0.087, 0.032.
    assert_eq!(seen(&Params { top_p: 0.9, ..off.clone() }), [0, 1, 2]);
    assert_eq!(seen(&Params { min_p: 0.3, ..off.clone() }), [0, 1]);
}

/// With every order of two stages that do not commute the other token stays.
#[test]
fn the_chain_is_followed_in_its_order() {
    let logits = [2.0, 1.9, 0.0, -1.0];
    let only = |letters: &str, params: &Params| {
        let chain = Chain::of_letters(letters).unwrap();
        let mut seen = draws(&Params { chain, ..params.clone() }, &logits, 200);
        seen.sort();
        seen.dedup();
        seen
    };
    let xtc = Xtc { probability: 1.0, threshold: 0.3 };
    let params = Params { top_k: 2, xtc, temperature: 0.0, ..Params::default() };
    // Two likely ones, of which XTC leaves the second: of all it goes on with three, of the best two with one.
    assert_eq!(only("xk", &params), [1, 2]);
    assert_eq!(only("kx", &params), [1]);
    // Once the temperature has left one, XTC has nothing to leave out.
    assert_eq!(only("tx", &params), [0]);
    assert_eq!(only("xt", &params), [1]);
    assert_eq!(only("", &params), [0, 1, 2, 3], "no stage at all");
}

#[test]
fn a_stage_that_is_not_in_the_chain_does_nothing() {
    let logits = [2.0, 1.0, 0.0, -1.0];
    let chain = Chain(vec![Stage::Temperature]);
    let params = Params { chain, top_k: 1, typical: 0.0, top_p: 0.0, min_p: 1.0, seed: Some(1), ..Params::default() };
    let mut seen = draws(&params, &logits, 500);
    seen.sort();
    seen.dedup();
    assert_eq!(seen, [0, 1, 2, 3]);
}

/// Any value of any parameter, also those that the command line refuses, draws a token of the list.
#[test]
fn no_value_empties_the_list_or_draws_from_nonsense() {
    let logits = [f32::MAX, 3.0, 2.5, 0.0, -1.0, f32::MIN];
    for x in [0.0, 1.0, -1.0, 1e-40, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let off = Params { top_k: 0, seed: Some(1), ..Params::default() };
        let all = Params {
            dynatemp: Dynatemp { range: x, exponent: x },
            top_p: x,
            min_p: x,
            typical: x,
            top_n_sigma: x,
            xtc: Xtc { probability: x, threshold: x },
            repeat_penalty: x,
            presence_penalty: x,
            frequency_penalty: x,
            dry: Dry { multiplier: x, base: x, allowed_length: 0, ..Dry::default() },
            biases: vec![(1, x)],
            ..off.clone()
        };
        let mirostat = Some(Mirostat { target: x, rate: x });
        for params in [Params { temperature: x, ..all.clone() }, all, Params { mirostat, ..off.clone() }] {
            let mut sampler = Sampler::new(params);
            (0..6).chain(0..6).for_each(|token| sampler.accept(token));
            for _ in 0..20 {
                assert!(sampler.sample(&logits).unwrap() < 6, "{x}");
            }
        }
    }
}

#[test]
fn truncation_comes_before_temperature() {
    // At temperature 100 all four would be equally likely, and top-p would keep them all.
    let hot = Params { temperature: 100.0, top_k: 0, top_p: 0.6, min_p: 0.0, ..Params::default() };
    assert_eq!(draws(&hot, &[2.0, 1.0, 0.0, -1.0], 50), [0; 50]);
}

#[test]
fn draws_follow_the_softmax() {
    let off = Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(3), ..Params::default() };
    let ids = draws(&off, &[2.0, 1.0, 0.0, -1.0], 20_000);
    for (id, want) in [0.644, 0.237, 0.087, 0.032].into_iter().enumerate() {
        let share = ids.iter().filter(|&&drawn| drawn as usize == id).count() as f64 / ids.len() as f64;
        assert!((share - want).abs() < 0.01, "token {id}: {share} instead of {want}");
    }
}

#[test]
fn a_logit_that_is_not_finite_is_an_error_that_names_it() {
    for params in [greedy(), Params::default()] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for token in [0, 250, 499] {
                let mut logits = some_logits(500);
                logits[token] = value;
                let error = Sampler::new(params.clone()).sample(&logits).unwrap_err();
                assert_eq!(error.0, format!(" ({value}) for token {token}"));
            }
        }
    }
}

#[test]
fn banned_tokens_never_come_not_even_when_they_are_all_there_is_to_top_k() {
    let logits = [9.0, 8.0, 1.0, 0.0];
    let banned = vec![0, 1, 77];
    assert_eq!(draws(&Params { banned: banned.clone(), ..greedy() }, &logits, 1), [2]);
    let drawn = draws(&Params { banned, top_k: 2, ..Params::default() }, &logits, 200);
    assert!(drawn.iter().all(|&id| id >= 2));
}

#[test]
fn biases_for_one_token_add_up_before_all_stages() {
    let logits = [3.0, 2.0, 1.0];
    assert_eq!(draws(&Params { biases: vec![(2, 1.5), (2, 1.0)], ..greedy() }, &logits, 1), [2]);
    assert_eq!(draws(&Params { biases: vec![(2, 1.5)], ..greedy() }, &logits, 1), [0]);
    let kept = Params { biases: vec![(2, 50.0)], top_k: 1, ..Params::default() };
    assert_eq!(draws(&kept, &logits, 20), [2; 20], "top-k sees the bias");
    let mirostat = Some(Mirostat::default());
    let with = |banned, biases| Params { mirostat, banned, biases, ..greedy() };
    assert_eq!(draws(&with(vec![0], vec![(2, 5.0)]), &logits, 1), [2], "mirostat too");
}

#[test]
fn a_ban_on_everything_is_not_followed() {
    assert_eq!(draws(&Params { banned: vec![1, 0], ..greedy() }, &[1.0, 2.0], 1), [1]);
}

#[test]
fn dry_sees_what_was_accepted_until_it_forgets_it() {
    let dry = Dry { multiplier: 10.0, allowed_length: 1, ..Dry::default() };
    let mut sampler = Sampler::new(Params { dry, ..greedy() });
    let logits = [3.0, 2.0, 0.0];
    [2, 0, 2].into_iter().for_each(|token| sampler.accept(token));
    assert_eq!(sampler.sample(&logits).unwrap(), 1);
    sampler.forget();
    sampler.accept(2);
    assert_eq!(sampler.sample(&logits).unwrap(), 0);
}

#[test]
fn mirostat_moves_its_cut_and_forgets_where_it_was() {
    let mirostat = Mirostat { target: 0.5, rate: 1.0 };
    let mut sampler = Sampler::new(Params { mirostat: Some(mirostat), temperature: 1.0, ..Params::default() });
    assert_eq!(sampler.cut, 1.0);
    // One token has almost all: no surprise, so that the cut rises by all of the target.
    sampler.sample(&[50.0, 0.0]).unwrap();
    assert_eq!(sampler.cut, 1.5);
    // Of four equal ones each surprises by 2 bits: too much for the cut, so that the best alone stays.
    assert_eq!(sampler.sample(&[0.0; 4]).unwrap(), 0);
    assert_eq!(sampler.cut, 2.0);
    // Now all four are within it, and the error is 1.5 bits.
    sampler.sample(&[0.0; 4]).unwrap();
    assert_eq!(sampler.cut, 0.5);
    sampler.forget();
    assert_eq!(sampler.cut, 1.0);
}

#[test]
fn random_numbers_of_stages_come_from_the_seed() {
    let logits = some_logits(1000);
    let xtc = Xtc { probability: 0.5, threshold: 0.01 };
    for params in [
        Params { xtc, temperature: 1.5, ..Params::default() },
        Params { mirostat: Some(Mirostat::default()), ..Params::default() },
    ] {
        let with = |seed| draws(&Params { seed: Some(seed), ..params.clone() }, &logits, 50);
        assert_eq!(with(0), with(0));
        assert_ne!(with(0), with(1));
    }
}

#[test]
fn penalties_see_what_was_accepted_until_they_forget_it() {
    let mut sampler = Sampler::new(Params { repeat_penalty: 2.0, ..greedy() });
    let logits = [3.0, 2.0];
    assert_eq!(sampler.sample(&logits).unwrap(), 0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits).unwrap(), 1);
    sampler.forget();
    assert_eq!(sampler.sample(&logits).unwrap(), 0);
}

/// Against float64 and full sorts: tests/data/sampler.json holds what scripts/sampler_reference.py left of 300 logits after
/// single stages and chains of them.
#[test]
fn stages_and_chains_leave_what_the_float64_reference_does() {
    let reference: Value = serde_json::from_str(include_str!("../../tests/data/sampler.json")).unwrap();
    let numbers = |list: &Value| list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let logits: Vec<f32> = numbers(&reference["logits"]).into_iter().map(|logit| logit as f32).collect();
    let text: Vec<TokenId> = numbers(&reference["text"]).into_iter().map(|token| token as TokenId).collect();
    let cases = reference["cases"].as_array().unwrap();
    assert_eq!((logits.len(), cases.len()), (300, 20));
    for case in cases {
        let mut params = Params {
            temperature: 0.7,
            top_p: 0.9,
            typical: 0.87,
            top_n_sigma: 1.5,
            xtc: Xtc { probability: 1.0, threshold: 0.06 },
            repeat_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: 0.2,
            dry: Dry { multiplier: 0.8, last_n: -1, ..Dry::default() },
            ..Params::default()
        };
        if let Some(chain) = case["chain"].as_str() {
            params.chain = chain.parse().unwrap();
        }
        if let [range, exponent] = case["dynatemp"].as_array().map(Vec::as_slice).unwrap_or_default() {
            params.dynatemp =
                Dynatemp { range: range.as_f64().unwrap() as f32, exponent: exponent.as_f64().unwrap() as f32 };
        }
        params.mirostat = case["mirostat"].as_f64().map(|target| Mirostat { target: target as f32, rate: 0.1 });
        let mut sampler = Sampler::new(params);
        text.iter().for_each(|&token| sampler.accept(token));
        sampler.sample(&logits).unwrap();

        let total = weigh(&sampler.candidates, &mut sampler.weights);
        let mut left: Vec<(TokenId, f64)> = sampler
            .candidates
            .iter()
            .zip(&sampler.weights)
            .map(|(c, &weight)| (c.id, f64::from(weight) / total))
            .collect();
        left.sort_by_key(|&(id, _)| id);
        let mut want: Vec<(TokenId, f64)> = case["left"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| {
                let pair = numbers(pair);
                (pair[0] as TokenId, pair[1])
            })
            .collect();
        want.sort_by_key(|&(id, _)| id);
        let ids = |list: &[(TokenId, f64)]| list.iter().map(|&(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(&left), ids(&want), "{}", case["chain"]);
        for ((id, got), (_, want)) in left.into_iter().zip(want) {
            // Logits of up to 12 in f32 are off by 5e-7, their exponentials by as much, in parts.
            assert!((got - want).abs() <= 1e-5 * want + 1e-9, "{} token {id}: {got}, not {want}", case["chain"]);
        }
    }
}
