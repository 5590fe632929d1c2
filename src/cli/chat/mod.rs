//! `sayfa chat`: a conversation in the terminal, or one message a line from a pipe.

mod answer;
mod branches;
mod commands;
mod completion;
mod conversation;
mod documents;
mod editor;
mod external;
mod format;
mod input;
mod kv;
mod paths;
mod report;
mod saved;
mod session;
mod set;
mod settings;
mod show;
mod words;

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use clap::Args;

use self::answer::OutputLost;
use self::commands::Flow;
use self::input::{Input, Reader};
use self::session::Session;
use super::args::{CacheArgs, GenerationArgs, ModelArgs, SystemArgs, Talk};
use super::constraint::ConstraintArgs;
use super::display::DisplayArgs;
use super::sampling::SamplingArgs;
use super::session::SessionArgs;
use super::signals;
use super::terminal::Terminal;
use super::{Ended, Usage};

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub system: SystemArgs,

    /// Read this text first
    ///
    /// It stands before your first message, and is computed at once. May be given several times.
    #[arg(short, long = "file", value_name = "FILE", help_heading = "Prompt")]
    pub files: Vec<PathBuf>,

    /// Refuse text that is not UTF-8
    ///
    /// Without it what is wrong becomes U+FFFD.
    #[arg(long, help_heading = "Prompt")]
    pub strict_utf8: bool,

    /// Leave the history of messages alone
    ///
    /// Without this flag each message you type is kept, for you alone, in $XDG_STATE_HOME/sayfa/history or
    /// ~/.local/state/sayfa/history.
    #[arg(long, help_heading = "Prompt")]
    pub no_history: bool,

    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    #[command(flatten)]
    pub display: DisplayArgs,

    /// No line of figures after each answer, as /set quiet does
    #[arg(long, help_heading = "Output")]
    pub no_figures: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn chat(args: &ChatArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    args.session.check_place()?;
    if args.files.iter().any(|file| file.as_os_str() == "-") {
        return Err(Usage("-f -: standard input is for the messages of the chat".to_string()).into());
    }
    args.sampling.warn_of_idle(terminal);
    let format = args.constraint.read(terminal)?;
    if terminal.stdin_is_terminal() {
        signals::keep_terminal();
    }
    let template = args.system.chat_template.as_deref();
    let loaded = super::load::load_for_text(&args.model, &args.cache, 1, template, terminal)?;
    if loaded.texts.template.is_none() {
        terminal.warn("the model has no chat template: it completes text instead of answering");
    }
    let mut session = Session::new(loaded, format, args)?;
    session.resume(args, terminal)?;
    terminal.info(&format!("{} on {}. /? for help.", session.loaded.name, session.loaded.engine.info().device));
    for file in &args.files {
        if !session.read(file, "-f", terminal)? {
            return Ok(Ended::Interrupted);
        }
    }
    let mut reader = Reader::open(args.strict_utf8, !args.no_history, terminal)?;
    let mut warned = false;
    loop {
        let talked = talk(&mut session, &mut reader, terminal);
        let Err(error) = session.keep(&args.session, terminal) else { return talked };
        if talked.is_err() || !terminal.stdin_is_terminal() || warned {
            terminal.error(&format!("{error:#}"));
            return talked.and(Err(anyhow!("the conversation is not saved")));
        }
        terminal.warn(&format!("{error:#}; /save FILE puts it elsewhere, leaving again gives it up"));
        warned = true;
    }
}

/// Answers until the user leaves.
fn talk(session: &mut Session, reader: &mut Reader, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let mut failures = 0;
    loop {
        reader.prepare(&session.branch_names(), session.switches.history, terminal);
        let outcome = match reader.next(terminal)? {
            Input::Message(text) => session.say(&text, terminal).map(|()| Flow::Stay),
            Input::Command(line) => commands::run(&line, session, terminal),
            Input::Interrupted => {
                terminal.info("Ctrl-D or /bye leaves");
                continue;
            }
            Input::GivenUp => {
                terminal.info("The unfinished message is given up; Ctrl-D again leaves");
                continue;
            }
            Input::End => break,
        };
        if signals::end_is_wanted() {
            return Ok(Ended::Interrupted);
        }
        match outcome.map_err(|error| error.downcast::<OutputLost>()) {
            Ok(_) if session.is_to_end() => return Ok(Ended::Interrupted),
            Ok(Flow::Stay) => {}
            Ok(Flow::Leave) => break,
            Err(Ok(OutputLost(error))) => return Err(error),
            Err(Err(error)) => {
                failures += 1;
                terminal.error(&format!("{error:#}"));
            }
        }
    }
    // A person has read what failed; a script looks at the exit code.
    if failures > 0 && !terminal.stdin_is_terminal() {
        bail!("{failures} of the lines above could not be answered");
    }
    Ok(Ended::Done)
}
