//! llama.cpp's GBNF grammars -> the Lark of llguidance.
//!
//! GBNF knows only characters; llguidance cuts text into lexemes first, the longest it can, which is quick but may cut
//! where a grammar does not mean it. So a grammar that is no more than a regular expression becomes one lexeme, and any
//! other has a lexeme for every character. For JSON and the vocabulary of SmolLM2 the latter takes up to 3 ms a token
//! where lexemes by hand take 0.2 ms: whoever minds writes Lark.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::iter::Peekable;
use std::str::CharIndices;

use anyhow::{Context, anyhow, bail, ensure};

/// Parentheses within parentheses, each of which takes stack.
const DEEPEST: usize = 100;
/// llama.cpp's own bound of `{m,n}`.
const MOST_REPETITIONS: u32 = 2000;

/// Whether a grammar is GBNF: Lark has `:` where this has `::=`.
pub fn is_gbnf(text: &str) -> bool {
    let code = |line: &'_ str| line.find("//").into_iter().chain(line.find('#')).min().unwrap_or(line.len());
    text.lines().any(|line| line[..code(line)].contains("::="))
}

pub fn to_lark(text: &str) -> anyhow::Result<String> {
    let rules = Parser::new(text).rules()?;
    Ok(Grammar::new(rules)?.to_lark())
}

struct Rule {
    name: String,
    body: Alternatives,
}

type Alternatives = Vec<Vec<Item>>;

struct Item {
    what: What,
    least: u32,
    /// `None`: any number.
    most: Option<u32>,
}

enum What {
    Text(String),
    /// A character class, as a regular expression.
    Class(String),
    /// A token of the vocabulary, as Lark writes it.
    Token(String),
    Name(String),
    Group(Alternatives),
}

