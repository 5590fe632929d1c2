//! The form that answers have to follow in a chat: the flags for it, and ollama's `/set format`.

use super::session::Session;
use crate::cli::constraint::Asked;
use crate::cli::load::Texts;
use crate::cli::terminal::Terminal;
use crate::sampler::{Params, Sampler};

/// What sentences call it here.
const COMMAND: &str = "/set format";

/// What `/set format json` stands for.
const ANY_OBJECT: &str = r#"{"type": "object"}"#;

pub fn sampler(params: Params, format: Option<&Asked>, texts: &Texts) -> anyhow::Result<Sampler> {
    let mut sampler = Sampler::new(params);
    sampler.constraint = format.map(|asked| asked.bind(&texts.tokenizer)).transpose()?;
    Ok(sampler)
}

impl Session {
    /// `json`, a JSON schema or the file of one; `None`: any text.
    pub fn set_format(&mut self, format: Option<&str>, terminal: &Terminal) -> anyhow::Result<()> {
        let schema = format.map(|format| if format == "json" { ANY_OBJECT } else { format });
        let asked = schema.map(|schema| Asked::json_schema(COMMAND, schema, terminal)).transpose()?;
        let bound = asked.as_ref().map(|asked| asked.bind(&self.loaded.texts.tokenizer)).transpose()?;
        (self.sampler.constraint, self.format) = (bound, asked);
        Ok(())
    }
}
