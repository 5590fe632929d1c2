//! What was measured, for programs (JSON that says of itself where it comes from) and for people (Markdown).

use serde::Serialize;

use super::ceilings::{Ceilings, Limit};
use super::measure::Measured;
use super::suite::{Kind, Test};
use crate::backend::{Profile, Stage};
use crate::cli::counted;
use crate::kv::layout::KvType;

#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of the program.
    pub sayfa: &'static str,
    pub machine: Machine,
    pub model: ModelFacts,
    pub ceilings: Ceilings,
    pub tests: Vec<Entry>,
}

#[derive(Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    pub os: &'static str,
    pub arch: &'static str,
    pub threads: usize,
    pub simd: &'static str,
    pub memory_bytes: Option<u64>,
    pub largest_cache_bytes: Option<u64>,
    /// The GPU and its part of the model, if there is one in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct ModelFacts {
    pub name: String,
    pub layers: usize,
    pub dim: usize,
    pub hidden_dim: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Read for each decoded token.
    pub weights_bytes_per_token: u64,
    /// Most prompt tokens computed in one step.
    pub batch_tokens: usize,
    /// How the inputs of quantized matrices are multiplied.
    pub activations: &'static str,
}

/// One test.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub name: Kind,
    pub model: String,
    pub threads: usize,
    pub kv_type: String,
    pub depth: usize,
    /// Of each sequence.
    pub tokens: usize,
    pub sequences: usize,
    /// Median over the repetitions, of all sequences together.
    pub tokens_per_second: f64,
    /// Of each repetition.
    pub runs_tokens_per_second: Vec<f64>,
    /// Least that must be read for a token, and operations.
    pub bytes_per_token: f64,
    pub ops_per_token: f64,
    /// Kernels on a GPU.
    pub launches_per_token: f64,
    /// A plain read of the same weights between the repetitions.
    pub plain_read_bytes_per_second: Option<f64>,
    pub limit: Option<Limit>,
    /// What that limit allows.
    pub most_tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageEntry>,
}

/// A stage of a step, averaged over the steps of a test.
#[derive(Debug, Serialize)]
pub struct StageEntry {
    pub stage: &'static str,
    pub step_us: f64,
    /// Of the step.
    pub share: f64,
    pub bytes_per_second: f64,
    pub ops_per_second: f64,
    pub limit: Option<Limit>,
}

impl Entry {
    pub fn new(test: &Test, kv_type: String, mut measured: Measured, report: &Report) -> Entry {
        let tokens = test.total_tokens() as f64;
        let runs_tokens_per_second = measured.seconds.iter().map(|seconds| tokens / seconds).collect();
        let seconds = median(&mut measured.seconds);
        let plain_read = (!measured.plain_reads.is_empty()).then(|| median(&mut measured.plain_reads));
        let ceilings = report.ceilings.with_read(plain_read);
        let work = measured.work;
        let limit = ceilings.nearest(work, seconds);
        Entry {
            name: test.kind,
            model: report.model.name.clone(),
            threads: report.machine.threads,
            kv_type,
            depth: test.depth,
            tokens: test.tokens,
            sequences: test.sequences,
            tokens_per_second: tokens / seconds,
            runs_tokens_per_second,
            bytes_per_token: work.bytes / tokens,
            ops_per_token: (work.int8_ops + work.float_ops) / tokens,
            launches_per_token: measured.launches as f64 / tokens,
            plain_read_bytes_per_second: plain_read,
            limit,
            most_tokens_per_second: limit.map(|limit| limit.share * seconds).map(|least| tokens / least),
            stages: measured.profile.map_or_else(Vec::new, |profile| stages(&profile, &ceilings)),
        }
    }

    /// Half the way between the slowest and the fastest repetition, as a share of the median; nothing after one.
    fn spread(&self) -> String {
        if self.runs_tokens_per_second.len() < 2 {
            return String::new();
        }
        let (least, most) = self
            .runs_tokens_per_second
            .iter()
            .fold((f64::MAX, 0f64), |(least, most), &run| (least.min(run), most.max(run)));
        format!("{:.0} %", 50.0 * (most - least) / self.tokens_per_second)
    }

