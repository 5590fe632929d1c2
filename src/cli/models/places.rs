//! Where models may lie, and the way from a name to a file.

use std::env;
use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::{Found, flat, hub, ollama};

/// Entries of one folder that are looked at: more than any collection, few enough for a folder that is something else.
pub const MOST_ENTRIES: usize = 20_000;
/// Names that are suggested where one is not found.
const MOST_SUGGESTIONS: usize = 3;

/// Which program a folder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of sayfa.
    Folder,
    Ollama,
    HuggingFace,
    LlamaCpp,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Folder => "folder",
            Kind::Ollama => "ollama",
            Kind::HuggingFace => "hf cache",
            Kind::LlamaCpp => "llama.cpp",
        }
    }
}

/// A model of a listing.
pub struct Listed {
    /// What `-m` takes.
    pub name: String,
    pub kind: Kind,
    /// Or why there is no file behind the name.
    pub found: anyhow::Result<Found>,
}

/// All places, in the order in which they are looked at.
pub struct Places {
    places: Vec<(Kind, PathBuf)>,
}

impl Places {
    pub fn of_environment() -> Places {
        let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = folder("HOME");
        let in_home = |path: &str| home.as_ref().map(|home| home.join(path));
        let cache = folder("XDG_CACHE_HOME").or_else(|| in_home(".cache"));
        let in_cache = |path: &str| cache.as_ref().map(|cache| cache.join(path));
        let hub = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| folder("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| in_cache("huggingface/hub"));
        // Where the variable is set it names the only place; else a user's own pulls come before those of the service.
        let ollama = match folder("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            None => in_home(".ollama/models")
                .into_iter()
                .chain([PathBuf::from("/usr/share/ollama/.ollama/models")])
                .collect(),
        };
        let llama_cpp = folder("LLAMA_CACHE");
        let own = [folder("SAYFA_MODELS"), Some(PathBuf::from("models")), in_home(".local/share/sayfa/models")];
        let own = own.into_iter().flatten().map(|folder| (Kind::Folder, folder));
        let ollama = ollama.into_iter().map(|folder| (Kind::Ollama, folder));
        // Later versions of llama.cpp keep what they download as Hugging Face does, in $LLAMA_CACHE if it is set.
        let hubs = hub.into_iter().chain(llama_cpp.clone()).map(|folder| (Kind::HuggingFace, folder));
        let llama_cpp = llama_cpp.or_else(|| in_cache("llama.cpp")).map(|folder| (Kind::LlamaCpp, folder));
        Places { places: own.chain(ollama).chain(hubs).chain(llama_cpp).collect() }
    }

    /// A path as it stands, else a name in one of the places. A path that cannot be read is the loader's to explain.
    pub fn look_up(&self, name: &Path, flag: &str) -> anyhow::Result<Found> {
        if name.symlink_metadata().is_ok() {
            return Ok(Found::file(name.to_path_buf()));
        }
        if let Some(found) = self.in_own_folders(name) {
            return Ok(found);
        }
        if let Some(text) = name.to_str() {
            for (kind, folder) in &self.places {
                let found = match kind {
                    Kind::Folder => None,
                    Kind::Ollama => ollama::find(folder, text)?,
                    Kind::HuggingFace => hub::find(folder, text)?,
                    Kind::LlamaCpp => flat::find(folder, name).or(flat::of_repository(folder, text)?),
                };
                if let Some(found) = found {
                    return Ok(found);
                }
            }
        }
        bail!("{}", self.not_found(flag, name))
    }

    pub fn in_own_folders(&self, name: &Path) -> Option<Found> {
        self.places.iter().filter(|(kind, _)| *kind == Kind::Folder).find_map(|(_, folder)| flat::find(folder, name))
    }

    /// Everything that has a name, in the order of the places; of folders that are named twice only the first. Then what
    /// could not be read.
    pub fn list(&self) -> (Vec<Listed>, Vec<String>) {
        let (mut listed, mut unread): (Vec<Listed>, _) = (Vec::new(), Vec::new());
        let mut seen = Vec::new();
        for (kind, folder) in &self.places {
            let real = match folder.canonicalize() {
                Ok(real) => real,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    unread.push(format!("{}: {error}", folder.display()));
                    continue;
                }
            };
            // As a hub and as a flat folder one and the same has different files.
            if seen.contains(&(*kind, real.clone())) {
                continue;
            }
            seen.push((*kind, real));
            let found = match kind {
                Kind::Folder | Kind::LlamaCpp => flat::list(folder, *kind),
                Kind::Ollama => ollama::list(folder),
                Kind::HuggingFace => hub::list(folder),
            };
            match found {
                Ok(found) => listed.extend(found),
                Err(error) => unread.push(format!("{}: {error}", folder.display())),
            }
        }
        (listed, unread)
    }

    /// For people: the folders that exist, and those that a model could be put into.
    pub fn shown(&self) -> String {
        let is_worth_it = |(kind, folder): &&(Kind, PathBuf)| *kind == Kind::Folder || folder.exists();
        let shown = self.places.iter().filter(is_worth_it).map(|(kind, folder)| match kind {
            Kind::Folder => folder.display().to_string(),
            _ => format!("{} ({})", folder.display(), kind.name()),
        });
        let mut shown: Vec<String> = shown.collect();
        shown.dedup();
        shown.join(", ")
    }

