//! Stands in for what the CUDA backend is about to bring.

pub mod cuda {
    use crate::backend::cpu::{Activations, ScratchBytes, Widths};
    use crate::kv::layout::KvType;

    pub fn lacks(widths: &Widths, k: KvType, v: KvType, activations: Activations) -> Option<String> {
        if widths.n_experts > 0 {
            return Some("models with experts do not run on the GPU".to_string());
        }
        if !widths.head_dim.is_multiple_of(32) || widths.head_dim > 256 {
            return Some(format!("heads of {} elements do not run on the GPU", widths.head_dim));
        }
        if [k, v].contains(&KvType::F32) {
            return Some("the GPU keeps keys and values in f16 or int8, not in f32".to_string());
        }
        (activations != Activations::Int8).then(|| "the GPU computes with 8-bit activations only".to_string())
    }

    pub mod forms {
        use crate::quant::DType;

        pub fn device_bytes(dtype: DType, rows: usize, cols: usize) -> u64 {
            dtype.row_bytes(cols as u64).unwrap_or(0) * rows as u64
        }
    }

    pub fn scratch_bytes(widths: &Widths, batch: usize, logits: usize, _sequences: usize) -> ScratchBytes {
        let fixed = (batch * (4 * widths.dim + 3 * widths.hidden_dim) + logits * widths.vocab) as u64 * 4;
        ScratchBytes { fixed, per_context_token: 4 }
    }
}

use std::sync::Arc;

use crate::backend::{Backend, cpu};
use crate::model::Model;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub ordinal: usize,
    pub offloaded: usize,
    pub graphs: bool,
}

pub fn open(model: Arc<Model>, options: &cpu::Options, gpu: Option<Gpu>) -> anyhow::Result<Box<dyn Backend>> {
    assert!(gpu.is_none());
    cpu::open(model, options)
}
