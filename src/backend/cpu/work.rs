//! What a batch has to read and compute, stage by stage: the other half of a profile. Costs nothing unless asked for.
//!
//! Bytes are the least there is to read: every weight and every cached row once a pass. Operations are multiplications
//! and additions; what a stage does beside its matrices or its attention is too little to count.

use super::Activations;
use crate::backend::{Batch, Part, Profile, Stage, Work};
use crate::kv::layout::{Half, KvType, Layout};
use crate::model::{FeedForward, Linear, Model};

/// For the layers of a part, and for the head where it was computed.
pub fn add_batch(
    profile: &mut Profile,
    (model, part): (&Model, &Part),
    layout: &Layout,
    activations: Activations,
    batch: &Batch,
) {
    let tokens = batch.tokens.len();
    let product = |linear: &Linear, tokens: f64| {
        let weight = &linear.weight;
        let ops = 2.0 * weight.rows as f64 * weight.cols as f64 * tokens;
        let (int8_ops, float_ops) = match activations {
            Activations::F32 => (0.0, ops),
            _ if !weight.dtype.is_quantized() => (0.0, ops),
            _ => (ops * activations.precision().digits() as f64, 0.0),
        };
        Work { bytes: weight.bytes() as f64, int8_ops, float_ops }
    };
    let products = |linears: &[&Linear], tokens: usize| {
        let mut sum = Work::default();
        linears.iter().for_each(|linear| sum.add(product(linear, tokens as f64)));
        sum
    };
    let embedding = model.token_embd.row_bytes() * tokens;
    profile.add_work(Stage::Embed, Work { bytes: embedding as f64, ..Work::default() });
    let layers = part.layers.clone();
    for (layer, shape) in model.layers[layers.clone()].iter().zip(&model.config.layers[layers]) {
        profile.add_work(Stage::Qkv, products(&[&layer.attn_q, &layer.attn_k, &layer.attn_v], tokens));
        profile.add_work(Stage::AttnOutput, products(&[&layer.attn_output], tokens));
        profile.add_work(Stage::Attention, attention(shape.n_heads, shape.n_kv_heads, layout, batch));
        let (experts, used) = match &layer.ffn {
            FeedForward::Dense(ffn) => (std::slice::from_ref(ffn), 1),
            FeedForward::Experts { router, experts, used } => {
                profile.add_work(Stage::Router, products(&[router], tokens));
                (&experts[..], *used)
            }
        };
        // Each token uses `used` of them; which ones, and so how many are read, is taken as evenly spread.
        let read = experts.len().min(used * tokens);
        let tokens_each = (used * tokens) as f64 / read as f64;
        for expert in &experts[..read] {
            let [gate, up, down] = [&expert.gate, &expert.up, &expert.down].map(|linear| product(linear, tokens_each));
            [gate, up].into_iter().for_each(|work| profile.add_work(Stage::GateUp, work));
            profile.add_work(Stage::Down, down);
        }
    }
    if part.has_head && !batch.wanted.is_empty() {
        profile.add_work(Stage::Head, products(&[&model.output], batch.wanted.len()));
    }
}

/// Every row of the batch reads its cache once; each of its tokens multiplies K and V up to itself.
fn attention(n_heads: usize, n_kv_heads: usize, layout: &Layout, batch: &Batch) -> Work {
    let head_dim = layout.head_dim();
    let mut work = Work::default();
    for row in &batch.rows {
        let (cached, new) = (row.cached_tokens as f64, row.tokens.len() as f64);
        let seen = new * cached + new * (new + 1.0) / 2.0;
        for half in [Half::K, Half::V] {
            let row_type = layout.row_type(half);
            let row_bytes = row_type.row_bytes(head_dim) + row_type.scale_bytes();
            work.bytes += (cached + new) * (n_kv_heads * row_bytes) as f64;
            let ops = 2.0 * seen * (n_heads * head_dim) as f64;
            // Values enter as floats whatever they are kept as.
            match (half, row_type) {
                (Half::K, KvType::Int8) => work.int8_ops += ops,
                _ => work.float_ops += ops,
            }
        }
    }
    work
}
