//! What ollama has pulled. `manifests/HOST/NAMESPACE/MODEL/TAG` is JSON that names the parts of a model by digest, and
//! `blobs/sha256-DIGEST` holds them. The model itself is a GGUF file; ollama's own template, parameters and system text
//! are parts beside it, which sayfa leaves alone: the template in the file counts.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use serde::Deserialize;

use super::Found;
use super::places::{Kind, Listed, child, entries, folders, is_name_part, read_small, without_tag};

const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";
/// Real ones have 1 KB.
const MOST_MANIFEST_BYTES: u64 = 1 << 20;

/// A model's name, all of it.
struct Name<'a> {
    host: &'a str,
    namespace: &'a str,
    model: &'a str,
    tag: &'a str,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

impl Layer {
    /// `model`, `template`, `params` and so on.
    fn kind(&self) -> &str {
        let name = self.media_type.split(';').next().unwrap_or_default().trim();
        name.strip_prefix("application/vnd.ollama.image.").unwrap_or_default()
    }
}

impl<'a> Name<'a> {
    /// `[[HOST/]NAMESPACE/]MODEL[:TAG]`; `None` for what ollama could never have pulled.
    fn parse(text: &'a str) -> Option<Name<'a>> {
        let (path, tag) = without_tag(text);
        let parts: Vec<&str> = path.split('/').collect();
        let (host, namespace, model) = match parts[..] {
            [model] => (HOST, NAMESPACE, model),
            [namespace, model] => (HOST, namespace, model),
            [host, namespace, model] => (host, namespace, model),
            _ => return None,
        };
        let name = Name { host, namespace, model, tag: tag.unwrap_or(TAG) };
        name.parts().iter().all(|part| is_name_part(part)).then_some(name)
    }

    fn parts(&self) -> [&'a str; 4] {
        [self.host, self.namespace, self.model, self.tag]
    }

    /// As `ollama list` shows it.
    fn short(&self) -> String {
        let Name { host, namespace, model, tag } = self;
        match (*host == HOST, *namespace == NAMESPACE) {
            (true, true) => format!("{model}:{tag}"),
            (true, false) => format!("{namespace}/{model}:{tag}"),
            _ => format!("{host}/{namespace}/{model}:{tag}"),
        }
    }
}

/// The model that ollama knows by this name. One that is there but not sound is an error.
pub fn find(folder: &Path, wanted: &str) -> anyhow::Result<Option<Found>> {
    let Some(name) = Name::parse(wanted) else { return Ok(None) };
    let manifests = folder.join("manifests");
    let manifest = name.parts().iter().try_fold(manifests, |folder, part| child(&folder, part));
    manifest.map(|manifest| model_of(folder, &name.short(), &manifest)).transpose()
}

/// All names, sound or not.
pub fn list(folder: &Path) -> io::Result<Vec<Listed>> {
    let manifests = folder.join("manifests");
    if !manifests.try_exists()? {
        return Ok(Vec::new());
    }
    // So that a folder that may not be read is told of.
    entries(&manifests)?;
    let mut listed = Vec::new();
    for (host, folder_of_host) in folders(&manifests) {
        for (namespace, folder_of_namespace) in folders(&folder_of_host) {
            for (model, tags) in folders(&folder_of_namespace) {
                for entry in entries(&tags).unwrap_or_default() {
                    let Ok(tag) = entry.file_name().into_string() else { continue };
                    let name = Name { host: &host, namespace: &namespace, model: &model, tag: &tag }.short();
                    let found = model_of(folder, &name, &entry.path());
                    listed.push(Listed { name, kind: Kind::Ollama, found });
                }
            }
        }
    }
    Ok(listed)
}

fn model_of(folder: &Path, name: &str, manifest: &Path) -> anyhow::Result<Found> {
    let wrong = |what: String| anyhow!("{name} (ollama): its manifest {} is not sound: {what}", manifest.display());
    let text = read_small(manifest, MOST_MANIFEST_BYTES).map_err(wrong)?;
    let layers = serde_json::from_str::<Manifest>(&text).map_err(|error| wrong(error.to_string()))?.layers;
    let of_kind = |kind: &str| layers.iter().find(|layer| layer.kind() == kind);
    let Some(model) = of_kind("model") else {
        bail!(wrong("it names no GGUF file (no layer application/vnd.ollama.image.model)".to_string()));
    };
    if of_kind("adapter").is_some() {
        bail!("{name} (ollama) has an adapter, which would have to be added to its weights: sayfa cannot do that");
    }
    let blob = blob(folder, &model.digest).ok_or_else(|| wrong(format!("'{}' is no digest", model.digest)))?;
    if !blob.exists() {
        bail!("{name} (ollama): its file is not there, {}: `ollama pull {name}` fetches it", blob.display());
    }
    let beside = ["template", "system", "params", "messages", "projector"];
    let beside: Vec<&str> = beside.into_iter().filter(|kind| of_kind(kind).is_some()).collect();
    let note = format!("{name}: what ollama keeps beside the file is not used ({})", beside.join(", "));
    Ok(Found { name: name.to_string(), path: blob, note: (!beside.is_empty()).then_some(note), is_blob: true })
}

/// Where the part with this digest lies. A digest is checked, so that no manifest points outside of the folder.
fn blob(folder: &Path, digest: &str) -> Option<PathBuf> {
    let hex = digest.strip_prefix("sha256:").or_else(|| digest.strip_prefix("sha256-"))?;
    let is_sound = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_sound.then(|| folder.join("blobs").join(format!("sha256-{hex}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_ollama_reads_them() {
        for (text, parts, short) in [
            ("llama3.2", [HOST, "library", "llama3.2", "latest"], "llama3.2:latest"),
            ("llama3.2:1b", [HOST, "library", "llama3.2", "1b"], "llama3.2:1b"),
            ("library/llama3.2:1b", [HOST, "library", "llama3.2", "1b"], "llama3.2:1b"),
            ("me/mine", [HOST, "me", "mine", "latest"], "me/mine:latest"),
            ("registry.ollama.ai/library/x:y", [HOST, "library", "x", "y"], "x:y"),
            ("hf.co/org/repo:Q4_K_M", ["hf.co", "org", "repo", "Q4_K_M"], "hf.co/org/repo:Q4_K_M"),
            ("localhost:5000/a/b", ["localhost:5000", "a", "b", "latest"], "localhost:5000/a/b:latest"),
        ] {
            let name = Name::parse(text).expect(text);
            assert_eq!((name.parts(), name.short().as_str()), (parts, short), "{text}");
        }
        for text in ["", ":tag", "a:", "../x", "a/../b", "a/b/c/d", "/abs/path/x", "a//b", "a b", "x.gguf/.."] {
            assert!(Name::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn only_digests_lead_to_blobs() {
        let hex = "0123456789abcdef".repeat(4);
        let folder = Path::new("m");
        assert_eq!(blob(folder, &format!("sha256:{hex}")), Some(folder.join(format!("blobs/sha256-{hex}"))));
        for digest in ["", "sha256:", "sha256:../../etc/passwd", &hex, &format!("sha256:{hex}0"), "sha256:/etc"] {
            assert_eq!(blob(folder, digest), None, "{digest}");
        }
        let escaping = format!("sha256:{}", "../".repeat(21) + "a");
        assert_eq!((escaping.len(), blob(folder, &escaping)), (71, None));
    }
}
