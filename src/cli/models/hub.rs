//! The cache of Hugging Face: `models--ORG--REPO/snapshots/REVISION/FILE`, and `refs/main` names the revision. Files are
//! links to blobs; they are opened by their names in the snapshot, so that the parts of a split model lie side by side.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::Found;
use super::places::{Kind, Listed, child, entries, folders, is_name_part, read_small, without_tag};

const PREFIX: &str = "models--";
/// Which file of several is taken where no type is named: llama.cpp's first choice, then the plainest types.
const PREFERRED: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];
/// Folders within a repository: publishers sort split models into one each.
const MOST_DEPTH: usize = 3;
/// A revision has 40 letters.
const MOST_REF_BYTES: u64 = 1024;

/// What a name asks for.
pub struct Wanted {
    /// `ORG/REPO`, or `REPO` of old.
    pub repository: String,
    /// A type, such as `Q4_K_M`.
    pub quant: Option<String>,
    /// A file of the repository.
    pub file: Option<String>,
}

/// The GGUF files of a repository, by their paths in `folder`.
pub struct Repository {
    pub name: String,
    pub folder: PathBuf,
    pub files: Vec<String>,
}

impl Wanted {
    /// `[hf.co/]ORG/REPO[:QUANT]` or `ORG/REPO/FILE`.
    pub fn parse(text: &str) -> Option<Wanted> {
        let text = ["hf.co/", "huggingface.co/"].iter().find_map(|host| text.strip_prefix(host)).unwrap_or(text);
        let (path, quant) = without_tag(text);
        let parts: Vec<&str> = path.split('/').collect();
        if !parts.iter().chain(&quant).all(|part| is_name_part(part) && !part.contains(':')) {
            return None;
        }
        let (repository, file) = parts.split_at(parts.len().min(2));
        let file = (!file.is_empty()).then(|| file.join("/"));
        let quant = quant.filter(|quant| *quant != "latest").map(str::to_string);
        Some(Wanted { repository: repository.join("/"), quant, file })
    }
}

pub fn find(cache: &Path, wanted: &str) -> anyhow::Result<Option<Found>> {
    let Some(wanted) = Wanted::parse(wanted) else { return Ok(None) };
    let folder_name = format!("{PREFIX}{}", wanted.repository.replace('/', "--"));
    let Some(folder) = child(cache, &folder_name) else { return Ok(None) };
    let snapshot = snapshot(&folder)?;
    let repository = Repository::open(wanted.repository.clone(), snapshot);
    repository.choose(&wanted).map(Some)
}

/// Every GGUF file of every repository; repositories without one are no concern of ours.
pub fn list(cache: &Path) -> io::Result<Vec<Listed>> {
    entries(cache)?;
    let mut listed = Vec::new();
    for (folder_name, folder) in folders(cache) {
        let Some(name) = folder_name.strip_prefix(PREFIX).map(|name| name.replacen("--", "/", 1)) else { continue };
        match snapshot(&folder) {
            Ok(snapshot) => listed.extend(Repository::open(name, snapshot).list()),
            // An empty folder is left behind by a download that never began.
            Err(_) if folders(&folder.join("snapshots")).is_empty() => {}
            Err(error) => listed.push(Listed { name, kind: Kind::HuggingFace, found: Err(error) }),
        }
    }
    Ok(listed)
}

/// The folder of files that `main` stands for.
fn snapshot(repository: &Path) -> anyhow::Result<PathBuf> {
    let (snapshots, main) = (repository.join("snapshots"), repository.join("refs/main"));
    if main.exists() {
        let revision = read_small(&main, MOST_REF_BYTES);
        let revision = revision.map_err(|why| anyhow::anyhow!("{}: not a revision: {why}", main.display()))?;
        let revision = revision.trim();
        if !is_name_part(revision) {
            bail!("{}: not a revision, but {revision:?}", main.display());
        }
        let folder = snapshots.join(revision);
        if !folder.is_dir() {
            bail!("{} is not there, which refs/main stands for: the download is not complete", folder.display());
        }
        return Ok(folder);
    }
    match &folders(&snapshots)[..] {
        [(_, only)] => Ok(only.clone()),
        [] => bail!("{} is empty: the download is not complete", snapshots.display()),
        several => bail!("{} has {} revisions, and no refs/main says which counts", snapshots.display(), several.len()),
    }
}

impl Repository {
    fn open(name: String, folder: PathBuf) -> Repository {
        let mut files = Vec::new();
        collect(&folder, "", 0, &mut files);
        Repository { name, folder, files }
    }

