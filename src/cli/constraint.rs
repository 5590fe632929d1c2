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

/// A constraint that was asked for, and by which flag.
pub struct Asked {
    flag: &'static str,
    grammar: Grammar,
}

impl ConstraintArgs {
    /// Reads files, so that they are complained about before a model is loaded.
    pub fn read(&self, terminal: &Terminal) -> anyhow::Result<Option<Asked>> {
        let text_of = |file: &Path, flag| read_file(file, flag, Form::Prompt, false, terminal);
        let (flag, grammar) = if let Some(schema) = &self.json_schema {
            let is_text = schema.trim_start().starts_with('{') || ["", "true", "false"].contains(&schema.trim());
            let text = if is_text { schema.clone() } else { text_of(Path::new(schema), "--json-schema")? };
            ("--json-schema", Grammar::json_schema(&text))
        } else if let Some(pattern) = &self.regex {
            ("--regex", Ok(Grammar::regex(pattern)))
        } else if let Some(grammar) = &self.grammar {
            let is_text =
                grammar.contains("::=") || grammar.lines().any(|line| line.trim_start().starts_with("start:"));
            let text = if is_text { grammar.clone() } else { text_of(Path::new(grammar), "--grammar")? };
            ("--grammar", Grammar::lark_or_gbnf(&text))
        } else {
            return Ok(None);
        };
        let grammar = grammar.map_err(|error| Usage(format!("{flag}: {error:#}")))?;
        Ok(Some(Asked { flag, grammar }))
    }
}

impl Asked {
    /// The same, asked for in another way than by a flag.
    pub fn by(self, flag: &'static str) -> Asked {
        Asked { flag, ..self }
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
