//! What the program says about itself: help of every command (snapshots, and the width of a terminal), completions in a
//! real bash, man pages.
//!
//! A help text that changed fails here; `INSTA_UPDATE=always cargo test --release --test help` renews the snapshots.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SAYFA: &str = env!("CARGO_BIN_EXE_sayfa");

fn sayfa(args: &[&str]) -> Output {
    // Nothing is a terminal, so that the width comes from the environment.
    let mut command = Command::new(SAYFA);
    command.args(args).env("COLUMNS", "80").env("SAYFA_CONFIG", "").stdin(Stdio::null()).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = sayfa(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that the program lists.
fn commands() -> Vec<String> {
    let help = stdout(&["--help"]);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // The rest of a description stands further to the right.
    let names: Vec<String> = listed
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap().to_string())
        .filter(|name| name != "help")
        .collect();
    for name in ["chat", "run", "plan", "config", "completions"] {
        assert!(names.iter().any(|listed| listed == name), "{name} is not in {names:?}");
    }
    names
}

/// Long flags of a command, from its help.
fn flags(help: &str) -> Vec<String> {
    // What goes on over several lines stands further to the right.
    let starts = help.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --"));
    let names = starts.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
    names.map(|name| name.trim_end_matches(',').to_string()).collect()
}

#[test]
fn the_help_of_every_command_is_as_it_was() {
    // Shown when it fails.
    println!("INSTA_UPDATE=always cargo test --release --test help renews the snapshots; look at their diff");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots/help");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let mut names = vec!["sayfa".to_string()];
    settings.bind(|| {
        insta::assert_snapshot!("sayfa", stdout(&["--help"]));
        for command in commands() {
            insta::assert_snapshot!(command.clone(), stdout(&[&command, "--help"]));
            insta::assert_snapshot!(format!("{command}-short"), stdout(&[&command, "-h"]));
            names.extend([command.clone(), format!("{command}-short")]);
        }
    });
    // Commands that are gone leave none behind, and nothing waits to be looked at.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/help");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.collect();
    let mut expected: Vec<String> = names.iter().map(|name| format!("{name}.snap")).collect();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
}

#[test]
fn every_help_fits_80_columns_and_has_no_flag_outside_of_a_heading() {
    for command in commands() {
        for form in ["-h", "--help"] {
            let help = stdout(&[&command, form]);
            let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(wide.is_empty(), "sayfa {command} {form}: wider than 80: {wide:#?}");
            // Every working command names the configuration last, and a heading for each flag.
            if help.contains("--quiet") {
                assert!(!help.contains("\nOptions:\n"), "sayfa {command} {form}: flags without a heading");
                assert!(help.find("\nMessages:\n") < help.find("\nConfiguration:\n"), "{help}");
            }
        }
    }
    let help = stdout(&["--help"]);
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn short_help_is_shorter_and_names_the_same_flags() {
    for command in commands() {
        let (short, long) = (stdout(&[&command, "-h"]), stdout(&[&command, "--help"]));
        assert_eq!(flags(&short), flags(&long), "{command}");
        assert!(short.lines().count() <= long.lines().count(), "{command}");
    }
    let lines = |form| stdout(&["chat", form]).lines().count();
    assert!(2 * lines("-h") < lines("--help"), "{} and {}", lines("-h"), lines("--help"));
}

#[test]
fn completions_are_scripts_that_know_commands_and_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&["completions", shell]);
        for word in ["perplexity", "kv-type", "preset"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        assert!(!script.contains("Write the man pages"), "{shell} completes a hidden command");
    }
    let refused = sayfa(&["completions", "tcsh"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("must be one of bash, elvish, fish, powershell, zsh, not 'tcsh'"), "{said}");
}

/// What bash offers for the last of these words.
fn bash_offers(script: &Path, words: &[&str]) -> Vec<String> {
    let complete = r#"
        source "$0" || exit 1
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p sayfa | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" sayfa "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["--norc", "-c", complete])
        .arg(script)
        .args(words)
        .current_dir(script.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect()
}

#[test]
fn bash_completes_commands_flags_values_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("sayfa.bash");
    fs::write(&script, stdout(&["completions", "bash"])).unwrap();
    fs::write(folder.path().join("model.gguf"), "").unwrap();
    let syntax = Command::new("bash").arg("-n").arg(&script).output().unwrap();
    assert!(syntax.status.success() && syntax.stderr.is_empty(), "{}", String::from_utf8_lossy(&syntax.stderr));

    assert_eq!(bash_offers(&script, &["sayfa", "per"]), ["perplexity"]);
    assert_eq!(bash_offers(&script, &["sayfa", "run", "--kv-type", "i"]), ["int8"]);
    assert_eq!(bash_offers(&script, &["sayfa", "run", "-m", "mod"]), ["model.gguf"]);
    assert_eq!(bash_offers(&script, &["sayfa", "completions", "f"]), ["fish"]);
    let flags = bash_offers(&script, &["sayfa", "chat", "--no-h"]);
    assert_eq!(flags, ["--no-history"]);
    // Without a command the flags of run and chat count.
    assert_eq!(bash_offers(&script, &["sayfa", "--top-p"]), ["--top-p"]);
    assert_eq!(bash_offers(&script, &["sayfa", "man"]), [""]);
}

#[test]
fn a_man_page_for_every_command_names_every_flag_and_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new/man1");
    let written = stdout(&["man", folder.to_str().unwrap()]);
    let page = |name: &str| {
        let path = folder.join(name);
        assert!(written.contains(path.to_str().unwrap()), "{} is not in {written}", path.display());
        let page = fs::read_to_string(path).unwrap();
        check_roff(&page, name);
        // Hyphens and minus signs may be written so that they are not broken or turned into dashes.
        page.replace("\\-", "-")
    };
    let main = page("sayfa.1");
    for command in commands() {
        assert!(main.contains(&format!("sayfa-{command}(1)")), "sayfa.1 does not name {command}");
        let page = page(&format!("sayfa-{command}.1"));
        assert!(
            page.contains(&format!(".SH SYNOPSIS\n\\fBsayfa {command}\\fR ")) && page.contains(".SH \"SEE ALSO\""),
            "{page}"
        );
        for flag in flags(&stdout(&[&command, "--help"])) {
            assert!(page.contains(&format!("\\fB{flag}\\fR")), "sayfa-{command}.1 does not name {flag}");
        }
    }
    assert!(main.contains(".SH NOTES\n") && main.contains("Exit codes: 0 done"), "{main}");
    assert!(page("sayfa-run.1").contains(".SH EXAMPLES\n.nf\n"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1 + commands().len());
}

/// Every line with a dot or an apostrophe in front is a request that man pages have; fonts end as they begin.
fn check_roff(page: &str, name: &str) {
    const REQUESTS: &[&str] = &["TH", "SH", "TP", "PP", "RS", "RE", "IP", "br", "nf", "fi", "ie", "el", "ds"];
    for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
        let request = line[1..].split_whitespace().next().unwrap_or_default();
        assert!(REQUESTS.contains(&request), "{name}: {line:?}");
    }
    for line in page.lines() {
        let fonts = line.matches("\\fB").count() + line.matches("\\fI").count();
        assert_eq!(fonts, line.matches("\\fR").count(), "{name}: {line:?}");
    }
    let count = |request: &str| page.lines().filter(|line| line.split_whitespace().next() == Some(request)).count();
    assert_eq!((count(".RS"), count(".nf")), (count(".RE"), count(".fi")), "{name}");
    assert_eq!(count(".TH"), 1, "{name}");
}
