//! CUDA kernels that work on one row: the norm, RoPE with the cache's rows, the likeliest token. Each against what the CPU
//! computes, bit for bit where the arithmetic is the same.

#[path = "support/cuda_driver.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod cuda_driver;
#[path = "support/cuda_kernels.rs"]
#[allow(dead_code)]
mod cuda_kernels;

use cuda_kernels::{Gpu, Noise, Output, all_same, gpu, kv_layer, row_ranges, same};
use half::f16;
use sayfa::backend::cpu::Simd;
use sayfa::backend::cuda::testing::{Best, Heads, Ptr, Queries, Step, Token};
use sayfa::kv::layout::{Half, KvType, Layout};
use sayfa::kv::rows::{encode, rotate};

/// The norm sums squares in another order than the CPU: up to 8192 of them, a few units in the last place.
const NORM_TOLERANCE: f64 = 1e-6;

const EPS: f32 = 1e-5;

/// x and y (rows, dim) -> x after the kernel, and the norm of the wanted rows.
fn add_norm(gpu: &Gpu, x: &[f32], y: Option<&[f32]>, weight: &[f32], wanted: &[i32]) -> (Vec<f32>, Vec<f32>) {
    let dim = weight.len();
    let (x, weight, wanted_on) = (gpu.upload(x), gpu.upload(weight), gpu.upload(wanted));
    let y = y.map(|y| gpu.upload(y));
    let y = y.as_ref().map_or(Ptr::NULL, |y| y.ptr());
    let out = Output::new(gpu, wanted.len(), dim);
    let rows = if dim.is_multiple_of(32) { out.rows() } else { out.rows_f32() };
    let (device, n) = (&gpu.device, wanted.len());
    gpu.attend.add_norm(device, (x.ptr(), y), (weight.ptr(), EPS), dim, wanted_on.ptr(), &rows, n).unwrap();
    let normed = if dim.is_multiple_of(32) { out.checked(gpu) } else { out.x(gpu) };
    (gpu.read(&x), normed)
}

#[test]
fn the_norm_is_the_cpus_in_every_length() {
    let gpu = gpu();
    for dim in [1, 31, 32, 33, 100, 576, 2048, 8192] {
        let mut noise = Noise::new(dim as u64);
        let (x, y, weight) = (noise.vec(3 * dim, 1.0), noise.vec(3 * dim, 1.0), noise.vec(dim, 2.0));
        for y in [None, Some(&y[..])] {
            let added: Vec<f32> = (0..3 * dim)
                .map(|i| if (dim..2 * dim).contains(&i) { x[i] } else { x[i] + y.map_or(0.0, |y| y[i]) })
                .collect();
            let (after, normed) = add_norm(&gpu, &x, y, &weight, &[2, 0]);
            assert!(all_same(&after, &added), "x += y of the wanted rows, and of no other, at {dim}");
            for (normed, row) in normed.chunks(dim).zip([2, 0]) {
                let x = &added[row * dim..(row + 1) * dim];
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / dim as f64;
                let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
                for ((&normed, &x), &weight) in normed.iter().zip(x).zip(&weight) {
                    let exact = f64::from(x) * scale * f64::from(weight);
                    assert!(
                        (f64::from(normed) - exact).abs() <= NORM_TOLERANCE * exact.abs(),
                        "{normed} for {exact}, {dim}"
                    );
                }
            }
        }
    }
}

#[test]
fn squares_that_overflow_show_in_the_norm_and_in_its_groups() {
    let gpu = gpu();
    for bad in [1e30, f32::INFINITY, f32::NAN] {
        let mut x = vec![0.5f32; 2 * 96];
        x[40] = bad;
        let (_, normed) = add_norm(&gpu, &x, None, &[1.0; 96], &[0, 1]);
        assert!(normed[..96].iter().all(|x| x.is_nan()) && normed[96..].iter().all(|x| x.is_finite()), "{bad}");
    }
}

/// What the kernel makes of qkv (n, (n_heads + 2 * kv_heads) * head_dim): the pool, q, q8 and its scales.
struct Stored {
    pool: Vec<u8>,
    q: Vec<f32>,
    q8: Vec<i8>,
    q8_scale: Vec<f32>,
}

const UNTOUCHED: u8 = 0xa5;
const GROUP: usize = 3;
const KV_HEADS: usize = 2;
const N_HEADS: usize = GROUP * KV_HEADS;
const MAX_PAGES: usize = 3;
/// Two sequences whose pages lie in no order, and a block of nobody.
const PAGES: [i32; 2 * MAX_PAGES] = [4, 1, 6, 0, 5, 2];
const TOKENS: [Token; 5] = [
    Token { sequence: 0, slot: 0 },
    Token { sequence: 0, slot: 15 },
    Token { sequence: 0, slot: 16 },
    Token { sequence: 1, slot: 31 },
    Token { sequence: 1, slot: 33 },
];

