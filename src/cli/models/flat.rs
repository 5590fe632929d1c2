//! Folders of GGUF files: sayfa's own, and that of llama.cpp's older downloads, whose files are named
//! `ORG_REPO_FILE.gguf`.

use std::io;
use std::path::{Path, PathBuf};

use super::Found;
use super::hub::{self, Repository};
use super::places::{Kind, Listed, entries};

/// A file of the folder, with or without `.gguf`.
pub fn find(folder: &Path, name: &Path) -> Option<Found> {
    let mut with_ending = name.as_os_str().to_os_string();
    with_ending.push(".gguf");
    let is_file = |path: &PathBuf| path.exists() && !path.is_dir();
    [folder.join(name), folder.join(with_ending)].into_iter().find(is_file).map(Found::file)
}

/// What llama.cpp downloaded of `ORG/REPO[:QUANT]`.
pub fn of_repository(folder: &Path, wanted: &str) -> anyhow::Result<Option<Found>> {
    let Some(wanted) = hub::Wanted::parse(wanted) else { return Ok(None) };
    let prefix = format!("{}_", wanted.repository.replace('/', "_"));
    let mut files = file_names(folder).unwrap_or_default();
    files.retain(|file| file.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(&prefix)));
    if files.is_empty() {
        return Ok(None);
    }
    Repository { name: wanted.repository.clone(), folder: folder.to_path_buf(), files }.choose(&wanted).map(Some)
}

pub fn list(folder: &Path, kind: Kind) -> io::Result<Vec<Listed>> {
    let listed = |file: String| {
        let name = file.strip_suffix(".gguf").unwrap_or(&file).to_string();
        Listed { name, kind, found: Ok(Found::file(folder.join(&file))) }
    };
    Ok(file_names(folder)?.into_iter().map(listed).collect())
}

/// The models of the folder; of those in several files the first.
fn file_names(folder: &Path) -> io::Result<Vec<String>> {
    let names = entries(folder)?.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| hub::is_model(name)).collect())
}
