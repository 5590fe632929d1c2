//! Right answers: logits and likelihoods against float64 arithmetic on the same weights (tests/data, see its README).

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;

use models::{Setting, all_logits, data, default_model, engine, load, nll};
use sayfa::backend::cpu::Activations;
use sayfa::kv::layout::KvType;
use serde_json::Value;

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(data(name)).expect("the fixture is committed");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|x| x.as_u64().expect("an id") as u32).collect()
}

fn mean_abs_error(logits: &[Vec<f32>], tokens: &[u32], nll_exact: &[f64]) -> f64 {
    assert_eq!(nll_exact.len() + 1, tokens.len());
    let errors = nll_exact.iter().enumerate().map(|(i, exact)| (nll(&logits[i], tokens[i + 1]) - exact).abs());
    errors.sum::<f64>() / nll_exact.len() as f64
}

/// Float models with F32 KV: last logits within 1e-4. Quantized ones: the mean error of the likelihoods is at most
/// 1.25 times that of llama.cpp on the same file.
fn check_folder(folder: &str) {
    let fixture = expected(&format!("{folder}/expected.json"));
    let tokens = tokens(&fixture["tokens"]);
    let mut failures = vec![];
    for (file, want) in fixture["models"].as_object().expect("models by file name") {
        let model = load(&data(&format!("{folder}/{file}")));
        let is_float = model.layers.iter().all(|layer| !layer.attn_q.weight.dtype.is_quantized());
        let kv_type = if is_float { KvType::F32 } else { KvType::F16 };
        let logits = all_logits(&mut engine(&model, Setting { kv_type, ..Setting::default() }), &tokens);
        if is_float {
            let last = logits.last().expect("a token");
            let distance = |(&got, want): (&f32, f64)| (f64::from(got) - want).abs();
            let worst = last.iter().zip(floats(&want["logits"])).map(distance).fold(0.0, f64::max);
            println!("{folder}/{file}: logits within {worst:.2e}");
            if worst.is_nan() || worst > 1e-4 {
                failures.push(format!("{file}: a logit is off by {worst:e}, allowed 1e-4"));
            }
        } else {
            let error = mean_abs_error(&logits, &tokens, &floats(&want["nll"]));
            let bound = 1.25 * want["llama_cpp_mean_abs_nll_error"].as_f64().expect("a number");
            println!("{folder}/{file}: mean |nll error| {error:.6}, allowed {bound:.6}");
            if error.is_nan() || error > bound {
                failures.push(format!("{file}: mean |nll error| {error}, allowed {bound}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// With activations in 16 bits every quantized file is near exact: what is left is the rounding of float sums and 32,512
/// levels.
#[test]
fn precise_activations_are_200_times_nearer() {
    for folder in ["micro", "variants"] {
        let fixture = expected(&format!("{folder}/expected.json"));
        let tokens = tokens(&fixture["tokens"]);
        for (file, want) in fixture["models"].as_object().expect("models by file name") {
            let model = load(&data(&format!("{folder}/{file}")));
            if let Some(nll) = want.get("nll") {
                let error = mean_abs_error(&all_logits(&mut engine(&model, PRECISE), &tokens), &tokens, &floats(nll));
                println!("{folder}/{file}: mean |nll error| {error:.7}");
                assert!(error <= PRECISE_ERROR, "{folder}/{file}: mean |nll error| {error}, allowed {PRECISE_ERROR}");
            }
        }
    }
}

const PRECISE: Setting = Setting { activations: Activations::Int16, kv_type: KvType::F32, ..Setting::DEFAULT };
const PRECISE_ERROR: f64 = 0.002;

#[test]
fn every_type_is_near_exact_arithmetic() {
    check_folder("micro");
}

#[test]
fn every_variant_of_the_architecture_is_near_exact_arithmetic() {
    check_folder("variants");
}

/// The default model on three texts: likelihoods, and greedy tokens wherever the exact lead is above 0.5.
#[test]
fn the_default_model_is_near_exact_arithmetic() {
    let fixture = expected("smollm2/expected.json");
    let model = load(&default_model());
    let mut precise = engine(&model, PRECISE);
    let mut engine = engine(&model, Setting::default());
    let (mut ours, mut theirs, mut precise_error) = (0.0, 0.0, 0.0);
    for case in fixture["cases"].as_array().expect("cases") {
        let tokens = tokens(&case["tokens"]);
        let logits = all_logits(&mut engine, &tokens);
        ours += mean_abs_error(&logits, &tokens, &floats(&case["nll"]));
        precise_error += mean_abs_error(&all_logits(&mut precise, &tokens), &tokens, &floats(&case["nll"]));
        theirs += case["llama_cpp"]["mean_abs_nll_error"].as_f64().expect("a number");

        // teacher-forced: each step is judged on the exact continuation so far
        let greedy: Vec<(u32, f64)> = case["greedy_with_margin"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|pair| (pair[0].as_u64().expect("an id") as u32, pair[1].as_f64().expect("a lead")))
            .collect();
        let text: Vec<u32> = tokens.iter().copied().chain(greedy.iter().map(|pair| pair.0)).collect();
        let logits = all_logits(&mut engine, &text);
        for (i, &(token, lead)) in greedy.iter().enumerate() {
            let row = &logits[tokens.len() - 1 + i];
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a vocabulary");
            assert!(lead <= 0.5 || best as u32 == token, "step {i}: token {best}, exact {token} with lead {lead}");
        }
    }
    let mean = |sum: f64| sum / 3.0;
    println!(
        "mean |nll error|: ours {:.4}, llama.cpp {:.4}, with 16-bit activations {:.5}",
        mean(ours),
        mean(theirs),
        mean(precise_error)
    );
    assert!(mean(precise_error) <= PRECISE_ERROR, "16-bit activations: mean |nll error| {}", mean(precise_error));
    assert!(ours <= 1.3 * theirs, "mean |nll error| {} against llama.cpp's {}", ours / 3.0, theirs / 3.0);
}
