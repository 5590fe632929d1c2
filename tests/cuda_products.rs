//! The CUDA kernels of matrix products against the CPU's plain kernels: every form of weights, odd sizes, values that are
//! not finite, and bits that depend on nothing but the row and the token.

mod support {
    #[allow(dead_code, reason = "each test file uses its part")]
    pub mod cuda_driver;
}

use sayfa::backend::cpu::Simd;
use sayfa::backend::cpu::kernels::{Kernels, Team};
use sayfa::backend::cuda::testing::{
    self as cuda, Buffer, Device, Layout, Matrices, PLANES, Products, Ptr, Rows, XGroup,
};
use sayfa::model;
use sayfa::quant::activation::{Precision, QuantTile, TILE};
use sayfa::quant::{DType, GROUP, dequantize_row};
use support::cuda_driver::{self, Order};

/// A decode product adds the groups of a row in another order than the CPU: what that may change, as a fraction of the sum
/// of magnitudes. Rows here have up to 72 groups, and each addition rounds by half of this at most.
const ORDER: f32 = 32.0 * f32::EPSILON;

/// Rows of weights and tokens at and beside the edges of the tiles: 8 rows (two a warp), 64 rows; 4, 16 and 64 tokens.
const SIZES: [(usize, usize); 9] = [(1, 1), (7, 2), (8, 5), (9, 8), (33, 9), (65, 33), (33, 65), (130, 16), (64, 17)];

struct Gpu {
    device: Device,
    products: Products,
}

fn gpu(order: Order) -> Gpu {
    if let Some(stand_in) = cuda_driver::install() {
        stand_in.order(order);
    }
    let device = Device::open(0).expect("a device");
    let products = Products::new(&device).expect("the kernels are in the module");
    Gpu { device, products }
}

fn cpu() -> &'static Kernels {
    Simd::Scalar.kernels().expect("the plain kernels run everywhere")
}

/// Knuth's linear congruential generator: its upper bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// -1 to 1.
    fn float(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

fn quantized_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.is_quantized())
}

/// Columns that suit a type: few and odd numbers of groups, rows longer than a pass of a warp.
fn columns(dtype: DType) -> &'static [usize] {
    match dtype.block_elements() {
        1 => &[33, 64, 7, 520, 1000],
        32 => &[32, 64, 96, 288, 256, 2336],
        _ => &[256, 512, 2304],
    }
}

/// Where the f16 scales and minima of a block lie.
fn f16_scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::MXFP4 | DType::F32 | DType::F16 | DType::BF16 => &[],
    }
}

/// Weights of ordinary sizes: random quants, scales about 0.01 to either side.
fn weights(dtype: DType, rows: usize, cols: usize, random: &mut Random) -> model::Matrix {
    let bytes = match dtype {
        DType::F32 => random.floats(rows * cols).iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => {
            random.floats(rows * cols).iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect::<Vec<u8>>()
        }
        DType::BF16 => random.floats(rows * cols).iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => {
            let mut bytes = any_bits(dtype, rows, cols, random);
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                for &at in f16_scales(dtype) {
                    block[at..at + 2].copy_from_slice(&half::f16::from_f32(0.01 * random.float()).to_le_bytes());
                }
                if dtype == DType::MXFP4 {
                    block[0] = 118 + (random.next() % 5) as u8;
                }
            }
            bytes
        }
    };
    model::Matrix::in_memory(dtype, rows, cols, &bytes)
}

/// Weights of any bits: scales may be infinite, NaN, subnormal.
fn any_bits(dtype: DType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let bytes = rows * dtype.row_bytes(cols as u64).expect("whole blocks") as usize;
    (0..bytes).map(|_| random.next() as u8).collect()
}

/// A matrix on the device.
struct Loaded {
    params: cuda::Matrix,
    _planes: Buffer<u8>,
    _bias: Option<Buffer<f32>>,
}

