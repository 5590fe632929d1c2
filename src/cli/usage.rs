//! What is wrong with the flags, in one sentence, from what the parser knows about it.

use std::ffi::OsString;

use super::llama_cpp;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Names the flag, what it takes, what it got, and where to read on.
pub fn sentence(error: &Error, args: &[OsString], program: &clap::Command) -> String {
    let first = args.get(1).map(|first| first.to_string_lossy()).unwrap_or_default();
    let command = program.get_subcommands().find(|command| command.get_name() == first);
    let help = match (command, error.kind()) {
        (Some(command), _) => format!("sayfa {} --help", command.get_name()),
        (None, ErrorKind::InvalidSubcommand) => "sayfa --help".to_string(),
        (None, _) => "sayfa run --help".to_string(),
    };
    if let Some(advice) = llama_cpp::advice(args) {
        return format!("{advice}; see '{help}'");
    }
    let name = command.map_or("run", clap::Command::get_name);
    let flags = command.or_else(|| program.find_subcommand("run"));
    let short = |long: &str| {
        let flag = flags?.get_arguments().find(|flag| flag.get_long() == long.strip_prefix("--"))?;
        flag.get_short()
    };
    let called = |flag: &str| short(flag).map_or_else(|| flag.to_string(), |short| format!("-{short} ({flag})"));
    format!("{}; see '{help}'", wrong(error, args, name, called))
}

/// The flag that an error is about, with its dashes.
pub fn flag(error: &Error) -> String {
    // `--top-p <P>`: the flag counts, not how its value is called.
    let argument = text(error, ContextKind::InvalidArg).unwrap_or_default();
    argument.split(" <").next().unwrap_or_default().to_string()
}

pub fn suggested_flag(error: &Error) -> Option<String> {
    text(error, ContextKind::SuggestedArg).filter(|flag| flag != "--help")
}

/// The sentence alone; flags are called what their reader knows them by.
pub fn wrong(error: &Error, args: &[OsString], command: &str, called: impl Fn(&str) -> String) -> String {
    let name = |kind| text(error, kind);
    let suggestion = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(name)
        .filter(|suggestion| suggestion != "help")
        .map_or_else(String::new, |suggestion| format!(", did you mean {suggestion}?"));
    let flag = flag(error);
    let value = name(ContextKind::InvalidValue).unwrap_or_default();
    let both = called(&flag);
    match error.kind() {
        ErrorKind::UnknownArgument if flag.starts_with('-') => format!("there is no flag {flag}{suggestion}"),
        ErrorKind::UnknownArgument => {
            let instead = match command {
                "run" => "use -p to give a prompt",
                "chat" => "type it in the chat, or use `sayfa run -p`",
                _ => "nothing is expected there",
            };
            format!("'{flag}' stands alone: {instead}")
        }
        ErrorKind::InvalidSubcommand => {
            let word = name(ContextKind::InvalidSubcommand).unwrap_or_default();
            // A path is no misspelt command.
            if word.contains(['/', '.']) {
                return format!("there is no command '{word}': use -m to give a model, -f to give a text");
            }
            let near =
                name(ContextKind::SuggestedSubcommand).map_or_else(String::new, |near| format!(" (is it {near}?)"));
            format!("there is no command '{word}'{near}: use -p to give a prompt, -m to give a model")
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{both} needs a value that is not empty"),
        ErrorKind::InvalidValue => {
            let known = name(ContextKind::ValidValue).unwrap_or_default();
            format!("{both} must be one of {known}, not '{value}'{suggestion}")
        }
        ErrorKind::ValueValidation => {
            let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            match expected(&source) {
                Some(wanted) => format!("{both} must be {wanted}, not '{value}'"),
                None => format!("{both} '{value}': {source}"),
            }
        }
        ErrorKind::InvalidUtf8 => {
            let bad = args.iter().find(|arg| arg.to_str().is_none()).map(|arg| arg.to_string_lossy());
            format!("'{}' is not UTF-8: only -p, and the names of files, may hold such bytes", bad.unwrap_or_default())
        }
        // The parser's own words: its first paragraph.
        _ => {
            let rendered = error.render().to_string();
            let paragraph = rendered.split("\n\n").next().unwrap_or_default();
            paragraph.strip_prefix("error: ").unwrap_or(paragraph).to_string()
        }
    }
}

/// What a value must be, from why it was refused: ours say `not a number above 0`, the parser's own `7 is not in 0..=5`,
/// the standard library's `invalid digit found in string`. `None`: the refusal is a sentence of its own.
pub fn expected(refusal: &str) -> Option<String> {
    if let Some(wanted) = refusal.strip_prefix("not ") {
        return Some(wanted.to_string());
    }
    let range = refusal.split_once(" is not in ").and_then(|(_, range)| range.split_once(".."));
    match range.map(|(low, high)| (low, high.trim_start_matches('='))) {
        Some((low, high)) if high == i64::MAX.to_string() || high == u64::MAX.to_string() => {
            Some(format!("a whole number of {low} or more"))
        }
        Some((low, high)) => Some(format!("a whole number from {low} to {high}")),
        None if refusal.contains("too large") || refusal.contains("too small") => {
            Some("a whole number of a sensible size".to_string())
        }
        None if ["invalid digit", "cannot parse", "invalid float"].iter().any(|start| refusal.starts_with(start)) => {
            Some("a whole number".to_string())
        }
        None => None,
    }
}

fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(", ")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_value_must_be_is_said_without_the_words_of_a_parser() {
        for (refusal, wanted) in [
            ("not a number above 0", "a number above 0"),
            ("-5 is not in -2..=2147483648", "a whole number from -2 to 2147483648"),
            ("-5 is not in -1..9223372036854775807", "a whole number of -1 or more"),
            ("invalid digit found in string", "a whole number"),
            ("number too large to fit in target type", "a whole number of a sensible size"),
        ] {
            assert_eq!(expected(refusal).as_deref(), Some(wanted));
        }
        assert_eq!(expected("no such shape; there are llama-2-7b, yi-6b"), None);
    }
}
