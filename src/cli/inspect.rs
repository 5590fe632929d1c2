//! `sayfa inspect`: what a GGUF file holds. Reads the header only, and also files that sayfa cannot run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value as Json, json};

use super::Ended;
use super::args::Talk;
use super::load::shortened;
use super::machine::mib;
use super::models::{self, Found};
use super::terminal::Terminal;
use crate::gguf::{Array, Gguf, Value};
use crate::kv::layout::KvType;
use crate::model::{Model, RopeOverrides};

/// Elements of a long array that are shown without --full.
const FIRST_ELEMENTS: usize = 8;

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// GGUF file, or the name of one
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: Option<PathBuf>,

    /// The same without -m
    #[arg(value_name = "MODEL", conflicts_with = "model", help_heading = "Model")]
    file: Option<PathBuf>,

    /// Print one JSON object
    ///
    /// {metadata, tensors, kv_bytes_per_token}
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// List every tensor; with --json give every array whole
    #[arg(long, help_heading = "Output")]
    full: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn inspect(args: &InspectArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let found = models::find(args.model.as_deref().or(args.file.as_deref()))?;
    let gguf = found.explain(Gguf::open(&found.path).map_err(anyhow::Error::from))?;
    if args.json {
        terminal.write_line(&to_json(&gguf, args.full).to_string())?;
        return Ok(Ended::Done);
    }
    for line in summary(&found, &gguf) {
        terminal.write_line(&line)?;
    }
    terminal.write_line("\nmetadata")?;
    for (key, value) in gguf.metadata() {
        terminal.write_line(&format!("  {key} = {value}"))?;
    }
    if args.full {
        terminal.write_line("\ntensors")?;
        for tensor in gguf.tensors() {
            let (name, bytes) = (tensor.dtype.name(), tensor.size_bytes());
            terminal.write_line(&format!("  {:<32} {name:<7} {:?} {bytes} bytes", tensor.name, tensor.dims))?;
        }
    }
    Ok(Ended::Done)
}

fn summary(found: &Found, gguf: &Gguf) -> Vec<String> {
    let head = format!(
        "{}: GGUF version {}, {}, {} tensors, {} keys",
        found.name,
        gguf.version(),
        mib(gguf.file_bytes()),
        gguf.tensors().len(),
        gguf.metadata().count()
    );
    let rows = [
        ("model", model_row(gguf)),
        ("sizes", sizes_row(gguf)),
        ("types", types_row(gguf)),
        ("tokenizer", tokenizer_row(gguf)),
        ("template", template_row(gguf)),
        ("KV cache", kv_row(gguf)),
        ("runs here", runs_row(gguf)),
    ];
    let rows = rows.into_iter().filter(|(_, text)| !text.is_empty());
    std::iter::once(head).chain(rows.map(|(name, text)| format!("  {name:<10} {text}"))).collect()
}

fn text<'a>(gguf: &'a Gguf, key: &str) -> Option<&'a str> {
    gguf.get(key).and_then(|value| value.as_str())
}

/// A number under the architecture's own prefix.
fn size(gguf: &Gguf, key: &str) -> Option<u64> {
    gguf.get(&format!("{}.{key}", text(gguf, "general.architecture")?))?.as_u64()
}

fn model_row(gguf: &Gguf) -> String {
    let architecture = text(gguf, "general.architecture").unwrap_or("no architecture given");
    let parameters: u64 = gguf.tensors().iter().map(|tensor| tensor.elements()).sum();
    let name = text(gguf, "general.name").map_or_else(String::new, |name| format!(", {name:?}"));
    format!("{architecture}{name}, {:.1} million parameters", parameters as f64 / 1e6)
}

fn sizes_row(gguf: &Gguf) -> String {
    let parts = [
        ("block_count", "layers"),
        ("embedding_length", "wide"),
        ("feed_forward_length", "feed-forward"),
        ("attention.head_count", "heads"),
        ("attention.head_count_kv", "KV heads"),
        ("expert_count", "experts"),
        ("context_length", "tokens of context"),
    ];
    let parts = parts.iter().filter_map(|(key, word)| Some(format!("{} {word}", size(gguf, key)?)));
    parts.collect::<Vec<_>>().join(", ")
}

fn types_row(gguf: &Gguf) -> String {
    let mut types = BTreeMap::new();
    for tensor in gguf.tensors() {
        let (count, bytes) = types.entry(tensor.dtype).or_insert((0u64, 0u64));
        *count += 1;
        *bytes += tensor.size_bytes();
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|&(_, (_, bytes))| std::cmp::Reverse(bytes));
    let types = types.iter().map(|(dtype, (count, bytes))| format!("{} {count} x, {}", dtype.name(), mib(*bytes)));
    types.collect::<Vec<_>>().join("; ")
}

