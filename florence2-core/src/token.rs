//! Location tokens and the other tokens that Florence-2 adds to BART's vocabulary.
//!
//! The 1024 added tokens stand in a row: `<od>`, `</od>`, `<ocr>`, `</ocr>`, then `<loc_0>` to `<loc_999>`, then
//! twenty more. Where the row begins depends on the vocabulary: [`TokenLayout`] says it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// A bin of one axis, 0 to 999; as text, a location token such as `<loc_52>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Loc(u16);

impl Loc {
    /// How many bins an axis has.
    pub const COUNT: u16 = 1000;

    /// `None` if there is no such bin.
    #[must_use]
    pub const fn new(bin: u16) -> Option<Self> {
        if bin < Self::COUNT { Some(Self(bin)) } else { None }
    }

    /// The nearest one.
    pub(crate) const fn clamped(bin: u16) -> Self {
        Self(if bin < Self::COUNT { bin } else { Self::COUNT - 1 })
    }

    /// The bin, 0 to 999.
    #[must_use]
    pub const fn bin(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<loc_{}>", self.0)
    }
}

/// Only the token's own spelling: `<loc_007>` is text to the tokenizer, and an error here.
impl FromStr for Loc {
    type Err = NotALoc;

    fn from_str(text: &str) -> Result<Self, NotALoc> {
        let digits = text.strip_prefix("<loc_").and_then(|rest| rest.strip_suffix('>')).ok_or(NotALoc)?;
        let plain = digits.len() <= 3 && digits.bytes().all(|b| b.is_ascii_digit());
        if !plain || (digits.len() > 1 && digits.starts_with('0')) {
            return Err(NotALoc);
        }
        digits.parse().ok().and_then(Self::new).ok_or(NotALoc)
    }
}

/// A text that is none of `<loc_0>` to `<loc_999>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a location token: one of <loc_0> to <loc_999> is needed")]
pub struct NotALoc;

/// The 24 added tokens that are not locations: 4 before them, 20 after.
const NAMES: [&str; 24] = [
    "<od>",
    "</od>",
    "<ocr>",
    "</ocr>",
    "<cap>",
    "</cap>",
    "<ncap>",
    "</ncap>",
    "<dcap>",
    "</dcap>",
    "<grounding>",
    "</grounding>",
    "<seg>",
    "</seg>",
    "<sep>",
    "<region_cap>",
    "</region_cap>",
    // So spelled in every published vocabulary.
    "<region_to_desciption>",
    "</region_to_desciption>",
    "<proposal>",
    "</proposal>",
    "<poly>",
    "</poly>",
    "<and>",
];
const NAMES_BEFORE_LOCS: u16 = 4;

/// One of the 1024 tokens that the processor adds to BART's vocabulary; [`Display`](fmt::Display) gives its text.
///
/// ```
/// use florence2_core::AddedToken;
///
/// let mut added = AddedToken::all().map(|token| token.to_string());
/// assert_eq!(added.nth(4).as_deref(), Some("<loc_0>"));
/// assert_eq!(added.last().as_deref(), Some("<and>"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddedToken(u16);

impl AddedToken {
    /// How many there are.
    pub const COUNT: u16 = Loc::COUNT + NAMES.len() as u16;

    /// All of them, in the order of their ids.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its place in that order.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.0
    }

    /// The location, if it is one.
    #[must_use]
    pub fn as_loc(self) -> Option<Loc> {
        self.0.checked_sub(NAMES_BEFORE_LOCS).and_then(Loc::new)
    }

    /// The one that the text begins with, and its length in bytes. None is the beginning of another.
    fn at_start_of(text: &str) -> Option<(Self, usize)> {
        let end = text.bytes().take(32).position(|b| b == b'>')? + 1;
        Some((text[..end].parse().ok()?, end))
    }
}

impl From<Loc> for AddedToken {
    fn from(loc: Loc) -> Self {
        Self(loc.bin() + NAMES_BEFORE_LOCS)
    }
}

