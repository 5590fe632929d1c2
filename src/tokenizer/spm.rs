//! SentencePiece encoding as llama.cpp does it: characters, then always the adjacent pair whose joint token has the best
//! score, leftmost on ties. The `tokenizers` crate ranks pairs, not scores, and so cannot express such ties.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use anyhow::bail;

use super::TokenId;
use super::vocabulary::{Kind, Vocabulary};
use crate::gguf::{Gguf, Value};

const SCORES_KEY: &str = "tokenizer.ggml.scores";

pub struct Spm {
    /// Tokens that text can turn into, with their scores.
    tokens: HashMap<Box<str>, (TokenId, f32)>,
    byte_tokens: [Option<TokenId>; 256],
    unknown: Option<TokenId>,
    add_space_prefix: bool,
}

/// A run of characters that is one token (or one character without a token).
struct Symbol {
    start: usize,
    /// 0: absorbed by its left neighbour.
    len: usize,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// Two neighbours that could become one token.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Length of both when this was found: tells a candidate that is out of date.
    len: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(Reverse(self.left).cmp(&Reverse(other.left)))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Candidate {}

impl Spm {
    pub fn from_gguf(gguf: &Gguf, vocabulary: &mut Vocabulary) -> anyhow::Result<Spm> {
        let scores = read_scores(gguf, vocabulary.len())?;
        let mut tokens = HashMap::with_capacity(vocabulary.len());
        let mut byte_tokens = [None; 256];
        for (id, kind, piece) in vocabulary.entries() {
            match kind {
                Kind::Byte => {
                    if let &[byte] = vocabulary.bytes(id) {
                        byte_tokens[usize::from(byte)].get_or_insert(id);
                    }
                }
                Kind::Normal | Kind::UserDefined | Kind::Unused if !piece.is_empty() => {
                    tokens.entry(piece.into()).or_insert((id, scores[id as usize]));
                }
                _ => {}
            }
        }
        if tokens.is_empty() && byte_tokens.iter().all(Option::is_none) {
            bail!(gguf.key_error(super::vocabulary::TOKENS_KEY, "no token stands for text"));
        }
        if byte_tokens.iter().any(Option::is_none) && vocabulary.unknown.is_none() {
            vocabulary.warnings.push(
                "the vocabulary has neither a token for every byte nor an unknown token: characters outside it are left out"
                    .into(),
            );
        }
        let add_space_prefix = gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        Ok(Spm { tokens, byte_tokens, unknown: vocabulary.unknown, add_space_prefix })
    }

    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Appends the ids of `text`, which stands at the beginning or after a special token when `after_special`.
    pub fn encode(&self, text: &str, after_special: bool, ids: &mut Vec<TokenId>) {
        let prefix = if after_special && self.add_space_prefix { "▁" } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', "▁"));
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: index.checked_sub(1).unwrap_or(NONE),
                next: index + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        self.merge(&text, &mut symbols);
        let mut index = if symbols.is_empty() { NONE } else { 0 };
        while index != NONE {
            let symbol = &symbols[index];
            self.push_symbol(&text[symbol.start..symbol.start + symbol.len], ids);
            index = symbol.next;
        }
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol]) {
        let candidate = |symbols: &[Symbol], left: usize, right: usize| {
            if left == NONE || right == NONE {
                return None;
            }
            let len = symbols[left].len + symbols[right].len;
            let (_, score) = self.tokens.get(&text[symbols[left].start..symbols[left].start + len])?;
            Some(Candidate { score: *score, left, right, len })
        };
        let mut queue: BinaryHeap<Candidate> =
            (1..symbols.len()).filter_map(|right| candidate(symbols, right - 1, right)).collect();
        while let Some(Candidate { left, right, len, .. }) = queue.pop() {
            if symbols[left].len == 0 || symbols[right].len == 0 || symbols[left].len + symbols[right].len != len {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].len = 0;
            symbols[left].len = len;
            symbols[left].next = next;
            if next != NONE {
                symbols[next].previous = left;
            }
            queue.extend(candidate(symbols, symbols[left].previous, left));
            queue.extend(candidate(symbols, left, next));
        }
    }

    /// The token of a symbol; without one its bytes; without those the unknown token, once for a run.
    fn push_symbol(&self, symbol: &str, ids: &mut Vec<TokenId>) {
        if let Some(&(id, _)) = self.tokens.get(symbol) {
            ids.push(id);
        } else if let Some(bytes) =
            symbol.bytes().map(|byte| self.byte_tokens[usize::from(byte)]).collect::<Option<Vec<_>>>()
        {
            ids.extend(bytes);
        } else if let Some(unknown) = self.unknown
            && ids.last() != Some(&unknown)
        {
            ids.push(unknown);
        }
    }
}

/// Without scores every pair is as good as any other, and the leftmost wins.
fn read_scores(gguf: &Gguf, count: usize) -> anyhow::Result<Vec<f32>> {
    let Some(array) = gguf.array(SCORES_KEY)? else { return Ok(vec![0.0; count]) };
    if array.len != count {
        bail!(gguf.key_error(SCORES_KEY, format!("{} scores for {count} tokens", array.len)));
    }
    array
        .iter()
        .enumerate()
        .map(|(id, value)| match value {
            Value::F32(score) if !score.is_nan() => Ok(score),
            Value::F64(score) if !score.is_nan() => Ok(score as f32),
            other => bail!(gguf.key_error(SCORES_KEY, format!("the score of token {id} is {other:?}, no number"))),
        })
        .collect()
}
