//! From -m to an engine that can answer: map the file, check it, plan a context that fits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::bail;

use super::args::{CacheArgs, ModelArgs};
use super::machine::{self, mib};
use super::models::{self, Found};
use super::open::{Made, Parts};
use super::plan::Room;
use super::prompt::NamedTemplate;
use super::terminal::Terminal;
use super::{counted, weights};
use crate::backend;
use crate::backend::cpu;
use crate::engine::{self, Engine};
use crate::gguf::Gguf;
use crate::kv::layout::KvType;
use crate::model::{Config, Model};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

pub struct Loaded {
    /// The file's name or ollama's, for people.
    pub name: String,
    pub texts: Texts,
    pub config: Config,
    /// Read for each decoded token.
    pub weights_bytes: u64,
    pub kv_bytes_per_token: u64,
    pub engine: Engine,
    pub load_seconds: f64,
    pub model: Arc<Model>,
    pub backend_options: cpu::Options,
    pub engine_options: engine::Options,
    pub gpu: Option<backend::Gpu>,
}

impl Loaded {
    /// How keys and values are kept.
    pub fn kv_types(&self) -> (KvType, KvType) {
        (self.backend_options.kv_type_k, self.backend_options.kv_type_v)
    }

    /// Another engine over the same weights, on the CPU, which keeps keys and values otherwise.
    pub fn engine_with(&self, (kv_type_k, kv_type_v): (KvType, KvType)) -> anyhow::Result<Engine> {
        let options = cpu::Options { kv_type_k, kv_type_v, ..self.backend_options.clone() };
        Engine::new(cpu::open(self.model.clone(), &options)?, &self.engine_options)
    }
}

/// What turns text into token ids and back.
pub struct Texts {
    pub path: PathBuf,
    /// The file, as sentences should call it.
    pub shown: String,
    pub tokenizer: Tokenizer,
    /// `None`: plain completion.
    pub template: Option<ChatTemplate>,
}

impl Texts {
    fn new(found: &Found, gguf: &Gguf, named: Option<&NamedTemplate>) -> anyhow::Result<Texts> {
        let tokenizer = found.explain(Tokenizer::from_gguf(gguf))?;
        let template = match named {
            Some(named) => Some(named.compile(&tokenizer)?),
            None => found.explain(ChatTemplate::from_gguf(gguf, &tokenizer))?,
        };
        Ok(Texts { path: found.path.clone(), shown: found.shown(), tokenizer, template })
    }

    /// Without the weights. `template`: a file or a family's name, instead of the file's own.
    pub fn open(model: Option<&Path>, template: Option<&Path>) -> anyhow::Result<Texts> {
        let named = template.map(NamedTemplate::open).transpose()?;
        let found = models::find(model)?;
        let gguf = found.explain(Gguf::open(&found.path).map_err(anyhow::Error::from))?;
        Texts::new(&found, &gguf, named.as_ref())
    }
}

/// Loads the model that the flags ask for and tells the user what is worth knowing about it.
pub fn load(args: &ModelArgs, terminal: &Terminal) -> anyhow::Result<Loaded> {
    load_with(args, &CacheArgs::default(), 1, terminal)
}

/// The same for so many sequences at once, and with a word on the cache.
pub fn load_with(args: &ModelArgs, cache: &CacheArgs, sequences: usize, terminal: &Terminal) -> anyhow::Result<Loaded> {
    load_for_text(args, cache, sequences, None, terminal)
}

