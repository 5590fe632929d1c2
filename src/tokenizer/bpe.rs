//! Byte-level BPE: bytes as printable characters, merged by the `tokenizers` crate within the pre-tokenizer's pieces.

use std::collections::HashSet;
use std::sync::LazyLock;

use anyhow::{anyhow, bail};
use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use super::TokenId;
use super::pre_tokenizers::PreTokenizer;
use super::vocabulary::{TOKENS_KEY, Vocabulary};
use crate::gguf::{Gguf, Value};

const MERGES_KEY: &str = "tokenizer.ggml.merges";
const PRE_KEY: &str = "tokenizer.ggml.pre";

/// GPT-2's characters for bytes: printable Latin-1 stands for itself, the others follow from U+0100 on.
static CHAR_OF_BYTE: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut unprintable = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        printable @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(printable),
        _ => unprintable.next().expect("no more than 256 are taken"),
    })
});

/// The inverse of `CHAR_OF_BYTE`, which stays below U+0144.
static BYTE_OF_CHAR: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut bytes = [None; 0x144];
    for (byte, &c) in (0..=255).zip(CHAR_OF_BYTE.iter()) {
        bytes[c as usize] = Some(byte);
    }
    bytes
});

pub fn byte_of_char(c: char) -> Option<u8> {
    BYTE_OF_CHAR.get(c as usize).copied().flatten()
}

pub struct Bpe {
    model: BPE,
    pre_tokenizer: PreTokenizer,
}

/// Bytes that written text is made of: no control characters but the usual three, no lead bytes of planes without
/// characters. Vocabularies that lack some of the others (SmolLM2 lacks eight) lack nothing a person would miss.
fn is_used_in_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..=0xbf | 0xc2..=0xf0)
}

impl Bpe {
    pub fn from_gguf(gguf: &Gguf, vocabulary: &mut Vocabulary) -> anyhow::Result<Bpe> {
        let name = match gguf.str(PRE_KEY)? {
            Some("default") => {
                vocabulary.warnings.push(format!(
                    "'{PRE_KEY}' is 'default', no model's own rule: numbers and code may be split in the wrong places"
                ));
                "default"
            }
            Some(name) => name,
            None => {
                vocabulary.warnings.push(format!(
                    "'{PRE_KEY}' is missing: text is split by the rule of GPT-2, and answers may be worse than they should"
                ));
                "gpt-2"
            }
        };
        let pre_tokenizer = PreTokenizer::named(name).map_err(|error| gguf.key_error(PRE_KEY, error))?;

        // Control tokens stay out of the words, lest plain text become one of them. Single characters must remain.
        let mut words = Vocab::with_capacity(vocabulary.len());
        let mut control_merges = HashSet::new();
        for (id, kind, piece) in vocabulary.entries() {
            if kind.is_control() && piece.chars().nth(1).is_some() {
                let cuts = piece.char_indices().skip(1);
                control_merges.extend(cuts.map(|(cut, _)| format!("{} {}", &piece[..cut], &piece[cut..])));
            } else {
                words.entry(piece.to_string()).or_insert(id);
            }
        }
        let has_token = |byte: u8| {
            let mut text = [0; 4];
            words.contains_key(&*CHAR_OF_BYTE[usize::from(byte)].encode_utf8(&mut text))
        };
        if !(0..=u8::MAX).any(has_token) {
            bail!(gguf.key_error(TOKENS_KEY, "no token stands for text"));
        }
        let missing = (0..=u8::MAX).filter(|&byte| is_used_in_text(byte) && !has_token(byte)).count();
        if missing > 0 {
            vocabulary.warnings.push(format!(
                "the vocabulary lacks a token for {missing} of the bytes of UTF-8: characters with them are left out"
            ));
        }
        let merges = read_merges(gguf, &control_merges)?;
        let model = BPE::builder()
            .vocab_and_merges(words, merges)
            .ignore_merges(pre_tokenizer.ignore_merges)
            .build()
            .map_err(|error| gguf.key_error(MERGES_KEY, error))?;
        Ok(Bpe { model, pre_tokenizer })
    }

    /// BOS where the file does not say.
    pub fn add_bos(&self) -> bool {
        self.pre_tokenizer.add_bos
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, text: &str, ids: &mut Vec<TokenId>) -> anyhow::Result<()> {
        let mut word = String::new();
        for piece in self.pre_tokenizer.split(text) {
            word.clear();
            word.extend(text.as_bytes()[piece].iter().map(|&byte| CHAR_OF_BYTE[usize::from(byte)]));
            let tokens = self.model.tokenize(&word).map_err(|error| anyhow!("tokenizer: {error}"))?;
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(())
    }
}

/// Pairs in order of rank. An entry is `left right`; the space that separates them is the first after a character.
fn read_merges(gguf: &Gguf, control_merges: &HashSet<String>) -> anyhow::Result<Vec<(String, String)>> {
    let Some(array) = gguf.array(MERGES_KEY)? else {
        bail!(gguf.key_error(MERGES_KEY, "missing: a 'gpt2' vocabulary needs its merges"));
    };
    if array.len == 0 {
        bail!(gguf.key_error(MERGES_KEY, "empty: a 'gpt2' vocabulary needs its merges"));
    }
    let mut merges = Vec::with_capacity(array.len);
    for (rank, value) in array.iter().enumerate() {
        let Value::String(bytes) = value else {
            bail!(gguf.key_error(MERGES_KEY, format!("entry {rank} is no text but {value:?}")));
        };
        let pair = String::from_utf8_lossy(bytes);
        let Some(space) = pair.bytes().skip(1).position(|byte| byte == b' ').map(|index| index + 1) else {
            bail!(gguf.key_error(MERGES_KEY, format!("entry {rank} '{pair}' is no pair of tokens")));
        };
        if !control_merges.contains(&*pair) {
            merges.push((pair[..space].to_string(), pair[space + 1..].to_string()));
        }
    }
    Ok(merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_are_each_others_inverse() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of_char(CHAR_OF_BYTE[usize::from(byte)]), Some(byte));
        }
        // The published table: space, newline, no-break space.
        assert_eq!(CHAR_OF_BYTE[usize::from(b' ')], 'Ġ');
        assert_eq!(CHAR_OF_BYTE[usize::from(b'\n')], 'Ċ');
        assert_eq!(CHAR_OF_BYTE[0xad], '\u{143}');
        assert_eq!(byte_of_char('字'), None);
    }
}
