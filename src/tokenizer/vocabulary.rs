//! The vocabulary of a GGUF file: token texts, their types, the bytes they stand for, and the tokens with a meaning.

use std::collections::HashSet;

use anyhow::bail;

use super::TokenId;
use super::bpe::byte_of_char;
use crate::gguf::{Gguf, Value};

pub const MODEL_KEY: &str = "tokenizer.ggml.model";
pub const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
pub const TYPES_KEY: &str = "tokenizer.ggml.token_type";

/// What a token is, by its number in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    fn from_number(number: i64) -> Option<Kind> {
        Some(match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => return None,
        })
    }

    /// Tokens that only a template may write: they are never found in user text and leave nothing when decoded.
    pub fn is_control(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown)
    }
}

/// How token texts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// SentencePiece: `▁` for a space, `<0x0A>` for a byte.
    Spm,
    /// GPT-2: every byte as one printable character.
    Bpe,
}

/// Texts that end an answer wherever they stand in a vocabulary, because `eos_token_id` alone is often not the token
/// with which the model ends its turn.
const END_OF_GENERATION_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "▁<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_sentence|>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<repo_name>",
    "<reponame>",
    "<|file_sep|>",
    "<file_sep>",
];

/// Texts with which templates mark turns. Some converters store them as ordinary tokens (Command R's are), and then a
/// user could write them.
const TURN_TEXTS: &[&str] = &[
    "<|im_start|>",
    "<|im_sep|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|header_start|>",
    "<|header_end|>",
    "<|eot|>",
    "<start_of_turn>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end_of_turn|>",
    "<|EOT|>",
];

