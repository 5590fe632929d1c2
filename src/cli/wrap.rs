//! Breaks the lines of an answer between words while it streams: what is known of a word shows at once, and when the
//! word turns out not to fit it is taken back and begun anew on the next line.
//!
//! Taking back needs two escape sequences, so this is for terminals alone. The last column stays empty: what a cursor
//! does that has filled it differs between terminals.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// On narrower terminals words would only be torn into pieces.
const LEAST_WIDTH: usize = 8;
const TAB: usize = 8;
/// Fenced code is left as it is, so that it can be copied.
const FENCE_LENGTH: usize = 3;

#[derive(Debug, Default)]
pub struct Wrap {
    /// Of the terminal when the line began, 0 before the first one.
    width: usize,
    /// Where the cursor stands in its row.
    column: usize,
    /// What stands before the cursor and must stay together, empty behind a space.
    word: String,
    /// Where the word began; `None`: it cannot be taken back, since it fills a row or its place is not known.
    word_start: Option<usize>,
    /// A space came that had no room: the next word begins a line.
    breaks_next: bool,
    line: Line,
    /// The mark of the fence that code stands behind.
    code: Option<char>,
}

/// What the present line is, as far as it is known.
#[derive(Debug, Default, PartialEq)]
enum Line {
    /// Nothing but spaces.
    #[default]
    Blank,
    /// So many of these characters, which may become a fence.
    Marks(char, usize),
    Fence(char),
    Text,
}

impl Wrap {
    /// What a terminal `width` columns wide is to be sent for `text`, which holds no control characters other than
    /// line ends and tabs.
    pub fn push(&mut self, text: &str, width: usize) -> String {
        if width < LEAST_WIDTH {
            *self = Wrap { code: self.code, ..Wrap::default() };
            return text.to_string();
        }
        if width != self.width {
            // The terminal has broken the line anew, and nothing is known but that it did so at its edge.
            self.column %= width;
            self.word_start = self.word.is_empty().then_some(self.column);
            self.width = width;
        }
        let mut out = String::new();
        text.chars().for_each(|c| self.push_char(c, &mut out));
        out
    }

    /// What follows is no part of the last word, as its look is another.
    pub fn end_word(&mut self) {
        self.word.clear();
        self.word_start = Some(self.column);
    }

    fn push_char(&mut self, c: char, out: &mut String) {
        if c == '\n' {
            out.push('\n');
            self.end_line();
            return;
        }
        self.look_at(c);
        if self.code.is_some() || matches!(self.line, Line::Fence(_)) {
            out.push(c);
            self.flow(c);
        } else if c == ' ' || c == '\t' {
            self.push_space(c, out);
        } else {
            self.push_letter(c, out);
        }
    }

    fn end_line(&mut self) {
        match (&self.line, self.code) {
            (&Line::Fence(mark), None) => self.code = Some(mark),
            (&Line::Fence(mark), Some(opened)) if mark == opened => self.code = None,
            _ => {}
        }
        (self.line, self.column, self.breaks_next) = (Line::Blank, 0, false);
        self.end_word();
    }

    /// Recognizes a fence, which may be indented.
    fn look_at(&mut self, c: char) {
        self.line = match (&self.line, c) {
            (Line::Blank, ' ') => Line::Blank,
            (Line::Blank, '`' | '~') => Line::Marks(c, 1),
            (&Line::Marks(mark, n), _) if mark == c && n + 1 == FENCE_LENGTH => Line::Fence(mark),
            (&Line::Marks(mark, n), _) if mark == c => Line::Marks(mark, n + 1),
            (&Line::Fence(mark), _) => Line::Fence(mark),
            _ => Line::Text,
        };
    }

    /// A character that the terminal itself puts where there is room.
    fn flow(&mut self, c: char) {
        let width = c.width().unwrap_or(0);
        self.column = match self.column + width {
            _ if c == '\t' => (self.column + TAB - self.column % TAB).min(self.width - 1),
            filled if filled > self.width => width,
            filled => filled,
        };
        self.word.clear();
        self.word_start = None;
    }

    fn push_space(&mut self, c: char, out: &mut String) {
        let width = if c == '\t' { TAB - self.column % TAB } else { 1 };
        if self.breaks_next || self.column + width >= self.width {
            self.breaks_next = true;
        } else {
            out.push(c);
            self.column += width;
        }
        self.end_word();
    }

    fn push_letter(&mut self, c: char, out: &mut String) {
        if std::mem::take(&mut self.breaks_next) {
            self.break_line(out);
        }
        if self.word.chars().next_back().is_some_and(|last| may_break_between(last, c)) {
            self.end_word();
        }
        let Some(start) = self.word_start else {
            out.push(c);
            // Behind a word that fills rows every place is one to go on from, but not one to go back to.
            self.flow(c);
            self.word.push(c);
            return;
        };
        self.word.push(c);
        let column = start + self.word.width();
        if column < self.width {
            out.push(c);
            self.column = column;
        } else if start == 0 {
            // Longer than a line: the terminal breaks it, so that an address can still be copied as one.
            let word = std::mem::take(&mut self.word);
            out.push(c);
            self.flow(c);
            self.word = word;
        } else {
            self.word.pop();
            let word = std::mem::take(&mut self.word);
            if out.ends_with(&word) {
                // It was not sent yet.
                out.truncate(out.len() - word.len());
            } else {
                *out += &format!("\x1b[{}D\x1b[K", self.column - start);
            }
            self.break_line(out);
            *out += &word;
            self.column = word.width();
            self.word = word;
            self.push_letter(c, out);
        }
    }