struct Parser<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser { text, rest: text.char_indices().peekable() }
    }

    fn rules(mut self) -> anyhow::Result<Vec<Rule>> {
        let mut rules: Vec<Rule> = Vec::new();
        let mut names = HashSet::new();
        loop {
            self.skip_blanks();
            if self.rest.peek().is_none() {
                return Ok(rules);
            }
            let rule = self.rule();
            let rule = rule.with_context(|| format!("line {}", self.line()))?;
            ensure!(names.insert(rule.name.clone()), "the rule {} is there twice", rule.name);
            rules.push(rule);
        }
    }

    fn rule(&mut self) -> anyhow::Result<Rule> {
        let name = self.name();
        ensure!(!name.is_empty(), "a rule begins with its name, not with '{}'", self.next_char());
        self.skip_blanks();
        ensure!(self.take("::="), "::= is missing after {name}");
        Ok(Rule { name, body: self.alternatives(0)? })
    }

    /// Up to a closing parenthesis, the next rule or the end.
    fn alternatives(&mut self, depth: usize) -> anyhow::Result<Alternatives> {
        ensure!(depth < DEEPEST, "more than {DEEPEST} parentheses within each other");
        let mut all = vec![Vec::new()];
        loop {
            self.skip_blanks();
            if self.take("|") {
                all.push(Vec::new());
                continue;
            }
            let Some(what) = self.what(depth)? else { return Ok(all) };
            let (least, most) = self.repetition()?;
            all.last_mut().expect("it begins with one").push(Item { what, least, most });
        }
    }

    fn what(&mut self, depth: usize) -> anyhow::Result<Option<What>> {
        let Some(&(_, c)) = self.rest.peek() else { return Ok(None) };
        Ok(Some(match c {
            '"' => What::Text(self.quoted()?),
            '[' => What::Class(self.class()?),
            '<' | '!' => What::Token(self.token()?),
            '.' => {
                self.rest.next();
                What::Class("(?s:.)".to_string())
            }
            '(' => {
                self.rest.next();
                let inner = self.alternatives(depth + 1)?;
                ensure!(self.take(")"), "a parenthesis is not closed");
                What::Group(inner)
            }
            ')' if depth > 0 => return Ok(None),
            _ if is_name(c) => {
                if self.at_rule() {
                    ensure!(depth == 0, "a parenthesis is not closed");
                    return Ok(None);
                }
                What::Name(self.name())
            }
            _ => bail!("'{c}' has no meaning here"),
        }))
    }

    fn repetition(&mut self) -> anyhow::Result<(u32, Option<u32>)> {
        // As in llama.cpp blanks may stand before it, not a line end.
        while self.rest.next_if(|&(_, c)| c == ' ' || c == '\t').is_some() {}
        if self.take("*") {
            return Ok((0, None));
        }
        if self.take("+") {
            return Ok((1, None));
        }
        if self.take("?") {
            return Ok((0, Some(1)));
        }
        if !self.take("{") {
            return Ok((1, Some(1)));
        }
        let bounds: String = std::iter::from_fn(|| self.rest.next_if(|&(_, c)| c != '}')).map(|(_, c)| c).collect();
        ensure!(self.take("}"), "{{ is not closed");
        let number = |text: &str| {
            let number: u32 = text.trim().parse().map_err(|_| anyhow!("{{{bounds}}} is no number of repetitions"))?;
            ensure!(number <= MOST_REPETITIONS, "{{{bounds}}} repeats more than {MOST_REPETITIONS} times");
            Ok(number)
        };
        let (least, most) = match bounds.split_once(',') {
            None => (number(&bounds)?, Some(number(&bounds)?)),
            Some((least, most)) => {
                let least = if least.trim().is_empty() { 0 } else { number(least)? };
                (least, if most.trim().is_empty() { None } else { Some(number(most)?) })
            }
        };
        ensure!(most.is_none_or(|most| least <= most && most > 0), "{{{bounds}}} repeats nothing");
        Ok((least, most))
    }

    fn quoted(&mut self) -> anyhow::Result<String> {
        self.rest.next();
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some((_, '"')) => return Ok(text),
                Some((_, '\\')) => text.push(self.escaped()?),
                Some((_, c)) if c != '\n' => text.push(c),
                _ => bail!("a quoted text has no end on its line"),
            }
        }
    }

    fn class(&mut self) -> anyhow::Result<String> {
        self.rest.next();
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let empty = class.len();
        while !self.take("]") {
            let first = self.class_char()?;
            write!(class, "\\x{{{:x}}}", u32::from(first)).expect("a string takes everything");
            // A `-` at the end of a class is one.
            if !self.text[self.at()..].starts_with("-]") && self.take("-") {
                let last = self.class_char()?;
                ensure!(first <= last, "the range {first}-{last} goes backwards");
                write!(class, "-\\x{{{:x}}}", u32::from(last)).expect("a string takes everything");
            }
        }
        ensure!(class.len() > empty, "[] matches nothing");
        Ok(class + "]")
    }

    fn class_char(&mut self) -> anyhow::Result<char> {
        match self.rest.next() {
            Some((_, '\\')) => self.escaped(),
            Some((_, c)) if c != '\n' => Ok(c),
            _ => bail!("a class [ has no end on its line"),
        }
    }

    fn escaped(&mut self) -> anyhow::Result<char> {
        let (_, c) = self.rest.next().context("a backslash ends the file")?;
        let digits = match c {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => bail!("there is no escape \\{c}"),
        };
        let code: String = self.rest.by_ref().take(digits).map(|(_, c)| c).collect();
        let number = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits);
        number.and_then(char::from_u32).with_context(|| format!("\\{c}{code} is no character"))
    }

    /// `<think>`, `<[12]>`, `!<[12]>`.
    fn token(&mut self) -> anyhow::Result<String> {
        let is_negated = self.take("!");
        let token: String =
            std::iter::from_fn(|| self.rest.next_if(|&(_, c)| c != '>' && c != '\n')).map(|(_, c)| c).collect();
        ensure!(token.starts_with('<') && self.take(">"), "a token is written <text> or <[id]>");
        match (is_negated, token.strip_prefix("<[")) {
            (false, _) => Ok(token + ">"),
            (true, Some(ids)) => Ok(format!("<[^{ids}>")),
            (true, None) => bail!("!{token}> cannot be converted: name the token by its id, as in !<[12]>"),
        }
    }

    fn name(&mut self) -> String {
        std::iter::from_fn(|| self.rest.next_if(|&(_, c)| is_name(c))).map(|(_, c)| c).collect()
    }

    /// Whether a name and `::=` come next.
    fn at_rule(&self) -> bool {
        self.text[self.at()..].trim_start_matches(is_name).trim_start().starts_with("::=")
    }

    fn skip_blanks(&mut self) {
        while let Some(&(_, c)) = self.rest.peek() {
            if c == '#' {
                while self.rest.next_if(|&(_, c)| c != '\n').is_some() {}
            } else if c.is_whitespace() {
                self.rest.next();
            } else {
                return;
            }
        }
    }

    fn take(&mut self, wanted: &str) -> bool {
        let found = self.text[self.at()..].starts_with(wanted);
        if found {
            for _ in wanted.chars() {
                self.rest.next();
            }
        }
        found
    }

    /// Bytes read.
    fn at(&self) -> usize {
        self.rest.clone().next().map_or(self.text.len(), |(at, _)| at)
    }

    fn line(&self) -> usize {
        self.text[..self.at()].matches('\n').count() + 1
    }

    fn next_char(&self) -> char {
        self.text[self.at()..].chars().next().unwrap_or('\n')
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Rules by number, as Lark tells terminals from rules by the case of their names.
struct Grammar {
    rules: Vec<Rule>,
    numbers: HashMap<String, usize>,
    root: usize,
    /// The whole is a regular expression: no rule that the root needs calls itself or names a token.
    is_regular: bool,
}

impl Grammar {
    fn new(rules: Vec<Rule>) -> anyhow::Result<Grammar> {
        let numbers: HashMap<String, usize> =
            rules.iter().enumerate().map(|(number, rule)| (rule.name.clone(), number)).collect();
        let &root = numbers.get("root").context("there is no rule root")?;
        let mut used_by = vec![Vec::new(); rules.len()];
        // What of each rule is not known to be regular.
        let mut open = vec![0; rules.len()];
        for (number, rule) in rules.iter().enumerate() {
            let mut names = Vec::new();
            collect_names(&rule.body, &mut names);
            for name in &names {
                let used = numbers.get(*name);
                let &used = used.with_context(|| format!("the rule {} names {name}, which is not there", rule.name))?;
                used_by[used].push(number);
            }
            open[number] = names.len() + usize::from(has_token(&rule.body));
        }
        let mut regular: Vec<usize> = (0..rules.len()).filter(|&rule| open[rule] == 0).collect();
        while let Some(rule) = regular.pop() {
            for &user in &used_by[rule] {
                open[user] -= 1;
                if open[user] == 0 {
                    regular.push(user);
                }
            }
        }
        Ok(Grammar { root, is_regular: open[root] == 0, numbers, rules })
    }

    fn to_lark(&self) -> String {
        let mut lark = format!("start: {}\n", self.reference(self.root));
        for (number, rule) in self.rules.iter().enumerate() {
            lark += &format!("{}: {}\n", self.reference(number), self.body(&rule.body));
        }
        lark
    }

    fn reference(&self, number: usize) -> String {
        if self.is_regular { format!("T{number}") } else { format!("r{number}") }
    }

    fn body(&self, alternatives: &Alternatives) -> String {
        let sequences: Vec<String> = alternatives.iter().map(|sequence| self.sequence(sequence)).collect();
        let full: Vec<&str> = sequences.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        match full.len() {
            0 => EMPTY.to_string(),
            count if count == sequences.len() => full.join(" | "),
            // Lark has no empty alternative.
            _ => format!("( {} )?", full.join(" | ")),
        }
    }

    fn sequence(&self, items: &[Item]) -> String {
        let items = items.iter().map(|item| self.item(item)).filter(|item| item != EMPTY);
        items.collect::<Vec<_>>().join(" ")
    }

    fn item(&self, item: &Item) -> String {
        let what = match &item.what {
            What::Text(text) => self.text(text),
            What::Class(class) => format!("/{class}/"),
            What::Token(token) => token.clone(),
            What::Name(name) => self.reference(self.numbers[name]),
            What::Group(inner) => match self.body(inner) {
                body if body == EMPTY => body,
                body => format!("( {body} )"),
            },
        };
        if what == EMPTY {
            return what;
        }
        match (item.least, item.most) {
            (1, Some(1)) => what,
            (0, Some(1)) => what + "?",
            (0, None) => what + "*",
            (1, None) => what + "+",
            (least, None) => format!("{what}{{{least},}}"),
            (least, Some(most)) => format!("{what}{{{least},{most}}}"),
        }
    }

    /// One lexeme where the whole is one, else one for each character.
    fn text(&self, text: &str) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        if self.is_regular || text.chars().count() < 2 {
            return quoted(text);
        }
        let chars: Vec<String> = text.chars().map(|c| quoted(c.encode_utf8(&mut [0; 4]))).collect();
        format!("( {} )", chars.join(" "))
    }
}

