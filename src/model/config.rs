//! Hyper-parameters of a `llama` model, each checked before anything is divided or allocated by it.

use anyhow::{Result, bail};

use super::rope::{Rope, RopeOverrides};
use crate::gguf::{Gguf, Value};

/// More layers, heads or elements than any published model by far; keeps later products small and allocations sane.
const MAX_LAYERS: u64 = 4096;
const MAX_HEADS: u64 = 16_384;
const MAX_DIM: u64 = 1 << 22;
const MAX_CONTEXT: u64 = 1 << 31;
const MAX_EXPERTS: u64 = 4096;

/// Sizes that may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub hidden_dim: usize,
}

/// Mixture of experts: `used` of `count` feed-forward networks per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    pub count: usize,
    pub used: usize,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub n_layers: usize,
    pub dim: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Trained context length.
    pub context_tokens: usize,
    pub norm_eps: f32,
    pub layers: Vec<LayerShape>,
    pub experts: Option<ExpertShape>,
    pub rope: Rope,
}

impl Config {
    pub fn from_gguf(gguf: &Gguf, overrides: &RopeOverrides) -> Result<Config> {
        check_architecture(gguf)?;
        let n_layers = size(gguf, "llama.block_count", MAX_LAYERS)?;
        let dim = size(gguf, "llama.embedding_length", MAX_DIM)?;
        let context_tokens = size(gguf, "llama.context_length", MAX_CONTEXT)?;
        let experts = experts(gguf)?;
        let layers = layer_shapes(gguf, n_layers)?;
        let head_dim = head_dim(gguf, dim, &layers)?;
        let norm_eps = required(gguf, "llama.attention.layer_norm_rms_epsilon", gguf.float(EPS_KEY)?)?;
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            bail!(gguf.key_error(EPS_KEY, format_args!("{norm_eps} is not between 0 and 1")));
        }
        let vocab = vocab(gguf)?;
        let rope = Rope::from_gguf(gguf, head_dim, context_tokens, overrides)?;
        Ok(Config { n_layers, dim, head_dim, vocab, context_tokens, norm_eps, layers, experts, rope })
    }

    /// KV heads of each layer.
    pub fn kv_heads(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| layer.n_kv_heads).collect()
    }
}

const EPS_KEY: &str = "llama.attention.layer_norm_rms_epsilon";

fn check_architecture(gguf: &Gguf) -> Result<()> {
    let key = "general.architecture";
    match required(gguf, key, gguf.str(key)?)? {
        "llama" => Ok(()),
        other => bail!(gguf.key_error(key, format_args!("`{other}` is not supported, only `llama` is"))),
    }
}

fn required<T>(gguf: &Gguf, key: &str, value: Option<T>) -> Result<T> {
    match value {
        Some(value) => Ok(value),
        None => bail!(gguf.key_error(key, "is missing")),
    }
}

/// A required size between 1 and `max`.
fn size(gguf: &Gguf, key: &str, max: u64) -> Result<usize> {
    in_range(gguf, key, required(gguf, key, gguf.uint(key)?)?, max)
}

fn in_range(gguf: &Gguf, key: &str, value: u64, max: u64) -> Result<usize> {
    if value == 0 || value > max {
        bail!(gguf.key_error(key, format_args!("{value} is not between 1 and {max}")));
    }
    Ok(value as usize)
}

/// A size that is one number or one per layer; `None` when the key is absent.
fn per_layer(gguf: &Gguf, key: &str, n_layers: usize, max: u64) -> Result<Option<Vec<usize>>> {
    let values = match gguf.get(key) {
        None => return Ok(None),
        Some(Value::Array(array)) => {
            if array.len != n_layers {
                bail!(gguf.key_error(key, format_args!("{} values for {n_layers} layers", array.len)));
            }
            let number = |value: Value| match value.as_u64() {
                Some(value) => in_range(gguf, key, value, max),
                None => bail!(gguf.key_error(key, format_args!("{value:?} is not a size"))),
            };
            array.iter().map(number).collect::<Result<Vec<_>>>()?
        }
        Some(_) => vec![size(gguf, key, max)?; n_layers],
    };
    Ok(Some(values))
}

