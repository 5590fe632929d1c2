//! sayfa: runs 4-bit Llama-family GGUF models on one machine. `src/README.md` is the map of this crate.

pub mod backend;
pub mod cli;
pub mod constraint;
pub mod engine;
pub mod generation;
pub mod gguf;
pub mod kv;
pub mod model;
pub mod quant;
pub mod sampler;
pub mod template;
pub mod tokenizer;
