//! The command line: subcommands, dispatch, exit codes. Flags are in `args`, one file a command beside it.

pub mod args;
pub mod chat;
pub mod load;
pub mod machine;
pub mod terminal;

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{Parser, Subcommand};

use self::args::Talk;
use self::terminal::Terminal;

/// How a command ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// By Ctrl-C: exit code 130.
    Interrupted,
}

/// The command line asks for something that makes no sense: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Runs 4-bit Llama-family GGUF models on this machine
#[derive(Debug, Parser)]
#[command(
    name = "sayfa",
    version,
    max_term_width = 100,
    after_help = "Without a command: `run` if -p, -f or piped text gives a prompt, else `chat`.\n\
                  The answer goes to standard output, everything else to standard error.\n\
                  Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk with a model
    Chat(chat::ChatArgs),
}

impl Command {
    pub fn talk(&self) -> Talk {
        match self {
            Command::Chat(args) => args.talk,
        }
    }
}

/// Parses the program's arguments. Without a subcommand they are those of `run` or of `chat`.
pub fn parse(mut args: Vec<OsString>) -> Result<Command, clap::Error> {
    let _ = std::io::stdin().is_terminal();
    if args.len() < 2 {
        args.push("chat".into());
    }
    Cli::try_parse_from(args).map(|cli| cli.command)
}

pub fn run(command: Command, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    terminal::install_interrupt_handler()?;
    match command {
        Command::Chat(args) => chat::chat(&args, terminal),
    }
}