/// Matches nothing.
const EMPTY: &str = r#""""#;

fn collect_names<'a>(alternatives: &'a Alternatives, names: &mut Vec<&'a str>) {
    for item in alternatives.iter().flatten() {
        match &item.what {
            What::Name(name) => names.push(name),
            What::Group(inner) => collect_names(inner, names),
            What::Text(_) | What::Class(_) | What::Token(_) => {}
        }
    }
}

fn has_token(alternatives: &Alternatives) -> bool {
    alternatives.iter().flatten().any(|item| match &item.what {
        What::Token(_) => true,
        What::Group(inner) => has_token(inner),
        What::Text(_) | What::Class(_) | What::Name(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(text: &str) -> String {
        to_lark(text).unwrap()
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", to_lark(text).unwrap_err())
    }

    #[test]
    fn the_two_notations_are_told_apart() {
        assert!(is_gbnf("root ::= \"a\""));
        assert!(is_gbnf("# first\nroot\n  ::= \"a\""));
        assert!(!is_gbnf("start: \"a\" // not ::= this"));
        assert!(!is_gbnf("# root ::= is GBNF\nstart: A\nA: /a/"));
    }

    #[test]
    fn a_regular_grammar_is_one_lexeme() {
        assert_eq!(
            lark("root ::= \"ab\" digit+\n digit ::= [0-9]"),
            "start: T0\nT0: \"ab\" T1+\nT1: /[\\x{30}-\\x{39}]/\n"
        );
    }

    #[test]
    fn any_other_has_a_lexeme_for_each_character() {
        let text = "root ::= \"(\" root? \")\" ws | word{2,3}\nword ::= \"the\" | [a-z^] # one\nws ::= \" \"*";
        assert_eq!(
            lark(text),
            "start: r0\nr0: \"(\" r0? \")\" r2 | r1{2,3}\n\
             r1: ( \"t\" \"h\" \"e\" ) | /[\\x{61}-\\x{7a}\\x{5e}]/\nr2: \" \"*\n"
        );
    }

    #[test]
    fn empty_alternatives_are_options() {
        assert_eq!(lark("root ::= | \"a\" | (\"b\" | )"), "start: T0\nT0: ( \"a\" | ( ( \"b\" )? ) )?\n");
        assert_eq!(lark("root ::= \"\""), "start: T0\nT0: \"\"\n");
        assert_eq!(lark("root ::= \"\"+ \"a\""), "start: T0\nT0: \"a\"\n");
    }

    #[test]
    fn escapes_and_classes() {
        assert_eq!(lark(r#"root ::= "\x41\"\\\n\u00e9\U0001F600/""#), "start: T0\nT0: \"A\\\"\\\\\\né😀/\"\n");
        assert_eq!(lark(r"root ::= [^\]\x00-\x1F-]"), "start: T0\nT0: /[^\\x{5d}\\x{0}-\\x{1f}\\x{2d}]/\n");
        assert_eq!(lark("root ::= ."), "start: T0\nT0: /(?s:.)/\n");
    }

    #[test]
    fn rules_go_on_over_lines() {
        assert_eq!(
            lark("root ::= (\n \"a\"\n # and\n \"b\"\n) |\n \"c\"\n"),
            "start: T0\nT0: ( \"a\" \"b\" ) | \"c\"\n"
        );
    }

    #[test]
    fn tokens_keep_their_rule_out_of_terminals() {
        assert_eq!(lark("root ::= <think> !<[7]>*"), "start: r0\nr0: <think> <[^7]>*\n");
    }

    #[test]
    fn refusals_name_the_line_and_the_reason() {
        for (text, want) in [
            ("root ::= \"a", "line 1: a quoted text has no end on its line"),
            ("root ::= \"a\"\nb ::= [a", "line 2: a class [ has no end on its line"),
            ("root ::= (\"a\"", "line 1: a parenthesis is not closed"),
            ("root ::= (\"a\"\nb ::= \"c\"", "line 2: a parenthesis is not closed"),
            ("root ::= \"a\")", "line 1: ')' has no meaning here"),
            ("root ::= b", "the rule root names b, which is not there"),
            ("a ::= \"b\"", "there is no rule root"),
            ("root ::= \"a\"\nroot ::= \"b\"", "the rule root is there twice"),
            ("root ::= \"a\"{3,2}", "line 1: {3,2} repeats nothing"),
            ("root ::= \"a\"{x}", "line 1: {x} is no number of repetitions"),
            ("root ::= \"a\"{5000}", "line 1: {5000} repeats more than 2000 times"),
            ("root ::= [z-a]", "line 1: the range z-a goes backwards"),
            ("root ::= []", "line 1: [] matches nothing"),
            (r#"root ::= "\q""#, r"line 1: there is no escape \q"),
            (r#"root ::= "\ud800""#, r"line 1: \ud800 is no character"),
            ("root = \"a\" ::= ", "line 1: ::= is missing after root"),
            ("root ::= !<a>", "line 1: !<a> cannot be converted: name the token by its id, as in !<[12]>"),
        ] {
            assert_eq!(refusal(text), want, "{text}");
        }
        let deep = format!("root ::= {}", "(".repeat(100_000));
        assert_eq!(refusal(&deep), "line 1: more than 100 parentheses within each other");
    }
}
