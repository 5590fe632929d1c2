//! The user's own editor, for messages that are too long for a line.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, process, thread};

use anyhow::{Context, bail, ensure};

use crate::cli::input::without_line_end;
use crate::cli::signals;
use crate::cli::terminal::Terminal;

/// More is no message, and the prompt shows all of it.
const MOST_EDITED: u64 = 4 << 20;

/// A person does not notice it behind an editor.
const SIGNALS_ARRIVE_WITHIN: Duration = Duration::from_millis(50);

/// Lets the user change `text` in $VISUAL, $EDITOR or vi. `None`: the file was left empty. One line end at its end is no part
/// of the text.
pub fn edit(text: &str, terminal: &Terminal) -> anyhow::Result<Option<String>> {
    ensure!(terminal.stdin_is_terminal(), "an editor needs a terminal, and standard input is none");
    let folder = PrivateFolder::create().context("no place for a file to edit")?;
    let file = folder.0.join("message.md");
    let write = |text: &str| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        file.write_all(text.as_bytes())
    };
    // Editors complain of files that end within a line.
    write(&format!("{text}\n")).with_context(|| format!("{}: cannot be written", file.display()))?;
    run_editor(&editor(), &file, terminal)?;
    let unreadable = || format!("{}: cannot be read", file.display());
    let about = fs::symlink_metadata(&file).with_context(unreadable)?;
    ensure!(about.is_file(), "what the editor left is no regular file: nothing is changed");
    ensure!(
        about.len() <= MOST_EDITED,
        "what the editor wrote has more than {} MiB: nothing is changed",
        MOST_EDITED >> 20
    );
    let bytes = fs::read(&file).with_context(unreadable)?;
    let edited = String::from_utf8(bytes).ok().context("what the editor wrote is not UTF-8: nothing is changed")?;
    // The line editor would send them to the terminal.
    let edited: String = edited.chars().filter(|&c| !c.is_control() || ['\n', '\r', '\t'].contains(&c)).collect();
    let edited = without_line_end(&edited);
    Ok((!edited.trim().is_empty()).then(|| edited.to_string()))
}

fn editor() -> String {
    let named = |name| env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".to_string())
}

/// Through the shell, since people write `code --wait` there.
fn run_editor(editor: &str, file: &Path, terminal: &Terminal) -> anyhow::Result<()> {
    let mut command = Command::new("sh");
    // The trap keeps the shell through a Ctrl-C that is the editor's, which does not inherit it.
    command.arg("-c").arg(format!("trap : INT; {editor} \"$1\"")).arg("sh").arg(file);
    if !terminal.stdout_is_terminal() {
        // The answers go elsewhere, and the editor must not follow them.
        command.stdout(Stdio::from(io::stderr()));
    }
    // The system sends Ctrl-C to all of them.
    let _left = signals::leave_to_child();
    let status = command.status().context("sh cannot be started")?;
    // The Ctrl-C that ended the editor may still be on its way to the thread that waits for signals.
    thread::sleep(SIGNALS_ARRIVE_WITHIN);
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => bail!("the editor '{editor}' ended with code {code}: nothing is changed"),
        None => bail!("the editor '{editor}' was killed: nothing is changed"),
    }
}

/// A folder that only the user can look into, since editors put copies beside a file. It goes with this value.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create() -> io::Result<PrivateFolder> {
        let mut n = 0u32;
        loop {
            let path = env::temp_dir().join(format!("sayfa-{}-{n}", process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateFolder(path)),
                // Of an earlier process of this number, or somebody's trap.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && n < 1000 => n += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_folder_is_private_and_goes_again() {
        let (one, other) = (PrivateFolder::create().unwrap(), PrivateFolder::create().unwrap());
        assert_ne!(one.0, other.0);
        assert_eq!(fs::metadata(&one.0).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.0.join("message.md~"), "a copy").unwrap();
        let path = one.0.clone();
        drop(one);
        assert!(!path.exists() && other.0.exists());
    }
}
