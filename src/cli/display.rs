//! An answer on the screen: lines that end between words, and thoughts that stand back or are left out.

use clap::Args;

use super::terminal::{Progress, Terminal};
use super::thinking::{Part, ThinkingFilter};

#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct DisplayArgs {
    /// Let lines end within words on a terminal
    ///
    /// Without this flag words stay whole, except in fenced code.
    #[arg(long, visible_alias = "nowordwrap")]
    pub no_wrap: bool,

    /// Leave out what a model thinks before it answers
    ///
    /// <think>...</think> and the like, which else is dimmed on a terminal.
    #[arg(long, visible_alias = "hidethinking")]
    pub hide_thinking: bool,
}

/// One answer as it comes.
pub struct AnswerView {
    filter: ThinkingFilter,
    hides: bool,
    /// Shown while hidden thoughts are all that comes, and the pieces they came in.
    thinking: Option<(Progress, u64)>,
    shown: bool,
}

impl AnswerView {
    /// `prompt` is what the model answers to.
    pub fn new(args: DisplayArgs, prompt: &str, terminal: &mut Terminal) -> AnswerView {
        terminal.wrap_words(!args.no_wrap);
        AnswerView { filter: ThinkingFilter::new(prompt), hides: args.hide_thinking, thinking: None, shown: false }
    }

    /// Whether anything has been written.
    pub fn is_shown(&self) -> bool {
        self.shown
    }

    pub fn write(&mut self, text: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
        for part in self.filter.push(text) {
            self.write_part(part, terminal)?;
        }
        if self.hides && self.filter.is_in_thought() {
            let (progress, pieces) = self.thinking.get_or_insert_with(|| (terminal.progress_open("thinking"), 0));
            *pieces += 1;
            progress.set(*pieces);
        }
        Ok(())
    }

    /// Writes what was held back.
    pub fn end(mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let written = self.filter.finish().map_or(Ok(()), |part| self.write_part(part, terminal));
        self.thinking = None;
        if written.is_ok() && self.hides && self.filter.is_in_thought() {
            terminal.info("(the model thought, and did not come to an answer)");
        }
        terminal.wrap_words(false);
        written
    }

    fn write_part(&mut self, part: Part, terminal: &mut Terminal) -> anyhow::Result<()> {
        match part {
            Part::Thought(_) if self.hides => Ok(()),
            Part::Thought(text) => {
                self.shown = true;
                terminal.write_thought(&text)?;
                if !self.filter.is_in_thought() {
                    terminal.end_word();
                }
                Ok(())
            }
            Part::Answer(text) => {
                self.thinking = None;
                self.shown = true;
                terminal.write_text(&text)
            }
        }
    }
}
