//! `sayfa bench`: prefill and decode speed, at depths and with KV types of choice, and how much of the memory's plain
//! read speed they use. `--no-kv-cache` shows what decode would cost without a cache.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::args::{KvTypeName, ModelArgs, Talk};
use super::load::{self, Loaded};
use super::machine;
use super::terminal::{Interrupts, Terminal};
use super::{Ended, Usage, counted};
use crate::engine::SequenceId;
use crate::kv::layout::KvType;
use crate::tokenizer::TokenId;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,

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

    /// Tokens that are in the cache before [default: 0; with --no-kv-cache 64,128,256]
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', help_heading = "Sizes")]
    depth: Vec<usize>,

    /// Ways to keep keys and values, each measured in its turn [default: that of --kv-type]
    #[arg(long, value_name = "TYPE,..", value_enum, value_delimiter = ',', conflicts_with_all = ["kv_type", "kv_type_k", "kv_type_v"], help_heading = "Sizes")]
    kv_types: Vec<KvTypeName>,

    /// Decode without a cache, all tokens computed again for each new one, beside decode with it; no prefill
    #[arg(long, conflicts_with_all = ["prompt_tokens", "gen_tokens"], help_heading = "Sizes")]
    no_kv_cache: bool,

    /// Times to measure each; the median counts
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Sizes")]
    repetitions: u32,

    /// Print one JSON object instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    pub talk: Talk,
}

/// Tokens that are generated at each depth by --no-kv-cache: each costs a prefill.
const UNCACHED_TOKENS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prefill,
    Decode,
    /// A token by computing all before it anew.
    NoCache,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Prefill => "prefill",
            Kind::Decode => "decode",
            Kind::NoCache => "decode, no cache",
        }
    }
}

struct Test {
    kind: Kind,
    depth: usize,
    tokens: usize,
}

struct Measured {
    tokens_per_second: f64,
    bytes_per_token: f64,
    bandwidth_share: f64,
}

pub fn bench(args: &BenchArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let tests = tests(args);
    let Some(needed) = tests.iter().map(|test| test.depth + test.tokens).max() else {
        return Err(Usage("nothing to measure: -p and -n are both without a size above 0".to_string()).into());
    };
    let mut model = args.model.clone();
    if let Some(&first) = args.kv_types.first() {
        model.kv_type = first;
    }
    let mut loaded = load::load(&model, terminal)?;
    if needed > loaded.engine.context_tokens() {
        bail!(
            "the tests need a context of {needed} tokens, and it has {}: give -c {needed}",
            loaded.engine.context_tokens()
        );
    }
    let read_bytes_per_second = machine::read_bandwidth(loaded.engine.info().threads);
    let interrupts = Interrupts::catch();
    let threads = loaded.engine.info().threads;
    if !args.json {
        let gigabytes = read_bytes_per_second / 1e9;
        let threads = counted(threads, "thread");
        terminal.write_line(&format!("{}, {threads}, memory reads {gigabytes:.1} GB/s\n", loaded.name))?;
        terminal.write_line("| test | KV | depth | tokens | tokens/s | MB/token | share of memory speed |")?;
        terminal.write_line("| --- | --- | ---: | ---: | ---: | ---: | ---: |")?;
    }
    let mut entries = Vec::new();
    let mut highest_share = 0f64;
    for (i, &types) in kv_types(args).iter().enumerate() {
        if i > 0 {
            loaded.engine = loaded.engine_with(types)?;
        }
        let kv_type = kv_type_name(types);
        for test in &tests {
            let Some(measured) = measure(test, args, &mut loaded, read_bytes_per_second, &interrupts)? else {
                return Ok(Ended::Interrupted);
            };
            highest_share = highest_share.max(measured.bandwidth_share);
            if args.json {
                entries.push(json!({
                    "name": test.kind.name(),
                    "model": loaded.name,
                    "threads": threads,
                    "kv_type": kv_type,
                    "depth": test.depth,
                    "tokens": test.tokens,
                    "tokens_per_second": measured.tokens_per_second,
                    "bytes_per_token": measured.bytes_per_token,
                    "bandwidth_share": measured.bandwidth_share,
                }));
            } else {
                terminal.write_line(&format!(
                    "| {} | {kv_type} | {} | {} | {:.1} | {:.1} | {:.0} % |",
                    test.kind.name(),
                    test.depth,
                    test.tokens,
                    measured.tokens_per_second,
                    measured.bytes_per_token / 1e6,
                    measured.bandwidth_share * 100.0
                ))?;
                terminal.flush()?;
            }
        }
    }
    if args.json {
        let report = json!({"read_bytes_per_second": read_bytes_per_second, "tests": entries});
        terminal.write_line(&report.to_string())?;
    }
    if highest_share > 1.0 {
        terminal.warn(
            "a share above 100 % of the memory's speed: the machine was busy while that was measured, or the model fits \
             into the processor's cache",
        );
    }
    Ok(Ended::Done)
}

