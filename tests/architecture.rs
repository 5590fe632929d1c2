//! The same network written in different ways gives the same bits: fused and split matrices, sizes per layer, heads
//! narrower than the model's width, RoPE settings from the file or from the command line.

#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;
#[path = "support/rewrite.rs"]
mod rewrite;

use std::sync::Arc;

use gguf_writer::{Val, Writer};
use models::{Setting, all_logits, data, engine};
use sayfa::gguf::Gguf;
use sayfa::model::{Model, RopeOverrides, RopeScaling};

/// The fixtures: one layer, dim 256, 4 heads, 2 KV heads, head_dim 64, hidden 256.
fn fixture(name: &str) -> Writer {
    rewrite::rewrite(&Gguf::open(&data(name)).unwrap())
}

fn logits_with(writer: &Writer, overrides: &RopeOverrides) -> Vec<Vec<u32>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, writer.build()).unwrap();
    let model = Arc::new(Model::from_gguf(&Gguf::open(&path).unwrap(), overrides).unwrap_or_else(|e| panic!("{e:#}")));
    assert!(model.unused_tensors.is_empty(), "{:?}", model.unused_tensors);
    let tokens: Vec<u32> = (0..30).map(|i| (i * 37 + 5) % 320).collect();
    let logits = all_logits(&mut engine(&model, Setting::default()), &tokens);
    assert!(logits.iter().flatten().all(|x| x.is_finite()));
    logits.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

fn logits(writer: &Writer) -> Vec<Vec<u32>> {
    logits_with(writer, &RopeOverrides::default())
}

/// Takes a tensor out of the file.
fn take(writer: &mut Writer, name: &str) -> gguf_writer::Tensor {
    let at = writer.tensors.iter().position(|tensor| tensor.name == name.as_bytes()).expect("the file has it");
    writer.tensors.remove(at)
}

#[test]
fn fused_qkv_gives_the_bits_of_its_parts() {
    for name in ["micro/F32.gguf", "micro/Q4_0.gguf", "micro/Q6_K.gguf", "variants/bias.gguf"] {
        let split = fixture(name);
        let mut fused = split.clone();
        for kind in ["weight", "bias"] {
            let parts = ["q", "k", "v"].map(|part| format!("blk.0.attn_{part}.{kind}"));
            if split.tensors.iter().all(|tensor| tensor.name != parts[0].as_bytes()) {
                continue;
            }
            let parts = parts.map(|part| take(&mut fused, &part));
            let mut dims = parts[0].dims.clone();
            *dims.last_mut().unwrap() = parts.iter().map(|part| part.dims.last().unwrap()).sum();
            let bytes: Vec<u8> = parts.iter().flat_map(|part| part.data.clone()).collect();
            fused = fused.tensor(format!("blk.0.attn_qkv.{kind}"), &dims, parts[0].type_id, &bytes);
        }
        assert_ne!(fused.tensors.len(), split.tensors.len());
        assert!(logits(&fused) == logits(&split), "{name}");
    }
}

/// Columns `from..to` of an F32 matrix with rows of `cols`.
fn columns(data: &[u8], cols: usize, from: usize, to: usize) -> Vec<u8> {
    data.chunks(4 * cols).flat_map(|row| row[4 * from..4 * to].to_vec()).collect()
}

/// Two of four heads, which together are half as wide as the model, against all four with the others' output zeroed.
#[test]
fn heads_need_not_fill_the_width_of_the_model() {
    let mut wide = fixture("micro/F32.gguf");
    let output = wide.tensor_mut("blk.0.attn_output.weight");
    for row in output.data.chunks_mut(4 * 256) {
        row[4 * 128..].fill(0);
    }
    let mut narrow = wide
        .clone()
        .set("llama.attention.head_count", Val::u32(2))
        .set("llama.attention.head_count_kv", Val::u32(1))
        .set("llama.attention.key_length", Val::u32(64))
        .set("llama.attention.value_length", Val::u32(64));
    for (name, rows) in [("attn_q", 128), ("attn_k", 64), ("attn_v", 64)] {
        let tensor = narrow.tensor_mut(&format!("blk.0.{name}.weight"));
        tensor.dims[1] = rows as u64;
        tensor.data.truncate(rows * 256 * 4);
    }
    let output = narrow.tensor_mut("blk.0.attn_output.weight");
    output.dims[0] = 128;
    output.data = columns(&output.data, 256, 0, 128);
    assert!(logits(&narrow) == logits(&wide));
}

