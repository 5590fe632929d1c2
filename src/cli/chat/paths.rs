//! Names of files as people type them, and as Tab completes them.

use std::env;
use std::path::{Path, PathBuf};

/// The file that `text` names: as it stands if that exists, else with `~`, quotes and backslashes read as a shell does.
pub fn typed(text: &str) -> PathBuf {
    if Path::new(text).exists() {
        return text.into();
    }
    let quoted = ['"', '\''].iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote));
    let plain = match quoted {
        Some(inner) => inner.to_string(),
        None => unescaped(text),
    };
    match plain.strip_prefix("~/").zip(env::home_dir()) {
        Some((rest, home)) if quoted.is_none() => home.join(rest),
        _ => plain.into(),
    }
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.push(if c == '\\' { rest.next().unwrap_or(c) } else { c });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_a_shell_does() {
        let home = env::home_dir().unwrap();
        assert_eq!(typed("no/such file"), Path::new("no/such file"));
        assert_eq!(typed(r"no\ such\\file\"), Path::new(r"no such\file\"));
        assert_eq!(typed(r#""no such file""#), Path::new("no such file"));
        assert_eq!(typed("'no such file'"), Path::new("no such file"));
        assert_eq!(typed("~/no such"), home.join("no such"));
        assert_eq!(typed("'~/no such'"), Path::new("~/no such"));
        assert_eq!(typed("~"), Path::new("~"));
    }
}
