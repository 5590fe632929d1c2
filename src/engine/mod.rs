//! Sequences of token ids over a backend and its paged KV cache: prefill, decode, scores. No text, no device.

mod fault;
mod room;
mod session;

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Batch, BatchRow, Info, Input, Output, Profile, Want};
use crate::kv::layout::BLOCK_TOKENS;
use crate::kv::{KvCache, PageTable, Usage};
use crate::tokenizer::TokenId;

/// Tokens of a prompt that are computed first, before it is known how long that takes.
const FIRST_STEP: usize = 64;
/// A step of a prompt shall not take longer, so that a break is noticed soon.
const STEP_TIME: Duration = Duration::from_millis(500);

pub use crate::backend::Best;
pub use session::{About, Restored, Saving};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(u32);

#[derive(Clone, Debug)]
pub struct Options {
    /// Most tokens a sequence may hold.
    pub context_tokens: usize,
    /// Sequences that must be able to be full at once.
    pub sequences: usize,
    /// Most tokens kept for reuse after their sequences are gone.
    pub cache_tokens: usize,
    pub on_full: OnFull,
}

/// What happens when a sequence has filled its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// `Error::ContextFull`.
    Stop,
    /// Forget the oldest tokens after the first `keep` (rounded up to whole blocks) and go on.
    Evict { keep: usize },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tokens do not fit the context.
    #[error("{wanted} tokens do not fit the context of {context_tokens}")]
    ContextFull { wanted: usize, context_tokens: usize },
    /// The callback broke off; the sequence holds what was computed.
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// What a prefill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// Tokens that were in the cache already.
    pub cached_tokens: usize,
    pub computed_tokens: usize,
}

/// What was forgotten to make room; the user is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Whole pages of old tokens were dropped; the others keep their positions.
    Evicted { tokens: usize },
    /// Positions had come to the trained length: old tokens were dropped and the rest was computed again from 0.
    Recomputed { dropped: usize, kept: usize },
}

/// A sequence: its tokens, all of them computed, and the pages that hold their K and V.
#[derive(Default)]
struct Sequence {
    /// Every token since the start, the forgotten ones too.
    tokens: Vec<TokenId>,
    table: PageTable,
    /// Forgotten tokens, which follow the first `kept` ones.
    forgotten: usize,
    kept: usize,
    /// How far positions have run ahead of the tokens held.
    position_gap: usize,
}

impl Sequence {
    /// The tokens that are still in the pages.
    fn held(&self) -> impl Iterator<Item = TokenId> {
        let (head, tail) = match self.forgotten {
            0 => (&self.tokens[..], &[][..]),
            n => (&self.tokens[..self.kept], &self.tokens[self.kept + n..]),
        };
        head.iter().chain(tail).copied()
    }
}

pub struct Engine {
    backend: Box<dyn Backend>,
    options: Options,
    cache: KvCache,
    sequences: HashMap<SequenceId, Sequence>,
    next_id: u32,
    /// (vocab) f32 after the last prefill or decode
    logits: Vec<f32>,
    notices: Vec<Notice>,
}

impl Engine {
    pub fn new(mut backend: Box<dyn Backend>, options: &Options) -> anyhow::Result<Engine> {
        let cached = options.cache_tokens.div_ceil(BLOCK_TOKENS);
        // one more for each sequence: a full one that is cut back into a published block goes on in a copy of it
        let n_blocks = (options.context_tokens.div_ceil(BLOCK_TOKENS) + 1) * options.sequences + cached;
        backend.reserve(n_blocks, options.context_tokens)?;
        let cache = KvCache::new(n_blocks, cached, backend.info().identity);
        Ok(Engine {
            backend,
            options: options.clone(),
            cache,
            sequences: HashMap::new(),
            next_id: 0,
            logits: Vec::new(),
            notices: Vec::new(),
        })
    }

    pub fn info(&self) -> &Info {
        self.backend.info()
    }

