//! Weights on the device: every matrix taken apart into the planes of its form, on all cores, and copied piece by piece, so
//! that the host never holds more than a piece of its own.

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::buffers::Readers;
use super::driver::{Buffer, Device};
use super::forms::{Layout, PLANES};
use super::params::{self, Heads, Matrices, Ptr};
use super::repack::repack;
use crate::backend::Part;
use crate::model::{Expert, FeedForward, LayerShape, Linear, Matrix, Model};

/// Bytes of the file that are repacked at once, and by one core.
const PIECE_BYTES: usize = 64 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// The layers of a part, and the head if it has one.
pub struct Weights {
    pub layers: Vec<Layer>,
    pub head: Option<Head>,
}

pub struct Layer {
    shape: LayerShape,
    /// (dim)
    pub attn_norm: Buffer<f32>,
    pub qkv: Linears,
    pub attn_output: Linears,
    /// (dim)
    pub ffn_norm: Buffer<f32>,
    pub gate_up: Linears,
    pub down: Linears,
}

pub struct Head {
    /// (dim)
    pub norm: Buffer<f32>,
    pub output: Linears,
}

/// Up to three matrices that read the same rows; their outputs lie side by side.
pub struct Linears {
    matrices: Matrices,
    readers: Readers,
    /// What the addresses in `matrices` lead to.
    _memory: Vec<(Buffer<u8>, Option<Buffer<f32>>)>,
}

impl Weights {
    pub fn upload(device: &Device, model: &Model, part: &Part) -> Result<Weights> {
        let layers = part.layers.clone().map(|n| {
            let (layer, shape) = (&model.layers[n], model.config.layers[n]);
            let FeedForward::Dense(Expert { gate, up, down }) = &layer.ffn else {
                panic!("models of experts are refused before their weights are loaded")
            };
            let loaded = || {
                Ok::<_, anyhow::Error>(Layer {
                    shape,
                    attn_norm: device.upload(&layer.attn_norm)?,
                    qkv: Linears::upload(device, &layer.qkv())?,
                    attn_output: Linears::upload(device, &[&layer.attn_output])?,
                    ffn_norm: device.upload(&layer.ffn_norm)?,
                    gate_up: Linears::upload(device, &[gate, up])?,
                    down: Linears::upload(device, &[down])?,
                })
            };
            loaded().with_context(|| format!("layer {n} could not be put on the GPU"))
        });
        let layers = layers.collect::<Result<Vec<Layer>>>()?;
        let head = || {
            let output = Linears::upload(device, &[&model.output])?;
            Ok::<_, anyhow::Error>(Head { norm: device.upload(&model.output_norm)?, output })
        };
        let head = part.has_head.then(head).transpose().context("the output head could not be put on the GPU")?;
        Ok(Weights { layers, head })
    }
}

impl Layer {
    pub fn heads(&self, head_dim: usize) -> Heads {
        Heads {
            n_heads: self.shape.n_heads as i32,
            n_kv_heads: self.shape.n_kv_heads as i32,
            head_dim: head_dim as i32,
            scale: 1.0 / (head_dim as f32).sqrt(),
        }
    }

    pub fn q_dim(&self, head_dim: usize) -> usize {
        self.shape.n_heads * head_dim
    }

    pub fn hidden_dim(&self) -> usize {
        self.shape.hidden_dim
    }
}

impl Linears {
    fn upload(device: &Device, linears: &[&Linear]) -> Result<Linears> {
        let mut matrices = Matrices { matrix: [params::Matrix::NONE; 3], count: linears.len() as i32, unused: 0 };
        let mut memory = Vec::with_capacity(linears.len());
        for (matrix, linear) in matrices.matrix.iter_mut().zip(linears) {
            let planes = upload_planes(device, &linear.weight)?;
            let bias = linear.bias.as_ref().map(|bias| device.upload(bias)).transpose()?;
            *matrix = describe(&linear.weight, &planes, bias.as_ref());
            memory.push((planes, bias));
        }
        Ok(Linears { matrices, readers: Readers::of(linears), _memory: memory })
    }

    pub fn matrices(&self) -> &Matrices {
        &self.matrices
    }

    pub fn each(&self) -> &[params::Matrix] {
        &self.matrices.matrix[..self.matrices.count as usize]
    }

    /// Of all matrices together.
    pub fn rows(&self) -> usize {
        self.each().iter().map(|matrix| matrix.rows as usize).sum()
    }

    pub fn readers(&self) -> Readers {
        self.readers
    }
}

fn describe(weight: &Matrix, planes: &Buffer<u8>, bias: Option<&Buffer<f32>>) -> params::Matrix {
    let layout = Layout::new(weight.dtype, weight.rows, weight.cols);
    let plane = |n: usize| layout.plane_start(n).map_or(Ptr::NULL, |start| planes.at(start, 0));
    params::Matrix {
        quants: plane(0),
        high: plane(1),
        scales: plane(2),
        supers: plane(3),
        bias: bias.map_or(Ptr::NULL, Buffer::ptr),
        form: layout.form() as i32,
        rows: weight.rows as i32,
    }
}

/// The planes of a matrix, in one piece of device memory.
fn upload_planes(device: &Device, weight: &Matrix) -> Result<Buffer<u8>> {
    let layout = Layout::new(weight.dtype, weight.rows, weight.cols);
    let memory = device.alloc(layout.bytes())?;
    let piece_rows = (PIECE_BYTES / weight.row_bytes()).max(1);
    for first in (0..weight.rows).step_by(piece_rows) {
        let rows = first..weight.rows.min(first + piece_rows);
        let mut planes: [Vec<u8>; PLANES] =
            std::array::from_fn(|plane| vec![0; layout.plane_rows(plane, rows.clone()).len()]);
        repack_rows(weight, rows.start, rows.len(), &layout, &mut planes);
        for (plane, bytes) in planes.iter().enumerate() {
            device.write(&memory, layout.plane_rows(plane, rows.clone()).start, bytes)?;
        }
    }
    if let (Some(table), Some(start)) = (layout.table(), layout.plane_start(PLANES - 1)) {
        device.write(&memory, start, &table.map(|value| value as u8))?;
    }
    Ok(memory)
}

/// Repacks `n` rows from `first` on, some of them on each core.
fn repack_rows(weight: &Matrix, first: usize, n: usize, layout: &Layout, planes: &mut [Vec<u8>; PLANES]) {
    let chunk_rows = (CHUNK_BYTES / weight.row_bytes()).max(1);
    let mut rest = planes.each_mut().map(|plane| &mut plane[..]);
    let mut chunks = Vec::with_capacity(n.div_ceil(chunk_rows));
    for start in (first..first + n).step_by(chunk_rows) {
        let rows = start..(first + n).min(start + chunk_rows);
        let mut plane = 0;
        let part = rest.each_mut().map(|rest| {
            let (part, after) = std::mem::take(rest).split_at_mut(layout.plane_rows(plane, rows.clone()).len());
            *rest = after;
            plane += 1;
            part
        });
        chunks.push((weight.rows_data(rows), part));
    }
    chunks.into_par_iter().for_each(|(source, planes)| repack(weight.dtype, source, planes));
}
