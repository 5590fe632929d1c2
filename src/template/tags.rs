//! Rewrites the tags that minijinja does not have as transformers has them.
//!
//! Tags are found as minijinja's lexer finds them. Should the two ever disagree, a tag stays as it is written, and
//! minijinja refuses it: misreading a template can break it, not open a way around a bound.

use std::ops::Range;

use super::namespace;

/// Holds the text of `{% set ns.x %}text{% endset %}` for the statement that assigns it.
const CAPTURED: &str = "__captured__";

/// `{% generation %}` marks what a model is trained on; to a reader it is nothing. Assignments to attributes become
/// calls of our own namespaces.
pub fn rewritten(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    // The targets of open `set` blocks, where those are attributes.
    let mut open_sets = Vec::new();
    while let Some(statement) = next_statement(rest) {
        text.push_str(&rest[..statement.start]);
        text.push_str(&rewritten_statement(&rest[statement.clone()], &mut open_sets));
        rest = &rest[statement.end..];
    }
    text + rest
}

fn rewritten_statement<'a>(tag: &'a str, open_sets: &mut Vec<Option<(&'a str, &'a str)>>) -> String {
    let inner = &tag[2..tag.len() - 2];
    let (start, inner) = inner.split_at(usize::from(inner.starts_with(['-', '+'])));
    let (inner, end) = inner.split_at(inner.len() - usize::from(inner.ends_with(['-', '+'])));
    let body = inner.trim();
    let assign =
        |(object, name): (&str, &str), value: &str| format!("do {object}.{}('{name}', ({value}))", namespace::SET);
    let body = match body {
        "generation" => "if true".into(),
        "endgeneration" => "endif".into(),
        "endset" => match open_sets.pop().flatten() {
            Some(attribute) => return format!("{{%{start} endset %}}{{% {} {end}%}}", assign(attribute, CAPTURED)),
            None => return tag.into(),
        },
        _ => {
            let Some(set) = body.strip_prefix("set").filter(|set| set.starts_with(char::is_whitespace)) else {
                return tag.into();
            };
            let is_target = |c: char| c.is_alphanumeric() || c.is_whitespace() || matches!(c, '_' | '.');
            let (target, rest) = set.split_at(set.find(|c| !is_target(c)).unwrap_or(set.len()));
            let attribute = target.trim().rsplit_once('.').map(|(object, name)| (object, name.trim()));
            if rest.is_empty() || rest.starts_with('|') {
                open_sets.push(attribute);
            }
            match (attribute, rest.strip_prefix('=').map(str::trim)) {
                (Some(attribute), Some(value)) if !value.is_empty() => assign(attribute, value),
                (Some(_), None) => format!("set {CAPTURED} {rest}"),
                _ => return tag.into(),
            }
        }
    };
    format!("{{%{start} {body} {end}%}}")
}

/// The place of the first `{% .. %}` that is not inside a comment, an output tag or a raw block.
fn next_statement(source: &str) -> Option<Range<usize>> {
    let mut from = 0;
    loop {
        let is_start = |pair: &[u8]| matches!(pair, b"{{" | b"{%" | b"{#");
        let start = from + source.as_bytes()[from..].windows(2).position(is_start)?;
        let inside = start + 2;
        from = match source.as_bytes()[start + 1] {
            b'#' => inside + source[inside..].find("#}")? + 2,
            b'{' => expression_end(source, inside, b"}}")?,
            _ => match plain_tag(&source[inside..], "raw") {
                Some(len) => raw_end(source, inside + len)?,
                None => return Some(start..expression_end(source, inside, b"%}")?),
            },
        }
    }
}

/// After the `endraw` tag.
fn raw_end(source: &str, mut from: usize) -> Option<usize> {
    loop {
        from += source[from..].find("{%")? + 2;
        if let Some(len) = plain_tag(&source[from..], "endraw") {
            return Some(from + len);
        }
    }
}

/// The length of what follows `{%`, if that is a tag of one word.
fn plain_tag<'a>(text: &'a str, word: &str) -> Option<usize> {
    let unsigned = |text: &'a str| text.strip_prefix(['-', '+']).unwrap_or(text);
    let after = unsigned(text).trim_ascii_start().strip_prefix(word)?;
    let after = unsigned(after.trim_ascii_start()).strip_prefix("%}")?;
    Some(text.len() - after.len())
}

/// After the first `end` that is neither in brackets nor in a string.
fn expression_end(source: &str, from: usize, end: &[u8]) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut open_brackets) = (from, 0_usize);
    while at < bytes.len() {
        if open_brackets == 0 && bytes[at..].starts_with(end) {
            return Some(at + end.len());
        }
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while *bytes.get(at)? != quote {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
            }
            b'(' | b'[' | b'{' => open_brackets += 1,
            // Too many of them are an error that minijinja reports.
            b')' | b']' | b'}' => open_brackets = open_brackets.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_statements_are_rewritten() {
        for (source, expected) in [
            ("a{%- set n.x = 1, 2 -%}b", "a{%- do n.__setattr__('x', (1, 2)) -%}b"),
            ("{%set a . b.c=x if y else '%}'%}", "{% do a . b.__setattr__('c', (x if y else '%}')) %}"),
            ("{% set n.x = {'a': {}} %}", "{% do n.__setattr__('x', ({'a': {}})) %}"),
            ("{% set x = n.y %}{% setting n.x = 1 %}", "{% set x = n.y %}{% setting n.x = 1 %}"),
            ("{# {% set n.x = 1 %} #}{{ '{% set n.x = 1 %}' }}", "{# {% set n.x = 1 %} #}{{ '{% set n.x = 1 %}' }}"),
            ("{% raw %}{{ '{% set n.x = 1 %}{% endraw %}", "{% raw %}{{ '{% set n.x = 1 %}{% endraw %}"),
            ("{{ 'it\\'s {%' }}{% set n.x = 1 %}", "{{ 'it\\'s {%' }}{% do n.__setattr__('x', (1)) %}"),
            (
                "{% set n.x|upper %}a{% set y %}b{% endset %}{% endset -%}",
                "{% set __captured__ |upper %}a{% set y %}b{% endset %}{% endset %}{% do n.__setattr__('x', (__captured__)) -%}",
            ),
            ("{% generation %}{%- endgeneration -%}", "{% if true %}{%- endif -%}"),
            ("{% set n.x = %}{% set n.x = 'open", "{% set n.x = %}{% set n.x = 'open"),
        ] {
            assert_eq!(rewritten(source), expected, "{source}");
        }
    }
}
