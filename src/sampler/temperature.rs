//! Temperature and the final draw; at 0 or less there is no draw but the arg-max.

use super::{Candidate, best_logit};
use crate::tokenizer::TokenId;

/// The best candidate, the lowest id on ties.
pub fn arg_max(candidates: &[Candidate]) -> TokenId {
    let best = best_logit(candidates);
    let ids = candidates.iter().filter(|candidate| candidate.logit == best).map(|candidate| candidate.id);
    ids.min().expect("the chain never empties the list")
}

/// `exp((logit - best) / temperature)` of each candidate: its probability but for a common factor.
///
/// The best is subtracted first so that no temperature, however small, makes an infinity.
pub fn weigh(candidates: &[Candidate], temperature: f32, weights: &mut Vec<f32>) {
    let best = best_logit(candidates);
    weights.clear();
    weights.extend(candidates.iter().map(|candidate| libm::expf((candidate.logit - best) / temperature)));
}

/// Draws by `weights`, with `unit` in [0, 1).
pub fn draw(candidates: &[Candidate], weights: &[f32], unit: f64) -> TokenId {
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let target = unit * total;
    let mut reached = 0.0;
    for (candidate, &weight) in candidates.iter().zip(weights) {
        reached += f64::from(weight);
        if target < reached {
            return candidate.id;
        }
    }
    arg_max(candidates)
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;

    fn weights(values: &[f32], temperature: f32) -> Vec<f32> {
        let mut weights = Vec::new();
        weigh(&candidates(values), temperature, &mut weights);
        weights
    }

    #[test]
    fn arg_max_takes_the_lowest_id_on_ties() {
        assert_eq!(arg_max(&candidates(&[1.0, 5.0, 5.0, 2.0])), 1);
        assert_eq!(arg_max(&candidates(&[-3.0, -3.0])), 0);
    }

    #[test]
    fn temperature_flattens_and_sharpens() {
        let ln2 = std::f32::consts::LN_2;
        let near = |got: &[f32], want: &[f32]| got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near(&weights(&[0.0, 2.0 * ln2], 1.0), &[0.25, 1.0]));
        assert!(near(&weights(&[0.0, 2.0 * ln2], 2.0), &[0.5, 1.0]));
        assert!(near(&weights(&[0.0, 2.0 * ln2], 0.5), &[0.0625, 1.0]));
    }

    #[test]
    fn extreme_temperatures_stay_finite() {
        assert_eq!(weights(&[1.0, f32::MAX, f32::MIN], 1e-40), [0.0, 1.0, 0.0]);
        assert_eq!(weights(&[1.0, 2.0], f32::MAX), [1.0, 1.0]);
    }

    #[test]
    fn draw_follows_the_weights() {
        let list = candidates(&[0.0; 3]);
        let draw = |unit| draw(&list, &[1.0, 0.0, 3.0], unit);
        assert_eq!([0.0, 0.2499, 0.25, 0.9999].map(draw), [0, 0, 2, 2]);
    }
}
