//! What INT8 keys and values cost in quality, on the default model and 4,096 tokens of prose. The numbers are printed:
//! `cargo test --release --test kv_quality -- --nocapture`.

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;

use std::ops::ControlFlow;

use models::{Setting, data, default_model, engine, load};
use sayfa::backend::cpu::Activations;
use sayfa::engine::{Engine, SequenceId};
use sayfa::gguf::Gguf;
use sayfa::kv::layout::KvType;
use sayfa::tokenizer::{Special, TokenId, Tokenizer};

const TOKENS: usize = 4096;
/// Tokens that the engines compute in one step.
const STEP: usize = 128;

/// The first tokens of tests/data/prose.txt.
fn prose() -> Vec<TokenId> {
    let text = std::fs::read_to_string(data("prose.txt")).expect("a committed text");
    let gguf = Gguf::open(&default_model()).expect("the default model");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("its vocabulary");
    let mut tokens = tokenizer.encode_with_bos(&text, Special::AsText).expect("plain text");
    assert!(tokens.len() >= TOKENS, "prose.txt has {} tokens", tokens.len());
    tokens.truncate(TOKENS);
    tokens
}

/// How far a cache of another type is from one of f16, by KL(f16, other) at every position.
struct Distance {
    kl: Vec<f64>,
    agreements: usize,
}

impl Distance {
    fn mean(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.kl.len() as f64
    }

    fn agreement(&self) -> f64 {
        self.agreements as f64 / self.kl.len() as f64
    }

    /// Mean KL of each quarter of the text.
    fn quarters(&self) -> Vec<f64> {
        let quarters = self.kl.chunks(self.kl.len() / 4);
        quarters.map(|quarter| quarter.iter().sum::<f64>() / quarter.len() as f64).collect()
    }
}

/// Reads the prose with an f16 cache and with each of the others, in lock step.
fn distances(activations: Activations, others: &[KvType]) -> Vec<Distance> {
    let (model, tokens) = (load(&default_model()), prose());
    let setting = Setting { batch_logits: STEP, activations, context_tokens: TOKENS, ..Setting::default() };
    let types = std::iter::once(&KvType::F16).chain(others);
    let mut readers: Vec<(Engine, SequenceId)> = types
        .map(|&kv_type| {
            let mut engine = engine(&model, Setting { kv_type, ..setting });
            let sequence = engine.new_sequence();
            (engine, sequence)
        })
        .collect();
    let mut distances: Vec<Distance> = others.iter().map(|_| Distance { kl: vec![], agreements: 0 }).collect();
    for step in tokens.chunks(STEP) {
        let logits: Vec<Vec<Vec<f32>>> = readers.iter_mut().map(|(engine, id)| read(engine, *id, step)).collect();
        for (other, distance) in logits[1..].iter().zip(&mut distances) {
            for (f16, other) in logits[0].iter().zip(other) {
                distance.kl.push(kl_divergence(f16, other));
                distance.agreements += usize::from(likeliest(f16) == likeliest(other));
            }
        }
    }
    for (kv_type, distance) in others.iter().zip(&distances) {
        println!(
            "{activations:?} activations, {}: mean KL {:.6}, top-1 {:.4}, quarters {:.6?}",
            kv_type.name(),
            distance.mean(),
            distance.agreement(),
            distance.quarters()
        );
    }
    distances
}

/// Logits after each of the tokens.
fn read(engine: &mut Engine, sequence: SequenceId, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut all = vec![];
    let mut keep = |_, logits: &[f32]| {
        all.push(logits.to_vec());
        ControlFlow::Continue(())
    };
    engine.score(sequence, tokens, &mut keep).expect("the text fits");
    all
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

/// Activations in f32 on dequantized weights: nothing but the cache rounds.
#[test]
fn alone_int8_is_close_to_f16() {
    let int8 = &distances(Activations::F32, &[KvType::Int8])[0];
    assert!(int8.mean() <= 0.001, "mean KL {}", int8.mean());
    assert!(int8.agreement() >= 0.975, "top-1 agreement {}", int8.agreement());
    assert!(int8.mean() > 0.0, "INT8 rounds: the two caches cannot agree to the bit");
}

/// In the product's arithmetic int8 activations amplify any rounding: f32 against f16 is the floor.
#[test]
fn in_the_products_arithmetic_int8_stays_near_the_floor_and_does_not_drift() {
    let distances = distances(Activations::Int8, &[KvType::F32, KvType::Int8]);
    let (floor, int8) = (&distances[0], &distances[1]);
    let ratio = int8.mean() / floor.mean();
    println!("int8 is {ratio:.3} times the floor");
    assert!(ratio <= 1.4, "KL(f16, int8) {} is {ratio} times KL(f16, f32) {}", int8.mean(), floor.mean());
    // Errors that added up would show in the last quarter, whatever the text there is like: the floor is the yardstick.
    let (of_int8, of_floor) = (int8.quarters(), floor.quarters());
    let growth = (of_int8[3] / of_int8[0]) / (of_floor[3] / of_floor[0]);
    assert!(growth <= 1.5, "by quarters INT8 {of_int8:?}, floor {of_floor:?}");
    assert!(int8.agreement() >= floor.agreement() - 0.01, "{} against {}", int8.agreement(), floor.agreement());
}