impl fmt::Display for AddedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_loc() {
            Some(loc) => loc.fmt(f),
            None if self.0 < NAMES_BEFORE_LOCS => f.write_str(NAMES[usize::from(self.0)]),
            None => f.write_str(NAMES[usize::from(self.0 - Loc::COUNT)]),
        }
    }
}

impl FromStr for AddedToken {
    type Err = NotAnAddedToken;

    fn from_str(text: &str) -> Result<Self, NotAnAddedToken> {
        if let Ok(loc) = text.parse::<Loc>() {
            return Ok(loc.into());
        }
        let at = NAMES.iter().position(|name| *name == text).ok_or(NotAnAddedToken)? as u16;
        Ok(Self(if at < NAMES_BEFORE_LOCS { at } else { at + Loc::COUNT }))
    }
}

/// A text that is none of the 1024 added tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of Florence-2's added tokens")]
pub struct NotAnAddedToken;

/// BART's own special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpecialToken {
    /// `<s>`
    Bos,
    /// `<pad>`
    Pad,
    /// `</s>`
    Eos,
    /// `<unk>`
    Unk,
    /// `<mask>`
    Mask,
}

impl SpecialToken {
    /// All five.
    pub const ALL: [Self; 5] = [Self::Bos, Self::Pad, Self::Eos, Self::Unk, Self::Mask];

    /// Its text, such as `</s>`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Bos => "<s>",
            Self::Pad => "<pad>",
            Self::Eos => "</s>",
            Self::Unk => "<unk>",
            Self::Mask => "<mask>",
        }
    }
}

impl fmt::Display for SpecialToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// Where the special and the added tokens stand in a vocabulary.
///
/// The published checkpoints agree on [`TokenLayout::FLORENCE2`]. A fine-tune with a vocabulary of its own does
/// not: [`TokenLayout::find`] asks its tokenizer.
///
/// ```
/// use florence2_core::{Loc, TokenLayout};
///
/// let layout = TokenLayout::FLORENCE2;
/// assert_eq!(layout.id(Loc::new(0).unwrap()), 50_269);
/// assert_eq!(layout.loc(51_268), Loc::new(999));
/// assert_eq!(layout.loc(51_269), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenLayout {
    bos: u32,
    pad: u32,
    eos: u32,
    unk: u32,
    mask: u32,
    added: u32,
}

impl TokenLayout {
    /// The layout of every published checkpoint: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` 50264,
    /// `<loc_0>` 50269.
    pub const FLORENCE2: Self = Self { bos: 0, pad: 1, eos: 2, unk: 3, mask: 50_264, added: 50_265 };

    /// Asks a tokenizer for the id of each special and each added token.
    ///
    /// # Errors
    ///
    /// If one is missing (a stock BART tokenizer has no `<loc_0>`), or the added tokens do not stand in a row. A
    /// token is missing, too, if its id is that of `<unk>`, which some tokenizers give for what they do not know.
    pub fn find(mut id: impl FnMut(&str) -> Option<u32>) -> Result<Self, LayoutError> {
        let unknown = id(SpecialToken::Unk.text());
        let mut known = |token: &dyn fmt::Display| {
            let text = alloc::format!("{token}");
            match id(&text) {
                Some(id) if text == SpecialToken::Unk.text() || Some(id) != unknown => Ok(id),
                _ => Err(LayoutError::Missing(text)),
            }
        };
        let [bos, pad, eos, unk, mask] = {
            let mut ids = [0; 5];
            for (slot, token) in ids.iter_mut().zip(SpecialToken::ALL) {
                *slot = known(&token)?;
            }
            ids
        };
        let first = known(&AddedToken(0))?;
        for token in AddedToken::all() {
            let found = known(&token)?;
            let expected = first.checked_add(u32::from(token.index()));
            if expected != Some(found) {
                return Err(LayoutError::OutOfRow { token, first, found });
            }
        }
        Ok(Self { bos, pad, eos, unk, mask, added: first })
    }

