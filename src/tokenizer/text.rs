//! Token bytes -> complete UTF-8, as a stream.

/// Collects bytes and gives out only complete characters; what can never become one turns into U+FFFD. Never holds more
/// than the three bytes of an unfinished character, so the cost of a push is that of its own bytes.
#[derive(Default)]
pub struct TextStream {
    unfinished: Vec<u8>,
}

impl TextStream {
    /// The text that became complete with `bytes`.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.unfinished.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.unfinished.as_slice();
        loop {
            let (valid, error) = match std::str::from_utf8(rest) {
                Ok(valid) => (valid, None),
                Err(error) => {
                    let valid = std::str::from_utf8(&rest[..error.valid_up_to()]).expect("checked by the line above");
                    (valid, Some(error))
                }
            };
            text.push_str(valid);
            rest = &rest[valid.len()..];
            // Without a length the sequence is cut short and may still become a character.
            match error.and_then(|error| error.error_len()) {
                Some(invalid_bytes) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid_bytes..];
                }
                None => break,
            }
        }
        self.unfinished = rest.to_vec();
        text
    }

    /// What is left at the end, as U+FFFD where incomplete.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.unfinished)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(parts: &[&[u8]]) -> Vec<String> {
        let mut stream = TextStream::default();
        let mut texts: Vec<String> = parts.iter().map(|part| stream.push(part)).collect();
        texts.push(stream.finish());
        texts
    }

    #[test]
    fn holds_back_until_a_character_is_complete() {
        assert_eq!(stream(&[b"a\xf0\x92", b"\x80", b"\x80b"]), ["a", "", "𒀀b", ""]);
    }

    #[test]
    fn gives_up_on_what_cannot_become_a_character() {
        assert_eq!(stream(&[b"\xe4", b"x", b"\xff", b"\xe4\xbd"]), ["", "\u{fffd}x", "\u{fffd}", "", "\u{fffd}"]);
        // A genuine U+FFFD is a character like any other.
        assert_eq!(stream(&["\u{fffd}".as_bytes()]), ["\u{fffd}", ""]);
    }

    #[test]
    fn endless_invalid_bytes_cost_linear_time() {
        let mut stream = TextStream::default();
        let text: String = (0..300_000).map(|_| stream.push(b"\x80")).collect();
        assert_eq!(text.chars().count(), 300_000);
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_text_of_the_whole(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..40)) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(stream(&parts).concat(), String::from_utf8_lossy(&parts.concat()).into_owned());
        }
    }
}
