//! How likely the model itself found a token and its rivals, whatever the sampler made of it.

use super::candidates::{Candidate, best_logit, by_rank};
use super::truncation;
use crate::tokenizer::TokenId;

/// A token and the natural logarithm of its probability by the softmax of the model's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated {
    pub token: TokenId,
    pub logprob: f32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    pub chosen: Rated,
    /// The likeliest, best first.
    pub top: Vec<Rated>,
}

impl Logprobs {
    /// `logits` (vocab) f32, finite; `chosen` is one of them. An exponential for each: 0.4 ms for 49,152.
    pub fn new(logits: &[f32], chosen: TokenId, k: usize) -> Logprobs {
        let mut candidates: Vec<Candidate> =
            (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit: logit + 0.0 }).collect();
        let best = best_logit(&candidates);
        let total: f64 = logits.iter().map(|&logit| f64::from(libm::expf(logit - best))).sum();
        let rated = |token: TokenId, logit: f32| {
            let logprob = f64::from(logit) - f64::from(best) - libm::log(total);
            Rated { token, logprob: logprob as f32 }
        };
        let chosen = rated(chosen, logits[chosen as usize]);
        truncation::top_k(&mut candidates, k as i64);
        candidates.sort_unstable_by(by_rank);
        let top = candidates.iter().take(k).map(|candidate| rated(candidate.id, candidate.logit)).collect();
        Logprobs { chosen, top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Softmax of 2, 1, 0, -1 by hand: 0.64391, 0.23688, 0.08714, 0.03206.
    #[test]
    fn logarithms_of_the_softmax_best_first() {
        let found = Logprobs::new(&[0.0, 2.0, -1.0, 1.0], 2, 2);
        let near = |rated: Rated, token: TokenId, probability: f64| {
            assert_eq!(rated.token, token);
            assert!((f64::from(rated.logprob) - probability.ln()).abs() < 1e-4, "{rated:?}");
        };
        near(found.chosen, 2, 0.03206);
        assert_eq!(found.top.len(), 2);
        near(found.top[0], 1, 0.64391);
        near(found.top[1], 3, 0.23688);
    }

    #[test]
    fn edges() {
        assert!(Logprobs::new(&[1.0, 2.0], 0, 0).top.is_empty(), "none asked for");
        let all = Logprobs::new(&[1.0, 3.0, 3.0], 0, 99).top;
        assert_eq!(all.iter().map(|rated| rated.token).collect::<Vec<_>>(), [1, 2, 0], "all there are, ties by id");
        let far = Logprobs::new(&[f32::MAX, f32::MIN], 1, 1);
        assert!(far.chosen.logprob == f32::NEG_INFINITY && far.top[0].logprob == 0.0);
        let probabilities = Logprobs::new(&[0.5; 1000], 7, 1000).top;
        assert!(probabilities.iter().all(|rated| (rated.logprob + 1000f32.ln()).abs() < 1e-5));
    }
}
