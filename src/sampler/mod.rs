//! Logits -> the next token: a chain of stages under llama.cpp's names and defaults, with its arithmetic.
//!
//! Constraint -> bans and biases -> penalties -> DRY -> top-n-sigma -> top-k -> typical -> top-p -> min-p -> XTC -> temperature -> draw;
//! `Params::chain` is another order or choice. Mirostat takes the place of all stages but the temperature. Each stage is
//! a function on a list of candidates and keeps at least one. Exponentials and logarithms come from the `libm` crate and
//! never from the system, whose last bits differ between machines: the same logits and the same seed give the same token
//! everywhere.
//!
//! Cost of a token for a vocabulary of 49,152, in milliseconds, on one core of a server Xeon that other work shared (fastest
//! of 100, `cargo bench -- sample`): 0.06 with the default chain, about 1 % of a decode step of SmolLM2; 0.08 greedy, where
//! a bias asks for all logits; 0.13 with banned tokens; 0.25 with every stage on; 0.53 with Mirostat. A chain of one stage
//! that leaves much pays for the draw, an exponential for each candidate: no stage 0.37, top-k 0.06, min-p 0.10,
//! top-n-sigma 0.15, penalties 0.39, DRY 0.39 (0.6 after a text of 65,536 tokens), top-p 0.56, XTC 0.83, temperature by
//! entropy 0.85, typical 0.87.

mod bias;
mod breakers;
mod candidates;
mod chain;
mod dry;
mod logprobs;
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
pub use logprobs::{Logprobs, Rated};
pub use mirostat::Mirostat;
pub use temperature::Dynatemp;
pub use xtc::Xtc;

use crate::constraint::Constraint;
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
    /// What an answer has to follow. `generate` tells it of the tokens.
    pub constraint: Option<Constraint>,
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

impl NonFinite {
    /// The same with where it comes from.
    pub fn seen(self, origin: String) -> NonFinite {
        NonFinite(format!("{}, first seen in {origin}", self.0))
    }
}

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
            constraint: None,
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
        self.params.are_greedy() && self.constraint.is_none()
    }

    /// The same as `sample` where the likeliest token is known, and whether all logits were finite.
    pub fn take_best(&self, token: TokenId, is_finite: bool) -> Result<TokenId, NonFinite> {
        if is_finite { Ok(token) } else { Err(NonFinite(String::new())) }
    }

    /// `logits` (vocab) f32 -> a token, an allowed one where there is a constraint. Does not `accept` it.
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenId, NonFinite> {
        check_finite(logits)?;
        self.candidates.clear();
        // Adding zero turns -0.0 into 0.0, so that the two are a tie.
        self.candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit: logit + 0.0 }));
        if let Some(constraint) = &self.constraint {
            // Before the bans: a text that is complete may end, whatever is banned.
            self.candidates.retain(|candidate| constraint.allows(candidate.id));
        }
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
mod tests;
