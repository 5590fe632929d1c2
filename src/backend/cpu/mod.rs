//! The decoder on the CPU.

use std::sync::Arc;

use crate::kv::layout::KvType;
use crate::model::Model;

/// Which SIMD table to use (`--simd`); `None` in `Options`: the best this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    Scalar,
    Avx2,
}

pub struct Options {
    /// 0: physical cores within the affinity mask and cgroup quota.
    pub threads: usize,
    pub simd: Option<Simd>,
    pub kv_type_k: KvType,
    pub kv_type_v: KvType,
    /// Most tokens in one batch.
    pub batch_tokens: usize,
}

/// Builds the CPU backend.
pub fn open(_model: Arc<Model>, _options: &Options) -> anyhow::Result<Box<dyn super::Backend>> {
    unimplemented!()
}
