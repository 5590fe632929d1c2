//! A report of an earlier run beside this one.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::report::{Entry, Report, cell, number};

/// Far more than any report has.
const MOST_BYTES: u64 = 16 << 20;

/// What a comparison needs of a file that `--json` wrote.
#[derive(Debug, Deserialize)]
pub struct Earlier {
    sayfa: String,
    machine: EarlierMachine,
    model: EarlierModel,
    tests: Vec<EarlierTest>,
}

#[derive(Debug, Deserialize)]
struct EarlierMachine {
    cpu: String,
    threads: usize,
    simd: String,
    #[serde(default)]
    gpu: Option<String>,
}

#[derive(Debug, Deserialize)]
struct EarlierModel {
    name: String,
    activations: String,
    weights_bytes_per_token: u64,
    batch_tokens: usize,
}

#[derive(Debug, Deserialize)]
struct EarlierTest {
    #[serde(flatten)]
    key: Key,
    tokens_per_second: f64,
}

/// Tests that agree in all of these measure the same.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Key {
    name: String,
    kv_type: String,
    sequences: usize,
    depth: usize,
    tokens: usize,
}

impl Key {
    fn of(entry: &Entry) -> Key {
        Key {
            name: entry.name.name().to_string(),
            kv_type: entry.kv_type.clone(),
            sequences: entry.sequences,
            depth: entry.depth,
            tokens: entry.tokens,
        }
    }

    /// The first cells of a row.
    fn cells(&self) -> String {
        let Key { name, kv_type, sequences, depth, tokens } = self;
        format!("| {name} | {kv_type} | {sequences} | {depth} | {tokens} |")
    }
}

#[derive(Debug, Serialize)]
pub struct Comparison {
    with: String,
    /// In which ways the runs differ beside their results.
    differences: Vec<String>,
    tests: Vec<Pair>,
    /// Tests that only one of the two has.
    only_earlier: Vec<Key>,
    only_now: Vec<Key>,
}

#[derive(Debug, Serialize)]
struct Pair {
    #[serde(flatten)]
    key: Key,
    earlier_tokens_per_second: f64,
    tokens_per_second: f64,
    /// Above 1: faster now.
    ratio: f64,
}

/// Reads and checks the file of `--compare`.
pub fn read(path: &Path) -> anyhow::Result<Earlier> {
    let named = || format!("--compare {}", path.display());
    let about = fs::metadata(path).with_context(named)?;
    ensure!(
        about.is_file() && about.len() <= MOST_BYTES,
        "{}: this is no report of `sayfa bench --json` (a file of at most {} MiB)",
        named(),
        MOST_BYTES >> 20
    );
    let text = fs::read(path).with_context(named)?;
    let mut earlier: Earlier = serde_json::from_slice(&text)
        .map_err(|error| anyhow!("{}: this is no report of `sayfa bench --json` ({error})", named()))?;
    let is_speed = |test: &EarlierTest| test.tokens_per_second.is_finite() && test.tokens_per_second > 0.0;
    ensure!(
        !earlier.tests.is_empty() && earlier.tests.iter().all(is_speed),
        "{}: this is no report of `sayfa bench --json` (each of its tests must have a speed above 0)",
        named()
    );
    let tests = earlier.tests.iter_mut().flat_map(|test| [&mut test.key.name, &mut test.key.kv_type]);
    let facts = [
        &mut earlier.sayfa,
        &mut earlier.machine.cpu,
        &mut earlier.machine.simd,
        &mut earlier.model.name,
        &mut earlier.model.activations,
    ];
    tests.chain(facts).chain(&mut earlier.machine.gpu).for_each(|text| *text = cell(text));
    Ok(earlier)
}

impl Comparison {
    pub fn new(path: &Path, earlier: &Earlier, report: &Report) -> Comparison {
        let now: Vec<(Key, f64)> = report.tests.iter().map(|entry| (Key::of(entry), entry.tokens_per_second)).collect();
        let gpu = |name: &Option<String>| name.clone().unwrap_or("none".to_string());
        let find = |key: &Key| earlier.tests.iter().find(|test| test.key == *key);
        let pair = |(key, speed): &(Key, f64)| {
            let before = find(key)?.tokens_per_second;
            let key = key.clone();
            Some(Pair { key, earlier_tokens_per_second: before, tokens_per_second: *speed, ratio: speed / before })
        };
        let is_now = |key: &Key| now.iter().any(|(other, _)| other == key);
        let facts = [
            ("sayfa", earlier.sayfa.clone(), report.sayfa.to_string()),
            ("the model", earlier.model.name.clone(), report.model.name.clone()),
            (
                "bytes of weights a token",
                earlier.model.weights_bytes_per_token.to_string(),
                report.model.weights_bytes_per_token.to_string(),
            ),
            ("-b", earlier.model.batch_tokens.to_string(), report.model.batch_tokens.to_string()),
            ("activations", earlier.model.activations.clone(), report.model.activations.to_string()),
            ("the processor", earlier.machine.cpu.clone(), report.machine.cpu.clone()),
            ("threads", earlier.machine.threads.to_string(), report.machine.threads.to_string()),
            ("instructions", earlier.machine.simd.clone(), report.machine.simd.to_string()),
            ("the GPU", gpu(&earlier.machine.gpu), gpu(&report.machine.gpu)),
        ];
        let differing = facts.into_iter().filter(|(_, before, now)| before != now);
        Comparison {
            with: path.display().to_string(),
            differences: differing.map(|(what, before, now)| format!("{what}: {before} then, {now} now")).collect(),
            tests: now.iter().filter_map(pair).collect(),
            only_earlier: earlier.tests.iter().map(|test| &test.key).filter(|key| !is_now(key)).cloned().collect(),
            only_now: now.iter().map(|(key, _)| key).filter(|key| find(key).is_none()).cloned().collect(),
        }
    }

    pub fn table(&self) -> Vec<String> {
        let mut lines = vec![String::new(), format!("Compared with {}:", self.with)];
        lines.extend(self.differences.iter().map(|difference| format!("- {difference}")));
        lines.extend([
            String::new(),
            "| test | KV | sequences | depth | tokens | tokens/s then | now | ratio |".to_string(),
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |".to_string(),
        ]);
        for Pair { key, earlier_tokens_per_second, tokens_per_second, ratio } in &self.tests {
            let (before, now) = (number(*earlier_tokens_per_second), number(*tokens_per_second));
            lines.push(format!("{} {before} | {now} | {ratio:.2} |", key.cells()));
        }
        lines.extend(self.only_earlier.iter().map(|key| format!("{} measured then | missing | |", key.cells())));
        lines.extend(self.only_now.iter().map(|key| format!("{} missing | measured now | |", key.cells())));
        lines
    }
}
