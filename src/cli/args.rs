//! Flags that several commands share, under llama.cpp's names and with its defaults. Ranges are checked here, so that
//! an error names the flag and exits with 2.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, ValueEnum};

use super::Usage;
use super::device::DeviceArgs;
use crate::backend::cpu::{Activations, Simd};
use crate::engine::OnFull;
use crate::kv::layout::{BLOCK_TOKENS, KvType};
use crate::model::{RopeOverrides, RopeScaling};

/// Of `-b`.
pub const DEFAULT_BATCH: usize = 256;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// GGUF file, or the name of one
    ///
    /// A name is looked up in $SAYFA_MODELS, ./models and ~/.local/share/sayfa/models, then among the models that ollama
    /// has pulled (llama3.2:1b) and in the Hugging Face cache (org/repo:Q4_K_M). `sayfa models` lists them all.
    ///
    /// [default: $SAYFA_MODEL, else SmolLM2-135M-Instruct.Q4_1.gguf in one of the folders]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,

    /// Threads; 0: one for each physical core
    ///
    /// At most as many as there are processors.
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=4096), allow_negative_numbers = true)]
    pub threads: usize,

    /// Context in tokens; 0: as many as the model was trained for
    ///
    /// Refused if this machine has no room for it; --force insists.
    ///
    /// [default: as many as the model was trained for, or less if there is no room for them]
    #[arg(short, long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=1 << 31), allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,

    // Each step unpacks all weights once: 256 tokens share that. Steps are shorter where the machine is slow.
    /// Most prompt tokens computed in one step
    ///
    /// Changes no result on the CPU.
    #[arg(short, long, value_name = "N", default_value_t = DEFAULT_BATCH, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536), allow_negative_numbers = true)]
    pub batch_size: usize,

    /// How keys and values are kept in the KV cache
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvTypeName::F16, help_heading = "KV cache")]
    pub kv_type: KvTypeName,

    /// The same for keys alone [default: that of --kv-type]
    #[arg(long, value_name = "TYPE", value_enum, help_heading = "KV cache")]
    pub kv_type_k: Option<KvTypeName>,

    /// The same for values alone [default: that of --kv-type]
    #[arg(long, value_name = "TYPE", value_enum, help_heading = "KV cache")]
    pub kv_type_v: Option<KvTypeName>,

    /// Load although the context does not fit into memory
    #[arg(long)]
    pub force: bool,

    /// Keep the weights in memory
    ///
    /// The system never drops or swaps them then; `ulimit -l` must allow it.
    #[arg(long)]
    pub mlock: bool,

    /// Read the file into memory instead of mapping it
    ///
    /// For slow network disks, or a file that may change meanwhile.
    #[arg(long)]
    pub no_mmap: bool,

    /// CPU instructions to use
    ///
    /// All of them give the same results.
    ///
    /// [default: $SAYFA_SIMD, else the best this CPU has]
    #[arg(long, value_name = "SET", value_enum)]
    pub simd: Option<SimdName>,

    /// Bits of the inputs of quantized matrices
    ///
    /// 16 comes close to exact arithmetic and reads prompts at about two thirds of the speed.
    #[arg(long, value_name = "BITS", value_enum, default_value_t = ActivationBits::Eight)]
    pub activations: ActivationBits,

    /// Base of the rotary frequencies [default: from the model]
    #[arg(long, value_name = "X", value_parser = above_zero, allow_negative_numbers = true)]
    pub rope_freq_base: Option<f32>,

    /// Factor of the rotary frequencies [default: from the model]
    #[arg(long, value_name = "X", value_parser = above_zero, allow_negative_numbers = true)]
    pub rope_freq_scale: Option<f32>,

    /// How positions are scaled [default: from the model]
    ///
    /// For contexts beyond the trained length.
    #[arg(long, value_name = "KIND", value_enum)]
    pub rope_scaling: Option<RopeScalingName>,

    // Last, as its heading counts for all that follows.
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl ModelArgs {
    pub fn kv_types(&self) -> (KvType, KvType) {
        (self.kv_type_k.unwrap_or(self.kv_type).into(), self.kv_type_v.unwrap_or(self.kv_type).into())
    }

    /// --simd, else $SAYFA_SIMD, which is named when it makes no sense.
    pub fn simd(&self) -> anyhow::Result<Option<Simd>> {
        let from_environment = std::env::var_os("SAYFA_SIMD").filter(|name| !name.is_empty());
        let name = match (self.simd, from_environment) {
            (None, Some(name)) => Some(simd_of_environment(&name.to_string_lossy())?),
            (name, _) => name,
        };
        Ok(name.map(Simd::from))
    }

    pub fn rope_overrides(&self) -> RopeOverrides {
        RopeOverrides {
            freq_base: self.rope_freq_base,
            freq_scale: self.rope_freq_scale,
            scaling: self.rope_scaling.map(RopeScaling::from),
        }
    }
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "KV cache")]
pub struct CacheArgs {
    /// Most tokens kept for reuse [default: as many as the context]
    ///
    /// Of text that no conversation holds any more.
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=1 << 31), allow_negative_numbers = true)]
    pub cache_tokens: Option<usize>,

    /// What to do when the context is full
    ///
    /// `stop` ends the answer, `evict` forgets the oldest tokens and goes on.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnFullName::Stop)]
    pub on_full: OnFullName,

    /// First tokens that `--on-full evict` never forgets
    ///
    /// Rounded up to blocks of 16; -1: the whole first prompt.
    ///
    /// [default: 16, as models lean on their first tokens]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(-1..=1 << 31), allow_negative_numbers = true)]
    pub keep: Option<i64>,
}