    pub fn row(&self) -> String {
        let giga = |per_token: f64| number(per_token * self.tokens_per_second / 1e9);
        let plain = self.plain_read_bytes_per_second.map_or_else(String::new, |bytes| number(bytes / 1e9));
        let most = self.most_tokens_per_second.map_or_else(String::new, number);
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {plain} | {} | {most} | {} |",
            self.name.name(),
            self.kv_type,
            self.sequences,
            self.depth,
            self.tokens,
            number(self.tokens_per_second),
            self.spread(),
            if self.launches_per_token > 0.0 { number(self.launches_per_token) } else { "0".to_string() },
            number(self.bytes_per_token / 1e6),
            giga(self.bytes_per_token),
            giga(self.ops_per_token),
            limit(self.limit)
        )
    }

    /// What a person calls the test.
    pub fn title(&self) -> String {
        let sequences =
            if self.sequences > 1 { format!(" in each of {} sequences", self.sequences) } else { String::new() };
        format!(
            "{} of {}{sequences} at depth {}, {} KV",
            self.name.name(),
            counted(self.tokens, "token"),
            self.depth,
            self.kv_type
        )
    }
}

fn stages(profile: &Profile, ceilings: &Ceilings) -> Vec<StageEntry> {
    let passes = profile.passes.max(1) as f64;
    let entry = |stage: Stage| {
        let (seconds, work) = (profile.seconds(stage), profile.work(stage));
        StageEntry {
            stage: stage.name(),
            step_us: 1e6 * seconds / passes,
            share: seconds / profile.total_seconds(),
            bytes_per_second: work.bytes / seconds,
            ops_per_second: (work.int8_ops + work.float_ops) / seconds,
            limit: ceilings.nearest(work, seconds),
        }
    };
    Stage::ALL.into_iter().filter(|&stage| profile.seconds(stage) > 0.0).map(entry).collect()
}

impl Report {
    /// Lines above the table of tests.
    pub fn head(&self) -> Vec<String> {
        let Report { machine, model, ceilings, .. } = self;
        let gpu = machine
            .gpu
            .iter()
            .zip(&ceilings.gpu)
            .map(|(name, gpu)| format!("; {name}: copies {:.1} GB/s", gpu.copy_bytes_per_second / 1e9));
        let gpu: String = gpu.collect();
        vec![
            format!(
                "{}, {}, {}, {}; memory reads {:.1} GB/s, int8 {:.2} TOP/s, float {:.2} TOP/s{gpu}",
                model.name,
                machine.cpu,
                counted(machine.threads, "thread"),
                machine.simd,
                ceilings.read_bytes_per_second / 1e9,
                ceilings.int8_ops_per_second / 1e12,
                ceilings.float_ops_per_second / 1e12
            ),
            String::new(),
            "| test | KV | sequences | depth | tokens | tokens/s | ± | launches a token | MB a token | GB/s | plain read | GOP/s \
             | at most | share of the limit |"
                .to_string(),
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |".to_string(),
        ]
    }

    /// A table for every test whose stages were timed.
    pub fn stage_tables(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for entry in self.tests.iter().filter(|entry| !entry.stages.is_empty()) {
            let step_us: f64 = entry.stages.iter().map(|stage| stage.step_us).sum();
            lines.extend([
                String::new(),
                format!("{}: {} us a step", entry.title(), number(step_us)),
                String::new(),
                "| stage | us | share | GB/s | GOP/s | share of the limit |".to_string(),
                "| --- | ---: | ---: | ---: | ---: | --- |".to_string(),
            ]);
            lines.extend(entry.stages.iter().map(|stage| {
                let giga = |speed: f64| if speed > 0.0 { number(speed / 1e9) } else { String::new() };
                format!(
                    "| {} | {} | {:.1} % | {} | {} | {} |",
                    stage.stage,
                    number(stage.step_us),
                    100.0 * stage.share,
                    giga(stage.bytes_per_second),
                    giga(stage.ops_per_second),
                    limit(stage.limit)
                )
            }));
        }
        lines
    }
}

fn limit(limit: Option<Limit>) -> String {
    limit.map_or_else(String::new, |limit| format!("{:.0} % of {}", 100.0 * limit.share, limit.name))
}

/// Foreign text as it may stand in a table, a terminal and an SVG: without control characters and bars.
pub fn cell(text: &str) -> String {
    text.replace(|c: char| c.is_control() || c == '|', "\u{fffd}")
}

/// With about three digits.
pub fn number(x: f64) -> String {
    let decimals = match x.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        x if x >= 1.0 => 2,
        _ => 3,
    };
    format!("{x:.decimals$}")
}

pub fn kv_type_name((k, v): (KvType, KvType)) -> String {
    if k == v { k.name().to_string() } else { format!("{}/{}", k.name(), v.name()) }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
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
    fn foreign_text_cannot_break_a_table_or_a_terminal() {
        assert_eq!(cell("a\x1b[31m|b\n\u{9b}é<&"), "a\u{fffd}[31m\u{fffd}b\u{fffd}\u{fffd}é<&");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.0123, 1.234, 45.67, 312.6, 41234.4].map(number), ["0.012", "1.23", "45.7", "313", "41234"]);
    }
}
