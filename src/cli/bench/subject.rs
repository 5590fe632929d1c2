//! What is measured: a model from a file, or a published shape with random weights in memory.

use std::sync::Arc;

use anyhow::{bail, ensure};

use super::{BenchArgs, synthetic};
use crate::backend;
use crate::backend::cpu;
use crate::cli::args::{CacheArgs, ModelArgs};
use crate::cli::load;
use crate::cli::machine::{self, size};
use crate::cli::open::{Made, Parts};
use crate::cli::plan::shapes::{Shape, Weights};
use crate::cli::terminal::Terminal;
use crate::engine::{self, Engine, OnFull};
use crate::kv::layout::KvType;
use crate::model::Model;

pub struct Subject {
    /// The file's name, or shape and type.
    pub name: String,
    pub model: Arc<Model>,
    pub engine: Engine,
    backend_options: cpu::Options,
    engine_options: engine::Options,
    gpu: Option<backend::Gpu>,
}

impl Subject {
    /// With room for so many sequences at once.
    pub fn open(args: &BenchArgs, sequences: usize, terminal: &Terminal) -> anyhow::Result<Subject> {
        let model = args.model_with_widest_kv();
        if let Some((name, shape)) = &args.shape {
            return Subject::synthetic(name, shape, args.weights, &model, sequences, terminal);
        }
        // Nothing that is measured may come out of the cache.
        let cache = CacheArgs { cache_tokens: Some(0), ..CacheArgs::default() };
        let loaded = load::load_with(&model, &cache, sequences, terminal)?;
        Ok(Subject {
            name: loaded.name,
            model: loaded.model,
            engine: loaded.engine,
            backend_options: loaded.backend_options,
            engine_options: loaded.engine_options,
            gpu: loaded.gpu,
        })
    }

    fn synthetic(
        name: &str,
        shape: &Shape,
        weights: Weights,
        args: &ModelArgs,
        sequences: usize,
        terminal: &Terminal,
    ) -> anyhow::Result<Subject> {
        let name = format!("{name} in {}", weights.name());
        let needed = shape.sizes(weights).weights_bytes();
        if let Some(memory) = machine::available_memory().filter(|memory| memory.bytes < needed && !args.force) {
            bail!(
                "--shape {name} takes {} of memory for its weights, but {} leaves {}: take a smaller shape or fewer bits \
                 (--weights), or insist with --force",
                size(needed),
                memory.limit,
                size(memory.bytes)
            );
        }
        let block = weights.block_elements();
        if let Some(rows) = [shape.dim, shape.hidden_dim].into_iter().find(|rows| !rows.is_multiple_of(block)) {
            terminal.warn(&format!(
                "--shape {name}: rows of {rows} elements are no whole blocks of {block}, so that some matrices are kept \
                 in a type of smaller blocks, as llama.cpp does it"
            ));
        }
        let gguf = synthetic::gguf(&name, shape, weights, terminal)?;
        let model = Arc::new(Model::from_gguf(&gguf, &args.rope_overrides())?);
        let backend_options = load::backend_options(args)?;
        let parts = Parts { model: &model, gguf: &gguf, args, options: &backend_options, sequences, terminal };
        let Made { engine, engine_options, gpu } = parts.engine(&parts.room()?, &|room| {
            let context_tokens = room.context_tokens;
            Ok(engine::Options { context_tokens, sequences, cache_tokens: 0, on_full: OnFull::Stop })
        })?;
        Ok(Subject { name, model, engine, backend_options, engine_options, gpu })
    }

    /// The same with another way to keep keys and values, no wider than the first.
    pub fn with_kv_types(self, (kv_type_k, kv_type_v): (KvType, KvType)) -> anyhow::Result<Subject> {
        let options = &self.backend_options;
        if (options.kv_type_k, options.kv_type_v) == (kv_type_k, kv_type_v) {
            return Ok(self);
        }
        let backend_options = cpu::Options { kv_type_k, kv_type_v, ..options.clone() };
        // A GPU may have no room for two of them.
        drop(self.engine);
        let backend = backend::open(self.model.clone(), &backend_options, self.gpu)?;
        let engine = Engine::new(backend, &self.engine_options)?;
        Ok(Subject { engine, backend_options, ..self })
    }

    /// How much of the weights that a token reads lies on a GPU, if one computes.
    pub fn gpu_share(&self) -> Option<f64> {
        let n_layers = self.model.config.n_layers;
        let layers = (n_layers + 1).checked_sub(self.gpu?.offloaded)?..n_layers;
        let there = self.model.bytes_per_token_of(layers, true);
        Some(there as f64 / self.model.bytes_per_token_of(0..n_layers, true) as f64)
    }

    pub fn activations(&self) -> cpu::Activations {
        self.backend_options.activations
    }

    /// Refuses tests that no sequence has room for.
    pub fn check_room(&self, tokens: usize, sequences: usize) -> anyhow::Result<()> {
        let context = self.engine.context_tokens();
        let each = if sequences > 1 { format!(" in each of {sequences} sequences") } else { String::new() };
        ensure!(
            tokens <= context,
            "depth and tokens come to {tokens}{each}, and the context has {context}: take less, or set the context with -c"
        );
        Ok(())
    }
}

/// The weights that decoding one token reads, in its order.
pub fn weights(model: &Model) -> Vec<&[u8]> {
    model.matrices_per_token().into_iter().map(|matrix| matrix.rows_data(0..matrix.rows)).collect()
}
