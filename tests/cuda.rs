//! The CUDA backend against the CPU, over the stand-in driver (`tests/cuda_driver`) or, with REQUIRE_CUDA=1, a real one.

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/cuda_driver.rs"]
mod cuda_driver;
#[allow(dead_code)]
#[path = "support/models.rs"]
mod models;

use std::path::Path;
use std::sync::Arc;

use models::{Setting, data, load, options};
use sayfa::backend::{self, Backend, Batch, BatchRow, Gpu, Input, Output, Want, cpu};
use sayfa::kv::layout::{BLOCK_TOKENS, BlockId, KvType};
use sayfa::model::Model;

/// Everything on the GPU.
const ALL: usize = usize::MAX;

fn gpu(model: &Arc<Model>, setting: Setting, offloaded: usize, graphs: bool) -> Box<dyn Backend> {
    cuda_driver::install();
    let offloaded = offloaded.min(model.config.n_layers + 1);
    let gpu = Gpu { ordinal: 0, offloaded, graphs };
    let mut backend = backend::open(model.clone(), &options(setting), Some(gpu)).expect("the driver takes the model");
    backend.reserve(64, 512).expect("a small pool");
    backend
}

fn host(model: &Arc<Model>, setting: Setting) -> Box<dyn Backend> {
    let mut backend = cpu::open(model.clone(), &options(setting)).expect("this CPU runs the tests");
    backend.reserve(64, 512).expect("a small pool");
    backend
}

/// One sequence of a batch: its tokens, and how many are in its pages.
struct Piece<'a> {
    tokens: &'a [u32],
    cached_tokens: usize,
    pages: &'a [BlockId],
}

fn batch(pieces: &[Piece], wanted: Vec<usize>) -> Batch {
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

fn long_text(vocab: usize) -> Vec<u32> {
    (0..600u64).map(|i| ((i * i * 7 + i * 13 + 5) % (vocab as u64 - 3)) as u32 + 3).collect()
}

/// Reads `prompt` in chunks, then takes the other tokens one by one: the logits after the prompt and after each of them.
fn answer(backend: &mut dyn Backend, text: &[u32], prompt: usize, chunk: usize, pages: &[BlockId]) -> Vec<Vec<f32>> {
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

/// Largest difference of logits, as a part of their spread.
fn distance(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
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

const PAGES: [BlockId; 32] = [
    9, 30, 2, 17, 5, 44, 41, 7, 63, 1, 20, 22, 3, 8, 11, 60, 31, 33, 35, 37, 39, 12, 14, 16, 18, 50, 51, 52, 53, 54,
    55, 56,
];

#[test]
fn every_type_agrees_with_the_cpu() {
    let files = std::fs::read_dir(data("micro")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    files.sort();
    for file in files {
        let model = load(&file);
        let text = &long_text(model.config.vocab)[..40];
        let start = std::time::Instant::now();
        let want = answer(&mut *host(&model, Setting::default()), text, 33, 33, &PAGES);
        let got = answer(&mut *gpu(&model, Setting::default(), ALL, true), text, 33, 33, &PAGES);
        println!("{}: {} ({:?})", file.display(), distance(&got, &want), start.elapsed());
    }
}
