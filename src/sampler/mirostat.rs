//! Mirostat, version 2 (Basu and others, 2021): the cut is moved from token to token, so that the surprise of the text
//! stays about the same. Its first version, which estimates the distribution's shape from the best 100, is not here.

use super::candidates::{Candidate, best_logit, keep, weigh};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// Tau: the surprise aimed at, in bits.
    pub target: f32,
    /// Eta: the share of the error by which the cut moves.
    pub rate: f32,
}

impl Default for Mirostat {
    fn default() -> Mirostat {
        Mirostat { target: 5.0, rate: 0.1 }
    }
}

impl Mirostat {
    /// Mu, before the first token.
    pub fn first_cut(&self) -> f32 {
        2.0 * self.target
    }

    /// The cut after a token was drawn that came with `surprise`.
    pub fn next_cut(&self, cut: f32, surprise: f32) -> f32 {
        cut - self.rate * (surprise - self.target)
    }
}

/// Drops the candidates that would surprise by more than `cut` bits; the best stays. `weights` is scratch space.
pub fn drop_surprises(candidates: &mut Vec<Candidate>, cut: f32, weights: &mut Vec<f32>) {
    // -log2(p) <= cut, and ln p = logit - best - ln(total).
    let most = libm::log(weigh(candidates, weights)) - f64::from(cut) * std::f64::consts::LN_2;
    let best = f64::from(best_logit(candidates));
    keep(candidates, |logit| f64::from(logit) - best >= most);
}

/// In bits, of something with this share of the total.
pub fn surprise(weight: f32, total: f64) -> f32 {
    -libm::log2(f64::from(weight) / total) as f32
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidates, ids, of_weights};
    use super::*;

    fn kept(weights: &[f32], cut: f32) -> Vec<u32> {
        let mut list = of_weights(weights);
        drop_surprises(&mut list, cut, &mut Vec::new());
        ids(&list)
    }

    /// Surprises of 3, 1, 2 and 3 bits.
    #[test]
    fn what_surprises_more_than_the_cut_goes() {
        let weights = [0.125, 0.5, 0.25, 0.125];
        assert_eq!(kept(&weights, 3.01), [0, 1, 2, 3]);
        assert_eq!(kept(&weights, 2.5), [1, 2]);
        assert_eq!(kept(&weights, 1.5), [1]);
    }

    #[test]
    fn the_best_stays_at_any_cut() {
        for cut in [0.5, 0.0, -10.0, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(kept(&[0.125, 0.5, 0.25, 0.125], cut), [1], "cut {cut}");
        }
        assert_eq!(kept(&[0.125, 0.5], f32::INFINITY), [0, 1]);
        let mut far = candidates(&[f32::MIN, f32::MAX]);
        drop_surprises(&mut far, 100.0, &mut Vec::new());
        assert_eq!(ids(&far), [1]);
    }

    #[test]
    fn the_cut_rises_after_dull_tokens_and_sinks_after_surprising_ones() {
        let mirostat = Mirostat { target: 5.0, rate: 0.1 };
        assert_eq!(mirostat.first_cut(), 10.0);
        assert_eq!(mirostat.next_cut(10.0, 5.0), 10.0);
        assert_eq!(mirostat.next_cut(10.0, 0.0), 10.5);
        assert_eq!(mirostat.next_cut(10.0, 10.0), 9.5);
        assert_eq!(surprise(1.0, 8.0), 3.0);
        assert_eq!(surprise(1.0, 1.0), 0.0);
    }
}
