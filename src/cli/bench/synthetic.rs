//! A GGUF of a published shape with random weights, in memory: as fast as the real file, and made in a second. Its values
//! are of the size that trained weights have, so that activations stay finite; they mean nothing.

use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};

use crate::cli::plan::shapes::{PlannedMatrix, Shape, Weights};
use crate::cli::terminal::Terminal;
use crate::gguf::{self, Gguf};
use crate::quant::DType;

const ALIGNMENT: usize = 32;
/// Elements of random weights per type; they repeat after that many, which no measurement can tell.
const POOL_ELEMENTS: usize = 1 << 20;
/// Experts that a token uses: as in Mixtral, the only published shape that has some.
const EXPERTS_USED: usize = 2;

pub fn gguf(name: &str, shape: &Shape, weights: Weights, terminal: &Terminal) -> Result<Gguf, gguf::Error> {
    let tensors = tensors(shape, weights);
    let mut offsets = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in &tensors {
        offsets.push(end);
        end = (end + tensor.bytes() as usize).next_multiple_of(ALIGNMENT);
    }
    let mut header = header(name, shape, &tensors, &offsets);
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    let mut progress = terminal.progress_bytes("making weights", end as u64);
    Gguf::in_memory(Path::new(name), header.len() + end, |file| {
        let (head, data) = file.split_at_mut(header.len());
        head.copy_from_slice(&header);
        let mut pools = HashMap::new();
        for (tensor, &offset) in tensors.iter().zip(&offsets) {
            let data = &mut data[offset..offset + tensor.bytes() as usize];
            if tensor.dims.len() == 1 {
                data.as_chunks_mut::<4>().0.fill(1f32.to_le_bytes());
                continue;
            }
            let pool = pools.entry(tensor.dtype).or_insert_with(|| random_weights(tensor.dtype));
            for part in data.chunks_mut(pool.len()) {
                part.copy_from_slice(&pool[..part.len()]);
            }
            progress.set((offset + data.len()) as u64);
        }
    })
}

/// Norms are vectors of ones.
fn tensors(shape: &Shape, weights: Weights) -> Vec<PlannedMatrix> {
    let norm = |name: String| PlannedMatrix { name, dims: vec![shape.dim], dtype: DType::F32 };
    let mut tensors = vec![shape.embedding(weights)];
    for i in 0..shape.layers {
        tensors.push(norm(format!("blk.{i}.attn_norm")));
        tensors.push(norm(format!("blk.{i}.ffn_norm")));
        tensors.extend(shape.layer(weights, i));
    }
    tensors.push(norm("output_norm".to_string()));
    tensors.extend(shape.head(weights));
    tensors
}

fn header(name: &str, shape: &Shape, tensors: &[PlannedMatrix], offsets: &[usize]) -> Vec<u8> {
    const U32: u32 = 4;
    const F32: u32 = 6;
    const STRING: u32 = 8;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let key = |name: &str, type_id: u32, value: &[u8]| [&string(name), &type_id.to_le_bytes()[..], value].concat();
    let size = |name: &str, size: usize| key(&format!("llama.{name}"), U32, &(size as u32).to_le_bytes());
    let mut keys = vec![
        key("general.architecture", STRING, &string("llama")),
        key("general.name", STRING, &string(name)),
        key("llama.attention.layer_norm_rms_epsilon", F32, &1e-5f32.to_le_bytes()),
        size("context_length", shape.context),
        size("embedding_length", shape.dim),
        size("block_count", shape.layers),
        size("feed_forward_length", shape.hidden_dim),
        size("attention.head_count", shape.heads),
        size("attention.head_count_kv", shape.kv_heads),
        size("vocab_size", shape.vocab),
    ];
    if shape.experts > 0 {
        keys.extend([size("expert_count", shape.experts), size("expert_used_count", EXPERTS_USED)]);
    }
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((keys.len() as u64).to_le_bytes());
    header.extend(keys.concat());
    for (tensor, &offset) in tensors.iter().zip(offsets) {
        header.extend(string(&format!("{}.weight", tensor.name)));
        header.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|&dim| header.extend((dim as u64).to_le_bytes()));
        header.extend(tensor.dtype.id().to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
    }
    header
}