impl Gpu {
    fn load(&self, weight: &model::Matrix, bias: Option<&[f32]>) -> Loaded {
        let layout = Layout::new(weight.dtype, weight.rows, weight.cols);
        let rows = 0..weight.rows;
        let mut planes: [Vec<u8>; PLANES] =
            std::array::from_fn(|plane| vec![0; layout.plane_rows(plane, rows.clone()).len()]);
        cuda::repack(weight.dtype, weight.rows_data(rows.clone()), planes.each_mut().map(|plane| &mut plane[..]));
        let memory = self.device.alloc(layout.bytes()).unwrap();
        for (plane, bytes) in planes.iter().enumerate() {
            self.device.write(&memory, layout.plane_rows(plane, rows.clone()).start, bytes).unwrap();
        }
        if let (Some(table), Some(start)) = (layout.table(), layout.plane_start(PLANES - 1)) {
            self.device.write(&memory, start, &table.map(|value| value as u8)).unwrap();
        }
        let plane = |n: usize| layout.plane_start(n).map_or(Ptr::NULL, |start| memory.at(start, 0));
        let bias = bias.map(|bias| self.device.upload(bias).unwrap());
        let params = cuda::Matrix {
            quants: plane(0),
            high: plane(1),
            scales: plane(2),
            supers: plane(3),
            bias: bias.as_ref().map_or(Ptr::NULL, Buffer::ptr),
            form: layout.form() as i32,
            rows: weight.rows as i32,
        };
        Loaded { params, _planes: memory, _bias: bias }
    }

    /// Room for `n` rows of outputs, filled with a value that no product gives.
    fn outputs(&self, n: usize, stride: usize) -> Buffer<f32> {
        self.device.upload(&vec![UNTOUCHED; n * stride]).unwrap()
    }

    fn read<T: Copy + Default + cudarc::driver::DeviceRepr>(&self, buffer: &Buffer<T>) -> Vec<T> {
        let mut values = vec![T::default(); buffer.len()];
        self.device.read(buffer, 0, &mut values).unwrap();
        values
    }

    /// Rows of outputs (n, rows) of a matrix for all of `input`, by a prefill's kernel or a decode step's.
    fn product(&self, prefill: bool, weight: &Loaded, input: &Input, from: usize, n: usize) -> Vec<f32> {
        let (rows, stride) = (weight.params.rows as usize, weight.params.rows as usize + 3);
        let out = self.outputs(n, stride);
        let (input, to) = (input.rows(from, n), (out.ptr(), stride));
        if prefill {
            self.products.matmul(&self.device, &weight.params, &input, to, n).unwrap();
        } else {
            self.products.matvec(&self.device, &one(&weight.params), &input, to, n).unwrap();
        }
        let all = self.read(&out);
        let (inside, outside): (Vec<_>, Vec<_>) = all.chunks_exact(stride).map(|row| row.split_at(rows)).unzip();
        assert!(outside.concat().iter().all(|&x| x == UNTOUCHED), "wrote past the last row");
        inside.concat()
    }
}

const UNTOUCHED: f32 = -12345.0;

fn one(matrix: &cuda::Matrix) -> Matrices {
    Matrices { matrix: [*matrix, cuda::Matrix::NONE, cuda::Matrix::NONE], count: 1, unused: 0 }
}

/// Rows of activations on the host, as the CPU's kernels take them, and on the device.
struct Input {
    x: Vec<f32>,
    cols: usize,
    tiles: Vec<QuantTile>,
    on_device: (Buffer<f32>, Buffer<i8>, Buffer<XGroup>),
}

impl Input {
    fn new(gpu: &Gpu, cols: usize, x: Vec<f32>) -> Input {
        let n = x.len() / cols;
        let mut tiles = vec![QuantTile::with_capacity(Precision::Int8, cols); n.div_ceil(TILE)];
        let (mut q, mut groups) = (vec![0i8; n * cols], Vec::new());
        for (i, (tile, rows)) in tiles.iter_mut().zip(x.chunks(TILE * cols)).enumerate() {
            tile.set_width(rows.len() / cols);
            for (token, row) in rows.chunks(cols).enumerate() {
                tile.quantize(token, row);
                for g in 0..cols / GROUP {
                    q[(i * TILE + token) * cols + g * GROUP..][..GROUP].copy_from_slice(&tile.group(g, 0, token));
                    let sum = [0, 1].map(|half| tile.half_sums(g, half)[token] as i16);
                    groups.push(XGroup { scale: tile.x_scale(g)[token], sum });
                }
            }
        }
        let upload = "room for the activations";
        let device = &gpu.device;
        let on_device =
            (device.upload(&x).expect(upload), device.upload(&q).expect(upload), device.upload(&groups).expect(upload));
        Input { x, cols, tiles, on_device }
    }

    fn random(gpu: &Gpu, cols: usize, n: usize, random: &mut Random) -> Input {
        Input::new(gpu, cols, random.floats(n * cols))
    }

    fn n(&self) -> usize {
        self.x.len() / self.cols
    }

