use std::sync::{Arc, Mutex};

use super::*;

/// Logits that name what was computed: the highest one is the last token plus one. Remembers which token at which
/// position every block holds, and what each batch row read.
pub struct FakeBackend {
    info: Info,
    logits: Vec<f32>,
    best: Vec<Best>,
    /// (block, offset) -> (token, position)
    memory: HashMap<(u32, usize), (TokenId, usize)>,
    read: Reads,
}

type Reads = Arc<Mutex<Vec<Vec<(TokenId, usize)>>>>;

impl Backend for FakeBackend {
    fn info(&self) -> &Info {
        &self.info
    }
    fn reserve(&mut self, _: usize, _: usize) -> anyhow::Result<()> {
        Ok(())
    }
    fn run(&mut self, batch: &Batch, _: Input, want: Want) -> anyhow::Result<Output<'_>> {
        for row in &batch.rows {
            for (i, token) in row.tokens.clone().enumerate() {
                let entry = row.cached_tokens + i;
                let slot = (row.pages[entry / BLOCK_TOKENS], entry % BLOCK_TOKENS);
                self.memory.insert(slot, (batch.tokens[token], row.first_position + i));
            }
            let entries = 0..row.cached_tokens + row.tokens.len();
            let slots = entries.map(|entry| (row.pages[entry / BLOCK_TOKENS], entry % BLOCK_TOKENS));
            self.read.lock().unwrap().push(slots.map(|slot| self.memory[&slot]).collect());
        }
        self.logits.clear();
        for &i in &batch.wanted {
            let best = (batch.tokens[i] as usize + 1) % self.info.vocab;
            self.logits.extend((0..self.info.vocab).map(|id| if id == best { 1.0 } else { 0.0 }));
        }
        self.best = self.logits.chunks(self.info.vocab).map(Best::of).collect();
        Ok(if want == Want::Best { Output::Best(&self.best) } else { Output::Logits(&self.logits) })
    }
    fn copy_block(&mut self, from: u32, to: u32) -> anyhow::Result<()> {
        for offset in 0..BLOCK_TOKENS {
            if let Some(&entry) = self.memory.get(&(from, offset)) {
                self.memory.insert((to, offset), entry);
            }
        }
        Ok(())
    }
    fn release_blocks(&mut self, blocks: &[u32]) {
        self.memory.retain(|slot, _| !blocks.contains(&slot.0));
    }
    fn read_block(&self, _: u32, contents: &mut [u8]) -> anyhow::Result<()> {
        contents.fill(0);
        Ok(())
    }
    fn write_block(&mut self, _: u32, _: &[u8]) -> anyhow::Result<()> {
        Ok(())
    }
}

/// An engine, and what each batch row read from the cache: (token, position) of every entry up to its last token.
fn engine_with(context_tokens: usize, trained_tokens: usize, on_full: OnFull) -> (Engine, Reads) {
    let info = Info {
        identity: 1,
        device: "fake".into(),
        threads: 1,
        vocab: 1000,
        trained_tokens,
        weight_bytes_per_token: 0,
        kv_bytes_per_token: 0,
        block_bytes: 1,
        block_stride_bytes: 1,
        batch_tokens: 4,
        batch_logits: 4,
    };
    let read = Reads::default();
    let (logits, memory) = (vec![], HashMap::new());
    let backend = FakeBackend { info, logits, best: vec![], memory, read: read.clone() };
    let options = Options { context_tokens, sequences: 4, cache_tokens: 64, on_full };
    (Engine::new(Box::new(backend), &options).unwrap(), read)
}

fn engine(context_tokens: usize) -> Engine {
    engine_with(context_tokens, 4096, OnFull::Stop).0
}

fn best(logits: &[f32]) -> usize {
    logits.iter().position(|&l| l == 1.0).unwrap()
}