fn rope_store(gpu: &Gpu, layout: &Layout, qkv: &[f32], cos: &[f32], sin: &[f32]) -> Stored {
    let head_dim = layout.head_dim();
    let pool = gpu.upload(&vec![UNTOUCHED; 7 * layout.device_stride()]);
    let n = TOKENS.len();
    let (q, q8) =
        (gpu.upload(&vec![-12345f32; n * N_HEADS * head_dim]), gpu.upload(&vec![-128i8; n * N_HEADS * head_dim]));
    let (q8_scale, qkv) = (gpu.upload(&vec![-1f32; n * N_HEADS]), gpu.upload(qkv));
    let (tokens, pages, cos, sin) = (gpu.upload(&TOKENS), gpu.upload(&PAGES), gpu.upload(cos), gpu.upload(sin));
    let step = Step {
        tokens: tokens.ptr(),
        pages: pages.ptr(),
        cos: cos.ptr(),
        sin: sin.ptr(),
        max_pages: MAX_PAGES as i32,
        unused: 0,
    };
    let heads = Heads { n_heads: N_HEADS as i32, n_kv_heads: KV_HEADS as i32, head_dim: head_dim as i32, scale: 1.0 };
    let queries = Queries { q: q.ptr(), q8: q8.ptr(), q8_scale: q8_scale.ptr() };
    gpu.attend.rope_store(&gpu.device, qkv.ptr(), (&step, &heads, &kv_layer(&pool, layout)), &queries, n).unwrap();
    Stored { pool: gpu.read(&pool), q: gpu.read(&q), q8: gpu.read(&q8), q8_scale: gpu.read(&q8_scale) }
}

