//! How values are typed: texts in quotes or between `"""`, and lists of words of which quotes hold some together.

/// Stands before and behind a text of several lines.
pub const BLOCK: &str = r#"""""#;

/// The text that is meant: quotes around the whole of it are no part of it.
pub fn unquoted(text: &str) -> &str {
    let inside =
        |quote: char| text.strip_prefix(quote)?.strip_suffix(quote).filter(|inner| end(inner, quote).is_none());
    block(text).or_else(|| inside('"')).or_else(|| inside('\'')).unwrap_or(text)
}

/// What stands in a block, if `text` is one.
pub fn block(text: &str) -> Option<&str> {
    text.strip_prefix(BLOCK)?.strip_suffix(BLOCK)
}

/// Words as they stand, with their quotes. A quote that nothing closes is a character as any other.
pub fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        // More may stand behind the quotes: `" Hello"-inf`.
        let quoted = rest.chars().next().filter(|c| ['"', '\''].contains(c));
        let quoted = quoted.and_then(|quote| end(&rest[1..], quote)).map_or(0, |end| end + 2);
        let length = rest[quoted..].find(char::is_whitespace).map_or(rest.len(), |space| quoted + space);
        let (word, behind) = rest.split_at(length);
        words.push(word);
        rest = behind.trim_start();
    }
    words
}

/// In a form that `words`, `unquoted` and escapes make the same text of.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str(r"\n"),
            '\r' => quoted.push_str(r"\r"),
            '\t' => quoted.push_str(r"\t"),
            '"' | '\\' => quoted.extend(['\\', c]),
            _ => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Where the first quote stands that no backslash stands before.
fn end(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::unescape;

    #[test]
    fn quotes_around_a_text_are_no_part_of_it() {
        for (typed, text) in [
            ("Be brief.", "Be brief."),
            (r#""Be brief.""#, "Be brief."),
            ("'Be brief.'", "Be brief."),
            (r#""""#, ""),
            (
                r#""""Be
brief.""""#,
                "Be\nbrief.",
            ),
            (r#""""""""#, ""),
            (r#"""""quoted"""""#, r#""quoted""#),
            (r#""one" and "two""#, r#""one" and "two""#),
            (r#"""#, r#"""#),
            (r#""an end"#, r#""an end"#),
            ("", ""),
        ] {
            assert_eq!(unquoted(typed), text, "{typed}");
        }
    }

    #[test]
    fn quotes_hold_words_together() {
        assert_eq!(words("a  b "), ["a", "b"]);
        assert_eq!(words(r#""foo bar" baz 'x y'"#), [r#""foo bar""#, "baz", "'x y'"]);
        assert_eq!(words(r#"" Hello"-inf 7+1"#), [r#"" Hello"-inf"#, "7+1"]);
        assert_eq!(words(r#""a \" b" c"#), [r#""a \" b""#, "c"]);
        assert_eq!(words(r#"don't " x"#), ["don't", r#"""#, "x"]);
        assert!(words(" ").is_empty());
    }

    #[test]
    fn what_is_quoted_is_one_word_and_read_again() {
        for text in ["a", "a b", "\n\n", r"\n", r#"say "x""#, r"ends in \", "'", "終 り", ""] {
            let quoted = quoted(text);
            assert_eq!(words(&quoted), [quoted.as_str()], "{text}");
            assert_eq!(unescape(unquoted(&quoted)), text);
        }
    }
}
