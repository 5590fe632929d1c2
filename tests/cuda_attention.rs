//! CUDA attention, of one token a sequence by spans and of many by tiles, against f64 arithmetic on the stored rows; and that
//! a row's bits depend on nothing but the row.

#[path = "support/cuda_driver.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod cuda_driver;
#[path = "support/cuda_kernels.rs"]
#[allow(dead_code)]
mod cuda_kernels;

use std::ops::Range;

use cuda_driver::Order;
use cuda_kernels::{Gpu, Noise, Output, all_same, gpu, kv_layer, row_ranges, same, stored_values};
use sayfa::backend::cpu::Simd;
use sayfa::backend::cpu::kernels::{Queries as CpuQueries, SPAN_TOKENS};
use sayfa::backend::cuda::testing::{Heads, KvLayer, Queries, Step, Tile, Token};
use sayfa::kv::layout::{BLOCK_TOKENS, Half, KvType, Layout};
use sayfa::kv::rows::{encode, rotate};

/// Of f32 sums against f64, in parts of a head's largest value: 2.2e-6 was the most seen.
const ATTENTION_TOLERANCE: f64 = 1e-5;

const COMBINATIONS: [(KvType, KvType); 4] = [
    (KvType::F16, KvType::F16),
    (KvType::F16, KvType::Int8),
    (KvType::Int8, KvType::F16),
    (KvType::Int8, KvType::Int8),
];

/// A sequence: entries before the batch, and tokens in it. Its numbers follow from `seed` alone.
#[derive(Clone, Copy)]
struct Sequence {
    seed: u64,
    cached: usize,
    new: usize,
}

/// Query heads per KV head, KV heads, elements of a head.
type Sizes = (usize, usize, usize);

/// Sequences in a pool, as the host sees them, and the queries of their new tokens.
struct Scene {
    layout: Layout,
    group: usize,
    kv_heads: usize,
    sequences: Vec<Sequence>,
    /// Blocks of each sequence.
    pages: Vec<Vec<u32>>,
    max_pages: usize,
    pool: Vec<u8>,
    /// (n, n_heads, head_dim), or as int8 when K is
    q: Vec<f32>,
    q8: Vec<i8>,
    q8_scale: Vec<f32>,
}

impl Scene {
    /// V within -`v_size` .. `v_size`. Blocks in an order of `shuffle`; what nobody has written is 0xff: NaN in f16, and in
    /// the scales of int8.
    fn new(
        (group, kv_heads, head_dim): Sizes,
        kv: (KvType, KvType),
        sequences: &[Sequence],
        v_size: f32,
        shuffle: u64,
    ) -> Scene {
        let layout = Layout::new(&[kv_heads], head_dim, kv.0, kv.1);
        let needed = |s: &Sequence| (s.cached + s.new).div_ceil(BLOCK_TOKENS);
        let n_blocks = sequences.iter().map(needed).sum::<usize>() + 3;
        let mut free = Noise::new(shuffle).order(n_blocks).into_iter();
        let pages: Vec<Vec<u32>> = sequences.iter().map(|s| free.by_ref().take(needed(s)).collect()).collect();
        let max_pages = pages.iter().map(Vec::len).max().unwrap_or(0);
        let pool = vec![0xff; n_blocks * layout.device_stride()];
        let (q, q8, q8_scale) = (Vec::new(), Vec::new(), Vec::new());
        let sequences = sequences.to_vec();
        let mut scene = Scene { layout, group, kv_heads, sequences, pages, max_pages, pool, q, q8, q8_scale };
        let quantize_head = Simd::Scalar.kernels().expect("plain Rust runs everywhere").quantize_head;
        for s in 0..scene.sequences.len() {
            let Sequence { seed, cached, new } = scene.sequences[s];
            let mut noise = Noise::new(seed);
            for entry in 0..cached + new {
                for (half, size) in [(Half::K, 2.0), (Half::V, v_size)] {
                    for kv_head in 0..kv_heads {
                        scene.put(s, half, kv_head, entry, &noise.vec(head_dim, size));
                    }
                }
            }
            for _ in 0..new * group * kv_heads {
                let head = noise.vec(head_dim, 3.0);
                let mut int8 = vec![0; head_dim];
                scene.q8_scale.push(quantize_head(&head, &mut int8));
                scene.q8.extend(int8);
                scene.q.extend(head);
            }
        }
        scene
    }

    fn n_heads(&self) -> usize {
        self.group * self.kv_heads
    }

