//! What the user says next: lines from an editor on a terminal, or from a pipe, joined to messages.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use anyhow::Context;

use super::editor::{Line, LineEditor};
use super::words::BLOCK;
use super::{commands, external};
use crate::cli::input::MOST_BYTES;
use crate::cli::terminal::Terminal;

#[derive(Debug, PartialEq)]
pub enum Input {
    Message(String),
    /// A line that begins with a slash; a block in it still has its quotes.
    Command(String),
    /// Ctrl-C at the prompt: what was typed is gone.
    Interrupted,
    /// Ctrl-D within a block: the block is gone.
    GivenUp,
    End,
}

impl Input {
    /// A line that means the same when it is sent again.
    fn as_typed(&self) -> Option<Cow<'_, str>> {
        match self {
            Input::Message(text) if is_command(text) => Some(format!("/{text}").into()),
            Input::Message(text) | Input::Command(text) => Some(text.into()),
            Input::Interrupted | Input::GivenUp | Input::End => None,
        }
    }
}

/// Whether this line would be one, were it typed: the start of a pasted log or a path in a block is none.
fn is_command(text: &str) -> bool {
    text.starts_with('/') && !text.trim_end().contains('\n')
}

pub struct Reader {
    source: Source,
    strict_utf8: bool,
    /// Lines taken from a pipe.
    lines: usize,
    warned: bool,
}

enum Source {
    Editor(Box<LineEditor>),
    Pipe,
}

impl Reader {
    pub fn open(strict_utf8: bool, keep_history: bool, terminal: &Terminal) -> anyhow::Result<Reader> {
        let source = if terminal.stdin_is_terminal() {
            Source::Editor(Box::new(LineEditor::open(keep_history, terminal)?))
        } else {
            Source::Pipe
        };
        Ok(Reader { source, strict_utf8, lines: 0, warned: false })
    }

    /// What Tab and the history have to know of the session.
    pub fn prepare(&mut self, branches: &[&str], keep_history: bool, terminal: &Terminal) {
        if let Source::Editor(editor) = &mut self.source {
            editor.set_branches(branches);
            editor.keep_history(keep_history, terminal);
        }
    }

    /// Waits for a message: one line, a `"""` block, lines continued by a backslash, or a paste. Empty ones are passed over.
    pub fn next(&mut self, terminal: &Terminal) -> anyhow::Result<Input> {
        let mut draft = Draft::default();
        // What stands in the line at first.
        let mut initial = String::new();
        loop {
            let line = match &mut self.source {
                Source::Editor(editor) => editor.read(draft.is_empty(), &initial, terminal)?,
                Source::Pipe => self.read_pipe(terminal)?,
            };
            initial.clear();
            match line {
                Line::Text(line) => draft.push(&line),
                Line::Edit(line) => match edited(&draft, &line, terminal) {
                    // All that was typed is in the one line now, to be looked at and sent.
                    Some(text) => initial = std::mem::take(&mut draft).reopened(text),
                    None => initial = line,
                },
                Line::Interrupted => return Ok(Input::Interrupted),
                Line::End if draft.is_empty() => return Ok(Input::End),
                // A block that the end of the input cuts off is still a message, but Ctrl-D only gives it up.
                Line::End if matches!(self.source, Source::Editor(_)) => return Ok(Input::GivenUp),
                Line::End => draft.close(),
            }
            if !draft.is_complete() {
                continue;
            }
            let input = std::mem::take(&mut draft).input();
            let Some(typed) = input.as_typed().filter(|typed| !typed.trim().is_empty()) else { continue };
            if let Source::Editor(editor) = &mut self.source {
                editor.remember(&typed, terminal);
            }
            return Ok(input);
        }
    }

    fn read_pipe(&mut self, terminal: &Terminal) -> anyhow::Result<Line> {
        let mut bytes = Vec::new();
        let mut bounded = io::stdin().lock().take(MOST_BYTES + 1);
        if bounded.read_until(b'\n', &mut bytes).context("cannot read standard input")? == 0 {
            return Ok(Line::End);
        }
        self.lines += 1;
        if bytes.len() as u64 > MOST_BYTES {
            anyhow::bail!("line {} of standard input has more than {} MiB", self.lines, MOST_BYTES >> 20);
        }
        if bytes.ends_with(b"\n") {
            bytes.pop();
        }
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
        match String::from_utf8(bytes) {
            Ok(line) => Ok(Line::Text(line)),
            Err(error) if self.strict_utf8 => {
                anyhow::bail!("line {} of standard input is not UTF-8: {}", self.lines, error.utf8_error())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    terminal.warn(&format!(
                        "line {} of standard input is not UTF-8: what is wrong becomes U+FFFD, here and later",
                        self.lines
                    ));
                }
                Ok(Line::Text(String::from_utf8_lossy(error.as_bytes()).into_owned()))
            }
        }
    }
}

