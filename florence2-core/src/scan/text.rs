//! Answers in text: the wrappers go, and in the transformers dialect the white space at both ends.

use alloc::string::String;

use super::Sink;
use super::lexer::plain_at_start_of;
use super::unwrap::{Unwrap, Wrappers};
use crate::chars::{is_space, strip_start};
use crate::score::Tag;

#[derive(Clone, Debug)]
pub(crate) struct TextScanner {
    unwrap: Unwrap,
    trim: Trim,
}

#[derive(Clone, Debug)]
struct Trim {
    on: bool,
    /// Whether more than white space has come.
    ink: bool,
    /// White space that is at the end, unless more comes.
    space: String,
}

impl Trim {
    fn push(&mut self, text: &str, sink: &mut impl Sink) {
        if !self.on {
            return sink.text(text);
        }
        let text = if self.ink { text } else { strip_start(text) };
        let inked = text.trim_end_matches(is_space);
        if !inked.is_empty() {
            self.ink = true;
            if !self.space.is_empty() {
                sink.text(&self.space);
                self.space.clear();
            }
            sink.text(inked);
        }
        self.space.push_str(&text[inked.len()..]);
    }
}

impl TextScanner {
    pub(crate) fn new(trim: bool) -> Self {
        let trim = Trim { on: trim, ink: false, space: String::new() };
        Self { unwrap: Unwrap::new(Wrappers::BosEos), trim }
    }

    pub(crate) fn push(&mut self, text: &str, sink: &mut impl Sink) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if self.unwrap.is_idle() {
                let plain = rest.find('<').unwrap_or(rest.len());
                if plain > 0 {
                    self.trim.push(&rest[..plain], sink);
                    rest = &rest[plain..];
                    continue;
                }
                if let Some(len) = self.unwrap.whole_at_start_of(rest) {
                    rest = &rest[len..];
                    continue;
                }
                if let Some(len) = plain_at_start_of(rest, |_| false) {
                    self.trim.push(&rest[..len], sink);
                    rest = &rest[len..];
                    continue;
                }
            }
            let Self { unwrap, trim } = self;
            unwrap.push(c, Tag::NONE, |c, _| trim.push(c.encode_utf8(&mut [0; 4]), sink));
            rest = &rest[c.len_utf8()..];
        }
    }

    pub(crate) fn finish(&mut self, sink: &mut impl Sink) {
        let Self { unwrap, trim } = self;
        unwrap.finish(|c, _| trim.push(c.encode_utf8(&mut [0; 4]), sink));
    }
}
