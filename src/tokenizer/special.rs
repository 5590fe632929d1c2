//! Finding the texts of special tokens in a string, and keeping user text from ever being taken for a control token.
//!
//! A shielded text carries marks: `BREAK` after the first character of everything that is, or could become with text
//! that follows, a control token; a control token is not found across a break. Marks are pairs that begin with a
//! noncharacter, and that noncharacter is itself escaped in user text, so that every text comes back unchanged.

use super::TokenId;
use super::vocabulary::{Kind, Vocabulary};

/// Begins every mark: a Unicode noncharacter, which templates carry along like any other character.
const MARK: char = '\u{fdd0}';
const BREAK: &str = "\u{fdd0}\u{fdd1}";
const ESCAPED_MARK: &str = "\u{fdd0}\u{fdd2}";

/// Texts with their ids, sorted, searched from a position by narrowing the range byte by byte.
struct Texts {
    sorted: Vec<(Box<str>, TokenId)>,
    /// Whether a text begins with this byte.
    begins: [bool; 256],
}

impl Texts {
    fn new(mut texts: Vec<(Box<str>, TokenId)>) -> Texts {
        texts.retain(|(text, _)| !text.is_empty());
        // Of equal texts the first id counts.
        texts.sort();
        texts.dedup_by(|later, first| later.0 == first.0);
        let mut begins = [false; 256];
        for (text, _) in &texts {
            begins[usize::from(text.as_bytes()[0])] = true;
        }
        Texts { sorted: texts, begins }
    }

    /// The texts at the beginning of `bytes`, shortest first, with their lengths; and whether `bytes` ends within a text.
    fn at(&self, bytes: &[u8], mut found: impl FnMut(usize, TokenId)) -> bool {
        let mut candidates = match bytes.first() {
            Some(&first) if self.begins[usize::from(first)] => self.sorted.as_slice(),
            _ => return false,
        };
        for (depth, byte) in bytes.iter().enumerate() {
            let from = candidates.partition_point(|(text, _)| text.as_bytes()[depth] < *byte);
            let to = candidates.partition_point(|(text, _)| text.as_bytes()[depth] <= *byte);
            candidates = &candidates[from..to];
            // The text that ends here sorts before those that go on.
            if let Some(((text, id), longer)) = candidates.split_first()
                && text.len() == depth + 1
            {
                found(depth + 1, *id);
                candidates = longer;
            }
            if candidates.is_empty() {
                return false;
            }
        }
        true
    }
}

/// The tokens of a vocabulary that are found in text as they stand.
pub struct Specials {
    /// Control tokens: only a template may write them.
    control: Texts,
    /// Tokens added by the maker of the model: found in every text.
    user_defined: Texts,
}

/// Text without marks, and where breaks were (byte positions, ascending).
pub struct Unshielded {
    pub text: String,
    breaks: Vec<usize>,
}

impl Specials {
    pub fn new(vocabulary: &Vocabulary) -> Specials {
        let texts = |wanted: fn(Kind, &str) -> bool| {
            let chosen = vocabulary.entries().filter(|&(_, kind, text)| wanted(kind, text));
            Texts::new(chosen.map(|(id, _, text)| (text.into(), id)).collect())
        };
        Specials {
            // A single character cannot be broken, so it is never a marker.
            control: texts(|kind, text| kind.is_control() && text.chars().nth(1).is_some()),
            user_defined: texts(|kind, _| kind == Kind::UserDefined),
        }
    }

    /// The next special token of `text` at or after `from`: leftmost, then longest. Control tokens only with
    /// `control_breaks`, and not across one of those.
    pub fn find(&self, text: &str, from: usize, control_breaks: Option<&[usize]>) -> Option<(usize, usize, TokenId)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|start| {
            let mut longest = None;
            self.user_defined.at(&bytes[start..], |len, id| longest = Some((len, id)));
            if let Some(breaks) = control_breaks {
                self.control.at(&bytes[start..], |len, id| {
                    let first_inside = breaks.partition_point(|&position| position <= start);
                    let broken = breaks.get(first_inside).is_some_and(|&position| position < start + len);
                    if !broken && longest.is_none_or(|(other, _)| other <= len) {
                        longest = Some((len, id));
                    }
                });
            }
            longest.map(|(len, id)| (start, start + len, id))
        })
    }

    pub fn shield(&self, text: &str) -> String {
        let mut shielded = String::with_capacity(text.len() + BREAK.len());
        if self.ends_a_control_text(text) {
            shielded.push_str(BREAK);
        }
        for (start, c) in text.char_indices() {
            if c == MARK {
                shielded.push_str(ESCAPED_MARK);
            } else {
                shielded.push(c);
            }
            let mut found = false;
            let unfinished = self.control.at(&text.as_bytes()[start..], |_, _| found = true);
            if found || unfinished {
                shielded.push_str(BREAK);
            }
        }
        shielded
    }

    /// Whether `text` begins with the rest of a control text that the text before it may have begun.
    fn ends_a_control_text(&self, text: &str) -> bool {
        self.control
            .sorted
            .iter()
            .any(|(control, _)| control.char_indices().skip(1).any(|(cut, _)| text.starts_with(&control[cut..])))
    }
}

impl Unshielded {
    pub fn new(shielded: &str) -> Unshielded {
        let mut text = String::with_capacity(shielded.len());
        let mut breaks = Vec::new();
        let mut rest = shielded;
        while let Some(mark) = rest.find(MARK) {
            text.push_str(&rest[..mark]);
            rest = &rest[mark..];
            if let Some(after) = rest.strip_prefix(BREAK) {
                breaks.push(text.len());
                rest = after;
            } else {
                text.push(MARK);
                rest = rest.strip_prefix(ESCAPED_MARK).unwrap_or(&rest[MARK.len_utf8()..]);
            }
        }
        text.push_str(rest);
        Unshielded { text, breaks }
    }

    pub fn breaks(&self) -> &[usize] {
        &self.breaks
    }
}
