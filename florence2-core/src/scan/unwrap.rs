//! Removes `<s>`, then `</s>`, then `<pad>`, as `str.replace` does one after the other.
//!
//! The order shows on hostile text: taking `<s>` out of `<<s>/s>` makes a `</s>`, which goes too; taking `<pad>`
//! out of `<<pad>s>` makes a `<s>`, which stays. So each is a filter of its own, fed by the one before. Each
//! begins with its only `<`, so that a text which stops matching can be let go at once, and a filter holds no
//! more than it has matched: the whole is linear and needs no memory.

use crate::score::Tag;

/// Which wrappers a kind of answer and a dialect take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrappers {
    Bos,
    BosEos,
    BosEosPad,
}

/// Takes one literal out of a text that arrives character by character.
#[derive(Clone, Debug)]
struct Filter {
    literal: &'static str,
    matched: usize,
    tags: [Tag; 5],
}

impl Filter {
    const fn new(literal: &'static str) -> Self {
        Self { literal, matched: 0, tags: [Tag::NONE; 5] }
    }

    fn push(&mut self, c: char, tag: Tag, mut next: impl FnMut(char, Tag)) {
        let bytes = self.literal.as_bytes();
        if c as u32 == u32::from(bytes[self.matched]) {
            self.tags[self.matched] = tag;
            self.matched += 1;
            if self.matched == bytes.len() {
                self.matched = 0;
            }
            return;
        }
        if self.matched > 0 {
            self.release(&mut next);
        }
        if c == '<' {
            self.tags[0] = tag;
            self.matched = 1;
        } else {
            next(c, tag);
        }
    }

    fn release(&mut self, mut next: impl FnMut(char, Tag)) {
        // All literals are ASCII.
        for (byte, tag) in self.literal.bytes().zip(&self.tags).take(self.matched) {
            next(char::from(byte), *tag);
        }
        self.matched = 0;
    }
}

/// The filters in a row.
#[derive(Clone, Debug)]
pub(crate) struct Unwrap {
    wrappers: Wrappers,
    bos: Filter,
    eos: Filter,
    pad: Filter,
}

impl Unwrap {
    pub(crate) const fn new(wrappers: Wrappers) -> Self {
        Self { wrappers, bos: Filter::new("<s>"), eos: Filter::new("</s>"), pad: Filter::new("<pad>") }
    }

    /// Whether nothing is held, so that text without a `<` passes unchanged.
    pub(crate) fn is_idle(&self) -> bool {
        self.bos.matched == 0 && self.eos.matched == 0 && self.pad.matched == 0
    }

    /// The length of the wrapper that the text begins with, for an idle filter.
    pub(crate) fn whole_at_start_of(&self, text: &str) -> Option<usize> {
        let (eos, pad) = match self.wrappers {
            Wrappers::Bos => (false, false),
            Wrappers::BosEos => (true, false),
            Wrappers::BosEosPad => (true, true),
        };
        match text.as_bytes().get(1)? {
            b's' if text.starts_with("<s>") => Some("<s>".len()),
            b'/' if eos && text.starts_with("</s>") => Some("</s>".len()),
            b'p' if pad && text.starts_with("<pad>") => Some("<pad>".len()),
            _ => None,
        }
    }

    pub(crate) fn push(&mut self, c: char, tag: Tag, mut next: impl FnMut(char, Tag)) {
        let Self { wrappers, bos, eos, pad } = self;
        match wrappers {
            Wrappers::Bos => bos.push(c, tag, next),
            Wrappers::BosEos => bos.push(c, tag, |c, tag| eos.push(c, tag, &mut next)),
            Wrappers::BosEosPad => {
                bos.push(c, tag, |c, tag| eos.push(c, tag, |c, tag| pad.push(c, tag, &mut next)));
            }
        }
    }

    /// Lets go of what is held: the text is at its end.
    pub(crate) fn finish(&mut self, mut next: impl FnMut(char, Tag)) {
        let Self { wrappers, bos, eos, pad } = self;
        match wrappers {
            Wrappers::Bos => bos.release(next),
            Wrappers::BosEos => {
                bos.release(|c, tag| eos.push(c, tag, &mut next));
                eos.release(next);
            }
            Wrappers::BosEosPad => {
                bos.release(|c, tag| eos.push(c, tag, |c, tag| pad.push(c, tag, &mut next)));
                eos.release(|c, tag| pad.push(c, tag, &mut next));
                pad.release(next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn unwrapped(text: &str, wrappers: Wrappers) -> String {
        let mut out = String::new();
        let mut unwrap = Unwrap::new(wrappers);
        for c in text.chars() {
            unwrap.push(c, Tag::NONE, |c, _| out.push(c));
        }
        unwrap.finish(|c, _| out.push(c));
        assert!(unwrap.is_idle());
        out
    }

    #[test]
    fn filters_do_what_replace_does() {
        for text in [
            "",
            "<",
            "<s",
            "<s>",
            "<<s>s>",
            "<<s>/s>",
            "<</s>s>",
            "<p<s>ad>",
            "<pa</s>d>",
            "<<pad>s>",
            "<<<s>",
            "</</s>s>",
            "<s><s>a</s><pad><pad>",
            "<pad",
            "</s",
            "é<s>é",
            "<loc_<pad>1<s>2>",
            "<s<s>>",
            "<p<p<pad>ad>ad>",
        ] {
            let bos = text.replace("<s>", "");
            let eos = bos.replace("</s>", "");
            let pad = eos.replace("<pad>", "");
            assert_eq!(unwrapped(text, Wrappers::Bos), bos, "{text}");
            assert_eq!(unwrapped(text, Wrappers::BosEos), eos, "{text}");
            assert_eq!(unwrapped(text, Wrappers::BosEosPad), pad, "{text}");
        }
    }
}
