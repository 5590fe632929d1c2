//! llama.cpp's spellings of flags: names of several letters behind one dash, which a parser would take for as many flags,
//! and flags that are called otherwise here, or not needed.

use std::ffi::OsString;

/// The same under its long name.
const SAME: &[(&str, &str)] = &[
    ("-ngl", "--gpu-layers"),
    ("-sys", "--system"),
    ("-sysf", "--system-file"),
    ("-jf", "--json-schema"),
    ("-hf", "--model"),
    ("-hfr", "--model"),
    ("--n-predict", "--predict"),
    ("--system-prompt", "--system"),
    ("--system-prompt-file", "--system-file"),
    ("--json-schema-file", "--json-schema"),
];

/// What to use instead.
const OTHERWISE: &[(&str, &str)] = &[
    ("-ctk", "--kv-type-k takes f16, f32 or int8"),
    ("--cache-type-k", "--kv-type-k takes f16, f32 or int8"),
    ("-ctv", "--kv-type-v takes f16, f32 or int8"),
    ("--cache-type-v", "--kv-type-v takes f16, f32 or int8"),
    ("-cnv", "`sayfa chat` is a conversation"),
    ("--conversation", "`sayfa chat` is a conversation"),
    ("-no-cnv", "`sayfa run` answers once, --raw leaves the chat template out"),
    ("--no-conversation", "`sayfa run` answers once, --raw leaves the chat template out"),
    ("-st", "`sayfa run` answers once"),
    ("--single-turn", "`sayfa run` answers once"),
    ("-fa", "attention never stores its scores, so there is nothing to switch"),
    ("--flash-attn", "attention never stores its scores, so there is nothing to switch"),
    ("-ub", "-b is the size of a step"),
    ("--ubatch-size", "-b is the size of a step"),
    ("-tb", "-t counts for prompts too"),
    ("--threads-batch", "-t counts for prompts too"),
    ("--jinja", "chat templates are always Jinja"),
    ("--color", "colours follow the terminal, and NO_COLOR"),
    ("--no-display-prompt", "the prompt is never printed"),
    ("--context-shift", "--on-full evict forgets the oldest tokens"),
    ("--prompt-cache", "--session keeps what was computed"),
];

/// `args` with long names where the parser needs them.
pub fn with_long_names(args: Vec<OsString>) -> Vec<OsString> {
    let long = |arg: OsString| match arg.to_str().map(name_and_value) {
        Some((name, value)) => match SAME.iter().find(|(short, _)| *short == name) {
            Some((_, long)) => format!("{long}{value}").into(),
            None => arg,
        },
        None => arg,
    };
    // Behind `--` there are no flags.
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let (flags, rest) = args.split_at(end);
    flags.iter().cloned().map(long).chain(rest.iter().cloned()).collect()
}

/// The first flag of llama.cpp that there is not, and what to use instead: for a line that the parser refused.
pub fn advice(args: &[OsString]) -> Option<String> {
    let args = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
    let found = |arg| {
        let (name, _) = name_and_value(arg);
        OTHERWISE.iter().find(|(flag, _)| *flag == name)
    };
    let (flag, instead) = args.filter_map(found).next()?;
    Some(format!("there is no flag {flag}: {instead}"))
}

fn name_and_value(arg: &str) -> (&str, &str) {
    arg.split_at(arg.find('=').unwrap_or(arg.len()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn words(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn short_names_of_several_letters_become_long_ones() {
        let long = |args: &[&str]| with_long_names(words(args));
        assert_eq!(long(&["run", "-ngl", "99", "-n", "5"]), ["run", "--gpu-layers", "99", "-n", "5"]);
        assert_eq!(long(&["-ngl=all", "-nglx", "-hf", "a/b"]), ["--gpu-layers=all", "-nglx", "--model", "a/b"]);
        assert_eq!(long(&["run", "--", "-sys"]), ["run", "--", "-sys"]);
    }

    #[test]
    fn other_flags_get_advice() {
        let advice = |args: &[&str]| advice(&words(args));
        let want = "there is no flag -ctk: --kv-type-k takes f16, f32 or int8";
        assert_eq!(advice(&["run", "-p", "hi", "-ctk", "q8_0"]).as_deref(), Some(want));
        assert!(advice(&["run", "--cache-type-v=q8_0"]).is_some());
        assert_eq!(advice(&["run", "--", "-ctk"]), None);
        assert_eq!(advice(&["run", "-n", "x"]), None);
    }

    #[test]
    fn the_tables_name_flags_that_are_there_and_none_that_are() {
        let program = Cli::command();
        let run = program.find_subcommand("run").unwrap();
        let is_flag = |name: &str| run.get_arguments().any(|flag| flag.get_long() == name.strip_prefix("--"));
        assert!(SAME.iter().all(|(flag, long)| is_flag(long) && !is_flag(flag)));
        assert!(OTHERWISE.iter().all(|(flag, _)| !flag.starts_with("--") || !is_flag(flag)));
    }
}
