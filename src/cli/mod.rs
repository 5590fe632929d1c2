//! The command line: subcommands, dispatch, exit codes. Flags are in `args`, one file a command beside it; `typed` and
//! `config` read them.

pub mod args;
mod bench;
pub mod chat;
mod compare_kv;
mod completions;
mod config;
mod constraint;
mod device;
mod display;
mod help;
mod input;
mod inspect;
mod llama_cpp;
pub mod load;
mod machine;
mod man;
mod models;
mod notices;
mod open;
mod perplexity;
mod plan;
mod prompt;
mod report;
mod run;
pub mod sampling;
mod session;
pub mod signals;
pub mod terminal;
mod thinking;
mod tokenize;
mod typed;
mod usage;
mod weights;
mod wrap;

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{FromArgMatches, Parser, Subcommand};

use self::args::Talk;
use self::config::{Added, Understood};
use self::terminal::Terminal;
use self::typed::Typed;

/// How a command ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// By Ctrl-C or another signal: exit code 128 and its number.
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
    override_usage = "sayfa [COMMAND] [OPTIONS]",
    after_help = "Examples:\n  \
                    sayfa                                  a chat with the default model\n  \
                    sayfa -p \"Name three rivers.\"          one answer\n  \
                    git diff | sayfa -p \"Summarize this.\"  text from a pipe comes before -p\n\n\
                  Without a command: `run` if -p, -f or piped text gives a prompt, else `chat`.\n\
                  The answer goes to standard output, everything else to standard error.\n\
                  Defaults and presets: ~/.config/sayfa/config.toml; `sayfa config` shows them.\n\
                  Exit codes: 0 done, 1 failed, 2 usage, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk with a model
    ///
    /// In a terminal with line editing, messages of several lines, history and commands (/? lists them); from a pipe one
    /// message a line.
    Chat(chat::ChatArgs),
    /// Answer one prompt: piped text, files and -p
    ///
    /// The prompt is standard input where it is no terminal, then the files of -f, then -p, joined by blank lines. The answer
    /// goes to standard output, and nothing else does.
    Run(run::RunArgs),
    /// Show the tokens of a text
    ///
    /// One a line: its id, how the vocabulary writes it, and what it stands for.
    Tokenize(tokenize::TokenizeArgs),
    /// Tell what a model needs in memory, and whether it fits
    ///
    /// On this machine and its GPU, or on one of --vram. Reads no more than the header of a file.
    Plan(plan::PlanArgs),
    /// Show what a GGUF file holds
    Inspect(inspect::InspectArgs),
    /// List the models on this machine
    ///
    /// sayfa's own, ollama's, and those in the caches of Hugging Face and llama.cpp.
    Models(models::ModelsArgs),
    /// Measure how well a model predicts a text
    ///
    /// A text longer than the context is read in windows of that size, which do not overlap.
    Perplexity(perplexity::PerplexityArgs),
    /// Measure speed
    ///
    /// Reads a prompt of 512 tokens and generates 64, three times after one to warm up; a table of the medians stands beside
    /// what the machine can give at best, which is measured first.
    Bench(bench::BenchArgs),
    /// Show what the flags and the configuration file come to
    ///
    /// The file is TOML, sayfa/config.toml in $XDG_CONFIG_HOME or ~/.config. Its keys are the long names of flags: at the
    /// top for every command that has the flag, in a table [COMMAND] for one, in [presets.NAME] for --preset NAME. A flag
    /// wins over the preset, the preset over $SAYFA_MODEL and $SAYFA_SIMD, these over the table of the command, and that
    /// over the top. --FLAG=false turns off a switch that the file turns on.
    #[command(override_usage = "sayfa config [OPTIONS] [COMMAND [FLAGS OF COMMAND]]")]
    Config(config::ConfigCommand),
    /// Print what a shell needs to complete commands and flags
    Completions(completions::CompletionsArgs),
    /// Write the man pages
    #[command(hide = true)]
    Man(man::ManArgs),
}

impl Command {
    pub fn talk(&self) -> Talk {
        match self {
            Command::Chat(args) => args.talk,
            Command::Run(args) => args.talk,
            Command::Tokenize(args) => args.talk,
            Command::Plan(args) => args.talk,
            Command::Inspect(args) => args.talk,
            Command::Models(args) => args.talk,
            Command::Perplexity(args) => args.talk,
            Command::Bench(args) => args.talk,
            Command::Config(_) | Command::Completions(_) | Command::Man(_) => Talk::default(),
        }
    }
}

/// What the program's arguments ask for.
pub enum Asked {
    /// With what the configuration added to the flags.
    Work(Box<Command>, Vec<Added>),
    /// --help or --version
    Help(clap::Error),
}

impl Asked {
    pub fn talk(&self) -> Talk {
        match self {
            Asked::Work(command, _) => command.talk(),
            Asked::Help(_) => Talk::default(),
        }
    }
}

/// Parses the program's arguments.
pub fn parse(args: Vec<OsString>) -> anyhow::Result<Asked> {
    match read(args, std::io::stdin().is_terminal(), &help::program())? {
        Read::Help(help) => Ok(Asked::Help(help)),
        Read::Command(understood) => {
            let command = Cli::from_arg_matches(&understood.matches)?.command;
            Ok(Asked::Work(Box::new(command), understood.added))
        }
    }
}

enum Read {
    Help(clap::Error),
    Command(Box<Understood>),
}

/// Flags and configuration together.
fn read(args: Vec<OsString>, stdin_is_terminal: bool, program: &clap::Command) -> anyhow::Result<Read> {
    let args = llama_cpp::with_long_names(args);
    match Typed::parse(args.clone(), stdin_is_terminal, program) {
        Ok(typed) => Ok(Read::Command(Box::new(Understood::new(typed, program)?))),
        Err(error) if !error.use_stderr() => Ok(Read::Help(error)),
        Err(error) => Err(Usage(usage::sentence(&error, &args, program)).into()),
    }
}

pub fn run(asked: Asked, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let (command, added) = match asked {
        Asked::Work(command, added) => (*command, added),
        Asked::Help(help) => return terminal.write_help(&help).map(|()| Ended::Done),
    };
    signals::install()?;
    let ended = match command {
        Command::Chat(mut args) => {
            args.system.read_file(args.strict_utf8, terminal)?;
            chat::chat(&args, terminal)
        }
        Command::Run(mut args) => {
            args.system.read_file(args.input.strict_utf8, terminal)?;
            run::run(&args, terminal)
        }
        Command::Tokenize(args) => tokenize::tokenize(&args, terminal),
        Command::Plan(args) => plan::plan(&args, terminal),
        Command::Inspect(args) => inspect::inspect(&args, terminal),
        Command::Models(args) => models::models(&args, terminal),
        Command::Perplexity(args) => perplexity::perplexity(&args, terminal),
        Command::Bench(args) => bench::bench(&args, terminal),
        Command::Config(args) => config::config(&args, terminal),
        Command::Completions(args) => completions::completions(&args, terminal),
        Command::Man(args) => man::man(&args, terminal),
    };
    ended.map_err(|error| config::explained(error, &added))
}

/// `1 token`, `2 tokens`.
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
