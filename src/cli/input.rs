//! Where a prompt comes from: standard input, files, -p, joined by a blank line in that order.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use super::args::unescape;
use super::terminal::Terminal;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Prompt")]
pub struct InputArgs {
    /// Text, after standard input and -f
    ///
    /// `\n` stays two characters unless -e is given.
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<OsString>,

    /// Text of this file, after standard input
    ///
    /// May be given several times; `-`: standard input.
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Leave standard input alone
    ///
    /// Also where it is no terminal.
    #[arg(long)]
    pub no_stdin: bool,

    /// Refuse text that is not UTF-8
    ///
    /// Without it what is wrong becomes U+FFFD.
    #[arg(long)]
    pub strict_utf8: bool,
}

/// What is done to text on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A prompt: without a byte order mark and without the one line end that editors put behind the last line.
    Prompt,
    /// Every byte counts.
    Exact,
}

impl InputArgs {
    /// Whether a flag asks for text, whatever standard input is.
    pub fn is_given(&self) -> bool {
        self.prompt.is_some() || !self.files.is_empty()
    }

    /// All text joined; `None` when there is nowhere to read from. Empty pieces leave no blank line behind.
    pub fn read(&self, form: Form, escape: bool, terminal: &Terminal) -> anyhow::Result<Option<String>> {
        let stdin_named = self.files.iter().any(|file| file.as_os_str() == "-");
        let stdin_first = !self.no_stdin && !stdin_named && !terminal.stdin_is_terminal();
        if !stdin_first && !self.is_given() {
            return Ok(None);
        }
        let mut pieces = Vec::new();
        if stdin_first {
            pieces.push(self.text(read_stdin()?, "standard input", form, terminal)?);
        }
        for file in &self.files {
            pieces.push(match file.as_os_str() == "-" {
                true => self.text(read_stdin()?, "standard input", form, terminal)?,
                false => read_file(file, "-f", form, self.strict_utf8, terminal)?,
            });
        }
        if let Some(prompt) = &self.prompt {
            let text = self.text(prompt.as_encoded_bytes().to_vec(), "-p", Form::Exact, terminal)?;
            pieces.push(if escape { unescape(&text) } else { text });
        }
        pieces.retain(|piece| !piece.is_empty());
        Ok(Some(pieces.join("\n\n")))
    }

    fn text(&self, bytes: Vec<u8>, name: &str, form: Form, terminal: &Terminal) -> anyhow::Result<String> {
        decoded(bytes, name, form, self.strict_utf8, terminal)
    }
}

/// The text of a file that `flag` names.
pub fn read_file(
    file: &Path,
    flag: &str,
    form: Form,
    strict_utf8: bool,
    terminal: &Terminal,
) -> anyhow::Result<String> {
    let name = format!("{flag} {}", file.display());
    let opened = std::fs::File::open(file).with_context(|| format!("{name}: cannot be opened"))?;
    decoded(read_bounded(opened, &name)?, &name, form, strict_utf8, terminal)
}

fn decoded(bytes: Vec<u8>, name: &str, form: Form, strict_utf8: bool, terminal: &Terminal) -> anyhow::Result<String> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            if strict_utf8 {
                bail!("{name}: not UTF-8 at byte {at} (without --strict-utf8 it would become U+FFFD)");
            }
            terminal.warn(&format!("{name}: not UTF-8, first at byte {at}: what is wrong became U+FFFD"));
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }
    };
    Ok(if form == Form::Prompt { trimmed(&text).to_string() } else { text })
}

/// Most bytes of text that are read from one place: far beyond any context, and small beside the memory.
pub const MOST_BYTES: u64 = 256 << 20;

fn read_stdin() -> anyhow::Result<Vec<u8>> {
    read_bounded(std::io::stdin(), "standard input")
}

/// A device or a program that never stops writing must not fill the memory.
pub fn read_bounded(from: impl Read, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("{name}: cannot be read"))?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("{name}: more than {} MiB of text, which is the most that is read: give less", MOST_BYTES >> 20);
    }
    Ok(bytes)
}

/// Without a byte order mark and without exactly one final line end, as llama.cpp does it.
fn trimmed(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    without_line_end(text)
}

pub fn without_line_end(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::trimmed;

    #[test]
    fn exactly_one_final_line_end_goes() {
        for (text, left) in [("a", "a"), ("a\n", "a"), ("a\n\n", "a\n"), ("a\r\n", "a"), ("a\r", "a\r"), ("\n", "")] {
            assert_eq!(trimmed(text), left, "{text:?}");
        }
        assert_eq!(trimmed("\u{feff}a\u{feff}\n"), "a\u{feff}");
    }
}
