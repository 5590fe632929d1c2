//! Sequences of token ids over a backend and its paged KV cache: prefill, decode, scores. No text, no device.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use crate::backend::{Backend, Batch, BatchRow, Info};
use crate::kv::PageTable;
use crate::kv::layout::BLOCK_TOKENS;
use crate::kv::pool::BlockPool;
use crate::tokenizer::TokenId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(u32);

#[derive(Clone, Debug)]
pub struct Options {
    /// Most tokens a sequence may hold.
    pub context_tokens: usize,
    /// Sequences that must be able to be full at once.
    pub sequences: usize,
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

/// A sequence: its tokens, all of them computed, and the pages that hold their K and V.
#[derive(Default)]
struct Sequence {
    tokens: Vec<TokenId>,
    table: PageTable,
}

pub struct Engine {
    backend: Box<dyn Backend>,
    context_tokens: usize,
    pool: BlockPool,
    sequences: HashMap<SequenceId, Sequence>,
    next_id: u32,
    /// (vocab) f32 after the last prefill or decode
    logits: Vec<f32>,
}

impl Engine {
    pub fn new(mut backend: Box<dyn Backend>, options: &Options) -> anyhow::Result<Engine> {
        let n_blocks = options.context_tokens.div_ceil(BLOCK_TOKENS) * options.sequences;
        backend.reserve(n_blocks)?;
        Ok(Engine {
            backend,
            context_tokens: options.context_tokens,
            pool: BlockPool::new(n_blocks),
            sequences: HashMap::new(),
            next_id: 0,
            logits: Vec::new(),
        })
    }

    pub fn info(&self) -> &Info {
        self.backend.info()
    }

    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    pub fn vocab(&self) -> usize {
        self.info().vocab
    }

    /// KV blocks owned by sequences.
    pub fn live_blocks(&self) -> usize {
        self.pool.live()
    }

    pub fn new_sequence(&mut self) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, Sequence::default());
        id
    }

    pub fn free_sequence(&mut self, id: SequenceId) {
        self.truncate(id, 0);
        self.sequences.remove(&id);
    }

    /// The tokens a sequence holds.
    pub fn tokens(&self, id: SequenceId) -> &[TokenId] {
        &self.sequences[&id].tokens
    }

    /// Forgets all but the first `len` tokens and gives their memory back.
    pub fn truncate(&mut self, id: SequenceId, len: usize) {
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
        sequence.tokens.truncate(len);
        let freed = sequence.table.truncate(len, &mut self.pool);
        self.backend.release_blocks(&freed);
    }

    /// Makes the sequence hold exactly `prompt` (not empty), computing only what differs from what it holds; the logits
    /// of the last token are then in `logits()`. `on_progress(done, total)` counts the tokens to compute.
    pub fn prefill(
        &mut self,
        id: SequenceId,
        prompt: &[TokenId],
        on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Prefilled, Error> {
        assert!(!prompt.is_empty(), "a prompt has a token");
        self.check_room(prompt.len())?;
        let held = self.tokens(id);
        let common = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // the last token is always computed: its logits are what is asked for
        let cached_tokens = common.min(prompt.len() - 1);
        self.truncate(id, cached_tokens);

        let (mut done, total) = (cached_tokens, prompt.len() - cached_tokens);
        while done < prompt.len() {
            let chunk = &prompt[done..prompt.len().min(done + self.info().batch_tokens)];
            let is_last = done + chunk.len() == prompt.len();
            let wanted = if is_last { chunk.len() - 1..chunk.len() } else { 0..0 };
            let logits = self.append(id, chunk, wanted)?;
            if is_last {
                let logits = logits.to_vec();
                self.logits = logits;
            }
            done += chunk.len();
            if on_progress(done - cached_tokens, total).is_break() {
                return Err(Error::Interrupted);
            }
        }
        Ok(Prefilled { cached_tokens, computed_tokens: total })
    }

    /// Appends one token and computes the logits after it.
    pub fn decode(&mut self, id: SequenceId, token: TokenId) -> Result<&[f32], Error> {
        self.check_room(self.tokens(id).len() + 1)?;
        let mut kept = std::mem::take(&mut self.logits);
        kept.clear();
        kept.extend_from_slice(self.append(id, &[token], 0..1)?);
        self.logits = kept;
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
        self.check_room(self.tokens(id).len() + tokens.len())?;
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

    fn check_room(&self, wanted: usize) -> Result<(), Error> {
        let context_tokens = self.context_tokens;
        if wanted > context_tokens { Err(Error::ContextFull { wanted, context_tokens }) } else { Ok(()) }
    }

    /// One batch: computes `tokens` at the end of a sequence and returns the logits (n_wanted, vocab) of `wanted`.
    fn append(&mut self, id: SequenceId, tokens: &[TokenId], wanted: Range<usize>) -> Result<&[f32], Error> {
        let sequence = self.sequences.get_mut(&id).expect("a sequence of this engine");
        let cached_tokens = sequence.table.tokens();
        sequence.table.append(tokens.len(), &mut self.pool).map_err(anyhow::Error::from)?;
        let row = BatchRow { tokens: 0..tokens.len(), cached_tokens, pages: sequence.table.pages().to_vec() };
        let batch = Batch { tokens: tokens.to_vec(), rows: vec![row], wanted: wanted.collect() };
        match self.backend.forward(&batch) {
            Ok(logits) => {
                sequence.tokens.extend_from_slice(tokens);
                Ok(logits)
            }
            Err(error) => {
                sequence.table.truncate(cached_tokens, &mut self.pool);
                Err(error.into())
            }
        }
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