    fn rows(&self, from: usize, n: usize) -> Rows {
        let (x, q, groups) = &self.on_device;
        let groups_a_row = self.cols / GROUP;
        let cols = self.cols;
        Rows {
            q: if groups_a_row > 0 { q.at(from * cols, n * cols) } else { Ptr::NULL },
            groups: if groups_a_row > 0 { groups.at(from * groups_a_row, n * groups_a_row) } else { Ptr::NULL },
            x: x.at(from * cols, n * cols),
            cols: cols as i32,
            unused: 0,
        }
    }
}

/// (n, rows) as the CPU's plain kernels have it.
fn on_cpu(weight: &model::Matrix, input: &Input, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![0.0; input.n() * weight.rows];
    Team::new(1).unwrap().run(|crew| {
        crew.split_columns(&mut out, weight.rows, weight.rows, |block| {
            if weight.dtype.is_quantized() {
                (cpu().matmul_quantized)(weight, 0..weight.rows, &input.tiles, &[], block, 0);
            } else {
                (cpu().matmul_float)(weight, 0..weight.rows, &input.x, block, 0);
            }
        });
    });
    if let Some(bias) = bias {
        out.chunks_exact_mut(weight.rows).for_each(|row| row.iter_mut().zip(bias).for_each(|(x, b)| *x += b));
    }
    out
}

/// (n, rows): the sum of the magnitudes of what is added up, by which rounding errors are measured.
fn magnitudes(weight: &model::Matrix, input: &Input) -> Vec<f32> {
    let mut row = vec![0.0; weight.cols];
    let mut out = vec![0.0; input.n() * weight.rows];
    for r in 0..weight.rows {
        dequantize_row(weight.dtype, weight.rows_data(r..r + 1), &mut row);
        for (token, x) in input.x.chunks_exact(weight.cols).enumerate() {
            out[token * weight.rows + r] = row.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
        }
    }
    out
}

fn assert_same_bits(made: &[f32], want: &[f32], what: &str) {
    assert_eq!(made.len(), want.len(), "{what}");
    for (i, (made, want)) in made.iter().zip(want).enumerate() {
        let same = made.to_bits() == want.to_bits() || (made.is_nan() && want.is_nan());
        assert!(same, "{what}: output {i} is {made:e}, {want:e} expected");
    }
}

fn assert_close(made: &[f32], want: &[f32], magnitudes: &[f32], tolerance: f32, what: &str) {
    for (i, ((made, want), magnitude)) in made.iter().zip(want).zip(magnitudes).enumerate() {
        let error = (made - want).abs();
        assert!(error <= tolerance * magnitude, "{what}: output {i} is {made:e}, {want:e} expected (of {magnitude:e})");
    }
}

#[test]
fn prefill_products_are_the_cpus_to_the_bit() {
    let gpu = gpu(Order::Random { seed: 1 });
    let mut random = Random(1);
    for (t, dtype) in quantized_types().enumerate() {
        for (i, &(rows, n)) in SIZES.iter().enumerate() {
            let cols = columns(dtype)[(i + t) % columns(dtype).len()];
            let weight = weights(dtype, rows, cols, &mut random);
            let bias = (i % 2 == 1).then(|| random.floats(rows));
            let input = Input::random(&gpu, cols, n, &mut random);
            let made = gpu.product(true, &gpu.load(&weight, bias.as_deref()), &input, 0, n);
            let what = format!("{} ({rows}, {cols}), {n} tokens", dtype.name());
            assert_same_bits(&made, &on_cpu(&weight, &input, bias.as_deref()), &what);
        }
    }
}

