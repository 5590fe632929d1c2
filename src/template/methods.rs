//! Methods of Python's strings, lists and mappings, as far as minijinja's `pycompat` lacks them or differs.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::python::charge;

/// Called by minijinja for every method that a value has not itself.
pub fn call(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = of_string(state, text, method, arguments)?
    {
        return Ok(result);
    }
    if value.kind() == ValueKind::Seq && method == "index" {
        let (wanted,): (&Value,) = from_args(arguments)?;
        let place = value.try_iter()?.position(|item| item == *wanted);
        return place.map(Value::from).ok_or_else(|| not_found("value"));
    }
    pycompat::unknown_method_callback(state, value, method, arguments)
}

/// `None`: not a method that is written here.
fn of_string(state: &mut State, text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "format" | "join" => {
            // Both can write more than they were given, and pay for it first.
            arguments.iter().try_for_each(|argument| charge(state, argument, 0))?;
            if method == "format" {
                let widths = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
                widths
                    .map(|digits| digits.parse().unwrap_or(u64::MAX))
                    .try_for_each(|width: u64| state.consume_fuel(width / 64))?;
            }
            return Ok(None);
        }
        "split" | "rsplit" => split(state, text, method == "rsplit", arguments)?,
        "splitlines" => {
            let (keep_ends, named): (Option<bool>, Kwargs) = from_args(arguments)?;
            let keep_ends = keep_ends.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            let line = |line: &str| Value::from(if keep_ends { line } else { line.trim_end_matches(is_line_end) });
            lines(text).into_iter().map(line).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(invalid("empty separator"));
            }
            let parts = match (method, text.split_once(separator), text.rsplit_once(separator)) {
                ("partition", Some((before, after)), _) | ("rpartition", _, Some((before, after))) => {
                    [before, separator, after]
                }
                ("partition", ..) => [text, "", ""],
                _ => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(arguments)?;
            let drops = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
            let text = if method == "rstrip" { text } else { text.trim_start_matches(drops) };
            Value::from(if method == "lstrip" { text } else { text.trim_end_matches(drops) })
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(arguments)?;
            let rest = if method == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Value::from(rest.unwrap_or(text))
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (i64, Option<char>) = from_args(arguments)?;
            let missing = missing(state, text, width)?;
            // As Python rounds.
            let left = match method {
                "center" => missing / 2 + (missing & width.unsigned_abs() as usize & 1),
                "ljust" => 0,
                _ => missing,
            };
            let fill = |count| String::from(fill.unwrap_or(' ')).repeat(count);
            Value::from(fill(left) + text + &fill(missing - left))
        }
        "zfill" => {
            let (width,): (i64,) = from_args(arguments)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing(state, text, width)?)))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, arguments)?,
        "startswith" | "endswith" if arguments.len() > 1 => {
            let (part, start, end): (&Value, Option<i64>, Option<i64>) = from_args(arguments)?;
            let Some((_, slice)) = slice(text, start, end) else { return Ok(Some(Value::from(false))) };
            return pycompat::unknown_method_callback(state, &Value::from(slice), method, std::slice::from_ref(part))
                .map(Some);
        }
        "title" | "capitalize" | "swapcase" | "casefold" => {
            let () = from_args(arguments)?;
            Value::from(in_case(text, method))
        }
        "istitle" => {
            let () = from_args(arguments)?;
            Value::from(text.chars().any(is_cased) && in_case(text, "title") == text)
        }
        "isdigit" | "isdecimal" | "isspace" | "isidentifier" | "isprintable" => {
            let () = from_args(arguments)?;
            Value::from(match method {
                "isdigit" => !text.is_empty() && text.chars().all(|c| is_decimal(c) || is_raised_digit(c)),
                "isdecimal" => !text.is_empty() && text.chars().all(is_decimal),
                "isspace" => !text.is_empty() && text.chars().all(is_space),
                "isprintable" => text.chars().all(|c| c == ' ' || !(is_space(c) || c.is_control())),
                _ => {
                    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
                        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
                }
            })
        }
        _ => return Ok(None),
    }))
}