/// At least one pair for K and V.
fn kv_types(args: &BenchArgs) -> Vec<(KvType, KvType)> {
    if args.kv_types.is_empty() {
        return vec![args.model.kv_types()];
    }
    args.kv_types.iter().map(|&name| (name.into(), name.into())).collect()
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let depths: &[usize] = match args.depth.as_slice() {
        [] if args.no_kv_cache => &[64, 128, 256],
        [] => &[0],
        depths => depths,
    };
    let mut tests = Vec::new();
    for &depth in depths {
        if args.no_kv_cache {
            let kinds = [(Kind::Decode, UNCACHED_TOKENS), (Kind::NoCache, UNCACHED_TOKENS)];
            tests.extend(kinds.map(|(kind, tokens)| Test { kind, depth, tokens }));
            continue;
        }
        let kinds = [(Kind::Prefill, &args.prompt_tokens), (Kind::Decode, &args.gen_tokens)];
        for (kind, sizes) in kinds {
            tests.extend(sizes.iter().filter(|&&tokens| tokens > 0).map(|&tokens| Test { kind, depth, tokens }));
        }
    }
    tests
}

/// The median over the repetitions; `None`: interrupted.
fn measure(
    test: &Test,
    args: &BenchArgs,
    loaded: &mut Loaded,
    read_bytes_per_second: f64,
    interrupts: &Interrupts,
) -> anyhow::Result<Option<Measured>> {
    let mut ids = RandomIds { state: 1, vocab: loaded.engine.vocab() as u64 };
    let sequence = loaded.engine.new_sequence();
    let mut seconds = Vec::new();
    let depth_ids: Vec<TokenId> = ids.by_ref().take(test.depth).collect();
    for _ in 0..args.repetitions {
        // New ids each time, so that no cache can answer for the computation.
        let test_ids: Vec<TokenId> = ids.by_ref().take(test.tokens).collect();
        if test.kind != Kind::NoCache && loaded.engine.tokens(sequence).len() < test.depth {
            prefill(loaded, sequence, &depth_ids, interrupts)?;
            if interrupts.pending() {
                return Ok(None);
            }
        }
        loaded.engine.truncate(sequence, test.depth);
        let start = Instant::now();
        match test.kind {
            Kind::Prefill => prefill(loaded, sequence, &[&depth_ids[..], &test_ids].concat(), interrupts)?,
            Kind::Decode => {
                for &id in test_ids.iter().take_while(|_| !interrupts.pending()) {
                    loaded.engine.decode(sequence, id)?;
                }
            }
            Kind::NoCache => {
                for n in 1..=test_ids.len() {
                    let mut all = [&depth_ids[..], &test_ids[..n]].concat();
                    // Another first token: nothing published begins like this.
                    all[0] = ids.next().expect("the ids never end");
                    loaded.engine.truncate(sequence, 0);
                    prefill(loaded, sequence, &all, interrupts)?;
                    if interrupts.pending() {
                        break;
                    }
                }
            }
        }
        seconds.push(start.elapsed().as_secs_f64());
        if interrupts.pending() {
            return Ok(None);
        }
    }
    loaded.engine.free_sequence(sequence);
    let tokens_per_second = test.tokens as f64 / median(&mut seconds);
    let bytes_per_token = bytes_per_token(test, args.model.batch_size, loaded);
    let bandwidth_share = bytes_per_token * tokens_per_second / read_bytes_per_second;
    Ok(Some(Measured { tokens_per_second, bytes_per_token, bandwidth_share }))
}

fn prefill(loaded: &mut Loaded, sequence: SequenceId, ids: &[TokenId], interrupts: &Interrupts) -> anyhow::Result<()> {
    let mut on_progress = |_, _| if interrupts.pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    match loaded.engine.prefill(sequence, ids, &mut on_progress) {
        Ok(_) | Err(crate::engine::Error::Interrupted) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What must be read for a token: in decode all weights and the cache so far, in prefill the weights once for each batch,
/// without a cache a prefill of all tokens so far for each one.
fn bytes_per_token(test: &Test, batch_tokens: usize, loaded: &Loaded) -> f64 {
    let (weights, kv) = (loaded.weights_bytes as f64, loaded.engine.info().kv_bytes_per_token as f64);
    match test.kind {
        Kind::Decode => weights + kv * (test.depth as f64 + (test.tokens + 1) as f64 / 2.0),
        Kind::NoCache => {
            let all = test.depth as f64 + (test.tokens + 1) as f64 / 2.0;
            (all / batch_tokens as f64).ceil() * weights + all * kv
        }
        Kind::Prefill => {
            let batches = test.tokens.div_ceil(batch_tokens) as f64;
            (batches * weights + (test.depth + test.tokens) as f64 * kv) / test.tokens as f64
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn kv_type_name((k, v): (KvType, KvType)) -> String {
    if k == v { k.name().to_string() } else { format!("{}/{}", k.name(), v.name()) }
}

/// The same ids on every machine (a linear congruential generator); any id does for timing.
struct RandomIds {
    state: u64,
    vocab: u64,
}

impl Iterator for RandomIds {
    type Item = TokenId;
    fn next(&mut self) -> Option<TokenId> {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some(((self.state >> 33) % self.vocab) as TokenId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middle_ones() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn random_ids_stay_in_the_vocabulary() {
        let ids: Vec<TokenId> = RandomIds { state: 1, vocab: 320 }.take(1000).collect();
        assert!(ids.iter().all(|&id| id < 320) && ids.iter().any(|&id| id != ids[0]));
    }
}
