//! Sequences of token ids over a backend and its paged KV cache: prefill, decode, scores. No text, no device.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use crate::backend::{Backend, Batch, BatchRow, Info};
use crate::kv::layout::BLOCK_TOKENS;
use crate::kv::{KvCache, PageTable, Usage};
use crate::tokenizer::TokenId;

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
        let n_blocks = options.context_tokens.div_ceil(BLOCK_TOKENS) * options.sequences + cached;
        backend.reserve(n_blocks)?;
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

    pub fn vocab(&self) -> usize {
        self.info().vocab
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
        while done < prompt.len() {
            let chunk = &prompt[done..prompt.len().min(done + self.info().batch_tokens)];
            let is_last = done + chunk.len() == prompt.len();
            let wanted = if is_last { chunk.len() - 1..chunk.len() } else { 0..0 };
            self.append_keeping_logits(id, chunk, wanted)?;
            done += chunk.len();
            if on_progress(done - cached_tokens, total).is_break() {
                return Err(Error::Interrupted);
            }
        }
        Ok(Prefilled { cached_tokens, computed_tokens: total })
    }

    /// Brings the sequence to the longest start of `prompt` that need not be computed, and returns its length. Its own
    /// tokens are reused to the exact one, published blocks of others as a whole, the last prompt token never.
    fn reuse(&mut self, id: SequenceId, prompt: &[TokenId]) -> Result<usize, Error> {
        let held = self.tokens(id);
        let common = held.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let goes_on = common == held.len();
        let fits = prompt.len() <= self.context_tokens();
        if !fits && !(goes_on && self.options.on_full != OnFull::Stop) {
            return Err(Error::ContextFull { wanted: prompt.len(), context_tokens: self.context_tokens() });
        }
        // what fits whole is computed whole, rather than behind a gap
        let keep = if fits && !self.sequence(id).table.is_whole() { 0 } else { common };
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
        let logits = self.append(id, tokens, wanted)?;
        kept.clear();
        kept.extend_from_slice(logits);
        self.logits = kept;
        Ok(())
    }

    /// One batch: computes `tokens` at the end of a sequence and returns the logits (n_wanted, vocab) of `wanted`.
    fn append(&mut self, id: SequenceId, tokens: &[TokenId], wanted: Range<usize>) -> Result<&[f32], Error> {
        self.make_room(id, tokens.len())?;
        self.compute(id, tokens, wanted)
    }

    fn compute(&mut self, id: SequenceId, tokens: &[TokenId], wanted: Range<usize>) -> Result<&[f32], Error> {
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
        let cached_tokens = sequence.table.tokens();
        let copies = self.cache.append(&mut sequence.table, tokens.len()).map_err(anyhow::Error::from)?;
        self.backend.copy_blocks(&copies);
        let row = BatchRow {
            tokens: 0..tokens.len(),
            cached_tokens,
            first_position: cached_tokens + sequence.position_gap,
            pages: sequence.table.pages().to_vec(),
        };
        let batch = Batch { tokens: tokens.to_vec(), rows: vec![row], wanted: wanted.collect() };
        match self.backend.forward(&batch) {
            Ok(logits) => {
                sequence.tokens.extend_from_slice(tokens);
                if sequence.table.is_whole() {
                    self.cache.publish(&mut sequence.table, &sequence.tokens);
                }
                Ok(logits)
            }
            Err(error) => {
                self.cache.truncate(&mut sequence.table, cached_tokens);
                Err(error.into())
            }
        }
    }

    /// Room for `n` more tokens, by the rule for full contexts.
    fn make_room(&mut self, id: SequenceId, n: usize) -> Result<(), Error> {
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
            self.compute(id, chunk, 0..0)?;
        }
        let sequence = self.sequence(id);
        (sequence.tokens, sequence.kept, sequence.forgotten) = (tokens, kept, forgotten);
        self.notices.push(Notice::Recomputed { dropped, kept: held.len() });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits that name what was computed: the highest one is the last token plus one; counts the tokens it was given.
    pub struct FakeBackend {
        info: Info,
        logits: Vec<f32>,
        computed: usize,
    }

    impl FakeBackend {
        fn boxed(vocab: usize, batch_tokens: usize) -> Box<FakeBackend> {
            let info = Info {
                device: "fake".into(),
                threads: 1,
                vocab,
                trained_tokens: 64,
                weight_bytes_per_token: 0,
                kv_bytes_per_token: 0,
                block_stride_bytes: 0,
                batch_tokens,
                batch_logits: batch_tokens,
            };
            Box::new(FakeBackend { info, logits: vec![], computed: 0 })
        }
    }

    impl Backend for FakeBackend {
        fn info(&self) -> &Info {
            &self.info
        }
        fn reserve(&mut self, _: usize) -> anyhow::Result<()> {
            Ok(())
        }
        fn forward(&mut self, batch: &Batch) -> anyhow::Result<&[f32]> {
            self.computed += batch.tokens.len();
            self.logits.clear();
            for &i in &batch.wanted {
                let best = (batch.tokens[i] as usize + 1) % self.info.vocab;
                self.logits.extend((0..self.info.vocab).map(|id| if id == best { 1.0 } else { 0.0 }));
            }
            Ok(&self.logits)
        }
        fn release_blocks(&mut self, _: &[crate::kv::layout::BlockId]) {}
    }

    fn engine(context_tokens: usize) -> Engine {
        Engine::new(FakeBackend::boxed(100, 4), &Options { context_tokens, sequences: 1 }).unwrap()
    }

    fn best(logits: &[f32]) -> usize {
        logits.iter().position(|&l| l == 1.0).unwrap()
    }

    #[test]
    fn a_second_prompt_computes_only_what_differs() {
        let mut engine = engine(64);
        let id = engine.new_sequence();
        let mut seen = vec![];
        let go_on = &mut |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        };
        let first = engine.prefill(id, &[1, 2, 3, 4, 5, 6], go_on).unwrap();
        assert_eq!((first, best(engine.logits())), (Prefilled { cached_tokens: 0, computed_tokens: 6 }, 7));
        let second = engine.prefill(id, &[1, 2, 3, 9], go_on).unwrap();
        assert_eq!((second.cached_tokens, second.computed_tokens, best(engine.logits())), (3, 1, 10));
        let same = engine.prefill(id, &[1, 2, 3, 9], go_on).unwrap();
        assert_eq!((same.cached_tokens, same.computed_tokens), (3, 1), "the last token is never taken from the cache");
        assert_eq!(seen, [(4, 6), (6, 6), (1, 1), (1, 1)]);
        assert_eq!(best(engine.decode(id, 41).unwrap()), 42);
        assert_eq!(engine.tokens(id), [1, 2, 3, 9, 41]);
    }

    #[test]
    fn a_full_context_is_an_error_with_both_numbers_and_changes_nothing() {
        let mut engine = engine(5);
        let id = engine.new_sequence();
        let error = engine.prefill(id, &[0; 6], &mut |_, _| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.to_string(), "6 tokens do not fit the context of 5");
        engine.prefill(id, &[7; 5], &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(matches!(engine.decode(id, 1), Err(Error::ContextFull { wanted: 6, context_tokens: 5 })));
        assert_eq!(engine.tokens(id), [7; 5]);
    }

    #[test]
    fn breaking_off_keeps_what_was_computed_and_blocks_come_back() {
        let mut engine = engine(64);
        let id = engine.new_sequence();
        let stop = engine.prefill(id, &[3; 40], &mut |_, _| ControlFlow::Break(()));
        assert!(matches!(stop, Err(Error::Interrupted)));
        assert_eq!((engine.tokens(id).len(), engine.live_blocks()), (4, 1));
        engine.free_sequence(id);
        assert_eq!(engine.live_blocks(), 0);
    }

    #[test]
    fn scores_come_for_every_token_in_order() {
        let mut engine = engine(64);
        let id = engine.new_sequence();
        let mut seen = vec![];
        let tokens: Vec<TokenId> = (10..21).collect();
        engine
            .score(id, &tokens, &mut |i, logits| {
                seen.push((i, best(logits)));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, (0..11).map(|i| (i, i + 11)).collect::<Vec<_>>());
    }
}
