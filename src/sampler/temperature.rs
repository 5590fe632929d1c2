//! Temperature, fixed or following the entropy, and the final draw.

use super::candidates::{Candidate, best, entropy, finite, weigh};

/// Divides the logits; at 0 or less only the best candidate stays.
pub fn temperature(candidates: &mut Vec<Candidate>, temperature: f32) {
    if temperature == 1.0 {
        return;
    }
    let best = best(candidates);
    // Where the best logit is beyond all numbers, so is its distance to the next: it would be drawn always.
    if temperature > 0.0 && (best.logit / temperature).is_finite() {
        for candidate in candidates {
            candidate.logit = finite(candidate.logit / temperature);
        }
    } else {
        candidates.clear();
        candidates.push(best);
    }
}

/// Dynamic temperature: between `temperature - range` and `temperature + range`, the higher the nearer the entropy of
/// the candidates comes to that of equal ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dynatemp {
    /// 0 or less: off.
    pub range: f32,
    /// Of the entropy's share before it counts: above 1 the temperature rises late, below 1 early.
    pub exponent: f32,
}

impl Default for Dynatemp {
    fn default() -> Dynatemp {
        Dynatemp { range: 0.0, exponent: 1.0 }
    }
}

impl Dynatemp {
    /// The temperature for these candidates. `weights` is scratch space.
    pub fn temperature(&self, temperature: f32, candidates: &[Candidate], weights: &mut Vec<f32>) -> f32 {
        // One candidate is drawn at any temperature, and its entropy has no share of anything.
        if self.range <= 0.0 || candidates.len() < 2 {
            return temperature;
        }
        let total = weigh(candidates, weights);
        let share = entropy(candidates, weights, total) / libm::log(candidates.len() as f64);
        let low = f64::from(temperature - self.range).max(0.0);
        let high = f64::from(temperature + self.range);
        // Rounding may leave a share a little below 0, which has no roots.
        (low + (high - low) * libm::pow(share.max(0.0), f64::from(self.exponent))) as f32
    }
}

/// The place of the candidate that is drawn by `weights`, of which there is a finite one above 0, with `unit` in [0, 1).
pub fn draw(weights: &[f32], total: f64, unit: f64) -> usize {
    let target = unit * total;
    let mut reached = 0.0;
    for (place, &weight) in weights.iter().enumerate() {
        reached += f64::from(weight);
        if target < reached {
            return place;
        }
    }
    // Not reached: the target is below the total, which was added up in the same order.
    weights.len() - 1
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidates, ids, logits, of_weights};
    use super::*;

    fn divided(values: &[f32], by: f32) -> Vec<f32> {
        let mut list = candidates(values);
        temperature(&mut list, by);
        logits(&list)
    }

    fn dynamic(weights: &[f32], of: f32, range: f32, exponent: f32) -> f32 {
        Dynatemp { range, exponent }.temperature(of, &of_weights(weights), &mut Vec::new())
    }

    #[test]
    fn temperature_divides() {
        assert_eq!(divided(&[3.0, -1.0], 2.0), [1.5, -0.5]);
        assert_eq!(divided(&[3.0, -1.0], 1.0), [3.0, -1.0]);
        assert_eq!(divided(&[3.0, -1.0], f32::INFINITY), [0.0, 0.0], "all are equal");
    }

    #[test]
    fn at_zero_or_less_only_the_best_stays_the_lowest_id_on_ties() {
        for by in [0.0, -0.0, -1.0, f32::NEG_INFINITY, f32::NAN] {
            let mut list = candidates(&[1.0, 5.0, 5.0, 2.0]);
            temperature(&mut list, by);
            assert_eq!(ids(&list), [1], "temperature {by}");
        }
    }

    #[test]
    fn extreme_temperatures_stay_finite() {
        assert_eq!(divided(&[1.0, f32::MAX, f32::MIN], 1e-40), [f32::MAX], "all but the best are out of reach");
        assert_eq!(divided(&[-1.0, -2.0], 1e-40), [-1.0]);
        assert_eq!(divided(&[0.0, -2.0], 1e-40), [0.0, f32::MIN]);
        assert_eq!(divided(&[1.0, 2.0], f32::MAX), [1.0 / f32::MAX, 2.0 / f32::MAX]);
    }

    /// A half and two quarters have 1.5 ln 2 of the ln 3 that equal ones would have: a share of 0.946395.
    #[test]
    fn the_dynamic_temperature_follows_the_share_of_the_entropy() {
        let near = |got: f32, want: f32| assert!((got - want).abs() < 1e-6, "{got} instead of {want}");
        let weights = [0.5, 0.25, 0.25];
        near(dynamic(&weights, 1.0, 0.5, 1.0), 0.5 + 0.946395);
        near(dynamic(&weights, 1.0, 0.5, 2.0), 0.5 + 0.895663);
        near(dynamic(&weights, 0.5, 1.0, 1.0), 1.5 * 0.946395);
        near(dynamic(&[1.0; 4], 0.75, 0.25, 3.0), 1.0);
        near(dynamic(&weights, 0.75, 0.25, 0.0), 1.0);
    }

    #[test]
    fn the_dynamic_temperature_at_its_edges() {
        let weights = [0.5, 0.25, 0.25];
        assert_eq!(dynamic(&weights, 0.75, 0.0, 1.0), 0.75, "no range");
        assert_eq!(dynamic(&[1.0], 0.75, 0.5, 1.0), 0.75, "no choice");
        let sure = candidates(&[1000.0, 0.0]);
        assert_eq!(Dynatemp { range: 0.5, exponent: 1.0 }.temperature(0.25, &sure, &mut Vec::new()), 0.0);
        for (range, exponent) in [(f32::INFINITY, 1.0), (1.0, f32::INFINITY), (f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut list = of_weights(&weights);
            let of = Dynatemp { range, exponent }.temperature(1.0, &list, &mut Vec::new());
            temperature(&mut list, of);
            assert!(!list.is_empty() && logits(&list).iter().all(|logit| logit.is_finite()), "{range} {exponent}");
        }
    }

    #[test]
    fn draw_follows_the_weights() {
        let draw = |unit| draw(&[1.0, 0.0, 3.0], 4.0, unit);
        assert_eq!([0.0, 0.2499, 0.25, 0.9999].map(draw), [0, 0, 2, 2]);
    }
}
