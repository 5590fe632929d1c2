//! Stages that drop unlikely candidates: top-n-sigma, top-k, top-p, min-p. Each keeps at least the best one.
//!
//! No stage sorts the whole vocabulary: a selection in O(n) finds the best few, and only those are sorted.

use super::candidates::{Candidate, best_logit, by_rank, keep, keep_until, weigh};

/// Keeps the candidates within `n` standard deviations (of all logits in the list) of the best logit, in the order
/// given; 0 or less: keeps all.
pub fn top_n_sigma(candidates: &mut Vec<Candidate>, n: f32) {
    if n > 0.0 && candidates.len() > 1 {
        let best = f64::from(best_logit(candidates));
        let sigma = deviation(candidates);
        let least = best - f64::from(n) * sigma;
        // Equal logits have no deviation, which times infinity is NaN: all of them are the best.
        if !least.is_nan() {
            keep(candidates, |logit| f64::from(logit) >= least);
        }
    }
}

/// Standard deviation of the logits, by the mean of squares about their mean.
fn deviation(candidates: &[Candidate]) -> f64 {
    let count = candidates.len() as f64;
    let mean = sum(candidates, |logit| logit) / count;
    (sum(candidates, |logit| (logit - mean) * (logit - mean)) / count).sqrt()
}

/// In eight sums side by side, so that no addition waits for the last one.
fn sum(candidates: &[Candidate], of: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0; 8];
    for run in candidates.chunks(sums.len()) {
        for (sum, candidate) in sums.iter_mut().zip(run) {
            *sum += of(f64::from(candidate.logit));
        }
    }
    sums.iter().sum()
}

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
    let best = best_logit(candidates);
    let wanted = f64::from(p) * weigh(candidates, weights);
    let mut reached = 0.0;
    keep_until(candidates, by_rank, |candidate| {
        reached += f64::from(libm::expf(candidate.logit - best));
        reached >= wanted
    });
}

/// Keeps the candidates at least `p` times as likely as the best, in the order given; 0 or less: keeps all.
pub fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        let least = best_logit(candidates) + libm::logf(p);
        keep(candidates, |logit| logit >= least);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::super::tests::{candidates, ids, of_weights};
    use super::*;

    fn kept_by_top_n_sigma(values: &[f32], n: f32) -> Vec<u32> {
        let mut list = candidates(values);
        top_n_sigma(&mut list, n);
        ids(&list)
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
    fn top_n_sigma_counts_deviations_from_the_best() {
        // Mean 5, squares 9 + 1 + 1 + 1 + 0 + 0 + 4 + 16 = 32, of eight: the deviation is 2. The best is 9.
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(kept_by_top_n_sigma(&values, 0.5), [7]);
        assert_eq!(kept_by_top_n_sigma(&values, 1.0), [6, 7], "what is exactly as far off stays");
        assert_eq!(kept_by_top_n_sigma(&values, 2.25), [4, 5, 6, 7]);
        assert_eq!(kept_by_top_n_sigma(&values, 3.5).len(), 8);
    }

    #[test]
    fn top_n_sigma_at_its_edges() {
        let values = [2.0, 9.0, 4.0];
        for n in [0.0, -1.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
            assert_eq!(kept_by_top_n_sigma(&values, n), [0, 1, 2], "n = {n}");
        }
        assert_eq!(kept_by_top_n_sigma(&values, f32::MIN_POSITIVE), [1]);
        assert_eq!(kept_by_top_n_sigma(&[1.0; 3], f32::INFINITY), [0, 1, 2], "no deviation, times infinity");
        assert_eq!(kept_by_top_n_sigma(&[f32::MIN, f32::MAX], 1.0), [1], "squares beyond f32");
        assert_eq!(kept_by_top_n_sigma(&[1.0], 1.0), [0]);
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
        for p in [0.0, -1.0, f32::NEG_INFINITY] {
            assert_eq!(kept_by_top_p(&weights, p), [1], "{p} keeps the best");
        }
        for p in [1.0, 2.0, f32::INFINITY] {
            assert_eq!(kept_by_top_p(&weights, p), [0, 1, 2, 3], "{p} is off");
        }
        assert_eq!(kept_by_top_p(&weights, f32::NAN).len(), 4);
        assert_eq!(kept_by_top_p(&[1.0], 0.0), [0]);
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
        for p in [0.0, -1.0, f32::NAN, f32::NEG_INFINITY] {
            assert_eq!(kept_by_min_p(&weights, p), [0, 1, 2, 3], "{p} is off");
        }
        for p in [1.5, f32::INFINITY] {
            assert_eq!(kept_by_min_p(&weights, p), [1], "{p} keeps the best");
        }
    }
}
