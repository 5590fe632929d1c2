//! `sayfa bench`: prefill and decode speed at depths, with KV types and numbers of sequences of choice, beside the limits of
//! the machine that are measured in the same run. `--stages` shows where the time of a step goes, `--no-kv-cache` what
//! decode would cost without a cache, `--shape` how fast a model would be that is not there yet.

mod ceilings;
mod compare;
mod measure;
mod plot;
mod report;
mod subject;
mod suite;
mod synthetic;

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use super::args::{KvTypeName, ModelArgs, Talk};
use super::plan::shapes::{self, Shape, Weights};
use super::terminal::{Interrupts, Terminal};
use super::{Ended, Usage, machine};
use crate::backend::cpu;
use crate::kv::layout::KvType;
use ceilings::{Ceilings, GpuCeiling};
use compare::Comparison;
use measure::Way;
use report::{Entry, Machine, ModelFacts, Report};
use subject::Subject;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// A published model with random weights: llama-3.2-1b ...
    #[arg(long, value_name = "NAME", value_parser = shapes::named, conflicts_with_all = ["model", "mlock", "no_mmap"], help_heading = "Model")]
    shape: Option<(String, Shape)>,

    /// How the weights of --shape are quantized
    ///
    /// A type (f16, q8_0, q4_0 ...) or a mix (q4_k_m, q5_k_m ...).
    #[arg(long, value_name = "TYPE", value_parser = Weights::parse, requires = "shape", default_value = "q4_0", help_heading = "Model")]
    weights: Weights,

    /// Prompt sizes to read; 0: none
    #[arg(
        short = 'p',
        long,
        value_name = "N,..",
        default_value = "512",
        value_delimiter = ',',
        help_heading = "Sizes"
    )]
    prompt_tokens: Vec<usize>,

    /// Numbers of tokens to generate; 0: none
    #[arg(short = 'n', long, value_name = "N,..", default_value = "64", value_delimiter = ',', help_heading = "Sizes")]
    gen_tokens: Vec<usize>,

    /// Tokens that are in the cache before
    ///
    /// [default: 0; with --no-kv-cache 64,128,256]
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', help_heading = "Sizes")]
    depth: Vec<usize>,

    /// Sequences that generate together
    ///
    /// Each so many tokens; tokens/s counts those of all.
    #[arg(long, value_name = "N,..", default_value = "1", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(1..=cpu::BATCH_LOGITS as u64), conflicts_with = "no_kv_cache", help_heading = "Sizes")]
    sequences: Vec<usize>,

    /// Ways to keep keys and values [default: that of --kv-type]
    ///
    /// Each is measured in its turn.
    #[arg(long, value_name = "TYPE,..", value_enum, value_delimiter = ',', conflicts_with_all = ["kv_type", "kv_type_k", "kv_type_v"], help_heading = "Sizes")]
    kv_types: Vec<KvTypeName>,

    /// Decode without a cache, beside decode with it
    ///
    /// All tokens are computed again for each new one; no prefill.
    #[arg(long, conflicts_with_all = ["prompt_tokens", "gen_tokens"], help_heading = "Sizes")]
    no_kv_cache: bool,

    /// Times to measure each; the median counts
    ///
    /// After one to warm up.
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Sizes")]
    repetitions: u32,

    /// Show where the time of a step goes
    #[arg(long, help_heading = "Output")]
    stages: bool,

    /// Show the ratios to an earlier run
    ///
    /// Which --json wrote to this file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    compare: Option<PathBuf>,

    /// Draw tokens/s over depth into this file
    ///
    /// Needs two depths or more.
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    plot: Option<PathBuf>,

    /// Print one JSON object instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn bench(args: &BenchArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let tests = suite::tests(args)?;
    let sequences = tests.iter().map(|test| test.sequences).max().unwrap_or(1);
    ensure!(
        sequences <= args.model.batch_size,
        Usage(format!("--sequences {sequences} need a batch of as many tokens: -b {} is less", args.model.batch_size))
    );
    if let Some(path) = &args.plot {
        plot::check(path, &tests)?;
    }
    let earlier = args.compare.as_ref().map(|path| Ok::<_, anyhow::Error>((path, compare::read(path)?))).transpose()?;

    let mut subject = Subject::open(args, sequences, terminal)?;
    subject.check_room(tests.iter().map(|test| test.depth + test.tokens).max().unwrap_or(0), sequences)?;
    let meter = cpu::Meter::new(subject.engine.info().threads, args.model.simd()?)?;
    let interrupts = Interrupts::catch();
    let way = Way { repetitions: args.repetitions, stages: args.stages, meter: &meter, interrupts: &interrupts };
    let mut report = begin(&subject, &meter)?;
    if report.ceilings.read_is_cached() {
        terminal.warn("there is too little free memory to read past the processor's cache: memory may seem too fast");
    }
    let show = |terminal: &mut Terminal, lines: &[String]| {
        lines.iter().filter(|_| !args.json).try_for_each(|line| terminal.write_line(line))
    };
    show(terminal, &report.head())?;
    for types in kv_types(args) {
        subject = subject.with_kv_types(types)?;
        for test in &tests {
            let Some(measured) = measure::measure(test, &mut subject, &way)? else { return Ok(Ended::Interrupted) };
            let entry = Entry::new(test, report::kv_type_name(types), measured, &report);
            show(terminal, &[entry.row()])?;
            terminal.flush()?;
            report.tests.push(entry);
        }
    }
    show(terminal, &report.stage_tables())?;
    let comparison = earlier.map(|(path, earlier)| Comparison::new(path, &earlier, &report));
    show(terminal, &comparison.as_ref().map_or_else(Vec::new, Comparison::table))?;
    if args.json {
        let mut whole = json!(report);
        if let Some(comparison) = &comparison {
            whole["comparison"] = json!(comparison);
        }
        terminal.write_line(&whole.to_string())?;
    }
    if let Some(path) = &args.plot {
        plot::write(path, &report)?;
        terminal.info(&format!("the plot is in {}", path.display()));
    }
    if report.tests.iter().any(|entry| entry.limit.is_some_and(|limit| limit.share > MORE_THAN_ALL)) {
        terminal.warn(
            "a share above 100 % of a limit: the machine was busy with something else while that was measured, or the \
             model is too small to be held against it",
        );
    }
    Ok(Ended::Done)
}

