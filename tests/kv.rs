//! The KV cache through the engine, on the CPU: whatever is shared, forked, cut, dropped or forgotten, no bit of a logit
//! differs from those of an engine that computed everything itself. For keys and values in f16, f32 and int8.

#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;
#[path = "support/rewrite.rs"]
mod rewrite;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use models::{Setting, all_logits, data, default_model, load, options};
use sayfa::backend::{Backend, Batch, Info, Input, Output, Want, cpu};
use sayfa::engine::{Engine, Notice, OnFull, Options, Prefilled, SequenceId};
use sayfa::generation::{self, Event, FinishReason, Request};
use sayfa::gguf::Gguf;
use sayfa::kv::layout::{BlockId, KvType};
use sayfa::model::Model;
use sayfa::sampler::{Params, Sampler};
use sayfa::tokenizer::{TokenId, Tokenizer};

const KV_TYPES: [KvType; 3] = [KvType::F16, KvType::F32, KvType::Int8];

/// Two that differ in all that matters to a page: heads, widths, experts.
const MICRO_MODELS: [&str; 2] = ["micro/Q4_K.gguf", "variants/experts.gguf"];

fn text(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| (i * i * 31 + i * 7 + seed * 101 + 3) % 320).collect()
}

fn backend(model: &Arc<Model>, kv_type: KvType) -> Box<dyn Backend> {
    let setting = Setting { kv_type, batch_tokens: 24, ..Setting::default() };
    cpu::open(model.clone(), &options(setting)).expect("this CPU runs the tests")
}

/// Room for four sequences.
fn engine(model: &Arc<Model>, kv_type: KvType, context_tokens: usize, cache_tokens: usize, on_full: OnFull) -> Engine {
    let options = Options { context_tokens, sequences: 4, cache_tokens, on_full };
    Engine::new(backend(model, kv_type), &options).expect("a small context fits")
}

fn roomy(model: &Arc<Model>, kv_type: KvType) -> Engine {
    engine(model, kv_type, 512, 512, OnFull::Stop)
}

