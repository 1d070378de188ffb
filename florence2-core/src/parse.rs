//! Answers as a whole: text in, values out.

use crate::answer::Answer;
use crate::banned::BannedPhrases;
use crate::grid::LocGrid;
use crate::scan::{Context, Engine};
use crate::score::Tag;
use crate::task::AnswerKind;

/// Which of the two references an answer is read like.
///
/// | | microsoft | transformers |
/// |---|---|---|
/// | coordinates | `f32` | cut to whole numbers |
/// | text | `<s>`, `</s>` removed | also trimmed |
/// | labels of quadrilaterals | `</s>` and `<pad>` kept, not trimmed | removed, trimmed |
/// | labels of polygons | a left-over `loc_1>` at the beginning removed | kept |
///
/// The first is the `processing_florence2.py` that ships with the checkpoints, the second the implementation in
/// the transformers library. They also trim a prompt's input differently ([`Prompt::sentence`](crate::Prompt::sentence)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Dialect {
    /// The code that ships with microsoft's checkpoints.
    #[default]
    Microsoft,
    /// The transformers library.
    Transformers,
}

/// How an answer is read.
///
/// ```
/// use florence2_core::{Dialect, ParseOptions};
///
/// let options = ParseOptions::default().dialect(Dialect::Transformers).spaced_locations(true);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ParseOptions<'a> {
    /// Whose rules hold.
    pub dialect: Dialect,
    /// What phrase grounding leaves out.
    pub banned: BannedPhrases<'a>,
    /// Whether white space between two tokens of an answer is passed over.
    ///
    /// Off, as in the references, which find no box in `mug <loc_295> <loc_325> <loc_781> <loc_746>`: a tokenizer
    /// that puts spaces between added tokens makes such text.
    pub spaced_locations: bool,
}

impl<'a> ParseOptions<'a> {
    /// Sets [`dialect`](Self::dialect).
    #[must_use]
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Sets [`banned`](Self::banned).
    #[must_use]
    pub fn banned(mut self, banned: BannedPhrases<'a>) -> Self {
        self.banned = banned;
        self
    }

    /// Sets [`spaced_locations`](Self::spaced_locations).
    #[must_use]
    pub fn spaced_locations(mut self, on: bool) -> Self {
        self.spaced_locations = on;
        self
    }
}

/// Reads an answer.
///
/// `kind` is a [`Task`](crate::Task), or the [`AnswerKind`] of a fine-tune's own. `text` is the decoded answer,
/// special tokens kept; `size` is the original picture's, in whose pixels the result is.
///
/// Every text has an answer: where it holds nothing that the references would find, it is empty. Time and memory
/// grow in proportion to the text, whatever the text. A location that `i64` cannot hold, over which the references
/// raise an error, is carried on like any other large one, held at `u64::MAX` where it is over that.
///
/// ```
/// use florence2_core::{Answer, ImageSize, ParseOptions, Task, parse};
///
/// let size = ImageSize::from_width_height(640, 480)?;
/// let text = "</s><s>car<loc_54><loc_375><loc_906><loc_707></s>";
/// let Answer::Boxes(boxes) = parse(Task::ObjectDetection, text, size, &ParseOptions::default()) else {
///     unreachable!("<OD> answers in boxes")
/// };
/// assert_eq!(boxes[0].label, "car");
/// assert_eq!(boxes[0].shape.to_array(), [34.88, 180.23999, 580.16, 339.6]);
/// # Ok::<(), florence2_core::SizeError>(())
/// ```
#[must_use]
pub fn parse(
    kind: impl Into<AnswerKind>,
    text: &str,
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
) -> Answer {
    let kind = match kind.into() {
        AnswerKind::BoxesOrPolygons if text.contains("<poly>") => AnswerKind::LabeledPolygons,
        AnswerKind::BoxesOrPolygons => AnswerKind::LabeledBoxes,
        kind => kind,
    };
    read(kind, [(text, Tag::NONE)], size.into(), options)
}

/// Reads an answer that comes as the texts of its tokens, each with its log-probability, and scores it.
///
/// The score of a shape is `exp` of the mean log-probability of its location tokens. That is the rule of microsoft's
/// code for `<OD>` and `<DENSE_REGION_CAPTION>`; here every kind of shape has one, and every label too. A piece counts
/// if any of its characters belongs to the shape or the label, and once for each. Pieces need not be tokens. A
/// log-probability is at most 0, and may be infinite: one over 0 counts as 0, and what is no number as -∞.
///
/// Unlike microsoft's, scores stay right after a chunk that is passed over: there, the offset of a chunk in the
/// answer is lost when text stands between two chunks, or a wrapper is removed in front of one.
///
/// ```
/// use florence2_core::{ImageSize, ParseOptions, Task, parse_scored};
///
/// let pieces = [("car", -0.1), ("<loc_54>", -0.2), ("<loc_375>", -0.2), ("<loc_906>", -0.3), ("<loc_707>", -0.1)];
/// let size = ImageSize::from_width_height(640, 480)?;
/// let answer = parse_scored(Task::ObjectDetection, &pieces, size, &ParseOptions::default());
/// let car = &answer.as_boxes().unwrap()[0];
/// assert!((car.score.unwrap() - (-0.2f32).exp()).abs() < 1e-6);
/// assert!((car.label_score.unwrap() - (-0.1f32).exp()).abs() < 1e-6);
/// # Ok::<(), florence2_core::SizeError>(())
/// ```
#[must_use]
pub fn parse_scored<T: AsRef<str>>(
    kind: impl Into<AnswerKind>,
    pieces: &[(T, f32)],
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
) -> Answer {
    let numbers = (1..=u32::MAX).chain(core::iter::repeat(u32::MAX));
    let tagged = numbers.zip(pieces).map(|(at, (text, log_prob))| (text.as_ref(), Tag::new(at, *log_prob)));
    read(kind.into(), tagged, size.into(), options)
}

fn read<'t>(
    kind: AnswerKind,
    pieces: impl IntoIterator<Item = (&'t str, Tag)>,
    grid: LocGrid,
    options: &ParseOptions<'_>,
) -> Answer {
    let cx = Context { grid, options: *options };
    let mut engine = Engine::new(kind, options);
    let mut answer = Answer::empty(kind);
    for (text, tag) in pieces {
        engine.push(&cx, text, tag, &mut answer);
    }
    engine.finish(&cx, &mut answer);
    if engine.found_polygons() && answer.is_empty() {
        answer = Answer::empty(AnswerKind::Polygons);
    }
    answer
}