    fn break_line(&mut self, out: &mut String) {
        out.push('\n');
        self.column = 0;
        self.end_word();
    }
}

/// Whether a line may end between two characters that no space parts: beside Chinese and Japanese characters and
/// emoji, unless one of them must not stand alone.
fn may_break_between(last: char, next: char) -> bool {
    let joined = next.width().unwrap_or(0) == 0 || is_skin_tone(next) || last == ZERO_WIDTH_JOINER;
    !joined && (is_ideographic(last) || is_ideographic(next)) && !OPENING.contains(last) && !CLOSING.contains(next)
}

const ZERO_WIDTH_JOINER: char = '\u{200d}';
/// Begin what follows.
const OPENING: &str = "([{\"'“‘「『（【〈《〔［｛";
/// End what stands before, or are a part of its sound.
const CLOSING: &str =
    ")]}\"'”’,.;:!?%、。，．・：；？！」』）】〉》〕］｝ー～…‥々ゝゞぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ";

fn is_skin_tone(c: char) -> bool {
    ('\u{1f3fb}'..='\u{1f3ff}').contains(&c)
}

/// Two columns wide, but Korean, which has spaces.
fn is_ideographic(c: char) -> bool {
    c.width() == Some(2) && !('\u{ac00}'..='\u{d7a3}').contains(&c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A terminal as far as a wrapped answer needs one: rows of cells, and a cursor that waits at the edge.
    struct Screen {
        rows: Vec<Vec<String>>,
        column: usize,
        width: usize,
    }

    impl Screen {
        fn new(width: usize) -> Screen {
            Screen { rows: vec![Vec::new()], column: 0, width }
        }

        fn show(&mut self, sent: &str) {
            let mut rest = sent.chars();
            while let Some(c) = rest.next() {
                match c {
                    '\n' => self.next_row(),
                    '\x1b' => {
                        assert_eq!(rest.next(), Some('['));
                        let code: String = rest.by_ref().take_while(|c| c.is_ascii_digit()).collect();
                        // The first character that is no digit ended the loop: `D` behind a number, `K` alone.
                        match code.parse::<usize>() {
                            Ok(back) => self.column = self.column.checked_sub(back).expect("stays in the row"),
                            Err(_) => self.rows.last_mut().unwrap().truncate(self.column),
                        }
                    }
                    // Never to the next row.
                    '\t' => {
                        self.column = (self.column + TAB - self.column % TAB).min(self.width - 1);
                        self.rows.last_mut().unwrap().resize(self.column, " ".to_string());
                    }
                    _ => self.put(&c.to_string(), c.width().unwrap_or(0)),
                }
            }
        }

        fn put(&mut self, text: &str, width: usize) {
            let row = self.rows.last_mut().unwrap();
            let cell = row.iter_mut().rfind(|cell| !cell.is_empty());
            let is_joined = cell.as_ref().is_some_and(|cell| cell.ends_with(ZERO_WIDTH_JOINER));
            if width == 0 || is_joined || text.chars().all(is_skin_tone) {
                cell.unwrap().push_str(text);
                return;
            }
            if self.column + width > self.width {
                self.next_row();
            }
            let row = self.rows.last_mut().unwrap();
            row.truncate(self.column);
            row.push(text.to_string());
            row.extend(std::iter::repeat_n(String::new(), width - 1));
            self.column += width;
        }

        fn next_row(&mut self) {
            self.rows.push(Vec::new());
            self.column = 0;
        }

        fn rows(&self) -> Vec<String> {
            self.rows.iter().map(|row| row.concat().trim_end().to_string()).collect()
        }
    }

    /// Rows of a terminal that is sent `pieces` one by one.
    fn shown(pieces: &[&str], width: usize) -> Vec<String> {
        let (mut wrap, mut screen) = (Wrap::default(), Screen::new(width));
        for piece in pieces {
            screen.show(&wrap.push(piece, width));
            assert_eq!(screen.column, wrap.column, "after {piece:?}");
        }
        screen.rows()
    }

    fn letters(text: &str) -> Vec<String> {
        text.chars().map(|c| c.to_string()).collect()
    }

    #[test]
    fn lines_end_between_words_wherever_the_pieces_end() {
        let rows = ["The quick brown fox", "jumps over the lazy", "dog."];
        let text = "The quick brown fox jumps over the lazy dog.";
        let chars = letters(text);
        assert_eq!(shown(&chars.iter().map(String::as_str).collect::<Vec<_>>(), 20), rows);
        assert_eq!(shown(&[text], 20), rows);
        assert_eq!(shown(&["The quick bro", "wn fox ju", "mps over the la", "zy dog."], 20), rows);
    }

    #[test]
    fn a_piece_shows_at_once_and_a_word_that_fits_is_never_taken_back() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.push("one tw", 10), "one tw");
        assert_eq!(wrap.push("o", 10), "o");
        assert_eq!(wrap.push(" thr", 10), " \nthr");
        let mut wrap = Wrap::default();
        assert_eq!(wrap.push("one thr", 10), "one thr");
        assert_eq!(wrap.push("eeeee", 10), "ee\x1b[5D\x1b[K\nthreeeee");
    }

    #[test]
    fn a_space_at_the_edge_begins_no_line() {
        assert_eq!(shown(&["12345678", "9 ", "next"], 10), ["123456789", "next"]);
        assert_eq!(shown(&["123456789  ", "  next"], 10), ["123456789", "next"]);
        assert_eq!(shown(&["123456789 ", "\n", "next"], 10), ["123456789", "next"], "one line end, not two");
    }

    #[test]
    fn a_word_longer_than_a_line_is_broken_by_the_terminal_alone() {
        let address = "https://example.org/a/long/address";
        assert_eq!(shown(&["see ", address, " now"], 20), ["see", "https://example.org/", "a/long/address now"]);
        let sent = Wrap::default().push(address, 20);
        assert_eq!(sent, address, "it can be copied as one");
    }

    #[test]
    fn wide_characters_break_anywhere_but_not_before_a_full_stop() {
        let text = "日本語の文章は空白なしで続きます。";
        assert_eq!(shown(&[text], 12), ["日本語の文", "章は空白な", "しで続きま", "す。"]);
        let chars = letters("漢字。漢字。漢字。");
        assert_eq!(shown(&chars.iter().map(String::as_str).collect::<Vec<_>>(), 9), ["漢字。漢", "字。漢", "字。"]);
        assert_eq!(shown(&["한국어 단어는", " 나뉘지 않는다"], 12), ["한국어", "단어는", "나뉘지", "않는다"]);
    }

    #[test]
    fn an_emoji_of_several_characters_stays_whole() {
        assert_eq!(shown(&["12345 👍", "🏽 ok"], 20), ["12345 👍🏽 ok"]);
        let rows = shown(&["1234567 👩", "\u{200d}", "💻 ok"], 12);
        assert_eq!(rows.concat().matches("👩\u{200d}💻").count(), 1, "{rows:?}");
    }

    #[test]
    fn fenced_code_is_left_as_it_is() {
        let code = "```\nlet a = b + c + d + e;\n```\none two three four";
        let sent = Wrap::default().push(code, 12);
        assert!(sent.starts_with("```\nlet a = b + c + d + e;\n```\n"), "{sent:?}");
        assert!(sent.ends_with("one two \nthree four"), "{sent:?}");
        let in_text = Wrap::default().push("`a b` and `c` and more", 12);
        assert!(in_text.contains('\n'), "a pair of marks is no fence: {in_text:?}");
    }

    #[test]
    fn a_tab_takes_the_columns_up_to_the_next_stop() {
        assert_eq!(shown(&["a\tb\tcdef"], 20), ["a       b", "cdef"]);
        assert_eq!(shown(&["a\tb\tcd"], 20), ["a       b       cd"]);
    }

    #[test]
    fn a_resized_terminal_counts_from_the_next_piece_on() {
        let mut wrap = Wrap::default();
        wrap.push("one two three four five", 80);
        assert_eq!(wrap.push(" six", 10), " six");
        assert_eq!(wrap.push(" seven eight", 10), " \nseven \neight");
        assert_eq!(wrap.push(" nine ten", 80), " nine ten");
    }

    #[test]
    fn another_look_begins_a_word() {
        let mut wrap = Wrap::default();
        wrap.push("one two", 10);
        wrap.end_word();
        assert_eq!(wrap.push("th", 10), "th");
        assert_eq!(wrap.push("ree", 10), "\x1b[2D\x1b[K\nthree");
    }

    #[test]
    fn a_terminal_without_room_gets_the_text_as_it_is() {
        assert_eq!(Wrap::default().push("one two three", 4), "one two three");
    }

    proptest! {
        /// Nothing but spaces at the ends of rows is lost, and the cursor is where it is thought to be.
        #[test]
        fn every_word_is_shown_once(
            words in prop::collection::vec("[a-z]{1,14}|[日本語、。]{1,6}|[`~]{1,4}|👍|\t|\n", 0..30),
            cuts in prop::collection::vec(1..9usize, 1..20),
            width in 8..30usize,
        ) {
            let text = words.join(" ");
            let chars: Vec<char> = text.chars().collect();
            let (mut wrap, mut screen) = (Wrap::default(), Screen::new(width));
            let (mut at, mut turn) = (0, 0);
            while at < chars.len() {
                let end = chars.len().min(at + cuts[turn % cuts.len()]);
                let piece: String = chars[at..end].iter().collect();
                screen.show(&wrap.push(&piece, width));
                prop_assert_eq!(screen.column, wrap.column);
                (at, turn) = (end, turn + 1);
            }
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(solid(&screen.rows().concat()), solid(&text));
        }
    }
}
