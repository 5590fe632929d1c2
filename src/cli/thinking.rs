//! What a model thinks before it answers: `<think>...</think>` and its kin, told from the answer while text streams.
//!
//! A thought stands at the start of an answer, or its tag is the last thing that the chat template wrote. Later tags are
//! words about tags.

use crate::generation::overlap;

/// Opening and closing tags that published models write.
const TAGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
];

/// A part of an answer. All parts together are the text as it was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// With its tags, and the space behind them.
    Thought(String),
    Answer(String),
}

#[derive(Debug)]
pub struct ThinkingFilter {
    place: Place,
    /// Text that may become a tag.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but space so far.
    Start,
    /// Within a thought, up to this tag.
    Thought(&'static str),
    /// Nothing but space behind a thought.
    Behind,
    Answer,
}

impl ThinkingFilter {
    /// For what a model says to `prompt`.
    pub fn new(prompt: &str) -> ThinkingFilter {
        let end = prompt.trim_end();
        let opened = TAGS.iter().find(|(open, _)| end.ends_with(open));
        let place = opened.map_or(Place::Start, |&(_, close)| Place::Thought(close));
        ThinkingFilter { place, held: String::new() }
    }

    pub fn is_in_thought(&self) -> bool {
        matches!(self.place, Place::Thought(_))
    }

    /// The parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while let Some(part) = self.step() {
            parts.push(part);
        }
        parts
    }

    /// What was held back, once the answer is over.
    pub fn finish(&mut self) -> Option<Part> {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() {
            return None;
        }
        Some(match self.place {
            Place::Start | Place::Answer => Part::Answer(rest),
            Place::Behind if !rest.trim().is_empty() => Part::Answer(rest),
            Place::Thought(_) | Place::Behind => Part::Thought(rest),
        })
    }

    fn step(&mut self) -> Option<Part> {
        match self.place {
            Place::Thought(close) => {
                if let Some(at) = self.held.find(close) {
                    self.place = Place::Behind;
                    return Some(Part::Thought(self.take(at + close.len())));
                }
                let sure = self.held.len() - overlap(&self.held, close);
                (sure > 0).then(|| Part::Thought(self.take(sure)))
            }
            Place::Start | Place::Behind => self.step_before_text(),
            Place::Answer => (!self.held.is_empty()).then(|| Part::Answer(self.take(self.held.len()))),
        }
    }

    /// Space belongs to the thought that follows or precedes it, else to the answer.
    fn step_before_text(&mut self) -> Option<Part> {
        let text = self.held.trim_start();
        let space = self.held.len() - text.len();
        if let Some(&(open, close)) = TAGS.iter().find(|(open, _)| text.starts_with(open)) {
            self.place = Place::Thought(close);
            return Some(Part::Thought(self.take(space + open.len())));
        }
        if self.place == Place::Behind && space > 0 {
            return Some(Part::Thought(self.take(space)));
        }
        if TAGS.iter().any(|(open, _)| open.starts_with(text)) {
            return None;
        }
        self.place = Place::Answer;
        self.step()
    }

    fn take(&mut self, bytes: usize) -> String {
        self.held.drain(..bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Thought and answer of what a model says piece by piece, each joined.
    fn told(prompt: &str, pieces: &[&str]) -> (String, String) {
        let mut filter = ThinkingFilter::new(prompt);
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| filter.push(piece)).collect();
        parts.extend(filter.finish());
        let (mut thought, mut answer) = (String::new(), String::new());
        for part in parts {
            match part {
                Part::Thought(text) => thought += &text,
                Part::Answer(text) => answer += &text,
            }
        }
        (thought, answer)
    }

    fn pair(thought: &str, answer: &str) -> (String, String) {
        (thought.to_string(), answer.to_string())
    }

    #[test]
    fn a_thought_is_told_from_the_answer_however_its_tags_are_cut() {
        let text = "<think>\nOne and one.\n</think>\n\nTwo.";
        let expected = pair("<think>\nOne and one.\n</think>\n\n", "Two.");
        assert_eq!(told("", &[text]), expected);
        for cut in 0..text.len() {
            assert_eq!(told("", &[&text[..cut], &text[cut..]]), expected, "cut at {cut}");
        }
        assert_eq!(
            told("", &["<", "th", "ink", ">", "\n", "One and one.\n<", "/", "think", ">\n", "\n", "Two."]),
            expected
        );
    }

    #[test]
    fn every_tag_closes_with_its_own() {
        for (open, close) in TAGS {
            let other = TAGS.iter().find(|(_, other)| other != close).unwrap().1;
            let thought = format!("{open}a {other} b{close} ");
            assert_eq!(told("", &[&thought, "c"]), (thought, "c".to_string()));
        }
    }

    #[test]
    fn a_template_that_opens_the_thought_leaves_only_its_end_to_the_model() {
        assert_eq!(told("<|Assistant|><think>\n", &["hm", "</think>", "\n\nYes."]), pair("hm</think>\n\n", "Yes."));
        // As where thinking is switched off.
        assert_eq!(told("assistant\n<think>\n\n</think>\n\n", &["Yes."]), pair("", "Yes."));
    }

    #[test]
    fn tags_in_an_answer_are_words() {
        assert_eq!(told("", &["A <think> tag."]), pair("", "A <think> tag."));
        assert_eq!(told("", &["<think>a</think>b <think>c"]), pair("<think>a</think>", "b <think>c"));
        assert_eq!(told("", &["<thinner>"]), pair("", "<thinner>"));
        assert_eq!(told("", &["</think> a"]), pair("", "</think> a"));
    }

    #[test]
    fn two_thoughts_may_follow_each_other() {
        assert_eq!(
            told("", &["<think>a</think>\n<think>b</think> c"]),
            pair("<think>a</think>\n<think>b</think> ", "c")
        );
    }

    #[test]
    fn an_answer_that_ends_early_loses_nothing() {
        assert_eq!(told("", &["<think>a</thi"]), pair("<think>a</thi", ""));
        assert_eq!(told("", &["<thi"]), pair("", "<thi"));
        assert_eq!(told("", &["\n "]), pair("", "\n "));
        assert_eq!(told("", &["<think></think>\n"]), pair("<think></think>\n", ""));
    }

    #[test]
    fn only_what_may_become_a_tag_waits() {
        let mut filter = ThinkingFilter::new("");
        assert_eq!(filter.push(" <thi"), []);
        assert_eq!(filter.push("s"), [Part::Answer(" <this".into())]);
        assert_eq!(filter.push(" <think"), [Part::Answer(" <think".into())]);
        let mut filter = ThinkingFilter::new("<think>");
        assert!(filter.is_in_thought());
        assert_eq!(filter.push("a < b <"), [Part::Thought("a < b ".into())]);
        assert_eq!(filter.push("c"), [Part::Thought("<c".into())]);
    }

    proptest! {
        #[test]
        fn all_parts_together_are_the_text(
            pieces in prop::collection::vec("<think>|</think>|<th|ink>|\\[THINK\\]|[ \n]|é|word|<|/", 0..20),
            opened in any::<bool>(),
        ) {
            let mut filter = ThinkingFilter::new(if opened { "<think>\n" } else { "" });
            let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| filter.push(piece)).collect();
            parts.extend(filter.finish());
            let texts = parts.into_iter().map(|part| match part { Part::Thought(text) | Part::Answer(text) => text });
            prop_assert_eq!(texts.collect::<String>(), pieces.concat());
        }
    }
}
