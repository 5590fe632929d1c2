//! The configuration file as a user meets it: the real program with a home of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

struct Home {
    folder: TempDir,
}

impl Home {
    fn new(config: &str) -> Home {
        let home = Home { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(home.file().parent().unwrap()).unwrap();
        fs::write(home.file(), config).unwrap();
        home
    }

    fn empty() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join(".config/sayfa/config.toml")
    }

    /// The program with this home, and no variables of whoever runs the tests.
    fn command(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
        command.args(args).current_dir(self.path()).env("HOME", self.path());
        for name in ["SAYFA_CONFIG", "SAYFA_MODEL", "SAYFA_MODELS", "SAYFA_SIMD", "XDG_CONFIG_HOME"] {
            command.env_remove(name);
        }
        let mut command = assert_cmd::Command::from_std(command);
        command.timeout(Duration::from_secs(60));
        command
    }

    fn stdout(&self, args: &[&str]) -> String {
        stdout(&mut self.command(args))
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(&[&["config", "--json"], args].concat())).unwrap()
    }

    /// What standard error says when the program refuses with this code.
    fn refused(&self, code: i32, args: &[&str]) -> String {
        refused(code, &mut self.command(args))
    }
}

fn stdout(command: &mut assert_cmd::Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(code: i32, command: &mut assert_cmd::Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert!(output.stdout.is_empty() && said.lines().count() == 1, "{command:?}: {said}");
    said
}

fn micro() -> String {
    format!("{}/tests/data/micro/F32.gguf", env!("CARGO_MANIFEST_DIR"))
}

fn setting(json: &Value, key: &str) -> (Value, String) {
    let entry = &json["settings"][key];
    (entry["value"].clone(), entry["source"].as_str().unwrap_or_else(|| panic!("no {key} in {json}")).to_string())
}

#[test]
fn tests_do_not_read_the_configuration_of_their_user() {
    // Of .cargo/config.toml, for all tests that set nothing themselves.
    assert_eq!(std::env::var("SAYFA_CONFIG").as_deref(), Ok(""));
}

#[test]
fn defaults_and_presets_change_what_a_command_does() {
    let model = micro();
    let config = format!(
        "model = '{model}'\nraw = true\nseed = 7\njson = true\n[run]\npredict = 3\n[presets.long]\npredict = 5\n"
    );
    let home = Home::new(&config);
    let answer = |args: &[&str]| -> Value {
        let args = [&["run", "-p", "the rain", "--ignore-eos", "--no-stdin"], args].concat();
        serde_json::from_str(&home.stdout(&args)).unwrap()
    };
    let of = |answer: &Value| (answer["completion_tokens"].as_u64(), answer["seed"].as_u64());
    assert_eq!(of(&answer(&[])), (Some(3), Some(7)));
    assert_eq!(of(&answer(&["--preset", "long"])), (Some(5), Some(7)));
    assert_eq!(of(&answer(&["--preset", "long", "-n", "2", "-s", "8"])), (Some(2), Some(8)));
    // Also where the command is not named.
    let unnamed = home.stdout(&["-p", "the rain", "--ignore-eos", "--no-stdin"]);
    assert_eq!(of(&serde_json::from_str(&unnamed).unwrap()), (Some(3), Some(7)));
    let plain = home.stdout(&["run", "-p", "the rain", "--no-stdin", "--json=false", "-n", "1"]);
    assert!(!plain.starts_with('{'), "{plain}");
    let said = home.refused(1, &["run", "-p", "x", "--no-config", "--no-stdin"]);
    assert!(said.contains("no model"), "{said}");
}

#[test]
fn the_chat_takes_its_defaults_too() {
    let model = micro();
    let home = Home::new(&format!("model = '{model}'\nno-such-key = 1\n"));
    let said = home.refused(2, &["chat"]);
    assert!(said.contains("line 2: there is no key 'no-such-key'"), "{said}");
    fs::write(home.file(), format!("[chat]\nmodel = '{model}'\npredict = 2\nctx-size = 64\n")).unwrap();
    let output = home.command(&["chat", "-v"]).write_stdin("hello\n").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("F32.gguf"), "{said}");
}

#[test]
fn the_environment_stands_between_a_preset_and_the_rest_of_the_file() {
    let home = Home::new("model = 'of-file'\n[run]\nmodel = 'of-run'\n[presets.p]\nmodel = 'of-preset'\n");
    let model = |args: &[&str], variable: &str| {
        let mut command = home.command(&[&["config", "--json"], args].concat());
        let json = serde_json::from_str(&stdout(command.env("SAYFA_MODEL", variable))).unwrap();
        let (value, source) = setting(&json, "model");
        format!("{} {source}", value.as_str().unwrap())
    };
    assert_eq!(model(&["run"], ""), "of-run file");
    assert_eq!(model(&["chat"], ""), "of-file file");
    assert_eq!(model(&["run"], "of-variable"), "of-variable environment");
    assert_eq!(model(&["--preset", "p", "run"], "of-variable"), "of-preset preset");
    assert_eq!(model(&["run", "--preset", "p", "-m", "of-flag"], "of-variable"), "of-flag flag");
}

