//! The rules of the house that no compiler checks: who imports whom, who prints, where `unsafe` and SIMD live, how big a
//! room may grow. Reads the sources; each test lists every place that breaks its rule.

use std::fs;
use std::path::Path;

/// Most lines above `mod tests` that any file may have.
const CEILING: usize = 600;

/// Lower ceilings, for the rooms that have one.
const CEILINGS: &[(&str, usize)] = &[
    ("src/main.rs", 40),
    ("src/lib.rs", 60),
    ("src/gguf", 480),
    ("src/model", 460),
    ("src/template", 300),
    ("src/engine", 480),
    ("src/generation", 300),
    ("src/kv/mod.rs", 300),
    ("src/kv/pool.rs", 220),
    ("src/kv/prefix.rs", 200),
    ("src/kv/layout.rs", 200),
    ("src/kv/rows.rs", 260),
    ("src/kv/plan.rs", 200),
    ("src/backend/mod.rs", 260),
    ("src/backend/split.rs", 150),
];

/// Which modules of the crate a room may name. Longest matching path first; a room may always name itself.
const IMPORTS: &[(&str, &[&str])] = &[
    ("src/main.rs", &["cli"]),
    ("src/cli", &["*"]),
    ("src/generation", &["tokenizer", "engine", "sampler", "constraint"]),
    ("src/engine", &["backend", "kv", "sampler", "tokenizer::TokenId"]),
    // The trait and its Batch speak of token ids, blocks and what a backend is opened with.
    ("src/backend", &["model", "quant", "kv::layout", "kv::rows", "tokenizer::TokenId"]),
    ("src/model", &["gguf", "quant"]),
    ("src/gguf", &["quant"]),
    ("src/tokenizer", &["gguf"]),
    ("src/template", &["tokenizer", "gguf"]),
    ("src/sampler", &["tokenizer::TokenId", "constraint"]),
    ("src/constraint", &["tokenizer"]),
    ("src/kv", &[]),
    ("src/quant", &[]),
];

/// Where `unsafe` may be written.
const UNSAFE_ROOMS: &[&str] = &[
    "src/gguf",
    "src/quant",
    "src/backend/cpu/simd",
    "src/backend/cpu/threads",
    "src/backend/cpu/pages",
    "src/backend/cuda",
];

struct Source {
    /// From the repository root, with forward slashes.
    path: String,
    /// All lines above `mod tests`, without comments and the contents of strings.
    code: Vec<String>,
    /// The same lines as written.
    raw: Vec<String>,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    files.sort();
    assert!(files.len() > 10, "the sources were not found under {}", root.display());
    let is_test_room = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/");
    let relative =
        |file: &Path| file.strip_prefix(root).expect("lies under the root").to_string_lossy().replace('\\', "/");
    let files = files.iter().filter(|file| !is_test_room(&relative(file)));
    files
        .map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let raw: Vec<String> = above_tests(&text).iter().map(|line| line.to_string()).collect();
            let code = strip(&raw.join("\n")).lines().map(str::to_owned).collect();
            Source { path: relative(file), code, raw }
        })
        .collect()
}

fn rust_files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The lines above the test module at the foot of a file.
fn above_tests(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let foot = (0..lines.len()).find(|&i| {
        lines[i].trim_start().starts_with("mod tests")
            && i > 0
            && lines[..i].iter().rev().take(3).any(|l| l.contains("#[cfg(test)]"))
    });
    lines[..foot.unwrap_or(lines.len())].to_vec()
}

/// Blanks out comments, strings and character literals, keeping the lines.
fn strip(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let mut i = 0;
    let starts = |i: usize, what: &str| what.chars().enumerate().all(|(n, c)| chars.get(i + n) == Some(&c));
    while i < chars.len() {
        if starts(i, "//") {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if starts(i, "/*") {
            while i < chars.len() && !starts(i, "*/") {
                if chars[i] == '\n' {
                    out.push('\n');
                }
                i += 1;
            }
            i += 2;
        } else if let Some(hashes) = raw_string_at(&chars, i) {
            let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            i += 2 + hashes;
            while i < chars.len() && !starts(i, &end) {
                if chars[i] == '\n' {
                    out.push('\n');
                }
                i += 1;
            }
            i += end.len();
            out.push_str("\"\"");
        } else if chars[i] == '"' {
            i += 1;
            while i < chars.len() && chars[i] != '"' {
                if chars[i] == '\\' {
                    i += 1;
                }
                if chars.get(i) == Some(&'\n') {
                    out.push('\n');
                }
                i += 1;
            }
            i += 1;
            out.push_str("\"\"");
        } else if chars[i] == '\'' && (starts(i + 1, "\\") || chars.get(i + 2) == Some(&'\'')) {
            // A character, not a lifetime.
            i += if starts(i + 1, "\\") { 3 } else { 2 };
            while i < chars.len() && chars[i] != '\'' {
                i += 1;
            }
            i += 1;
            out.push_str("' '");
        } else {
            out.push(chars[i]);
            i += 1;
        }
    }
    out
}

/// The number of hashes of a raw string that starts here.
fn raw_string_at(chars: &[char], i: usize) -> Option<usize> {
    let word_before = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_') && chars[i - 1] != 'b';
    if chars[i] != 'r' || word_before {
        return None;
    }
    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(i + 1 + hashes) == Some(&'"')).then_some(hashes)
}

