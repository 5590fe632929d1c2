//! The command line: subcommands, dispatch, exit codes. Flags are in `args`, one file a command beside it.

pub mod args;
mod bench;
pub mod chat;
mod compare_kv;
mod device;
mod input;
mod inspect;
pub mod load;
mod machine;
mod models;
mod notices;
mod open;
mod perplexity;
mod plan;
mod prompt;
mod run;
mod session;
pub mod signals;
pub mod terminal;
mod tokenize;
mod usage;
mod weights;

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{CommandFactory, Parser, Subcommand};

use self::args::Talk;
use self::terminal::Terminal;

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
    after_help = "Without a command: `run` if -p, -f or piped text gives a prompt, else `chat`.\n\
                  The answer goes to standard output, everything else to standard error.\n\
                  Exit codes: 0 done, 1 failed, 2 usage, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk with a model
    Chat(chat::ChatArgs),
    /// Answer one prompt: piped text, files and -p
    Run(run::RunArgs),
    /// Show the tokens of a text
    Tokenize(tokenize::TokenizeArgs),
    /// Tell what a model needs in memory and whether it fits, before anything is loaded
    Plan(plan::PlanArgs),
    /// Show what a GGUF file holds
    Inspect(inspect::InspectArgs),
    /// List the models on this machine: sayfa's, ollama's, Hugging Face's and llama.cpp's
    Models(models::ModelsArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Measure speed
    Bench(bench::BenchArgs),
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
        }
    }
}

/// What the program's arguments ask for.
pub enum Asked {
    Work(Box<Command>),
    /// --help or --version
    Help(clap::Error),
}

impl Asked {
    pub fn talk(&self) -> Talk {
        match self {
            Asked::Work(command) => command.talk(),
            Asked::Help(_) => Talk::default(),
        }
    }
}

/// Parses the program's arguments.
pub fn parse(args: Vec<OsString>) -> anyhow::Result<Asked> {
    let args = device::with_long_names(args);
    match parse_for(args.clone(), std::io::stdin().is_terminal()) {
        Ok(command) => Ok(Asked::Work(Box::new(command))),
        Err(error) if !error.use_stderr() => Ok(Asked::Help(error)),
        Err(error) => Err(Usage(usage::sentence(&error, &args, &Cli::command())).into()),
    }
}

/// Without a subcommand the flags are those of `run` if there is something to read, else those of `chat`.
fn parse_for(args: Vec<OsString>, stdin_is_terminal: bool) -> Result<Command, clap::Error> {
    let first = args.get(1).map(|first| first.to_string_lossy().into_owned()).unwrap_or_default();
    let names_command = !first.is_empty() && !first.starts_with('-');
    if names_command || ["-h", "--help", "-V", "--version"].contains(&first.as_str()) {
        return Cli::try_parse_from(args).map(|cli| cli.command);
    }
    let parse_as = |name: &str| {
        let (program, flags) = args.split_at(args.len().min(1));
        let with_name = program.iter().cloned().chain([OsString::from(name)]).chain(flags.iter().cloned());
        Cli::try_parse_from(with_name).map(|cli| cli.command)
    };
    match parse_as("run") {
        Ok(Command::Run(run)) if stdin_is_terminal && !run.input.is_given() => parse_as("chat"),
        // A flag that only chat has.
        Err(error) if stdin_is_terminal => parse_as("chat").map_err(|_| error),
        parsed => parsed,
    }
}

pub fn run(asked: Asked, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let command = match asked {
        Asked::Work(command) => *command,
        Asked::Help(help) => return terminal.write_help(&help).map(|()| Ended::Done),
    };
    signals::install()?;
    match command {
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
    }
}

/// `1 token`, `2 tokens`.
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &str, stdin_is_terminal: bool) -> Result<Command, clap::Error> {
        let args = std::iter::once("sayfa").chain(flags.split_whitespace()).map(OsString::from).collect();
        parse_for(args, stdin_is_terminal)
    }

    #[test]
    fn the_flags_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_a_prompt_means_run_and_a_terminal_chat() {
        let is_run = |flags, stdin_is_terminal| matches!(parsed(flags, stdin_is_terminal), Ok(Command::Run(_)));
        let is_chat = |flags, stdin_is_terminal| matches!(parsed(flags, stdin_is_terminal), Ok(Command::Chat(_)));
        assert!(is_run("-m M -p hi", true) && is_run("-p hi", false) && is_run("-f x -t 2", true));
        assert!(is_run("", false) && is_run("-m M", false));
        assert!(is_chat("", true) && is_chat("-m M --temp 0", true) && is_chat("chat -m M", false));
        assert!(parsed("-m M --no-such-flag", true).is_err() && parsed("model.gguf", true).is_err());
    }

    #[test]
    fn flags_out_of_range_are_usage_errors_that_name_the_flag() {
        for (flags, name) in [
            ("--top-p -0.1", "--top-p"),
            ("--top-p 1.5", "--top-p"),
            ("--top-p nan", "--top-p"),
            ("--min-p -1", "--min-p"),
            ("--temp -1", "--temp"),
            ("--repeat-penalty 0", "--repeat-penalty"),
            ("--repeat-last-n -2", "--repeat-last-n"),
            ("-c -1", "--ctx-size"),
            ("-b 0", "--batch-size"),
            ("-t -1", "--threads"),
            ("-n -3", "--predict"),
            ("-s -2", "--seed"),
        ] {
            let error = parsed(&format!("run -p hi {flags}"), true).expect_err(flags);
            assert!(error.exit_code() == 2 && error.to_string().contains(name), "{flags}: {error}");
        }
        for flags in
            ["--top-k -1", "--top-k 1000000000", "--repeat-last-n -1", "-s 0", "-s -1", "-n -2", "-t 0", "-c 0"]
        {
            assert!(parsed(&format!("run -p hi {flags}"), true).is_ok(), "{flags}");
        }
    }
}