/// The draft and the line as the user's editor leaves them; `None`: they stay.
fn edited(draft: &Draft, line: &str, terminal: &Terminal) -> Option<String> {
    match external::edit(&format!("{}{line}", draft.text), terminal) {
        Ok(text) => text,
        Err(error) => {
            terminal.error(&format!("{error:#}"));
            None
        }
    }
}

/// A message in the making.
#[derive(Default)]
struct Draft {
    /// The command that a block is the argument of, with the space behind it.
    command: String,
    text: String,
    state: State,
    /// Whether all came as one line, as commands do.
    is_line: bool,
}

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Empty,
    /// Between two `"""`.
    Block,
    /// After a backslash at the end of a line.
    Continued,
    Complete,
}

impl Draft {
    fn is_empty(&self) -> bool {
        self.state == State::Empty
    }

    fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    fn close(&mut self) {
        self.state = State::Complete;
    }

    fn input(self) -> Input {
        if !self.command.is_empty() {
            return Input::Command(format!("{}{BLOCK}{}{BLOCK}", self.command, self.text));
        }
        match self.text.strip_prefix('/').filter(|_| self.is_line) {
            Some(text) if text.starts_with('/') => Input::Message(text.to_string()),
            Some(_) => Input::Command(self.text),
            None => Input::Message(self.text),
        }
    }

    /// The line that means what this would have meant with such a text.
    fn reopened(self, text: String) -> String {
        match self.state {
            State::Block if !self.command.is_empty() => format!("{}{BLOCK}{text}{BLOCK}", self.command),
            State::Block | State::Continued if is_command(&text) => format!("/{text}"),
            _ => text,
        }
    }

    /// Adds what was read up to Enter: one line, or several from a paste.
    fn push(&mut self, line: &str) {
        match self.state {
            State::Empty => match opened_block(line) {
                Some((command, rest)) => {
                    self.state = State::Block;
                    self.command = command.to_string();
                    // Text may start right behind the quotes or on the next line.
                    if !rest.is_empty() {
                        self.push_block(rest.strip_prefix('\n').unwrap_or(rest));
                    }
                }
                None => {
                    self.push_line(line);
                    self.is_line = self.is_complete() && !line.trim_end().contains('\n');
                }
            },
            State::Block => self.push_block(line),
            State::Continued | State::Complete => self.push_line(line),
        }
    }

    fn push_block(&mut self, line: &str) {
        match line.trim_end().strip_suffix(BLOCK) {
            Some(last) => {
                self.text.push_str(last);
                // The line break before closing quotes on their own line is no part of the text.
                if self.text.ends_with('\n') {
                    self.text.pop();
                }
                self.state = State::Complete;
            }
            None => {
                self.text.push_str(line);
                self.text.push('\n');
            }
        }
    }

    fn push_line(&mut self, line: &str) {
        match line.strip_suffix('\\') {
            Some(line) => {
                self.text.push_str(line);
                self.text.push('\n');
                self.state = State::Continued;
            }
            None => {
                self.text.push_str(line);
                self.state = State::Complete;
            }
        }
    }
}

