//! The only writer: standard output is the product, standard error is talk. Also asks whether they are terminals.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthStr;

use super::args::Talk;
pub use super::signals::Interrupts;
use super::wrap::Wrap;

/// The reader of standard output went away: the program ends quietly.
#[derive(Debug, thiserror::Error)]
#[error("the reader of standard output is gone")]
pub struct ClosedPipe;

/// How long work must last before a bar for it appears.
const BAR_AFTER: Duration = Duration::from_millis(300);

pub struct Terminal {
    talk: Talk,
    stdin_is_terminal: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    /// While lines of standard output are to end between words.
    wrap: Option<Wrap>,
}

impl Terminal {
    pub fn new(talk: Talk) -> Terminal {
        Terminal {
            wrap: None,
            talk,
            stdin_is_terminal: io::stdin().is_terminal(),
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
        }
    }

    pub fn stdin_is_terminal(&self) -> bool {
        self.stdin_is_terminal
    }

    pub fn stdout_is_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    pub fn stderr_is_terminal(&self) -> bool {
        self.stderr_is_terminal
    }

    /// Whether from here on lines end between words, on a terminal that can move its cursor.
    pub fn wrap_words(&mut self, wanted: bool) {
        let able = self.stdout_is_terminal && !is_dumb();
        self.wrap = (wanted && able).then(Wrap::default);
    }

    /// Writes a piece of an answer. On a terminal it shows at once, without control characters; in a pipe lines are
    /// handed on as they become complete.
    pub fn write_text(&mut self, text: &str) -> anyhow::Result<()> {
        if !self.stdout_is_terminal {
            return written(io::stdout().write_all(text.as_bytes()));
        }
        let text = self.wrapped(text);
        written(io::stdout().write_all(text.as_bytes()))?;
        self.flush()
    }

    /// The same for text that stands back behind the answer, where the terminal can show that.
    pub fn write_thought(&mut self, text: &str) -> anyhow::Result<()> {
        if !self.stdout_is_terminal || !colours_are_wanted() {
            return self.write_text(text);
        }
        let text = self.wrapped(text);
        written(write!(io::stdout(), "\x1b[2m{text}\x1b[0m"))?;
        self.flush()
    }

    /// Takes back the rows above the cursor that a line of input has filled, if they can be found again.
    pub fn take_back_input(&self, prompt: &str, line: &str) {
        let columns = usize::from(tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col));
        if !self.stdout_is_terminal || columns == 0 || is_dumb() {
            return;
        }
        let rows: usize = format!("{prompt}{line}").split('\n').map(|row| row.width().div_ceil(columns).max(1)).sum();
        // Only looks: the next prompt stands below instead.
        let _ = write!(io::stdout(), "\x1b[{rows}A\x1b[J").and_then(|()| io::stdout().flush());
    }

    /// The next piece is no part of the word before it.
    pub fn end_word(&mut self) {
        self.wrap.iter_mut().for_each(Wrap::end_word);
    }

    /// What a terminal is sent for a piece of text. Its width is asked each time, as it may be resized at any.
    fn wrapped<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        let text = strip_controls(text);
        let Some(wrap) = &mut self.wrap else { return text };
        let columns = tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
        Cow::Owned(wrap.push(&text, columns.into()))
    }

    pub fn write_line(&mut self, text: &str) -> anyhow::Result<()> {
        self.write_text(text)?;
        self.write_text("\n")
    }

    /// Help or the version, with bold headings where they can be shown.
    pub fn write_help(&mut self, help: &clap::Error) -> anyhow::Result<()> {
        written(help.print())
    }

    /// Hands on what is still held back. An answer is only done when this went well.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        written(io::stdout().flush())
    }

    /// A note: on a terminal, or with -v.
    pub fn info(&self, text: &str) {
        if self.talk.verbose || (self.stderr_is_terminal && !self.talk.quiet) {
            self.say(text);
        }
    }

    /// A note that only -v asks for.
    pub fn detail(&self, text: &str) {
        if self.talk.verbose {
            self.talk(text);
        }
    }

    /// Figures after an answer: a note that stands back behind the text where the terminal can show it.
    pub fn status(&self, text: &str) {
        if self.stderr_is_terminal && !self.talk.quiet && colours_are_wanted() {
            for line in fill(&strip_controls(text), self.talk_columns()) {
                let _ = writeln!(io::stderr(), "\x1b[2m{line}\x1b[0m");
            }
        } else {
            self.info(text);
        }
    }

    pub fn warn(&self, text: &str) {
        self.say(&complaint(&format!("sayfa: warning: {text}")));
    }

    pub fn error(&self, text: &str) {
        self.say(&complaint(&format!("sayfa: {text}")));
    }

    /// A sentence: one line, which a terminal that is too narrow for it gets as several.
    fn say(&self, text: &str) {
        let columns = self.talk_columns();
        match columns {
            0 => self.talk(text),
            _ => fill(text, columns).iter().for_each(|line| self.talk(line)),
        }
    }

    /// Columns of the terminal that standard error is, 0 if it is none.
    pub fn talk_columns(&self) -> usize {
        let size = self.stderr_is_terminal.then(|| tcgetwinsize(io::stderr()).ok()).flatten();
        size.map_or(0, |size| size.ws_col.into())
    }

    /// One line on standard error, whatever the text holds; asked-for reports such as --stats use it directly.
    pub fn talk(&self, text: &str) {
        let line: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect();
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(io::stderr(), "{}", strip_controls(&line.join(" ")));
    }

    /// A text of several lines on standard error, as it is.
    pub fn talk_lines(&self, text: &str) {
        for line in text.lines() {
            let _ = writeln!(io::stderr(), "{}", strip_controls(line));
        }
    }

    /// One line of a table with two columns, the second of which goes on below itself where a terminal is narrow.
    pub fn talk_in_columns(&self, left: &str, right: &str) {
        in_columns(left, right, self.talk_columns()).iter().for_each(|line| {
            let _ = writeln!(io::stderr(), "{}", strip_controls(line));
        });
    }

    /// A bar on standard error, if it is a terminal and the work lasts.
    pub fn progress_tokens(&self, what: &str, total: usize) -> Progress {
        self.progress(what, total as u64, "{msg} {bar:30} {pos}/{len} tokens")
    }

    /// The same where nobody knows how much there will be.
    pub fn progress_open(&self, what: &str) -> Progress {
        self.progress(what, 0, "{msg} {pos} tokens")
    }

    pub fn progress_bytes(&self, what: &str, total: u64) -> Progress {
        self.progress(what, total, "{msg} {bar:30} {bytes}/{total_bytes}")
    }

    fn progress(&self, what: &str, total: u64, template: &str) -> Progress {
        let shown = self.stderr_is_terminal && !self.talk.quiet;
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.expect("the template is a constant and sound"));
        bar.set_message(what.to_string());
        Progress { bar, start: Instant::now(), pending: shown }
    }
}

