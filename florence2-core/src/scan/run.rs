//! A stretch of text that may become a label.

use alloc::string::String;

use crate::answer::Label;
use crate::chars::{is_space, strip, strip_start};
use crate::score::Tally;

#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    text: String,
    /// The pieces of the text without the white space at its ends.
    tally: Tally,
    /// The pieces of white space that come after.
    space: Tally,
    /// Whether there is more than white space.
    ink: bool,
}

impl Run {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.tally = Tally::default();
        self.space = Tally::default();
        self.ink = false;
    }

    pub(crate) fn push(&mut self, text: &str, tally: &Tally) {
        if !text.chars().all(is_space) {
            self.tally.join(&self.space);
            self.space = Tally::default();
            self.tally.join(tally);
            self.ink = true;
        } else if self.ink {
            self.space.join(tally);
        }
        self.text.push_str(text);
    }

    /// Cuts it back to an earlier length, at which it had these pieces.
    pub(crate) fn truncate(&mut self, len: usize, tally: Tally) {
        self.text.truncate(len);
        self.tally = tally;
        self.space = Tally::default();
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The text from `at` on as a label of boxes or polygons; `None` if the references drop it.
    ///
    /// They match `^\s*(.*?)` up to the first location, and `.` does not cross a newline: white space may hold
    /// newlines at the beginning, nowhere else.
    pub(crate) fn phrase_from(&self, at: usize) -> Option<&str> {
        let after_space = strip_start(&self.text[at..]);
        (!after_space.contains('\n')).then(|| strip(after_space))
    }
}

/// A label without its characters outside of ASCII, as `encode('ascii', 'ignore')` leaves it.
pub(crate) fn ascii_label(text: &str, scratch: &mut String) -> Label {
    if text.is_ascii() {
        return text.into();
    }
    scratch.clear();
    scratch.extend(text.chars().filter(char::is_ascii));
    scratch.as_str().into()
}
