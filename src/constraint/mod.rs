//! Answers that follow a JSON schema, a regular expression or a grammar: which tokens may come next.
//!
//! The crate llguidance parses; we give it the bytes of our own vocabulary. The set of allowed tokens is made after each
//! token and applied before every stage of the sampler, so an end token can only come where the text is complete.
//! Nothing here is built unless a constraint is asked for.
//!
//! Cost for the 49,152 tokens of SmolLM2 on one core of a server Xeon: 0.12 s to build the tables, 0.1 ms a token in
//! JSON, at most a few ms where a character class meets most of the vocabulary.

mod gbnf;

use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::tokenizer::{TokenId, Tokenizer};

/// What an answer has to follow, as far as that is known without a vocabulary.
#[derive(Clone, Debug)]
pub struct Grammar(Form);

#[derive(Clone, Debug)]
enum Form {
    JsonSchema(Value),
    Regex(String),
    Lark(String),
}

/// White space between the parts of JSON, as llama.cpp bounds it: a small model would otherwise write blanks for ever.
const JSON_WHITESPACE: &str = r" |\n[ \t]{0,20}";

/// Steps of the parser for the tokens that may come next, at about 20,000 a millisecond: grammars of single characters
/// take some, and no token may take long.
const MOST_STEP_ITEMS: usize = 500_000;

/// Rules that name each other in a chain take stack, 3 KB each: so many fit into the stack that compiling has.
const MOST_LINES: usize = 20_000;
const COMPILER_STACK_BYTES: usize = 256 << 20;

impl Grammar {
    /// A JSON schema. `x-guidance` in it may set llguidance's options, the form of white space among them.
    pub fn json_schema(text: &str) -> anyhow::Result<Grammar> {
        let mut schema: Value = serde_json::from_str(text).map_err(|error| anyhow!("not JSON: {error}"))?;
        // `true` is a schema as well: anything.
        if schema == Value::Bool(true) {
            schema = json!({});
        }
        ensure!(schema.is_object(), "not a JSON schema: that is an object, or true");
        if schema.get("x-guidance").is_none() {
            schema["x-guidance"] = json!({ "whitespace_pattern": JSON_WHITESPACE });
        }
        Ok(Grammar(Form::JsonSchema(schema)))
    }

    /// A regular expression in the syntax of Rust's `regex` crate, which the whole answer has to match.
    pub fn regex(pattern: &str) -> Grammar {
        Grammar(Form::Regex(pattern.to_string()))
    }

    /// A grammar in llguidance's variant of Lark, or in llama.cpp's GBNF, which is told by its `::=`.
    pub fn lark_or_gbnf(text: &str) -> anyhow::Result<Grammar> {
        let lark = if gbnf::is_gbnf(text) { gbnf::to_lark(text).context("GBNF")? } else { text.to_string() };
        let lines = lark.lines().count();
        ensure!(lines <= MOST_LINES, "{lines} lines of grammar, where {MOST_LINES} are the most");
        Ok(Grammar(Form::Lark(lark)))
    }
}

/// A grammar bound to a vocabulary, and how far an answer has got in it.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    /// What may come next; nothing once the answer is complete.
    allowed: SimpleVob,
}

impl Constraint {
    pub fn new(grammar: &Grammar, tokenizer: &Tokenizer) -> anyhow::Result<Constraint> {
        let top = match &grammar.0 {
            Form::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Form::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Form::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let mut factory = ParserFactory::new(
            &token_environment(tokenizer)?,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::json_slices(),
        )?;
        factory.quiet();
        *factory.limits_mut() =
            ParserLimits { verbose_errors: false, step_max_items: MOST_STEP_ITEMS, ..ParserLimits::default() };
        let parser = with_stack(|| factory.create_parser(top))?.map_err(|error| one_line(&error))?;
        let mut constraint = Constraint { matcher: Matcher::new(Ok(parser)), allowed: SimpleVob::new() };
        constraint.start()?;
        Ok(constraint)
    }

    /// Back to before the first token.
    pub fn start(&mut self) -> anyhow::Result<()> {
        self.matcher.reset().map_err(|error| one_line(&error))?;
        self.find_allowed()
    }

    /// Takes a token of the answer, which must be an allowed one.
    pub fn accept(&mut self, token: TokenId) -> anyhow::Result<()> {
        self.matcher.consume_token(token).map_err(|error| one_line(&error))?;
        self.find_allowed()
    }

    pub fn allows(&self, token: TokenId) -> bool {
        (token as usize) < self.allowed.len() && self.allowed.is_allowed(token)
    }

    /// Whether the answer follows the grammar as it stands; it may be possible to go on.
    pub fn is_satisfied(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether nothing can follow any more.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped()
    }

    fn find_allowed(&mut self) -> anyhow::Result<()> {
        if self.is_complete() {
            ensure!(self.matcher.stop_reason().is_ok(), "it is too complex ({})", self.matcher.stop_reason());
            self.allowed.set_all(false);
            return Ok(());
        }
        self.allowed = self.matcher.compute_mask().map_err(|error| match error.to_string() {
            // llguidance's word for a text that is not complete and cannot go on.
            words if words.contains("NoExtension") => anyhow!("no text can follow it"),
            _ => one_line(&error),
        })?;
        ensure!(!self.allowed.is_zero(), "no text can follow it");
        Ok(())
    }
}

/// Runs `work` where it may go deep; the stack is only reserved, not used.
fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(COMPILER_STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.context("there is no memory for the stack that compiling it needs")?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The vocabulary as llguidance wants it: what a token says, control tokens by name behind a byte that no text has.
fn token_environment(tokenizer: &Tokenizer) -> anyhow::Result<TokEnv> {
    let ids = 0..tokenizer.vocab() as TokenId;
    let words: Vec<Vec<u8>> = ids
        .map(|id| match tokenizer.is_control(id) {
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.piece(id).as_bytes()].concat(),
            false => tokenizer.bytes(id).to_vec(),
        })
        .collect();
    let ends = tokenizer.end_of_generation();
    let &end = ends.first().context("the vocabulary has no end token, so an answer could not end")?;
    let info = TokRxInfo::new(words.len() as u32, end);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// What llguidance says, without its backtraces and the text it points into: the first line, and behind it what a
/// parser of regular expressions says in a line of its own.
fn one_line(error: &anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    // A regular expression has no place in a grammar that its author wrote.
    let first = first.split_once("(in regex): ").map_or(first, |(_, words)| words);
    let cause = lines.find_map(|line| line.strip_prefix("error:")).unwrap_or_default();
    anyhow!("{first}{cause}")
}

#[cfg(test)]
mod tests;