/// Where the f16 scales of a block lie, and values for them that make random bits weights of about 0.02.
fn scales(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::MXFP4 => &[],
        DType::Q4_0 => &[(0, 0.004)],
        DType::Q4_1 => &[(0, 0.004), (2, -0.03)],
        DType::Q5_0 => &[(0, 0.002)],
        DType::Q5_1 => &[(0, 0.002), (2, -0.03)],
        DType::Q8_0 => &[(0, 0.0003)],
        DType::Q2_K => &[(80, 0.002), (82, 0.002)],
        DType::Q3_K => &[(108, 0.0008)],
        DType::Q4_K => &[(0, 0.0001), (2, 0.0008)],
        DType::Q5_K => &[(0, 0.00006), (2, 0.0008)],
        DType::Q6_K => &[(208, 0.00002)],
        DType::IQ4_NL => &[(0, 0.0003)],
        DType::IQ4_XS => &[(0, 0.00001)],
    }
}

/// Its scale is one byte, an exponent: 2^(120 - 128) on values up to 12.
const MXFP4_EXPONENT: u8 = 120;

/// `POOL_ELEMENTS` weights as a file would hold them.
fn random_weights(dtype: DType) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    // evenly spread, with the standard deviation 0.02
    let mut float = || (random() >> 40) as f32 / (1 << 23) as f32 * 0.035 - 0.035;
    match dtype {
        DType::F32 => (0..POOL_ELEMENTS).flat_map(|_| float().to_le_bytes()).collect(),
        DType::F16 => (0..POOL_ELEMENTS).flat_map(|_| f16::from_f32(float()).to_le_bytes()).collect(),
        DType::BF16 => (0..POOL_ELEMENTS).flat_map(|_| bf16::from_f32(float()).to_le_bytes()).collect(),
        _ => {
            let block_bytes = dtype.block_bytes();
            let bytes = POOL_ELEMENTS / dtype.block_elements() * block_bytes;
            let mut blocks: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random().to_le_bytes()).collect();
            blocks.truncate(bytes);
            for block in blocks.chunks_mut(block_bytes) {
                for &(at, scale) in scales(dtype) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                }
                if dtype == DType::MXFP4 {
                    block[0] = MXFP4_EXPONENT;
                }
            }
            blocks
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Talk;
    use crate::cli::plan::shapes;
    use crate::model::{Model, RopeOverrides};
    use crate::quant::dequantize_row;

    #[test]
    fn random_weights_of_every_type_have_the_size_of_trained_ones() {
        for dtype in DType::ALL {
            let bytes = random_weights(dtype);
            let mut values = vec![0.0; POOL_ELEMENTS];
            dequantize_row(dtype, &bytes, &mut values);
            let rms = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            assert!(rms > 0.008 && rms < 0.05 && mean.abs() < 0.02, "{}: rms {rms}, mean {mean}", dtype.name());
        }
    }

    #[test]
    fn a_shape_becomes_a_model_of_its_size() {
        let terminal = Terminal::new(Talk::default());
        let small = |experts, tied| Shape {
            layers: 2,
            dim: 64,
            heads: 4,
            kv_heads: 2,
            hidden_dim: 256,
            vocab: 100,
            context: 512,
            tied,
            experts,
        };
        for (shape, weights) in [(small(0, true), "q4_0"), (small(0, false), "q4_k_m"), (small(4, false), "q8_0")] {
            let weights = shapes::Weights::parse(weights).unwrap();
            let gguf = gguf("small", &shape, weights, &terminal).unwrap();
            let model = Model::from_gguf(&gguf, &RopeOverrides::default()).unwrap();
            assert!(model.unused_tensors.is_empty());
            let bytes: u64 = gguf.tensors().iter().map(|tensor| tensor.size_bytes()).sum();
            assert_eq!(bytes, shape.sizes(weights).weights_bytes());
            assert_eq!((model.config.vocab, model.config.context_tokens, model.layers.len()), (100, 512, 2));
            assert_eq!(model.config.experts.map_or(0, |experts| experts.count), shape.experts);
        }
    }
}
