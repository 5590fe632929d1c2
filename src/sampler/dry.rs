//! DRY, "don't repeat yourself": a token that would go on with a repetition loses the more, the longer that already is.
//!
//! The text's end is looked for in the text before it (the Z-algorithm on the text read backwards), in time linear in the
//! number of tokens looked at: 0.25 ms for 65,536 of them. Repetitions end at the breakers, pieces of text such as line
//! ends: what stands before the last one does not count.

use std::collections::HashMap;

use super::breakers::Breakers;
use super::candidates::{Candidate, change};
use crate::tokenizer::TokenId;

/// So many tokens are looked at where all are asked for, so that a text without end does not slow down for ever.
const MOST_TOKENS: usize = 1 << 17;

#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// What a token loses that goes on with a repetition of the allowed length; 0: off.
    pub multiplier: f32,
    /// By this factor it loses more for each token beyond; below 1: off.
    pub base: f32,
    /// Shorter repetitions cost nothing.
    pub allowed_length: usize,
    /// How many tokens of prompt and answer are looked at. 0: off; negative: all of them.
    pub last_n: i64,
    pub breakers: Breakers,
}

impl Default for Dry {
    fn default() -> Dry {
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: 64, breakers: Breakers::default() }
    }
}

impl Dry {
    pub fn is_off(&self) -> bool {
        self.multiplier == 0.0 || self.base < 1.0 || self.last_n == 0
    }

    /// What a token loses that goes on with a repetition of `length` tokens.
    fn penalty(&self, length: usize) -> f32 {
        // Powers beyond f32 are as good as the last one within it.
        let most = libm::log(f64::from(f32::MAX)) / libm::log(f64::from(self.base)).max(1e-6);
        let exponent = ((length - self.allowed_length) as f64).min(most.floor());
        (f64::from(self.multiplier) * libm::pow(f64::from(self.base), exponent)) as f32
    }
}

/// The tokens that are looked at, and how many came after the last breaker.
pub struct History {
    most: usize,
    tokens: Vec<TokenId>,
    since_breaker: usize,
    /// How much of each breaker the text ends with.
    begun: Vec<usize>,
}

impl History {
    pub fn new(dry: &Dry) -> History {
        let most = if dry.is_off() { 0 } else { usize::try_from(dry.last_n).unwrap_or(usize::MAX).min(MOST_TOKENS) };
        History { most, tokens: Vec::new(), since_breaker: 0, begun: dry.breakers.none_begun() }
    }

    pub fn push(&mut self, token: TokenId, dry: &Dry) {
        if self.most == 0 {
            return;
        }
        // Twice as many as needed are kept, so that few pushes move them.
        if self.tokens.len() >= 2 * self.most {
            self.tokens.drain(..self.tokens.len() - self.most);
        }
        self.tokens.push(token);
        let broke = dry.breakers.ends_in(token, &mut self.begun);
        self.since_breaker = if broke { 0 } else { self.since_breaker + 1 };
    }

    pub fn clear(&mut self, dry: &Dry) {
        self.tokens.clear();
        self.since_breaker = 0;
        self.begun = dry.breakers.none_begun();
    }

    fn recent(&self) -> &[TokenId] {
        &self.tokens[self.tokens.len().saturating_sub(self.most)..]
    }
}

pub fn apply(candidates: &mut [Candidate], history: &History, dry: &Dry) {
    let recent = history.recent();
    if dry.is_off() || recent.len() <= dry.allowed_length {
        return;
    }
    let most = history.since_breaker.min(recent.len());
    let mut lengths = repetitions(recent, dry.allowed_length, most);
    lengths.retain(|&token, _| !dry.breakers.are_within(token));
    change(candidates, &lengths, |logit, &length| logit - dry.penalty(length));
}

/// For each token that came before after what the text ends with: how many tokens of that there were, at least `least`
/// and counted up to `most`. An occurrence may overlap the end of the text.
fn repetitions(tokens: &[TokenId], least: usize, most: usize) -> HashMap<TokenId, usize> {
    let mut longest = HashMap::new();
    if most < least {
        return longest;
    }
    for (back, length) in common_ends(tokens).into_iter().enumerate().skip(1) {
        let length = length.min(most);
        if length >= least {
            let next = tokens[tokens.len() - back];
            longest.entry(next).and_modify(|longest: &mut usize| *longest = length.max(*longest)).or_insert(length);
        }
    }
    longest
}

