//! The blocks of the layers that a GPU holds: one allocation, cut by the layout that all devices share.

use anyhow::{Context, Result};

use super::driver::{Buffer, Device};
use super::params::KvLayer;
use crate::kv::layout::{BlockId, Half, KvType, Layout};

pub struct Pool {
    layout: Layout,
    n_blocks: usize,
    /// (n_blocks, stride) bytes
    bytes: Buffer<u8>,
}

impl Pool {
    pub fn new(device: &Device, layout: Layout, n_blocks: usize) -> Result<Pool> {
        let bytes = n_blocks * layout.device_stride();
        let bytes = device.alloc(bytes).with_context(|| {
            let mib = bytes.div_ceil(1 << 20);
            format!("the KV cache needs {mib} MiB on the GPU: use a smaller -c, --kv-type int8, or fewer layers (-ngl)")
        })?;
        Ok(Pool { layout, n_blocks, bytes })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where kernels find the rows of a layer, counted from the first that is held.
    pub fn layer(&self, layer: usize) -> KvLayer {
        let layout = &self.layout;
        KvLayer {
            pool: self.bytes.ptr(),
            block_stride: layout.device_stride() as i64,
            k_offset: layout.head_offset(layer, Half::K, 0) as i64,
            v_offset: layout.head_offset(layer, Half::V, 0) as i64,
            k_head_bytes: layout.head_bytes(Half::K) as i32,
            v_head_bytes: layout.head_bytes(Half::V) as i32,
            k_type: type_id(layout.row_type(Half::K)),
            v_type: type_id(layout.row_type(Half::V)),
        }
    }

    pub fn copy(&mut self, device: &Device, from: BlockId, to: BlockId) -> Result<()> {
        let (from, to) = (self.start(from), self.start(to));
        device.copy_within(&mut self.bytes, from, to, self.layout.block_bytes())
    }

    pub fn read(&self, device: &Device, block: BlockId, contents: &mut [u8]) -> Result<()> {
        device.read(&self.bytes, self.start(block), contents)
    }

    pub fn write(&mut self, device: &Device, block: BlockId, contents: &[u8]) -> Result<()> {
        let start = self.start(block);
        device.write(&self.bytes, start, contents)
    }

    fn start(&self, block: BlockId) -> usize {
        assert!((block as usize) < self.n_blocks, "block {block} of {}", self.n_blocks);
        block as usize * self.layout.device_stride()
    }
}

/// As kernels/types.cuh numbers them.
fn type_id(kv_type: KvType) -> i32 {
    match kv_type {
        KvType::F16 => 0,
        KvType::Int8 => 1,
        KvType::F32 => panic!("F32 rows are refused before a pool is made"),
    }
}
