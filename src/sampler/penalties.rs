//! Repetition, presence and frequency penalties over a window of recent tokens.

use std::collections::{HashMap, VecDeque};

use super::Params;
use super::candidates::{Candidate, change};
use crate::tokenizer::TokenId;

/// How often each token came within the last `repeat_last_n` tokens of prompt and answer.
pub struct Window {
    /// `None`: everything since the start.
    capacity: Option<usize>,
    recent: VecDeque<TokenId>,
    counts: HashMap<TokenId, u32>,
}

impl Window {
    /// 0: nothing is remembered; negative: everything is.
    pub fn new(repeat_last_n: i64) -> Window {
        Window { capacity: usize::try_from(repeat_last_n).ok(), recent: VecDeque::new(), counts: HashMap::new() }
    }

    pub fn push(&mut self, token: TokenId) {
        if self.capacity == Some(0) {
            return;
        }
        *self.counts.entry(token).or_default() += 1;
        let Some(capacity) = self.capacity else { return };
        self.recent.push_back(token);
        if self.recent.len() > capacity {
            let old = self.recent.pop_front().expect("the window is longer than its capacity");
            let count = self.counts.get_mut(&old).expect("every recent token is counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    pub fn clear(&mut self) {
        self.recent.clear();
        self.counts.clear();
    }
}

pub fn are_off(params: &Params) -> bool {
    let change_nothing =
        params.repeat_penalty == 1.0 && params.presence_penalty == 0.0 && params.frequency_penalty == 0.0;
    change_nothing || params.repeat_last_n == 0
}

/// Makes the tokens of the window less likely.
///
/// A negative logit is multiplied by the repeat penalty, not divided, so that it too moves down.
pub fn apply(candidates: &mut [Candidate], window: &Window, params: &Params) {
    if are_off(params) {
        return;
    }
    change(candidates, &window.counts, |logit, &count| {
        let repeated = if logit <= 0.0 { logit * params.repeat_penalty } else { logit / params.repeat_penalty };
        repeated - (count as f32 * params.frequency_penalty + params.presence_penalty)
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidates, logits};
    use super::*;

    fn window(repeat_last_n: i64, tokens: &[TokenId]) -> Window {
        let mut window = Window::new(repeat_last_n);
        tokens.iter().for_each(|&token| window.push(token));
        window
    }

    fn penalized(values: &[f32], window: &Window, params: &Params) -> Vec<f32> {
        let mut list = candidates(values);
        apply(&mut list, window, params);
        logits(&list)
    }

    #[test]
    fn repeat_penalty_divides_above_zero_and_multiplies_below() {
        let params = Params { repeat_penalty: 2.0, ..Params::default() };
        assert_eq!(penalized(&[-2.0, 2.0, 3.0, 0.0], &window(64, &[0, 1, 3]), &params), [-4.0, 1.0, 3.0, 0.0]);
    }

    #[test]
    fn frequency_counts_and_presence_does_not() {
        let params = Params { frequency_penalty: 0.5, presence_penalty: 0.25, ..Params::default() };
        assert_eq!(penalized(&[1.0, 1.0, 1.0], &window(64, &[0, 0, 0, 2]), &params), [-0.75, 1.0, 0.25]);
    }

    #[test]
    fn all_three_together_repeat_first() {
        let params = Params { repeat_penalty: 2.0, frequency_penalty: 1.0, presence_penalty: 0.5, ..Params::default() };
        assert_eq!(penalized(&[4.0], &window(64, &[0, 0]), &params), [4.0 / 2.0 - (2.0 + 0.5)]);
    }

    #[test]
    fn window_sizes() {
        let seen = |repeat_last_n, tokens: &[TokenId]| {
            let window = window(repeat_last_n, tokens);
            let mut counts: Vec<_> = window.counts.into_iter().collect();
            counts.sort();
            counts
        };
        assert!(seen(0, &[1, 2, 3]).is_empty());
        assert_eq!(seen(1, &[1, 2, 3, 3]), [(3, 1)]);
        assert_eq!(seen(3, &[1, 2, 1, 3]), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(seen(1_000_000_000, &[1, 2, 1]), [(1, 2), (2, 1)]);
        assert_eq!(seen(-1, &[5; 100]), [(5, 100)]);
    }

    #[test]
    fn tokens_outside_the_list_and_extreme_values_do_no_harm() {
        let params = Params { repeat_penalty: f32::MIN_POSITIVE, ..Params::default() };
        assert_eq!(penalized(&[1e30], &window(-1, &[0, 4_000_000_000]), &params), [f32::MAX]);
    }
}