    fn cols(&self) -> usize {
        self.n_heads() * self.layout.head_dim()
    }

    fn ranges(&self, s: usize, half: Half, kv_head: usize, entry: usize) -> (Range<usize>, Range<usize>) {
        let block = self.pages[s][entry / BLOCK_TOKENS];
        row_ranges(&self.layout, (block, half, kv_head, entry % BLOCK_TOKENS))
    }

    /// Stores a row.
    fn put(&mut self, s: usize, half: Half, kv_head: usize, entry: usize, row: &[f32]) {
        let (at, scale_at) = self.ranges(s, half, kv_head, entry);
        let mut scale = vec![0; scale_at.len()];
        encode(self.layout.row_type(half), row, &mut self.pool[at], &mut scale);
        self.pool[scale_at].copy_from_slice(&scale);
    }

    fn values(&self, s: usize, half: Half, kv_head: usize, entry: usize) -> Vec<f64> {
        let (row, scale) = self.ranges(s, half, kv_head, entry);
        stored_values(self.layout.row_type(half), &self.pool[row], &self.pool[scale])
    }

    /// (sequence, slot) of each token of the batch.
    fn tokens(&self) -> Vec<Token> {
        let rows = self.sequences.iter().enumerate();
        let tokens = rows.flat_map(|(s, row)| {
            (row.cached..row.cached + row.new).map(move |slot| Token { sequence: s as i32, slot: slot as i32 })
        });
        tokens.collect()
    }

    /// (n, n_heads * head_dim) in f64.
    fn exact(&self) -> Vec<f64> {
        let head_dim = self.layout.head_dim();
        let is_int8 = |half| self.layout.row_type(half) == KvType::Int8;
        let mut out = Vec::new();
        for (t, token) in self.tokens().iter().enumerate() {
            let (s, seen) = (token.sequence as usize, token.slot as usize + 1);
            for kv_head in 0..self.kv_heads {
                let rows = |half| (0..seen).map(|e| self.values(s, half, kv_head, e)).collect::<Vec<_>>();
                let (keys, values) = (rows(Half::K), rows(Half::V));
                let first = t * self.n_heads() + kv_head * self.group;
                for query in first..first + self.group {
                    let at = query * head_dim..(query + 1) * head_dim;
                    let q: Vec<f64> = if is_int8(Half::K) {
                        self.q8[at].iter().map(|&q| f64::from(q) * f64::from(self.q8_scale[query])).collect()
                    } else {
                        self.q[at].iter().map(|&q| f64::from(q)).collect()
                    };
                    let dot =
                        |k: &Vec<f64>| k.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() / (head_dim as f64).sqrt();
                    let scores: Vec<f64> = keys.iter().map(dot).collect();
                    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let p: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                    let l: f64 = p.iter().sum();
                    let o = |i: usize| p.iter().zip(&values).map(|(p, v)| p * v[i]).sum::<f64>() / l;
                    let mut o: Vec<f32> = (0..head_dim).map(|i| o(i) as f32).collect();
                    if is_int8(Half::V) {
                        rotate(&mut o);
                    }
                    out.extend(o.iter().map(|&o| f64::from(o)));
                }
            }
        }
        out
    }

    /// Runs `launch` on the scene; the device has nothing but NaN, and the stand-in a trap, in blocks of nobody.
    fn on<T>(&self, gpu: &Gpu, launch: impl FnOnce(&Step, &Heads, &KvLayer, &Queries) -> T) -> T {
        let pool = gpu.upload(&self.pool);
        let mut table = vec![-1_000_000; self.pages.len() * self.max_pages];
        for (row, pages) in table.chunks_mut(self.max_pages).zip(&self.pages) {
            row.iter_mut().zip(pages).for_each(|(cell, &page)| *cell = page as i32);
        }
        let (tokens, pages, angles) = (gpu.upload(&self.tokens()), gpu.upload(&table), gpu.upload(&[0f32]));
        let (cos, sin) = (angles.ptr(), angles.ptr());
        let step =
            Step { tokens: tokens.ptr(), pages: pages.ptr(), cos, sin, max_pages: self.max_pages as i32, unused: 0 };
        let head_dim = self.layout.head_dim();
        let heads = Heads {
            n_heads: self.n_heads() as i32,
            n_kv_heads: self.kv_heads as i32,
            head_dim: head_dim as i32,
            scale: 1.0 / (head_dim as f32).sqrt(),
        };
        let (q, q8, q8_scale) = (gpu.upload(&self.q), gpu.upload(&self.q8), gpu.upload(&self.q8_scale));
        let queries = Queries { q: q.ptr(), q8: q8.ptr(), q8_scale: q8_scale.ptr() };
        let stride = self.layout.device_stride();
        let owned = |block: usize| self.pages.iter().flatten().any(|&page| page as usize == block);
        let nobodys: Vec<u64> = (0..self.pool.len() / stride)
            .filter(|&block| !owned(block))
            .map(|block| pool.at(block * stride, stride).address())
            .collect();
        if let Some(stand_in) = gpu.stand_in {
            nobodys.iter().for_each(|&block| stand_in.poison(block, stride));
        }
        let result = launch(&step, &heads, &kv_layer(&pool, &self.layout), &queries);
        gpu.device.synchronize("a test").expect("the kernels run well");
        if let Some(stand_in) = gpu.stand_in {
            nobodys.iter().for_each(|&block| stand_in.unpoison(block, stride));
        }
        result
    }

