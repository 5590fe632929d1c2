//! A conversation: its messages, its settings, and the sequence of tokens the engine holds for it.

use std::ops::ControlFlow;

use anyhow::{Context, bail, ensure};

use super::ChatArgs;
use super::settings::Settings;
use crate::cli::counted;
use crate::cli::load::Loaded;
use crate::cli::signals;
use crate::cli::terminal::{Interrupts, Terminal};
use crate::engine::SequenceId;
use crate::generation::{self, Completion, Event, FinishReason, Request};
use crate::sampler::Sampler;
use crate::template::{self, Message, Role};
use crate::tokenizer::{Special, TokenId};

pub struct Session {
    pub loaded: Loaded,
    pub settings: Settings,
    pub sampler: Sampler,
    /// The system message first if there is one, then user and assistant in turn, the assistant last.
    pub messages: Vec<Message>,
    /// The last prompt and its answer, in the ids they had.
    pub spoken: Vec<TokenId>,
    pub last: Option<Completion>,
    /// Whether a line of figures follows each answer.
    pub verbose: bool,
    system_in_user: bool,
    sequence: SequenceId,
}

/// Standard output cannot be written to any more: no use in going on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OutputLost(pub anyhow::Error);

impl Session {
    pub fn new(mut loaded: Loaded, args: &ChatArgs) -> anyhow::Result<Session> {
        let settings = Settings { generation: args.generation.clone(), sampling: args.sampling.clone() };
        let mut session = Session {
            sampler: Sampler::new(settings.sampling.params(&loaded.texts.tokenizer)),
            sequence: loaded.engine.new_sequence(),
            loaded,
            settings,
            messages: Vec::new(),
            spoken: Vec::new(),
            last: None,
            verbose: true,
            system_in_user: args.system.system_in_user,
        };
        if let Some(system) = &args.system.system {
            session.set_system(system).context("--system")?;
        }
        Ok(session)
    }

    /// Answers `text` on standard output. If that fails, the conversation is as it was before.
    pub fn say(&mut self, text: String, terminal: &mut Terminal) -> anyhow::Result<()> {
        let before = self.messages.len();
        self.messages.push(Message { role: Role::User, content: text });
        let answered = self.answer(terminal);
        if self.messages.last().is_some_and(|message| message.role == Role::User) {
            self.messages.truncate(before);
        }
        answered
    }

    /// Answers the last message anew. If that fails, the old answer stays.
    pub fn retry(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let old = self.messages.pop_if(|message| message.role == Role::Assistant).context("there is no answer yet")?;
        let answered = self.answer(terminal);
        if self.messages.last().is_some_and(|message| message.role == Role::User) {
            self.messages.push(old);
        }
        answered
    }

    /// Takes back the last message and its answer.
    pub fn undo(&mut self) -> anyhow::Result<()> {
        self.messages.pop_if(|message| message.role == Role::Assistant).context("there is nothing to take back")?;
        self.messages.pop();
        Ok(())
    }