fn prefill(engine: &mut Engine, id: SequenceId, prompt: &[TokenId]) -> Prefilled {
    engine.prefill(id, prompt, &mut |_, _| ControlFlow::Continue(())).expect("the prompt fits")
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits after the last of `tokens`, computed by an engine that has seen nothing else.
fn fresh(model: &Arc<Model>, kv_type: KvType, tokens: &[TokenId]) -> Vec<u32> {
    let mut engine = roomy(model, kv_type);
    let id = engine.new_sequence();
    assert_eq!(prefill(&mut engine, id, tokens).cached_tokens, 0);
    bits(engine.logits())
}

/// What a prefill with reuse gives must be what a fresh one gives.
fn assert_as_fresh(
    engine: &mut Engine,
    id: SequenceId,
    prompt: &[TokenId],
    cached: usize,
    model: &Arc<Model>,
    kv: KvType,
) {
    let prefilled = prefill(engine, id, prompt);
    assert_eq!((prefilled.cached_tokens, prefilled.computed_tokens), (cached, prompt.len() - cached), "{kv:?}");
    assert!(
        bits(engine.logits()) == fresh(model, kv, prompt),
        "{kv:?}: {cached} tokens of the cache change the logits"
    );
}

fn each(test: impl Fn(&Arc<Model>, KvType)) {
    for name in MICRO_MODELS {
        let model = load(&data(name));
        KV_TYPES.into_iter().for_each(|kv_type| test(&model, kv_type));
    }
}

// ---- reuse

#[test]
fn a_prompt_that_begins_like_another_takes_over_its_blocks_and_gives_the_same_bits() {
    each(|model, kv_type| {
        let mut engine = roomy(model, kv_type);
        let system = text(1, 70);
        let prompt = |seed| [system.clone(), text(seed, 20)].concat();
        let first = engine.new_sequence();
        prefill(&mut engine, first, &prompt(2));
        let second = engine.new_sequence();
        assert_as_fresh(&mut engine, second, &prompt(3), 64, model, kv_type);
        // in the same sequence to the exact token
        assert_as_fresh(&mut engine, second, &prompt(4), 70, model, kv_type);
        // after all owners are gone
        engine.free_sequence(first);
        engine.free_sequence(second);
        assert_eq!(engine.usage().live, 0);
        let third = engine.new_sequence();
        assert_as_fresh(&mut engine, third, &prompt(5), 64, model, kv_type);
        // the same prompt again: all but its last token
        assert_as_fresh(&mut engine, third, &prompt(5), 89, model, kv_type);
    });
}

#[test]
fn a_second_turn_and_a_retry_give_the_bits_of_a_fresh_start() {
    for (model, kv_types) in [(load(&data("micro/Q4_0.gguf")), &KV_TYPES[..]), (load(&default_model()), &KV_TYPES[2..])]
    {
        for &kv_type in kv_types {
            let mut engine = roomy(&model, kv_type);
            let id = engine.new_sequence();
            let question = text(1, 45);
            prefill(&mut engine, id, &question);
            let mut answer = vec![];
            for _ in 0..12 {
                let logits = if answer.is_empty() { engine.logits().to_vec() } else { vec![] };
                let token = answer.last().map_or_else(|| likeliest(&logits), |&last| decode(&mut engine, id, last));
                answer.push(token);
            }
            let second = [question.clone(), answer.clone(), text(2, 30)].concat();
            let held = question.len() + answer.len() - 1; // the last token of an answer is not computed
            assert_as_fresh(&mut engine, id, &second, held, &model, kv_type);
            assert_as_fresh(&mut engine, id, &question, question.len() - 1, &model, kv_type);
        }
    }
}

fn likeliest(logits: &[f32]) -> TokenId {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("a vocabulary") as TokenId
}

/// Appends a token and gives the likeliest next one.
fn decode(engine: &mut Engine, id: SequenceId, token: TokenId) -> TokenId {
    likeliest(engine.decode(id, token).expect("room for a token"))
}

#[test]
fn forks_that_part_give_the_bits_of_sequences_of_their_own() {
    each(|model, kv_type| {
        let mut engine = roomy(model, kv_type);
        let origin = engine.new_sequence();
        let prompt = text(1, 55);
        prefill(&mut engine, origin, &prompt);
        let forks: Vec<_> = (0..3).map(|_| engine.fork(origin)).collect();
        assert_eq!(engine.usage().live, 4, "forks take no blocks");
        let tails: Vec<_> = (0..3).map(|seed| text(10 + seed, 20)).collect();
        // in turn, token by token, so that each could disturb the others
        for step in 0..20 {
            for (&fork, tail) in forks.iter().zip(&tails) {
                engine.decode(fork, tail[step]).expect("room");
            }
        }
        for (&fork, tail) in forks.iter().zip(&tails) {
            let all = [&prompt[..], tail, &[7]].concat();
            let got = bits(engine.decode(fork, 7).expect("room"));
            assert!(got == fresh(model, kv_type, &all), "{kv_type:?}");
            assert_eq!(engine.page_owners(fork), [4, 4, 4, 1, 1], "three shared blocks, the partial one copied");
        }
        let got = bits(engine.decode(origin, 9).expect("room"));
        assert!(got == fresh(model, kv_type, &[&prompt[..], &[9]].concat()), "the origin, after its forks went on");
    });
}

#[test]
fn blocks_dropped_from_the_cache_are_no_hits_until_they_are_computed_again() {
    each(|model, kv_type| {
        // four sequences could be full at once; two blocks outlive their owners
        let mut engine = engine(model, kv_type, 64, 32, OnFull::Stop);
        let (a, b) = (text(1, 64), text(2, 64));
        let id = engine.new_sequence();
        prefill(&mut engine, id, &a);
        engine.truncate(id, 0);
        assert_eq!((engine.usage().live, engine.usage().cached), (0, 2));
        assert_as_fresh(&mut engine, id, &a, 32, model, kv_type);
        prefill(&mut engine, id, &b);
        engine.truncate(id, 0);
        assert_as_fresh(&mut engine, id, &a, 0, model, kv_type);
        let other = engine.new_sequence();
        assert_as_fresh(&mut engine, other, &[&a[..], &[]].concat(), 48, model, kv_type);
    });
}

#[test]
fn cutting_into_a_published_block_and_going_on_leaves_the_published_prefix_as_it_was() {
    each(|model, kv_type| {
        let mut engine = roomy(model, kv_type);
        let (whole, id) = (text(1, 48), engine.new_sequence());
        prefill(&mut engine, id, &whole);
        let parted = [&whole[..40], &text(3, 30)].concat();
        assert_as_fresh(&mut engine, id, &parted, 40, model, kv_type);
        let other = engine.new_sequence();
        assert_as_fresh(&mut engine, other, &[&whole[..], &[5]].concat(), 48, model, kv_type);
        // and a third that goes on behind the second's published blocks after it was cut twice
        engine.truncate(other, 33);
        engine.decode(other, 8).expect("room");
        engine.truncate(other, 17);
        engine.decode(other, 9).expect("room");
        let third = engine.new_sequence();
        assert_as_fresh(&mut engine, third, &[&whole[..], &text(4, 3)].concat(), 48, model, kv_type);
    });
}

// ---- full contexts

#[test]
fn contexts_of_any_size_fill_to_the_last_token() {
    let model = load(&data("micro/Q4_0.gguf"));
    let tokens = text(1, 2016);
    for kv_type in KV_TYPES {
        let mut wide = engine(&model, kv_type, 2016, 0, OnFull::Stop);
        let want = all_logits(&mut wide, &tokens);
        for context_tokens in [1, 15, 16, 17, 33, 100, 2016] {
            let mut engine = engine(&model, kv_type, context_tokens, 0, OnFull::Stop);
            let id = engine.new_sequence();
            prefill(&mut engine, id, &tokens[..context_tokens.div_ceil(2)]);
            for &token in &tokens[context_tokens.div_ceil(2)..context_tokens] {
                engine.decode(id, token).expect("it is not full yet");
            }
            assert!(bits(engine.logits()) == bits(&want[context_tokens - 1]), "-c {context_tokens}, {kv_type:?}");
            let full = engine.decode(id, 1).unwrap_err().to_string();
            assert_eq!(full, format!("{} tokens do not fit the context of {context_tokens}", context_tokens + 1));
            assert_eq!(engine.tokens(id), &tokens[..context_tokens]);
        }
    }
}

/// What is left after an eviction attends to the same entries, wherever they lie: an engine that never shared a page and
/// one that forked, cut and retried before give the same bits.
#[test]
fn a_context_that_forgets_goes_on_alike_whatever_happened_before() {
    each(|model, kv_type| {
        let tokens = text(1, 150);
        let run = |engine: &mut Engine, id| {
            prefill(engine, id, &tokens[..60]);
            let logits: Vec<_> =
                tokens[60..].iter().map(|&t| bits(engine.decode(id, t).expect("it forgets"))).collect();
            assert_eq!((engine.tokens(id).len(), engine.held_tokens(id)), (150, 54));
            logits
        };
        let open = || engine(model, kv_type, 64, 64, OnFull::Evict { keep: 10 });
        let mut clean = open();
        let id = clean.new_sequence();
        let want = run(&mut clean, id);
        assert!(clean.take_notices().iter().all(|notice| matches!(notice, Notice::Evicted { tokens: 16 })));

        let mut used = open();
        let (a, b) = (used.new_sequence(), used.new_sequence());
        prefill(&mut used, b, &[&tokens[..40], &text(5, 20)].concat());
        prefill(&mut used, a, &[&tokens[..50], &text(6, 3)].concat());
        let fork = used.fork(a);
        assert!(run(&mut used, a) == want, "{kv_type:?}: beside others");
        assert!(run(&mut used, fork) == want, "{kv_type:?}: in a fork");
        [a, b, fork].into_iter().for_each(|id| used.free_sequence(id));
        assert_eq!(used.usage().live, 0);
    });
}

// ---- memory that nobody owns

/// A backend whose free blocks hold `poison`: before their first use, and as soon as they are given back.
struct Poisoned {
    inner: Box<dyn Backend>,
    poison: u8,
}

impl Poisoned {
    fn spoil(&mut self, block: BlockId) {
        let contents = vec![self.poison; self.inner.info().block_bytes as usize];
        self.inner.write_block(block, &contents).expect("memory of the host");
    }
}

impl Backend for Poisoned {
    fn info(&self) -> &Info {
        self.inner.info()
    }
    fn reserve(&mut self, n_blocks: usize, context_tokens: usize) -> anyhow::Result<()> {
        self.inner.reserve(n_blocks, context_tokens)?;
        (0..n_blocks as BlockId).for_each(|block| self.spoil(block));
        Ok(())
    }
    fn run(&mut self, batch: &Batch, input: Input, want: Want) -> anyhow::Result<Output<'_>> {
        self.inner.run(batch, input, want)
    }
    fn copy_block(&mut self, from: BlockId, to: BlockId) -> anyhow::Result<()> {
        self.inner.copy_block(from, to)
    }
    fn release_blocks(&mut self, blocks: &[BlockId]) {
        self.inner.release_blocks(blocks);
        blocks.iter().for_each(|&block| self.spoil(block));
    }
    fn read_block(&self, block: BlockId, contents: &mut [u8]) -> anyhow::Result<()> {
        self.inner.read_block(block, contents)
    }
    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> anyhow::Result<()> {
        self.inner.write_block(block, contents)
    }
}

