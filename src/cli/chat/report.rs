//! The lines of a report, which a narrow terminal gets broken between words.

use unicode_width::UnicodeWidthStr;

use crate::cli::terminal::Terminal;

/// One line of a report, as the terminal has room for it.
pub fn tell(terminal: &Terminal, line: &str) {
    match rows(line, terminal.talk_columns()).as_slice() {
        [line] => terminal.talk(line),
        rows => terminal.talk_lines(&rows.join("\n")),
    }
}

/// The line in rows narrower than `columns`, 0: endless. A last column goes on below itself.
fn rows(line: &str, columns: usize) -> Vec<String> {
    if columns == 0 || line.width() < columns {
        return vec![line.to_string()];
    }
    // Two spaces stand before a column. Too far on the right there is no room for words.
    let ends = line.match_indices("  ").map(|(at, _)| line[..at].width() + line[at..].find(|c| c != ' ').unwrap_or(0));
    let indent = ends.filter(|end| end * 3 <= columns * 2).last().unwrap_or(0);
    let mut rows = vec![String::new()];
    for piece in line.split_inclusive([' ', ';']) {
        let row = rows.last_mut().expect("begins with one");
        let is_full = row.width() + piece.trim_end().width() >= columns;
        if is_full && row.width() > indent {
            rows.push(" ".repeat(indent) + piece);
        } else {
            row.push_str(piece);
        }
    }
    rows.iter().map(|row| row.trim_end().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_broken_between_words_below_its_values() {
        let line = "prompt   147 tokens, 132 of them  cached";
        assert_eq!(rows(line, 0), [line]);
        assert_eq!(rows(line, 41), [line]);
        assert_eq!(rows(line, 40), ["prompt   147 tokens, 132 of them", "         cached"]);
        assert_eq!(rows("samplers dry;top_k;top_p", 20), ["samplers dry;top_k;", "top_p"]);
        assert_eq!(rows("=  0 shared  0.0 MiB  of none", 26), ["=  0 shared  0.0 MiB  of", "             none"]);
        assert_eq!(rows("model    /a/long/name x", 12), ["model", "/a/long/name", "x"]);
        assert_eq!(rows("model    /a/long/long/name", 20), ["model    /a/long/long/name"]);
    }
}
