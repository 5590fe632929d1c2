//! `--session FILE`: resume from a file and save to it when leaving, for `run` and `chat`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;

use super::args::ModelArgs;
use super::load::Loaded;
use super::terminal::{Interrupts, Terminal};
use crate::engine::{About, Engine, SequenceId};
use crate::kv::session::Saved;
use crate::model::Fingerprint;
use crate::tokenizer::{TokenId, Tokenizer};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// Resume from this file, and save to it when leaving
    ///
    /// What it holds is not computed again. A new file is created.
    #[arg(long, value_name = "FILE")]
    pub session: Option<PathBuf>,

    /// Resume, but leave the file as it is
    #[arg(long, requires = "session")]
    pub session_ro: bool,
}

impl SessionArgs {
    /// The file to save to when leaving.
    pub fn to_write(&self) -> Option<&Path> {
        self.session.as_deref().filter(|_| !self.session_ro)
    }

    /// Before the long work: whether the file could be written when leaving.
    pub fn check_place(&self) -> anyhow::Result<()> {
        let Some(path) = self.to_write() else { return Ok(()) };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("--session {}: there is no folder {}", path.display(), folder.display());
        }
        Ok(())
    }

    /// The session to resume, if the flags name one that is there.
    pub fn open(&self, about: &About, terminal: &Terminal) -> anyhow::Result<Option<Saved>> {
        let Some(path) = &self.session else { return Ok(None) };
        let saved = open(path, about)?;
        if saved.is_none() {
            match (path.exists(), self.session_ro) {
                (true, _) => terminal.warn(&format!("--session {}: the file is empty", path.display())),
                (false, true) => terminal.warn(&format!("--session {}: there is no such file", path.display())),
                (false, false) => terminal.info(&format!("new session, to be saved to {}", path.display())),
            }
        }
        Ok(saved)
    }
}

/// What files saved from this model say of it; the notes are the command's.
pub fn about(args: &ModelArgs, loaded: &Loaded) -> About {
    let (k, v) = args.kv_types();
    let kv_types = if k == v { k.name().to_string() } else { format!("{} and {}", k.name(), v.name()) };
    let vocabulary = vocabulary(&loaded.texts.tokenizer);
    About { vocabulary, model: loaded.name.clone(), kv_types, notes: Vec::new() }
}

/// Of what the token ids mean.
fn vocabulary(tokenizer: &Tokenizer) -> u64 {
    let mut of = Fingerprint::default();
    (0..tokenizer.vocab() as TokenId).for_each(|id| of.add(tokenizer.piece(id).as_bytes()));
    of.finish()
}

/// A session whose tokens this model can read; `None` if the file is missing or empty.
pub fn open(path: &Path, about: &About) -> anyhow::Result<Option<Saved>> {
    let Some(saved) = Saved::open(path)? else { return Ok(None) };
    if saved.head.vocabulary != about.vocabulary {
        bail!(
            "{} was saved by {}, whose vocabulary is not that of {}: use it with that model, or take another file",
            path.display(),
            saved.head.model,
            about.model
        );
    }
    Ok(Some(saved))
}

/// Puts a session into a sequence and says what of it must be computed again.
pub fn restore(
    saved: &mut Saved,
    engine: &mut Engine,
    sequence: SequenceId,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let restored = engine.restore(sequence, saved)?;
    let (held, total, path) = (restored.held_tokens, saved.head.tokens.len(), saved.path().display().to_string());
    match restored.doubt {
        Some(doubt) if held == 0 => terminal.warn(&format!("{path}: {doubt}: its {total} tokens are computed again")),
        Some(doubt) => {
            terminal.warn(&format!("{path}: {doubt}: {held} of its {total} tokens are used, the rest computed again"))
        }
        None => terminal.info(&format!("resumed {held} tokens from {path}")),
    }
    Ok(())
}

/// Saves a sequence. The first Ctrl-C waits until that is done.
pub fn save(
    engine: &Engine,
    sequence: SequenceId,
    path: &Path,
    about: &About,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let _interrupts = Interrupts::catch();
    let saving = engine.save(sequence, path, about)?;
    terminal.info(&match saving.blocks {
        0 if saving.tokens > 0 => format!(
            "saved {} tokens to {} without what was computed, as the oldest were forgotten",
            saving.tokens,
            path.display()
        ),
        _ => format!("saved {} tokens to {}", saving.tokens, path.display()),
    });
    Ok(())
}