    /// The id of a location token.
    #[must_use]
    pub const fn id(&self, loc: Loc) -> u32 {
        self.added + (NAMES_BEFORE_LOCS + loc.bin()) as u32
    }

    /// The location that an id stands for.
    #[must_use]
    pub fn loc(&self, id: u32) -> Option<Loc> {
        self.added(id).and_then(AddedToken::as_loc)
    }

    /// The id of an added token.
    #[must_use]
    pub const fn added_id(&self, token: AddedToken) -> u32 {
        self.added + token.index() as u32
    }

    /// The added token that an id stands for.
    #[must_use]
    pub fn added(&self, id: u32) -> Option<AddedToken> {
        let index = u16::try_from(id.checked_sub(self.added)?).ok()?;
        (index < AddedToken::COUNT).then_some(AddedToken(index))
    }

    /// The id of a special token.
    #[must_use]
    pub const fn special_id(&self, token: SpecialToken) -> u32 {
        match token {
            SpecialToken::Bos => self.bos,
            SpecialToken::Pad => self.pad,
            SpecialToken::Eos => self.eos,
            SpecialToken::Unk => self.unk,
            SpecialToken::Mask => self.mask,
        }
    }

    /// The special token that an id stands for.
    #[must_use]
    pub fn special(&self, id: u32) -> Option<SpecialToken> {
        SpecialToken::ALL.into_iter().find(|&token| self.special_id(token) == id)
    }

    /// The ids of a sentence as the encoder takes it: `<s>`, the sentence, `</s>`, each end exactly once.
    ///
    /// `bpe` gives the ids of a stretch of plain text and appends them; it never sees a special or an added
    /// token. A sentence that begins with `<s>` or ends with `</s>` already gets no second one.
    ///
    /// ```
    /// use florence2_core::TokenLayout;
    ///
    /// // A tokenizer for this example only: one id a character.
    /// let bpe = |text: &str, ids: &mut Vec<u32>| ids.extend(text.chars().map(u32::from));
    /// let ids = TokenLayout::FLORENCE2.encode("at <loc_5>", bpe);
    /// assert_eq!(ids, [0, 97, 116, 32, 50_274, 2]);
    /// assert_eq!(TokenLayout::FLORENCE2.encode("<s>at <loc_5></s>", bpe), ids);
    /// ```
    #[must_use]
    pub fn encode(&self, sentence: &str, mut bpe: impl FnMut(&str, &mut Vec<u32>)) -> Vec<u32> {
        let inner = sentence.trim_start_matches("<s>").trim_end_matches("</s>");
        let mut ids = alloc::vec![self.bos];
        for segment in segments(inner) {
            match segment {
                Segment::Text(text) => bpe(text, &mut ids),
                Segment::Special(token) => ids.push(self.special_id(token)),
                Segment::Added(token) => ids.push(self.added_id(token)),
            }
        }
        ids.push(self.eos);
        ids
    }
}

/// Why a tokenizer cannot be Florence-2's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A token is not in the vocabulary.
    #[error(
        "the tokenizer has no {0}: it is not Florence-2's, or the 1024 added tokens must be added to it \
         (AddedToken::all() gives them in order)"
    )]
    Missing(String),
    /// The added tokens are there, but not one after the other.
    #[error(
        "the tokenizer has {token} at {found}, but <od> at {first}: the 1024 added tokens must stand in a row, \
         in the order of AddedToken::all()"
    )]
    OutOfRow {
        /// The first token that is out of the row.
        token: AddedToken,
        /// The id of `<od>`, where the row begins.
        first: u32,
        /// The id that was found.
        found: u32,
    },
}

/// A stretch of text as a tokenizer must see it: added and special tokens are matched before BPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Plain text, never empty, for BPE; a space before a token belongs to it.
    Text(&'a str),
    /// One of BART's special tokens.
    Special(SpecialToken),
    /// One of the 1024 added tokens.
    Added(AddedToken),
}