fn go_on(_: usize, _: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_second_prompt_computes_only_what_differs() {
    let mut engine = engine(64);
    let id = engine.new_sequence();
    let mut seen = vec![];
    let note = &mut |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let first = engine.prefill(id, &[1, 2, 3, 4, 5, 6], note).unwrap();
    assert_eq!((first, best(engine.logits())), (Prefilled { cached_tokens: 0, computed_tokens: 6 }, 7));
    let second = engine.prefill(id, &[1, 2, 3, 9], note).unwrap();
    assert_eq!((second.cached_tokens, second.computed_tokens, best(engine.logits())), (3, 1, 10));
    let same = engine.prefill(id, &[1, 2, 3, 9], note).unwrap();
    assert_eq!((same.cached_tokens, same.computed_tokens), (3, 1), "the last token is never taken from the cache");
    assert_eq!(seen, [(4, 6), (6, 6), (1, 1), (1, 1)]);
    assert_eq!(best(engine.decode(id, 41).unwrap()), 42);
    assert_eq!(engine.tokens(id), [1, 2, 3, 9, 41]);
}

#[test]
fn a_full_context_is_an_error_with_both_numbers_and_changes_nothing() {
    let mut engine = engine(5);
    let id = engine.new_sequence();
    let error = engine.prefill(id, &[0; 6], &mut go_on).unwrap_err();
    assert_eq!(error.to_string(), "6 tokens do not fit the context of 5");
    engine.prefill(id, &[7; 5], &mut go_on).unwrap();
    assert!(matches!(engine.decode(id, 1), Err(Error::ContextFull { wanted: 6, context_tokens: 5 })));
    assert_eq!(engine.tokens(id), [7; 5]);
}

#[test]
fn breaking_off_keeps_what_was_computed_and_blocks_come_back() {
    let mut engine = engine(64);
    let id = engine.new_sequence();
    let stop = engine.prefill(id, &[3; 40], &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stop, Err(Error::Interrupted)));
    assert_eq!((engine.tokens(id).len(), engine.usage().live), (4, 1));
    engine.free_sequence(id);
    assert_eq!(engine.usage().live, 0);
}

#[test]
fn scores_come_for_every_token_in_order() {
    let mut engine = engine(64);
    let id = engine.new_sequence();
    let mut seen = vec![];
    let tokens: Vec<TokenId> = (10..21).collect();
    let note = &mut |i, logits: &[f32]| {
        seen.push((i, best(logits)));
        ControlFlow::Continue(())
    };
    engine.score(id, &tokens, note).unwrap();
    assert_eq!(seen, (0..11).map(|i| (i, i + 11)).collect::<Vec<_>>());
}

#[test]
fn another_sequence_takes_over_whole_blocks_of_a_prompt_that_began_alike() {
    let mut engine = engine(256);
    let system: Vec<TokenId> = (0..40).collect();
    let prompt = |end: TokenId| system.iter().copied().chain([end, end]).collect::<Vec<_>>();
    let first = engine.new_sequence();
    engine.prefill(first, &prompt(500), &mut go_on).unwrap();
    let second = engine.new_sequence();
    assert_eq!(engine.prefill(second, &prompt(600), &mut go_on).unwrap().cached_tokens, 32);
    assert_eq!(engine.page_owners(second), [2, 2, 1]);
    engine.free_sequence(first);
    engine.free_sequence(second);
    assert_eq!((engine.usage().live, engine.usage().cached), (0, 2));
    let third = engine.new_sequence();
    assert_eq!(engine.prefill(third, &prompt(700), &mut go_on).unwrap().cached_tokens, 32, "after its owners");
    assert_eq!(engine.prefill(third, &prompt(700)[..32], &mut go_on).unwrap().cached_tokens, 31);
    assert_eq!(engine.prefill(third, &prompt(700), &mut go_on).unwrap().cached_tokens, 32, "through its copy");
}

#[test]
fn a_full_sequence_goes_on_from_within_its_last_block_also_without_a_cache() {
    let (mut engine, _) = engine_with(32, 4096, OnFull::Stop);
    engine.cache = KvCache::new(3, 0, 1);
    let id = engine.new_sequence();
    engine.prefill(id, &(0..32).collect::<Vec<_>>(), &mut go_on).unwrap();
    engine.truncate(id, 20);
    assert_eq!(best(engine.decode(id, 7).unwrap()), 8);
}

#[test]
fn forks_share_pages_until_they_part() {
    let (mut engine, read) = engine_with(256, 4096, OnFull::Stop);
    let origin = engine.new_sequence();
    engine.prefill(origin, &(0..40).collect::<Vec<_>>(), &mut go_on).unwrap();
    let forks: Vec<_> = (0..3).map(|_| engine.fork(origin)).collect();
    assert_eq!(engine.usage().live, 3);
    for (&fork, token) in forks.iter().zip(100..) {
        engine.decode(fork, token).unwrap();
    }
    assert_eq!(engine.usage().live, 6, "each copied the last partial page, nothing else");
    engine.decode(origin, 99).unwrap();
    assert_eq!(engine.usage().live, 6);
    for (fork, token) in forks.into_iter().zip(100..) {
        engine.decode(fork, 7).unwrap();
        let read = read.lock().unwrap();
        let want = (0..40).chain([token, 7]).enumerate().map(|(position, token)| (token, position));
        assert!(read.last().unwrap().iter().copied().eq(want), "{:?}", read.last());
    }
}

