//! XTC, "exclude top choices": now and then the likely candidates are left out, all but the least likely of them.

use super::candidates::{Candidate, by_rank, weigh};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// How often it happens; 0: off.
    pub probability: f32,
    /// What counts as likely; above 0.5 two candidates cannot be, and it is off.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Xtc {
        Xtc { probability: 0.0, threshold: 0.1 }
    }
}

impl Xtc {
    pub fn is_off(&self) -> bool {
        self.probability <= 0.0 || self.threshold > 0.5
    }
}

/// Of the candidates at least as probable as the threshold only the last in rank stays, if there are several and the
/// random number in [0, 1), drawn only if it counts, falls within the probability. `weights` is scratch space.
pub fn xtc(candidates: &mut Vec<Candidate>, xtc: &Xtc, random: impl FnOnce() -> f64, weights: &mut Vec<f32>) {
    if xtc.is_off() || candidates.len() < 2 || random() > f64::from(xtc.probability) {
        return;
    }
    let least = f64::from(xtc.threshold) * weigh(candidates, weights);
    let is_likely = |weight: &f32| f64::from(*weight) >= least;
    let likely = candidates.iter().zip(&*weights).filter(|(_, weight)| is_likely(weight));
    let last = likely.map(|(candidate, _)| *candidate).max_by(by_rank);
    let mut weights = weights.iter();
    candidates.retain(|candidate| {
        let weight = weights.next().expect("each candidate has its weight");
        !is_likely(weight) || Some(*candidate) == last
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidates, ids, of_weights};
    use super::*;

    fn kept(weights: &[f32], probability: f32, threshold: f32) -> Vec<u32> {
        let mut list = of_weights(weights);
        xtc(&mut list, &Xtc { probability, threshold }, || 0.5, &mut Vec::new());
        ids(&list)
    }

    #[test]
    fn of_the_likely_ones_the_least_likely_stays_with_all_that_are_not() {
        let weights = [0.08, 0.4, 0.2, 0.3, 0.02];
        assert_eq!(kept(&weights, 1.0, 0.35), [0, 1, 2, 3, 4], "one likely candidate is none too many");
        assert_eq!(kept(&weights, 1.0, 0.25), [0, 2, 3, 4]);
        assert_eq!(kept(&weights, 1.0, 0.1), [0, 2, 4]);
        assert_eq!(kept(&weights, 1.0, 0.0), [4], "all are likely enough");
    }

    #[test]
    fn it_happens_as_often_as_it_says() {
        let weights = [0.6, 0.4];
        assert_eq!(kept(&weights, 0.4, 0.1), [0, 1]);
        assert_eq!(kept(&weights, 0.5, 0.1), [1]);
    }

    #[test]
    fn off_and_alone_it_draws_no_random_number() {
        let never = || -> f64 { panic!("a random number for nothing") };
        for (probability, threshold) in [(0.0, 0.1), (-1.0, 0.1), (1.0, 0.51), (1.0, f32::INFINITY)] {
            let mut list = candidates(&[1.0, 1.0]);
            xtc(&mut list, &Xtc { probability, threshold }, never, &mut Vec::new());
            assert_eq!(ids(&list), [0, 1]);
        }
        let mut alone = candidates(&[1.0]);
        xtc(&mut alone, &Xtc { probability: 1.0, threshold: 0.0 }, never, &mut Vec::new());
        assert_eq!(ids(&alone), [0]);
    }

    #[test]
    fn edges() {
        assert_eq!(kept(&[0.5, 0.5], 1.0, 0.5), [1], "two halves are both likely; of equals the higher id is last");
        assert_eq!(kept(&[0.6, 0.4], 1.0, f32::NAN), [0, 1]);
        assert_eq!(kept(&[0.6, 0.4], f32::INFINITY, 0.1), [1]);
        assert!(!kept(&[0.6, 0.4], f32::NAN, 0.1).is_empty());
    }
}