#[test]
fn config_tells_every_value_and_where_it_came_from() {
    let home = Home::new("temp = 0.5\nstop = ['a', 'b']\n\n[presets.fast]\nthreads = 2\nmlock = true\n");
    let json = home.json(&["--preset", "fast", "-c", "99"]);
    assert_eq!((json["command"].as_str(), json["preset"].as_str()), (Some("chat"), Some("fast")));
    assert_eq!(json["file"].as_str(), home.file().to_str());
    assert_eq!(json["presets"], serde_json::json!(["fast"]));
    for (key, value, source) in [
        ("temp", serde_json::json!(0.5), "file"),
        ("stop", serde_json::json!(["a", "b"]), "file"),
        ("threads", serde_json::json!(2), "preset"),
        ("mlock", serde_json::json!(true), "preset"),
        ("ctx-size", serde_json::json!(99), "flag"),
        ("top-k", serde_json::json!(40), "default"),
        ("no-mmap", serde_json::json!(false), "default"),
        ("model", Value::Null, "default"),
        ("kv-type", serde_json::json!("f16"), "default"),
    ] {
        assert_eq!(setting(&json, key), (value, source.to_string()), "{key}");
    }
    assert_eq!(json["settings"]["threads"]["line"], 5);
    assert!(json["settings"]["preset"].is_null());
    // A prompt makes it `run`, as without `config`; --json counts wherever it stands.
    let json: Value = serde_json::from_str(&home.stdout(&["config", "-p", "hi", "--mlock=false", "--json"])).unwrap();
    assert_eq!((json["command"].as_str(), setting(&json, "mlock").1.as_str()), (Some("run"), "flag"));

    let table = home.stdout(&["config", "--preset", "fast", "run", "--top-k", "5"]);
    let row = |key: &str| {
        let row = table.lines().find(|line| line.trim_start().split(' ').next() == Some(key)).unwrap_or_default();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("command"), "command run");
    assert_eq!(row("preset"), "preset fast, of fast");
    assert_eq!(row("temp"), "temp 0.5 file, line 1");
    assert_eq!(row("threads"), "threads 2 preset, line 5");
    assert_eq!(row("top-k"), "top-k 5 flag");
    assert_eq!(row("top-p"), "top-p 0.95 default");
    // The sources stand in one column.
    let column = |key: &str| table.lines().find(|line| line.trim_start().starts_with(key)).unwrap().find("default");
    assert!(column("top-p").is_some() && column("top-p") == column("min-p"), "{table}");
    assert!(!table.contains('…'), "nothing is cut: {table}");
}

#[test]
fn config_finds_what_is_wrong_anywhere_in_the_file() {
    let home = Home::new("[presets.a]\ntemp = 0\n[presets.b]\n\ntop-p = 7\n");
    assert!(home.command(&["tokenize", "--help"]).output().unwrap().status.success());
    let said = home.refused(2, &["config"]);
    assert!(said.contains("config.toml, line 5: top-p must be a number from 0 to 1, not '7'"), "{said}");
    let said = home.refused(2, &["run", "-p", "x", "--preset", "b"]);
    assert!(said.contains("config.toml, line 5: top-p must be"), "{said}");
    let said = home.refused(2, &["run", "-p", "x", "--preset", "c"]);
    assert!(said.contains("there is no preset 'c' in") && said.contains("it has a, b"), "{said}");
    let said = home.refused(2, &["config", "completions", "bash"]);
    assert!(said.contains("'completions' takes nothing"), "{said}");
}

#[test]
fn an_error_about_a_flag_says_that_the_file_set_it() {
    let home = Home::new(&format!("model = '{}'\n\nkeep = 5\n", micro()));
    let said = home.refused(2, &["run", "-p", "x", "--no-stdin"]);
    assert!(said.contains("--keep says nothing") && said.contains("(keep is set in "), "{said}");
    assert!(said.trim_end().ends_with("config.toml, line 3)"), "{said}");
    fs::write(home.file(), "model = '~/nowhere.gguf'").unwrap();
    let said = home.refused(1, &["run", "-p", "x", "--no-stdin"]);
    // What a shell would have made of it.
    assert!(said.contains(&format!("-m {}/nowhere.gguf", home.path().display())), "{said}");
    assert!(said.contains("model is set in"), "{said}");
}

