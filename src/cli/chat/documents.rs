//! `/read FILE` and `-f FILE`: texts that stand before the next message. They are computed at once, so that the answer to
//! the first question need not wait for them.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, ensure};

use super::answer::with_question;
use super::conversation::Document;
use super::session::Session;
use crate::cli::input::{Form, read_file};
use crate::cli::terminal::{Interrupts, Terminal};
use crate::generation::{self, Event, FinishReason, Request};
use crate::sampler::{Params, Sampler};
use crate::tokenizer::{Special, TokenId};

impl Session {
    /// Puts the text of a file that `flag` names before the next message. `false`: Ctrl-C stopped it, and the conversation
    /// is as before.
    pub fn read(&mut self, path: &Path, flag: &str, terminal: &Terminal) -> anyhow::Result<bool> {
        let name = path.display().to_string();
        self.check_size(path, &name, flag)?;
        let text = read_file(path, flag, Form::Prompt, self.strict_utf8, terminal)?;
        ensure!(!text.trim().is_empty(), "{name}: there is no text in it");
        let tokens = self.loaded.texts.tokenizer.encode(&text, Special::AsText)?.len();
        self.conversation.documents.push(Document { name: name.clone(), text });
        let computed = self.compute_documents(&name, tokens, terminal);
        if !matches!(computed, Ok(true)) {
            self.conversation.documents.pop();
            return computed;
        }
        let context_tokens = self.loaded.engine.context_tokens();
        terminal.info(&format!(
            "read {name}, {tokens} tokens (context {} of {context_tokens}), for your next message",
            self.context_used()
        ));
        Ok(true)
    }

    /// Refuses what can never fit before it is read, and in the midst of a chat what may never end: Ctrl-C would have to
    /// end the chat then.
    fn check_size(&self, path: &Path, name: &str, flag: &str) -> anyhow::Result<()> {
        let about = std::fs::metadata(path).with_context(|| format!("{flag} {name}: cannot be opened"))?;
        ensure!(flag != "/read" || about.is_file() || about.is_dir(), "{name} is no regular file");
        let context_tokens = self.loaded.engine.context_tokens();
        let fewest = self.loaded.texts.tokenizer.fewest_tokens(about.len() as usize);
        ensure!(
            !about.is_file() || fewest <= context_tokens,
            "{name} has {fewest} tokens at least, and the context has {context_tokens}: take a shorter text"
        );
        Ok(())
    }

    /// Computes the prompt up to where the question will begin.
    fn compute_documents(&mut self, name: &str, tokens: usize, terminal: &Terminal) -> anyhow::Result<bool> {
        let prompt = self.prompt_before_question()?;
        let (total, context_tokens) = (prompt.len(), self.loaded.engine.context_tokens());
        match self.loaded.engine.evictable_tokens() {
            None => ensure!(
                total < context_tokens,
                "{name} has {tokens} tokens, {total} with the conversation so far, which leaves no room for a question in \
                 the context of {context_tokens}: take a shorter text, /clear, or start with a larger -c"
            ),
            Some(evictable) => ensure!(
                tokens < evictable,
                "{name} has {tokens} tokens, and the context of {context_tokens} has room for {evictable}: take a shorter \
                 text, or start with a larger -c"
            ),
        }
        self.claim_room();
        let interrupts = self.catch_interrupts(terminal);
        let mut progress = None;
        let mut show = |event: Event| {
            if let Event::Prefill { done, total } = event {
                let bar = || terminal.progress_tokens(&format!("reading {name}"), total);
                progress.get_or_insert_with(bar).set(done as u64);
            }
            let stopped = interrupts.as_ref().is_some_and(Interrupts::pending);
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let request = Request { prompt: &prompt, max_tokens: Some(0), stop: &[], logprobs: None };
        let read = generation::generate(
            &mut self.loaded.engine,
            self.sequence,
            &self.loaded.texts.tokenizer,
            &mut Sampler::new(Params::default()),
            &request,
            &mut show,
        )?;
        Ok(read.finish_reason != FinishReason::Interrupted)
    }

    /// The ids that the next prompt begins with whatever the question is: where the prompts of two questions that have
    /// nothing in common part.
    fn prompt_before_question(&self) -> anyhow::Result<Vec<TokenId>> {
        let prompt = |question| {
            let messages = with_question(&self.conversation.messages, self.conversation.question(question));
            Ok::<_, anyhow::Error>(self.prompt(&messages)?.ids)
        };
        let (mut one, other) = (prompt("What?")?, prompt("1")?);
        let common = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        one.truncate(common);
        Ok(one)
    }
}
