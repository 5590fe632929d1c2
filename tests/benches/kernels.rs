//! Every kernel of every table that this CPU runs, by itself: one thread, data that stays in its caches. Weights count as
//! bytes per second in products with one token, else an item is a multiplication or an addition. And the sampler, which is
//! no kernel, but a part of every step.
//!
//! `cargo bench` runs all, `cargo bench -- gemm` or `cargo bench -- Q4_K` those with such a name.

use std::fmt;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use half::f16;
use sayfa::backend::cpu::Simd;
use sayfa::backend::cpu::kernels::{Kernels, Queries, SPAN_TOKENS, Team};
use sayfa::kv::layout::{BLOCK_TOKENS, KvType};
use sayfa::model::Matrix;
use sayfa::quant::DType;
use sayfa::quant::activation::{Precision, QuantTile, TILE};
use sayfa::sampler::{Chain, Dry, Dynatemp, Mirostat, Params, Sampler, Stage, Xtc};

/// A matrix of these sizes takes 40 to 140 KB: the L2 cache holds it.
const ROWS: usize = 64;
const COLS: usize = 2048;
/// Llama 3.2 1B: four query heads share a KV head.
const HEAD_DIM: usize = 64;
const GROUP_HEADS: usize = 4;

fn main() {
    divan::main();
}

/// A table of kernels and what it works on.
#[derive(Clone, Copy)]
struct Case<T> {
    kernels: &'static Kernels,
    on: T,
}

impl<T: fmt::Debug> fmt::Display for Case<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {:?}", self.kernels.name, self.on)
    }
}

fn cases<T: Copy>(all: impl IntoIterator<Item = T>) -> Vec<Case<T>> {
    let tables: Vec<&Kernels> = Simd::ALL.into_iter().filter_map(Simd::kernels).collect();
    all.into_iter().flat_map(|on| tables.iter().map(move |&kernels| Case { kernels, on }).collect::<Vec<_>>()).collect()
}

fn quantized_types() -> Vec<Case<DType>> {
    cases(DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()))
}

fn float_types() -> Vec<Case<DType>> {
    cases(DType::ALL.into_iter().filter(|dtype| !dtype.is_quantized()))
}

fn precisions() -> Vec<Case<Precision>> {
    cases([Precision::Int8, Precision::Int16])
}

fn kv_types() -> Vec<Case<KvType>> {
    cases([KvType::F32, KvType::F16, KvType::Int8])
}

/// Lengths: a feed-forward row of two models.
fn rows() -> Vec<Case<usize>> {
    cases([1536, 8192])
}

/// Tokens whose heads share a pass over a page.
fn query_tokens() -> Vec<Case<usize>> {
    cases([1, 8])
}

/// Bytes from 0 to 63: any half made of them is a finite number below 2.
fn bytes(n: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 58) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// From -1 to 1.
fn floats(n: usize) -> Vec<f32> {
    bytes(n).into_iter().map(|byte| f32::from(byte) / 31.5 - 1.0).collect()
}

fn matrix(dtype: DType) -> Matrix {
    let row_bytes = dtype.row_bytes(COLS as u64).expect("the columns are whole blocks") as usize;
    let mut bytes = bytes(ROWS * row_bytes);
    if dtype == DType::MXFP4 {
        // The first byte of a block is an exponent, and small ones make subnormal numbers, which are slow.
        bytes.chunks_mut(dtype.block_bytes()).for_each(|block| block[0] = 120);
    }
    Matrix::in_memory(dtype, ROWS, COLS, &bytes)
}

fn quantized(tokens: usize, precision: Precision) -> Vec<QuantTile> {
    let x = floats(COLS);
    let tile = |first: usize| {
        let mut tile = QuantTile::with_capacity(precision, COLS);
        tile.set_width(TILE.min(tokens - first));
        (0..tile.width()).for_each(|token| tile.quantize(token, &x));
        tile
    };
    (0..tokens).step_by(TILE).map(tile).collect()
}

fn product_ops(tokens: usize) -> ItemsCount {
    ItemsCount::new(2 * ROWS * COLS * tokens)
}

fn multiply(bencher: Bencher, case: Case<DType>, tokens: usize, precision: Precision) {
    let (weight, x, mut out) = (matrix(case.on), quantized(tokens, precision), vec![0.0; ROWS * tokens]);
    let team = Team::new(1).expect("one thread needs no pool");
    bencher.bench_local(|| {
        team.run(|crew| {
            crew.split_columns(&mut out, ROWS, ROWS, |block| {
                (case.kernels.matmul_quantized)(&weight, 0..ROWS, &x, &[], block, 0);
            });
        });
        out[0]
    });
}

#[divan::bench(args = precisions())]
fn quantize(bencher: Bencher, case: &Case<Precision>) {
    let (x, mut tile) = (floats(COLS), QuantTile::with_capacity(case.on, COLS));
    tile.set_width(1);
    bencher.counter(BytesCount::of_slice(&x)).bench_local(|| (case.kernels.quantize)(&x, &mut tile, 0));
}

