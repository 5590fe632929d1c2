//! Finding models that other programs have downloaded, and listing them: fake homes with the layouts of ollama, Hugging
//! Face and llama.cpp around small models, and hostile ones.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

#[path = "support/gguf_writer.rs"]
mod gguf_writer;

use gguf_writer::{Val, Writer};

/// A home without models, to be filled.
struct Home {
    folder: tempfile::TempDir,
}

fn micro(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/micro/{name}.gguf"))
}

fn digest(name: &str) -> String {
    format!("{:0>64}", name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn layer(kind: &str, digest: &str) -> Value {
    json!({"mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": digest, "size": 1})
}

impl Home {
    fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), content).unwrap();
    }

    /// The program with this home, in it, and with nothing of the real environment.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
        for variable in ["SAYFA_MODEL", "SAYFA_MODELS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"] {
            command.env_remove(variable);
        }
        command.env_remove("LLAMA_CACHE").env_remove("XDG_CACHE_HOME").env_remove("XDG_CONFIG_HOME");
        command.env("HOME", self.folder.path()).env("OLLAMA_MODELS", self.path(".ollama/models"));
        command.current_dir(self.folder.path()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        run(self.command(args))
    }

    /// The file that a name leads to, by what it holds.
    fn leads_to(&self, name: &str) -> String {
        let output = self.run(&["inspect", "--json", "-m", name]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let header: Value = serde_json::from_slice(&output.stdout).unwrap();
        let tensors = header["tensors"].as_array().unwrap();
        let matrix = tensors.iter().find(|tensor| tensor["name"] == "blk.0.attn_q.weight").unwrap();
        matrix["type"].as_str().unwrap().to_string()
    }

    /// A model as `ollama pull` leaves it.
    fn pull(&self, manifest: &str, model: &str) {
        let blob = self.path(".ollama/models/blobs").join(format!("sha256-{}", digest(model)));
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        let _ = fs::hard_link(micro(model), &blob).or_else(|_| fs::copy(micro(model), &blob).map(drop));
        let layers = [
            layer("model", &format!("sha256:{}", digest(model))),
            layer("template", &format!("sha256:{}", digest("template"))),
            layer("params", &format!("sha256:{}", digest("params"))),
        ];
        self.manifest(manifest, &json!({"schemaVersion": 2, "config": {}, "layers": layers}).to_string());
    }

    fn manifest(&self, path: &str, text: &str) {
        self.write(&format!(".ollama/models/manifests/{path}"), text);
    }

    /// A repository as the hub's client leaves it: links into `blobs`.
    fn cache(&self, root: &str, repository: &str, files: &[(&str, &str)]) {
        let folder = format!("{root}/models--{}", repository.replace('/', "--"));
        self.write(&format!("{folder}/refs/main"), "0123abc");
        fs::create_dir_all(self.path(&format!("{folder}/blobs"))).unwrap();
        for (file, model) in files {
            let blob = self.path(&format!("{folder}/blobs/{}", digest(file)));
            let _ = fs::hard_link(micro(model), &blob).or_else(|_| fs::copy(micro(model), &blob).map(drop));
            let link = self.path(&format!("{folder}/snapshots/0123abc/{file}"));
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&blob, link).unwrap();
        }
    }

    fn models(&self) -> Vec<Value> {
        let output = self.run(&["models", "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        listed["models"].as_array().unwrap().clone()
    }
}

fn run(command: Command) -> Output {
    assert_cmd::Command::from_std(command).timeout(Duration::from_secs(60)).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn assert_refused(output: &Output, words: &[&str]) {
    let said = stderr(output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(output.stdout.is_empty() && said.chars().count() <= 1001, "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

fn fifo(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn what_ollama_has_pulled_is_found_by_its_names() {
    let home = Home::new();
    home.pull("registry.ollama.ai/library/llama3.2/1b", "Q4_0");
    home.pull("registry.ollama.ai/library/llama3.2/latest", "Q8_0");
    home.pull("registry.ollama.ai/me/mine/v1", "Q5_0");
    home.pull("hf.co/org/Repo-GGUF/Q4_K_M", "Q6_K");
    home.pull("localhost:5000/a/b/latest", "F16");
    for (name, of_type) in [
        ("llama3.2:1b", "Q4_0"),
        ("library/llama3.2:1b", "Q4_0"),
        ("registry.ollama.ai/library/llama3.2:1b", "Q4_0"),
        ("LLAMA3.2:1B", "Q4_0"),
        ("llama3.2", "Q8_0"),
        ("llama3.2:latest", "Q8_0"),
        ("me/mine:v1", "Q5_0"),
        ("hf.co/org/Repo-GGUF:Q4_K_M", "Q6_K"),
        ("hf.co/org/repo-gguf:q4_k_m", "Q6_K"),
        ("localhost:5000/a/b", "F16"),
    ] {
        assert_eq!(home.leads_to(name), of_type, "{name}");
    }
    // Without the variable it is the folder in the home.
    let mut command = home.command(&["inspect", "-m", "llama3.2:1b"]);
    command.env_remove("OLLAMA_MODELS");
    let output = run(command);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("llama3.2:1b: GGUF version 3"), "{said}");
}

#[test]
fn an_answer_of_a_pulled_model_is_that_of_its_file_and_messages_call_it_by_its_name() {
    let home = Home::new();
    home.pull("registry.ollama.ai/library/small/latest", "Q4_0");
    let flags = ["-p", "the rain", "-n", "8", "--temp", "0", "--raw"];
    let by_name = home.run(&[&["run", "-m", "small"], &flags[..]].concat());
    let by_path = home.run(&[&["run", "-m", micro("Q4_0").to_str().unwrap()], &flags[..]].concat());
    assert!(by_name.status.success() && stderr(&by_name).is_empty(), "{}", stderr(&by_name));
    assert_eq!(by_name.stdout, by_path.stdout);
    let verbose = stderr(&home.run(&[&["run", "-v", "-m", "small"], &flags[..]].concat()));
    assert!(verbose.contains("small:latest: what ollama keeps beside the file is not used (template, params)"));
    let refused = home.run(&["run", "-m", "small", "-p", "a", "--system", "s"]);
    assert_refused(&refused, &["--system: small:latest has no chat template"]);
    let plan = home.run(&["plan", "-m", "small", "-c", "64"]);
    assert!(String::from_utf8(plan.stdout).unwrap().starts_with("small:latest\n"));
}

#[test]
fn pulled_models_that_are_not_sound_are_one_sentence() {
    let home = Home::new();
    let library = |name: &str| format!("registry.ollama.ai/library/{name}/latest");
    let of = |layers: &[Value]| json!({"layers": layers}).to_string();
    let known = format!("sha256:{}", digest("text"));
    home.write(&format!(".ollama/models/blobs/sha256-{}", digest("text")), "<html>");
    let deep = "[".repeat(200_000);
    let huge = " ".repeat(2 << 20);
    for (name, manifest, words) in [
        ("not-json", "hello", &["not-json:latest", "manifest", "not sound"][..]),
        ("empty", "", &["not sound"]),
        ("list", "[1, 2]", &["not sound"]),
        ("deep", &deep, &["not sound"]),
        ("huge", &huge, &["more than 1048576 bytes"]),
        ("no-model", &of(&[layer("tensor; name=x", &known)]), &["it names no GGUF file"]),
        ("escape", &of(&[layer("model", "sha256:../../../../etc/passwd")]), &["is no digest"]),
        ("adapted", &of(&[layer("model", &known), layer("adapter", &known)]), &["adapted:latest", "adapter"]),
        (
            "missing",
            &of(&[layer("model", &format!("sha256:{}", digest("gone")))]),
            &["missing:latest", "is not there", "`ollama pull missing:latest`"],
        ),
        ("page", &of(&[layer("model", &known)]), &["page:latest", "sha256-", "web page"]),
    ] {
        home.manifest(&library(name), manifest);
        assert_refused(&home.run(&["run", "-p", "a", "-m", name]), words);
    }
    fifo(&home.path(&format!(".ollama/models/manifests/{}", library("pipe"))));
    assert_refused(&home.run(&["run", "-p", "a", "-m", "pipe"]), &["no regular file"]);
    fs::create_dir_all(home.path(&format!(".ollama/models/manifests/{}", library("folder")))).unwrap();
    assert_refused(&home.run(&["run", "-p", "a", "-m", "folder"]), &["no regular file"]);
    // A circle of folders ends, and so does a listing of all of it.
    symlink(".", home.path(".ollama/models/manifests/registry.ollama.ai/circle")).unwrap();
    symlink("..", home.path(".ollama/models/manifests/registry.ollama.ai/library/up")).unwrap();
    let models = home.models();
    assert_eq!(models.len(), 12);
    assert!(models.iter().all(|model| model["runs"] == false && model["reason"].is_string()), "{models:?}");
}

#[test]
fn files_of_the_hugging_face_cache_are_found_by_repository_and_type() {
    let home = Home::new();
    let root = ".cache/huggingface/hub";
    home.cache(root, "org/Several-GGUF", &[("m-Q4_K_M.gguf", "Q4_K"), ("m-Q8_0.gguf", "Q8_0"), ("m-f16.gguf", "F16")]);
    home.cache(root, "org/one", &[("only.gguf", "Q5_0"), ("mmproj-only.gguf", "F32")]);
    home.cache(root, "org/unclear", &[("a.gguf", "Q5_0"), ("b.gguf", "Q5_1")]);
    home.cache(root, "org/tensors", &[("model.safetensors", "F32")]);
    for (name, of_type) in [
        ("org/Several-GGUF", "Q4_K"),
        ("org/several-gguf:q8_0", "Q8_0"),
        ("hf.co/org/Several-GGUF:F16", "F16"),
        ("org/Several-GGUF/m-f16.gguf", "F16"),
        ("org/one", "Q5_0"),
        ("org/unclear/b.gguf", "Q5_1"),
    ] {
        assert_eq!(home.leads_to(name), of_type, "{name}");
    }
    let refused = |name: &str| home.run(&["run", "-p", "a", "-m", name]);
    assert_refused(&refused("org/unclear"), &["org/unclear may be a.gguf, b.gguf", "org/unclear/FILE"]);
    assert_refused(&refused("org/one:Q2_K"), &["no file of type Q2_K on this disk, but only.gguf"]);
    assert_refused(&refused("org/tensors"), &["without a GGUF file"]);
    assert_refused(&refused("org/other"), &["no such name", ".cache/huggingface/hub (hf cache)"]);
    // The three variables name the folder, the first of them first.
    home.cache("elsewhere/hub", "org/one", &[("only.gguf", "F16")]);
    home.cache("direct", "org/one", &[("only.gguf", "F32")]);
    let found = |variables: &[(&str, &str)]| {
        let mut command = home.command(&["inspect", "-m", "org/one"]);
        command.envs(variables.iter().map(|(name, value)| (name, home.path(value))));
        String::from_utf8(run(command).stdout).unwrap()
    };
    assert!(found(&[("HF_HOME", "elsewhere")]).contains("F16"));
    assert!(found(&[("HF_HOME", "elsewhere"), ("HF_HUB_CACHE", "direct")]).contains(" F32 "));
}

#[test]
fn split_models_of_the_cache_are_opened_by_their_first_part() {
    let home = Home::new();
    let part = |no: u16, tensor: &str| {
        let file = Writer::new().key("general.architecture", Val::str("llama"));
        let file = file.key("split.no", Val::u16(no)).key("split.count", Val::u16(2));
        file.key("split.tensors.count", Val::i32(2)).f32_tensor(tensor, &[1], &[1.0]).build()
    };
    home.cache(".cache/huggingface/hub", "org/split", &[]);
    let folder = ".cache/huggingface/hub/models--org--split";
    fs::create_dir_all(home.path(&format!("{folder}/snapshots/0123abc/Q8_0"))).unwrap();
    for (no, tensor) in [(0, "a"), (1, "b")] {
        home.write(&format!("{folder}/blobs/{tensor}"), part(no, tensor));
        let link = format!("{folder}/snapshots/0123abc/Q8_0/m-Q8_0-0000{}-of-00002.gguf", no + 1);
        symlink(format!("../../../blobs/{tensor}"), home.path(&link)).unwrap();
    }
    let output = home.run(&["inspect", "--json", "-m", "org/split:q8_0"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let header: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(header["tensors"].as_array().unwrap().len(), 2);
    assert_eq!(home.models()[0]["name"], "org/split:Q8_0");
}

#[test]
fn a_cache_that_is_not_sound_is_one_sentence_and_never_a_hang() {
    let home = Home::new();
    let root = ".cache/huggingface/hub";
    for (name, main, words) in [
        ("org/escape", "../../../../etc", &["refs/main", "not a revision"][..]),
        ("org/absolute", "/etc", &["not a revision"]),
        ("org/gone", "fedcba", &["fedcba is not there", "not complete"]),
        ("org/long", &"a".repeat(5000), &["more than 1024 bytes"]),
        ("org/binary", "\u{0}\u{1}", &["not a revision"]),
    ] {
        home.cache(root, name, &[("m.gguf", "Q4_0")]);
        home.write(&format!("{root}/models--{}/refs/main", name.replace('/', "--")), main);
        assert_refused(&home.run(&["run", "-p", "a", "-m", name]), words);
    }
    home.cache(root, "org/pipe", &[("m.gguf", "Q4_0")]);
    fs::remove_file(home.path(&format!("{root}/models--org--pipe/refs/main"))).unwrap();
    assert_eq!(home.leads_to("org/pipe"), "Q4_0", "the only snapshot needs no name");
    fifo(&home.path(&format!("{root}/models--org--pipe/refs/main")));
    assert_refused(&home.run(&["run", "-p", "a", "-m", "org/pipe"]), &["no regular file"]);

    home.cache(root, "org/circle", &[("m.gguf", "Q4_0")]);
    let snapshot = home.path(&format!("{root}/models--org--circle/snapshots/0123abc"));
    symlink(".", snapshot.join("again")).unwrap();
    symlink("nowhere", snapshot.join("dangling-Q8_0.gguf")).unwrap();
    fifo(&snapshot.join("fifo-F16.gguf"));
    assert_eq!(home.leads_to("org/circle/m.gguf"), "Q4_0");
    assert_refused(&home.run(&["run", "-p", "a", "-m", "org/circle:Q8_0"]), &["this link leads to nowhere"]);
    assert_refused(&home.run(&["run", "-p", "a", "-m", "org/circle:F16"]), &["not a regular file"]);
    let circle = home.models().into_iter().filter(|model| model["name"].as_str().unwrap().starts_with("org/circle"));
    assert_eq!(circle.count(), 3);
}

#[test]
fn downloads_of_llama_cpp_are_found_in_its_folder() {
    let home = Home::new();
    fs::create_dir_all(home.path(".cache/llama.cpp")).unwrap();
    for (file, model) in [("org_repo_m-Q4_0.gguf", "Q4_0"), ("org_repo_m-Q8_0.gguf", "Q8_0")] {
        symlink(micro(model), home.path(".cache/llama.cpp").join(file)).unwrap();
    }
    home.write(".cache/llama.cpp/manifest=org=repo=latest.json", "{}");
    assert_eq!(home.leads_to("org/repo"), "Q4_0");
    assert_eq!(home.leads_to("org/repo:q8_0"), "Q8_0");
    assert_eq!(home.leads_to("org_repo_m-Q8_0"), "Q8_0");
    // Later versions keep the layout of Hugging Face in the folder that the variable names.
    home.cache("lc", "org/repo", &[("m.gguf", "F16")]);
    let mut command = home.command(&["inspect", "-m", "org/repo"]);
    command.env("LLAMA_CACHE", home.path("lc"));
    assert!(String::from_utf8(run(command).stdout).unwrap().contains("F16"));
}

#[test]
fn a_path_comes_first_then_the_folders_of_sayfa_then_ollama_then_the_caches() {
    let home = Home::new();
    home.cache(".cache/huggingface/hub", "org/x", &[("x.gguf", "F32")]);
    assert_eq!(home.leads_to("org/x"), "F32");
    home.pull("registry.ollama.ai/org/x/latest", "Q8_0");
    assert_eq!(home.leads_to("org/x"), "Q8_0");
    fs::create_dir_all(home.path("models/org")).unwrap();
    symlink(micro("Q5_0"), home.path("models/org/x.gguf")).unwrap();
    assert_eq!(home.leads_to("org/x"), "Q5_0");
    fs::create_dir_all(home.path("org")).unwrap();
    symlink(micro("Q4_0"), home.path("org/x")).unwrap();
    assert_eq!(home.leads_to("org/x"), "Q4_0");
}

#[test]
fn a_name_that_is_not_there_is_told_where_was_looked_and_what_is_near() {
    let home = Home::new();
    home.pull("registry.ollama.ai/library/llama3.2/1b", "Q4_0");
    let refused = home.run(&["run", "-p", "a", "-m", "lama3.2:1b"]);
    assert_refused(&refused, &["-m lama3.2:1b", "(ollama)", "did you mean llama3.2:1b?", "`sayfa models`"]);
    let refused = home.run(&["run", "-p", "a", "-m", "something-else"]);
    assert!(!stderr(&refused).contains("did you mean"), "{}", stderr(&refused));
    let mut command = home.command(&["run", "-p", "a"]);
    command.env("SAYFA_MODEL", "llama3.2");
    assert_refused(&run(command), &["$SAYFA_MODEL llama3.2", "did you mean llama3.2:1b?"]);
}

/// Everything of the home, to see that nothing is written.
fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let about = entry.path().symlink_metadata().unwrap();
        found.push(format!("{} {} {:?}", entry.path().display(), about.len(), about.modified().unwrap()));
        if about.is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn models_lists_what_there_is_in_80_columns_and_writes_nothing() {
    let home = Home::new();
    fs::create_dir_all(home.path("models")).unwrap();
    symlink(micro("Q4_0"), home.path("models/small.gguf")).unwrap();
    home.write("models/cut.gguf", &fs::read(micro("Q4_0")).unwrap()[..1000]);
    let other = Writer::new().key("general.architecture", Val::str("gemma3")).f32_tensor("a", &[1], &[1.0]).build();
    home.write("models/other.gguf", other);
    home.write("models/notes.txt", "no model");
    fifo(&home.path("models/fifo.gguf"));
    home.pull("registry.ollama.ai/library/llama3.2/1b", "Q8_0");
    let repository = "an-organization/A-Repository-With-A-Long-Name-GGUF";
    home.cache(".cache/huggingface/hub", repository, &[("m-Q4_K_M.gguf", "Q4_K")]);
    let before = tree(home.folder.path());
    let output = home.run(&["models"]);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    assert!(!output.stdout.contains(&0x1b));
    let row = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_string();
    let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    assert_eq!(words(&row("MODEL")), ["MODEL", "SIZE", "TYPE", "FITS", "WHERE", "RUNS", "HERE"]);
    assert_eq!(words(&row("small")), ["small", "317.3", "KiB", "Q4_0", "yes", "folder", "yes"]);
    assert_eq!(words(&row("llama3.2:1b")), ["llama3.2:1b", "589.3", "KiB", "Q8_0", "yes", "ollama", "yes"]);
    assert_eq!(words(&row("other")), ["other", "0.1", "KiB", "F32", "-", "folder", "no:", "gemma3"]);
    let after = |name: &str| said.lines().skip_while(|line| !line.starts_with(name)).nth(1).unwrap().to_string();
    assert!(after("cut").starts_with("  ") && after("fifo").contains("not a regular file"), "{said}");
    assert_eq!(words(&after(&format!("{repository}:Q4_K_M")))[2..], ["Q4_K_M", "yes", "hf", "cache", "yes"]);
    assert!(said.contains("FITS: on the CPU") && said.contains("sayfa plan"));

    let models = home.models();
    let names: Vec<&str> = models.iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cut", "fifo", "other", "small", "llama3.2:1b", &format!("{repository}:Q4_K_M")]);
    for model in &models {
        let runs = ["small", "llama3.2:1b", names[5]].contains(&model["name"].as_str().unwrap());
        assert_eq!((model["runs"] == true, model["fits"] == true, model["reason"].is_null()), (runs, runs, runs));
        if runs {
            home.leads_to(model["name"].as_str().unwrap());
            assert_eq!(model["context_tokens"], 512);
            assert!(model["needed_bytes"].as_u64().unwrap() > 0 && model["weights_bytes"].as_u64().unwrap() > 0);
        }
    }
    assert_eq!(tree(home.folder.path()), before, "nothing is written");
}

#[test]
fn where_there_are_no_models_the_list_says_where_it_looked() {
    let home = Home::new();
    let output = home.run(&["models"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(stderr(&output).contains("no models in models, ") && stderr(&output).lines().count() == 1);
    assert!(home.models().is_empty());
}

#[test]
fn names_with_control_characters_do_not_reach_the_terminal_of_who_lists_them() {
    let home = Home::new();
    fs::create_dir_all(home.path("models")).unwrap();
    symlink(micro("Q4_0"), home.path("models/\u{1b}[31mred\n.gguf")).unwrap();
    let said = String::from_utf8(run(home.command(&["models"])).stdout).unwrap();
    assert!(
        said.contains("[31mred") && !said.contains('\u{1b}') && said.lines().any(|line| line.contains("[31mred ")),
        "{said}"
    );
}

#[test]
fn a_model_that_memory_cannot_hold_is_listed_as_such() {
    let home = Home::new();
    fs::create_dir_all(home.path("models")).unwrap();
    symlink(micro("Q4_0"), home.path("models/small.gguf")).unwrap();
    let mut shell = Command::new("sh");
    // Less than the program itself takes.
    shell.args(["-c", "ulimit -v 40000; exec \"$0\" models", env!("CARGO_BIN_EXE_sayfa")]);
    shell.env("HOME", home.folder.path()).env_remove("SAYFA_MODELS").current_dir(home.folder.path());
    shell.env("OLLAMA_MODELS", home.path("none")).env_remove("HF_HOME").env_remove("HF_HUB_CACHE");
    let said = String::from_utf8(run(shell).stdout).unwrap();
    let row = said.lines().find(|line| line.starts_with("small")).unwrap_or_default();
    assert!(row.contains(" no ") && said.contains("address space limit"), "{said}");
}
