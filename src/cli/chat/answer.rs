//! From the messages of a conversation to an answer on the screen.

use std::ops::ControlFlow;

use anyhow::ensure;

use super::session::Session;
use crate::cli::counted;
use crate::cli::display::{AnswerView, DisplayArgs};
use crate::cli::load::Texts;
use crate::cli::notices::Notices;
use crate::cli::signals;
use crate::cli::terminal::{Interrupts, Terminal};
use crate::constraint::Constraint;
use crate::generation::{self, Completion, Event, FinishReason, Request};
use crate::template::{self, Message, Prompt, Role};
use crate::tokenizer::{Special, TokenId};

/// Standard output cannot be written to any more: no use in going on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OutputLost(pub anyhow::Error);

impl Session {
    /// Answers the messages, the last of which is the user's, and appends what was said. `false`: it was stopped before
    /// anything was.
    pub(super) fn answer(&mut self, terminal: &mut Terminal) -> anyhow::Result<bool> {
        let prompt = self.prompt(&self.conversation.messages)?;
        let context_tokens = self.loaded.engine.context_tokens();
        self.set_kept(prompt.ids.len())?;
        self.check_room(&prompt.ids)?;
        self.claim_room();
        let completion = self.stream(&prompt, terminal)?;
        if completion.finish_reason == FinishReason::Interrupted && completion.text.is_empty() {
            return Ok(false);
        }
        self.conversation.spoken = [prompt.ids.as_slice(), &completion.ids].concat();
        self.conversation.messages.push(Message { role: Role::Assistant, content: completion.text.clone() });
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
        let is_stopped = completion.finish_reason == FinishReason::Interrupted;
        let is_met = self.sampler.constraint.as_mut().is_none_or(Constraint::is_satisfied);
        if let Some(format) = self.format.as_ref().filter(|_| !is_met && !is_stopped) {
            terminal.warn(&format.cut_off());
        }
        if self.switches.figures {
            terminal.status(&format!(
                "[{}, {:.1} tokens/s, context {} of {context_tokens}]",
                counted(completion.ids.len(), "token"),
                completion.decode_tokens_per_second(),
                self.context_used()
            ));
        }
        self.last = Some(completion);
        Ok(true)
    }

    /// With the first prompt of a conversation it is known what `--keep -1` keeps.
    fn set_kept(&mut self, prompt_tokens: usize) -> anyhow::Result<()> {
        if self.conversation.is_answered() {
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
        let (new, room) = match self.conversation.messages.last().filter(|_| self.conversation.is_answered()) {
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
    fn stream(&mut self, prompt: &Prompt, terminal: &mut Terminal) -> anyhow::Result<Completion> {
        let interrupts = self.catch_interrupts(terminal);
        let _silence = terminal.stdin_is_terminal().then(signals::without_echo);
        let stop = self.settings.generation.stops();
        let room = self.loaded.engine.context_tokens().saturating_sub(prompt.ids.len());
        let max_tokens = self.settings.generation.max_tokens_within(room);
        let request = Request { prompt: &prompt.ids, max_tokens, stop: &stop, logprobs: None };
        let mut notices = Notices::new(self.loaded.engine.context_tokens());
        let display = DisplayArgs { no_wrap: !self.switches.wrap, hide_thinking: !self.switches.thoughts };
        let mut view = AnswerView::new(display, &prompt.text, terminal);
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
                    shown = std::mem::replace(&mut shown, Ok(())).and_then(|()| view.write(text, terminal));
                }
                Event::Chosen(_) => {}
                Event::Notice(notice) => notices.tell(notice, view.is_shown(), terminal),
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
        shown.and_then(|()| view.end(terminal)).and_then(|()| terminal.write_text("\n")).map_err(OutputLost)?;
        completion
    }

    /// In a script Ctrl-C ends the program as everywhere, unless there is something to save before.
    pub(super) fn catch_interrupts(&self, terminal: &Terminal) -> Option<Interrupts> {
        (terminal.stdin_is_terminal() || self.saving.is_wanted).then(Interrupts::catch)
    }

    /// What the model is given of these messages, in the ids that were spoken as far as these are the same text.
    pub(super) fn prompt(&self, messages: &[Message]) -> anyhow::Result<Prompt> {
        let texts = &self.loaded.texts;
        let Prompt { text, ids } = render(messages, texts, self.system_in_user)?;
        Ok(Prompt { text, ids: generation::keep_spoken_ids(&self.conversation.spoken, &ids, &texts.tokenizer) })
    }
}

/// The whole conversation, with what makes the model answer at the end.
pub fn render(messages: &[Message], texts: &Texts, system_in_user: bool) -> anyhow::Result<Prompt> {
    let Some(template) = &texts.template else {
        // Plain completion: every message goes on where the text before it ended.
        let text = messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n");
        let ids = texts.tokenizer.encode_with_bos(&text, Special::AsText)?;
        return Ok(Prompt { text, ids });
    };
    let folded = if system_in_user { Some(template::fold_system(messages)) } else { None };
    template.render(folded.as_deref().unwrap_or(messages), &texts.tokenizer)
}

/// Asks nothing: for what can be known of a prompt before there is a question.
pub(super) fn with_question(messages: &[Message], content: String) -> Vec<Message> {
    [messages, &[Message { role: Role::User, content }]].concat()
}
