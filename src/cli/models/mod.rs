//! Models that are on this machine already: the file behind `-m`, and what there is to choose from. Looks in sayfa's own
//! folders, in what ollama has pulled and in the caches of Hugging Face and llama.cpp; nothing is downloaded, moved or
//! written.

mod flat;
mod hub;
mod list;
mod ollama;
mod places;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Context;

use self::places::Places;

pub use list::{ModelsArgs, models};

pub const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A model that was found by name or path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// For people: the name of the file, or ollama's name of the model.
    pub name: String,
    pub path: PathBuf,
    /// What -v tells about it.
    pub note: Option<String>,
    /// The path says nothing to a person: ollama's files are named by their digest.
    is_blob: bool,
}

impl Found {
    fn file(path: PathBuf) -> Found {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Found { name, path, note: None, is_blob: false }
    }

    /// As sentences should call it.
    pub fn shown(&self) -> String {
        if self.is_blob { self.name.clone() } else { self.path.display().to_string() }
    }

    /// An error about the file, with the name that the user gave where the path does not tell it.
    pub fn explain<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        if self.is_blob { result.with_context(|| self.name.clone()) } else { result }
    }
}

/// Every name that `find` knows.
pub fn names() -> Vec<String> {
    Places::of_environment().list().0.into_iter().map(|listed| listed.name).collect()
}

/// The file of `-m`, of $SAYFA_MODEL, or the default model.
pub fn find(wanted: Option<&Path>) -> anyhow::Result<Found> {
    let places = Places::of_environment();
    let from_environment = env::var_os("SAYFA_MODEL").filter(|name| !name.is_empty()).map(PathBuf::from);
    match (wanted, from_environment) {
        (Some(name), _) => places.look_up(name, "-m"),
        (None, Some(name)) => places.look_up(&name, "$SAYFA_MODEL"),
        (None, None) => places.in_own_folders(Path::new(DEFAULT_MODEL)).with_context(|| {
            format!(
                "no model: give one with -m FILE (`sayfa models` lists those that are here), or get the default one \
                 ({DEFAULT_MODEL}) with scripts/get_model.sh"
            )
        }),
    }
}