fn tokenizer_row(gguf: &Gguf) -> String {
    let Some(model) = text(gguf, "tokenizer.ggml.model") else { return "none".to_string() };
    let pre = text(gguf, "tokenizer.ggml.pre").map_or_else(String::new, |pre| format!(" ({pre})"));
    let tokens = gguf.get("tokenizer.ggml.tokens").and_then(|value| value.as_array()).map_or(0, |array| array.len);
    let special = [("BOS", "bos_token_id"), ("EOS", "eos_token_id")]
        .into_iter()
        .filter_map(|(name, key)| Some(format!(", {name} {}", gguf.get(&format!("tokenizer.ggml.{key}"))?.as_u64()?)));
    format!("{model}{pre}, {tokens} tokens{}", special.collect::<String>())
}

fn template_row(gguf: &Gguf) -> String {
    match text(gguf, "tokenizer.chat_template") {
        Some(template) => format!("chat template of {} bytes", template.len()),
        None => "no chat template".to_string(),
    }
}

fn kv_row(gguf: &Gguf) -> String {
    let Some(kv) = KvShape::from_gguf(gguf) else { return String::new() };
    let per_token = format!("{} bytes a token in f16, {} in f32", kv.bytes(KvType::F16), kv.bytes(KvType::F32));
    match size(gguf, "context_length").and_then(|tokens| tokens.checked_mul(kv.bytes(KvType::F16))) {
        Some(bytes) => format!("{per_token}; {} in f16 when the whole context is used", mib(bytes)),
        None => per_token,
    }
}

fn runs_row(gguf: &Gguf) -> String {
    if gguf.tensors().is_empty() {
        return "no: the file holds no tensors (tokenize works)".to_string();
    }
    match Model::from_gguf(gguf, &RopeOverrides::default()) {
        Ok(model) if model.unused_tensors.is_empty() => "yes, all tensors are used".to_string(),
        Ok(model) => format!("yes, without these tensors: {}", shortened(&model.unused_tensors)),
        Err(error) => format!("no: {error:#}"),
    }
}

/// What one token adds to the KV cache, by the file's own keys: also for architectures that sayfa does not run.
struct KvShape {
    /// KV heads of all layers together.
    heads: u64,
    key_length: u64,
    value_length: u64,
}

impl KvShape {
    fn from_gguf(gguf: &Gguf) -> Option<KvShape> {
        let layers = size(gguf, "block_count")?;
        let n_heads = size(gguf, "attention.head_count")?;
        let key = format!("{}.attention.head_count_kv", text(gguf, "general.architecture")?);
        let heads = match gguf.get(&key) {
            Some(Value::Array(array)) => array.ints()?.map(|heads| u64::try_from(heads).unwrap_or(0)).sum(),
            Some(value) => value.as_u64()?.checked_mul(layers)?,
            None => n_heads.checked_mul(layers)?,
        };
        let head_dim = size(gguf, "embedding_length").and_then(|dim| dim.checked_div(n_heads));
        let key_length = size(gguf, "attention.key_length").or(head_dim)?;
        let value_length = size(gguf, "attention.value_length").or(head_dim)?;
        // Later arithmetic cannot overflow below this; no real model comes near it.
        (heads.max(key_length).max(value_length) < 1 << 24).then_some(KvShape { heads, key_length, value_length })
    }

    fn bytes(&self, kv_type: KvType) -> u64 {
        let row_bytes = |length| kv_type.row_bytes(length as usize) as u64;
        self.heads * (row_bytes(self.key_length) + row_bytes(self.value_length))
    }

    /// With one f16 scale for each head row of int8 values.
    fn int8_bytes(&self) -> u64 {
        self.heads * (self.key_length + 2 + self.value_length + 2)
    }
}

fn to_json(gguf: &Gguf, full: bool) -> Json {
    let metadata: Map<String, Json> =
        gguf.metadata().map(|(key, value)| (key.to_string(), value_json(value, full))).collect();
    let tensors = gguf.tensors().iter().map(|tensor| {
        json!({
            "name": tensor.name,
            "type": tensor.dtype.name(),
            "dims": tensor.dims,
            "offset": tensor.offset,
            "bytes": tensor.size_bytes(),
        })
    });
    let kv = KvShape::from_gguf(gguf);
    let kv = kv.map(|kv| json!({"f32": kv.bytes(KvType::F32), "f16": kv.bytes(KvType::F16), "int8": kv.int8_bytes()}));
    json!({"metadata": metadata, "tensors": tensors.collect::<Vec<_>>(), "kv_bytes_per_token": kv})
}

fn value_json(value: Value, full: bool) -> Json {
    match value {
        Value::String(bytes) => Json::from(String::from_utf8_lossy(bytes)),
        Value::Bool(value) => Json::from(value),
        Value::Array(array) => array_json(array, full),
        _ => match (value.as_u64(), value.as_int(), value.as_f64()) {
            (Some(unsigned), ..) => Json::from(unsigned),
            (_, Some(signed), _) => Json::from(signed as i64),
            (_, _, float) => Json::from(float),
        },
    }
}

fn array_json(array: Array, full: bool) -> Json {
    let elements = |count| Json::Array(array.iter().take(count).map(|value| value_json(value, full)).collect());
    if full || array.len <= FIRST_ELEMENTS {
        return elements(array.len);
    }
    json!({"type": array.element_type_name(), "len": array.len, "first": elements(FIRST_ELEMENTS)})
}
