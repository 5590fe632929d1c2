//! The list that the stages shorten: tokens and their logits, in any order, never empty, every logit finite.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::tokenizer::TokenId;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub id: TokenId,
    pub logit: f32,
}

/// The likelier first, then the lower id.
pub fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

pub fn best_logit(candidates: &[Candidate]) -> f32 {
    // Sixteen maxima side by side, so that no comparison waits for the last one. Not `f32::max`, whose care for NaN
    // takes more than one instruction.
    let mut best = [f32::NEG_INFINITY; 16];
    for run in candidates.chunks(best.len()) {
        for (best, candidate) in best.iter_mut().zip(run) {
            *best = if candidate.logit > *best { candidate.logit } else { *best };
        }
    }
    best.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The first in `by_rank`.
pub fn best(candidates: &[Candidate]) -> Candidate {
    let logit = best_logit(candidates);
    let ids = candidates.iter().filter(|candidate| candidate.logit == logit).map(|candidate| candidate.id);
    Candidate { id: ids.min().expect("the chain never empties the list"), logit }
}

/// Extreme parameters must not make an infinity or a NaN, which the stages behind would turn into nonsense.
pub fn finite(logit: f32) -> f32 {
    if logit.is_nan() { f32::MIN } else { logit.clamp(f32::MIN, f32::MAX) }
}

/// Keeps the candidates whose logit `passes`, in the order given; the best one if none does.
pub fn keep(candidates: &mut Vec<Candidate>, passes: impl Fn(f32) -> bool) {
    let best = best(candidates);
    candidates.retain(|candidate| passes(candidate.logit));
    if candidates.is_empty() {
        candidates.push(best);
    }
}

/// Keeps the first candidates in `order`, up to the one with which it is `enough`; all if it never is.
pub fn keep_until(
    candidates: &mut Vec<Candidate>,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
    mut enough: impl FnMut(&Candidate) -> bool,
) {
    // Most texts need a handful of candidates, a flat distribution thousands: sort four times more on each try.
    let mut sorted = 0;
    while sorted < candidates.len() {
        let next = (sorted * 4).max(64).min(candidates.len());
        let rest = &mut candidates[sorted..];
        if next - sorted < rest.len() {
            rest.select_nth_unstable_by(next - sorted, &order);
        }
        rest[..next - sorted].sort_unstable_by(&order);
        if let Some(last) = (sorted..next).find(|&i| enough(&candidates[i])) {
            candidates.truncate(last + 1);
            return;
        }
        sorted = next;
    }
}

/// Changes the logit of each candidate that has an entry in `by_token`.
pub fn change<T>(candidates: &mut [Candidate], by_token: &HashMap<TokenId, T>, mut new: impl FnMut(f32, &T) -> f32) {
    // Before the first stage that drops or sorts, ids ascend: then a few look-ups do instead of one for each candidate.
    if candidates.is_sorted_by_key(|candidate| candidate.id) {
        for (token, entry) in by_token {
            if let Ok(at) = candidates.binary_search_by_key(token, |candidate| candidate.id) {
                candidates[at].logit = finite(new(candidates[at].logit, entry));
            }
        }
    } else {
        for candidate in candidates {
            if let Some(entry) = by_token.get(&candidate.id) {
                candidate.logit = finite(new(candidate.logit, entry));
            }
        }
    }
}

/// `exp(logit - best)` of each candidate, which is its probability but for a common factor, and their sum.
///
/// The best is subtracted first so that no logit, however large, makes an infinity.
pub fn weigh(candidates: &[Candidate], weights: &mut Vec<f32>) -> f64 {
    let best = best_logit(candidates);
    weights.clear();
    weights.extend(candidates.iter().map(|candidate| libm::expf(candidate.logit - best)));
    weights.iter().map(|&weight| f64::from(weight)).sum()
}

/// -sum of p ln p, of the probabilities that `weigh` gave.
pub fn entropy(candidates: &[Candidate], weights: &[f32], total: f64) -> f64 {
    let best = f64::from(best_logit(candidates));
    let weighed = candidates.iter().zip(weights).map(|(candidate, &weight)| {
        // In f64 the difference of any two logits is finite, so that a weight of 0 leaves nothing of it.
        f64::from(weight) * (f64::from(candidate.logit) - best)
    });
    libm::log(total) - weighed.sum::<f64>() / total
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidates, ids, logits, of_weights};
    use super::*;

    #[test]
    fn the_best_is_the_lowest_id_on_ties_wherever_it_stands() {
        assert_eq!(best(&candidates(&[1.0, 5.0, 5.0, 2.0])), Candidate { id: 1, logit: 5.0 });
        let mut turned = candidates(&[-3.0, -3.0]);
        turned.reverse();
        assert_eq!(best(&turned).id, 0);
    }

    #[test]
    fn what_nothing_passes_leaves_the_best() {
        let mut list = candidates(&[1.0, 3.0, 2.0]);
        keep(&mut list, |logit| logit > 1.5);
        assert_eq!(ids(&list), [1, 2]);
        keep(&mut list, |_| false);
        assert_eq!(ids(&list), [1]);
    }

    #[test]
    fn nothing_but_finite_numbers_goes_on() {
        assert_eq!(finite(f32::NAN), f32::MIN);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY, 1.5].map(finite), [f32::MAX, f32::MIN, 1.5]);
    }

    #[test]
    fn a_change_finds_its_tokens_in_whole_lists_in_lists_with_gaps_and_in_sorted_ones() {
        let by_token = HashMap::from([(1, 10.0), (4, 20.0), (77, 30.0)]);
        let add = |logit: f32, by: &f32| logit + by;
        let mut whole = candidates(&[0.0; 6]);
        change(&mut whole, &by_token, add);
        assert_eq!(logits(&whole), [0.0, 10.0, 0.0, 0.0, 20.0, 0.0]);
        let mut gaps: Vec<_> = candidates(&[0.0; 6]).into_iter().filter(|candidate| candidate.id % 2 == 0).collect();
        change(&mut gaps, &by_token, add);
        assert_eq!(logits(&gaps), [0.0, 0.0, 20.0]);
        let mut by_rank_now = candidates(&[0.0, 1.0, 2.0, 3.0, 4.0]);
        by_rank_now.sort_by(by_rank);
        change(&mut by_rank_now, &by_token, add);
        assert_eq!((ids(&by_rank_now), logits(&by_rank_now)), (vec![4, 3, 2, 1, 0], vec![24.0, 3.0, 2.0, 11.0, 0.0]));
    }

    #[test]
    fn entropy_of_distributions_that_are_known() {
        let of = |list: &[Candidate]| {
            let mut weights = Vec::new();
            let total = weigh(list, &mut weights);
            entropy(list, &weights, total)
        };
        // Four equal ones: ln 4. A half and two quarters: 1.5 ln 2. One that has it all: 0.
        assert!((of(&candidates(&[7.0; 4])) - 4f64.ln()).abs() < 1e-6);
        assert!((of(&of_weights(&[0.5, 0.25, 0.25])) - 1.5 * 2f64.ln()).abs() < 1e-6);
        assert_eq!(of(&candidates(&[f32::MAX, f32::MIN])), 0.0);
    }
}
