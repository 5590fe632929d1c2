//! Text <-> token ids, from GGUF metadata alone. BPE merges are the `tokenizers` crate's; llama.cpp is the reference
//! wherever implementations differ.

mod bpe;
mod pre_tokenizers;
mod special;
mod spm;
pub mod text;
mod vocabulary;

use crate::gguf::Gguf;
use special::{Specials, Unshielded};
use text::TextStream;
use vocabulary::{Kind, Model, Vocabulary};

pub type TokenId = u32;

/// Whether the texts of control tokens inside a string become those tokens or stay text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// What a user typed: `<|im_end|>` is ten characters.
    AsText,
    /// What a template wrote: `<|im_end|>` is one token.
    Parse,
}

pub struct Tokenizer {
    vocabulary: Vocabulary,
    specials: Specials,
    encoder: Encoder,
    add_bos: bool,
    add_eos: bool,
}

enum Encoder {
    Spm(Box<spm::Spm>),
    Bpe(Box<bpe::Bpe>),
}

impl Tokenizer {
    pub fn from_gguf(gguf: &Gguf) -> anyhow::Result<Tokenizer> {
        let mut vocabulary = Vocabulary::from_gguf(gguf)?;
        let encoder = match vocabulary.model {
            Model::Spm => Encoder::Spm(Box::new(spm::Spm::from_gguf(gguf, &mut vocabulary)?)),
            Model::Bpe => Encoder::Bpe(Box::new(bpe::Bpe::from_gguf(gguf, &mut vocabulary)?)),
        };
        let default_bos = match &encoder {
            Encoder::Spm(_) => true,
            Encoder::Bpe(bpe) => bpe.add_bos(),
        };
        let add_bos = gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(default_bos);
        let add_eos = gguf.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let specials = Specials::new(&vocabulary);
        Ok(Tokenizer { vocabulary, specials, encoder, add_bos, add_eos })
    }

    /// Sentences the user should see (for example a missing `tokenizer.ggml.pre`).
    pub fn warnings(&self) -> &[String] {
        &self.vocabulary.warnings
    }

    pub fn vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// So many tokens a text of these bytes has at least: what can never fit need not be encoded, which takes time and
    /// many times the memory of the text.
    pub fn fewest_tokens(&self, bytes: usize) -> usize {
        let longest = (0..self.vocab() as TokenId).map(|id| self.bytes(id).len()).max().unwrap_or(0);
        bytes / longest.max(1)
    }

    /// Ids of `text`, without BOS or EOS. With `Parse`, what `shield` has marked stays text.
    pub fn encode(&self, text: &str, special: Special) -> anyhow::Result<Vec<TokenId>> {
        let unshielded;
        let (text, control_breaks) = match special {
            Special::AsText => (text, None),
            Special::Parse => {
                unshielded = Unshielded::new(text);
                (unshielded.text.as_str(), Some(unshielded.breaks()))
            }
        };
        let mut ids = Vec::new();
        let mut position = 0;
        let mut after_special = true;
        loop {
            let special = self.specials.find(text, position, control_breaks);
            let plain = &text[position..special.map_or(text.len(), |(start, _, _)| start)];
            if !plain.is_empty() {
                match &self.encoder {
                    Encoder::Spm(spm) => spm.encode(plain, after_special, &mut ids),
                    Encoder::Bpe(bpe) => bpe.encode(plain, &mut ids)?,
                }
            }
            let Some((_, end, id)) = special else { return Ok(ids) };
            ids.push(id);
            position = end;
            after_special = true;
        }
    }

    /// `encode`, with the BOS and EOS that the model asks for; never a second BOS.
    pub fn encode_with_bos(&self, text: &str, special: Special) -> anyhow::Result<Vec<TokenId>> {
        let mut ids = self.encode(text, special)?;
        self.begin_with_bos(&mut ids);
        if let Some(eos) = self.eos().filter(|_| self.add_eos)
            && ids.last() != Some(&eos)
        {
            ids.push(eos);
        }
        Ok(ids)
    }

