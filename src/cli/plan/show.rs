//! A plan for people, in 80 columns, and for programs.

use serde_json::{Value as Json, json};

use super::question::{Device, LEAST_CONTEXT, MOST_CONTEXT, Question, Way};
use crate::cli::machine::size;
use crate::kv::layout::BLOCK_TOKENS;
use crate::kv::plan::{Demand, KvTypes, blocks};

impl Question {
    pub fn report(&self, devices: &[Device], ways: &[Way]) -> Vec<String> {
        let parts = [self.table(devices), self.exact(devices), self.advice(ways)];
        parts.join(&String::new())
    }

    /// One column a device, one row a part.
    fn table(&self, devices: &[Device]) -> Vec<String> {
        let Demand { context_tokens, sequences, kv_types, .. } = self.demand;
        let plural = if sequences == 1 { "" } else { "s" };
        let asked = format!("{sequences} sequence{plural} of {context_tokens} tokens, KV in {}", kv_name(kv_types));
        let mut lines = vec![self.name.clone(), asked];
        lines.extend(self.gpu.as_ref().map(|gpu| {
            format!("{} of {} layers (with the head) on {}", gpu.layers, self.sizes.offloadable(), gpu.name)
        }));
        lines.push(String::new());
        let mut row = |label: &str, cell: &dyn Fn(&Device) -> String, note: &str| {
            let cells: String = devices.iter().map(|device| format!("{:>12}", cell(device))).collect();
            lines.push(format!("  {label:<10}{cells}   {note}").trim_end().to_string());
        };
        let with_gpu = devices.len() > 1;
        if with_gpu {
            row("", &|device| device.name.to_string(), "");
        }
        let bytes = |bytes: u64| if bytes == 0 { "-".to_string() } else { size(bytes) };
        let mapped = match with_gpu {
            true => "host: in the mapped file, not counted",
            false => "in the mapped file, not counted as needed",
        };
        row("weights", &|device| bytes(device.part.weights_bytes), mapped);
        row("KV cache", &|device| bytes(device.part.kv_bytes(&device.demand)), "when all sequences are full");
        if self.cache_is_fixed {
            row("reuse", &|device| bytes(device.part.cache_bytes(&device.demand)), "--cache-tokens");
        }
        let program = if with_gpu { "" } else { ", program" };
        let note = format!("batches of {} tokens, logits{program}", self.batch_tokens);
        row("scratch", &|device| bytes(device.part.scratch_bytes(&device.demand)), &note);
        row("needed", &|device| bytes(device.needed()), "");
        let limits: Vec<&str> = devices.iter().map(|device| device.memory.limit).collect();
        row("there is", &|device| known(device.memory.bytes), &limits.join(", "));
        let left = |device: &Device| match device.memory.bytes.checked_sub(device.needed()) {
            Some(left) => known(left),
            None => format!("-{}", size(device.needed() - device.memory.bytes)),
        };
        row("left", &left, if devices.iter().all(Device::fits) { "it fits" } else { "it does not fit" });
        lines
    }

    /// The KV cache in exact numbers.
    fn exact(&self, devices: &[Device]) -> Vec<String> {
        let kv = self.sizes.on_host(0, self.demand.kv_types).kv;
        let stride = devices.iter().fold(0, |sum, device| device.part.kv.stride + sum);
        let (n, reuse) = (self.demand.sequence_blocks(), self.cache_tokens());
        let payload = n.saturating_mul(kv.per_block);
        let reuse = match reuse {
            0 => "nothing is left to keep finished text in".to_string(),
            tokens => {
                let bytes = size(blocks(tokens).saturating_mul(stride));
                let from = if self.cache_is_fixed { "" } else { " of what is left" };
                format!("up to {} tokens of finished text: {bytes}{from}", grouped(tokens as u64))
            }
        };
        vec![
            format!("  a token     {} bytes of K and V", grouped(kv.per_token)),
            format!(
                "  a block     {BLOCK_TOKENS} tokens: {} bytes, rounded up to pages {}",
                grouped(kv.per_block),
                grouped(stride)
            ),
            format!("  all full    {} blocks, payload {} bytes", grouped(n), grouped(payload)),
            format!("  reuse       {reuse}"),
        ]
    }