fn layer_shapes(gguf: &Gguf, n_layers: usize) -> Result<Vec<LayerShape>> {
    let key = "llama.attention.head_count";
    let heads = required(gguf, key, per_layer(gguf, key, n_layers, MAX_HEADS)?)?;
    let kv_key = "llama.attention.head_count_kv";
    let kv_heads = per_layer(gguf, kv_key, n_layers, MAX_HEADS)?.unwrap_or_else(|| heads.clone());
    let key = "llama.feed_forward_length";
    let hidden = required(gguf, key, per_layer(gguf, key, n_layers, MAX_DIM)?)?;
    let mut layers = Vec::with_capacity(n_layers);
    for ((n_heads, n_kv_heads), hidden_dim) in heads.into_iter().zip(kv_heads).zip(hidden) {
        if !n_heads.is_multiple_of(n_kv_heads) {
            bail!(gguf.key_error(kv_key, format_args!("{n_kv_heads} KV heads do not divide {n_heads} heads")));
        }
        layers.push(LayerShape { n_heads, n_kv_heads, hidden_dim });
    }
    Ok(layers)
}

/// Elements per head: its own key, else dim / n_heads.
fn head_dim(gguf: &Gguf, dim: usize, layers: &[LayerShape]) -> Result<usize> {
    let (k_key, v_key) = ("llama.attention.key_length", "llama.attention.value_length");
    let from_dim = || {
        let n_heads = layers[0].n_heads;
        if !dim.is_multiple_of(n_heads) {
            let what = format_args!("{n_heads} heads do not divide llama.embedding_length {dim}");
            bail!(gguf.key_error("llama.attention.head_count", what));
        }
        Ok(dim / n_heads)
    };
    let length = |key: &str| gguf.uint(key)?.map(|value| in_range(gguf, key, value, MAX_DIM)).transpose();
    let k = length(k_key)?.map_or_else(from_dim, Ok)?;
    let v = length(v_key)?.map_or_else(from_dim, Ok)?;
    if k != v {
        bail!(gguf.key_error(v_key, format_args!("{v} differs from {k_key} {k}, which `llama` models do not do")));
    }
    if !k.is_multiple_of(2) {
        bail!(gguf.key_error(k_key, format_args!("{k} is odd, RoPE turns pairs")));
    }
    Ok(k)
}

fn experts(gguf: &Gguf) -> Result<Option<ExpertShape>> {
    let (count_key, used_key) = ("llama.expert_count", "llama.expert_used_count");
    let count = gguf.uint(count_key)?.unwrap_or(0);
    if count == 0 {
        return Ok(None);
    }
    let count = in_range(gguf, count_key, count, MAX_EXPERTS)?;
    let used = size(gguf, used_key, count as u64)?;
    Ok(Some(ExpertShape { count, used }))
}

/// The vocabulary size: the token list, which `vocab_size` must agree with when both are there.
fn vocab(gguf: &Gguf) -> Result<usize> {
    let (list_key, size_key) = ("tokenizer.ggml.tokens", "llama.vocab_size");
    let listed = gguf.array(list_key)?.map(|list| list.len as u64);
    let declared = gguf.uint(size_key)?;
    match (listed, declared) {
        (Some(listed), Some(declared)) if listed != declared => {
            bail!(gguf.key_error(size_key, format_args!("{declared} differs from the {listed} entries of {list_key}")))
        }
        (Some(n), _) => in_range(gguf, list_key, n, u64::from(u32::MAX)),
        (None, n) => in_range(gguf, size_key, required(gguf, size_key, n)?, u64::from(u32::MAX)),
    }
}