    /// Starts anew. The system message and the settings stay.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.spoken.clear();
        self.last = None;
        self.loaded.engine.truncate(self.sequence, 0);
    }

    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message.role == Role::System);
        first.map(|message| message.content.as_str())
    }

    /// Replaces the system message, unless the model's template refuses it.
    pub fn set_system(&mut self, text: &str) -> anyhow::Result<()> {
        ensure!(
            self.loaded.texts.template.is_some(),
            "the model has no chat template, so there is no place for a system message"
        );
        let mut messages = vec![Message { role: Role::System, content: text.to_string() }];
        messages.extend(self.messages.iter().filter(|message| message.role != Role::System).cloned());
        let question = Message { role: Role::User, content: String::new() };
        self.render(&[messages.as_slice(), &[question]].concat())?;
        self.messages = messages;
        Ok(())
    }

    /// Changes one parameter; the next answer is drawn with it.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        self.settings.set(name, value)?;
        self.sampler = Sampler::new(self.settings.sampling.params(&self.loaded.texts.tokenizer));
        Ok(())
    }

    /// Tokens of the context in use.
    pub fn context_used(&self) -> usize {
        self.loaded.engine.tokens(self.sequence).len()
    }

    /// Answers the messages, the last of which is the user's, and appends what was said if anything was.
    fn answer(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let fresh = self.render(&self.messages)?;
        let prompt = generation::keep_spoken_ids(&self.spoken, &fresh, &self.loaded.texts.tokenizer);
        let context_tokens = self.loaded.engine.context_tokens();
        ensure!(
            prompt.len() < context_tokens,
            "the conversation with this message has {} tokens and leaves no room in the context of {context_tokens}: \
             send a shorter one, /undo, or /clear",
            prompt.len()
        );
        let completion = self.stream(&prompt, terminal)?;
        if completion.finish_reason == FinishReason::Interrupted && completion.text.is_empty() {
            terminal.info("stopped before the first word: the message is taken back");
            return Ok(());
        }
        self.spoken = [prompt.as_slice(), &completion.ids].concat();
        self.messages.push(Message { role: Role::Assistant, content: completion.text.clone() });
        if completion.context_full {
            terminal.warn(&format!(
                "the context of {context_tokens} tokens is full ({} of prompt, {} of answer), so the answer ends here: \
                 /undo takes it back, /clear starts anew",
                completion.prompt_tokens,
                completion.ids.len()
            ));
        }
        match completion.finish_reason {
            FinishReason::Interrupted => terminal.status("[stopped]"),
            FinishReason::Length if !completion.context_full => {
                terminal.status(&format!("[stopped after -n {}]", counted(completion.ids.len(), "token")));
            }
            FinishReason::Length | FinishReason::Stop => {}
        }
        if self.verbose {
            terminal.status(&format!(
                "[{}, {:.1} tokens/s, context {} of {context_tokens}]",
                counted(completion.ids.len(), "token"),
                completion.decode_tokens_per_second(),
                self.context_used()
            ));
        }
        self.last = Some(completion);
        Ok(())
    }

    /// Generates, and shows the answer as it comes.
    fn stream(&mut self, prompt: &[TokenId], terminal: &mut Terminal) -> anyhow::Result<Completion> {
        // In a script Ctrl-C ends the program as everywhere.
        let interrupts = terminal.stdin_is_terminal().then(Interrupts::catch);
        let _silence = terminal.stdin_is_terminal().then(signals::without_echo);
        let stop = self.settings.generation.stops();
        let request = Request { prompt, max_tokens: self.settings.generation.max_tokens(), stop: &stop };
        let mut progress = None;
        let mut shown = Ok(());
        let mut show = |event: Event| {
            match event {
                Event::Prefill { done, total } => {
                    let bar = || terminal.progress_tokens("reading", total);
                    progress.get_or_insert_with(bar).set(done as u64);
                }
                Event::Text(text) => {
                    progress = None;
                    shown = std::mem::replace(&mut shown, Ok(())).and_then(|()| terminal.write_text(text));
                }
            }
            let stopped = shown.is_err() || interrupts.as_ref().is_some_and(Interrupts::pending);
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let completion = generation::generate(
            &mut self.loaded.engine,
            self.sequence,
            &self.loaded.texts.tokenizer,
            &mut self.sampler,
            &request,
            &mut show,
        );
        drop(progress);
        shown.and_then(|()| terminal.write_text("\n")).map_err(OutputLost)?;
        completion
    }

    /// Ids of the whole conversation, with what makes the model answer at the end.
    fn render(&self, messages: &[Message]) -> anyhow::Result<Vec<TokenId>> {
        let tokenizer = &self.loaded.texts.tokenizer;
        let Some(template) = &self.loaded.texts.template else {
            // Plain completion: every message goes on where the text before it ended.
            let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
            return tokenizer.encode_with_bos(&texts.join("\n"), Special::AsText);
        };
        let folded = if self.system_in_user { Some(template::fold_system(messages)) } else { None };
        let prompt = template.render(folded.as_deref().unwrap_or(messages), tokenizer)?;
        if prompt.ids.is_empty() {
            bail!("the model's chat template made an empty prompt of the conversation");
        }
        Ok(prompt.ids)
    }
}
