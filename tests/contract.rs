//! The arithmetic contract with `==`: no bit of a logit depends on the instruction set, the number of threads, the size
//! of prefill chunks, the numbering of blocks or the batch mates.

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;

use std::path::PathBuf;
use std::sync::Arc;

use models::{Setting, all_logits, data, default_model, engine, load, options};
use sayfa::backend::cpu::{self, Activations, Simd};
use sayfa::backend::{Backend, Batch, BatchRow};
use sayfa::kv::layout::{BLOCK_TOKENS, BlockId, KvType};
use sayfa::model::Model;

/// A text that is longer than a span (256 tokens), a chunk and many pages.
fn long_text(vocab: usize) -> Vec<u32> {
    (0..301u32).map(|i| (i * i * 31 + i * 7 + 3) % vocab as u32).collect()
}

fn micro_models() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = ["micro", "variants"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(data(folder)).expect("committed fixtures"))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|end| end == "gguf"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 21, "16 types and 5 variants");
    files
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

fn assert_same(name: &str, got: &[Vec<f32>], want: &[Vec<f32>]) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (got, want)) in bits(got).iter().zip(bits(want)).enumerate() {
        let differing = got.iter().zip(&want).filter(|(a, b)| a != b).count();
        assert_eq!(differing, 0, "{name}: {differing} logits of token {i} differ");
    }
}

/// Logits of the last token after a prefill in chunks.
fn prefill_in_chunks(model: &Arc<Model>, setting: Setting, tokens: &[u32]) -> Vec<f32> {
    let mut engine = engine(model, setting);
    let id = engine.new_sequence();
    let go_on = &mut |_, _| std::ops::ControlFlow::Continue(());
    engine.prefill(id, tokens, go_on).expect("the text fits");
    engine.logits().to_vec()
}

#[test]
fn every_table_and_thread_count_gives_the_bits_of_scalar_code() {
    for path in micro_models() {
        let model = load(&path);
        let tokens = &long_text(model.config.vocab)[..41];
        let int8 = [KvType::F16, KvType::F32, KvType::Int8].map(|kv_type| (kv_type, Activations::Int8));
        for (kv_type, activations) in int8.into_iter().chain([(KvType::F16, Activations::Int16)]) {
            let run = |simd, threads| {
                let setting = Setting { simd: Some(simd), threads, kv_type, activations, ..Setting::default() };
                all_logits(&mut engine(&model, setting), tokens)
            };
            let want = run(Simd::Scalar, 1);
            for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
                for threads in [1, 2, 3] {
                    let name =
                        format!("{} {} {threads} threads {kv_type:?} {activations:?}", path.display(), simd.name());
                    assert_same(&name, &run(simd, threads), &want);
                }
            }
        }
    }
}

#[test]
fn prefill_chunks_give_the_bits_of_single_tokens() {
    for name in ["micro/BF16.gguf", "micro/Q4_0.gguf", "micro/Q2_K.gguf", "variants/experts.gguf"] {
        let model = load(&data(name));
        let tokens = long_text(model.config.vocab);
        for activations in [Activations::Int8, Activations::Int16] {
            let run = |batch_tokens| {
                prefill_in_chunks(&model, Setting { batch_tokens, activations, ..Setting::default() }, &tokens)
            };
            let want = run(1);
            for chunk in [7, 64, 512] {
                let name = format!("{name} in chunks of {chunk}, {activations:?}");
                assert_same(&name, &[run(chunk)], std::slice::from_ref(&want));
            }
        }
    }
}

#[test]
fn the_default_model_keeps_the_contract() {
    let model = load(&default_model());
    let tokens: Vec<u32> = long_text(4096)[..24].to_vec();
    let run = |simd, threads, batch_tokens| {
        prefill_in_chunks(&model, Setting { simd, threads, batch_tokens, ..Setting::default() }, &tokens)
    };
    let want = run(Some(Simd::Scalar), 2, 7);
    for (simd, threads, chunk) in [(None, 1, 512), (None, 2, 1), (None, 2, 5), (None, 3, 24)] {
        let name = format!("{simd:?}, {threads} threads, chunks of {chunk}");
        assert_same(&name, &[run(simd, threads, chunk)], std::slice::from_ref(&want));
    }
}

