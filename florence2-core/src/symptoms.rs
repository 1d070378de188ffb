//! What looks wrong in an answer, though it parses: the references return an empty result and say nothing.

use alloc::vec::Vec;
use core::fmt;

use crate::chars::{is_space, strip};
use crate::parse::ParseOptions;
use crate::task::{AnswerKind, Task};

/// Something in an answer that a user should hear of. [`Display`](fmt::Display) says what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Symptom {
    /// The answer repeats a piece of a task marker.
    EchoedMarker,
    /// White space stands between location tokens.
    SpacedLocations,
    /// Something like a location is there that no parser reads.
    UnreadableLocations,
    /// The answer is nothing but `<s>`, over and over.
    Degenerate,
    /// The answer does not end in `</s>`: it was cut.
    Truncated,
}

impl Symptom {
    const fn message(self) -> &'static str {
        match self {
            Self::EchoedMarker => {
                "the answer echoes a task marker: the marker reached the model as it stands; ask the sentence that \
                 it stands for"
            }
            Self::SpacedLocations => {
                "white space stands between location tokens, so that a shape is not found; decode without spaces \
                 between special tokens, or parse with spaced locations"
            }
            Self::UnreadableLocations => {
                "the answer holds text that looks like locations but is none; locations are written <loc_0> to \
                 <loc_999>"
            }
            Self::Degenerate => {
                "the answer is <s> over and over; generate with no_repeat_ngram_size 3 and forced_bos_token_id 0"
            }
            Self::Truncated => {
                "the answer has a beginning but no </s> at its end: it was cut, and what was cut off is missing; \
                 generate with a larger length limit"
            }
        }
    }
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.message())
    }
}

/// What looks wrong in an answer that is parsed as that kind with these options, in the order of [`Symptom`]; usually nothing.
///
/// ```
/// use florence2_core::{ParseOptions, Symptom, Task, symptoms};
///
/// let spaced = "</s><s>mug <loc_295> <loc_325> <loc_781> <loc_746> </s>";
/// let options = ParseOptions::default();
/// assert_eq!(symptoms(Task::ObjectDetection, spaced, &options), [Symptom::SpacedLocations]);
/// assert_eq!(symptoms(Task::ObjectDetection, spaced, &options.spaced_locations(true)), []);
/// ```
///
/// Whether an answer was cut shows only if its special tokens were kept: in text that begins with `<s>` or
/// `</s>`.
#[must_use]
pub fn symptoms(kind: impl Into<AnswerKind>, text: &str, options: &ParseOptions<'_>) -> Vec<Symptom> {
    let kind = kind.into();
    let mut found = Vec::new();
    let inner = inner(text);
    if echoes_marker(inner) {
        found.push(Symptom::EchoedMarker);
    }
    if kind.has_locations() {
        if !options.spaced_locations && has_spaced_locations(inner) {
            found.push(Symptom::SpacedLocations);
        }
        if has_unreadable_locations(inner) {
            found.push(Symptom::UnreadableLocations);
        }
    }
    if inner.is_empty() && text.matches("<s>").count() > 4 {
        found.push(Symptom::Degenerate);
    } else if begins(text) && !ends(text) {
        found.push(Symptom::Truncated);
    }
    found
}

/// The text without the special tokens and the white space at its ends.
fn inner(text: &str) -> &str {
    let mut inner = strip(text);
    loop {
        let before = inner.len();
        for token in ["<s>", "</s>", "<pad>"] {
            inner = strip(inner.strip_prefix(token).unwrap_or(inner));
            inner = strip(inner.strip_suffix(token).unwrap_or(inner));
        }
        if inner.len() == before {
            return inner;
        }
    }
}

fn begins(text: &str) -> bool {
    let text = strip(text);
    text.starts_with("<s>") || text.starts_with("</s>")
}

fn ends(text: &str) -> bool {
    let mut rest = strip(text);
    while let Some(before) = rest.strip_suffix("<pad>") {
        rest = strip(before);
    }
    // The decoder's start token is `</s>`: alone it ends nothing.
    rest.ends_with("</s>") && rest != "</s>"
}

/// Whether the text begins with a whole marker, or with what a tokenizer leaves of one: `R_WITH_REGION<poly>`.
///
/// The underscore tells such a piece from a word in capitals that stands in the picture.
fn echoes_marker(inner: &str) -> bool {
    let end = inner.find(|c: char| !(c.is_ascii_uppercase() || c == '_')).unwrap_or(inner.len());
    let piece = &inner[..end];
    let is_piece = piece.len() >= 4 && piece.contains('_');
    Task::ALL
        .iter()
        .any(|task| inner.starts_with(task.marker()) || (is_piece && task.name().ends_with(piece)))
}

