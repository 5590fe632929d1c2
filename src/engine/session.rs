//! Sequences to files and back: `kv::session` is the format, the blocks are the backend's.
//!
//! What a block holds depends on nothing but the tokens and the identity in the file, so a restored sequence goes on bit
//! for bit as the one that was saved.

use std::path::Path;

use anyhow::{Result, bail};

use super::{BLOCK_TOKENS, Engine, PageTable, Sequence, SequenceId};
use crate::kv::session::{self, Blocks, Head, Saved};

/// What a session file says about itself beside its tokens.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Of the tokenizer.
    pub vocabulary: u64,
    /// The model's file name and the KV types, for people.
    pub model: String,
    pub kv_types: String,
    /// Given back as it is.
    pub notes: Vec<u8>,
}

/// What a saved session holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    pub tokens: usize,
    /// 0 if some tokens were evicted: what is left of the pages is computed again when the session is restored.
    pub blocks: usize,
}

/// What became of a session.
#[derive(Debug)]
pub struct Restored {
    /// Tokens that the sequence holds now and need not be computed.
    pub held_tokens: usize,
    /// Why there are fewer than in the file.
    pub doubt: Option<String>,
}

impl Engine {
    /// Saves a sequence; an older session at `path` stays until the new one is complete.
    pub fn save(&self, id: SequenceId, path: &Path, about: &About) -> Result<Saving> {
        let sequence = &self.sequences[&id];
        let is_whole = sequence.forgotten == 0 && sequence.table.is_whole();
        let pages = if is_whole { sequence.table.pages() } else { &[] };
        let About { vocabulary, model, kv_types, notes } = about.clone();
        let (identity, tokens) = (self.info().identity, sequence.tokens.clone());
        let head = Head { identity, vocabulary, model, kv_types, tokens, notes };
        let blocks = Blocks {
            count: pages.len(),
            bytes: self.info().block_bytes as usize,
            read: &mut |page, contents| self.backend.read_block(pages[page], contents),
        };
        session::save(path, &head, blocks)?;
        Ok(Saving { tokens: head.tokens.len(), blocks: pages.len() })
    }

    /// Makes a sequence hold the tokens of a saved one, as many as are sound, of this model and fit the context. An error
    /// leaves it as it was.
    pub fn restore(&mut self, id: SequenceId, saved: &mut Saved) -> Result<Restored> {
        let vocab = self.vocab();
        let alien = saved.head.tokens.iter().find(|&&token| token as usize >= vocab);
        if let Some(token) = alien {
            bail!("{}: the session holds token {token}, but the model has only {vocab}", saved.path().display());
        }
        self.truncate(id, 0);
        let (table, doubt) = self.restored_table(saved);
        let tokens = saved.head.tokens[..table.tokens()].to_vec();
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
        *sequence = Sequence { tokens, table, ..Sequence::default() };
        self.cache.publish(&mut sequence.table, &sequence.tokens);
        Ok(Restored { held_tokens: sequence.tokens.len(), doubt })
    }

    /// The pages of the sound blocks of a file, and why they are not all.
    fn restored_table(&mut self, saved: &mut Saved) -> (PageTable, Option<String>) {
        let mut table = PageTable::default();
        let Head { identity, model, kv_types, tokens, .. } = &saved.head;
        let info = self.backend.info();
        if *identity != info.identity || saved.n_blocks() > 0 && saved.block_bytes() as u64 != info.block_bytes {
            let doubt =
                format!("it was saved by {model} with KV in {kv_types}, which is another model or other settings");
            return (table, Some(doubt));
        }
        if saved.n_blocks() == 0 {
            let doubt =
                (!tokens.is_empty()).then(|| "it holds no blocks, as old tokens had been forgotten".to_string());
            return (table, doubt);
        }
        let wanted = tokens.len().min(self.options.context_tokens);
        match self.cache.append(&mut table, wanted) {
            Ok(moves) => self.backend.release_blocks(&moves.freed),
            Err(out) => return (table, Some(out.to_string())),
        }
        let mut doubt = None;
        let mut sound = 0;
        while sound < wanted && doubt.is_none() {
            match saved.next_block() {
                Ok(contents) => match self.backend.write_block(table.pages()[sound / BLOCK_TOKENS], contents) {
                    Ok(()) => sound = wanted.min(sound + BLOCK_TOKENS),
                    Err(error) => doubt = Some(format!("{error:#}")),
                },
                Err(error) => doubt = Some(format!("{error:#}")),
            }
        }
        let freed = self.cache.truncate(&mut table, sound);
        self.backend.release_blocks(&freed);
        (table, doubt)
    }
}
