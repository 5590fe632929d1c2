//! The only writer: standard output is the product, standard error is talk. Also asks whether they are terminals.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::Talk;
pub use super::signals::Interrupts;

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
}

impl Terminal {
    pub fn new(talk: Talk) -> Terminal {
        Terminal {
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

    /// Writes a piece of an answer. On a terminal it shows at once, without control characters; in a pipe lines are
    /// handed on as they become complete.
    pub fn write_text(&mut self, text: &str) -> anyhow::Result<()> {
        let text = if self.stdout_is_terminal { strip_controls(text) } else { Cow::Borrowed(text) };
        written(io::stdout().write_all(text.as_bytes()))?;
        if self.stdout_is_terminal { self.flush() } else { Ok(()) }
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
            self.talk(text);
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
        if self.stderr_is_terminal && !self.talk.quiet && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
        {
            let _ = writeln!(io::stderr(), "\x1b[2m{}\x1b[0m", strip_controls(text));
        } else {
            self.info(text);
        }
    }

    pub fn warn(&self, text: &str) {
        self.talk(&complaint(&format!("sayfa: warning: {text}")));
    }

    pub fn error(&self, text: &str) {
        self.talk(&complaint(&format!("sayfa: {text}")));
    }

    /// One line on standard error, whatever the text holds; asked-for reports such as --stats use it directly.
    pub fn talk(&self, text: &str) {
        let line: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect();
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(io::stderr(), "{}", strip_controls(&line.join(" ")));
    }

    /// A bar on standard error, if it is a terminal and the work lasts.
    pub fn progress_tokens(&self, what: &str, total: usize) -> Progress {
        self.progress(what, total as u64, "{msg} {bar:30} {pos}/{len} tokens")
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

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
    }
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
