//! A conversation in progress: its words, its settings, and the sequence of tokens that the engine holds for it.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::ChatArgs;
use super::answer::render;
use super::branches::{self, Branch};
use super::conversation::Conversation;
use super::format;
use super::saved::Saving;
use super::settings::Settings;
use crate::cli::args::{CacheArgs, ModelArgs};
use crate::cli::constraint::Asked;
use crate::cli::load::{self, Loaded};
use crate::cli::terminal::{Interrupts, Terminal};
use crate::engine::{OnFull, SequenceId};
use crate::generation::Completion;
use crate::sampler::Sampler;
use crate::template::{Message, Role};

pub struct Session {
    pub loaded: Loaded,
    /// What answers have to follow.
    pub(super) format: Option<Asked>,
    pub settings: Settings,
    pub sampler: Sampler,
    pub conversation: Conversation,
    pub last: Option<Completion>,
    pub switches: Switches,
    /// Name of the present branch of the conversation, and the others, the one left last at the end.
    pub branch: String,
    pub waiting: Vec<Branch>,
    pub sequence: SequenceId,
    pub strict_utf8: bool,
    pub(super) system_in_user: bool,
    /// The chat template that was named at the start, while its model speaks.
    pub(super) named_template: Option<PathBuf>,
    pub(super) saving: Saving,
    pub(super) cache: CacheArgs,
    /// The engine's rule for full contexts: what is kept changes with the first prompt under `--keep -1`.
    pub(super) on_full: OnFull,
    /// The flags that the model was loaded with.
    model: ModelArgs,
}

/// What `/set` turns on and off.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// Whether a line of figures follows each answer.
    pub figures: bool,
    pub wrap: bool,
    pub thoughts: bool,
    pub history: bool,
}

impl Session {
    pub fn new(mut loaded: Loaded, format: Option<Asked>, args: &ChatArgs) -> anyhow::Result<Session> {
        let saving = Saving::new(args, &loaded);
        let on_full = args.cache.on_full(loaded.engine.context_tokens())?;
        let settings = Settings { generation: args.generation.clone(), sampling: args.sampling.clone() };
        let params = settings.sampling.params(&loaded.texts.tokenizer)?;
        let mut session = Session {
            sampler: format::sampler(params, format.as_ref(), &loaded.texts)?,
            format,
            sequence: loaded.engine.new_sequence(),
            loaded,
            settings,
            conversation: Conversation::default(),
            last: None,
            switches: Switches {
                figures: !args.no_figures,
                wrap: !args.display.no_wrap,
                thoughts: !args.display.hide_thinking,
                history: !args.no_history,
            },
            branch: branches::FIRST.to_string(),
            waiting: Vec::new(),
            strict_utf8: args.strict_utf8,
            system_in_user: args.system.system_in_user,
            named_template: args.system.chat_template.clone(),
            saving,
            cache: args.cache.clone(),
            on_full,
            model: args.model.clone(),
        };
        if let Some(system) = &args.system.system {
            session.set_system(Some(system)).context("--system")?;
        }
        Ok(session)
    }

    /// Answers `text` on standard output. If that fails, the conversation is as it was before.
    pub fn say(&mut self, text: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
        let content = self.conversation.question(text);
        self.conversation.messages.push(Message { role: Role::User, content });
        let answered = self.answer(terminal);
        if matches!(answered, Ok(true)) {
            self.conversation.documents.clear();
            return Ok(());
        }
        self.conversation.messages.pop();
        answered.map(|_| terminal.info("stopped before the first word: the message is taken back"))
    }

    /// Answers the last message anew, in these words. If that fails, the old ones and their answer stay.
    pub fn rewrite(&mut self, content: String, terminal: &mut Terminal) -> anyhow::Result<()> {
        ensure!(self.conversation.is_answered(), "there is no answer yet");
        let before = self.conversation.messages.len() - 2;
        let old = self.conversation.messages.split_off(before);
        self.conversation.messages.push(Message { role: Role::User, content });
        let answered = self.answer(terminal);
        if matches!(answered, Ok(true)) {
            return Ok(());
        }
        self.conversation.messages.truncate(before);
        self.conversation.messages.extend(old);
        answered.map(|_| terminal.info("stopped before the first word: the old answer stays"))
    }

    /// Answers the last message anew. If that fails, the old answer stays.
    pub fn retry(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let content = self.conversation.last_question().context("there is no answer yet")?.to_string();
        self.rewrite(content, terminal)
    }

