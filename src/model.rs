//! Config and weights of a `llama` model from a checked GGUF: every shape is proven once, here.

use crate::gguf::Gguf;

/// Command-line overrides of the file's RoPE settings, under llama.cpp's names.
#[derive(Clone, Debug, Default)]
pub struct RopeOverrides {
    pub freq_base: Option<f32>,
    pub freq_scale: Option<f32>,
    pub scaling: Option<RopeScaling>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    None,
    Linear,
    Yarn,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub n_layers: usize,
    pub dim: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Trained context length.
    pub context_tokens: usize,
}

pub struct Model {
    pub config: Config,
    /// Names of tensors in the file that the model does not use.
    pub unused_tensors: Vec<String>,
}

impl Model {
    pub fn from_gguf(_gguf: &Gguf, _overrides: &RopeOverrides) -> anyhow::Result<Model> {
        unimplemented!()
    }
    /// Bytes of all weights that a decode step reads.
    pub fn weights_bytes(&self) -> u64 {
        unimplemented!()
    }
}
