//! `/show`, `/stats` and `/tokens`: what there is to know of the model and the conversation.

use anyhow::{Context, bail};

use super::commands::Flow;
use super::report::tell;
use super::session::Session;
use super::words::block;
use crate::cli::counted;
use crate::cli::machine::mib;
use crate::cli::terminal::Terminal;
use crate::gguf::Gguf;
use crate::template::Message;
use crate::tokenizer::{Special, TokenId};

/// Tokens of one text that are shown piece by piece.
const MOST_PIECES: usize = 256;
/// Characters of a message by which a person knows it again.
const FIRST_CHARS: usize = 40;

type Show = fn(&Session, &Terminal) -> anyhow::Result<()>;

const SHOWABLE: &[(&str, Show)] = &[
    ("info", info),
    ("messages", messages),
    ("parameters", parameters),
    ("system", system),
    ("template", template),
    ("license", license),
    ("ids", ids),
];

pub const HELP: &str = "info, messages, parameters, system, template, license or ids";

/// What may follow `/show`.
pub fn words() -> Vec<String> {
    SHOWABLE.iter().map(|(word, _)| word.to_string()).collect()
}

pub fn show(session: &mut Session, what: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    let what = if what.is_empty() { "info" } else { what };
    match SHOWABLE.iter().find(|(word, _)| *word == what) {
        Some((_, show)) => show(session, terminal).map(|()| Flow::Stay),
        None => bail!("/show knows {HELP}, not '{what}'"),
    }
}

fn info(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    let loaded = &session.loaded;
    let config = &loaded.config;
    tell(terminal, &format!("model    {}", loaded.texts.path.display()));
    tell(terminal, &format!("weights  {} read for each token", mib(loaded.weights_bytes)));
    tell(terminal, &format!("layers   {} of width {}; vocabulary of {}", config.n_layers, config.dim, config.vocab));
    tell(
        terminal,
        &format!(
            "context  {} of {} tokens in use, {} bytes each",
            session.context_used(),
            loaded.engine.context_tokens(),
            loaded.kv_bytes_per_token
        ),
    );
    let named = session.named_template.as_ref().map(|name| format!("{} (--chat-template)", name.display()));
    let template = loaded.texts.template.as_ref();
    let kind = template.map(|template| template.note().unwrap_or("the model's own"));
    let kind = named.as_deref().or(kind).unwrap_or("none: plain completion");
    tell(terminal, &format!("template {kind}"));
    Ok(())
}

fn messages(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    session.conversation.messages.iter().for_each(|message| terminal.talk(&as_json(message)));
    for document in &session.conversation.documents {
        tell(terminal, &format!("{} stands before your next message", document.name));
    }
    Ok(())
}

fn parameters(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    session.settings.show().iter().for_each(|line| tell(terminal, line));
    tell(terminal, &format!("seed in use: {}", session.sampler.seed()));
    Ok(())
}

fn system(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    match session.conversation.system() {
        Some("") => tell(terminal, "the system message is empty"),
        Some(text) => terminal.talk_lines(text),
        None => tell(terminal, "there is no system message; the model's template may add its own"),
    }
    Ok(())
}

fn template(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    let template = session.loaded.texts.template.as_ref().context("the model has no chat template")?;
    terminal.talk_lines(template.source());
    Ok(())
}

fn license(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    let gguf = Gguf::open(&session.loaded.texts.path)?;
    let mut said = false;
    for key in ["general.license", "general.license.name", "general.license.link"] {
        if let Some(text) = gguf.str(key)? {
            terminal.talk_lines(text);
            said = true;
        }
    }
    if !said {
        bail!("the model's file does not say under which licence it is");
    }
    Ok(())
}

fn ids(session: &Session, terminal: &Terminal) -> anyhow::Result<()> {
    terminal.talk(&format!("{:?}", session.conversation.spoken));
    Ok(())
}

pub fn stats(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    tell(terminal, &format!("load     {:.2} s", session.loaded.load_seconds));
    if let Some(last) = &session.last {
        tell(
            terminal,
            &format!(
                "prompt   {} tokens, {} of them from the cache, {:.2} s, {:.1} tokens/s",
                last.prompt_tokens,
                last.cached_tokens,
                last.prefill_seconds,
                last.prefill_tokens_per_second()
            ),
        );
        tell(
            terminal,
            &format!(
                "answer   {}, {:.2} s, {:.1} tokens/s",
                counted(last.ids.len(), "token"),
                last.decode_seconds,
                last.decode_tokens_per_second()
            ),
        );
    }
    let used = session.context_used();
    tell(
        terminal,
        &format!(
            "context  {used} of {} tokens, {} of keys and values",
            session.loaded.engine.context_tokens(),
            mib(used as u64 * session.loaded.kv_bytes_per_token)
        ),
    );
    Ok(Flow::Stay)
}

/// Tokens of a text, piece by piece; without one, how many each message has.
pub fn tokens(session: &mut Session, text: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    let tokenizer = &session.loaded.texts.tokenizer;
    let encoded = |text: &str| tokenizer.encode(text, Special::AsText);
    if !text.is_empty() {
        // Other quotes may be what is to be counted.
        let ids = encoded(block(text).unwrap_or(text))?;
        let piece = |&id: &TokenId| format!("{id} {:?}", String::from_utf8_lossy(tokenizer.bytes(id)));
        let pieces: Vec<String> = ids.iter().take(MOST_PIECES).map(piece).collect();
        let more = if ids.len() > pieces.len() { " ..." } else { "" };
        tell(terminal, &format!("{}: {}{more}", counted(ids.len(), "token"), pieces.join(", ")));
        return Ok(Flow::Stay);
    }
    let conversation = &session.conversation;
    for message in &conversation.messages {
        let count = encoded(&message.content)?.len();
        tell(terminal, &format!("{:<9} {count:>6}  {}", message.role.name(), beginning(&message.content)));
    }
    for document in &conversation.documents {
        let count = encoded(&document.text)?.len();
        tell(terminal, &format!("{:<9} {count:>6}  {}", "read", document.name));
    }
    let (used, context_tokens) = (session.context_used(), session.loaded.engine.context_tokens());
    tell(terminal, &format!("context   {used:>6}  of {context_tokens}, with the marks of the chat template"));
    Ok(Flow::Stay)
}

fn beginning(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(FIRST_CHARS) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

/// One line, from which a script can tell every character of the message.
fn as_json(message: &Message) -> String {
    serde_json::json!({ "role": message.role.name(), "content": message.content }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Role;

    #[test]
    fn a_message_is_shown_to_the_last_character_on_one_line() {
        let message = Message { role: Role::User, content: " a\n\"é\u{1b} ".to_string() };
        assert_eq!(as_json(&message), r#"{"role":"user","content":" a\n\"é\u001b "}"#);
    }

    #[test]
    fn a_beginning_is_one_short_line() {
        assert_eq!(beginning("a\n  b"), "a b");
        assert_eq!(beginning(&"é".repeat(41)), format!("{}…", "é".repeat(40)));
    }
}