#[test]
fn the_file_is_found_where_it_is_said_to_be() {
    let home = Home::new("temp = 0.1\n");
    let other = home.path().join("other.toml");
    fs::write(&other, "temp = 0.2\n").unwrap();
    let xdg = home.path().join("xdg");
    fs::create_dir_all(xdg.join("sayfa")).unwrap();
    fs::write(xdg.join("sayfa/config.toml"), "temp = 0.3\n").unwrap();
    let temp = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = home.command(&[&["config", "--json"], args].concat());
        command.envs(variables.iter().copied());
        setting(&serde_json::from_str(&stdout(&mut command)).unwrap(), "temp").0
    };
    let (other, xdg) = (other.to_str().unwrap(), xdg.to_str().unwrap());
    assert_eq!(temp(&[], &[]), 0.1);
    assert_eq!(temp(&[("XDG_CONFIG_HOME", xdg)], &[]), 0.3);
    assert_eq!(temp(&[("XDG_CONFIG_HOME", "relative")], &[]), 0.1);
    assert_eq!(temp(&[("XDG_CONFIG_HOME", xdg), ("SAYFA_CONFIG", other)], &[]), 0.2);
    assert_eq!(temp(&[("SAYFA_CONFIG", "")], &[]), 0.8);
    assert_eq!(temp(&[("SAYFA_CONFIG", "/dev/null")], &[]), 0.8);
    assert_eq!(temp(&[("SAYFA_CONFIG", "")], &["--config", other]), 0.2);
    assert_eq!(temp(&[], &["--no-config"]), 0.8);
    assert_eq!(home.stdout(&["config", "--path"]).trim_end(), home.file().to_str().unwrap());
    assert_eq!(home.stdout(&["config", "--path", "--config", other]).trim_end(), other);
}

#[test]
fn a_file_that_cannot_be_read_is_one_sentence_and_no_hang() {
    let home = Home::new("");
    let put = |bytes: &[u8]| fs::write(home.file(), bytes).unwrap();
    put(b"temp = \xff\n");
    assert!(home.refused(2, &["inspect", "x"]).contains("config.toml: the configuration is not UTF-8 at byte 7"));
    put(b"temp = \n");
    assert!(home.refused(2, &["inspect", "x"]).contains("config.toml, line 1: not TOML: "));
    put(&b"#".repeat((1 << 20) + 1));
    assert!(home.refused(2, &["inspect", "x"]).contains("config.toml: more than 1 MiB"));
    put(format!("stop = {}{}", "[".repeat(100_000), "]".repeat(100_000)).as_bytes());
    assert!(home.refused(2, &["inspect", "x"]).contains("config.toml, line 1: "));
    put(b"\xef\xbb\xbftemp = 0\r\ntop-k = 1\r\n");
    assert_eq!(setting(&home.json(&[]), "top-k").0, 1);
    // Help needs no file.
    put(b"[");
    assert!(home.command(&["run", "--help"]).output().unwrap().status.success());

    fs::remove_file(home.file()).unwrap();
    assert_eq!(home.json(&[])["file"], Value::Null);
    fs::create_dir(home.file()).unwrap();
    assert!(home.refused(2, &["inspect", "x"]).contains("config.toml: no regular file"));
    fs::remove_dir(home.file()).unwrap();
    let pipe = Command::new("mkfifo").arg(home.file()).status().unwrap();
    assert!(pipe.success());
    assert!(home.refused(2, &["inspect", "x"]).contains("config.toml: no regular file"));
    fs::remove_file(home.file()).unwrap();
    // One that is named must be there.
    let said = home.refused(2, &["inspect", "x", "--config", "nowhere.toml"]);
    assert!(said.contains("nowhere.toml: the configuration cannot be read"), "{said}");
    let said = home.refused(2, &["inspect", "x", "--preset", "p"]);
    assert!(said.contains("--preset p needs a configuration file") && said.contains("config.toml"), "{said}");
    let mut command = home.command(&["inspect", "x", "--preset", "p"]);
    assert!(refused(2, command.env("SAYFA_CONFIG", "")).contains("$SAYFA_CONFIG is empty"));
    assert!(home.refused(2, &["inspect", "x", "--preset", "p", "--no-config"]).contains("cannot be used with"));
}

#[test]
fn an_example_is_written_once() {
    let home = Home::empty();
    assert_eq!(home.stdout(&["config", "--init"]).trim_end(), home.file().to_str().unwrap());
    let example = fs::read_to_string(home.file()).unwrap();
    assert!(example.contains("[presets.precise]"), "{example}");
    assert_eq!(fs::metadata(home.file().parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    fs::write(home.file(), "temp = 0\n").unwrap();
    let said = home.refused(1, &["config", "--init"]);
    assert!(said.contains("there is a file already"), "{said}");
    assert_eq!(fs::read_to_string(home.file()).unwrap(), "temp = 0\n");
}