/// The same by the CPU's functions.
fn rope_store_by_cpu(layout: &Layout, qkv: &[f32], cos: &[f32], sin: &[f32]) -> Stored {
    let head_dim = layout.head_dim();
    let quantize_head = Simd::Scalar.kernels().expect("plain Rust runs everywhere").quantize_head;
    let width = (N_HEADS + 2 * KV_HEADS) * head_dim;
    let mut stored = Stored {
        pool: vec![UNTOUCHED; 7 * layout.device_stride()],
        q: vec![-12345.0; TOKENS.len() * N_HEADS * head_dim],
        q8: vec![-128; TOKENS.len() * N_HEADS * head_dim],
        q8_scale: vec![-1.0; TOKENS.len() * N_HEADS],
    };
    for (t, (token, row)) in TOKENS.iter().zip(qkv.chunks(width)).enumerate() {
        for (h, head) in row.chunks(head_dim).enumerate() {
            let mut head = head.to_vec();
            let half = if h < N_HEADS + KV_HEADS { Half::K } else { Half::V };
            if half == Half::K {
                for (i, pair) in head.chunks_exact_mut(2).enumerate() {
                    let (a, b, cos, sin) = (pair[0], pair[1], cos[t * head_dim / 2 + i], sin[t * head_dim / 2 + i]);
                    (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
                }
            }
            let kv_type = layout.row_type(half);
            if kv_type.is_rotated() {
                rotate(&mut head);
            }
            if h < N_HEADS {
                let at = (t * N_HEADS + h) * head_dim..(t * N_HEADS + h + 1) * head_dim;
                match kv_type {
                    KvType::Int8 => stored.q8_scale[t * N_HEADS + h] = quantize_head(&head, &mut stored.q8[at]),
                    _ => stored.q[at].copy_from_slice(&head),
                }
                continue;
            }
            let block = PAGES[token.sequence as usize * MAX_PAGES + token.slot as usize / 16] as u32;
            let place = (block, half, (h - N_HEADS) % KV_HEADS, token.slot as usize % 16);
            let (row, scale) = row_ranges(layout, place);
            let mut scale_bytes = vec![0; scale.len()];
            encode(kv_type, &head, &mut stored.pool[row], &mut scale_bytes);
            stored.pool[scale].copy_from_slice(&scale_bytes);
        }
    }
    stored
}

fn angles(noise: &mut Noise, head_dim: usize) -> (Vec<f32>, Vec<f32>) {
    (0..TOKENS.len() * head_dim / 2).map(|_| (noise.next() * 3.0).sin_cos()).map(|(sin, cos)| (cos, sin)).unzip()
}

#[test]
fn rope_store_leaves_the_bytes_of_the_cpu_and_no_other() {
    let gpu = gpu();
    for head_dim in [32, 64, 96, 128, 192, 256] {
        for k_type in [KvType::F16, KvType::Int8] {
            for v_type in [KvType::F16, KvType::Int8] {
                let layout = Layout::new(&[KV_HEADS], head_dim, k_type, v_type);
                let mut noise = Noise::new(head_dim as u64);
                let mut qkv = noise.vec(TOKENS.len() * (N_HEADS + 2 * KV_HEADS) * head_dim, 3.0);
                qkv[head_dim..3 * head_dim].fill(0.0); // heads of zeros
                qkv[(N_HEADS + KV_HEADS - 1) * head_dim..][..head_dim].fill(0.0);
                qkv[4 * head_dim] = 1e-42; // and values that f16 and int8 round hard
                qkv[(N_HEADS + KV_HEADS) * head_dim + 1] = 1e-7;
                let (cos, sin) = angles(&mut noise, head_dim);
                let (ours, cpus) =
                    (rope_store(&gpu, &layout, &qkv, &cos, &sin), rope_store_by_cpu(&layout, &qkv, &cos, &sin));
                let what = format!("head_dim {head_dim}, K {}, V {}", k_type.name(), v_type.name());
                assert!(all_same(&ours.q, &cpus.q), "q: {what}");
                assert!(ours.q8 == cpus.q8 && all_same(&ours.q8_scale, &cpus.q8_scale), "int8 q: {what}");
                let differs = ours.pool.iter().zip(&cpus.pool).position(|(ours, cpus)| ours != cpus);
                assert_eq!(differs, None, "byte of the pool: {what}");
            }
        }
    }
}

#[test]
fn damage_stays_visible_in_the_stored_rows() {
    let gpu = gpu();
    for (bad, as_f16) in [(f32::NAN, f16::NAN), (1e6, f16::INFINITY), (f32::NEG_INFINITY, f16::NEG_INFINITY)] {
        for kv_type in [KvType::F16, KvType::Int8] {
            let layout = Layout::new(&[KV_HEADS], 64, kv_type, kv_type);
            let mut noise = Noise::new(5);
            let width = (N_HEADS + 2 * KV_HEADS) * 64;
            let mut qkv = noise.vec(TOKENS.len() * width, 1.0);
            // the first V head of the second token
            qkv[width + (N_HEADS + KV_HEADS) * 64 + 9] = if kv_type == KvType::Int8 { bad * 1e4 } else { bad };
            let (cos, sin) = angles(&mut noise, 64);
            let stored = rope_store(&gpu, &layout, &qkv, &cos, &sin);
            let (row, scale) = row_ranges(&layout, (PAGES[0] as u32, Half::V, 0, 15));
            let at = if kv_type == KvType::Int8 { scale.start } else { row.start + 2 * 9 };
            let value = f16::from_le_bytes([stored.pool[at], stored.pool[at + 1]]);
            match kv_type {
                KvType::Int8 => assert!(!value.is_finite(), "the scale says {value} where a value was {bad}"),
                _ => assert!(same(value.to_f32(), as_f16.to_f32()), "{value} for {bad}"),
            }
        }
    }
}

#[test]
fn the_likeliest_token_is_the_lowest_of_the_best_and_damage_is_told() {
    let gpu = gpu();
    let best = |logits: &[f32], n: usize| -> Vec<Best> {
        let (logits, out) = (gpu.upload(logits), gpu.upload(&vec![Best { id: -1, finite: -1 }; n]));
        gpu.attend.best(&gpu.device, logits.ptr(), logits.len() / n, out.ptr(), n).unwrap();
        gpu.read(&out)
    };
    for vocab in [1, 2, 31, 33, 1000, 1025, 5000] {
        let mut noise = Noise::new(vocab as u64);
        // few different values, so that there are ties
        let logits: Vec<f32> = noise.vec(3 * vocab, 20.0).iter().map(|x| x.floor()).collect();
        for (row, best) in logits.chunks(vocab).zip(best(&logits, 3)) {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let id = row.iter().position(|&logit| logit == max).unwrap();
            assert_eq!(best, Best { id: id as i32, finite: 1 }, "of {vocab}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut damaged = logits.clone();
            damaged[2 * vocab - 1] = bad;
            let finite: Vec<i32> = best(&damaged, 3).iter().map(|best| best.finite).collect();
            assert_eq!(finite, [1, 0, 1], "{bad} at the end of {vocab}");
        }
    }
    assert_eq!(best(&[-1.0, -0.0, 0.0], 1)[0].id, 1, "zeros are a tie whatever their sign");
    assert_eq!(best(&[f32::MIN, f32::MIN], 1)[0], Best { id: 0, finite: 1 });
}
