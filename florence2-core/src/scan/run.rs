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

    /// More text, before which everything goes if it begins with `<`.
    pub(crate) fn push_after_angle(&mut self, text: &str, tally: &Tally) {
        match text.strip_prefix('<') {
            None => self.push(text, tally),
            Some(after) => {
                self.clear();
                if !after.is_empty() {
                    self.push(after, tally);
                }
            }
        }
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

/// A token as it was written. Most are short, and kept without an allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Last {
    short: [u8; 16],
    /// Of the short one; 0 if the token is long.
    len: u8,
    long: String,
    tally: Tally,
}

impl Last {
    pub(crate) fn set(&mut self, raw: &str, tally: &Tally) {
        match self.short.get_mut(..raw.len()) {
            Some(short) => {
                short.copy_from_slice(raw.as_bytes());
                self.len = raw.len() as u8;
            }
            None => {
                self.len = 0;
                self.long.clear();
                self.long.push_str(raw);
            }
        }
        self.tally = *tally;
    }

    /// What stands behind its `<`.
    pub(crate) fn push_to(&self, run: &mut Run) {
        let short = &self.short[..self.len.into()];
        let raw = if short.is_empty() {
            self.long.as_str()
        } else {
            core::str::from_utf8(short).unwrap_or_default()
        };
        run.push_after_angle(raw, &self.tally);
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
