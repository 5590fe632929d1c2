//! Logits -> the next token: a chain of stages under llama.cpp's names and defaults, with its arithmetic.
//!
//! Biases and bans -> penalties -> DRY -> top-n-sigma -> top-k -> typical -> top-p -> min-p -> XTC -> temperature -> draw;
//! `Params::chain` is another order or choice. Mirostat takes the place of all stages but the temperature. Each stage is
//! a function on a list of candidates and keeps at least one. Exponentials and logarithms come from the `libm` crate and
//! never from the system, whose last bits differ between machines: the same logits and the same seed give the same token
//! everywhere.

mod bias;
mod breakers;
mod candidates;
mod chain;
mod dry;
mod mirostat;
mod penalties;
mod rng;
mod temperature;
mod truncation;
mod typical;
mod xtc;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

pub use breakers::Breakers;
pub use chain::{Chain, Stage, UnknownStage};
pub use dry::Dry;
pub use mirostat::Mirostat;
pub use temperature::Dynatemp;
pub use xtc::Xtc;

use crate::tokenizer::TokenId;
use candidates::{Candidate, weigh};
use penalties::Window;
use rng::Rng;

#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Which stages work, in which order.
    pub chain: Chain,
    /// 0 or less: the most likely token of those that are left.
    pub temperature: f32,
    pub dynatemp: Dynatemp,
    /// 0 or less: off.
    pub top_k: i64,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
    /// 1: off.
    pub typical: f32,
    /// 0 or less: off.
    pub top_n_sigma: f32,
    pub xtc: Xtc,
    /// 1: off.
    pub repeat_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// How many tokens of prompt and answer the penalties look back at. 0: off; negative: all of them.
    pub repeat_last_n: i64,
    pub dry: Dry,
    /// Instead of the chain: the temperature, and then this.
    pub mirostat: Option<Mirostat>,
    /// `None`: random.
    pub seed: Option<u64>,
    /// Added to the logits of these tokens, before all stages; several for one token add up.
    pub biases: Vec<(TokenId, f32)>,
    /// Ids that may never come (`--ignore-eos`: all of the end-of-generation set).
    pub banned: Vec<TokenId>,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            chain: Chain::default(),
            temperature: 0.8,
            dynatemp: Dynatemp::default(),
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical: 1.0,
            top_n_sigma: -1.0,
            xtc: Xtc::default(),
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            dry: Dry::default(),
            mirostat: None,
            seed: None,
            biases: Vec::new(),
            banned: Vec::new(),
        }
    }
}

impl Params {
    fn works(&self, stage: Stage) -> bool {
        let is_on = match stage {
            Stage::Penalties => !penalties::are_off(self),
            Stage::Dry => !self.dry.is_off(),
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::TopK => self.top_k > 0,
            Stage::Typical => self.typical < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => !self.xtc.is_off(),
            Stage::Temperature => true,
        };
        is_on && (if self.mirostat.is_some() { stage == Stage::Temperature } else { self.chain.has(stage) })
    }

    /// Whether the likeliest token of the model comes always.
    fn are_greedy(&self) -> bool {
        let change_the_best = [Stage::Penalties, Stage::Dry, Stage::Typical, Stage::Xtc];
        self.temperature <= 0.0
            && self.works(Stage::Temperature)
            && (self.mirostat.is_some() || self.dynatemp.range <= 0.0)
            && self.banned.is_empty()
            && self.biases.is_empty()
            && !change_the_best.into_iter().any(|stage| self.works(stage))
    }
}

pub struct Sampler {
    params: Params,
    seed: u64,
    rng: Rng,
    biases: HashMap<TokenId, f32>,
    /// What the penalties look at.
    window: Window,
    /// What DRY looks at.
    history: dry::History,
    /// Mirostat's mu.
    cut: f32,
    /// Scratch, reused from token to token.
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
}

/// A logit that is NaN or infinite, described where it is known.
#[derive(Debug, thiserror::Error)]
#[error("the model gave a non-finite logit{0}: its weights are damaged or overflow")]
pub struct NonFinite(String);