/// Fails with the list of `FILE:LINE: what` of all sources where `check(source, line number from 0)` finds something.
fn every_line(rule: &str, check: impl Fn(&Source, usize) -> Option<String>) {
    let mut broken = Vec::new();
    for source in &sources() {
        for i in 0..source.code.len() {
            if let Some(what) = check(source, i) {
                broken.push(format!("{}:{}: {what}", source.path, i + 1));
            }
        }
    }
    assert!(broken.is_empty(), "{rule}\n{}", broken.join("\n"));
}

/// Whether `line` holds `word` with no letter, digit or underscore around it.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| !is_part(line[..at].chars().next_back()) && !is_part(line[at + word.len()..].chars().next()))
}

/// Whether `path` is the room or lies in it: `src/gguf` is both `src/gguf.rs` and the folder.
fn in_room(path: &str, room: &str) -> bool {
    path == room || path.strip_prefix(room).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Paths into the crate that a file names, `use` groups taken apart: `crate::kv::{layout, rows}` gives two.
/// In a file right under the crate's root, `super` is the crate too.
fn crate_paths(code: &[String], under_root: bool) -> Vec<(usize, String)> {
    let text = code.join("\n");
    let mut found = Vec::new();
    let starts: &[&str] = if under_root { &["crate::", "sayfa::", "super::"] } else { &["crate::", "sayfa::"] };
    for start in starts {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let line = text[..at].matches('\n').count();
            let after = &text[at + start.len()..];
            found.extend(expand(after).into_iter().map(|path| (line, path)));
        }
    }
    found
}

/// The paths of `a::{b, c::d}::...`, ended by whatever cannot be in a path.
fn expand(text: &str) -> Vec<String> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let mut depth = 1;
        let end = group.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let group = &group[..end.unwrap_or(group.len())];
        let mut items = vec![String::new()];
        let mut depth = 0;
        for c in group.chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            match c {
                ',' if depth == 0 => items.push(String::new()),
                _ => items.last_mut().expect("starts with one").push(c),
            }
        }
        return items.iter().filter(|item| !item.trim().is_empty()).flat_map(|item| expand(item)).collect();
    }
    let name_end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    match rest.strip_prefix("::") {
        Some(rest) => expand(rest).into_iter().map(|tail| format!("{name}::{tail}")).collect(),
        None => vec![name.to_owned()],
    }
}

#[test]
fn rooms_import_only_downwards() {
    let mut broken = Vec::new();
    for source in &sources() {
        if source.path == "src/lib.rs" {
            continue;
        }
        let Some((room, allowed)) = IMPORTS.iter().find(|(room, _)| in_room(&source.path, room)) else {
            broken.push(format!("{}: no rule says what this file may import", source.path));
            continue;
        };
        let itself = room.trim_start_matches("src/").replace('/', "::");
        let under_root = source.path.trim_end_matches("/mod.rs").matches('/').count() == 1;
        for (line, path) in crate_paths(&source.code, under_root) {
            let within =
                |module: &str| path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"));
            if !within(&itself) && !allowed.iter().any(|module| *module == "*" || within(module)) {
                broken.push(format!("{}:{}: imports {path}; {room} may name {allowed:?}", source.path, line + 1));
            }
        }
    }
    assert!(broken.is_empty(), "imports go down only\n{}", broken.join("\n"));
}

#[test]
fn only_the_command_line_talks() {
    const MACROS: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "env::var", "env::args", "env::set_var"];
    const WORDS: &[&str] = &["stdin", "stdout", "stderr"];
    every_line("only cli prints, reads stdin or the environment", |source, i| {
        let line = &source.code[i];
        let talks = MACROS.iter().any(|name| line.contains(name)) || WORDS.iter().any(|word| has_word(line, word));
        let allowed = in_room(&source.path, "src/cli") || source.path == "src/main.rs";
        (talks && !allowed).then(|| line.trim().to_owned())
    });
}