    fn not_found(&self, flag: &str, name: &Path) -> String {
        let (listed, unread) = self.list();
        let name = name.display().to_string();
        // It has the name, and a reason why there is no file behind it.
        let broken = listed.iter().find(|listed| listed.name == name).and_then(|listed| listed.found.as_ref().err());
        if let Some(why) = broken {
            return format!("{flag} {name}: {why:#}");
        }
        let near = near(&name, listed.iter().map(|listed| listed.name.as_str()));
        let near = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
        let unread = unread.iter().map(|why| format!("; cannot look into {why}")).collect::<String>();
        format!(
            "{flag} {name}: no such file, and no such name in {}{unread}{near} (`sayfa models` lists what is there, \
             $SAYFA_MODELS names another folder)",
            self.shown()
        )
    }
}

/// The names most like `wanted`, best first: those that hold it, or are a few letters away.
fn near<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let fold = |name: &str| name.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect::<Vec<char>>();
    let wanted = fold(wanted.strip_suffix(".gguf").unwrap_or(wanted));
    let mut near: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let letters = fold(name);
            let holds = wanted.len() > 2 && letters.windows(wanted.len()).any(|part| part == wanted);
            let distance = distance(&wanted, &letters);
            (holds || distance <= wanted.len() / 4).then_some((distance, name))
        })
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().take(MOST_SUGGESTIONS).map(|(_, name)| name).collect()
}

/// Letters to change, add or leave out.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The entries of a folder that are not hidden, by name.
pub fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let is_shown = |entry: &DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let mut entries: Vec<DirEntry> = fs::read_dir(folder)?.take(MOST_ENTRIES).flatten().filter(is_shown).collect();
    entries.sort_by_key(DirEntry::file_name);
    Ok(entries)
}

/// The folders in a folder, with names that are text. Links are not followed: they could lead in a circle.
pub fn folders(folder: &Path) -> Vec<(String, PathBuf)> {
    let is_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let found = entries(folder).unwrap_or_default().into_iter().filter(is_folder);
    found.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

/// What `folder` has under `name`, whatever the case of its letters.
pub fn child(folder: &Path, name: &str) -> Option<PathBuf> {
    let exact = folder.join(name);
    if exact.exists() {
        return Some(exact);
    }
    let same = |entry: &DirEntry| entry.file_name().eq_ignore_ascii_case(name);
    entries(folder).ok()?.iter().find(|entry| same(entry)).map(DirEntry::path)
}

/// A part of a model's name that is safe as a part of a path.
pub fn is_name_part(part: &str) -> bool {
    part.len() <= 350
        && part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
}

/// `name` and `tag` of `name:tag`; the colon of a port is none.
pub fn without_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (text, None),
    }
}

/// A small file of text. Anything that is no regular file is refused before it is opened, lest a pipe hang the program.
pub fn read_small(path: &Path, most_bytes: u64) -> Result<String, String> {
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is no regular file".to_string());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(most_bytes + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most_bytes {
        return Err(format!("it has more than {most_bytes} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_those_that_hold_the_wanted_one_or_are_a_few_letters_away() {
        let names = ["llama3.2:1b", "llama3.2:latest", "SmolLM2-135M-Instruct.Q4_1", "org/Repo-GGUF:Q4_K_M"];
        let near = |wanted| near(wanted, names.into_iter());
        assert_eq!(near("lama3.2:1b"), ["llama3.2:1b"]);
        assert_eq!(near("llama3.2"), ["llama3.2:1b", "llama3.2:latest"]);
        assert_eq!(near("smollm2"), ["SmolLM2-135M-Instruct.Q4_1"]);
        assert_eq!(near("org/repo-gguf"), ["org/Repo-GGUF:Q4_K_M"]);
        assert!(near("no-such-model").is_empty() && near("").is_empty() && near("b").is_empty());
    }

    #[test]
    fn distances_count_letters() {
        let distance = |a: &str, b: &str| distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!([distance("", ""), distance("abc", ""), distance("", "ab"), distance("abc", "abc")], [0, 3, 2, 0]);
        assert_eq!([distance("kitten", "sitting"), distance("ab", "ba"), distance("abc", "xabc")], [3, 2, 1]);
    }

    #[test]
    fn parts_of_names_cannot_leave_a_folder() {
        for part in ["", ".", "..", "../x", "a/b", "-x", ".hidden", "a b", "a\\b", "a\0"] {
            assert!(!is_name_part(part), "{part:?}");
        }
        assert!(["llama3.2", "hf.co", "localhost:5000", "Q4_K_M", "_x"].iter().all(|part| is_name_part(part)));
        assert_eq!(without_tag("localhost:5000/a/b"), ("localhost:5000/a/b", None));
        assert_eq!(without_tag("localhost:5000/a/b:c"), ("localhost:5000/a/b", Some("c")));
    }
}
