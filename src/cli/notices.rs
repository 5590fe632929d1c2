//! What a user is told when an answer forgets old tokens to go on.

use super::terminal::Terminal;
use crate::engine::Notice;

/// The notices of one answer: the first eviction is told, and every recompute.
pub struct Notices {
    context_tokens: usize,
    evicted: bool,
}

impl Notices {
    pub fn new(context_tokens: usize) -> Notices {
        Notices { context_tokens, evicted: false }
    }

    /// `is_mid_line`: of the answer so far, which a terminal shows on the same screen.
    pub fn tell(&mut self, notice: Notice, is_mid_line: bool, terminal: &mut Terminal) {
        let Some(sentence) = self.sentence(notice) else { return };
        if is_mid_line && terminal.stdout_is_terminal() && terminal.stderr_is_terminal() {
            // Only looks: if the answer's reader is gone, its next piece tells.
            let _ = terminal.write_text("\n");
        }
        terminal.warn(&sentence);
    }

    fn sentence(&mut self, notice: Notice) -> Option<String> {
        let context_tokens = self.context_tokens;
        match notice {
            Notice::Evicted { .. } if std::mem::replace(&mut self.evicted, true) => None,
            Notice::Evicted { tokens } => Some(format!(
                "the context of {context_tokens} tokens is full: the answer goes on without the oldest {tokens}, and \
                 forgets more as it needs room"
            )),
            Notice::Recomputed { dropped, kept } => Some(format!(
                "positions have come to the trained length: the oldest {dropped} tokens were dropped and the other \
                 {kept} computed again"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_eviction_and_every_recompute_are_told_with_their_numbers() {
        let mut notices = Notices::new(128);
        let first = notices.sentence(Notice::Evicted { tokens: 16 }).unwrap();
        assert!(first.contains("128") && first.contains("oldest 16"), "{first}");
        assert_eq!(notices.sentence(Notice::Evicted { tokens: 16 }), None);
        for _ in 0..2 {
            let recomputed = notices.sentence(Notice::Recomputed { dropped: 24, kept: 40 }).unwrap();
            assert!(recomputed.contains("24") && recomputed.contains("40"), "{recomputed}");
        }
    }
}
