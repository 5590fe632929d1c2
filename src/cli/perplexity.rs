//! `sayfa perplexity`: how well a model predicts a text. Scores are computed in f64 from the f32 logits.

use std::ops::ControlFlow;

use anyhow::{anyhow, bail, ensure};
use clap::Args;
use serde_json::json;

use super::args::{KvTypeName, ModelArgs, Talk};
use super::compare_kv;
use super::device::DeviceArgs;
use super::input::{Form, InputArgs};
use super::load::{self, Loaded};
use super::terminal::{Interrupts, Terminal};
use super::{Ended, Usage, counted};
use crate::engine;
use crate::kv::layout::KvType;
use crate::tokenizer::{Special, TokenId};

#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: InputArgs,

    /// Print one JSON object
    ///
    /// {tokens, nll, mean_nll, ppl, window_tokens}
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// How far the KV type is from f16
    ///
    /// That of --kv-type, else int8, beside how far f32 is: mean KL, top-1 agreement, drift.
    #[arg(long, help_heading = "Output")]
    compare_kv: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn perplexity(args: &PerplexityArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let Some(text) = args.input.read(Form::Exact, false, terminal)? else {
        return Err(Usage("nothing to read: give text with -f, -p or standard input".to_string()).into());
    };
    let mut model = args.model.clone();
    if args.compare_kv && model.kv_types() == (KvType::F16, KvType::F16) {
        model.kv_type = KvTypeName::Int8;
    }
    if args.compare_kv {
        ensure!(
            !model.device.insists(),
            Usage(
                "--compare-kv compares with keys and values in f32, which only the CPU keeps: leave --device out"
                    .to_string()
            )
        );
        model.device = DeviceArgs::CPU;
    }
    let mut loaded = load::load(&model, terminal)?;
    let tokens = loaded.texts.tokenizer.encode_with_bos(&text, Special::AsText)?;
    if tokens.len() < 2 {
        bail!("the text has {}: it takes two to predict one from the other", counted(tokens.len(), "token"));
    }
    if args.compare_kv {
        return compare_kv::compare(&tokens, &loaded, args.json, terminal);
    }
    let Some(nll) = score(&tokens, &mut loaded, terminal)? else { return Ok(Ended::Interrupted) };
    let mean_nll = nll.iter().sum::<f64>() / nll.len() as f64;
    let (ppl, window_tokens) = (mean_nll.exp(), loaded.engine.context_tokens());
    if args.json {
        let report = json!({
            "tokens": tokens, "nll": nll, "mean_nll": mean_nll, "ppl": ppl, "window_tokens": window_tokens,
        });
        terminal.write_line(&report.to_string())?;
    } else {
        let windows = nll.len().div_ceil(window_tokens);
        let split = if windows > 1 { format!(", in {windows} windows of {window_tokens}") } else { String::new() };
        terminal.write_line(&format!(
            "perplexity {ppl:.4} (mean nll {mean_nll:.6}) over {}{split}",
            counted(nll.len(), "token")
        ))?;
    }
    Ok(Ended::Done)
}

/// A text cut to pieces of the context's size, each one read from nothing (with BOS if the model wants one): every token is
/// read once, the first ones of a window with little to go by.
pub struct Windows<'a> {
    text: &'a [TokenId],
    /// Put before every window but the first, which has it already if it should.
    bos: Option<TokenId>,
    pub window_tokens: usize,
}

pub struct Window {
    /// Where the text behind the head starts.
    start: usize,
    pub head_tokens: usize,
    pub tokens: Vec<TokenId>,
}

impl<'a> Windows<'a> {
    pub fn new(text: &'a [TokenId], loaded: &Loaded) -> anyhow::Result<Windows<'a>> {
        let tokenizer = &loaded.texts.tokenizer;
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        let window_tokens = loaded.engine.context_tokens();
        if text.len() > window_tokens && bos.is_some() && window_tokens < 2 {
            bail!("-c {window_tokens}: no room for a token after BOS: raise -c");
        }
        Ok(Windows { text, bos, window_tokens })
    }

    pub fn iter(&self) -> impl Iterator<Item = Window> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let head: Vec<TokenId> = self.bos.filter(|_| start > 0).into_iter().collect();
            let end = self.text.len().min(start + self.window_tokens - head.len());
            let tokens = [&head[..], &self.text[start..end]].concat();
            let window = Window { start, head_tokens: head.len(), tokens };
            (end > std::mem::replace(&mut start, end)).then_some(window)
        })
    }
}

/// nll[i] = -ln p(tokens[i + 1] | the tokens up to i in the window). `None`: interrupted.
fn score(tokens: &[TokenId], loaded: &mut Loaded, terminal: &Terminal) -> anyhow::Result<Option<Vec<f64>>> {
    let interrupts = Interrupts::catch();
    let mut progress = terminal.progress_tokens("scoring", tokens.len() - 1);
    let mut nll = Vec::with_capacity(tokens.len() - 1);
    let windows = Windows::new(&tokens[..tokens.len() - 1], loaded)?;
    for window in windows.iter() {
        let mut damaged = None;
        let sequence = loaded.engine.new_sequence();
        let scored = loaded.engine.score(sequence, &window.tokens, &mut |index, logits| {
            let Some(index) = index.checked_sub(window.head_tokens) else { return ControlFlow::Continue(()) };
            let target = tokens[window.start + index + 1];
            let value = negative_log_likelihood(logits, target);
            if !value.is_finite() {
                damaged = Some(window.start + index);
                return ControlFlow::Break(());
            }
            nll.push(value);
            progress.set(nll.len() as u64);
            if interrupts.pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        loaded.engine.free_sequence(sequence);
        if let Some(position) = damaged {
            return Err(anyhow!("non-finite logits after token {position}: the weights are damaged or overflow"));
        }
        match scored {
            Ok(()) => {}
            Err(engine::Error::Interrupted) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(nll))
}

/// ln(sum of exp(logits)) - logits[target], in f64.
fn negative_log_likelihood(logits: &[f32], target: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&logit| (logit as f64 - max).exp()).sum();
    max + sum.ln() - logits[target as usize] as f64
}

#[cfg(test)]
mod tests {
    use super::negative_log_likelihood;

    #[test]
    fn even_odds_cost_the_logarithm_of_their_number() {
        let nll = negative_log_likelihood(&[1000.0; 8], 3);
        assert!((nll - 8f64.ln()).abs() < 1e-12);
        assert!((negative_log_likelihood(&[0.0, 2.0], 1) - (1.0 + (-2f64).exp()).ln()).abs() < 1e-12);
    }

    #[test]
    fn a_nan_anywhere_shows() {
        assert!(negative_log_likelihood(&[0.0, f32::NAN, 1.0], 0).is_nan());
    }
}