    /// By spans: the result, and the partial ones (n, n_heads, spans, head_dim + 2). `spare` spans more than needed.
    fn decode(&self, gpu: &Gpu, spare: usize) -> (Vec<f32>, Vec<f32>) {
        assert!(self.sequences.iter().all(|s| s.new == 1), "one token a sequence");
        let (n, spans) = (self.sequences.len(), (self.max_pages * BLOCK_TOKENS).div_ceil(SPAN_TOKENS) + spare);
        self.on(gpu, |step, heads, kv, queries| {
            let partial = gpu.upload(&vec![f32::NAN; n * self.n_heads() * spans * (self.layout.head_dim() + 2)]);
            let out = Output::new(gpu, n, self.cols());
            let of = (step, heads, kv);
            gpu.attend.spans(&gpu.device, of, queries, (partial.ptr(), spans), n).unwrap();
            gpu.attend.merge(&gpu.device, of, (partial.ptr(), spans), &out.rows(), n).unwrap();
            (out.checked(gpu), gpu.read(&partial))
        })
    }

    /// By tiles of up to `most` tokens, as many as fit when that is too much.
    fn prefill(&self, gpu: &Gpu, most: usize) -> Vec<f32> {
        let most = most.min(64 / self.group);
        let mut tiles = Vec::new();
        let mut first = 0;
        for s in &self.sequences {
            let tile = |at: usize| Tile { first: (first + at) as i32, count: most.min(s.new - at) as i32 };
            tiles.extend((0..s.new).step_by(most).map(tile));
            first += s.new;
        }
        self.on(gpu, |step, heads, kv, queries| {
            let out = Output::new(gpu, first, self.cols());
            let on_device = gpu.upload(&tiles);
            let tiles = (on_device.ptr(), tiles.len());
            gpu.attend.prefill(&gpu.device, (step, heads, kv), queries, tiles, &out.rows()).unwrap();
            out.checked(gpu)
        })
    }

    fn what(&self) -> String {
        let types = [Half::K, Half::V].map(|half| self.layout.row_type(half).name());
        let lengths: Vec<_> = self.sequences.iter().map(|s| (s.cached, s.new)).collect();
        format!("group {}, head_dim {}, K and V {types:?}, {lengths:?}", self.group, self.layout.head_dim())
    }

    fn assert_exact(&self, ours: &[f32]) {
        let exact = self.exact();
        assert_eq!(ours.len(), exact.len());
        let head_dim = self.layout.head_dim();
        for (ours, exact) in ours.chunks(head_dim).zip(exact.chunks(head_dim)) {
            let largest = exact.iter().fold(0f64, |max, x| max.max(x.abs()));
            for (ours, exact) in ours.iter().zip(exact) {
                let error = (f64::from(*ours) - exact).abs() / largest;
                assert!(error <= ATTENTION_TOLERANCE, "{ours} for {exact}: {}", self.what());
            }
        }
    }
}

fn one(seed: u64, cached: usize) -> Sequence {
    Sequence { seed, cached, new: 1 }
}

#[test]
fn decode_is_exact_at_every_edge_of_a_page_and_a_span() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        for tokens in [1, 15, 16, 17, 255, 256, 257, 511, 513] {
            let scene = Scene::new((4, 1, 64), kv, &[one(tokens as u64, tokens - 1), one(9, tokens / 2)], 1.0, 3);
            scene.assert_exact(&scene.decode(&gpu, 1).0);
        }
    }
}

