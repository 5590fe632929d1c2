//! Token bytes -> complete UTF-8, as a stream.

/// Collects bytes and gives out only complete characters; what can never become one turns into U+FFFD.
#[derive(Default)]
pub struct TextStream {}

impl TextStream {
    /// The text that became complete with `bytes`.
    pub fn push(&mut self, _bytes: &[u8]) -> String {
        unimplemented!()
    }
    /// What is left at the end, as U+FFFD where incomplete.
    pub fn finish(&mut self) -> String {
        unimplemented!()
    }
}