#[test]
fn whatever_the_bits_of_weights_and_inputs_prefill_products_are_the_cpus() {
    let gpu = gpu(Order::Reverse);
    let mut random = Random(2);
    for dtype in quantized_types() {
        let (rows, cols, n) = (70, 512, 20);
        let weight = model::Matrix::in_memory(dtype, rows, cols, &any_bits(dtype, rows, cols, &mut random));
        let mut x: Vec<f32> = (0..n * cols).map(|i| random.float() * 10f32.powi((i / 64 % 70) as i32 - 35)).collect();
        (x[5], x[cols + 40], x[2 * cols + 3]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        x[3 * cols..4 * cols].fill(0.0);
        x[4 * cols..5 * cols].fill(1e-40);
        let input = Input::new(&gpu, cols, x);
        let made = gpu.product(true, &gpu.load(&weight, None), &input, 0, n);
        assert_same_bits(&made, &on_cpu(&weight, &input, None), dtype.name());
        assert!(made[..3 * rows].iter().all(|x| !x.is_finite()), "{}: a bad input vanished", dtype.name());
    }
}

#[test]
fn decode_products_are_near_the_cpus_and_a_token_has_its_bits_alone_or_in_a_batch() {
    let gpu = gpu(Order::Random { seed: 3 });
    let mut random = Random(3);
    for (t, dtype) in DType::ALL.into_iter().enumerate() {
        for (i, &(rows, n)) in SIZES[..7].iter().enumerate() {
            let cols = columns(dtype)[(i + t) % columns(dtype).len()];
            let weight = weights(dtype, rows, cols, &mut random);
            let bias = (i % 2 == 1).then(|| random.floats(rows));
            let input = Input::random(&gpu, cols, n, &mut random);
            let loaded = gpu.load(&weight, bias.as_deref());
            let made = gpu.product(false, &loaded, &input, 0, n);
            let what = format!("{} ({rows}, {cols}), {n} tokens", dtype.name());
            let want = on_cpu(&weight, &input, bias.as_deref());
            assert_close(&made, &want, &magnitudes(&weight, &input), ORDER, &what);
            for token in [0, n / 2, n - 1] {
                let alone = gpu.product(false, &loaded, &input, token, 1);
                assert_same_bits(&alone, &made[token * rows..][..rows], &what);
            }
        }
    }
}

#[test]
fn a_bad_value_reaches_every_output_of_its_token_and_no_other() {
    let gpu = gpu(Order::Forward);
    let mut random = Random(4);
    for dtype in DType::ALL {
        let (rows, cols, n) = (19, 256, 3);
        let weight = weights(dtype, rows, cols, &mut random);
        let mut x = random.floats(n * cols);
        (x[cols + 77], x[2 * cols + 200]) = (f32::NAN, f32::INFINITY);
        let input = Input::new(&gpu, cols, x);
        for prefill in [false, true] {
            let made = gpu.product(prefill, &gpu.load(&weight, None), &input, 0, n);
            let (good, bad) = made.split_at(rows);
            assert!(good.iter().all(|x| x.is_finite()), "{}", dtype.name());
            assert!(bad.iter().all(|x| !x.is_finite()), "{}", dtype.name());
        }
    }
}

#[test]
fn matrices_side_by_side_give_what_each_gives_alone() {
    let gpu = gpu(Order::Random { seed: 5 });
    let mut random = Random(5);
    let (cols, n) = (512, 6);
    let input = Input::random(&gpu, cols, n, &mut random);
    // the types of a Q4_K_M file, and sizes that leave blocks of each matrix unfilled
    let parts = [(DType::Q4_K, 35), (DType::Q4_K, 16), (DType::Q6_K, 5)];
    let weights = parts.map(|(dtype, rows)| weights(dtype, rows, cols, &mut random));
    let loaded = [0, 1, 2].map(|i| gpu.load(&weights[i], (i == 1).then(|| random.floats(16)).as_deref()));
    let stride = 35 + 16 + 5;
    let out = gpu.outputs(n, stride);
    let matrices = Matrices { matrix: [0, 1, 2].map(|i| loaded[i].params), count: 3, unused: 0 };
    gpu.products.matvec(&gpu.device, &matrices, &input.rows(0, n), (out.ptr(), stride), n).unwrap();
    let together = gpu.read(&out);
    let alone = [0, 1, 2].map(|i| gpu.product(false, &loaded[i], &input, 0, n));
    for (token, row) in together.chunks_exact(stride).enumerate() {
        let rows = |i: usize| &alone[i][token * parts[i].1..][..parts[i].1];
        assert_same_bits(row, &[rows(0), rows(1), rows(2)].concat(), &format!("token {token}"));
    }
}

/// What a kernel wrote as rows: f32, levels and groups.
struct Written {
    x: Vec<f32>,
    q: Vec<i8>,
    groups: Vec<XGroup>,
}

/// Room for `n` rows in both forms, filled by `write`.
fn written(gpu: &Gpu, n: usize, cols: usize, write: impl FnOnce(&Rows)) -> Written {
    let (x, q) = (gpu.outputs(n, cols), gpu.device.upload(&vec![99i8; n * cols]).unwrap());
    let groups = gpu.device.upload(&vec![XGroup::default(); n * cols / GROUP]).unwrap();
    write(&Rows { q: q.ptr(), groups: groups.ptr(), x: x.ptr(), cols: cols as i32, unused: 0 });
    Written { x: gpu.read(&x), q: gpu.read(&q), groups: gpu.read(&groups) }
}

/// The levels and sums are those that the CPU makes of the same values.
fn assert_quantized(written: &Written, n: usize, cols: usize, what: &str) {
    let mut tile = QuantTile::with_capacity(Precision::Int8, cols);
    tile.set_width(1);
    for token in 0..n {
        tile.quantize(0, &written.x[token * cols..][..cols]);
        for g in 0..cols / GROUP {
            let at = token * cols / GROUP + g;
            let made = written.groups[at];
            assert_same_bits(&[made.scale], &[tile.x_scale(g)[0]], what);
            assert_eq!(written.q[at * GROUP..][..GROUP], tile.group(g, 0, 0), "{what}: token {token}, group {g}");
            assert_eq!(made.sum.map(i32::from), [0, 1].map(|half| tile.half_sums(g, half)[0]), "{what}");
        }
    }
}

#[test]
fn gate_and_up_in_one_kernel() {
    let gpu = gpu(Order::Random { seed: 6 });
    let mut random = Random(6);
    for (gate_type, up_type, cols) in
        [(DType::Q4_0, DType::Q4_0, 288), (DType::Q4_K, DType::Q6_K, 768), (DType::F16, DType::Q8_0, 64)]
    {
        for (hidden, n) in [(32, 1), (96, 3), (64, 9)] {
            let what = format!("{} and {}, hidden {hidden}, {n} tokens", gate_type.name(), up_type.name());
            let input = Input::random(&gpu, cols, n, &mut random);
            let (gate, up) =
                (weights(gate_type, hidden, cols, &mut random), weights(up_type, hidden, cols, &mut random));
            let bias = random.floats(hidden);
            let loaded = [gpu.load(&gate, Some(&bias)), gpu.load(&up, None)];
            let gate_up =
                Matrices { matrix: [loaded[0].params, loaded[1].params, cuda::Matrix::NONE], count: 2, unused: 0 };
            let made = written(&gpu, n, hidden, |out| {
                gpu.products.gate_up(&gpu.device, &gate_up, &input.rows(0, n), out, n).unwrap();
            });
            assert_quantized(&made, n, hidden, &what);

            // the same products one by one, and the CPU's silu: bit for bit
            let (mut gates, ups) =
                (gpu.product(false, &loaded[0], &input, 0, n), gpu.product(false, &loaded[1], &input, 0, n));
            (cpu().silu_mul)(&mut gates, &ups);
            assert_same_bits(&made.x, &gates, &what);
        }
    }
}

/// The host chooses the size of blocks by the size of the device.
#[test]
fn the_size_of_blocks_changes_no_bit() {
    let gpu = gpu(Order::Random { seed: 10 });
    let mut random = Random(10);
    let (hidden, cols) = (160, 1280);
    let loaded = [DType::Q4_K, DType::Q4_0].map(|dtype| gpu.load(&weights(dtype, hidden, cols, &mut random), None));
    let matrices = Matrices { matrix: [loaded[0].params, loaded[1].params, cuda::Matrix::NONE], count: 2, unused: 0 };
    for (name, tokens, n) in [("matvec_1", 1, 2), ("matvec_4", 4, 7)] {
        let kernel = gpu.device.kernel(name).unwrap();
        let input = Input::random(&gpu, cols, n, &mut random);
        let results = [128, 256].map(|threads| {
            let launch = |row_blocks: usize, (out, stride): (Ptr<f32>, usize), fused: Rows| {
                let grid = ((row_blocks * n.div_ceil(tokens)) as u32, 1, 1);
                let args = (matrices, input.rows(0, n), out, stride as i32, fused, n as i32);
                // SAFETY: the arguments of both kernels, and n rows of each buffer.
                unsafe { gpu.device.launch(&kernel, cuda::blocks(grid, threads, 0), &args).unwrap() }
            };
            let out = gpu.outputs(n, 2 * hidden);
            let block_rows = threads as usize / 16;
            launch(2 * hidden.div_ceil(block_rows), (out.ptr(), 2 * hidden), Rows::NONE);
            let fused = written(&gpu, n, hidden, |fused| launch(hidden.div_ceil(32), (Ptr::NULL, 0), *fused));
            (gpu.read(&out), fused)
        });
        let [(out, fused), (other_out, other_fused)] = &results;
        assert_same_bits(out, other_out, name);
        assert_same_bits(&fused.x, &other_fused.x, name);
        assert_eq!(fused.q, other_fused.q, "{name}");
        assert_quantized(fused, n, hidden, name);
    }
}

#[test]
fn gate_and_up_of_a_hidden_size_that_is_not_whole_groups() {
    let gpu = gpu(Order::Reverse);
    let mut random = Random(7);
    let (hidden, cols, n) = (41, 96, 5);
    let input = Input::random(&gpu, cols, n, &mut random);
    let loaded = [0, 1].map(|_| gpu.load(&weights(DType::Q5_1, hidden, cols, &mut random), None));
    let gate_up = Matrices { matrix: [loaded[0].params, loaded[1].params, cuda::Matrix::NONE], count: 2, unused: 0 };
    let out = gpu.outputs(n, hidden);
    let rows = Rows { x: out.ptr(), cols: hidden as i32, ..Rows::NONE };
    gpu.products.gate_up(&gpu.device, &gate_up, &input.rows(0, n), &rows, n).unwrap();
    let (mut gates, ups) = (gpu.product(false, &loaded[0], &input, 0, n), gpu.product(false, &loaded[1], &input, 0, n));
    (cpu().silu_mul)(&mut gates, &ups);
    assert_same_bits(&gpu.read(&out), &gates, "f32 alone");
}

#[test]
fn silu_is_the_cpus_to_the_bit_for_every_kind_of_value() {
    let gpu = gpu(Order::Random { seed: 8 });
    let mut random = Random(8);
    let special = [0.0, -0.0, 1e-40, -1e-40, 87.0, 88.5, -87.3, -87.4, -88.5, 200.0, -200.0, f32::MAX, f32::MIN];
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let (hidden, n) = (96, 7);
    let mut gate_up: Vec<f32> = (0..2 * n * hidden).map(|i| random.float() * [1.0, 10.0, 100.0][i / 32 % 3]).collect();
    gate_up[..special.len()].copy_from_slice(&special);
    gate_up[6 * 2 * hidden..][..3].copy_from_slice(&bad);
    let on_device = gpu.device.upload(&gate_up).unwrap();
    let made = written(&gpu, n, hidden, |out| {
        gpu.products.silu(&gpu.device, on_device.ptr(), hidden, out, n).unwrap();
    });
    let mut want = Vec::new();
    for row in gate_up.chunks_exact(2 * hidden) {
        let (gate, up) = row.split_at(hidden);
        let mut gate = gate.to_vec();
        (cpu().silu_mul)(&mut gate, up);
        want.extend(gate);
    }
    assert_same_bits(&made.x, &want, "silu");
    assert_quantized(&made, n, hidden, "silu");

    // without int8 any hidden size will do
    let (hidden, out) = (33, gpu.outputs(2, 33));
    let rows = Rows { x: out.ptr(), cols: hidden as i32, ..Rows::NONE };
    gpu.products.silu(&gpu.device, on_device.ptr(), hidden, &rows, 2).unwrap();
    let (gate, up) = gate_up[66..132].split_at(33);
    let mut want = gate.to_vec();
    (cpu().silu_mul)(&mut want, up);
    assert_same_bits(&gpu.read(&out)[33..], &want, "silu of 33");
}

#[test]
fn float_products_of_a_prefill_are_near_the_cpus_and_keep_their_bits_in_any_tile() {
    let gpu = gpu(Order::Random { seed: 9 });
    let mut random = Random(9);
    for (t, dtype) in [DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
        for (i, &(rows, n)) in SIZES.iter().enumerate() {
            let cols = columns(dtype)[(i + t) % 5];
            let weight = weights(dtype, rows, cols, &mut random);
            let bias = (i % 2 == 0).then(|| random.floats(rows));
            let input = Input::random(&gpu, cols, n, &mut random);
            let loaded = gpu.load(&weight, bias.as_deref());
            let made = gpu.product(true, &loaded, &input, 0, n);
            let what = format!("{} ({rows}, {cols}), {n} tokens", dtype.name());
            // one chain along the row: each of the `cols` additions rounds by itself
            let chain = ORDER.max(cols as f32 * f32::EPSILON / 2.0);
            let want = on_cpu(&weight, &input, bias.as_deref());
            assert_close(&made, &want, &magnitudes(&weight, &input), chain, &what);
            let last = gpu.product(true, &loaded, &input, n - 1, 1);
            assert_same_bits(&last, &made[(n - 1) * rows..], &what);
        }
    }
}
