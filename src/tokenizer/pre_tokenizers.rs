//! Splitting text into the pieces that BPE merges stay within, by the rule that `tokenizer.ggml.pre` names.
//!
//! The regexes are llama.cpp's (`pre_tokenizers.json`). Where one needs a backtracking matcher, whose stack and step
//! limits a long run of one character exceeds, it is restated so that a finite automaton suffices: `regular()` and
//! `Tail` say how and why the result is the same.

use std::ops::Range;

use anyhow::anyhow;
use serde::Deserialize;
use tokenizers::utils::SysRegex;

/// Rules that more than regexes make up in llama.cpp.
const NOT_REGEXES: &[(&str, &str)] = &[
    ("LLAMA_VOCAB_PRE_TYPE_KIMI_K2", "treats Han characters apart"),
    ("LLAMA_VOCAB_PRE_TYPE_AFMOE", "groups digits from the right"),
    ("LLAMA_VOCAB_PRE_TYPE_SUPERBPE", "groups digits from the right"),
    ("LLAMA_VOCAB_PRE_TYPE_TINY_AYA", "groups digits from the right"),
    ("LLAMA_VOCAB_PRE_TYPE_GEMMA4", "merges characters instead of bytes"),
    ("LLAMA_VOCAB_PRE_TYPE_SARVAM_MOE", "merges characters instead of bytes"),
];

/// What the file name says about a rule, apart from the regexes.
pub struct PreTokenizer {
    rules: Vec<Rule>,
    /// A piece that is a token as it stands is not split by merges.
    pub ignore_merges: bool,
    /// BOS where the file does not say.
    pub add_bos: bool,
}

struct Rule {
    regex: SysRegex,
    tail: Option<Tail>,
}

/// A pattern's last alternatives were `\s+(?!\S)` and perhaps `\s+`: whitespace up to, but without, the one character
/// before a word. They are compiled as `\s+`, and a match of more than one character that a word follows is cut by its
/// last character afterwards; the next match then begins with that character, as it does in the original.
#[derive(Clone, Copy)]
struct Tail {
    /// An earlier alternative takes whitespace up to a line end; such a match must stay whole. (With it, `\s+` never
    /// meets a line end.)
    keeps_line_ends: bool,
}

#[derive(Deserialize)]
struct Rules {
    types: std::collections::HashMap<String, Vec<String>>,
    names: std::collections::HashMap<String, String>,
    ignore_merges: Vec<String>,
}

impl PreTokenizer {
    /// By the value of `tokenizer.ggml.pre`. The error is a sentence without the file's name.
    pub fn named(name: &str) -> anyhow::Result<PreTokenizer> {
        let rules: Rules =
            serde_json::from_str(include_str!("pre_tokenizers.json")).expect("the table in the binary is sound");
        let kind = rules.names.get(name).ok_or_else(|| {
            anyhow!("pre-tokenizer '{name}' is not known: text would be split in the wrong places; a newer sayfa or another file is needed")
        })?;
        if let Some((_, why)) = NOT_REGEXES.iter().find(|(refused, _)| refused == kind) {
            return Err(anyhow!("pre-tokenizer '{name}' {why}, which is not supported"));
        }
        let patterns = rules.types.get(kind).or_else(|| rules.types.get("DEFAULT")).expect("the table has a default");
        Ok(PreTokenizer {
            rules: patterns.iter().map(|pattern| Rule::new(pattern)).collect(),
            ignore_merges: rules.ignore_merges.iter().any(|other| other == name),
            add_bos: matches!(kind.as_str(), "LLAMA_VOCAB_PRE_TYPE_LLAMA3" | "LLAMA_VOCAB_PRE_TYPE_TEKKEN"),
        })
    }

