//! The committed PTX is that of the committed kernels. Whether the compilers agree, `scripts/build_kernels.sh --check` says.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// As `sources_hash` in scripts/build_kernels.sh: the contents of all sources, in the order of their names.
fn hash_of_sources() -> String {
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "cu" || extension == "cuh");
    let mut sources: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.retain(is_source);
    sources.sort();
    assert!(sources.len() > 5, "the kernels were not found in {}", folder().display());
    let mut hasher = Sha256::new();
    for source in sources {
        hasher.update(fs::read(source).unwrap());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ptx(compute_capability: u32) -> String {
    fs::read_to_string(folder().join(format!("sayfa_{compute_capability}.ptx"))).unwrap()
}

#[test]
fn the_ptx_is_that_of_the_sources() {
    for target in [75, 80] {
        assert_eq!(
            ptx(target).lines().next(),
            Some(format!("// sources: {}", hash_of_sources()).as_str()),
            "kernels/sayfa_{target}.ptx is stale: run scripts/build_kernels.sh"
        );
    }
}

#[test]
fn drivers_from_525_on_take_the_ptx() {
    for target in [75, 80] {
        let text = ptx(target);
        let has_line = |line: &str| text.lines().any(|other| other.trim() == line);
        assert!(has_line(".version 8.0") && has_line(&format!(".target sm_{target}")), "sayfa_{target}.ptx");
        // NVRTC 12.0 leaves calls to intrinsics that it does not know, and only the assembler notices.
        let extern_function = text.lines().find(|line| line.starts_with(".extern .func"));
        assert_eq!(extern_function, None, "sayfa_{target}.ptx calls a function that nobody defines");
    }
}

#[test]
fn every_gpu_gets_the_same_kernels() {
    let kernels = |text: &str| {
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|line| line.split_once(".entry "))
            .map(|(_, rest)| rest.trim_end_matches('(').to_string())
            .collect();
        names.sort();
        names
    };
    assert_eq!(kernels(&ptx(75)), kernels(&ptx(80)));
    assert!(kernels(&ptx(80)).contains(&"add_norm".to_string()));
}