/// Prompts, forks, cuts, evictions and clears: the bits of every logit on the way.
fn eventful_life(engine: &mut Engine) -> Vec<Vec<u32>> {
    let mut seen = vec![];
    for round in 0..3 {
        let a = engine.new_sequence();
        prefill(engine, a, &[text(1, 35), text(round, 12)].concat());
        seen.push(bits(engine.logits()));
        let b = engine.fork(a);
        for token in text(20 + round, 60) {
            seen.push(bits(engine.decode(a, token).expect("it forgets")));
        }
        seen.push(bits(engine.decode(b, 3).expect("room")));
        engine.truncate(b, 21);
        seen.push(bits(engine.decode(b, 4).expect("room")));
        engine.free_sequence(a);
        prefill(engine, b, &text(30 + round, 64));
        seen.push(bits(engine.logits()));
        engine.free_sequence(b);
    }
    seen
}

#[test]
fn poison_in_free_blocks_reaches_no_logit() {
    each(|model, kv_type| {
        let on_full = OnFull::Evict { keep: 16 };
        let want = eventful_life(&mut engine(model, kv_type, 64, 48, on_full));
        // int8: -128; f16 and f32: NaN
        for poison in [0x80, 0xff] {
            let backend = Box::new(Poisoned { inner: backend(model, kv_type), poison });
            let options = Options { context_tokens: 64, sequences: 4, cache_tokens: 48, on_full };
            let mut engine = Engine::new(backend, &options).expect("a small context fits");
            assert!(eventful_life(&mut engine) == want, "{kv_type:?}: {poison:#x} in a free block changed a logit");
            assert_eq!((engine.usage().live, engine.usage().cached), (0, 3));
        }
    });
}