/// Cuts a text at its special and added tokens. `<mask>` takes the white space in front of it along, as in BART.
///
/// ```
/// use florence2_core::{Segment, segments};
///
/// let parts: Vec<_> = segments("region <loc_3>?").collect();
/// assert!(matches!(parts[..], [Segment::Text("region "), Segment::Added(_), Segment::Text("?")]));
/// ```
pub fn segments(text: &str) -> impl Iterator<Item = Segment<'_>> {
    let mut rest = text;
    let mut ready = None;
    core::iter::from_fn(move || {
        if let Some(token) = ready.take() {
            return Some(token);
        }
        let mut from = 0;
        while let Some(at) = rest[from..].find('<').map(|at| from + at) {
            let Some((token, len)) = token_at_start_of(&rest[at..]) else {
                from = at + 1;
                continue;
            };
            let before = match token {
                Segment::Special(SpecialToken::Mask) => rest[..at].trim_end(),
                _ => &rest[..at],
            };
            rest = &rest[at + len..];
            if before.is_empty() {
                return Some(token);
            }
            ready = Some(token);
            return Some(Segment::Text(before));
        }
        let last = core::mem::take(&mut rest);
        (!last.is_empty()).then_some(Segment::Text(last))
    })
}

fn token_at_start_of(text: &str) -> Option<(Segment<'static>, usize)> {
    if let Some((token, len)) = AddedToken::at_start_of(text) {
        return Some((Segment::Added(token), len));
    }
    let token = SpecialToken::ALL.into_iter().find(|token| text.starts_with(token.text()))?;
    Some((Segment::Special(token), token.text().len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_added_tokens_have_the_published_ids() {
        let layout = TokenLayout::FLORENCE2;
        for (text, id) in [
            ("<od>", 50_265),
            ("</ocr>", 50_268),
            ("<loc_0>", 50_269),
            ("<loc_999>", 51_268),
            ("<cap>", 51_269),
            ("<sep>", 51_279),
            ("<region_to_desciption>", 51_282),
            ("<poly>", 51_286),
            ("</poly>", 51_287),
            ("<and>", 51_288),
        ] {
            let token: AddedToken = text.parse().expect(text);
            assert_eq!(layout.added_id(token), id, "{text}");
            assert_eq!(layout.added(id), Some(token));
            assert_eq!(token.to_string(), text);
        }
        assert_eq!(layout.added(50_264), None);
        assert_eq!(layout.added(51_289), None);
        assert_eq!(AddedToken::all().len(), 1024);
    }

    #[test]
    fn every_added_token_goes_to_its_text_and_back() {
        for token in AddedToken::all() {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
    }

    #[test]
    fn only_the_tokens_own_spelling_is_a_location() {
        for text in [
            "<loc_1000>",
            "<loc_007>",
            "<loc_>",
            "<loc_+1>",
            "<loc_-1>",
            "<loc_１>",
            "loc_1",
            "<LOC_1>",
            "<loc_1> ",
        ] {
            assert_eq!(text.parse::<Loc>(), Err(NotALoc), "{text}");
        }
    }

    #[test]
    fn special_ids_go_both_ways() {
        for token in SpecialToken::ALL {
            assert_eq!(TokenLayout::FLORENCE2.special(TokenLayout::FLORENCE2.special_id(token)), Some(token));
        }
    }

    /// A vocabulary in which the added tokens begin at `base`.
    fn vocabulary(base: u32) -> impl Fn(&str) -> Option<u32> {
        move |text| {
            let special = SpecialToken::ALL.iter().position(|token| token.text() == text);
            special
                .map(|at| at as u32)
                .or_else(|| text.parse::<AddedToken>().ok().map(|token| base + u32::from(token.index())))
        }
    }

    #[test]
    fn a_vocabulary_of_its_own_is_found_not_assumed() {
        let layout = TokenLayout::find(vocabulary(533)).expect("a whole row");
        assert_eq!(layout.id(Loc(0)), 537);
        assert_eq!(layout.loc(537), Some(Loc(0)));
        assert_eq!(layout.special_id(SpecialToken::Mask), 4);
    }

    /// Complaint b022: with a stock BART tokenizer every location is garbage.
    #[test]
    fn a_tokenizer_without_location_tokens_is_refused_by_name() {
        let error = TokenLayout::find(|text| if text == "<loc_0>" { None } else { vocabulary(533)(text) });
        assert_eq!(error, Err(LayoutError::Missing("<loc_0>".into())));
        let error = TokenLayout::find(|text| {
            SpecialToken::ALL.iter().position(|t| t.text() == text).map(|at| at as u32)
        });
        assert!(error.expect_err("no added tokens").to_string().contains("<od>"));
    }

    #[test]
    fn a_gap_in_the_row_is_refused() {
        let gap = |text: &str| vocabulary(533)(text).map(|id| if id > 700 { id + 1 } else { id });
        assert!(matches!(TokenLayout::find(gap), Err(LayoutError::OutOfRow { first: 533, found: 702, .. })));
        assert!(TokenLayout::find(vocabulary(u32::MAX - 1100)).is_ok());
    }

    /// Complaint b023: an already wrapped prompt was wrapped again.
    #[test]
    fn a_wrapped_sentence_is_not_wrapped_again() {
        let bpe = |text: &str, ids: &mut Vec<u32>| {
            assert_eq!(text, "What does the image describe?");
            ids.extend([2264, 473, 5, 2274, 6190, 116]);
        };
        for text in ["What does the image describe?", "<s>What does the image describe?</s>"] {
            assert_eq!(TokenLayout::FLORENCE2.encode(text, bpe), [0, 2264, 473, 5, 2274, 6190, 116, 2]);
        }
    }

    /// Complaint b028: added tokens are matched before BPE, the space in front stays.
    #[test]
    fn added_tokens_are_cut_out_before_bpe() {
        let text = "What is the region <loc_123><loc_234><loc_345><loc_456>?";
        let parts: Vec<_> = segments(text).collect();
        assert_eq!(parts[0], Segment::Text("What is the region "));
        let bins: Vec<_> = parts[1..5]
            .iter()
            .map(|part| match part {
                Segment::Added(token) => token.as_loc().map(Loc::bin),
                _ => None,
            })
            .collect();
        assert_eq!(bins, [Some(123), Some(234), Some(345), Some(456)]);
        assert_eq!(parts[5], Segment::Text("?"));
        assert_eq!(parts.len(), 6);
    }

    #[test]
    fn a_tokenizer_that_answers_unk_lacks_the_token() {
        let stock =
            |text: &str| Some(SpecialToken::ALL.iter().position(|t| t.text() == text).unwrap_or(3) as u32);
        assert_eq!(TokenLayout::find(stock), Err(LayoutError::Missing("<od>".into())));
    }

    #[test]
    fn a_mask_takes_the_space_in_front_of_it() {
        let parts: Vec<_> = segments("x <mask> y").collect();
        assert_eq!(parts, [Segment::Text("x"), Segment::Special(SpecialToken::Mask), Segment::Text(" y")]);
    }

    #[test]
    fn what_only_looks_like_a_token_stays_text() {
        for text in ["a < b", "<loc_1000>", "<Sep>", "<<", "<loc_1", "é<", "<x<loc_>"] {
            assert_eq!(segments(text).collect::<Vec<_>>(), [Segment::Text(text)], "{text}");
        }
        assert_eq!(segments("").count(), 0);
        let doubled: Vec<_> = segments("<<s>s>").collect();
        assert_eq!(doubled, [Segment::Text("<"), Segment::Special(SpecialToken::Bos), Segment::Text("s>")]);
    }
}
