//! A conversation: its messages, its settings, and the sequence of tokens the engine holds for it.

use std::ops::ControlFlow;

use anyhow::{Context, bail, ensure};

use super::ChatArgs;
use super::branches::{self, Branch};
use super::saved::Saving;
use super::settings::Settings;
use crate::cli::args::CacheArgs;
use crate::cli::counted;
use crate::cli::load::Loaded;
use crate::cli::notices::Notices;
use crate::cli::signals;
use crate::cli::terminal::{Interrupts, Terminal};
use crate::engine::{OnFull, SequenceId};
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
    /// Name of the present branch of the conversation, and the others, the one left last at the end.
    pub branch: String,
    pub waiting: Vec<Branch>,
    pub sequence: SequenceId,
    system_in_user: bool,
    pub(super) saving: Saving,
    cache: CacheArgs,
    /// The engine's rule for full contexts: what is kept changes with the first prompt under `--keep -1`.
    on_full: OnFull,
}

/// Standard output cannot be written to any more: no use in going on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OutputLost(pub anyhow::Error);

impl Session {
    pub fn new(mut loaded: Loaded, args: &ChatArgs) -> anyhow::Result<Session> {
        let saving = Saving::new(args, &loaded);
        let on_full = args.cache.on_full(loaded.engine.context_tokens())?;
        let settings = Settings { generation: args.generation.clone(), sampling: args.sampling.clone() };
        let mut session = Session {
            sampler: Sampler::new(settings.sampling.params(&loaded.texts.tokenizer)?),
            sequence: loaded.engine.new_sequence(),
            loaded,
            settings,
            messages: Vec::new(),
            spoken: Vec::new(),
            last: None,
            verbose: true,
            branch: branches::FIRST.to_string(),
            waiting: Vec::new(),
            cache: args.cache.clone(),
            on_full,
            system_in_user: args.system.system_in_user,
            saving,
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

    /// Changes one parameter; the next answer is drawn with it. Gives a sentence for each that changes nothing now.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<Vec<String>> {
        let mut settings = self.settings.clone();
        settings.set(name, value)?;
        self.sampler = Sampler::new(settings.sampling.params(&self.loaded.texts.tokenizer)?);
        let before = self.settings.sampling.idle();
        self.settings = settings;
        Ok(self.settings.sampling.idle().into_iter().filter(|idle| !before.contains(idle)).collect())
    }

    /// Tokens of the context in use.
    pub fn context_used(&self) -> usize {
        self.loaded.engine.held_tokens(self.sequence)
    }

    /// Answers the messages, the last of which is the user's, and appends what was said if anything was.
    fn answer(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let fresh = self.render(&self.messages)?;
        let prompt = generation::keep_spoken_ids(&self.spoken, &fresh, &self.loaded.texts.tokenizer);
        let context_tokens = self.loaded.engine.context_tokens();
        self.set_kept(prompt.len())?;
        self.check_room(&prompt)?;
        self.claim_room();
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
                 /undo takes it back, /clear starts anew (--on-full evict would go on without the oldest tokens)",
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

    /// With the first prompt of a conversation it is known what `--keep -1` keeps.
    fn set_kept(&mut self, prompt_tokens: usize) -> anyhow::Result<()> {
        if self.messages.iter().any(|message| message.role == Role::Assistant) {
            return Ok(());
        }
        let on_full = self.cache.on_full_after(prompt_tokens, self.loaded.engine.context_tokens())?;
        if on_full != self.on_full {
            // A sequence that forgot tokens can only be read on by the rule it forgot them by.
            let waiting = self.waiting.iter().map(|branch| branch.sequence);
            let engine = &mut self.loaded.engine;
            waiting.chain([self.sequence]).for_each(|sequence| engine.truncate(sequence, 0));
            engine.set_on_full(on_full);
            self.on_full = on_full;
        }
        Ok(())
    }

    /// Whether the message can be read at all; where old tokens are forgotten, beside those that are kept.
    fn check_room(&self, prompt: &[TokenId]) -> anyhow::Result<()> {
        let context_tokens = self.loaded.engine.context_tokens();
        let Some(evictable) = self.loaded.engine.evictable_tokens() else {
            ensure!(
                prompt.len() < context_tokens,
                "the conversation with this message has {} tokens and leaves no room in the context of \
                 {context_tokens}: send a shorter one, /undo, or /clear (--on-full evict would forget the oldest tokens)",
                prompt.len()
            );
            return Ok(());
        };
        let is_first = !self.messages.iter().any(|message| message.role == Role::Assistant);
        let (new, room) = match self.messages.last().filter(|_| !is_first) {
            Some(message) => {
                let tokenizer = &self.loaded.texts.tokenizer;
                (tokenizer.encode(&message.content, Special::AsText)?.len(), evictable)
            }
            None => (prompt.len(), context_tokens),
        };
        ensure!(
            new <= room,
            "the message has {new} tokens, and the context of {context_tokens} has room for {room}: send a shorter one",
        );
        Ok(())
    }

    /// Generates, and shows the answer as it comes.
    fn stream(&mut self, prompt: &[TokenId], terminal: &mut Terminal) -> anyhow::Result<Completion> {
        // In a script Ctrl-C ends the program as everywhere, unless there is something to save before.
        let interrupts = (terminal.stdin_is_terminal() || self.saving.is_wanted).then(Interrupts::catch);
        let _silence = terminal.stdin_is_terminal().then(signals::without_echo);
        let stop = self.settings.generation.stops();
        let room = self.loaded.engine.context_tokens().saturating_sub(prompt.len());
        let max_tokens = self.settings.generation.max_tokens_within(room);
        let request = Request { prompt, max_tokens, stop: &stop, logprobs: None };
        let mut notices = Notices::new(self.loaded.engine.context_tokens());
        let mut progress = None;
        let mut is_mid_line = false;
        let mut shown = Ok(());
        let mut show = |event: Event| {
            match event {
                Event::Prefill { done, total } => {
                    let bar = || terminal.progress_tokens("reading", total);
                    progress.get_or_insert_with(bar).set(done as u64);
                }
                Event::Text(text) => {
                    progress = None;
                    is_mid_line |= !text.is_empty();
                    shown = std::mem::replace(&mut shown, Ok(())).and_then(|()| terminal.write_text(text));
                }
                Event::Chosen(_) => {}
                Event::Notice(notice) => notices.tell(notice, is_mid_line, terminal),
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
        self.saving.is_interrupted = interrupts.is_some_and(|interrupts| interrupts.pending());
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