fn has_spaced_locations(inner: &str) -> bool {
    let mut locations = inner.match_indices("<loc_").map(|(at, _)| at);
    locations.any(|at| {
        let before = inner[..at].trim_end_matches(is_space);
        before.len() < at && ends_in_location(before)
    })
}

fn ends_in_location(text: &str) -> bool {
    let Some(digits) = text.strip_suffix('>') else { return false };
    let rest = digits.trim_end_matches(|c: char| c.is_ascii_digit());
    rest.len() < digits.len() && rest.ends_with("<loc_")
}

fn has_unreadable_locations(inner: &str) -> bool {
    inner.match_indices("<loc").any(|(at, found)| {
        let rest = &inner[at + found.len()..];
        let Some(digits) = rest.strip_prefix('_') else {
            // `<loc 753 557 …>`, `<loc:1>`; not `<location>`.
            return rest.starts_with(|c: char| !c.is_alphanumeric());
        };
        let after = digits.trim_start_matches(|c| crate::chars::digit(c).is_some());
        // At the very end it is a token that was cut.
        (after.len() == digits.len() || !after.starts_with('>')) && !after.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_answers_have_none() {
        for (task, text) in [
            (Task::ObjectDetection, "</s><s>car<loc_54><loc_375><loc_906><loc_707></s>"),
            (Task::ObjectDetection, "car<loc_54><loc_375><loc_906><loc_707>"),
            (Task::ObjectDetection, "</s><s></s><pad><pad>"),
            (Task::Caption, "</s><s>A CAR_PARK < here </s>"),
            (Task::Ocr, "</s><s>CAPTION</s>"),
            (Task::Ocr, "</s><s>OCR</s>"),
            (Task::OcrWithRegion, "CAPTION<loc_1><loc_2><loc_3><loc_4><loc_1><loc_2><loc_3><loc_4>"),
            (Task::ObjectDetection, "</s><s><od>car</od><loc_1><loc_2><loc_3><loc_4></s>"),
            (Task::OcrWithRegion, "</s><s>STOP<loc_1><loc_2><loc_3><loc_4><loc_1><loc_2><loc_3><loc_4></s>"),
            (Task::ObjectDetection, ""),
            (Task::Caption, "<loc 1 2>"),
        ] {
            assert_eq!(symptoms(task, text, &ParseOptions::default()), [], "{text}");
        }
    }

    /// Complaint b025: an answer that begins with a piece of the marker came out empty.
    #[test]
    fn an_echoed_marker_is_told() {
        for text in [
            "</s><s>R_WITH_REGION<poly><loc_0><loc_999></s>",
            "<OCR_WITH_REGION>x",
            "</s><s><CAPTION></s>",
            "</s><s><OD>car</s>",
        ] {
            assert_eq!(
                symptoms(Task::OcrWithRegion, text, &ParseOptions::default()),
                [Symptom::EchoedMarker],
                "{text}"
            );
        }
    }

    /// Complaint b091: a fine-tune with a token of its own.
    #[test]
    fn what_only_looks_like_a_location_is_told() {
        for text in ["</s><s>Blue Jay <loc 753 557 1237 875></s>", "dog<loc_-1><loc_2>", "dog<loc_1.5>"] {
            assert_eq!(
                symptoms(Task::ObjectDetection, text, &ParseOptions::default()),
                [Symptom::UnreadableLocations],
                "{text}"
            );
        }
        assert_eq!(symptoms(Task::ObjectDetection, "the <location> of it", &ParseOptions::default()), []);
    }

    /// Complaint b041: nothing but `<s>`.
    #[test]
    fn an_answer_of_start_tokens_only_is_told() {
        assert_eq!(
            symptoms(Task::Caption, "<s><s><s><s><s><s><s><s>", &ParseOptions::default()),
            [Symptom::Degenerate]
        );
    }

    /// Complaint b075: an answer that was cut.
    #[test]
    fn an_answer_that_was_cut_is_told() {
        for text in ["</s><s>dog<loc_10><loc_20><loc_30><loc_40", "</s><s>A green", "</s>"] {
            assert_eq!(
                symptoms(Task::ObjectDetection, text, &ParseOptions::default()),
                [Symptom::Truncated],
                "{text}"
            );
        }
        assert_eq!(symptoms(Task::OcrWithRegion, "</s><s><s><s></s>", &ParseOptions::default()), []);
    }
}
