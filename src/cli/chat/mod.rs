//! `sayfa chat`: a conversation in the terminal, or one message a line from a pipe.

use clap::Args;

use super::Ended;
use super::args::{GenerationArgs, ModelArgs, SamplingArgs, SystemArgs, Talk};
use super::terminal::Terminal;

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub system: SystemArgs,
    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub talk: Talk,
}

pub fn chat(args: &ChatArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let loaded = super::load::load(&args.model, terminal)?;
    terminal.info(&loaded.name);
    anyhow::bail!("chat is not there yet")
}