#[divan::bench(args = quantized_types())]
fn gemv(bencher: Bencher, case: &Case<DType>) {
    multiply(bencher.counter(BytesCount::new(matrix(case.on).bytes())), *case, 1, Precision::Int8);
}

#[divan::bench(args = quantized_types())]
fn gemv_16_bits(bencher: Bencher, case: &Case<DType>) {
    multiply(bencher.counter(BytesCount::new(matrix(case.on).bytes())), *case, 1, Precision::Int16);
}

#[divan::bench(args = quantized_types(), consts = [8, 64])]
fn gemm<const TOKENS: usize>(bencher: Bencher, case: &Case<DType>) {
    multiply(bencher.counter(product_ops(TOKENS)), *case, TOKENS, Precision::Int8);
}

#[divan::bench(args = quantized_types(), consts = [64])]
fn gemm_16_bits<const TOKENS: usize>(bencher: Bencher, case: &Case<DType>) {
    multiply(bencher.counter(product_ops(TOKENS)), *case, TOKENS, Precision::Int16);
}

#[divan::bench(args = float_types(), consts = [1, 8])]
fn float_product<const TOKENS: usize>(bencher: Bencher, case: &Case<DType>) {
    let (weight, x, mut out) = (matrix(case.on), floats(TOKENS * COLS), vec![0.0; ROWS * TOKENS]);
    let team = Team::new(1).expect("one thread needs no pool");
    bencher.counter(product_ops(TOKENS)).bench_local(|| {
        team.run(|crew| {
            crew.split_columns(&mut out, ROWS, ROWS, |block| {
                (case.kernels.matmul_float)(&weight, 0..ROWS, &x, block, 0);
            });
        });
        out[0]
    });
}

#[divan::bench(args = rows())]
fn dot(bencher: Bencher, case: &Case<usize>) {
    let (a, b) = (floats(case.on), floats(case.on));
    bencher.counter(ItemsCount::new(2 * case.on)).bench_local(|| (case.kernels.dot)(&a, &b));
}

#[divan::bench(args = rows())]
fn silu_mul(bencher: Bencher, case: &Case<usize>) {
    let (gate, up) = (floats(case.on), floats(case.on));
    let with_gate = bencher.counter(ItemsCount::new(case.on)).with_inputs(|| gate.clone());
    with_gate.bench_local_refs(|gate| (case.kernels.silu_mul)(gate, &up));
}

/// The query heads of some tokens and a page of keys or values.
fn queries<T>(q: &[T], tokens: usize) -> Queries<'_, T> {
    Queries { q, stride: GROUP_HEADS * HEAD_DIM, tokens, heads: GROUP_HEADS, head_dim: HEAD_DIM }
}

/// Of a page and all queries.
fn page_ops(tokens: usize) -> ItemsCount {
    ItemsCount::new(2 * tokens * GROUP_HEADS * BLOCK_TOKENS * HEAD_DIM)
}

#[divan::bench(args = query_tokens())]
fn scores(bencher: Bencher, case: &Case<usize>) {
    let q = floats(case.on * GROUP_HEADS * HEAD_DIM);
    let (k_rows, mut out) = (floats(BLOCK_TOKENS * HEAD_DIM), vec![0.0; case.on * GROUP_HEADS * SPAN_TOKENS]);
    let queries = queries(&q, case.on);
    bencher
        .counter(page_ops(case.on))
        .bench_local(|| (case.kernels.scores)(&queries, &k_rows, BLOCK_TOKENS, 0.125, &mut out));
}

#[divan::bench(args = query_tokens())]
fn scores_int8(bencher: Bencher, case: &Case<usize>) {
    let q: Vec<i8> = bytes(case.on * GROUP_HEADS * HEAD_DIM).into_iter().map(|byte| byte as i8 - 32).collect();
    let (q_scales, k_rows) = (vec![0.01; case.on * GROUP_HEADS], bytes(BLOCK_TOKENS * HEAD_DIM));
    let k_scales = f16::from_f32(0.01).to_le_bytes().repeat(BLOCK_TOKENS);
    let (queries, mut out) = (queries(&q, case.on), vec![0.0; case.on * GROUP_HEADS * SPAN_TOKENS]);
    bencher
        .counter(page_ops(case.on))
        .bench_local(|| (case.kernels.scores_int8)(&queries, &q_scales, &k_rows, &k_scales, BLOCK_TOKENS, &mut out));
}

#[divan::bench(args = query_tokens())]
fn accumulate(bencher: Bencher, case: &Case<usize>) {
    let p = floats(case.on * GROUP_HEADS * SPAN_TOKENS);
    let (v_rows, o) = (floats(BLOCK_TOKENS * HEAD_DIM), vec![0.0; case.on * GROUP_HEADS * HEAD_DIM]);
    let with_o = bencher.counter(page_ops(case.on)).with_inputs(|| o.clone());
    with_o.bench_local_refs(|o| (case.kernels.accumulate)(&p, &v_rows, BLOCK_TOKENS, HEAD_DIM, o));
}

