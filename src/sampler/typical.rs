//! Locally typical sampling (Meister and others, 2022): keeps what surprises about as much as the next token does on
//! average, which may leave out the likeliest one.

use super::candidates::{Candidate, best_logit, by_rank, entropy, keep_until, weigh};

/// Keeps the candidates whose surprise, -ln of the probability, is nearest to the entropy, nearest first, until their
/// probabilities add up to more than `p`; 1 or more: keeps all. `weights` is scratch space.
pub fn typical(candidates: &mut Vec<Candidate>, p: f32, weights: &mut Vec<f32>) {
    if p >= 1.0 {
        return;
    }
    let total = weigh(candidates, weights);
    let expected = entropy(candidates, weights, total);
    let best = best_logit(candidates);
    let least_surprise = libm::log(total);
    let distance = |candidate: &Candidate| {
        let surprise = least_surprise - (f64::from(candidate.logit) - f64::from(best));
        (surprise - expected).abs()
    };
    let wanted = f64::from(p) * total;
    let mut reached = 0.0;
    let nearer = |a: &Candidate, b: &Candidate| distance(a).total_cmp(&distance(b)).then(by_rank(a, b));
    keep_until(candidates, nearer, |candidate| {
        reached += f64::from(libm::expf(candidate.logit - best));
        reached > wanted
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, of_weights};
    use super::*;

    fn kept(weights: &[f32], p: f32) -> Vec<u32> {
        let mut list = of_weights(weights);
        typical(&mut list, p, &mut Vec::new());
        ids(&list)
    }

    /// 0.5, 0.2, 0.1 and 0.2: the entropy is 1.2206; surprises 0.6931, 1.6094, 2.3026 and 1.6094; distances from the
    /// entropy 0.5275, 0.3888, 1.0820 and 0.3888.
    #[test]
    fn the_nearest_to_the_entropy_come_first_and_the_likeliest_need_not_be_there() {
        let weights = [0.5, 0.2, 0.1, 0.2];
        assert_eq!(kept(&weights, 0.15), [1]);
        assert_eq!(kept(&weights, 0.39), [1, 3]);
        assert_eq!(kept(&weights, 0.41), [1, 3, 0]);
        assert_eq!(kept(&weights, 0.95), [1, 3, 0, 2]);
    }

    #[test]
    fn edges() {
        let weights = [0.5, 0.2, 0.1, 0.2];
        for p in [1.0, 2.0, f32::INFINITY] {
            assert_eq!(kept(&weights, p), [0, 1, 2, 3], "{p} is off");
        }
        for p in [0.0, -1.0, f32::NEG_INFINITY] {
            assert_eq!(kept(&weights, p), [1], "{p} keeps the nearest");
        }
        assert_eq!(kept(&weights, f32::NAN).len(), 4);
        assert_eq!(kept(&[1.0], 0.0), [0]);
    }

    #[test]
    fn equal_candidates_are_all_as_typical_and_go_by_id() {
        assert_eq!(kept(&[1.0; 1000], 0.2499), (0..250).collect::<Vec<_>>());
    }

    #[test]
    fn a_candidate_that_has_it_all_is_typical() {
        let mut list = super::super::tests::candidates(&[f32::MIN, f32::MAX, 0.0]);
        typical(&mut list, 0.5, &mut Vec::new());
        assert_eq!(ids(&list), [1]);
    }
}
