//! Stages that drop unlikely candidates: top-k, top-p, min-p. Each keeps at least the best one.
//!
//! No stage sorts the whole vocabulary: a selection in O(n) finds the best few, and only those are sorted.

use super::{Candidate, best_logit, by_rank};

/// Keeps the `k` best, best first; 0 or less: keeps all, in the order given.
pub fn top_k(candidates: &mut Vec<Candidate>, k: i64) {
    match usize::try_from(k) {
        Ok(k) if k > 0 && k < candidates.len() => {
            drop_hopeless(candidates, k);
            candidates.select_nth_unstable_by(k - 1, by_rank);
            candidates.truncate(k);
            candidates.sort_unstable_by(by_rank);
        }
        _ => {}
    }
}

/// Drops most candidates that are not among the `k` best, in two passes that are cheaper than a selection.
///
/// The list is cut into runs. `k` of them hold a candidate as good as the k-th best of their bests, so nothing below
/// that one is needed.
fn drop_hopeless(candidates: &mut Vec<Candidate>, k: usize) {
    const RUN: usize = 64;
    let mut bests: Vec<f32> = candidates.chunks(RUN).map(best_logit).collect();
    if k <= bests.len() {
        let (_, &mut least, _) = bests.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        candidates.retain(|candidate| candidate.logit >= least);
    }
}

/// Keeps the smallest set of the best candidates whose probabilities add up to `p`, best first; 1 or more: keeps all.
/// `weights` is scratch space.
pub fn top_p(candidates: &mut Vec<Candidate>, p: f32, weights: &mut Vec<f32>) {
    if p >= 1.0 {
        return;
    }
    super::temperature::weigh(candidates, 1.0, weights);
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let wanted = f64::from(p) * total;

    // Most texts need a handful of candidates, a flat distribution thousands: sort four times more on each try.
    let best = best_logit(candidates);
    let mut sorted = 0;
    let mut reached = 0.0;
    while sorted < candidates.len() {
        let next = (sorted * 4).max(64).min(candidates.len());
        let rest = &mut candidates[sorted..];
        if next - sorted < rest.len() {
            rest.select_nth_unstable_by(next - sorted, by_rank);
        }
        rest[..next - sorted].sort_unstable_by(by_rank);
        for i in sorted..next {
            reached += f64::from(libm::expf(candidates[i].logit - best));
            if reached >= wanted {
                candidates.truncate(i + 1);
                return;
            }
        }
        sorted = next;
    }
}

/// Keeps the candidates at least `p` times as likely as the best, in the order given; 0 or less: keeps all.
pub fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let best = candidates.iter().copied().min_by(by_rank).expect("the chain never empties the list");
    let least = best.logit + libm::logf(p);
    candidates.retain(|candidate| candidate.logit >= least);
    if candidates.is_empty() {
        candidates.push(best);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::super::tests::{candidates, ids};
    use super::*;

    /// Logits whose softmax is exactly proportional to `weights`, up to rounding.
    fn of_weights(weights: &[f32]) -> Vec<Candidate> {
        candidates(&weights.iter().map(|&weight| libm::logf(weight)).collect::<Vec<_>>())
    }

    fn kept_by_top_k(values: &[f32], k: i64) -> Vec<u32> {
        let mut list = candidates(values);
        top_k(&mut list, k);
        ids(&list)
    }

    fn kept_by_top_p(weights: &[f32], p: f32) -> Vec<u32> {
        let mut list = of_weights(weights);
        top_p(&mut list, p, &mut Vec::new());
        ids(&list)
    }

    fn kept_by_min_p(weights: &[f32], p: f32) -> Vec<u32> {
        let mut list = of_weights(weights);
        min_p(&mut list, p);
        ids(&list)
    }

    #[test]
    fn top_k_keeps_the_best_in_order() {
        let values = [0.5, 3.0, -1.0, 2.0];
        assert_eq!(kept_by_top_k(&values, 1), [1]);
        assert_eq!(kept_by_top_k(&values, 3), [1, 3, 0]);
    }

    /// Against a full sort, for lists that are cut into many runs and for some that are not.
    #[test]
    fn top_k_is_the_head_of_a_full_sort() {
        let mut rng = Rng::new(1);
        for n in [3, 64, 65, 1000, 5000] {
            // Few different values: many ties.
            let values: Vec<f32> = (0..n).map(|_| (rng.unit() * 50.0).floor() as f32).collect();
            let mut sorted = candidates(&values);
            sorted.sort_by(by_rank);
            for k in [1, 2, 40, 64, 78, 79, 999].into_iter().filter(|&k| k < n) {
                assert_eq!(kept_by_top_k(&values, k as i64), ids(&sorted[..k]), "{k} of {n}");
            }
        }
    }

    #[test]
    fn top_k_at_its_edges_keeps_all() {
        let values = [0.5, 3.0, -1.0, 2.0];
        for k in [0, -1, i64::MIN, 4, 5, 1_000_000_000, i64::MAX] {
            assert_eq!(kept_by_top_k(&values, k), [0, 1, 2, 3], "k = {k}");
        }
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(kept_by_top_k(&[1.0, 2.0, 2.0, 2.0], 2), [1, 2]);
        assert_eq!(kept_by_top_p(&[1.0; 5], 0.5), [0, 1, 2]);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_p() {
        let weights = [0.1, 0.4, 0.2, 0.3];
        assert_eq!(kept_by_top_p(&weights, 0.35), [1]);
        assert_eq!(kept_by_top_p(&weights, 0.65), [1, 3]);
        assert_eq!(kept_by_top_p(&weights, 0.85), [1, 3, 2]);
        assert_eq!(kept_by_top_p(&weights, 0.95), [1, 3, 2, 0]);
    }

    #[test]
    fn top_p_at_its_edges() {
        let weights = [0.1, 0.4, 0.2, 0.3];
        assert_eq!(kept_by_top_p(&weights, 0.0), [1], "0 keeps the best");
        assert_eq!(kept_by_top_p(&weights, 1.0), [0, 1, 2, 3], "1 is off");
    }

    #[test]
    fn top_p_reaches_beyond_the_first_sorted_piece() {
        // 1000 equal candidates: half of them are needed, in id order, through several rounds of sorting.
        assert_eq!(kept_by_top_p(&[1.0; 1000], 0.4999), (0..500).collect::<Vec<_>>());
        assert_eq!(kept_by_top_p(&[1.0; 1000], 0.99999).len(), 1000);
    }

    #[test]
    fn min_p_keeps_what_is_near_the_best() {
        let weights = [0.1, 0.4, 0.2, 0.3];
        assert_eq!(kept_by_min_p(&weights, 0.45), [1, 2, 3]);
        assert_eq!(kept_by_min_p(&weights, 0.7), [1, 3]);
        assert_eq!(kept_by_min_p(&weights, 1.0), [1]);
    }

    #[test]
    fn min_p_at_its_edges() {
        let weights = [0.1, 0.4, 0.2, 0.3];
        assert_eq!(kept_by_min_p(&weights, 0.0), [0, 1, 2, 3], "0 is off");
        assert_eq!(kept_by_min_p(&weights, 1.5), [1], "above 1 keeps the best");
    }
}