fn split(state: &State, text: &str, from_the_end: bool, arguments: &[Value]) -> Result<Value, Error> {
    let (separator, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
    let separator = separator.or(named.get("sep")?);
    let most = usize::try_from(most.or(named.get("maxsplit")?).unwrap_or(-1)).unwrap_or(usize::MAX);
    named.assert_all_used()?;
    if separator == Some("") {
        return Err(invalid("empty separator"));
    }
    let mut parts: Vec<&str> = Vec::new();
    // Without a separator, parts are words; the side that is not reached keeps its space.
    let mut rest = match (separator, from_the_end) {
        (Some(_), _) => text,
        (None, false) => text.trim_start_matches(is_space),
        (None, true) => text.trim_end_matches(is_space),
    };
    while parts.len() < most {
        let cut = match (separator, from_the_end) {
            (Some(separator), false) => rest.split_once(separator),
            (Some(separator), true) => rest.rsplit_once(separator),
            (None, false) => rest.split_once(is_space).map(|(word, rest)| (word, rest.trim_start_matches(is_space))),
            (None, true) => rest.rsplit_once(is_space).map(|(rest, word)| (rest.trim_end_matches(is_space), word)),
        };
        let Some((before, after)) = cut else { break };
        state.consume_fuel(1)?;
        let (part, remaining) = if from_the_end { (after, before) } else { (before, after) };
        parts.push(part);
        rest = remaining;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    if from_the_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// With their ends.
fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_line_end) {
        let end = match &rest[at..] {
            ending if ending.starts_with("\r\n") => at + 2,
            ending => at + ending.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..end]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn search(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (part, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
    let Some((before, slice)) = slice(text, start, end) else {
        return match method {
            "count" => Ok(Value::from(0)),
            "find" | "rfind" => Ok(Value::from(-1)),
            _ => Err(not_found("substring")),
        };
    };
    if method == "count" {
        return Ok(Value::from(slice.matches(part).count()));
    }
    let found = if method.starts_with('r') { slice.rfind(part) } else { slice.find(part) };
    match found {
        Some(at) => Ok(Value::from(before + slice[..at].chars().count())),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(not_found("substring")),
    }
}

/// `text[start:end]` and the number of characters before it; `None` where Python finds nothing, not even "".
fn slice(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    let count = text.chars().count();
    let place = |index: i64| match usize::try_from(index) {
        Ok(index) => index,
        Err(_) => count.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let (start, end) = (place(start.unwrap_or(0)), end.map_or(count, place).min(count));
    let byte = |place| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    (start <= end).then(|| (start, &text[byte(start)..byte(end)]))
}

/// The characters that fill `text` up to `width`, paid for.
fn missing(state: &State, text: &str, width: i64) -> Result<usize, Error> {
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64 / 16)?;
    Ok(missing)
}

fn in_case(text: &str, method: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        let upper = match method {
            "title" => !in_word,
            "capitalize" => written.is_empty(),
            "swapcase" => c.is_lowercase(),
            _ => false,
        };
        match (upper, method) {
            // One letter becomes two, of which only the first is a capital.
            (true, "title" | "capitalize") => {
                let mut capitals = c.to_uppercase();
                written.extend(capitals.next());
                written.extend(capitals.flat_map(char::to_lowercase));
            }
            (true, _) => written.extend(c.to_uppercase()),
            (false, "casefold") if c.to_uppercase().count() > 1 => {
                written.extend(c.to_uppercase().flat_map(char::to_lowercase));
            }
            (false, _) => written.extend(c.to_lowercase()),
        }
        in_word = is_cased(c);
    }
    written
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// Python counts four separators of ASCII as white space that Unicode does not.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Digits of the scripts in wide use; each has its ten in a row.
fn is_decimal(c: char) -> bool {
    const ZEROS: &[u32] = &[
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xe50, 0xed0, 0xf20,
        0x1040, 0x17e0, 0x1810, 0xff10,
    ];
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&u32::from(c)))
}

fn is_raised_digit(c: char) -> bool {
    matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨')
}

fn not_found(what: &str) -> Error {
    invalid(&format!("{what} not found"))
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_string())
}
