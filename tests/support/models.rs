//! Engines over test models, for the tests that compare numbers.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sayfa::backend::cpu::{self, Activations, Simd};
use sayfa::engine::{Engine, OnFull, Options};
use sayfa::gguf::Gguf;
use sayfa::kv::layout::KvType;
use sayfa::model::{Model, RopeOverrides};

/// How an engine is opened; each field that a bit must not depend on.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub simd: Option<Simd>,
    pub threads: usize,
    pub kv_type: KvType,
    pub batch_tokens: usize,
    pub batch_logits: usize,
    pub activations: Activations,
    pub context_tokens: usize,
    pub on_full: OnFull,
}

impl Setting {
    pub const DEFAULT: Setting = Setting {
        simd: None,
        threads: 2,
        kv_type: KvType::F16,
        batch_tokens: 512,
        batch_logits: 32,
        activations: Activations::Int8,
        context_tokens: 512,
        on_full: OnFull::Stop,
    };
}

impl Default for Setting {
    fn default() -> Setting {
        Setting::DEFAULT
    }
}

/// A file under tests/data of the repository, or of the folder that `scripts/gpu_check.sh --pack` makes.
pub fn data(name: &str) -> PathBuf {
    let packed = std::env::var_os("SAYFA_TEST_ROOT").map(PathBuf::from);
    packed.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR"))).join("tests/data").join(name)
}

/// The default model; scripts/get_model.sh fetches it.
pub fn default_model() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.is_file(), "{} is missing: run scripts/get_model.sh", path.display());
    path
}

pub fn load(path: &Path) -> Arc<Model> {
    let gguf = Gguf::open(path).unwrap_or_else(|error| panic!("{error}"));
    Arc::new(Model::from_gguf(&gguf, &RopeOverrides::default()).unwrap_or_else(|error| panic!("{error:#}")))
}

pub fn options(setting: Setting) -> cpu::Options {
    cpu::Options {
        threads: setting.threads,
        simd: setting.simd,
        kv_type_k: setting.kv_type,
        kv_type_v: setting.kv_type,
        batch_tokens: setting.batch_tokens,
        batch_logits: setting.batch_logits,
        activations: setting.activations,
    }
}

pub fn engine(model: &Arc<Model>, setting: Setting) -> Engine {
    let backend = cpu::open(model.clone(), &options(setting)).expect("this CPU runs the tests");
    let context_tokens = setting.context_tokens;
    let options = Options { context_tokens, sequences: 2, cache_tokens: context_tokens, on_full: setting.on_full };
    Engine::new(backend, &options).expect("a small context fits")
}

/// Logits (vocab) after each token of a text.
pub fn all_logits(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let id = engine.new_sequence();
    let mut all = vec![];
    let keep = &mut |_, logits: &[f32]| {
        all.push(logits.to_vec());
        ControlFlow::Continue(())
    };
    engine.score(id, tokens, keep).expect("the text fits");
    engine.free_sequence(id);
    all
}

/// -ln p(token) by log-sum-exp in f64.
pub fn nll(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - max)
}