    /// The one file that is meant, or a sentence with those that may be.
    pub fn choose(&self, wanted: &Wanted) -> anyhow::Result<Found> {
        let found = |file: &String| Ok(Found::file(self.folder.join(file)));
        let files: Vec<&String> = self.files.iter().collect();
        let name = &self.name;
        if let Some(wanted) = &wanted.file {
            return match files.iter().find(|file| file.eq_ignore_ascii_case(wanted)) {
                Some(file) => found(file),
                None => bail!("{name} has no file {wanted} on this disk, but {}", self.shown()),
            };
        }
        if let Some(quant) = &wanted.quant {
            let of_type: Vec<&String> = files.into_iter().filter(|file| has_type(file, quant)).collect();
            return match of_type[..] {
                [file] => found(file),
                [] => bail!("{name} has no file of type {quant} on this disk, but {}", self.shown()),
                _ => bail!("{name}:{quant} may be {}: give one as {name}/FILE", any_of(&of_type)),
            };
        }
        if let [file] = files[..] {
            return found(file);
        }
        for quant in PREFERRED {
            if let [file] = files.iter().filter(|file| has_type(file, quant)).collect::<Vec<_>>()[..] {
                return found(file);
            }
        }
        match files[..] {
            [] => bail!("{name} is in the Hugging Face cache, but without a GGUF file, and sayfa reads no other"),
            _ => bail!("{name} may be {}: add its type as in {name}:Q4_K_M, or give {name}/FILE", any_of(&files)),
        }
    }

    fn list(&self) -> impl Iterator<Item = Listed> {
        self.files.iter().map(|file| {
            let by_type = type_of(file).filter(|quant| {
                let all = self.files.iter().filter(|file| has_type(file, quant));
                all.count() == 1
            });
            let name = match by_type {
                Some(quant) => format!("{}:{quant}", self.name),
                None => format!("{}/{file}", self.name),
            };
            Listed { name, kind: Kind::HuggingFace, found: Ok(Found::file(self.folder.join(file))) }
        })
    }

    fn shown(&self) -> String {
        match self.files[..] {
            [] => "none in GGUF".to_string(),
            _ => any_of(&self.files.iter().collect::<Vec<_>>()),
        }
    }
}

fn any_of(files: &[&String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = files.iter().take(SHOWN).map(|file| file.as_str()).collect();
    let more = if files.len() > SHOWN { format!(" and {} more", files.len() - SHOWN) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    for entry in entries(folder).unwrap_or_default() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, is_folder) = (format!("{prefix}{name}"), entry.file_type().is_ok_and(|kind| kind.is_dir()));
        if is_folder && depth + 1 < MOST_DEPTH {
            collect(&entry.path(), &format!("{path}/"), depth + 1, files);
        } else if !is_folder && is_model(&name) {
            files.push(path);
        }
    }
}

/// A GGUF file that a model begins with: neither a later part of one nor something that only goes with one.
pub fn is_model(file: &str) -> bool {
    let Some(stem) = file.strip_suffix(".gguf") else { return false };
    let part = parts_of(stem).map(|(_, part)| part);
    part.is_none_or(|part| part.parse() == Ok(1)) && !stem.contains("mmproj") && !stem.contains("imatrix")
}

/// The stem without its numbers, and the first of these: `NAME-00001-of-00003`.
fn parts_of(stem: &str) -> Option<(&str, &str)> {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    (is_number(count) && is_number(part)).then_some((name, part))
}

/// `Q4_K_M` of `Model-Q4_K_M-00001-of-00002.gguf`: the last piece between dashes and dots that looks like a type.
fn type_of(file: &str) -> Option<&str> {
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let stem = parts_of(stem).map_or(stem, |(name, _)| name);
    let looks_like_one = |piece: &&str| {
        let upper = piece.to_ascii_uppercase();
        let rest = upper.strip_prefix('I').or_else(|| upper.strip_prefix('T')).unwrap_or(&upper);
        let is_quant = rest.strip_prefix('Q').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        is_quant || ["F16", "BF16", "F32", "FP16", "MXFP4"].iter().any(|float| upper.starts_with(float))
    };
    stem.rsplit(['-', '.', '/']).find(looks_like_one)
}

