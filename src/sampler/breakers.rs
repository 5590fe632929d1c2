//! Texts that end a repetition, found in tokens: a breaker may be a part of one, or run over several.

use std::sync::Arc;

use crate::tokenizer::TokenId;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breakers {
    breakers: Vec<Breaker>,
    pieces: Arc<Pieces>,
}

/// The bytes of every token, one after the other. The end of token i is at i.
#[derive(Debug, Default, PartialEq)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    /// Nothing for tokens outside the vocabulary.
    fn of(&self, token: TokenId) -> &[u8] {
        let token = token as usize;
        let Some(&end) = self.ends.get(token) else { return &[] };
        &self.bytes[if token == 0 { 0 } else { self.ends[token - 1] }..end]
    }
}

impl Breakers {
    /// `pieces`: what each token of the vocabulary stands for, in the order of ids. Empty breakers are none.
    pub fn new<B: AsRef<[u8]>>(texts: &[impl AsRef<[u8]>], pieces: impl IntoIterator<Item = B>) -> Breakers {
        let texts = texts.iter().map(AsRef::as_ref).filter(|text| !text.is_empty());
        let breakers: Vec<Breaker> = texts.map(Breaker::new).collect();
        let mut all = Pieces::default();
        if !breakers.is_empty() {
            for piece in pieces {
                all.bytes.extend_from_slice(piece.as_ref());
                all.ends.push(all.bytes.len());
            }
        }
        Breakers { breakers, pieces: Arc::new(all) }
    }

    /// How much of each breaker an empty text ends with.
    pub fn none_begun(&self) -> Vec<usize> {
        vec![0; self.breakers.len()]
    }

    /// Whether a breaker ends within `token`, which follows a text that ends with so much of each breaker as `begun`
    /// tells; it then tells that of the text with the token.
    pub fn ends_in(&self, token: TokenId, begun: &mut [usize]) -> bool {
        let piece = self.pieces.of(token);
        let mut ends = false;
        for (breaker, begun) in self.breakers.iter().zip(begun) {
            for &byte in piece {
                *begun = breaker.advance(*begun, byte);
                ends |= *begun == breaker.text.len();
            }
        }
        ends
    }

    /// Whether the token holds a whole breaker.
    pub fn are_within(&self, token: TokenId) -> bool {
        self.ends_in(token, &mut self.none_begun())
    }
}

/// A text, and how to look for it byte by byte (Knuth, Morris and Pratt).
#[derive(Clone, Debug, PartialEq)]
struct Breaker {
    text: Vec<u8>,
    /// For each number of bytes found: how many of them the text begins with again at their end.
    again: Vec<usize>,
}

impl Breaker {
    fn new(text: &[u8]) -> Breaker {
        let mut breaker = Breaker { text: text.to_vec(), again: vec![0, 0] };
        for &byte in &text[1..] {
            let again = *breaker.again.last().expect("it begins with two entries");
            breaker.again.push(breaker.advance(again, byte));
        }
        breaker
    }

    /// The number of bytes found after one more.
    fn advance(&self, mut found: usize, byte: u8) -> usize {
        loop {
            if self.text.get(found) == Some(&byte) {
                return found + 1;
            }
            if found == 0 {
                return 0;
            }
            found = self.again[found];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After which of the tokens a breaker ends.
    fn ends(texts: &[&str], tokens: &[&str]) -> Vec<bool> {
        let breakers = Breakers::new(texts, tokens);
        let mut begun = breakers.none_begun();
        (0..tokens.len() as TokenId).map(|token| breakers.ends_in(token, &mut begun)).collect()
    }

    #[test]
    fn a_breaker_is_found_inside_a_token_and_over_several() {
        assert_eq!(ends(&["\n"], &["a", ".\n\n", "b"]), [false, true, false]);
        assert_eq!(ends(&["User:"], &["Us", "er", ": hi", "User"]), [false, false, true, false]);
        assert_eq!(ends(&["終"], &["x\u{7d42}"]), [true]);
    }

    #[test]
    fn a_beginning_that_fails_may_hold_another() {
        assert_eq!(ends(&["aab"], &["aa", "ab"]), [false, true]);
        assert_eq!(ends(&["abcabd"], &["abcabc", "ab", "d"]), [false, false, true]);
        assert_eq!(ends(&["aa"], &["a", "a", "a"]), [false, true, true]);
    }

    #[test]
    fn several_breakers_are_looked_for_at_once() {
        assert_eq!(ends(&[":", "bc"], &["ab", "c", "a:"]), [false, true, true]);
    }

    #[test]
    fn a_token_holds_a_breaker_only_if_all_of_it() {
        let breakers = Breakers::new(&["bc"], ["abcd", "b", "c"]);
        assert_eq!([0, 1, 2, 99].map(|token| breakers.are_within(token)), [true, false, false, false]);
    }

    #[test]
    fn no_breakers_and_empty_ones_end_nothing() {
        assert_eq!(ends(&[], &["a"]), [false]);
        assert_eq!(ends(&[""], &["a"]), [false]);
        assert_eq!(Breakers::new(&[""], ["a"]), Breakers::default());
    }
}