/// What stands before and behind the quotes that a line opens a block with: nothing, or a command such as
/// `/set system `.
fn opened_block(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let (before, behind) = line.split_once(BLOCK)?;
    let is_command = before.ends_with(' ') && !before.contains('\n') && commands::find(before).is_some();
    (before.is_empty() || is_command).then_some((before, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `lines` are taken for.
    fn inputs(lines: &[&str]) -> Vec<Input> {
        let mut draft = Draft::default();
        let mut inputs = Vec::new();
        for line in lines {
            draft.push(line);
            if draft.is_complete() {
                inputs.push(std::mem::take(&mut draft).input());
            }
        }
        assert!(draft.is_empty(), "the last message is unfinished");
        inputs
    }

    fn messages(lines: &[&str]) -> Vec<String> {
        let message = |input| match input {
            Input::Message(text) => text,
            other => panic!("{other:?} is no message"),
        };
        inputs(lines).into_iter().map(message).collect()
    }

    fn commands(lines: &[&str]) -> Vec<String> {
        let command = |input| match input {
            Input::Command(line) => line,
            other => panic!("{other:?} is no command"),
        };
        inputs(lines).into_iter().map(command).collect()
    }

    #[test]
    fn a_line_is_a_message() {
        assert_eq!(messages(&["one", " two "]), ["one", " two "]);
    }

    #[test]
    fn a_block_is_one_message() {
        assert_eq!(messages(&[r#"""""#, "one", "", "two", r#"""""#, "next"]), ["one\n\ntwo", "next"]);
        assert_eq!(messages(&[r#""""one"#, r#"two""""#]), ["one\ntwo"]);
        assert_eq!(messages(&[r#""""one""""#]), ["one"]);
        assert_eq!(messages(&[r#""""""""#, "next"]), ["", "next"]);
        assert_eq!(messages(&[r#"""""#, r"a\", r#"""""#]), [r"a\"], "a backslash is text within a block");
    }

    #[test]
    fn a_block_keeps_its_own_blank_lines() {
        assert_eq!(messages(&[r#"""""#, "one", "", r#"""""#]), ["one\n"]);
        assert_eq!(messages(&[r#"""""#, "", r#"""""#]), [""]);
    }

    #[test]
    fn a_command_takes_a_block_as_its_text() {
        let brief = |text| [format!(r#"/system """{text}""""#)];
        assert_eq!(commands(&[r#"/system """Be"#, r#"brief.""""#]), brief("Be\nbrief."));
        assert_eq!(commands(&[r#"/system """"#, "Be brief.", r#"""""#]), brief("Be brief."));
        assert_eq!(commands(&[r#"/system """Be brief.""""#]), brief("Be brief."));
        assert_eq!(commands(&["/system \"\"\"Be\nbrief.\"\"\""]), brief("Be\nbrief."));
        assert_eq!(commands(&[r#"/set system """Be"#, r#"brief.""""#]), ["/set system \"\"\"Be\nbrief.\"\"\""]);
        assert_eq!(messages(&[r#"say """ aloud"#, r#"//a """"#]), [r#"say """ aloud"#, r#"/a """"#]);
        assert_eq!(commands(&[r#"/usr/bin/x """"#]), [r#"/usr/bin/x """"#]);
    }

    #[test]
    fn only_one_line_with_one_slash_is_a_command() {
        assert_eq!(commands(&["/bye", "/x y", "/bye\n"]), ["/bye", "/x y", "/bye\n"]);
        let texts = ["/bye\nhello", "/usr/bin/foo: error\nat 1", "//comment\nx"];
        assert_eq!(messages(&texts), texts);
        assert_eq!(messages(&[r#"""""#, "/clear is a command", r#"""""#]), ["/clear is a command"]);
        assert_eq!(messages(&[r#""""/clear""""#, r#""""//x""""#]), ["/clear", "//x"]);
        assert_eq!(messages(&[r"/bye \", "now"]), ["/bye \nnow"]);
        assert_eq!(messages(&["//bye", " /bye"]), ["/bye", " /bye"]);
    }

    #[test]
    fn what_the_history_brings_back_means_the_same() {
        let block = ["\"\"\"/clear\"\"\"", "/system \"\"\"Be\nbrief.\"\"\"", "/bye\nx", "//x", "x", "/set temp 0"];
        for input in inputs(&block) {
            assert_eq!(inputs(&[&input.as_typed().unwrap()]), [input]);
        }
    }

    #[test]
    fn what_the_editor_makes_of_a_block_stays_what_it_was() {
        let reopened = |start: &str, text: &str| {
            let mut draft = Draft::default();
            draft.push(start);
            inputs(&[&draft.reopened(text.to_string())]).remove(0)
        };
        assert_eq!(reopened(r#""""/bye"#, "/bye"), Input::Message("/bye".into()));
        assert_eq!(reopened(r"/bye\", "/bye"), Input::Message("/bye".into()));
        let system = Input::Command("/system \"\"\"a\nb\"\"\"".into());
        assert_eq!(reopened(r#"/system """a"#, "a\nb"), system);
    }

    #[test]
    fn a_pasted_block_is_the_same_message() {
        assert_eq!(messages(&["\"\"\"\none\n\ntwo\n\"\"\""]), ["one\n\ntwo"]);
        assert_eq!(messages(&["one\ntwo\nthree"]), ["one\ntwo\nthree"]);
    }

    #[test]
    fn a_backslash_continues_a_line() {
        assert_eq!(messages(&[r"one\", r"two\", "three", "next"]), ["one\ntwo\nthree", "next"]);
    }
}