fn backend(model: &Arc<Model>, n_blocks: usize) -> Box<dyn Backend> {
    let mut backend = cpu::open(model.clone(), &options(Setting::default())).expect("this CPU runs the tests");
    backend.reserve(n_blocks, 512).expect("a small pool");
    backend
}

/// Feeds texts one token each per batch (so that all are in every batch) over the given page tables; the logits of
/// every token of every text.
fn decode_together(model: &Arc<Model>, texts: &[&[u32]], pages: &[Vec<BlockId>]) -> Vec<Vec<Vec<f32>>> {
    let n_blocks = pages.iter().flatten().max().map_or(1, |&max| max as usize + 1);
    let mut backend = backend(model, n_blocks);
    let mut logits = vec![vec![]; texts.len()];
    for step in 0..texts.iter().map(|text| text.len()).max().unwrap_or(0) {
        let mut batch = Batch::default();
        let alive: Vec<usize> = (0..texts.len()).filter(|&i| step < texts[i].len()).collect();
        for &i in &alive {
            let at = batch.tokens.len();
            batch.tokens.push(texts[i][step]);
            batch.wanted.push(at);
            batch.rows.push(BatchRow {
                tokens: at..at + 1,
                cached_tokens: step,
                first_position: step,
                pages: pages[i].clone(),
            });
        }
        let rows = backend.forward(&batch).expect("a sound batch");
        for (&i, row) in alive.iter().zip(rows.chunks(model.config.vocab)) {
            logits[i].push(row.to_vec());
        }
    }
    logits
}

#[test]
fn block_numbers_and_batch_mates_change_no_bit() {
    for name in ["micro/F16.gguf", "micro/Q4_1.gguf", "micro/Q6_K.gguf", "variants/experts.gguf"] {
        let model = load(&data(name));
        let text = long_text(model.config.vocab);
        let (a, b, c) = (&text[..40], &text[100..133], &text[200..207]);
        let in_order = |from: BlockId| (from..from + 40u32.div_ceil(BLOCK_TOKENS as u32)).collect::<Vec<_>>();
        let alone: Vec<_> =
            [a, b, c].iter().flat_map(|text| decode_together(&model, &[text], &[in_order(0)])).collect();
        let scattered = vec![vec![9, 0, 5], vec![3, 11, 1], vec![7, 2, 20]];
        let together = decode_together(&model, &[a, b, c], &scattered);
        for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert_same(&format!("{name}, text {i}"), together, alone);
        }
    }
}

/// A prefill of one sequence and a decode step of another in one batch.
#[test]
fn a_prompt_beside_a_decoding_sequence_changes_no_bit() {
    let model = load(&data("micro/Q4_K.gguf"));
    let text = long_text(model.config.vocab);
    let (prompt, other) = (&text[..50], &text[60..80]);
    let want_prompt = decode_together(&model, &[prompt], &[vec![0, 1, 2, 3]]);
    let want_other = decode_together(&model, &[other], &[vec![0, 1]]);

    let mut backend = backend(&model, 16);
    let row = |tokens, cached_tokens, pages: &[BlockId]| BatchRow {
        tokens,
        cached_tokens,
        first_position: cached_tokens,
        pages: pages.to_vec(),
    };
    let first = Batch { tokens: other[..19].to_vec(), rows: vec![row(0..19, 0, &[4, 8])], wanted: vec![] };
    backend.forward(&first).expect("a sound batch");
    let mut tokens = prompt.to_vec();
    tokens.push(other[19]);
    let rows = vec![row(0..50, 0, &[15, 3, 9, 1]), row(50..51, 19, &[4, 8])];
    let logits = backend.forward(&Batch { tokens, rows, wanted: vec![49, 50] }).expect("a sound batch");
    let (got_prompt, got_other) = logits.split_at(model.config.vocab);
    assert_same("prompt", &[got_prompt.to_vec()], &want_prompt[0][49..]);
    assert_same("decoding sequence", &[got_other.to_vec()], &want_other[0][19..]);
}