    /// The pieces of `text`, in order and without gaps. Every rule splits the pieces of the one before it.
    pub fn split(&self, text: &str) -> Vec<Range<usize>> {
        let whole = 0..text.len();
        let mut pieces = vec![whole];
        for rule in &self.rules {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                rule.split(text, piece, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

impl Rule {
    fn new(pattern: &str) -> Rule {
        let (pattern, tail) = regular(pattern);
        Rule { regex: SysRegex::new(&pattern).expect("every pattern of the table compiles"), tail }
    }

    /// Matches and what lies between them become pieces.
    fn split(&self, text: &str, piece: Range<usize>, pieces: &mut Vec<Range<usize>>) {
        let mut position = piece.start;
        while position < piece.end {
            let rest = &text[position..piece.end];
            let Some((start, mut end)) = self.regex.find_iter(rest).find(|(start, end)| start < end) else { break };
            if let Some(tail) = self.tail {
                end = tail.cut(rest, start, end);
            }
            if start > 0 {
                pieces.push(position..position + start);
            }
            pieces.push(position + start..position + end);
            position += end;
        }
        if position < piece.end {
            pieces.push(position..piece.end);
        }
    }
}

impl Tail {
    fn cut(self, text: &str, start: usize, end: usize) -> usize {
        let matched = &text[start..end];
        let before_word = text[end..].chars().next().is_some_and(|c| !c.is_whitespace());
        let last = matched.chars().next_back().map_or(0, char::len_utf8);
        let from_tail = before_word
            && last < matched.len()
            && matched.chars().all(char::is_whitespace)
            && !(self.keeps_line_ends && matched.contains(['\r', '\n']));
        if from_tail { end - last } else { end }
    }
}

/// The same pattern without lookaround, where that can be had.
fn regular(pattern: &str) -> (String, Option<Tail>) {
    // One character that is in both classes is one character of their intersection.
    let pattern = pattern
        .replace(r"((?=[\p{L}])([^a-z]))", r"[\p{L}&&[^a-z]]")
        .replace(r"((?=[\p{L}])([^A-Z]))", r"[\p{L}&&[^A-Z]]")
        .replace(r"((?=[\p{L}\p{M}])([^a-z]))", r"[[\p{L}\p{M}]&&[^a-z]]")
        .replace(r"((?=[\p{L}\p{M}])([^A-Z]))", r"[[\p{L}\p{M}]&&[^A-Z]]");
    let before_tail = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"].iter().find_map(|tail| pattern.strip_suffix(tail));
    match before_tail {
        Some(others) if !others.contains("(?!") && !others.contains("(?=") => {
            // Some patterns escape the line ends, some hold them.
            let keeps_line_ends = [r"\s*[\r\n]", "\\s*[\r\n]"].iter().any(|to_line_end| others.contains(to_line_end));
            (format!(r"{others}|\s+"), Some(Tail { keeps_line_ends }))
        }
        _ => (pattern, None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn rules() -> Rules {
        serde_json::from_str(include_str!("pre_tokenizers.json")).unwrap()
    }

    fn pieces(rule: &Rule, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        rule.split(text, 0..text.len(), &mut pieces);
        pieces.into_iter().map(|piece| text[piece].to_string()).collect()
    }

    #[test]
    fn every_name_is_either_built_or_refused_by_name() {
        for (name, kind) in &rules().names {
            let refused = NOT_REGEXES.iter().any(|(refused, _)| refused == kind);
            match PreTokenizer::named(name) {
                Ok(_) => assert!(!refused, "{name}"),
                Err(error) => assert!(refused && error.to_string().contains(name.as_str()), "{name}: {error}"),
            }
        }
        assert!(PreTokenizer::named("nonsense").err().unwrap().to_string().contains("'nonsense' is not known"));
    }

    #[test]
    fn patterns_are_free_of_lookaround_where_a_run_could_be_long() {
        let lookaround: Vec<String> = rules()
            .types
            .iter()
            .filter(|(kind, _)| NOT_REGEXES.iter().all(|(refused, _)| refused != kind))
            .filter(|(_, patterns)| {
                patterns.iter().any(|p| regular(p).0.contains("(?!") || regular(p).0.contains("(?="))
            })
            .map(|(kind, _)| kind.clone())
            .collect();
        // Its lookaheads stand behind repetitions of a fixed length.
        assert_eq!(lookaround, ["LLAMA_VOCAB_PRE_TYPE_JAIS2"]);
    }

    #[test]
    fn no_rule_is_slow_on_long_runs() {
        let runs = ["a", "A", "^", "7", "字", "\u{301}", "\n", " \n", "a ", "'", "é/"].map(|part| part.repeat(200_000));
        let spaces = [" ".repeat(200_000), format!("{}x", " ".repeat(200_000))];
        for kind in rules().names.into_iter().map(|(name, kind)| (kind, name)).collect::<HashMap<_, _>>() {
            let Ok(pre_tokenizer) = PreTokenizer::named(&kind.1) else { continue };
            for text in runs.iter().chain(&spaces) {
                let start = std::time::Instant::now();
                let pieces = pre_tokenizer.split(text);
                assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<usize>(), text.len());
                let seconds = start.elapsed().as_secs_f64();
                assert!(seconds < 2.0, "{kind:?}: {seconds:.1} s for {:?}...", text.chars().next());
            }
        }
    }

    /// Every pattern as the table has it and as it is used.
    static BOTH: LazyLock<Vec<(String, Rule, Rule)>> = LazyLock::new(|| {
        let types = rules().types.into_iter();
        let used = types.filter(|(kind, _)| NOT_REGEXES.iter().all(|(refused, _)| refused != kind));
        let patterns: BTreeSet<String> = used.flat_map(|(_, patterns)| patterns).collect();
        let rules = |pattern: String| {
            let original = Rule { regex: SysRegex::new(&pattern).unwrap(), tail: None };
            (pattern.clone(), original, Rule::new(&pattern))
        };
        patterns.into_iter().map(rules).collect()
    });

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn restated_patterns_split_as_the_originals(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "a", "B", "Ab", "é", "Σ", "字", "ا", "\u{301}", "1", "23", "٣", " ", "  ", "\t", "\n", "\r\n", "\u{a0}",
                    "\u{3000}", "'s", "'LL", "!", "..", "/", "^", "。", "😀", "_", "\u{85}",
                ]),
                0..24,
            ),
        ) {
            let text = parts.concat();
            for (pattern, original, used) in BOTH.iter() {
                prop_assert_eq!(pieces(used, &text), pieces(original, &text), "{}", pattern);
            }
        }
    }
}