    /// The prompt for what stands between two texts, as a person would read it and in ids: BOS where the model wants one,
    /// then each text behind its marker, and the marker of the middle last. Control tokens in the texts stay text. `None`:
    /// the vocabulary has no such markers.
    pub fn encode_gap(&self, before: &str, after: &str) -> anyhow::Result<Option<(String, Vec<TokenId>)>> {
        let Some(markers @ [prefix, suffix, middle]) = self.vocabulary.fill_in else { return Ok(None) };
        let bos = self.bos().filter(|_| self.add_bos);
        let mut ids: Vec<TokenId> = bos.into_iter().chain([prefix]).collect();
        ids.extend(self.encode(before, Special::AsText)?);
        ids.push(suffix);
        ids.extend(self.encode(after, Special::AsText)?);
        ids.push(middle);
        let [prefix, suffix, middle] = markers.map(|id| self.piece(id));
        Ok(Some((format!("{prefix}{before}{suffix}{after}{middle}"), ids)))
    }

    /// Gives `ids` the BOS that the model asks for: none if the first id that is not white space is BOS already, and of
    /// several in a row there only one stays.
    pub fn begin_with_bos(&self, ids: &mut Vec<TokenId>) {
        let Some(bos) = self.bos().filter(|_| self.add_bos) else { return };
        let is_blank = |id: &TokenId| {
            let bytes = self.bytes(*id);
            !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace)
        };
        let start = ids.iter().take_while(|id| is_blank(id)).count();
        match ids[start..].iter().take_while(|id| **id == bos).count() {
            0 => ids.insert(0, bos),
            count => drop(ids.drain(start + 1..start + count)),
        }
    }

    /// `text` with every control token's text broken by a mark that `encode(.., Parse)` takes out again, so that user
    /// text survives a template without becoming control tokens.
    pub fn shield(&self, text: &str) -> String {
        self.specials.shield(text)
    }

    /// `text` without the marks of `shield`: what a person should see.
    pub fn unshield(&self, text: &str) -> String {
        Unshielded::new(text).text
    }

    pub fn bos(&self) -> Option<TokenId> {
        self.vocabulary.bos
    }

    pub fn eos(&self) -> Option<TokenId> {
        self.vocabulary.eos
    }

    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    pub fn is_end_of_generation(&self, id: TokenId) -> bool {
        self.vocabulary.end_of_generation.binary_search(&id).is_ok()
    }

    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.vocabulary.end_of_generation
    }

    pub fn is_control(&self, id: TokenId) -> bool {
        self.vocabulary.kind(id).is_some_and(Kind::is_control)
    }

    /// The token that only a template may write and whose text is `text`.
    pub fn control_token(&self, text: &str) -> Option<TokenId> {
        let mut entries = self.vocabulary.entries();
        entries.find(|&(_, kind, piece)| kind == Kind::Control && piece == text).map(|(id, ..)| id)
    }

    /// The vocabulary entry as stored, e.g. `Ġthe`, `▁the`, `<0x0A>`; empty for ids outside the vocabulary.
    pub fn piece(&self, id: TokenId) -> &str {
        self.vocabulary.piece(id)
    }

    /// The bytes a token stands for in text; empty for control tokens and ids outside the vocabulary.
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// Text of `ids`: control tokens leave nothing, invalid UTF-8 becomes U+FFFD. The space that SentencePiece puts
    /// before a text is taken off again; text that continues another is not decoded here but through `TextStream`.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let mut stream = TextStream::default();
        let mut text = String::new();
        let mut prefixed = matches!(&self.encoder, Encoder::Spm(spm) if spm.add_space_prefix());
        for &id in ids.iter().filter(|&&id| !self.is_control(id)) {
            let bytes = self.bytes(id);
            let bytes = bytes.strip_prefix(b" ").filter(|_| prefixed).unwrap_or(bytes);
            text.push_str(&stream.push(bytes));
            prefixed = false;
        }
        text.push_str(&stream.finish());
        text
    }
}

#[cfg(test)]
mod tests;
