//! Text from ids that come one by one.

use super::Tokenizer;

/// Decodes ids as they come, and gives text as soon as it is complete.
///
/// A character outside of ASCII may be spread over several tokens. Its bytes are held until it is whole, so that what is
/// given is never taken back, and joined it is what [`Tokenizer::decode`] gives for all ids.
#[derive(Clone, Debug)]
pub struct TokenDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character: three bytes at most.
    held: Vec<u8>,
}

impl<'a> TokenDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, held: Vec::new() }
    }

    /// One more id; gives what is now complete.
    #[must_use = "text is given once"]
    pub fn push(&mut self, id: u32) -> String {
        self.held.extend_from_slice(self.tokenizer.texts.get(id));
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let at_end = done + invalid.len() == self.held.len();
            let may_go_on = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if at_end && may_go_on {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.held.drain(..done);
        text
    }

    /// The end: what was held is no character.
    #[must_use = "text is given once"]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}