    /// Takes back what was read last, else the last message and its answer, and tells which.
    pub fn undo(&mut self) -> anyhow::Result<String> {
        if let Some(document) = self.conversation.documents.pop() {
            return Ok(document.name);
        }
        ensure!(self.conversation.is_answered(), "there is nothing to take back");
        let before = self.conversation.messages.len() - 2;
        self.conversation.messages.truncate(before);
        Ok("the last message and its answer".to_string())
    }

    /// Starts anew. The system message and the settings stay.
    pub fn clear(&mut self) {
        self.conversation.clear();
        self.last = None;
        self.loaded.engine.truncate(self.sequence, 0);
    }

    /// Replaces the system message, or takes it away, unless the model's template refuses that.
    pub fn set_system(&mut self, text: Option<&str>) -> anyhow::Result<()> {
        let message = |text: &str| Message { role: Role::System, content: text.to_string() };
        let mut messages: Vec<Message> = text.map(message).into_iter().collect();
        messages.extend(self.conversation.messages.iter().filter(|message| message.role != Role::System).cloned());
        self.check_renders(&self.loaded, &messages)?;
        self.conversation.messages = messages;
        Ok(())
    }

    /// Changes one parameter; the next answer is drawn with it. Gives its value, and a sentence for each that changes
    /// nothing now.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<(String, Vec<String>)> {
        let mut settings = self.settings.clone();
        let shown = settings.set(name, value)?;
        let mut sampler = Sampler::new(settings.sampling.params(&self.loaded.texts.tokenizer)?);
        sampler.constraint = self.sampler.constraint.take();
        self.sampler = sampler;
        let before = self.settings.sampling.idle();
        self.settings = settings;
        let idle = self.settings.sampling.idle().into_iter().filter(|idle| !before.contains(idle));
        Ok((shown, idle.collect()))
    }

    /// Tokens of the context in use.
    pub fn context_used(&self) -> usize {
        self.loaded.engine.held_tokens(self.sequence)
    }

    /// Lets another model go on with the conversation, which it reads with the next message, in its own chat template. If
    /// it cannot, the present one stays. Until that is known the machine holds both.
    pub fn change_model(&mut self, name: &Path, terminal: &Terminal) -> anyhow::Result<()> {
        // Ctrl-C must not end the chat; a second one does.
        let interrupts = Interrupts::catch();
        let model = ModelArgs { model: Some(name.to_path_buf()), ..self.model.clone() };
        // With its own chat template: one that was named at the start was meant for the model of the start.
        let mut loaded = load::load_with(&model, &self.cache, 1, terminal)?;
        let context_tokens = loaded.engine.context_tokens();
        let on_full = self.cache.on_full(context_tokens)?;
        let tokens = self.check_renders(&loaded, &self.conversation.messages)?;
        ensure!(
            tokens < context_tokens || loaded.engine.evictable_tokens().is_some(),
            "the conversation has {tokens} tokens for {}, whose context has {context_tokens}: /undo or /clear makes it \
             shorter",
            loaded.name
        );
        let params = self.settings.sampling.params(&loaded.texts.tokenizer)?;
        let sampler = format::sampler(params, self.format.as_ref(), &loaded.texts)?;
        ensure!(!interrupts.pending(), "stopped: the model stays {}", self.loaded.name);

        self.sequence = loaded.engine.new_sequence();
        self.conversation.spoken.clear();
        for branch in &mut self.waiting {
            branch.sequence = loaded.engine.new_sequence();
            branch.conversation.spoken.clear();
        }
        self.sampler = sampler;
        self.named_template = None;
        self.saving.set_model(&model, &loaded);
        (self.last, self.on_full, self.model, self.loaded) = (None, on_full, model, loaded);
        Ok(())
    }

    /// The tokens that a model makes of these messages with a question behind them, unless its template refuses them.
    fn check_renders(&self, loaded: &Loaded, messages: &[Message]) -> anyhow::Result<usize> {
        ensure!(
            loaded.texts.template.is_some() || messages.iter().all(|message| message.role != Role::System),
            "the model has no chat template, so there is no place for a system message"
        );
        let question = Message { role: Role::User, content: self.conversation.question("") };
        Ok(render(&[messages, &[question]].concat(), &loaded.texts, self.system_in_user)?.ids.len())
    }
}