#[test]
fn unsafe_stays_in_its_rooms_and_says_why() {
    every_line("unsafe stays in its rooms", |source, i| {
        let line = &source.code[i];
        let allowed = UNSAFE_ROOMS.iter().any(|room| in_room(&source.path, room));
        (has_word(line, "unsafe") && !allowed).then(|| line.trim().to_owned())
    });
    // Blocks and impls claim something and say why it holds; a public `unsafe fn` says what its callers owe. A private
    // one is held up by the claims at its calls.
    const LINES_ABOVE: usize = 8;
    every_line("each unsafe has its SAFETY line", |source, i| {
        let line = &source.code[i];
        let claims = has_word(line, "unsafe") && !line.contains("unsafe fn") && !line.contains("unsafe_code");
        if !claims && !line.contains("pub unsafe fn") {
            return None;
        }
        let above = &source.raw[i.saturating_sub(LINES_ABOVE)..=i];
        let said = above.iter().any(|line| line.contains("SAFETY") || line.contains("# Safety"));
        (!said).then(|| line.trim().to_owned())
    });
}

#[test]
fn devices_stay_behind_their_doors() {
    every_line("std::arch only under backend/cpu/simd", |source, i| {
        let line = &source.code[i];
        let names_arch = line.contains("std::arch") || line.contains("core::arch");
        let detects = line.contains("is_x86_feature_detected") || line.contains("is_aarch64_feature_detected");
        ((names_arch || detects) && !in_room(&source.path, "src/backend/cpu/simd")).then(|| line.trim().to_owned())
    });
    every_line("cudarc only under backend/cuda", |source, i| {
        let line = &source.code[i];
        (has_word(line, "cudarc") && !in_room(&source.path, "src/backend/cuda")).then(|| line.trim().to_owned())
    });
    every_line("memmap2 only in gguf and the host pool", |source, i| {
        let line = &source.code[i];
        let allowed = ["src/gguf", "src/backend/cpu/pages"].iter().any(|room| in_room(&source.path, room));
        (has_word(line, "memmap2") && !allowed).then(|| line.trim().to_owned())
    });
}

#[test]
fn nothing_is_left_open() {
    every_line("no unwrap, no stubs, no debugging outside tests", |source, i| {
        let words = [".unwrap()", "todo!", "unimplemented!", "dbg!", "#[ignore"];
        words.iter().find(|word| source.code[i].contains(**word)).map(|word| (*word).to_owned())
    });
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("tests"), &mut files);
    rust_files(&root.join("src"), &mut files);
    for file in files {
        let ignored = strip(&fs::read_to_string(&file).unwrap()).contains("#[ignore");
        assert!(!ignored, "{}: no test may be ignored", file.display());
    }
}

#[test]
fn rooms_stay_small() {
    let mut broken = Vec::new();
    for source in &sources() {
        let lower = CEILINGS.iter().find(|(room, _)| in_room(&source.path, room));
        let ceiling = lower.map_or(CEILING, |(_, lines)| *lines);
        if source.raw.len() > ceiling {
            broken.push(format!(
                "{}: {} lines above its tests, the ceiling is {ceiling}",
                source.path,
                source.raw.len()
            ));
        }
    }
    assert!(broken.is_empty(), "rooms stay small\n{}", broken.join("\n"));
}

#[test]
fn this_reader_of_sources_sees_what_it_should() {
    let code = strip(
        "let a = \"unsafe // no\"; // unsafe\nlet b = 'x'; /* unsafe */ unsafe {}\nlet c: &'a str = r#\"dbg!\"#;",
    );
    let lines: Vec<&str> = code.lines().collect();
    assert_eq!(lines, ["let a = \"\"; ", "let b = ' ';  unsafe {}", "let c: &'a str = \"\";"]);
    let paths =
        |text: &str| crate_paths(&[text.to_owned()], false).into_iter().map(|(_, path)| path).collect::<Vec<_>>();
    assert_eq!(paths("use crate::kv::{layout::{A, B}, rows};"), ["kv::layout::A", "kv::layout::B", "kv::rows"]);
    assert_eq!(paths("crate::model::Model::open(x)"), ["model::Model::open"]);
    assert_eq!(paths("pub(crate) fn f() {}"), [""; 0]);
    assert!(has_word("unsafe { x }", "unsafe") && !has_word("unsafe_code", "unsafe"));
    assert!(in_room("src/gguf/mod.rs", "src/gguf") && in_room("src/gguf.rs", "src/gguf"));
    assert!(!in_room("src/ggufx.rs", "src/gguf"));
    assert_eq!(above_tests("a\n#[cfg(test)]\nmod tests {\n}").len(), 2);
}