impl CacheArgs {
    /// What happens in a full context of this size. What `--keep -1` keeps is known with the first prompt only.
    pub fn on_full(&self, context_tokens: usize) -> anyhow::Result<OnFull> {
        if self.on_full == OnFullName::Stop {
            ensure!(self.keep.is_none(), Usage("--keep says nothing without --on-full evict".to_string()));
            return Ok(OnFull::Stop);
        }
        ensure!(
            context_tokens >= BLOCK_TOKENS,
            "--on-full evict forgets blocks of {BLOCK_TOKENS} tokens, and the context has {context_tokens}: raise -c"
        );
        let most = (context_tokens / BLOCK_TOKENS - 1) * BLOCK_TOKENS;
        let keep = match self.keep {
            None | Some(-1) => most.min(BLOCK_TOKENS),
            Some(keep) => usize::try_from(keep).expect("the flag's range ends at -1"),
        };
        ensure!(
            keep <= most,
            "--keep {keep} leaves nothing to forget in a context of {context_tokens} tokens: at most --keep {most}"
        );
        Ok(OnFull::Evict { keep })
    }

    /// What shall be kept of a conversation that begins with a prompt of so many tokens.
    pub fn on_full_after(&self, first_prompt_tokens: usize, context_tokens: usize) -> anyhow::Result<OnFull> {
        match (self.on_full, self.keep) {
            (OnFullName::Evict, Some(-1)) => Ok(OnFull::Evict { keep: first_prompt_tokens }),
            _ => self.on_full(context_tokens),
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Prompt")]
pub struct SystemArgs {
    /// System message
    ///
    /// "" asks for an empty one, where a model's template would add its own.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// System message from a file
    ///
    /// Read as -f reads one.
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    pub system_file: Option<PathBuf>,

    /// System message in the first user message
    ///
    /// For templates without a system role.
    #[arg(long)]
    pub system_in_user: bool,

    /// Chat template instead of the model's own
    ///
    /// A file of Jinja, or a family's name such as chatml, llama3 or gemma (an unknown one gets the list).
    #[arg(long, value_name = "TEMPLATE")]
    pub chat_template: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Generation")]
pub struct GenerationArgs {
    /// Most tokens of an answer; -1: no limit
    ///
    /// -1: until the model ends it; -2: until the context is full.
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, value_parser = clap::value_parser!(i64).range(-2..=1 << 31), allow_negative_numbers = true)]
    pub predict: i64,

    /// End the answer before this text
    ///
    /// May be given several times.
    #[arg(short = 'r', long = "stop", visible_alias = "reverse-prompt", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,

    /// Read \n, \t, \\ and the like in -p and --stop as escapes
    #[arg(short, long)]
    pub escape: bool,
}

impl GenerationArgs {
    /// `None`: no limit but the end of text or of the context.
    pub fn max_tokens(&self) -> Option<usize> {
        usize::try_from(self.predict).ok()
    }

    /// The same where a full context would not end the answer: -2 still means until there.
    pub fn max_tokens_within(&self, room: usize) -> Option<usize> {
        if self.predict == -2 { Some(room) } else { self.max_tokens() }
    }

    /// Stop strings, escapes processed where asked for.
    pub fn stops(&self) -> Vec<String> {
        self.stop.iter().map(|text| if self.escape { unescape(text) } else { text.clone() }).collect()
    }
}

#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Messages")]
pub struct Talk {
    /// No progress and no notes
    ///
    /// Warnings and errors stay.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// All notes
    ///
    /// Also where standard error is no terminal.
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvTypeName {
    F16,
    F32,
    Int8,
}

impl From<KvTypeName> for KvType {
    fn from(name: KvTypeName) -> KvType {
        match name {
            KvTypeName::F16 => KvType::F16,
            KvTypeName::F32 => KvType::F32,
            KvTypeName::Int8 => KvType::Int8,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnFullName {
    #[default]
    Stop,
    Evict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimdName {
    Scalar,
    Avx2,
    Avx512,
    Neon,
}

impl From<SimdName> for Simd {
    fn from(name: SimdName) -> Simd {
        match name {
            SimdName::Scalar => Simd::Scalar,
            SimdName::Avx2 => Simd::Avx2,
            SimdName::Avx512 => Simd::Avx512,
            SimdName::Neon => Simd::Neon,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ActivationBits {
    #[default]
    #[value(name = "8")]
    Eight,
    #[value(name = "16")]
    Sixteen,
}

impl From<ActivationBits> for Activations {
    fn from(bits: ActivationBits) -> Activations {
        match bits {
            ActivationBits::Eight => Activations::Int8,
            ActivationBits::Sixteen => Activations::Int16,
        }
    }
}

fn simd_of_environment(name: &str) -> anyhow::Result<SimdName> {
    let known = SimdName::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let simd = SimdName::from_str(name, false).map_err(|_| {
        let known: Vec<String> = known.map(|value| value.get_name().to_string()).collect();
        Usage(format!("$SAYFA_SIMD must be one of {}, not '{name}'", known.join(", ")))
    })?;
    ensure!(Simd::from(simd).is_available(), "this CPU does not have the instructions of $SAYFA_SIMD, {name}");
    Ok(simd)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RopeScalingName {
    None,
    Linear,
    Yarn,
}

impl From<RopeScalingName> for RopeScaling {
    fn from(name: RopeScalingName) -> RopeScaling {
        match name {
            RopeScalingName::None => RopeScaling::None,
            RopeScalingName::Linear => RopeScaling::Linear,
            RopeScalingName::Yarn => RopeScaling::Yarn,
        }
    }
}

pub fn number(text: &str, wanted: &str, fits: impl Fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && fits(value) => Ok(value),
        _ => Err(format!("not {wanted}")),
    }
}

pub fn above_zero(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |value| value > 0.0)
}

/// Escapes of C that llama.cpp knows too; what is none of them stays as it is.
pub fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('\\') => out.push('\\'),
            Some('\'') => out.push('\''),
            Some('"') => out.push('"'),
            Some('x') => {
                let code: String = rest.clone().take(2).take_while(|c| c.is_ascii_hexdigit()).collect();
                match u8::from_str_radix(&code, 16) {
                    // One byte of a longer character cannot be written this way: only ASCII has a meaning.
                    Ok(byte) if byte.is_ascii() => {
                        out.push(byte as char);
                        rest.nth(code.len() - 1);
                    }
                    _ => out.push_str("\\x"),
                }
            }
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_and_anything_else_stays() {
        assert_eq!(unescape(r"a\nb\tc\\n\'\x41"), "a\nb\tc\\n'A");
        assert_eq!(unescape(r"C:\dir \x \xZZ \xff \"), r"C:\dir \x \xZZ \xff \");
    }

    #[test]
    fn what_is_kept_leaves_a_block_to_forget() {
        let on_full = |keep, context_tokens| {
            CacheArgs { cache_tokens: None, on_full: OnFullName::Evict, keep }.on_full(context_tokens)
        };
        assert_eq!(on_full(None, 512).unwrap(), OnFull::Evict { keep: 16 });
        assert_eq!(on_full(None, 16).unwrap(), OnFull::Evict { keep: 0 });
        assert_eq!(on_full(Some(112), 128).unwrap(), OnFull::Evict { keep: 112 });
        let error = on_full(Some(113), 128).unwrap_err().to_string();
        assert!(error.contains("--keep 113") && error.contains("128") && error.ends_with("--keep 112"), "{error}");
        assert!(on_full(Some(0), 15).unwrap_err().to_string().contains("raise -c"));
        let useless = CacheArgs { keep: Some(0), ..CacheArgs::default() };
        assert!(useless.on_full(512).unwrap_err().is::<Usage>());
        assert_eq!(CacheArgs::default().on_full(8).unwrap(), OnFull::Stop);
    }
}