#[test]
fn a_full_context_forgets_whole_pages_and_keeps_the_start_and_all_positions() {
    let (mut engine, read) = engine_with(64, 4096, OnFull::Evict { keep: 5 });
    let id = engine.new_sequence();
    engine.prefill(id, &(0..60).collect::<Vec<_>>(), &mut go_on).unwrap();
    for token in 60..100 {
        engine.decode(id, token).unwrap();
    }
    assert_eq!(engine.tokens(id).len(), 100, "the history is whole");
    let kept = (0..16).chain(64..100).map(|token| (token, token as usize));
    assert!(read.lock().unwrap().last().unwrap().iter().copied().eq(kept));
    let evicted = |notice| if let Notice::Evicted { tokens } = notice { tokens } else { 0 };
    assert_eq!(engine.take_notices().into_iter().map(evicted).sum::<usize>(), 48);
    // going on from the whole history is cheap; what was computed before the first eviction is still published
    let longer: Vec<TokenId> = (0..103).collect();
    assert_eq!(engine.prefill(id, &longer, &mut go_on).unwrap().cached_tokens, 100);
    let other = engine.new_sequence();
    assert_eq!(engine.prefill(other, &(0..64).collect::<Vec<_>>(), &mut go_on).unwrap().cached_tokens, 48);
    // a prompt that parts from the history and fits is computed without a gap
    engine.prefill(id, &(0..20).chain([7]).collect::<Vec<_>>(), &mut go_on).unwrap();
    let whole = (0..20).chain([7]).enumerate().map(|(position, token)| (token, position));
    assert!(read.lock().unwrap().last().unwrap().iter().copied().eq(whole));
}

#[test]
fn at_the_trained_length_the_newer_half_is_computed_anew_from_zero() {
    let (mut engine, read) = engine_with(64, 80, OnFull::Evict { keep: 16 });
    let id = engine.new_sequence();
    engine.prefill(id, &(0..64).collect::<Vec<_>>(), &mut go_on).unwrap();
    for token in 64..90 {
        engine.decode(id, token).unwrap();
    }
    let notices = engine.take_notices();
    assert!(notices.contains(&Notice::Recomputed { dropped: 24, kept: 40 }), "{notices:?}");
    let read = read.lock().unwrap();
    let last = read.last().unwrap();
    assert!(last.iter().enumerate().all(|(i, entry)| entry.1 == i), "positions are consecutive: {last:?}");
    assert!(last.iter().map(|entry| entry.0).eq((0..16).chain(56..90)));
}

#[test]
fn a_prompt_beyond_the_context_that_does_not_go_on_is_refused_also_when_evicting() {
    let (mut engine, _) = engine_with(32, 4096, OnFull::Evict { keep: 0 });
    let id = engine.new_sequence();
    engine.prefill(id, &[1, 2, 3], &mut go_on).unwrap();
    let error = engine.prefill(id, &[9; 40], &mut go_on).unwrap_err();
    assert!(matches!(error, Error::ContextFull { wanted: 40, context_tokens: 32 }));
    assert_eq!(engine.tokens(id), [1, 2, 3]);
}

#[test]
fn sequences_decode_together_as_they_do_alone() {
    let (mut engine, read) = engine_with(64, 4096, OnFull::Stop);
    let ids = [(); 3].map(|()| engine.new_sequence());
    for (id, prompt) in ids.into_iter().zip([&[1, 2, 3][..], &[50], &[90; 17]]) {
        engine.prefill(id, prompt, &mut go_on).unwrap();
    }
    read.lock().unwrap().clear();
    let next: Vec<(SequenceId, TokenId)> = ids.into_iter().zip([10, 20, 30]).collect();
    let logits = engine.decode_together(&next).unwrap();
    assert_eq!(logits.chunks(1000).map(best).collect::<Vec<_>>(), [11, 21, 31]);
    assert_eq!(engine.tokens(ids[0]), [1, 2, 3, 10]);
    // one batch with a row for each, which read its own tokens at its own positions
    let read = read.lock().unwrap();
    assert_eq!(read[0], [(1, 0), (2, 1), (3, 2), (10, 3)]);
    assert_eq!(read[1], [(50, 0), (20, 1)]);
    assert_eq!((read.len(), read[2].len(), read[2][17]), (3, 18, (30, 17)));
}

#[test]
fn a_full_sequence_stops_those_that_decode_with_it_before_anything_is_computed() {
    let mut engine = engine(4);
    let ids = [(); 2].map(|()| engine.new_sequence());
    engine.prefill(ids[0], &[1], &mut go_on).unwrap();
    engine.prefill(ids[1], &[1, 2, 3, 4], &mut go_on).unwrap();
    let error = engine.decode_together(&[(ids[0], 5), (ids[1], 5)]);
    assert!(matches!(error, Err(Error::ContextFull { wanted: 5, context_tokens: 4 })));
    assert_eq!((engine.tokens(ids[0]), engine.tokens(ids[1])), (&[1][..], &[1, 2, 3, 4][..]));
}
