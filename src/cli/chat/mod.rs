//! `sayfa chat`: a conversation in the terminal, or one message a line from a pipe.

mod branches;
mod commands;
mod editor;
mod input;
mod kv;
mod saved;
mod session;
mod settings;

use anyhow::{anyhow, bail};
use clap::Args;

use self::commands::Flow;
use self::input::{Input, Reader};
use self::session::{OutputLost, Session};
use super::Ended;
use super::args::{CacheArgs, GenerationArgs, ModelArgs, SamplingArgs, SystemArgs, Talk};
use super::session::SessionArgs;
use super::signals;
use super::terminal::Terminal;

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub system: SystemArgs,

    /// Refuse text that is not UTF-8 instead of replacing what is wrong by U+FFFD
    #[arg(long, help_heading = "Prompt")]
    pub strict_utf8: bool,

    /// Neither read nor write the history of messages in $XDG_STATE_HOME/sayfa/history or
    /// ~/.local/state/sayfa/history; without this flag each message you type is kept there, for you alone
    #[arg(long, help_heading = "Prompt")]
    pub no_history: bool,

    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    #[command(flatten)]
    pub talk: Talk,
}

pub fn chat(args: &ChatArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    args.session.check_place()?;
    if terminal.stdin_is_terminal() {
        signals::keep_terminal();
    }
    let template = args.system.chat_template.as_deref();
    let loaded = super::load::load_for_text(&args.model, &args.cache, 1, template, terminal)?;
    if loaded.texts.template.is_none() {
        terminal.warn("the model has no chat template: it completes text instead of answering");
    }
    let mut session = Session::new(loaded, args)?;
    session.resume(args, terminal)?;
    let mut reader = Reader::open(args.strict_utf8, !args.no_history, terminal)?;
    terminal.info(&format!(
        "{} on {}. /? for help, Ctrl-D leaves.",
        session.loaded.name,
        session.loaded.engine.info().device
    ));
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
        let message = match reader.next(terminal)? {
            Input::Message(message) => message,
            Input::Interrupted => {
                terminal.info("Ctrl-D or /bye leaves");
                continue;
            }
            Input::End => break,
        };
        let outcome = match message.strip_prefix('/') {
            Some(text) if text.starts_with('/') => session.say(text.to_string(), terminal).map(|()| Flow::Stay),
            Some(_) => commands::run(&message, session, terminal),
            None => session.say(message, terminal).map(|()| Flow::Stay),
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