    pub fn context_tokens(&self) -> usize {
        self.options.context_tokens
    }

    /// Tokens that a full sequence can forget to go on; `None`: it stops.
    pub fn evictable_tokens(&self) -> Option<usize> {
        let OnFull::Evict { keep } = self.options.on_full else { return None };
        let blocks = self.context_tokens() / BLOCK_TOKENS;
        Some(blocks.saturating_sub(keep.div_ceil(BLOCK_TOKENS)) * BLOCK_TOKENS)
    }

    /// Changes the rule for full contexts. What is kept must stay the same for a sequence that forgot tokens already.
    pub fn set_on_full(&mut self, on_full: OnFull) {
        self.options.on_full = on_full;
    }

    pub fn vocab(&self) -> usize {
        self.info().vocab
    }

    /// Whether steps are timed stage by stage from now on; off at first.
    pub fn set_profiling(&mut self, on: bool) {
        self.backend.set_profiling(on);
    }

    /// What the steps since the last call have added up, if they were timed.
    pub fn take_profile(&mut self) -> Option<Profile> {
        self.backend.take_profile()
    }

    /// Bytes a second that the GPU copies, if one computes.
    pub fn measure_bandwidth(&self) -> anyhow::Result<Option<f64>> {
        self.backend.measure_bandwidth()
    }

    /// The pool, block by block kind.
    pub fn usage(&self) -> Usage {
        self.cache.usage()
    }

    /// The owners of each page of a sequence, in token order.
    pub fn page_owners(&self, id: SequenceId) -> Vec<u32> {
        self.sequences[&id].table.pages().iter().map(|&block| self.cache.owners(block)).collect()
    }

    /// What was forgotten since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub fn new_sequence(&mut self) -> SequenceId {
        self.insert(Sequence::default())
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// A sequence that holds the same tokens and shares their pages; the last partial page is copied when one of the
    /// two goes on.
    pub fn fork(&mut self, id: SequenceId) -> SequenceId {
        let origin = &self.sequences[&id];
        let table = self.cache.fork(&origin.table);
        let fork = Sequence { tokens: origin.tokens.clone(), table, ..*origin };
        self.insert(fork)
    }

    pub fn free_sequence(&mut self, id: SequenceId) {
        self.truncate(id, 0);
        self.sequences.remove(&id);
    }

    /// Every token of a sequence since its start, forgotten ones included.
    pub fn tokens(&self, id: SequenceId) -> &[TokenId] {
        &self.sequences[&id].tokens
    }

    /// Tokens of a sequence that are in its pages.
    pub fn held_tokens(&self, id: SequenceId) -> usize {
        self.sequences[&id].table.tokens()
    }

