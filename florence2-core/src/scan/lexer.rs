//! Cuts text at the tokens that carry structure: `<loc_N>`, `<sep>`, `<poly>`, `</poly>`.

use alloc::string::String;

use crate::chars::digit;
use crate::score::{Tag, Tally};

/// A token that carries structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A bin: any digits are a location to the references. Those over `u64::MAX` are held there.
    Loc(u64),
    Sep,
    PolyStart,
    PolyEnd,
}

/// What reads the lexed text. Text may come in pieces of any length, but is never empty, and has a `<` nowhere but
/// at its beginning.
pub(crate) trait Reader {
    fn text(&mut self, text: &str, tally: &Tally);
    /// `raw` is the token as it was written.
    fn token(&mut self, token: Token, raw: &str, tally: &Tally);
}

const LITERALS: [(&str, Token); 3] =
    [("<sep>", Token::Sep), ("<poly>", Token::PolyStart), ("</poly>", Token::PolyEnd)];
const LOC: &str = "<loc_";

/// The token that the text, which begins with `<`, begins with, and its length, if its digits are plain ones.
#[inline]
pub(crate) fn token_at_start_of(text: &str) -> Option<(Token, usize)> {
    let bytes = text.as_bytes();
    if bytes.get(1) == Some(&b'l') {
        let digits = bytes.strip_prefix(LOC.as_bytes())?;
        let mut bin = 0;
        for (at, byte) in digits.iter().enumerate() {
            let value = byte.wrapping_sub(b'0');
            if value < 10 {
                bin = with_digit(bin, value);
            } else {
                return (*byte == b'>' && at > 0).then_some((Token::Loc(bin), LOC.len() + at + 1));
            }
        }
        return None;
    }
    match bytes.get(1)? {
        b's' if text.starts_with("<sep>") => Some((Token::Sep, "<sep>".len())),
        b'p' if text.starts_with("<poly>") => Some((Token::PolyStart, "<poly>".len())),
        b'/' if text.starts_with("</poly>") => Some((Token::PolyEnd, "</poly>".len())),
        _ => None,
    }
}

/// How long the text, which begins with `<`, is certain to be no more than text: up to its next `<`, if what follows
/// the first begins neither a token nor a wrapper. Behind another `<` a wrapper may stand, without which the two
/// pieces meet.
pub(crate) fn plain_at_start_of(text: &str, token: impl Fn(u8) -> bool) -> Option<usize> {
    let next = *text.as_bytes().get(1)?;
    if matches!(next, b'<' | b's' | b'/' | b'p') || token(next) {
        return None;
    }
    Some(text[1..].find('<').map_or(text.len(), |at| at + 1))
}

fn with_digit(bin: u64, value: u8) -> u64 {
    bin.saturating_mul(10).saturating_add(value.into())
}

/// A token that has begun and may still become one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partial {
    /// What has come of it, from its `<`.
    raw: String,
    tally: Tally,
    bin: u64,
    digits: bool,
}

impl Partial {
    pub(crate) fn is_idle(&self) -> bool {
        self.raw.is_empty()
    }

    /// One character more. A token holds one `<`, at its beginning, so what stops matching is let go whole.
    pub(crate) fn push(&mut self, c: char, tag: Tag, reader: &mut impl Reader) {
        if !self.raw.is_empty() {
            if c != '<' && self.accepts(c, tag, reader) {
                return;
            }
            self.release(reader);
        }
        if c == '<' {
            self.raw.push(c);
            self.tally = Tally::of(tag);
        } else {
            reader.text(c.encode_utf8(&mut [0; 4]), &Tally::of(tag));
        }
    }

    /// Lets go of what has come: it is text.
    pub(crate) fn release(&mut self, reader: &mut impl Reader) {
        if !self.raw.is_empty() {
            reader.text(&self.raw, &self.tally);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.raw.clear();
        self.tally = Tally::default();
        self.bin = 0;
        self.digits = false;
    }

    fn accepts(&mut self, c: char, tag: Tag, reader: &mut impl Reader) -> bool {
        let complete = if self.raw.len() >= LOC.len() && self.raw.starts_with(LOC) {
            match digit(c) {
                Some(value) => {
                    self.bin = with_digit(self.bin, value);
                    self.digits = true;
                    None
                }
                None if c == '>' && self.digits => Some(Token::Loc(self.bin)),
                None => return false,
            }
        } else {
            let begun = |literal: &str| {
                literal.strip_prefix(self.raw.as_str()).is_some_and(|rest| rest.starts_with(c))
            };
            let literal = LITERALS.iter().find(|(literal, _)| begun(literal));
            if literal.is_none() && !begun(LOC) {
                return false;
            }
            literal.filter(|_| c == '>').map(|&(_, token)| token)
        };
        self.raw.push(c);
        self.tally.add(tag);
        if let Some(token) = complete {
            reader.token(token, &self.raw, &self.tally);
            self.clear();
        }
        true
    }
}