/// A second layer that is a copy of the first; in `uneven` it has its KV heads twice and 64 more hidden elements of zero.
#[test]
fn layers_may_differ_in_heads_and_hidden_size() {
    let one = fixture("micro/F32.gguf");
    let mut even = one.clone().set("llama.block_count", Val::u32(2));
    for tensor in one.tensors.iter().filter(|tensor| tensor.name.starts_with(b"blk.0.")) {
        let name = String::from_utf8(tensor.name.clone()).unwrap().replace("blk.0.", "blk.1.");
        even = even.tensor(name, &tensor.dims, tensor.type_id, &tensor.data);
    }
    let mut uneven = even
        .clone()
        .set("llama.attention.head_count", Val::u32s(&[4, 4]))
        .set("llama.attention.head_count_kv", Val::u32s(&[2, 4]))
        .set("llama.feed_forward_length", Val::u32s(&[256, 320]));
    for name in ["attn_k", "attn_v"] {
        let tensor = uneven.tensor_mut(&format!("blk.1.{name}.weight"));
        tensor.dims[1] = 256;
        let heads: Vec<Vec<u8>> = tensor.data.chunks(64 * 256 * 4).map(<[u8]>::to_vec).collect();
        tensor.data = [&heads[0], &heads[0], &heads[1], &heads[1]].into_iter().flatten().copied().collect();
    }
    for name in ["ffn_gate", "ffn_up"] {
        let tensor = uneven.tensor_mut(&format!("blk.1.{name}.weight"));
        tensor.dims[1] = 320;
        tensor.data.resize(320 * 256 * 4, 0);
    }
    let down = uneven.tensor_mut("blk.1.ffn_down.weight");
    down.dims[0] = 320;
    let pad = |row: &[u8]| [row, &[0; 64 * 4]].concat();
    down.data = down.data.chunks(256 * 4).flat_map(pad).collect();
    assert!(logits(&uneven) == logits(&even));
    assert!(logits(&even) != logits(&one));
}

#[test]
fn rope_settings_of_the_command_line_stand_for_those_of_the_file() {
    for (name, scaling) in
        [("variants/rope_linear.gguf", RopeScaling::Linear), ("variants/rope_yarn.gguf", RopeScaling::Yarn)]
    {
        let file = fixture(name);
        let gguf = Gguf::open(&data(name)).unwrap();
        let factor = gguf.float("llama.rope.scaling.factor").unwrap().unwrap();
        let bare = file.clone().without("llama.rope.scaling.type").without("llama.rope.scaling.factor");
        let asked =
            RopeOverrides { scaling: Some(scaling), freq_scale: Some(1.0 / factor), ..RopeOverrides::default() };
        assert!(logits_with(&bare, &asked) == logits(&file), "{name}");
        assert!(logits(&bare) != logits(&file), "{name}: the settings do something");

        let none = RopeOverrides { scaling: Some(RopeScaling::None), ..RopeOverrides::default() };
        assert!(logits_with(&file, &none) == logits(&bare), "{name}: without scaling");
        let base = gguf.float("llama.rope.freq_base").unwrap().unwrap();
        let other_base = file.clone().set("llama.rope.freq_base", Val::f32(base * 7.0));
        let asked = RopeOverrides { freq_base: Some(base), ..RopeOverrides::default() };
        assert!(logits_with(&other_base, &asked) == logits(&file), "{name}: base");
    }
}