/// The same with the chat template of `--chat-template`, if it is given.
pub fn load_for_text(
    args: &ModelArgs,
    cache: &CacheArgs,
    sequences: usize,
    template: Option<&Path>,
    terminal: &Terminal,
) -> anyhow::Result<Loaded> {
    let start = Instant::now();
    let named = template.map(NamedTemplate::open).transpose()?;
    let found = models::find(args.model.as_deref())?;
    let options = backend_options(args)?;
    let gguf = found.explain(weights::open(&found.path, args, terminal))?;
    let model = Arc::new(found.explain(Model::from_gguf(&gguf, &args.rope_overrides()))?);
    let parts = Parts { model: &model, gguf: &gguf, args, options: &options, sequences, terminal };
    let room = parts.room()?;
    let engine_options = |room: &Room| {
        let context_tokens = room.context_tokens;
        let (cache_tokens, on_full) = (cache.cache_tokens.unwrap_or(room.cache_tokens), cache.on_full(context_tokens)?);
        Ok(engine::Options { context_tokens, sequences, cache_tokens, on_full })
    };
    // The vocabulary needs a core for a while, the weights the disk, a GPU's copy of them its bus: all at once.
    let (texts, Made { engine, engine_options, gpu }) = std::thread::scope(|scope| {
        let texts = scope.spawn(|| Texts::new(&found, &gguf, named.as_ref()));
        let made = scope.spawn(|| parts.engine(&room, &engine_options));
        let settled = weights::settle(&gguf, args, terminal);
        let made = made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let texts = texts.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        settled.and(texts).and_then(|texts| Ok((texts, made?)))
    })?;
    terminal.detail(&format!("{}: {}", found.path.display(), engine.info().device));
    found.note.iter().for_each(|note| terminal.detail(note));
    if texts.tokenizer.vocab() > model.config.vocab {
        bail!(
            "{}: the vocabulary has {} tokens, but token_embd.weight has {} rows: the file is damaged",
            texts.shown,
            texts.tokenizer.vocab(),
            model.config.vocab
        );
    }
    warn(room.host_weights_bytes, &model, &texts, args, terminal);
    Ok(Loaded {
        name: found.name,
        texts,
        config: model.config.clone(),
        weights_bytes: engine.info().weight_bytes_per_token,
        kv_bytes_per_token: engine.info().kv_bytes_per_token,
        engine,
        load_seconds: start.elapsed().as_secs_f64(),
        model,
        backend_options: options,
        engine_options,
        gpu,
    })
}

/// What the flags ask of a backend.
pub fn backend_options(args: &ModelArgs) -> anyhow::Result<cpu::Options> {
    let (kv_type_k, kv_type_v) = args.kv_types();
    let simd = args.simd()?;
    // Threads beyond the processors only wait for each other, and the result is the same for any number.
    let threads = args.threads.min(processors());
    Ok(cpu::Options {
        threads,
        simd,
        kv_type_k,
        kv_type_v,
        batch_tokens: args.batch_size,
        batch_logits: cpu::BATCH_LOGITS,
        activations: args.activations.into(),
    })
}

fn warn(host_weights_bytes: u64, model: &Model, texts: &Texts, args: &ModelArgs, terminal: &Terminal) {
    for sentence in texts.tokenizer.warnings() {
        terminal.warn(sentence);
    }
    if let Some(note) = texts.template.as_ref().and_then(ChatTemplate::note) {
        terminal.warn(note);
    }
    if !model.unused_tensors.is_empty() {
        terminal
            .warn(&format!("the model does not use these tensors of the file: {}", shortened(&model.unused_tensors)));
    }
    if let Some(memory) = machine::total_memory().filter(|&memory| host_weights_bytes > memory) {
        let (weights, memory) = (mib(host_weights_bytes), mib(memory));
        terminal.warn(&format!(
            "the CPU has {weights} of weights to read for every token, and the machine {memory} of memory: every token \
             will read the disk"
        ));
    }
    warn_of_threads(args.threads, terminal);
    let trained = model.config.context_tokens;
    if args.ctx_size.is_some_and(|wanted| wanted > trained) {
        let wanted = args.ctx_size.unwrap_or(0);
        terminal.warn(&format!(
            "-c {wanted} is more than the {trained} tokens the model was trained for: late answers may be poor"
        ));
    }
}

fn warn_of_threads(threads: usize, terminal: &Terminal) {
    let (processors, cores) = (processors(), cpu::default_threads());
    if threads > processors {
        let (may, takes) = (counted(processors, "processor"), counted(processors, "thread"));
        terminal.warn(&format!("-t {threads}: this process may use {may}, so it takes {takes}"));
    } else if threads > cores {
        let cores = counted(cores, "physical core");
        terminal
            .warn(&format!("-t {threads}: with {cores} for them, more threads are mostly slower than one for each"));
    }
    let nodes = cpu::memory_nodes();
    if nodes.len() > 1 {
        terminal.info(&format!(
            "{} memory nodes (processors {}): the weights lie where they were first read, and the threads of other nodes \
             read them slowly; `numactl --interleave=all` spreads them, or `numactl -N 0 -m 0` keeps to one node, once \
             the file is no longer cached",
            nodes.len(),
            nodes.join(" and ")
        ));
    }
}

/// Of the affinity mask, or of a control group's time if that is less.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The first few of many names.
pub fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}