#[test]
fn decode_is_exact_for_every_head_size_and_group() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        for head_dim in (32..=256).step_by(32) {
            let scene = Scene::new((3, 2, head_dim), kv, &[one(1, 40)], 1.0, 4);
            scene.assert_exact(&scene.decode(&gpu, 0).0);
        }
        for group in [1, 2, 3, 4, 5, 8, 9, 16] {
            let scene = Scene::new((group, 2, 64), kv, &[one(2, 270)], 1.0, 5);
            scene.assert_exact(&scene.decode(&gpu, 0).0);
        }
    }
}

#[test]
fn prefill_is_exact_at_every_edge_of_a_page_and_a_chunk() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        for new in [2, 15, 16, 17, 63, 64, 65, 257] {
            let scene = Scene::new((4, 1, 64), kv, &[Sequence { seed: new as u64, cached: 0, new }], 1.0, 3);
            scene.assert_exact(&scene.prefill(&gpu, 64));
        }
        for cached in [1, 15, 16, 63, 64, 250, 511] {
            let scene = Scene::new((4, 1, 64), kv, &[Sequence { seed: 7, cached, new: 9 }], 1.0, 3);
            scene.assert_exact(&scene.prefill(&gpu, 64));
        }
    }
}

#[test]
fn prefill_is_exact_for_every_head_size_and_group() {
    let gpu = gpu();
    let two = [Sequence { seed: 1, cached: 7, new: 30 }, Sequence { seed: 2, cached: 0, new: 3 }];
    for kv in COMBINATIONS {
        for head_dim in (32..=256).step_by(32) {
            let scene = Scene::new((3, 1, head_dim), kv, &two, 1.0, 4);
            scene.assert_exact(&scene.prefill(&gpu, 64));
        }
        for group in [1, 2, 3, 4, 8, 16, 64] {
            let scene = Scene::new((group, 2, 64), kv, &two, 1.0, 5);
            scene.assert_exact(&scene.prefill(&gpu, 64));
        }
    }
}

/// Case D13 of the fault list: sums of large V leave the range of f16.
#[test]
fn large_values_over_a_long_context_stay_finite_and_exact() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        let mut scene = Scene::new((2, 1, 64), kv, &[one(1, 1999)], 3e4, 1);
        for entry in 0..2000 {
            let row: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { 3e4 } else { -3e4 + entry as f32 }).collect();
            scene.put(0, Half::V, 0, entry, &row);
        }
        scene.assert_exact(&scene.decode(&gpu, 0).0);
        scene.sequences[0] = Sequence { seed: 1, cached: 1998, new: 2 };
        scene.q.extend(scene.q.clone());
        scene.q8.extend(scene.q8.clone());
        scene.q8_scale.extend(scene.q8_scale.clone());
        scene.assert_exact(&scene.prefill(&gpu, 64));
    }
}

/// Scores of int8 are exact integers, and exp and the order of l are the CPU's: m and l have its bits.
#[test]
fn int8_scores_and_their_softmax_have_the_bits_of_the_cpu() {
    let gpu = gpu();
    let cpu = Simd::Scalar.kernels().expect("plain Rust runs everywhere");
    for (head_dim, cached) in [(64, 299), (96, 20), (128, 511)] {
        let scene = Scene::new((3, 2, head_dim), (KvType::Int8, KvType::F16), &[one(5, cached)], 1.0, 6);
        let (_, partial) = scene.decode(&gpu, 0);
        let spans = (cached + 1).div_ceil(SPAN_TOKENS);
        for head in 0..scene.n_heads() {
            let scale = scene.q8_scale[head] * (1.0 / (head_dim as f32).sqrt());
            let q = &scene.q8[head * head_dim..(head + 1) * head_dim];
            for span in 0..spans {
                let n = (cached + 1 - span * SPAN_TOKENS).min(SPAN_TOKENS);
                let mut scores = vec![0f32; SPAN_TOKENS];
                for i in 0..n {
                    let (row, k_scale) = scene.ranges(0, Half::K, head / scene.group, span * SPAN_TOKENS + i);
                    let query = CpuQueries { q, stride: head_dim, tokens: 1, heads: 1, head_dim };
                    (cpu.scores_int8)(&query, &[scale], &scene.pool[row], &scene.pool[k_scale], 1, &mut scores[i..]);
                }
                let (m, l) = (cpu.softmax_span)(&mut scores[..n]);
                let ml = &partial[(head * spans + span) * (head_dim + 2) + head_dim..][..2];
                assert!(
                    same(ml[0], m) && same(ml[1], l),
                    "{ml:?} for {m}, {l}: head {head}, span {span}, {}",
                    scene.what()
                );
            }
        }
    }
}

