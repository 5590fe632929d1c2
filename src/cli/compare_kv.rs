//! `sayfa perplexity --compare-kv`: what a KV type costs in quality. The same text runs through three engines in lock step
//! that differ in nothing but their cache.
//!
//! The model multiplies int8 activations, which amplify any rounding: keeping keys and values in f32 instead of f16
//! changes its words already. So the distance of the chosen type from f16 stands beside this floor.

use std::ops::ControlFlow;

use anyhow::ensure;
use serde_json::json;

use super::Ended;
use super::load::Loaded;
use super::perplexity::Windows;
use super::terminal::{Interrupts, Terminal};
use crate::engine::{Engine, Error, SequenceId};
use crate::kv::layout::KvType;
use crate::tokenizer::TokenId;

/// Tokens in a step of each engine.
const STEP_TOKENS: usize = 32;

/// How far another cache is from the f16 one.
#[derive(Default)]
struct Distance {
    /// KL(f16, other) of every position, with its place in its window.
    kl: Vec<(usize, f64)>,
    /// Positions at which both find the same token likeliest.
    agreements: usize,
}

impl Distance {
    fn add(&mut self, place: usize, f16: &[f32], other: &[f32]) {
        self.kl.push((place, kl_divergence(f16, other)));
        self.agreements += usize::from(likeliest(f16) == likeliest(other));
    }

    fn mean(&self) -> f64 {
        self.mean_where(|_| true)
    }

    /// Over the positions whose place in the window is one of these.
    fn mean_where(&self, wanted: impl Fn(usize) -> bool) -> f64 {
        let kl: Vec<f64> = self.kl.iter().filter(|(place, _)| wanted(*place)).map(|(_, kl)| *kl).collect();
        kl.iter().sum::<f64>() / kl.len().max(1) as f64
    }

    fn agreement(&self) -> f64 {
        self.agreements as f64 / self.kl.len().max(1) as f64
    }

    /// Mean KL in the first and in the last quarter of the windows: errors that add up would show here.
    fn drift(&self) -> (f64, f64) {
        let end = self.kl.iter().map(|(place, _)| place + 1).max().unwrap_or(0);
        (self.mean_where(|place| place < end / 4), self.mean_where(|place| place >= end - end / 4))
    }

    fn line(&self, name: &str) -> String {
        let (first, last) = self.drift();
        format!(
            "{name:<9} mean KL {:.6}, top-1 agreement {:.2} %, mean KL of the first quarter {first:.6}, of the last {last:.6}",
            self.mean(),
            self.agreement() * 100.0
        )
    }

    fn to_json(&self) -> serde_json::Value {
        let (first, last) = self.drift();
        json!({
            "mean_kl": self.mean(), "top1_agreement": self.agreement(),
            "first_quarter_mean_kl": first, "last_quarter_mean_kl": last,
        })
    }
}

/// `loaded` keeps keys and values in the type to measure.
pub fn compare(tokens: &[TokenId], loaded: &Loaded, as_json: bool, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let (k, v) = loaded.kv_types();
    let name = if k == v { k.name().to_string() } else { format!("{}/{}", k.name(), v.name()) };
    let types = [(KvType::F16, KvType::F16), (KvType::F32, KvType::F32), (k, v)];
    let mut engines = Vec::new();
    for types in types {
        engines.push(loaded.engine_with(types)?);
    }
    let interrupts = Interrupts::catch();
    let mut progress = terminal.progress_tokens("comparing", tokens.len());
    let (mut floor, mut chosen) = (Distance::default(), Distance::default());
    let windows = Windows::new(tokens, loaded)?;
    for window in windows.iter() {
        let sequences: Vec<SequenceId> = engines.iter_mut().map(Engine::new_sequence).collect();
        for (step, tokens) in window.tokens.chunks(STEP_TOKENS).enumerate() {
            let mut logits = Vec::with_capacity(engines.len());
            for (engine, &sequence) in engines.iter_mut().zip(&sequences) {
                logits.push(score(engine, sequence, tokens)?);
            }
            for (i, f16) in logits[0].iter().enumerate() {
                let place = step * STEP_TOKENS + i;
                if place >= window.head_tokens {
                    floor.add(place, f16, &logits[1][i]);
                    chosen.add(place, f16, &logits[2][i]);
                }
            }
            progress.set(chosen.kl.len() as u64);
            if interrupts.pending() {
                return Ok(Ended::Interrupted);
            }
        }
        engines.iter_mut().zip(sequences).for_each(|(engine, sequence)| engine.free_sequence(sequence));
    }
    drop(progress);
    let ratio = chosen.mean() / floor.mean();
    ensure!(
        chosen.mean().is_finite() && floor.mean().is_finite(),
        "non-finite logits: the weights are damaged or overflow"
    );
    if as_json {
        let report = json!({
            "tokens": chosen.kl.len(), "window_tokens": windows.window_tokens, "kv_type": name,
            "chosen": chosen.to_json(), "floor": floor.to_json(), "ratio": ratio,
        });
        terminal.write_line(&report.to_string())?;
        return Ok(Ended::Done);
    }
    terminal.write_line(&format!("distance from an f16 cache over {} tokens", chosen.kl.len()))?;
    terminal.write_line(&chosen.line(&name))?;
    terminal.write_line(&floor.line("f32"))?;
    terminal.write_line(&format!("{name} is {ratio:.3} times as far as f32, which is the floor of this arithmetic"))?;
    Ok(Ended::Done)
}

/// Logits (vocab) after each of `tokens`.
fn score(engine: &mut Engine, sequence: SequenceId, tokens: &[TokenId]) -> Result<Vec<Vec<f32>>, Error> {
    let mut all = Vec::with_capacity(tokens.len());
    let mut keep = |_, logits: &[f32]| {
        all.push(logits.to_vec());
        ControlFlow::Continue(())
    };
    engine.score(sequence, tokens, &mut keep)?;
    Ok(all)
}

/// Sum of p * ln(p / q) over the vocabulary, in f64.
fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_total, q_total) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - p_total, f64::from(q) - q_total);
        p.exp() * (p - q)
    });
    terms.sum()
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln()
}

fn likeliest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_of_two_coins_is_known() {
        // p = (1/2, 1/2), q = (3/4, 1/4): 1/2 ln(2/3) + 1/2 ln 2
        let (p, q) = ([5.0f32, 5.0], [3f32.ln() - 1.0, -1.0]);
        let wanted = 0.5 * (2f64 / 3.0).ln() + 0.5 * 2f64.ln();
        assert!((kl_divergence(&p, &q) - wanted).abs() < 1e-7);
        assert_eq!(kl_divergence(&p, &p), 0.0);
        assert!(kl_divergence(&p, &[f32::NAN, 0.0]).is_nan());
    }

    #[test]
    fn drift_tells_the_quarters_of_a_window_apart() {
        let mut distance = Distance::default();
        for place in 0..8 {
            let error = if place < 2 { 0.0 } else { 1.0 };
            distance.add(place, &[1.0, 0.0], &[1.0 - error, error]);
        }
        let (first, last) = distance.drift();
        assert!(first == 0.0 && last > 0.4, "{first} {last}");
        assert_eq!(distance.agreement(), 0.25);
        assert!((distance.mean() - last * 0.75).abs() < 1e-12);
    }
}