#[divan::bench(args = cases([SPAN_TOKENS]))]
fn softmax_span(bencher: Bencher, case: &Case<usize>) {
    let scores = floats(case.on);
    let with_scores = bencher.counter(ItemsCount::new(case.on)).with_inputs(|| scores.clone());
    with_scores.bench_local_refs(|scores| (case.kernels.softmax_span)(scores));
}

#[divan::bench(args = cases([BLOCK_TOKENS, SPAN_TOKENS]))]
fn scale(bencher: Bencher, case: &Case<usize>) {
    let (p, scales) = (floats(case.on), f16::from_f32(0.5).to_le_bytes().repeat(case.on));
    let with_p = bencher.counter(ItemsCount::new(case.on)).with_inputs(|| p.clone());
    with_p.bench_local_refs(|p| (case.kernels.scale)(p, &scales));
}

#[divan::bench(args = cases([HEAD_DIM]))]
fn merge(bencher: Bencher, case: &Case<usize>) {
    let (o, span_o) = (floats(case.on), floats(case.on));
    let with_o = bencher.counter(ItemsCount::new(3 * case.on)).with_inputs(|| o.clone());
    with_o.bench_local_refs(|o| (case.kernels.merge)(&mut (1.0, 2.0), o, (1.5, 3.0), &span_o));
}

#[divan::bench(args = kv_types())]
fn encode(bencher: Bencher, case: &Case<KvType>) {
    let row = floats(HEAD_DIM);
    let (mut stored, mut scale) = (vec![0; case.on.row_bytes(HEAD_DIM)], vec![0; case.on.scale_bytes()]);
    bencher
        .counter(BytesCount::of_slice(&row))
        .bench_local(|| (case.kernels.encode)(case.on, &row, &mut stored, &mut scale));
}

#[divan::bench(args = kv_types())]
fn widen(bencher: Bencher, case: &Case<KvType>) {
    let (stored, mut rows) = (bytes(BLOCK_TOKENS * case.on.row_bytes(HEAD_DIM)), vec![0.0; BLOCK_TOKENS * HEAD_DIM]);
    bencher.counter(BytesCount::of_slice(&stored)).bench_local(|| (case.kernels.widen)(case.on, &stored, &mut rows));
}

#[divan::bench(args = cases([HEAD_DIM]))]
fn quantize_head(bencher: Bencher, case: &Case<usize>) {
    let (head, mut q) = (floats(case.on), vec![0; case.on]);
    bencher.counter(BytesCount::of_slice(&head)).bench_local(|| (case.kernels.quantize_head)(&head, &mut q));
}

/// A way to draw a token.
#[derive(Clone)]
struct Draw {
    name: &'static str,
    params: Params,
    text_tokens: u32,
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The whole chains that matter, and each stage by itself: with the draw, which is dear where much is left.
fn draws() -> Vec<Draw> {
    let all = Params {
        repeat_penalty: 1.1,
        dry: Dry { multiplier: 0.8, last_n: -1, ..Dry::default() },
        top_n_sigma: 1.0,
        typical: 0.9,
        xtc: Xtc { probability: 1.0, threshold: 0.05 },
        dynatemp: Dynatemp { range: 0.2, exponent: 1.0 },
        ..Params::default()
    };
    let greedy = Params { temperature: 0.0, biases: vec![(7, 0.5)], ..Params::default() };
    let banned = Params { banned: vec![2, 7], ..Params::default() };
    let mirostat = Params { mirostat: Some(Mirostat::default()), ..Params::default() };
    let whole = [
        ("default", Params::default()),
        ("default, greedy with a bias", greedy),
        ("default with banned tokens", banned),
        ("default, every stage on", all.clone()),
        ("mirostat", mirostat),
        ("no stage", Params { chain: Chain(vec![]), ..all.clone() }),
    ];
    let alone = Stage::ALL.map(|stage| (stage.name(), Params { chain: Chain(vec![stage]), ..all.clone() }));
    let long = Draw {
        name: "dry after 65536 tokens",
        params: Params { chain: Chain(vec![Stage::Dry]), ..all },
        text_tokens: 65_536,
    };
    let short = whole.into_iter().chain(alone).map(|(name, params)| Draw { name, params, text_tokens: 1024 });
    short.chain([long]).collect()
}

/// One token of SmolLM2's vocabulary. Logits: a bell, and a few far above it.
#[divan::bench(args = draws())]
fn sample(bencher: Bencher, draw: &Draw) {
    const VOCAB: usize = 49_152;
    let uniform = floats(4 * VOCAB);
    let mut logits: Vec<f32> = uniform.chunks(4).map(|four| 3.0 * four.iter().sum::<f32>()).collect();
    logits.iter_mut().step_by(4000).for_each(|logit| *logit += 12.0);
    let mut sampler = Sampler::new(draw.params.clone());
    (0..draw.text_tokens).for_each(|at| sampler.accept(at % 300));
    bencher.bench_local(|| sampler.sample(&logits).expect("the logits are finite"));
}