/// For each `back`: how many tokens the text and the text without its last `back` tokens have in common at their ends.
fn common_ends(tokens: &[TokenId]) -> Vec<usize> {
    let n = tokens.len();
    let from_end = |i: usize| tokens[n - 1 - i];
    let mut common = vec![n; n];
    // The stretch, found before, that reaches furthest: inside it the beginning says what is to be found.
    let (mut start, mut end) = (0, 0);
    for back in 1..n {
        let mut length = if back < end { common[back - start].min(end - back) } else { 0 };
        if back + length >= end {
            while back + length < n && from_end(length) == from_end(back + length) {
                length += 1;
            }
            (start, end) = (back, back + length);
        }
        common[back] = length;
    }
    common
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::super::tests::{candidates, logits};
    use super::*;

    fn dry(multiplier: f32, base: f32, allowed_length: usize, last_n: i64) -> Dry {
        Dry { multiplier, base, allowed_length, last_n, breakers: Breakers::default() }
    }

    /// What tokens 0..10 lose after `tokens`.
    fn lost(tokens: &[TokenId], dry: &Dry) -> Vec<f32> {
        let mut history = History::new(dry);
        tokens.iter().for_each(|&token| history.push(token, dry));
        let mut list = candidates(&[0.0; 10]);
        apply(&mut list, &history, dry);
        logits(&list).into_iter().map(|logit| -logit).collect()
    }

    #[test]
    fn the_token_that_goes_on_with_a_repetition_loses_by_its_length() {
        let two = dry(1.0, 2.0, 2, -1);
        // 1 2 3 came before and went on with 4: three tokens are one more than allowed.
        assert_eq!(lost(&[1, 2, 3, 4, 9, 1, 2, 3], &two), [0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        // Two tokens: no more than allowed, which costs the multiplier alone.
        assert_eq!(lost(&[2, 3, 4, 9, 2, 3], &two)[4], 1.0);
        assert_eq!(lost(&[3, 4, 9, 3], &two), [0.0; 10], "one token is no repetition");
        assert_eq!(lost(&[3, 4, 9, 3], &dry(0.5, 2.0, 1, -1))[4], 0.5);
    }

    #[test]
    fn of_several_places_the_longest_counts() {
        // 1 2 3 went on with 4, 2 3 with 5, and 2 3 with 4 too.
        let lost = lost(&[2, 3, 5, 1, 2, 3, 4, 2, 3, 4, 1, 2, 3], &dry(1.0, 3.0, 2, -1));
        assert_eq!((lost[4], lost[5]), (3.0, 1.0));
    }

    #[test]
    fn an_occurrence_may_overlap_the_end() {
        // 7 7 7 7: the last three are there one token earlier.
        assert_eq!(lost(&[7, 7, 7, 7], &dry(1.0, 2.0, 2, -1))[7], 2.0);
    }

    #[test]
    fn only_the_last_n_tokens_are_looked_at() {
        let text = [1, 2, 3, 4, 9, 1, 2, 3];
        assert_eq!(lost(&text, &dry(1.0, 2.0, 2, 8))[4], 2.0);
        assert_eq!(lost(&text, &dry(1.0, 2.0, 2, 7))[4], 1.0, "the first token of the occurrence is out of sight");
        assert_eq!(lost(&text, &dry(1.0, 2.0, 2, 5))[4], 0.0);
        assert_eq!(lost(&text, &dry(1.0, 2.0, 2, 0)), [0.0; 10]);
    }

    #[test]
    fn a_long_text_is_cut_to_its_end() {
        let three = dry(1.0, 2.0, 1, 3);
        let mut history = History::new(&three);
        (0..1000).for_each(|token| history.push(token, &three));
        assert_eq!(history.recent(), [997, 998, 999]);
        assert!(history.tokens.len() <= 6);
    }

    #[test]
    fn repetitions_end_at_breakers_and_breakers_cost_nothing() {
        let pieces = ["a", "b", "c", "d", "e", "\n", ".\n", "x", "y", "z"];
        let breakers = Breakers::new(&["\n"], pieces.map(str::as_bytes));
        let broken = Dry { breakers, ..dry(1.0, 2.0, 1, -1) };
        // b c stand after the line end; a before it does not count.
        assert_eq!(lost(&[0, 5, 1, 2, 3, 0, 5, 1, 2], &broken)[3], 2.0);
        assert_eq!(lost(&[0, 5, 1, 2, 3, 0, 5, 1, 2], &dry(1.0, 2.0, 1, -1))[3], 8.0, "without breakers four count");
        assert_eq!(lost(&[0, 1, 2, 0, 1, 2, 5], &broken), [0.0; 10], "nothing after the breaker");
        // What would come next is a breaker itself, also with other text in the token.
        assert_eq!(lost(&[1, 2, 5, 1, 2], &broken)[5], 0.0);
        assert_eq!(lost(&[1, 2, 6, 1, 2], &broken)[6], 0.0);
    }

    #[test]
    fn extreme_values_stay_finite() {
        let text = [7; 5000];
        for (multiplier, base) in [(1.0, 10.0), (f32::MAX, 10.0), (f32::INFINITY, 2.0)] {
            let lost = lost(&text, &dry(multiplier, base, 2, -1))[7];
            assert!(lost > 1e37 && lost.is_finite(), "{multiplier} {base}: {lost}");
        }
        assert!(lost(&text, &dry(1.0, f32::INFINITY, 2, -1))[7].is_finite());
        assert_eq!(lost(&text, &dry(3.0, 1.0, 2, -1))[7], 3.0, "base 1 does not grow");
        assert!(lost(&text, &dry(f32::NAN, 2.0, 2, -1))[7].is_finite());
        for off in [dry(0.0, 2.0, 2, -1), dry(1.0, 0.5, 2, -1)] {
            assert_eq!(lost(&text, &off), [0.0; 10]);
        }
    }

    #[test]
    fn nothing_need_repeat_where_no_length_is_allowed() {
        // Every token of the text but the first follows an occurrence of nothing.
        let lost = lost(&[1, 2, 3], &dry(1.0, 2.0, 0, -1));
        assert_eq!(lost[..4], [0.0, 0.0, 1.0, 1.0]);
    }

    /// Token by token instead of by the Z-algorithm.
    #[test]
    fn common_ends_are_those_of_a_plain_search() {
        let mut rng = Rng::new(5);
        for n in 0..60 {
            let tokens: Vec<TokenId> = (0..n).map(|_| (rng.unit() * 2.5) as TokenId).collect();
            let plain: Vec<usize> = (0..n)
                .map(|back| {
                    let (text, before) = (tokens.iter().rev(), tokens[..n - back].iter().rev());
                    text.zip(before).take_while(|(a, b)| a == b).count()
                })
                .collect();
            assert_eq!(common_ends(&tokens), plain, "{tokens:?}");
        }
    }
}
