//! What `run` gives to the model: the user's text in the model's chat template, or as it is.

use anyhow::bail;

use super::load::Texts;
use super::run::RunArgs;
use super::terminal::Terminal;
use crate::template::{Message, Prompt, Role, fold_system};
use crate::tokenizer::Special;

/// The user's text, and the system message if any, as the model wants them.
pub fn build_prompt(args: &RunArgs, text: &str, texts: &Texts, terminal: &Terminal) -> anyhow::Result<Prompt> {
    let plain = |special| -> anyhow::Result<Prompt> {
        Ok(Prompt { text: text.to_string(), ids: texts.tokenizer.encode_with_bos(text, special)? })
    };
    if args.raw {
        return plain(Special::Parse);
    }
    let Some(template) = &texts.template else {
        if args.system.system.is_some() {
            bail!("--system: {} has no chat template, so there is no place for a system message", texts.shown);
        }
        terminal.warn("the model has no chat template: it continues the text (--raw says that this is meant)");
        return plain(Special::AsText);
    };
    let mut messages = Vec::new();
    if let Some(system) = &args.system.system {
        messages.push(Message { role: Role::System, content: system.clone() });
    }
    messages.push(Message { role: Role::User, content: text.to_string() });
    template.render(&if args.system.system_in_user { fold_system(&messages) } else { messages }, &texts.tokenizer)
}
