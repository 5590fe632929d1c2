//! `sayfa tokenize`: the token ids of a text. Works on files that hold only a vocabulary.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::args::Talk;
use super::input::{Form, InputArgs};
use super::models;
use super::terminal::Terminal;
use super::{Ended, Usage};
use crate::gguf::Gguf;
use crate::tokenizer::{Special, Tokenizer};

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// GGUF file, or the name of one; a vocabulary is enough
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: Option<PathBuf>,

    #[command(flatten)]
    input: InputArgs,

    /// Read \n, \t, \\ and the like in -p as escapes
    #[arg(short, long, help_heading = "Prompt")]
    escape: bool,

    /// Read names of control tokens as these tokens
    ///
    /// And add the BOS and EOS that the model asks for.
    #[arg(long, help_heading = "Prompt")]
    special: bool,

    /// Print one JSON object {ids, pieces}
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn tokenize(args: &TokenizeArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    // The ids of exactly these bytes are asked for, so nothing is trimmed.
    let Some(text) = args.input.read(Form::Exact, args.escape, terminal)? else {
        return Err(Usage("nothing to read: give text with -p, -f or standard input".to_string()).into());
    };
    let found = models::find(args.model.as_deref())?;
    let gguf = Gguf::open(&found.path).map_err(anyhow::Error::from);
    let tokenizer = found.explain(gguf.and_then(|gguf| Tokenizer::from_gguf(&gguf)))?;
    for sentence in tokenizer.warnings() {
        terminal.warn(sentence);
    }
    let ids = match args.special {
        true => tokenizer.encode_with_bos(&text, Special::Parse)?,
        false => tokenizer.encode(&text, Special::AsText)?,
    };
    if args.json {
        let pieces: Vec<&str> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
        terminal.write_line(&json!({"ids": ids, "pieces": pieces}).to_string())?;
    } else {
        for &id in &ids {
            let (piece, text) = (tokenizer.piece(id), String::from_utf8_lossy(tokenizer.bytes(id)));
            // What the vocabulary calls a piece is not always what it stands for.
            let stands_for = if text.is_empty() || text == piece { String::new() } else { format!("  is {text:?}") };
            terminal.write_line(&format!("{id:>7}  {piece:?}{stands_for}"))?;
        }
    }
    Ok(Ended::Done)
}
