//! Stop strings: text is held back while it may be the start of one.

/// Finds the first stop string to be complete in a stream of text, wherever the pieces are cut, and holds back what may
/// become one.
pub struct StopFilter<'a> {
    stop: &'a [String],
    /// A proper prefix of a stop string.
    held: String,
    complete: bool,
}

impl<'a> StopFilter<'a> {
    pub fn new(stop: &'a [String]) -> StopFilter<'a> {
        StopFilter { stop, held: String::new(), complete: false }
    }

    /// The text that can be no part of a stop string. Nothing once one is complete.
    pub fn push(&mut self, text: &str) -> String {
        if self.complete {
            return String::new();
        }
        let mut text = std::mem::take(&mut self.held) + text;
        // By its end, not its start: else a longer one that starts earlier would win or lose by how the text is cut.
        let found = self.stops().filter_map(|stop| text.find(stop).map(|start| (start + stop.len(), start))).min();
        if let Some((_, start)) = found {
            self.complete = true;
            text.truncate(start);
            return text;
        }
        let held = self.stops().map(|stop| overlap(&text, stop)).max().unwrap_or(0);
        self.held = text.split_off(text.len() - held);
        text
    }

    /// What was held back in vain.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// An empty stop string would end every answer before it starts.
    fn stops(&self) -> impl Iterator<Item = &'a str> {
        self.stop.iter().map(String::as_str).filter(|stop| !stop.is_empty())
    }
}

/// Bytes of the longest proper prefix of `stop` that `text` ends with. Both are UTF-8, so it starts at a character.
pub fn overlap(text: &str, stop: &str) -> usize {
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    (1..stop.len().min(text.len() + 1)).rev().find(|&len| text.ends_with(&stop[..len])).unwrap_or(0)
}