/// Texts of the tokens before, after and in the middle of what is to be filled in, as llama.cpp knows them; each column
/// belongs together.
const FILL_IN_TEXTS: [[&str; 8]; 3] = [
    [
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    [
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    [
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
];

/// Keys of the same, the older name second.
const FILL_IN_KEYS: [[&str; 2]; 3] = [["fim_pre", "prefix"], ["fim_suf", "suffix"], ["fim_mid", "middle"]];

/// Tokens that end a filled-in text: padding, and what begins another file or repository.
const FILL_IN_ENDS: [&str; 3] = ["fim_pad", "fim_rep", "fim_sep"];

/// Tokens that other programs use, by the names of their keys.
const UNUSED_IDS: &[&str] = &["padding", "separator", "seperator", "cls", "mask"];

/// Many byte strings in one allocation, by index.
#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Table {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, index: usize) -> &[u8] {
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}

pub struct Vocabulary {
    pub model: Model,
    pieces: Table,
    bytes: Table,
    kinds: Vec<Kind>,
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    pub unknown: Option<TokenId>,
    /// Ascending.
    pub end_of_generation: Vec<TokenId>,
    /// Prefix, suffix, middle.
    pub fill_in: Option<[TokenId; 3]>,
    pub warnings: Vec<String>,
}

impl Vocabulary {
    pub fn from_gguf(gguf: &Gguf) -> anyhow::Result<Vocabulary> {
        let model = match gguf.str(MODEL_KEY)? {
            Some("llama") => Model::Spm,
            Some("gpt2") => Model::Bpe,
            Some(other) => bail!(gguf.key_error(
                MODEL_KEY,
                format!("tokenizer model '{other}' is not supported; the supported ones are 'llama' (SentencePiece) and 'gpt2' (byte-level BPE)"),
            )),
            None => bail!(gguf.key_error(MODEL_KEY, "missing: the file holds no tokenizer")),
        };
        let mut pieces = Table::default();
        let Some(tokens) = gguf.array(TOKENS_KEY)? else {
            bail!(gguf.key_error(TOKENS_KEY, "missing: the file holds no vocabulary"));
        };
        for (id, token) in tokens.iter().enumerate() {
            match token {
                Value::String(bytes) => pieces.push(String::from_utf8_lossy(bytes).as_bytes()),
                other => bail!(gguf.key_error(TOKENS_KEY, format!("entry {id} is no text but {other:?}"))),
            }
        }
        let count = pieces.ends.len();
        if count == 0 || u32::try_from(count).is_err() {
            bail!(gguf.key_error(TOKENS_KEY, format!("{count} tokens are no usable vocabulary")));
        }
        let mut warnings = Vec::new();
        let declared = gguf.str("general.architecture")?.map(|name| format!("{name}.vocab_size"));
        if let Some(key) = declared
            && let Some(size) = gguf.uint(&key)?
            && size != count as u64
        {
            warnings.push(format!("'{key}' says {size} tokens, but {TOKENS_KEY} holds {count}: the array is used"));
        }
        let optional = UNUSED_IDS.iter().chain(FILL_IN_KEYS.as_flattened()).chain(&FILL_IN_ENDS);
        warnings.extend(optional.filter_map(|name| unusable_id(gguf, name, count)));
        let explicit_kinds = read_kinds(gguf, count)?;
        let has_kinds = explicit_kinds.is_some();
        let kinds = explicit_kinds.unwrap_or_else(|| vec![Kind::Normal; count]);
        let mut vocabulary = Vocabulary {
            model,
            pieces,
            bytes: Table::default(),
            kinds,
            bos: special_id(gguf, "bos", count)?,
            eos: special_id(gguf, "eos", count)?,
            unknown: special_id(gguf, "unknown", count)?,
            end_of_generation: Vec::new(),
            fill_in: None,
            warnings,
        };
        let mut turn_ends = vec![special_id(gguf, "eot", count)?, special_id(gguf, "eom", count)?];
        // What is wrong with these has been warned of.
        turn_ends.extend(FILL_IN_ENDS.map(|name| special_id(gguf, name, count).ok().flatten()));
        vocabulary.fill_in_special_ids();
        vocabulary.find_end_of_generation(&turn_ends);
        vocabulary.find_markers(gguf);
        if !has_kinds {
            vocabulary.guess_kinds(&turn_ends);
        }
        vocabulary.fill_in_bytes();
        Ok(vocabulary)
    }

    /// SentencePiece's own places of `<unk>`, `<s>` and `</s>`, for files that don't name them.
    fn fill_in_special_ids(&mut self) {
        if self.model == Model::Spm {
            let marker = |id: TokenId| self.kind(id).is_some_and(Kind::is_control).then_some(id);
            (self.unknown, self.bos, self.eos) =
                (self.unknown.or(marker(0)), self.bos.or(marker(1)), self.eos.or(marker(2)));
        }
    }

    fn find_end_of_generation(&mut self, turn_ends: &[Option<TokenId>]) {
        let texts: HashSet<&str> = END_OF_GENERATION_TEXTS.iter().copied().collect();
        let mut ends: Vec<TokenId> = turn_ends.iter().copied().chain([self.eos]).flatten().collect();
        for id in 0..self.len() as TokenId {
            if texts.contains(self.piece(id)) {
                ends.push(id);
                // Some converters store turn ends as ordinary text; a user must not be able to write one.
                self.kinds[id as usize] = Kind::Control;
            }
        }
        ends.sort_unstable();
        ends.dedup();
        self.end_of_generation = ends;
    }

    /// The tokens around a text to be filled in, by their keys or their texts; and all markers become control tokens.
    fn find_markers(&mut self, gguf: &Gguf) {
        let turns: HashSet<&str> = TURN_TEXTS.iter().copied().collect();
        let mut by_text = [[None; 8]; 3];
        for id in 0..self.len() as TokenId {
            let piece = piece_of(&self.pieces, id as usize);
            let mut is_marker = turns.contains(piece);
            for (texts, found) in FILL_IN_TEXTS.iter().zip(&mut by_text) {
                if let Some(column) = texts.iter().position(|text| *text == piece) {
                    found[column] = found[column].or(Some(id));
                    is_marker = true;
                }
            }
            if is_marker {
                self.kinds[id as usize] = Kind::Control;
            }
        }
        let count = self.len();
        let by_key = |names: [&str; 2]| names.into_iter().find_map(|name| special_id(gguf, name, count).ok().flatten());
        let keys = FILL_IN_KEYS.map(by_key);
        let column = (0..8).find(|&column| by_text.iter().all(|found| found[column].is_some()));
        let of_column = |row: usize| column.and_then(|column| by_text[row][column]);
        if let [Some(prefix), Some(suffix), Some(middle)] = [0, 1, 2].map(|row| keys[row].or(of_column(row))) {
            let ids = [prefix, suffix, middle];
            ids.iter().for_each(|&id| self.kinds[id as usize] = Kind::Control);
            self.fill_in = Some(ids);
        }
    }

    /// Without `token_type` only the ids that the file names are known as markers, and byte tokens by their text.
    fn guess_kinds(&mut self, turn_ends: &[Option<TokenId>]) {
        for id in turn_ends.iter().copied().chain([self.bos, self.eos]).flatten() {
            self.kinds[id as usize] = Kind::Control;
        }
        if let Some(unknown) = self.unknown {
            self.kinds[unknown as usize] = Kind::Unknown;
        }
        for id in 0..self.len() {
            if self.model == Model::Spm && byte_of_piece(piece_of(&self.pieces, id)).is_some() {
                self.kinds[id] = Kind::Byte;
            }
        }
    }

    fn fill_in_bytes(&mut self) {
        let mut bytes = Table::default();
        for (id, &kind) in self.kinds.iter().enumerate() {
            let piece = piece_of(&self.pieces, id);
            match (kind, self.model) {
                (Kind::Control | Kind::Unknown | Kind::Unused, _) => bytes.push(&[]),
                (Kind::UserDefined, _) => bytes.push(piece.as_bytes()),
                (Kind::Byte, _) => bytes.push(byte_of_piece(piece).as_slice()),
                (Kind::Normal, Model::Spm) => bytes.push(piece.replace('▁', " ").as_bytes()),
                (Kind::Normal, Model::Bpe) => {
                    let decoded: Option<Vec<u8>> = piece.chars().map(byte_of_char).collect();
                    bytes.push(decoded.as_deref().unwrap_or(piece.as_bytes()));
                }
            }
        }
        self.bytes = bytes;
    }

    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    pub fn kind(&self, id: TokenId) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// The entry as stored; empty for ids outside.
    pub fn piece(&self, id: TokenId) -> &str {
        piece_of(&self.pieces, id as usize)
    }

    /// What the token stands for in text.
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        self.bytes.get(id as usize)
    }

    /// Ids, kinds and texts in order.
    pub fn entries(&self) -> impl Iterator<Item = (TokenId, Kind, &str)> {
        self.kinds.iter().enumerate().map(|(id, &kind)| (id as TokenId, kind, piece_of(&self.pieces, id)))
    }
}

fn piece_of(pieces: &Table, id: usize) -> &str {
    std::str::from_utf8(pieces.get(id)).expect("only whole strings were put in")
}

/// `<0x0A>` -> one byte; nothing when the text is no such entry.
fn byte_of_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

fn read_kinds(gguf: &Gguf, count: usize) -> anyhow::Result<Option<Vec<Kind>>> {
    let Some(array) = gguf.array(TYPES_KEY)? else { return Ok(None) };
    if array.len != count {
        bail!(gguf.key_error(TYPES_KEY, format!("{} types for the {count} tokens of {TOKENS_KEY}", array.len)));
    }
    let mut kinds = Vec::with_capacity(count);
    for (id, value) in array.iter().enumerate() {
        let number = match value {
            Value::U8(n) => n.into(),
            Value::I8(n) => n.into(),
            Value::U16(n) => n.into(),
            Value::I16(n) => n.into(),
            Value::U32(n) => n.into(),
            Value::I32(n) => n.into(),
            Value::U64(n) => i64::try_from(n).unwrap_or(-1),
            Value::I64(n) => n,
            other => bail!(gguf.key_error(TYPES_KEY, format!("entry {id} is no integer but {other:?}"))),
        };
        match Kind::from_number(number) {
            Some(kind) => kinds.push(kind),
            // llama.cpp: 0 is "undefined" and behaves as a normal token.
            None if number == 0 => kinds.push(Kind::Normal),
            None => bail!(gguf.key_error(TYPES_KEY, format!("token {id} has type {number}; types are 0 to 6"))),
        }
    }
    Ok(Some(kinds))
}

fn special_id(gguf: &Gguf, name: &str, count: usize) -> anyhow::Result<Option<TokenId>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    match gguf.uint(&key)? {
        Some(id) if id >= count as u64 => {
            bail!(gguf.key_error(&key, format!("id {id} is outside the vocabulary of {count} tokens")))
        }
        id => Ok(id.map(|id| id as TokenId)),
    }
}

/// A sentence about an id that would be an error if it were used here.
fn unusable_id(gguf: &Gguf, name: &str, count: usize) -> Option<String> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    match gguf.uint(&key) {
        Ok(Some(id)) if id >= count as u64 => {
            Some(format!("'{key}' is {id}, outside the vocabulary of {count} tokens: it is not used"))
        }
        Err(_) => Some(format!("'{key}' is no token id: it is not used")),
        Ok(_) => None,
    }
}