#[test]
fn three_hundred_turns_leave_no_block_behind() {
    let path = data("micro/F32.gguf");
    let (model, gguf) = (load(&path), Gguf::open(&path).expect("a fixture"));
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("its vocabulary");
    let mut engine = engine(&model, KvType::Int8, 128, 64, OnFull::Stop);
    let id = engine.new_sequence();
    let mut sampler = Sampler::new(Params { banned: tokenizer.end_of_generation().to_vec(), ..Params::default() });
    let mut interrupted = 0;
    for turn in 0..300 {
        let prompt = text(turn, 20 + turn % 60);
        // every fifteenth breaks off: in the prompt, at the first word, later
        let mut events_left = if turn % 15 == 0 { 1 + turn / 15 % 5 } else { u32::MAX };
        let on_event = &mut |_: Event| {
            events_left -= 1;
            if events_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let request = Request { prompt: &prompt, max_tokens: Some(9), stop: &[], logprobs: None };
        let completion = generation::generate(&mut engine, id, &tokenizer, &mut sampler, &request, on_event);
        interrupted += u32::from(completion.expect("a turn").finish_reason == FinishReason::Interrupted);
        engine.truncate(id, 0);
        let usage = engine.usage();
        assert!(usage.live == 0 && usage.shared == 0 && usage.cached <= 4, "turn {turn}: {usage:?}");
        assert_eq!(usage.free + usage.cached, usage.total, "turn {turn}");
    }
    assert_eq!(interrupted, 20);
}

// ---- rows of nothing

/// A copy of a fixture in which every attn_k and attn_v holds zeros.
fn without_keys_and_values(name: &str, folder: &Path) -> Arc<Model> {
    let gguf = Gguf::open(&data(name)).expect("a fixture");
    let mut writer = rewrite::rewrite(&gguf);
    let mut zeroed = 0;
    for tensor in gguf.tensors().iter().filter(|t| t.name.contains("attn_k.") || t.name.contains("attn_v.")) {
        writer.tensor_mut(&tensor.name).data.fill(0);
        zeroed += 1;
    }
    assert!(zeroed >= 2, "{name}: {zeroed} tensors");
    let path = folder.join("zero.gguf");
    std::fs::write(&path, writer.build()).expect("a temporary folder");
    load(&path)
}

#[test]
fn keys_and_values_of_zero_are_kept_as_zeros() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["micro/F32.gguf", "micro/Q4_0.gguf"] {
        let model = without_keys_and_values(name, folder.path());
        let logits = |kv_type| all_logits(&mut roomy(&model, kv_type), &text(1, 40));
        let want = logits(KvType::F32);
        assert!(want.iter().flatten().all(|logit| logit.is_finite()), "{name}");
        for kv_type in [KvType::F16, KvType::Int8] {
            let same = logits(kv_type).iter().zip(&want).all(|(got, want)| bits(got) == bits(want));
            assert!(same, "{name}: zeros are exact in {kv_type:?}");
        }
    }
}