impl Sampler {
    pub fn new(mut params: Params) -> Sampler {
        let seed = params.seed.unwrap_or_else(random_seed);
        params.banned.sort_unstable();
        let mut biases = HashMap::new();
        for &(token, bias) in &params.biases {
            *biases.entry(token).or_default() += bias;
        }
        // What no stage asks for is not written down.
        let last_n = if params.works(Stage::Penalties) { params.repeat_last_n } else { 0 };
        if !params.works(Stage::Dry) {
            params.dry.last_n = 0;
        }
        Sampler {
            seed,
            rng: Rng::new(seed),
            biases,
            window: Window::new(last_n),
            history: dry::History::new(&params.dry),
            cut: params.mirostat.map_or(0.0, |mirostat| mirostat.first_cut()),
            candidates: Vec::new(),
            weights: Vec::new(),
            params,
        }
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The seed in use; the same seed gives the same text.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Tells the stages that look back of a token of the prompt or of the answer.
    pub fn accept(&mut self, token: TokenId) {
        self.window.push(token);
        self.history.push(token, &self.params.dry);
    }

    /// Starts with an empty text. The random numbers go on where they are.
    pub fn forget(&mut self) {
        self.window.clear();
        self.history.clear(&self.params.dry);
        self.cut = self.params.mirostat.map_or(0.0, |mirostat| mirostat.first_cut());
    }

    /// Whether `sample` gives the likeliest token, whatever came before: then no logits are needed.
    pub fn wants_best(&self) -> bool {
        self.params.are_greedy()
    }

    /// The same as `sample` where the likeliest token is known, and whether all logits were finite.
    pub fn take_best(&self, token: TokenId, is_finite: bool) -> Result<TokenId, NonFinite> {
        if is_finite { Ok(token) } else { Err(NonFinite(String::new())) }
    }

    /// `logits` (vocab) f32 -> a token. Does not `accept` it.
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenId, NonFinite> {
        check_finite(logits)?;
        self.candidates.clear();
        // Adding zero turns -0.0 into 0.0, so that the two are a tie.
        self.candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit: logit + 0.0 }));
        bias::ban(&mut self.candidates, &self.params.banned);
        bias::add(&mut self.candidates, &self.biases);
        if let Some(mirostat) = self.params.mirostat {
            return Ok(self.draw_by_mirostat(mirostat));
        }
        for at in 0..self.params.chain.0.len() {
            self.apply(self.params.chain.0[at]);
        }
        let total = weigh(&self.candidates, &mut self.weights);
        let place = temperature::draw(&self.weights, total, self.rng.unit());
        Ok(self.candidates[place].id)
    }

    fn apply(&mut self, stage: Stage) {
        let Sampler { params, candidates, weights, .. } = self;
        match stage {
            Stage::Penalties => penalties::apply(candidates, &self.window, params),
            Stage::Dry => dry::apply(candidates, &self.history, &params.dry),
            Stage::TopNSigma => truncation::top_n_sigma(candidates, params.top_n_sigma),
            Stage::TopK => truncation::top_k(candidates, params.top_k),
            Stage::Typical => typical::typical(candidates, params.typical, weights),
            Stage::TopP => truncation::top_p(candidates, params.top_p, weights),
            Stage::MinP => truncation::min_p(candidates, params.min_p),
            Stage::Xtc => xtc::xtc(candidates, &params.xtc, || self.rng.unit(), weights),
            Stage::Temperature => {
                let now = params.dynatemp.temperature(params.temperature, candidates, weights);
                temperature::temperature(candidates, now);
            }
        }
    }

    fn draw_by_mirostat(&mut self, mirostat: Mirostat) -> TokenId {
        let Sampler { candidates, weights, .. } = self;
        temperature::temperature(candidates, self.params.temperature);
        mirostat::drop_surprises(candidates, self.cut, weights);
        let total = weigh(candidates, weights);
        let place = temperature::draw(weights, total, self.rng.unit());
        self.cut = mirostat.next_cut(self.cut, mirostat::surprise(weights[place], total));
        candidates[place].id
    }
}

/// One pass without branches, which the compiler turns into wide loads; the culprit is only looked for if there is one.
fn check_finite(logits: &[f32]) -> Result<(), NonFinite> {
    if logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
        return Ok(());
    }
    let (token, &value) =
        (0..).zip(logits).find(|(_, logit)| !logit.is_finite()).expect("one of the logits is not finite");
    Err(NonFinite(format!(" ({value}) for token {token}")))
}

/// 32 bits, so that a person can type it and every JSON reader keeps it whole.
fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id()) & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let params =
            Params { chain, top_k: 1, typical: 0.0, top_p: 0.0, min_p: 1.0, seed: Some(1), ..Params::default() };
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
}