#[test]
fn decode_bits_depend_on_the_row_alone() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        let rows = [one(1, 300), one(2, 15), one(3, 511)];
        let together = Scene::new((3, 2, 64), kv, &rows, 1.0, 1);
        let (expected, _) = together.decode(&gpu, 0);
        for (row, expected) in rows.iter().zip(expected.chunks(together.cols())) {
            // alone, in other blocks, in a bucket for longer ones
            let alone = Scene::new((3, 2, 64), kv, &[*row], 1.0, 99).decode(&gpu, 3).0;
            assert!(all_same(&alone, expected), "{}", together.what());
        }
        let other_blocks = Scene::new((3, 2, 64), kv, &rows, 1.0, 77).decode(&gpu, 1).0;
        assert!(all_same(&other_blocks, &expected), "{}", together.what());
    }
}

#[test]
fn prefill_bits_depend_on_the_token_alone() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        let rows = [Sequence { seed: 1, cached: 70, new: 23 }, Sequence { seed: 2, cached: 3, new: 9 }];
        let scene = Scene::new((4, 1, 64), kv, &rows, 1.0, 1);
        let expected = scene.prefill(&gpu, 16);
        for most in [1, 5] {
            assert!(all_same(&scene.prefill(&gpu, most), &expected), "tiles of {most}, {}", scene.what());
        }
        let alone = Scene::new((4, 1, 64), kv, &rows[1..], 1.0, 99).prefill(&gpu, 16);
        assert!(all_same(&alone, &expected[23 * scene.cols()..]), "{}", scene.what());
    }
}

#[test]
fn no_bit_depends_on_the_order_of_threads_and_blocks() {
    let gpu = gpu();
    // on hardware, whose order is its own, the runs are repetitions
    let set = |order| gpu.stand_in.into_iter().for_each(|stand_in| stand_in.order(order));
    let many = [Sequence { seed: 1, cached: 70, new: 9 }];
    for kv in COMBINATIONS {
        let run = |order| {
            set(order);
            let decoded = Scene::new((3, 2, 64), kv, &[one(1, 300)], 1.0, 1).decode(&gpu, 0).0;
            let prefilled = Scene::new((3, 2, 64), kv, &many, 1.0, 1).prefill(&gpu, 64);
            set(Order::Forward);
            [decoded, prefilled].concat()
        };
        let forward = run(Order::Forward);
        for order in [Order::Reverse, Order::Random { seed: 5 }] {
            assert!(all_same(&run(order), &forward), "{order:?}");
        }
    }
}

#[test]
fn damage_reaches_every_token_that_sees_it_and_no_other() {
    let gpu = gpu();
    for kv in COMBINATIONS {
        for (half, bad) in [(Half::K, f32::NAN), (Half::V, f32::NAN), (Half::V, f32::INFINITY)] {
            let rows = [Sequence { seed: 1, cached: 60, new: 12 }, Sequence { seed: 2, cached: 60, new: 12 }];
            let mut scene = Scene::new((2, 1, 64), kv, &rows, 1.0, 1);
            let whole = scene.prefill(&gpu, 16);
            // the seventh new token of the first sequence has a damaged row
            let mut row = vec![0.5; 64];
            row[3] = bad;
            scene.put(0, half, 0, 66, &row);
            let damaged = scene.prefill(&gpu, 16);
            for token in 0..24 {
                let at = token * scene.cols()..(token + 1) * scene.cols();
                let sees = (6..12).contains(&token);
                let what = format!("token {token}, {half:?} {bad}, {}", scene.what());
                if sees {
                    assert!(damaged[at].chunks(64).all(|head| head.iter().any(|x| !x.is_finite())), "{what}");
                } else {
                    assert!(all_same(&damaged[at.clone()], &whole[at]), "{what}");
                }
            }
            // and by spans: of two sequences the one with the damage
            scene.sequences = vec![one(1, 71), one(2, 71)];
            let heads = scene.n_heads();
            let (decoded, _) = scene.decode(&gpu, 0);
            let is_finite = |s: usize| decoded[s * heads * 64..(s + 1) * heads * 64].iter().all(|x| x.is_finite());
            assert!(!is_finite(0) && is_finite(1), "{half:?} {bad}, {}", scene.what());
        }
    }
}
