//! Flags that make an answer follow a JSON schema, a regular expression or a grammar.

use std::path::Path;

use clap::Args;

use super::Usage;
use super::input::{Form, read_file};
use super::terminal::Terminal;
use crate::constraint::{Constraint, Grammar};
use crate::tokenizer::Tokenizer;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Constraints")]
pub struct ConstraintArgs {
    /// Make the answer JSON that follows this schema
    ///
    /// A file, or the schema itself ({...}). The model does not see it: say in the prompt what you want.
    #[arg(short, long, value_name = "FILE|TEXT", conflicts_with_all = ["regex", "grammar"])]
    pub json_schema: Option<String>,

    /// Make the answer match this regular expression
    ///
    /// As a whole, in the syntax of Rust's regex crate.
    #[arg(long, value_name = "PATTERN", conflicts_with = "grammar")]
    pub regex: Option<String>,

    /// Make the answer follow this grammar
    ///
    /// A file, or the grammar itself: Lark as llguidance reads it (with `start:`), or llama.cpp's GBNF (with `root ::=`).
    #[arg(long, value_name = "FILE|TEXT", visible_alias = "grammar-file")]
    pub grammar: Option<String>,
}

/// A constraint that was asked for, and by which flag or command.
pub struct Asked {
    flag: &'static str,
    grammar: Grammar,
}

impl ConstraintArgs {
    /// Reads files, so that they are complained about before a model is loaded.
    pub fn read(&self, terminal: &Terminal) -> anyhow::Result<Option<Asked>> {
        if let Some(schema) = &self.json_schema {
            Asked::json_schema("--json-schema", schema, terminal).map(Some)
        } else if let Some(pattern) = &self.regex {
            Asked::new("--regex", Ok(Grammar::regex(pattern))).map(Some)
        } else if let Some(grammar) = &self.grammar {
            let is_text =
                grammar.contains("::=") || grammar.lines().any(|line| line.trim_start().starts_with("start:"));
            let text = text_of("--grammar", grammar, is_text, terminal)?;
            Asked::new("--grammar", Grammar::lark_or_gbnf(&text)).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl Asked {
    fn new(flag: &'static str, grammar: anyhow::Result<Grammar>) -> anyhow::Result<Asked> {
        let grammar = grammar.map_err(|error| Usage(format!("{flag}: {error:#}")))?;
        Ok(Asked { flag, grammar })
    }

    /// A JSON schema, or the file of one; `flag` is what sentences call whatever asked for it.
    pub fn json_schema(flag: &'static str, schema: &str, terminal: &Terminal) -> anyhow::Result<Asked> {
        let is_text = schema.trim_start().starts_with('{') || ["", "true", "false"].contains(&schema.trim());
        let text = text_of(flag, schema, is_text, terminal)?;
        Asked::new(flag, Grammar::json_schema(&text))
    }

    pub fn bind(&self, tokenizer: &Tokenizer) -> anyhow::Result<Constraint> {
        let bound = Constraint::new(&self.grammar, tokenizer);
        bound.map_err(|error| Usage(format!("{}: {error:#}", self.flag)).into())
    }

    /// What to tell about an answer that ended before it followed the constraint.
    pub fn cut_off(&self) -> String {
        format!("the answer was cut off before it followed {}: raise -n or -c, or bound it more tightly", self.flag)
    }
}

/// What a flag was given, or the text of the file that it names.
fn text_of(flag: &str, given: &str, is_text: bool, terminal: &Terminal) -> anyhow::Result<String> {
    if is_text { Ok(given.to_string()) } else { read_file(Path::new(given), flag, Form::Prompt, false, terminal) }
}
