//! Backends over test models on a GPU, and how far apart two devices may be.

use std::sync::Arc;

use sayfa::backend::{self, Backend, Batch, BatchRow, Gpu, cpu};
use sayfa::gguf::Gguf;
use sayfa::kv::layout::BlockId;
use sayfa::model::{Model, RopeOverrides};

use crate::models::{Setting, data, options};
use crate::rewrite;

/// Everything on the GPU.
pub const ALL: usize = usize::MAX;

/// Logits of a whole pass, as a part of their spread: where sums in another order turn the rounding of a level, it shows.
pub const END_TO_END: f32 = 0.02;
/// A lead of the CPU's likeliest token that the GPU must not overturn.
const CLEAR_LEAD: f32 = 1.0;

/// With room for 64 blocks.
pub fn gpu(model: &Arc<Model>, setting: Setting, offloaded: usize, graphs: bool) -> Box<dyn Backend> {
    let mut backend = part_opened(model, setting, offloaded, graphs);
    backend.reserve(64, 512).expect("a small pool");
    backend
}

/// Everything on the GPU, without room for blocks yet: an engine makes it.
pub fn opened(model: &Arc<Model>, setting: Setting) -> Box<dyn Backend> {
    part_opened(model, setting, ALL, true)
}

fn part_opened(model: &Arc<Model>, setting: Setting, offloaded: usize, graphs: bool) -> Box<dyn Backend> {
    crate::cuda_driver::install();
    let gpu = Gpu { ordinal: 0, offloaded: offloaded.min(model.config.n_layers + 1), graphs };
    backend::open(model.clone(), &options(setting), Some(gpu)).expect("the driver takes the model")
}

pub fn host(model: &Arc<Model>, setting: Setting) -> Box<dyn Backend> {
    let mut backend = cpu::open(model.clone(), &options(setting)).expect("this CPU runs the tests");
    backend.reserve(64, 512).expect("a small pool");
    backend
}

/// A model of as many layers, each taken from the micro model of its type; embeddings and head from the first.
pub fn deep_model(types: &[&str]) -> Arc<Model> {
    let of = |name: &str| rewrite::rewrite(&Gguf::open(&data(&format!("micro/{name}.gguf"))).unwrap());
    let mut deep = of(types[0]).set("llama.block_count", crate::gguf_writer::Val::u32(types.len() as u32));
    for (n, name) in types.iter().enumerate().skip(1) {
        for tensor in of(name).tensors {
            let tensor_name = String::from_utf8(tensor.name.clone()).unwrap();
            if let Some(part) = tensor_name.strip_prefix("blk.0.") {
                deep = deep.tensor(format!("blk.{n}.{part}"), &tensor.dims, tensor.type_id, &tensor.data);
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.gguf");
    std::fs::write(&path, deep.build()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    Arc::new(Model::from_gguf(&gguf, &RopeOverrides::default()).unwrap_or_else(|error| panic!("{error:#}")))
}

/// Pages that lie anywhere in a pool of 64.
pub const PAGES: [BlockId; 32] = [
    9, 30, 2, 17, 5, 44, 41, 7, 63, 1, 20, 22, 3, 8, 11, 60, 31, 33, 35, 37, 39, 12, 14, 16, 18, 50, 51, 52, 53, 54,
    55, 56,
];

/// One sequence of a batch: its tokens, and how many are in its pages.
pub struct Piece<'a> {
    pub tokens: &'a [u32],
    pub cached_tokens: usize,
    pub pages: &'a [BlockId],
}

pub fn batch(pieces: &[Piece], wanted: Vec<usize>) -> Batch {
    let mut batch = Batch { wanted, ..Batch::default() };
    for piece in pieces {
        let at = batch.tokens.len();
        batch.tokens.extend(piece.tokens);
        batch.rows.push(BatchRow {
            tokens: at..batch.tokens.len(),
            cached_tokens: piece.cached_tokens,
            first_position: piece.cached_tokens,
            pages: piece.pages.to_vec(),
        });
    }
    batch
}

/// 600 tokens without a pattern.
pub fn long_text(vocab: usize) -> Vec<u32> {
    (0..600u64).map(|i| ((i * i * 7 + i * 13 + 5) % (vocab as u64 - 3)) as u32 + 3).collect()
}

/// Reads `prompt` tokens in chunks, then the others one by one: the logits after the prompt and after each of them.
pub fn answer(
    backend: &mut dyn Backend,
    text: &[u32],
    prompt: usize,
    chunk: usize,
    pages: &[BlockId],
) -> Vec<Vec<f32>> {
    let mut logits = vec![];
    let mut at = 0;
    while at < text.len() {
        let n = if at < prompt { chunk.min(prompt - at) } else { 1 };
        let piece = Piece { tokens: &text[at..at + n], cached_tokens: at, pages };
        at += n;
        let wanted = if at >= prompt { vec![n - 1] } else { vec![] };
        let found = backend.forward(&batch(&[piece], wanted)).expect("a sound batch").to_vec();
        if at >= prompt {
            logits.push(found);
        }
    }
    logits
}

/// Fills a block, whoever has it.
pub fn spoil(backend: &mut dyn Backend, block: BlockId, with: u8) {
    let contents = vec![with; backend.info().block_bytes as usize];
    backend.write_block(block, &contents).expect("a block");
}

/// Largest difference of logits, as a part of their spread.
pub fn distance(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len());
    let mut worst = 0f32;
    for (got, want) in got.iter().zip(want) {
        let (low, high) = want.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
        for (got, want) in got.iter().zip(want) {
            let apart = (got - want).abs() / (high - low);
            worst = if apart > worst || apart.is_nan() { apart } else { worst };
        }
    }
    worst
}

/// Within `END_TO_END`, and the same greedy token wherever the lead is clear.
pub fn assert_near(what: &str, got: &[Vec<f32>], want: &[Vec<f32>]) {
    let apart = distance(got, want);
    assert!(apart <= END_TO_END, "{what}: logits are {apart} of their spread apart, allowed {END_TO_END}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let likeliest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a vocabulary");
        let best = likeliest(want);
        let others = want.iter().enumerate().filter(|(id, _)| *id != best);
        let second = others.fold(f32::NEG_INFINITY, |max, (_, &x)| max.max(x));
        let is_clear = want[best] - second > CLEAR_LEAD;
        assert!(!is_clear || likeliest(got) == best, "{what}: step {i} takes another token than {best}");
    }
}