/// Shares beyond this are no mere rounding.
const MORE_THAN_ALL: f64 = 1.05;

/// A report without tests; measures the limits of the machine.
fn begin(subject: &Subject, meter: &cpu::Meter) -> anyhow::Result<Report> {
    let (info, widths) = (subject.engine.info(), cpu::Widths::of(&subject.model.config));
    let copies = subject.engine.measure_bandwidth()?.zip(subject.gpu_share());
    let gpu = copies.map(|(copy_bytes_per_second, weights_share)| GpuCeiling { copy_bytes_per_second, weights_share });
    Ok(Report {
        sayfa: env!("CARGO_PKG_VERSION"),
        machine: Machine {
            cpu: report::cell(&machine::processor().unwrap_or_else(|| "unknown processor".to_string())),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            threads: info.threads,
            simd: meter.simd(),
            memory_bytes: machine::total_memory(),
            largest_cache_bytes: machine::largest_cache_bytes(),
            gpu: gpu.map(|_| report::cell(&info.device)),
        },
        model: ModelFacts {
            name: report::cell(&subject.name),
            layers: subject.model.config.n_layers,
            dim: widths.dim,
            hidden_dim: widths.hidden_dim,
            heads: widths.n_heads,
            kv_heads: widths.n_kv_heads,
            head_dim: widths.head_dim,
            vocab: widths.vocab,
            weights_bytes_per_token: info.weight_bytes_per_token,
            batch_tokens: info.batch_tokens,
            activations: subject.activations().name(),
        },
        ceilings: Ceilings::measure(meter, gpu),
        tests: Vec::new(),
    })
}

impl BenchArgs {
    /// The model, planned for the widest of the ways to keep keys and values: context and GPU are the same for all.
    fn model_with_widest_kv(&self) -> ModelArgs {
        let widest = self.kv_types.iter().copied().max_by_key(|&name| KvType::from(name).row_bytes(1));
        ModelArgs { kv_type: widest.unwrap_or(self.model.kv_type), ..self.model.clone() }
    }
}

/// At least one pair for K and V.
fn kv_types(args: &BenchArgs) -> Vec<(KvType, KvType)> {
    if args.kv_types.is_empty() {
        return vec![args.model.kv_types()];
    }
    args.kv_types.iter().map(|&name| (name.into(), name.into())).collect()
}