/// Whether the path holds the type as a word of its own, whatever the case: `Q4_K` is not in `Q4_K_M`.
fn has_type(file: &str, quant: &str) -> bool {
    let (file, quant) = (file.to_ascii_lowercase(), quant.to_ascii_lowercase());
    let file = file.strip_suffix(".gguf").unwrap_or(&file);
    file.match_indices(&quant).any(|(at, found)| {
        let before = file[..at].chars().next_back();
        let after = file[at + found.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(files: &[&str]) -> Repository {
        let files = files.iter().map(|file| file.to_string()).collect();
        Repository { name: "org/repo".into(), folder: PathBuf::from("s"), files }
    }

    fn chosen(files: &[&str], wanted: &str) -> Result<String, String> {
        let found = repository(files).choose(&Wanted::parse(wanted).unwrap());
        found.map(|found| found.path.display().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_type_chooses_and_without_one_the_usual_comes_first() {
        let files = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q4_0.gguf", "m.q8_0.gguf", "x/m-F16-00001-of-00002.gguf"];
        for (wanted, file) in [
            ("org/repo", "m-Q4_K_M.gguf"),
            ("org/repo:q4_k_s", "m-Q4_K_S.gguf"),
            ("org/repo:Q8_0", "m.q8_0.gguf"),
            ("org/repo:f16", "x/m-F16-00001-of-00002.gguf"),
            ("org/repo/M.Q8_0.gguf", "m.q8_0.gguf"),
            ("hf.co/org/repo:latest", "m-Q4_K_M.gguf"),
        ] {
            assert_eq!(chosen(&files, wanted), Ok(format!("s/{file}")), "{wanted}");
        }
        assert_eq!(chosen(&files[1..], "org/repo"), Ok("s/m-Q4_0.gguf".into()));
        assert_eq!(chosen(&files[3..], "org/repo"), Ok("s/m.q8_0.gguf".into()));
        assert_eq!(chosen(&["only.gguf"], "org/repo"), Ok("s/only.gguf".into()));
    }

    #[test]
    fn what_is_not_there_or_not_clear_is_a_sentence_with_the_files() {
        let files = ["a-Q5_K_M.gguf", "b-Q5_K_M.gguf", "b-Q6_K.gguf"];
        for (wanted, words) in [
            ("org/repo", "org/repo may be a-Q5_K_M.gguf, b-Q5_K_M.gguf, b-Q6_K.gguf: add its type"),
            ("org/repo:Q5_K_M", "org/repo:Q5_K_M may be a-Q5_K_M.gguf, b-Q5_K_M.gguf: give one as org/repo/FILE"),
            ("org/repo:Q5_K", "no file of type Q5_K on this disk, but a-Q5_K_M.gguf"),
            ("org/repo/c.gguf", "no file c.gguf"),
        ] {
            let error = chosen(&files, wanted).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(chosen(&[], "org/repo").unwrap_err().contains("without a GGUF file"));
    }

    #[test]
    fn names_of_files_tell_their_type_and_whether_they_are_models() {
        for (file, of_type) in [
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("model-q8_0.gguf", Some("q8_0")),
            ("Q4_K_M/m-IQ4_XS-00001-of-00003.gguf", Some("IQ4_XS")),
            ("m-BF16.gguf", Some("BF16")),
            ("Qwen2.gguf", None),
            ("m.gguf", None),
        ] {
            assert_eq!(type_of(file), of_type, "{file}");
        }
        assert!(is_model("a.gguf") && is_model("a-00001-of-00003.gguf") && is_model("a-of-b.gguf"));
        for file in ["a-00002-of-00003.gguf", "mmproj-a-f16.gguf", "a.imatrix.gguf", "a.safetensors", "gguf"] {
            assert!(!is_model(file), "{file}");
        }
    }

    #[test]
    fn listed_names_lead_back_to_their_files() {
        let files = ["a-Q4_0.gguf", "b-Q4_0.gguf", "a-Q8_0.gguf", "plain.gguf"];
        let repository = repository(&files);
        let names: Vec<String> = repository.list().map(|listed| listed.name).collect();
        assert_eq!(names, ["org/repo/a-Q4_0.gguf", "org/repo/b-Q4_0.gguf", "org/repo:Q8_0", "org/repo/plain.gguf"]);
        for (name, file) in names.iter().zip(files) {
            let found = repository.choose(&Wanted::parse(name).unwrap()).unwrap();
            assert_eq!(found.path, Path::new("s").join(file));
        }
    }

    #[test]
    fn names_that_leave_the_cache_are_none() {
        for text in ["../x", "org/../x", "/etc/passwd", "org/repo:../x", "", "org/", "org//x"] {
            assert!(Wanted::parse(text).is_none(), "{text:?}");
        }
    }
}