    fn sequence(&mut self, id: SequenceId) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("a sequence of this engine")
    }

    /// Forgets all but the first `len` tokens. Where tokens before them were evicted, only what was kept from the start
    /// can stay.
    pub fn truncate(&mut self, id: SequenceId, len: usize) {
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
        let len = len.min(sequence.tokens.len());
        let reaches_gap = len < sequence.kept + sequence.forgotten;
        let (len, held) = match sequence.forgotten {
            0 => (len, len),
            _ if reaches_gap => (len.min(sequence.kept), len.min(sequence.kept)),
            forgotten => (len, len - forgotten),
        };
        if reaches_gap {
            (sequence.forgotten, sequence.position_gap) = (0, 0);
        }
        sequence.tokens.truncate(len);
        let freed = self.cache.truncate(&mut sequence.table, held);
        self.backend.release_blocks(&freed);
    }

    /// Makes the sequence hold `prompt` (not empty), computing only what neither it nor a published prefix holds; the
    /// logits of the last token are then in `logits()`. `on_progress(done, total)` counts the tokens to compute.
    pub fn prefill(
        &mut self,
        id: SequenceId,
        prompt: &[TokenId],
        on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Prefilled, Error> {
        assert!(!prompt.is_empty(), "a prompt has a token");
        let cached_tokens = self.reuse(id, prompt)?;
        let (mut done, total) = (cached_tokens, prompt.len() - cached_tokens);
        let most = self.prefill_step();
        let mut step = most.min(FIRST_STEP);
        // What is evicted depends on the steps: there they must not depend on the time that they take.
        let adapts = prompt.len() <= self.context_tokens();
        while done < prompt.len() {
            let start = Instant::now();
            let chunk = &prompt[done..prompt.len().min(done + step)];
            let is_last = done + chunk.len() == prompt.len();
            let wanted = if is_last { chunk.len() - 1..chunk.len() } else { 0..0 };
            self.append_keeping_logits(id, chunk, wanted)?;
            done += chunk.len();
            if on_progress(done - cached_tokens, total).is_break() {
                return Err(Error::Interrupted);
            }
            step = match start.elapsed() {
                short if adapts && short < STEP_TIME / 2 => most.min(2 * step),
                long if adapts && long > STEP_TIME => step.div_ceil(2),
                _ => step,
            };
        }
        Ok(Prefilled { cached_tokens, computed_tokens: total })
    }

    /// Tokens of a prompt computed at once: a batch, and where old tokens make room no more than half of what they fill.
    fn prefill_step(&self) -> usize {
        let batch = self.info().batch_tokens;
        match self.options.on_full {
            OnFull::Stop => batch,
            OnFull::Evict { keep } => {
                let movable = self.context_tokens().saturating_sub(keep.next_multiple_of(BLOCK_TOKENS));
                batch.min(movable / 2).max(1)
            }
        }
    }

    /// Brings the sequence to the longest start of `prompt` that need not be computed, and returns its length. Its own
    /// tokens are reused to the exact one, published blocks of others as a whole, the last prompt token never.
    fn reuse(&mut self, id: SequenceId, prompt: &[TokenId]) -> Result<usize, Error> {
        let held = self.tokens(id);
        let common = held.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let goes_on = common == held.len();
        let fits = prompt.len() <= self.context_tokens();
        let may_evict = goes_on && self.options.on_full != OnFull::Stop;
        if !fits && !may_evict {
            return Err(Error::ContextFull { wanted: prompt.len(), context_tokens: self.context_tokens() });
        }
        // what fits whole is computed whole, rather than behind a gap
        let keep = if fits && self.sequences[&id].forgotten > 0 { 0 } else { common };
        self.truncate(id, keep);
        let keep = self.tokens(id).len();

        let found = self.cache.find(prompt, prompt.len() - 1);
        if found.tokens() <= keep {
            self.drop_table(found);
            return Ok(keep);
        }
        self.truncate(id, 0);
        let found_tokens = found.tokens();
        let sequence = self.sequence(id);
        *sequence = Sequence { tokens: prompt[..found_tokens].to_vec(), table: found, ..Sequence::default() };
        Ok(found_tokens)
    }

    fn drop_table(&mut self, mut table: PageTable) {
        let freed = self.cache.truncate(&mut table, 0);
        self.backend.release_blocks(&freed);
    }

    /// Appends one token and computes the logits after it.
    pub fn decode(&mut self, id: SequenceId, token: TokenId) -> Result<&[f32], Error> {
        self.append_keeping_logits(id, &[token], 0..1)?;
        Ok(&self.logits)
    }

    /// The same where only the likeliest next token is wanted: `logits()` stays as it was.
    pub fn decode_best(&mut self, id: SequenceId, token: TokenId) -> Result<Best, Error> {
        self.make_room(id, 1)?;
        Ok(self.compute(&[(id, &[token])], vec![0], Want::Best)?.best()[0])
    }

    /// Logits (vocab) after the last prefill or decode.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Appends `tokens` and gives the logits after each of them, in order: `on_logits(index, logits)`.
    pub fn score(
        &mut self,
        id: SequenceId,
        tokens: &[TokenId],
        on_logits: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let (vocab, step) = (self.vocab(), self.info().batch_logits);
        for (i, chunk) in tokens.chunks(step).enumerate() {
            let logits = self.append(id, chunk, 0..chunk.len())?;
            for (j, logits) in logits.chunks(vocab).enumerate() {
                if on_logits(i * step + j, logits).is_break() {
                    return Err(Error::Interrupted);
                }
            }
        }
        Ok(())
    }

    /// `append`, its last logits copied to where the next step does not overwrite them.
    fn append_keeping_logits(&mut self, id: SequenceId, tokens: &[TokenId], wanted: Range<usize>) -> Result<(), Error> {
        let mut kept = std::mem::take(&mut self.logits);
        let appended = self.append(id, tokens, wanted).map(|logits| {
            kept.clear();
            kept.extend_from_slice(logits);
        });
        self.logits = kept;
        appended
    }

    /// One batch: computes `tokens` at the end of a sequence and returns the logits (n_wanted, vocab) of `wanted`.
    fn append(&mut self, id: SequenceId, tokens: &[TokenId], wanted: Range<usize>) -> Result<&[f32], Error> {
        self.make_room(id, tokens.len())?;
        Ok(self.compute(&[(id, tokens)], wanted.collect(), Want::Logits)?.logits())
    }

    /// Appends one token to each of some sequences, all different, in one batch: logits (n, vocab) in their order. What a
    /// sequence gets does not depend on the others. At most `Info::batch_logits` of them.
    pub fn decode_together(&mut self, next: &[(SequenceId, TokenId)]) -> Result<&[f32], Error> {
        for &(id, _) in next {
            self.make_room(id, 1)?;
        }
        let rows: Vec<_> = next.iter().map(|(id, token)| (*id, std::slice::from_ref(token))).collect();
        Ok(self.compute(&rows, (0..next.len()).collect(), Want::Logits)?.logits())
    }

    /// Computes tokens at the ends of sequences, for which there is room; `wanted` counts through all of them.
    fn compute(
        &mut self,
        rows: &[(SequenceId, &[TokenId])],
        wanted: Vec<usize>,
        want: Want,
    ) -> Result<Output<'_>, Error> {
        let mut batch = Batch { wanted, ..Batch::default() };
        let mut result = Ok(());
        for &(id, tokens) in rows {
            let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
            let cached_tokens = sequence.table.tokens();
            let moved = match self.cache.append(&mut sequence.table, tokens.len()) {
                Ok(moves) => {
                    let copied = moves.copy.map_or(Ok(()), |(from, to)| self.backend.copy_block(from, to));
                    self.backend.release_blocks(&moves.freed);
                    copied
                }
                Err(error) => Err(error.into()),
            };
            if moved.is_err() {
                result = moved;
                break;
            }
            let at = batch.tokens.len();
            batch.tokens.extend_from_slice(tokens);
            batch.rows.push(BatchRow {
                tokens: at..batch.tokens.len(),
                cached_tokens,
                first_position: cached_tokens + sequence.position_gap,
                pages: sequence.table.pages().to_vec(),
            });
        }
        let result = result.and_then(|()| self.backend.run(&batch, Input::Tokens, want));
        let rows = rows.iter().zip(&batch.rows);
        for (&(id, tokens), row) in rows {
            let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
            if result.is_err() {
                // the pages go back to the pool; their memory is given back when they are used and freed again
                self.cache.truncate(&mut sequence.table, row.cached_tokens);
                continue;
            }
            sequence.tokens.extend_from_slice(tokens);
            if sequence.forgotten == 0 {
                self.cache.publish(&mut sequence.table, &sequence.tokens);
            } else if sequence.table.is_whole() {
                let held: Vec<TokenId> = sequence.held().collect();
                self.cache.publish(&mut sequence.table, &held);
            }
        }
        Ok(result?)
    }
}

#[cfg(test)]
mod tests;