    fn advice(&self, ways: &[Way]) -> Vec<String> {
        if self.fits() {
            let int8 = self
                .with_int8()
                .map_or(String::new(), |int8| format!(", {} in int8", context_name(int8.most_context())));
            let trained = grouped(self.trained_tokens as u64);
            let most = context_name(self.most_context());
            let mut lines = vec![format!("Largest context: {most} tokens{int8} (trained: {trained})")];
            lines.extend(self.context_for_all_layers().map(|context| {
                let all = self.sizes.offloadable();
                format!("With -c {context} all {all} layers fit the GPU.")
            }));
            return lines;
        }
        if ways.is_empty() {
            return vec!["Nothing makes it fit but more memory.".to_string()];
        }
        let mut lines = vec!["It fits with any one of these:".to_string()];
        for Way { change, effect } in ways {
            match change.len() {
                0..=28 => lines.push(format!("  {change:<29} {effect}")),
                _ => lines.extend([format!("  {change}"), format!("  {:<29} {effect}", "")]),
            }
        }
        lines
    }

    /// The longest context with which the GPU takes everything, if not as it is.
    fn context_for_all_layers(&self) -> Option<usize> {
        let all = self.sizes.offloadable();
        self.gpu.as_ref().filter(|gpu| gpu.layers < all)?;
        Some(self.with_gpu_layers(all).most_context()).filter(|&tokens| tokens >= LEAST_CONTEXT)
    }

    pub fn to_json(&self, devices: &[Device]) -> Json {
        let (demand, cached) = (&self.demand, self.cache_tokens());
        let whole = self.sizes.on_host(0, demand.kv_types);
        let on = |device: &Device| {
            json!({
                "device": device.name,
                "weights_bytes": device.part.weights_bytes,
                "weights_are_mapped": device.part.is_mapped,
                "kv_bytes": device.part.kv_bytes(&device.demand),
                "scratch_bytes": device.part.scratch_bytes(&device.demand),
                "needed_bytes": device.needed(),
                "available_bytes": device.memory.bytes,
                "limit": device.memory.limit,
                "fits": device.fits(),
            })
        };
        let int8 = self.with_int8();
        let int8 = int8.map(|int8| json!({"fits": int8.fits(), "largest_context_tokens": int8.most_context()}));
        let gpu_layers = self.gpu.as_ref().map(|gpu| match self.fits() {
            true => Some(gpu.layers),
            false => self.fewer_layers(),
        });
        json!({
            "model": self.name,
            "trained_tokens": self.trained_tokens,
            "context_tokens": demand.context_tokens,
            "sequences": demand.sequences,
            "kv_type_k": demand.kv_types.k.name(),
            "kv_type_v": demand.kv_types.v.name(),
            "weights_bytes": self.sizes.weights_bytes(),
            "kv_bytes_per_token": whole.kv.per_token,
            "block_bytes": whole.kv.per_block,
            "block_stride_bytes": whole.kv.stride,
            "kv_blocks": demand.sequence_blocks(),
            "kv_payload_bytes": demand.sequence_blocks().saturating_mul(whole.kv.per_block),
            "kv_bytes": whole.kv_bytes(demand),
            "cache_tokens": cached,
            "cache_bytes": whole.cache_bytes(&Demand { cache_tokens: cached, ..*demand }),
            "devices": devices.iter().map(on).collect::<Vec<_>>(),
            "fits": self.fits(),
            "largest_context_tokens": self.most_context(),
            "int8_kv": int8,
            "layers_and_head": self.sizes.offloadable(),
            "gpu_layers_that_fit": gpu_layers,
        })
    }
}

pub fn kv_name(types: KvTypes) -> String {
    match types.k == types.v {
        true => types.k.name().to_string(),
        false => format!("{} (K) and {} (V)", types.k.name(), types.v.name()),
    }
}

pub fn known(bytes: u64) -> String {
    if bytes == u64::MAX { "unknown".to_string() } else { size(bytes) }
}

/// A context that may be beyond what any flag takes.
fn context_name(tokens: usize) -> String {
    if tokens == MOST_CONTEXT { "any number of".to_string() } else { grouped(tokens as u64) }
}

/// A number with commas.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let comma = |i: usize| if i > 0 && (digits.len() - i).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(i, digit)| format!("{}{digit}", comma(i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_have_commas() {
        let texts = [0, 7, 123, 1234, 819_200, 1_000_000_000].map(grouped);
        assert_eq!(texts, ["0", "7", "123", "1,234", "819,200", "1,000,000,000"]);
    }
}
