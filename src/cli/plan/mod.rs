//! `sayfa plan`: what a model and its KV cache take, on each device, before anything is loaded; and the same arithmetic
//! for `run` and `chat`, which refuse with it. Reads no more than a file's header.

mod gpu;
mod question;
mod room;
pub mod shapes;
mod show;
mod simulate;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::Ended;
use super::args::{DEFAULT_BATCH, KvTypeName, Talk};
use super::device::DeviceArgs;
use super::machine::size;
use super::terminal::Terminal;
use question::{Device, MOST_CONTEXT, Question};
use shapes::{Shape, Weights};

pub use room::{Fit, Room, fit, room};

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// GGUF file, or the name of one; only its header is read
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: Option<PathBuf>,

    /// A published model instead of a file: llama-2-13b ...
    #[arg(long, value_name = "NAME", value_parser = shapes::named, conflicts_with = "model", help_heading = "Model")]
    shape: Option<(String, Shape)>,

    /// How the weights of --shape are quantized
    ///
    /// A type (f16, q8_0, q4_0 ...) or a mix (q4_k_m, q5_k_m ...).
    #[arg(long, value_name = "TYPE", value_parser = Weights::parse, requires = "shape", default_value = "q4_k_m", help_heading = "Model")]
    weights: Weights,

    /// Context of each sequence in tokens
    ///
    /// 0: as many as the model was trained for.
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = RangedU64ValueParser::<usize>::new().range(0..=MOST_CONTEXT as u64), allow_negative_numbers = true, help_heading = "Sizes")]
    ctx_size: usize,

    /// Sequences that can be full at once
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65536), allow_negative_numbers = true, help_heading = "Sizes")]
    sequences: usize,

    /// Tokens of finished text that must stay for reuse
    ///
    /// [default: one context, or less if that is all the room there is]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(0..=MOST_CONTEXT as u64), allow_negative_numbers = true, help_heading = "Sizes")]
    cache_tokens: Option<usize>,

    /// Most prompt tokens computed in one step
    #[arg(short, long, value_name = "N", default_value_t = DEFAULT_BATCH, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65536), allow_negative_numbers = true, help_heading = "Sizes")]
    batch_size: usize,

    /// How keys and values are kept in the KV cache
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvTypeName::F16, help_heading = "KV cache")]
    kv_type: KvTypeName,

    /// The same for keys alone [default: that of --kv-type]
    #[arg(long, value_name = "TYPE", value_enum, help_heading = "KV cache")]
    kv_type_k: Option<KvTypeName>,

    /// The same for values alone [default: that of --kv-type]
    #[arg(long, value_name = "TYPE", value_enum, help_heading = "KV cache")]
    kv_type_v: Option<KvTypeName>,

    #[command(flatten)]
    device: DeviceArgs,

    /// Plan for a GPU with this much free memory, there or not
    ///
    /// Such as 24GiB (1024^3 bytes) or 24GB (1000^3); all layers lie on it unless -ngl says otherwise.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true, help_heading = "Machine")]
    vram: Option<u64>,

    /// Memory of the host [default: what this machine can give now]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true, help_heading = "Machine")]
    ram: Option<u64>,

    /// Run the requests of --trace through the KV memory
    ///
    /// Reserved for whole contexts, and taken in pages.
    #[arg(long, requires = "trace", help_heading = "Simulation")]
    simulate: bool,

    /// Requests in the order of arrival
    ///
    /// PROMPT_TOKENS ANSWER_TOKENS a line; # starts a comment.
    #[arg(long, value_name = "FILE", requires = "simulate", help_heading = "Simulation")]
    trace: Option<PathBuf>,

    /// Print one JSON object; sizes in bytes
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn plan(args: &PlanArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let mut question = Question::new(args)?;
    question.add_gpu(args, terminal)?;
    if let Some(trace) = &args.trace {
        return simulate::simulate_trace(trace, &question, args.json, terminal);
    }
    let devices = question.devices();
    let ways = question.ways();
    let report = match args.json {
        true => vec![question.to_json(&devices).to_string()],
        false => question.report(&devices, &ways),
    };
    for line in report {
        terminal.write_line(&line)?;
    }
    if let Some(warning) = question.paging_warning(&devices) {
        terminal.warn(&warning);
    }
    let Some(Device { name, memory, .. }) = devices.iter().find(|device| !device.fits()) else {
        return Ok(Ended::Done);
    };
    let needed: u64 = devices.iter().filter(|device| device.name == *name).map(Device::needed).sum();
    let ways: Vec<&str> = ways.iter().map(|way| way.change.as_str()).collect();
    let advice = match ways[..] {
        [] => "more memory is needed".to_string(),
        _ => format!("it fits with {}", ways.join(", or ")),
    };
    bail!(
        "{} does not fit: the {name} needs {} and has {} ({}); {advice}",
        question.name,
        size(needed),
        size(memory.bytes),
        memory.limit
    )
}

/// A size with its unit.
fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1000),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let found = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)));
    let is_number = |number: &str| number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let number = found.filter(|(number, _)| is_number(number)).and_then(|(number, _)| number.parse::<f64>().ok());
    match (number, found) {
        (Some(number), Some((_, unit))) if number * unit as f64 >= 1.0 => Ok((number * unit as f64) as u64),
        _ => Err("not a size above 0 with its unit, such as 24GiB (1024^3 bytes) or 24GB (1000^3)".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(parse_size("24GiB"), Ok(24 << 30));
        assert_eq!(parse_size("24GB"), Ok(24_000_000_000));
        assert_eq!(parse_size("1.5 MiB"), Ok(3 << 19));
        assert_eq!(parse_size("512B"), Ok(512));
        for text in ["24Gib", "24", "0", "0GiB", "-1", "-1GiB", "GiB", "1e3GiB", "infGiB", "nanB", "1..5GB", "", "24 G"]
        {
            assert!(parse_size(text).is_err_and(|error| error.contains("24GiB")), "{text:?}");
        }
        assert_eq!(parse_size("99999999999999TiB"), Ok(u64::MAX));
    }
}
