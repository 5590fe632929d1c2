//! What happens in a full context: an end, or old tokens are forgotten.

use super::{Engine, Error, Notice, OnFull, SequenceId};
use crate::backend::Want;
use crate::kv::layout::BLOCK_TOKENS;
use crate::tokenizer::TokenId;

impl Engine {
    /// Room for `n` more tokens, by the rule for full contexts.
    pub(super) fn make_room(&mut self, id: SequenceId, n: usize) -> Result<(), Error> {
        let (context_tokens, trained) = (self.context_tokens(), self.info().trained_tokens.max(self.context_tokens()));
        let sequence = &self.sequences[&id];
        let held = sequence.table.tokens();
        let full = Error::ContextFull { wanted: held + n, context_tokens };
        let OnFull::Evict { keep } = self.options.on_full else {
            return if held + n > context_tokens { Err(full) } else { Ok(()) };
        };
        let first = keep.div_ceil(BLOCK_TOKENS);
        if held + sequence.position_gap + n > trained && held > first * BLOCK_TOKENS {
            self.recompute(id, first * BLOCK_TOKENS)?;
        }
        let held = self.sequences[&id].table.tokens();
        let excess = (held + n).saturating_sub(context_tokens).div_ceil(BLOCK_TOKENS);
        if excess > 0 {
            if first + excess > held / BLOCK_TOKENS {
                return Err(full);
            }
            self.evict(id, first, excess);
        }
        Ok(())
    }

    /// Forgets `n` whole pages after the first `first` ones.
    fn evict(&mut self, id: SequenceId, first: usize, n: usize) {
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
        let freed = self.cache.evict(&mut sequence.table, first, first + n);
        self.backend.release_blocks(&freed);
        sequence.kept = first * BLOCK_TOKENS;
        sequence.forgotten += n * BLOCK_TOKENS;
        sequence.position_gap += n * BLOCK_TOKENS;
        self.notices.push(Notice::Evicted { tokens: n * BLOCK_TOKENS });
    }

    /// Drops the older half of what follows the first `kept` tokens and computes the rest again from position 0.
    fn recompute(&mut self, id: SequenceId, kept: usize) -> Result<(), Error> {
        let sequence = &self.sequences[&id];
        let mut held: Vec<TokenId> = sequence.held().collect();
        let dropped = (held.len() - kept) / 2;
        held.drain(kept..kept + dropped);
        let (tokens, forgotten) = (sequence.tokens.clone(), sequence.forgotten + dropped);
        self.truncate(id, 0);
        for chunk in held.chunks(self.info().batch_tokens) {
            self.compute(&[(id, chunk)], Vec::new(), Want::Logits)?;
        }
        let sequence = self.sequence(id);
        (sequence.tokens, sequence.kept, sequence.forgotten) = (tokens, kept, forgotten);
        self.notices.push(Notice::Recomputed { dropped, kept: held.len() });
        Ok(())
    }
}
