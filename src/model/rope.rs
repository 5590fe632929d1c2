//! Rotary position embedding: inverse frequencies once per model, cosines and sines per position.
//!
//! `llama` files turn adjacent pairs (2i, 2i + 1) by `position * inv_freq[i]`. Angles are computed in f64 by the `libm`
//! crate and rounded to f32 once: the system's functions differ between machines.

use anyhow::{Result, bail};

use crate::gguf::Gguf;
use crate::quant::dequantize_row;

/// Command-line overrides of the file's RoPE settings, under llama.cpp's names.
#[derive(Clone, Debug, Default)]
pub struct RopeOverrides {
    pub freq_base: Option<f32>,
    /// The factor on positions: 1 / the file's scaling factor.
    pub freq_scale: Option<f32>,
    pub scaling: Option<RopeScaling>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    None,
    Linear,
    Yarn,
}

/// How a model turns its queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// (head_dim / 2) radians per position
    inv_freq: Vec<f64>,
    /// Factor on cosine and sine (YaRN; 1 otherwise).
    magnitude: f64,
}

/// YaRN's parameters as GGUF names them.
struct Yarn {
    original_context: f64,
    ext_factor: f64,
    attn_factor: f64,
    beta_fast: f64,
    beta_slow: f64,
}

impl Rope {
    pub fn from_gguf(gguf: &Gguf, head_dim: usize, context: usize, overrides: &RopeOverrides) -> Result<Rope> {
        let key = "llama.rope.dimension_count";
        if let Some(n) = gguf.uint(key)?.filter(|&n| n != head_dim as u64) {
            bail!(gguf.key_error(key, format_args!("{n} differs from the head dimension {head_dim}")));
        }
        let base = match overrides.freq_base {
            Some(base) => base,
            None => positive(gguf, "llama.rope.freq_base")?.unwrap_or(10_000.0),
        };
        let plain = frequencies(f64::from(base), head_dim, &factors(gguf, head_dim)?);
        let scaling = match overrides.scaling {
            Some(scaling) => scaling,
            None => file_scaling(gguf)?,
        };
        let scale = match overrides.freq_scale {
            Some(scale) => f64::from(scale),
            None => 1.0 / f64::from(file_factor(gguf)?),
        };
        match scaling {
            RopeScaling::None => Ok(Rope { inv_freq: plain, magnitude: 1.0 }),
            RopeScaling::Linear => {
                Ok(Rope { inv_freq: plain.into_iter().map(|f| f * scale).collect(), magnitude: 1.0 })
            }
            RopeScaling::Yarn => Ok(yarn(plain, scale, f64::from(base), &Yarn::from_gguf(gguf, context)?)),
        }
    }

    /// Cosines and sines (head_dim / 2 each) at a position.
    pub fn angles(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((inv_freq, cos), sin) in self.inv_freq.iter().zip(cos).zip(sin) {
            let angle = f64::from(position) * inv_freq;
            *cos = (libm::cos(angle) * self.magnitude) as f32;
            *sin = (libm::sin(angle) * self.magnitude) as f32;
        }
    }
}

impl Yarn {
    fn from_gguf(gguf: &Gguf, context: usize) -> Result<Yarn> {
        let number = |key: &str, default: f64| Ok::<_, anyhow::Error>(gguf.float(key)?.map_or(default, f64::from));
        let original_key = "llama.rope.scaling.original_context_length";
        let original = gguf.uint(original_key)?.unwrap_or(context as u64);
        if original == 0 {
            bail!(gguf.key_error(original_key, "0 is not a context length"));
        }
        Ok(Yarn {
            original_context: original as f64,
            ext_factor: number("llama.rope.scaling.yarn_ext_factor", 1.0)?,
            attn_factor: number("llama.rope.scaling.attn_factor", 1.0)?
                * number("llama.rope.scaling.yarn_attn_factor", 1.0)?,
            beta_fast: number("llama.rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: number("llama.rope.scaling.yarn_beta_slow", 1.0)?,
        })
    }
}

/// A float key that must be above 0.
fn positive(gguf: &Gguf, key: &str) -> Result<Option<f32>> {
    let value = gguf.float(key)?;
    if let Some(bad) = value.filter(|&value| value <= 0.0) {
        bail!(gguf.key_error(key, format_args!("{bad} is not above 0")));
    }
    Ok(value)
}

fn file_scaling(gguf: &Gguf) -> Result<RopeScaling> {
    let key = "llama.rope.scaling.type";
    match gguf.str(key)? {
        None | Some("linear") => Ok(RopeScaling::Linear),
        Some("none") => Ok(RopeScaling::None),
        Some("yarn") => Ok(RopeScaling::Yarn),
        Some(other) => {
            bail!(gguf.key_error(key, format_args!("`{other}` is not supported (none, linear and yarn are)")))
        }
    }
}

/// How many times the context was stretched; 1 when the file does not say.
fn file_factor(gguf: &Gguf) -> Result<f32> {
    match positive(gguf, "llama.rope.scaling.factor")? {
        Some(factor) => Ok(factor),
        None => Ok(positive(gguf, "llama.rope.scale_linear")?.unwrap_or(1.0)),
    }
}

/// The divisors of `rope_freqs.weight` (Llama 3.1 and later), or ones.
fn factors(gguf: &Gguf, head_dim: usize) -> Result<Vec<f32>> {
    let mut factors = vec![1.0; head_dim / 2];
    if let Some(tensor) = gguf.tensor(super::ROPE_FREQS) {
        if tensor.dims != [head_dim as u64 / 2] || tensor.dtype.is_quantized() {
            let what = format_args!("is {:?} {}, it must be [{}] F32", tensor.dims, tensor.dtype.name(), head_dim / 2);
            bail!(gguf.tensor_error(tensor, what));
        }
        dequantize_row(tensor.dtype, &tensor.data(), &mut factors);
        if let Some(bad) = factors.iter().find(|&&factor| !(factor > 0.0 && factor.is_finite())) {
            bail!(gguf.tensor_error(tensor, format_args!("holds the factor {bad}, which is not above 0")));
        }
    }
    Ok(factors)
}

fn frequencies(base: f64, head_dim: usize, factors: &[f32]) -> Vec<f64> {
    let exponent = |i: usize| -2.0 * i as f64 / head_dim as f64;
    factors.iter().enumerate().map(|(i, &factor)| libm::pow(base, exponent(i)) / f64::from(factor)).collect()
}

/// YaRN: high frequencies stay, low ones are interpolated, between them a ramp over the pair index.
fn yarn(plain: Vec<f64>, scale: f64, base: f64, yarn: &Yarn) -> Rope {
    let head_dim = 2.0 * plain.len() as f64;
    let pair_with_rotations = |rotations: f64| {
        let ratio = yarn.original_context / (rotations * 2.0 * std::f64::consts::PI);
        head_dim * libm::log(ratio) / (2.0 * libm::log(base))
    };
    let low = pair_with_rotations(yarn.beta_fast).floor().max(0.0);
    let high = pair_with_rotations(yarn.beta_slow).ceil().min(head_dim - 1.0);
    let mix = |(i, inv_freq): (usize, f64)| {
        let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let keep = ramp * yarn.ext_factor;
        inv_freq * scale * (1.0 - keep) + inv_freq * keep
    };
    let inv_freq = plain.into_iter().enumerate().map(mix).collect();
    // attention is sharpened as the context stretches: 1 + 0.1 ln(factor)
    let magnitude = if yarn.ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * libm::log(1.0 / scale) };
    Rope { inv_freq, magnitude: magnitude * yarn.attn_factor }
}
