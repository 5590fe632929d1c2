//! What a model gets to read: the user's text in a chat template, as it is, or around a gap that is to be filled in.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;

use super::Usage;
use super::args::{SystemArgs, unescape};
use super::input::{Form, read_bounded, read_file};
use super::load::Texts;
use super::run::RunArgs;
use super::terminal::Terminal;
use crate::template::{self, ChatTemplate, Message, Prompt, Role, fold_system};
use crate::tokenizer::{Special, Tokenizer};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Prompt")]
pub struct GapArgs {
    /// Fill in between the prompt and this
    ///
    /// The middle of a text, for models whose vocabulary has the markers of that; every byte of both counts, and no chat template is used.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "system", "system_file", "system_in_user", "chat_template"])]
    pub suffix: Option<String>,

    /// The same with the text of this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suffix", "raw", "system", "system_file", "system_in_user", "chat_template"])]
    pub suffix_file: Option<PathBuf>,
}

/// What the user gave to read.
pub struct Asked {
    text: String,
    /// What follows the gap that is to be filled in.
    suffix: Option<String>,
}

/// The texts of the flags and of standard input.
pub fn read(args: &RunArgs, terminal: &Terminal) -> anyhow::Result<Asked> {
    let suffix = match (&args.gap.suffix, &args.gap.suffix_file) {
        (Some(text), _) => Some(if args.generation.escape { unescape(text) } else { text.clone() }),
        (None, Some(file)) => Some(read_file(file, "--suffix-file", Form::Exact, args.input.strict_utf8, terminal)?),
        (None, None) => None,
    };
    // The line end before a gap is part of the text.
    let form = if suffix.is_some() { Form::Exact } else { Form::Prompt };
    let text = args.input.read(form, args.generation.escape, terminal)?.unwrap_or_default();
    let nothing = || Usage("nothing to read: give a prompt with -p, -f or standard input".to_string());
    ensure!(!text.is_empty() || suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()), nothing());
    Ok(Asked { text, suffix })
}

impl Asked {
    pub fn bytes(&self) -> usize {
        self.text.len() + self.suffix.as_ref().map_or(0, String::len)
    }
}

/// The user's text, and the system message if any, as the model wants them.
pub fn build_prompt(args: &RunArgs, asked: &Asked, texts: &Texts, terminal: &Terminal) -> anyhow::Result<Prompt> {
    let text = &asked.text;
    if let Some(suffix) = &asked.suffix {
        let Some((text, ids)) = texts.tokenizer.encode_gap(text, suffix)? else {
            bail!(
                "--suffix: the vocabulary of {} has no tokens for filling in the middle (such as <|fim_prefix|>), so the \
                 model never learned it",
                texts.shown
            );
        };
        return Ok(Prompt { text, ids });
    }
    let plain = |special| -> anyhow::Result<Prompt> {
        Ok(Prompt { text: text.clone(), ids: texts.tokenizer.encode_with_bos(text, special)? })
    };
    if args.raw {
        return plain(Special::Parse);
    }
    let Some(template) = &texts.template else {
        if args.system.system.is_some() {
            bail!(
                "--system: {} has no chat template, so there is no place for a system message (--chat-template names one)",
                texts.shown
            );
        }
        terminal.warn("the model has no chat template: it continues the text (--raw says that this is meant)");
        return plain(Special::AsText);
    };
    let mut messages = Vec::new();
    if let Some(system) = &args.system.system {
        messages.push(Message { role: Role::System, content: system.clone() });
    }
    messages.push(Message { role: Role::User, content: text.clone() });
    template.render(&if args.system.system_in_user { fold_system(&messages) } else { messages }, &texts.tokenizer)
}

impl SystemArgs {
    /// Reads the file of --system-file, so that from here on `system` is all there is to ask for.
    pub fn read_file(&mut self, strict_utf8: bool, terminal: &Terminal) -> anyhow::Result<()> {
        if let Some(file) = &self.system_file {
            self.system = Some(read_file(file, "--system-file", Form::Prompt, strict_utf8, terminal)?);
        }
        Ok(())
    }
}

/// A template that the flags name: its flag for errors, and its source.
pub struct NamedTemplate {
    flag: String,
    source: String,
    /// `None`: a file.
    family: Option<&'static str>,
}

impl NamedTemplate {
    /// The name of a family comes before a file of that name.
    pub fn open(named: &Path) -> anyhow::Result<NamedTemplate> {
        let flag = format!("--chat-template {}", named.display());
        let family = template::family_names().find(|name| named.as_os_str() == *name);
        if let Some(source) = family.and_then(template::family_source) {
            return Ok(NamedTemplate { flag, source: source.to_string(), family });
        }
        let names = || template::family_names().collect::<Vec<_>>().join(", ");
        ensure!(named.exists(), "{flag}: no such file, and no such family: there are {}", names());
        let file = std::fs::File::open(named).with_context(|| format!("{flag}: cannot be opened"))?;
        let bytes = read_bounded(file, &flag)?;
        let source = String::from_utf8(bytes).ok().with_context(|| format!("{flag}: not UTF-8"))?;
        let source = source.strip_prefix('\u{feff}').unwrap_or(&source).to_string();
        Ok(NamedTemplate { flag, source, family })
    }

    pub fn compile(&self, tokenizer: &Tokenizer) -> anyhow::Result<ChatTemplate> {
        let template = ChatTemplate::from_source(&self.source, tokenizer).with_context(|| self.flag.clone())?;
        Ok(match self.family.and_then(|family| template::missing_marker(family, tokenizer)) {
            Some(marker) => template.with_note(format!(
                "{}: the vocabulary has no token {marker}, so the model never learned this form",
                self.flag
            )),
            None => template,
        })
    }
}
