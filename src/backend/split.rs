//! A model on two devices: the embeddings and the first layers on the host, the rest and the output head on a GPU.
//!
//! Both parts share one numbering of blocks, and a block's contents are the host's layers followed by the GPU's, as in a
//! whole model: a saved session fits any split.

use anyhow::Result;

use super::{Backend, Batch, Info, Input, Output, Profile, Tap, Want};
use crate::kv::layout::BlockId;

pub struct Split {
    host: Box<dyn Backend>,
    gpu: Box<dyn Backend>,
    info: Info,
}

impl Split {
    /// `host` begins with tokens and ends with hidden rows, `gpu` goes on from there.
    pub fn new(host: Box<dyn Backend>, gpu: Box<dyn Backend>) -> Split {
        let (h, g) = (host.info(), gpu.info());
        assert_eq!(h.identity, g.identity, "two parts of one model, opened alike");
        let computes = h.weight_bytes_per_token > 0;
        let device = if computes { format!("{}; first layers: {}", g.device, h.device) } else { g.device.clone() };
        let info = Info {
            device,
            weight_bytes_per_token: h.weight_bytes_per_token + g.weight_bytes_per_token,
            kv_bytes_per_token: h.kv_bytes_per_token + g.kv_bytes_per_token,
            block_bytes: h.block_bytes + g.block_bytes,
            block_stride_bytes: h.block_stride_bytes + g.block_stride_bytes,
            batch_tokens: h.batch_tokens.min(g.batch_tokens),
            batch_logits: h.batch_logits.min(g.batch_logits),
            ..h.clone()
        };
        Split { host, gpu, info }
    }

    /// Whether the host holds K and V of some layers.
    fn host_has_blocks(&self) -> bool {
        self.host.info().block_bytes > 0
    }
}

impl Backend for Split {
    fn info(&self) -> &Info {
        &self.info
    }

    fn reserve(&mut self, n_blocks: usize, context_tokens: usize) -> Result<()> {
        if self.host_has_blocks() {
            self.host.reserve(n_blocks, context_tokens)?;
        }
        self.gpu.reserve(n_blocks, context_tokens)
    }

    fn run(&mut self, batch: &Batch, input: Input, want: Want) -> Result<Output<'_>> {
        let hidden = self.host.run(batch, input, Want::Hidden)?.hidden();
        self.gpu.run(batch, Input::Hidden(hidden), want)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        if self.host_has_blocks() {
            self.host.copy_block(from, to)?;
        }
        self.gpu.copy_block(from, to)
    }

    fn release_blocks(&mut self, blocks: &[BlockId]) {
        if self.host_has_blocks() {
            self.host.release_blocks(blocks);
        }
        self.gpu.release_blocks(blocks);
    }

    fn read_block(&self, block: BlockId, contents: &mut [u8]) -> Result<()> {
        let (host, gpu) = contents.split_at_mut(self.host.info().block_bytes as usize);
        if self.host_has_blocks() {
            self.host.read_block(block, host)?;
        }
        self.gpu.read_block(block, gpu)
    }

    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> Result<()> {
        let (host, gpu) = contents.split_at(self.host.info().block_bytes as usize);
        if self.host_has_blocks() {
            self.host.write_block(block, host)?;
        }
        self.gpu.write_block(block, gpu)
    }

    fn set_profiling(&mut self, on: bool) {
        self.host.set_profiling(on);
        self.gpu.set_profiling(on);
    }

    fn take_profile(&mut self) -> Option<Profile> {
        let mut profile = self.host.take_profile()?;
        let mut gpu = self.gpu.take_profile()?;
        // Both saw the same passes.
        gpu.passes = 0;
        profile.add(&gpu);
        Some(profile)
    }

    fn set_tap(&mut self, tap: Option<Tap>) {
        self.gpu.set_tap(tap);
    }

    fn measure_bandwidth(&self) -> Result<Option<f64>> {
        self.gpu.measure_bandwidth()
    }
}
