//! The kernels of attention and its neighbours on the device under test, for the tests that launch them one by one.

use std::sync::{Mutex, MutexGuard, OnceLock};

use cudarc::driver::DeviceRepr;
use half::f16;
use sayfa::backend::cuda::testing::{Attend, Buffer, Device, KvLayer, Ptr, Rows, XGroup};
use sayfa::kv::layout::{Half, KvType, Layout};
use sayfa::quant::activation::{Precision, QuantTile};

use super::cuda_driver::{self, StandIn};

pub struct Gpu {
    pub device: Device,
    pub attend: Attend,
    /// None on a real GPU.
    pub stand_in: Option<&'static StandIn>,
}

/// One device for all tests of a process, for one of them at a time.
pub fn gpu() -> MutexGuard<'static, Gpu> {
    static GPU: OnceLock<Mutex<Gpu>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| {
        let stand_in = cuda_driver::install();
        let device = Device::open(0).expect("there is a device");
        let attend = Attend::new(&device).expect("the module has the kernels");
        Mutex::new(Gpu { device, attend, stand_in })
    });
    // what another test has failed at is no concern of the next one
    gpu.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Gpu {
    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> Buffer<T> {
        self.device.upload(values).expect("small buffers fit")
    }

    pub fn read<T: DeviceRepr + Clone + Default>(&self, buffer: &Buffer<T>) -> Vec<T> {
        let mut values = vec![T::default(); buffer.len()];
        self.device.read(buffer, 0, &mut values).expect("the kernels before ran well");
        values
    }
}

/// Rows of activations on the device, as f32 and quantized.
pub struct Output {
    n: usize,
    cols: usize,
    x: Buffer<f32>,
    q: Buffer<i8>,
    groups: Buffer<XGroup>,
}

impl Output {
    /// Filled with what no kernel leaves there.
    pub fn new(gpu: &Gpu, n: usize, cols: usize) -> Output {
        let group = XGroup { scale: -1.0, sum: [7, 7] };
        Output {
            n,
            cols,
            x: gpu.upload(&vec![-12345.0; n * cols]),
            q: gpu.upload(&vec![-128; n * cols]),
            groups: gpu.upload(&vec![group; n * cols / 32]),
        }
    }

    pub fn rows(&self) -> Rows {
        Rows { q: self.q.ptr(), groups: self.groups.ptr(), x: self.x.ptr(), cols: self.cols as i32, unused: 0 }
    }

    /// For a row length that has no groups.
    pub fn rows_f32(&self) -> Rows {
        Rows { q: Ptr::NULL, groups: Ptr::NULL, ..self.rows() }
    }

    pub fn x(&self, gpu: &Gpu) -> Vec<f32> {
        gpu.read(&self.x)
    }

    /// The f32 rows, after a look at their quantized form: bit for bit what the CPU makes of them.
    pub fn checked(&self, gpu: &Gpu) -> Vec<f32> {
        let (x, q, groups) = (self.x(gpu), gpu.read(&self.q), gpu.read(&self.groups));
        let mut tile = QuantTile::with_capacity(Precision::Int8, self.cols);
        tile.set_width(1);
        for row in 0..self.n {
            let at = row * self.cols..(row + 1) * self.cols;
            tile.quantize(0, &x[at.clone()]);
            for (g, group) in groups[at.start / 32..at.end / 32].iter().enumerate() {
                let (scale, sums) = (tile.x_scale(g)[0], [0, 1].map(|half| tile.half_sums(g, half)[0] as i16));
                assert_eq!(q[at.start + g * 32..][..32], tile.group(g, 0, 0), "row {row}, group {g}");
                assert_eq!(group.sum, sums, "row {row}, group {g}");
                assert!(same(group.scale, scale), "row {row}, group {g}: {} for {scale}", group.scale);
            }
        }
        x
    }
}

/// Equal bits, or both NaN: which NaN is the hardware's choice.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

pub fn all_same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| same(a, b))
}

/// Numbers that look random and are the same everywhere.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// Evenly within -1 .. 1.
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    pub fn vec(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|_| self.next() * size).collect()
    }

    /// 0..len in another order.
    pub fn order(&mut self, len: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..len as u32).collect();
        for i in (1..len).rev() {
            let other = ((self.next() + 1.0) / 2.0 * (i + 1) as f32) as usize;
            order.swap(i, other.min(i));
        }
        order
    }
}

/// A pool of one layer as kernels see it.
pub fn kv_layer(pool: &Buffer<u8>, layout: &Layout) -> KvLayer {
    let type_id = |half| i32::from(layout.row_type(half) == KvType::Int8);
    KvLayer {
        pool: pool.ptr(),
        block_stride: layout.device_stride() as i64,
        k_offset: layout.head_offset(0, Half::K, 0) as i64,
        v_offset: layout.head_offset(0, Half::V, 0) as i64,
        k_head_bytes: layout.head_bytes(Half::K) as i32,
        v_head_bytes: layout.head_bytes(Half::V) as i32,
        k_type: type_id(Half::K),
        v_type: type_id(Half::V),
    }
}

/// Where the row of an entry and its scale lie in a pool on the host: (start, stop) of both.
pub fn row_ranges(
    layout: &Layout,
    (block, half, kv_head, token): (u32, Half, usize, usize),
) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let start = block as usize * layout.device_stride() + layout.head_offset(0, half, kv_head);
    let (row, scale) = layout.token_ranges(half, token);
    (start + row.start..start + row.end, start + scale.start..start + scale.end)
}

/// The values of a stored row.
pub fn stored_values(kv_type: KvType, row: &[u8], scale: &[u8]) -> Vec<f64> {
    let f16_at = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
    match kv_type {
        KvType::Int8 => row.iter().map(|&byte| f64::from(byte as i8) * f16_at(scale)).collect(),
        _ => row.chunks(2).map(f16_at).collect(),
    }
}