/// A progress bar that is removed when dropped.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// Would be shown, but the work is young.
    pending: bool,
}

impl Progress {
    pub fn set(&mut self, done: u64) {
        if self.pending && self.start.elapsed() >= BAR_AFTER {
            self.pending = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A terminal that knows no escape sequences.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

fn colours_are_wanted() -> bool {
    !is_dumb() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
    }
}

/// Where the second column begins.
const SECOND_COLUMN: usize = 24;

/// A row of a table whose second column goes on below itself. `width` 0: endless.
fn in_columns(left: &str, right: &str, width: usize) -> Vec<String> {
    // Where there is too little room for two columns the terminal shall break them.
    let rows = fill(right, if width == 0 { 0 } else { width.saturating_sub(SECOND_COLUMN).max(16) });
    let left_fits = left.width() < SECOND_COLUMN;
    let mut lines = if left_fits { Vec::new() } else { vec![left.to_string()] };
    for (i, row) in rows.iter().enumerate() {
        let start = if i == 0 && left_fits { left } else { "" };
        lines.push(format!("{start:SECOND_COLUMN$}{row}"));
    }
    lines
}

/// Words of a text in lines narrower than `width`; 0: all in one.
fn fill(text: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    for word in text.split_whitespace() {
        let row = rows.last_mut().expect("begins with one");
        if row.is_empty() {
            row.push_str(word);
        } else if width == 0 || row.width() + 1 + word.width() < width {
            *row += &format!(" {word}");
        } else {
            rows.push(word.to_string());
        }
    }
    rows
}

/// Most characters of an error or a warning: it may quote a name from a file, and that can have megabytes.
const COMPLAINT_CHARS: usize = 1000;

/// A sentence as people should get it: without the system's error numbers, and cut in the middle if it is endless.
fn complaint(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_string();
    let text = parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest));
    let count = text.chars().count();
    if count <= COMPLAINT_CHARS {
        return text;
    }
    let half = COMPLAINT_CHARS / 2;
    text.chars().take(half).chain(['…']).chain(text.chars().skip(count - half + 1)).collect()
}

/// Model text could hold escape sequences that move the cursor or retitle the window.
fn strip_controls(text: &str) -> Cow<'_, str> {
    let keep = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(keep) { Cow::Borrowed(text) } else { Cow::Owned(text.chars().filter(|&c| keep(c)).collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_newline_and_tab_survive_of_the_control_characters() {
        assert_eq!(strip_controls("a\x1b[31mb\r\n\tc\u{9b}1m\x07é"), "a[31mb\n\tc1mé");
        assert!(matches!(strip_controls("plain\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn sentences_fit_the_terminal() {
        let sentence = "Ctrl-D or /bye leaves";
        assert_eq!(fill(sentence, 0), [sentence]);
        assert_eq!(fill(sentence, 22), [sentence]);
        assert_eq!(fill(sentence, 21), ["Ctrl-D or /bye", "leaves"], "the last column stays empty");
        assert_eq!(fill("日本語 日本語", 13), ["日本語", "日本語"]);
    }

    #[test]
    fn the_second_column_goes_on_below_itself() {
        assert_eq!(in_columns("/undo", "take back it all", 0), ["/undo                   take back it all"]);
        let narrow = in_columns("/undo", "take back the last message", 40);
        assert_eq!(narrow, ["/undo                   take back the", "                        last message"]);
        let long = in_columns("/set wordwrap|nowordwrap", "end lines", 80);
        assert_eq!(long, ["/set wordwrap|nowordwrap", "                        end lines"]);
    }

    #[test]
    fn complaints_have_no_error_numbers_and_an_end() {
        assert_eq!(complaint("a: cannot be read: Is a directory (os error 21)"), "a: cannot be read: Is a directory");
        assert_eq!(complaint("a (os error 2) b (os error 13): c"), "a b: c");
        let long = complaint(&format!("start {} end", "é".repeat(3_000_000)));
        assert_eq!(long.chars().count(), COMPLAINT_CHARS);
        assert!(long.starts_with("start éé") && long.ends_with("éé end") && long.contains("é…é"), "{long}");
    }

    #[test]
    fn a_closed_pipe_is_told_from_a_full_disk() {
        let closed = written(Err(io::Error::from(io::ErrorKind::BrokenPipe))).unwrap_err();
        assert!(closed.is::<ClosedPipe>());
        let full = written(Err(io::Error::from(io::ErrorKind::StorageFull))).unwrap_err();
        assert!(!full.is::<ClosedPipe>() && full.to_string().contains("standard output"));
    }
}
