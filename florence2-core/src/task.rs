//! The fifteen tasks that Florence-2 was trained for, and how the answer to each is read.

use alloc::boxed::Box;
use core::fmt;
use core::str::FromStr;

/// One of the fifteen tasks; [`Display`](fmt::Display) gives its marker, such as `<OD>`.
///
/// [`FromStr`] takes the marker in any case, with or without the angle brackets, and white space around it.
///
/// ```
/// use florence2_core::Task;
///
/// assert_eq!("<OD>".parse(), Ok(Task::ObjectDetection));
/// assert_eq!("ocr_with_region".parse(), Ok(Task::OcrWithRegion));
/// assert_eq!(Task::Caption.to_string(), "<CAPTION>");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// `<CAPTION>`: one sentence about the picture.
    Caption,
    /// `<DETAILED_CAPTION>`: a few sentences.
    DetailedCaption,
    /// `<MORE_DETAILED_CAPTION>`: a paragraph.
    MoreDetailedCaption,
    /// `<OCR>`: the text in the picture, without places.
    Ocr,
    /// `<OCR_WITH_REGION>`: lines of text, each with a quadrilateral.
    OcrWithRegion,
    /// `<OD>`: objects by category name, each with a box.
    ObjectDetection,
    /// `<DENSE_REGION_CAPTION>`: regions with short descriptions, each with a box.
    DenseRegionCaption,
    /// `<REGION_PROPOSAL>`: boxes without labels.
    RegionProposal,
    /// `<CAPTION_TO_PHRASE_GROUNDING>`: the phrases of a given caption, each with its boxes.
    CaptionToPhraseGrounding,
    /// `<REFERRING_EXPRESSION_SEGMENTATION>`: the outline of what an expression names.
    ReferringExpressionSegmentation,
    /// `<REGION_TO_SEGMENTATION>`: the outline of the object in a region.
    RegionToSegmentation,
    /// `<OPEN_VOCABULARY_DETECTION>`: the given things, with boxes or with outlines.
    OpenVocabularyDetection,
    /// `<REGION_TO_CATEGORY>`: the category of a region.
    RegionToCategory,
    /// `<REGION_TO_DESCRIPTION>`: a description of a region.
    RegionToDescription,
    /// `<REGION_TO_OCR>`: the text in a region.
    RegionToOcr,
}

/// What a task needs besides the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Nothing: the marker alone is the prompt.
    Nothing,
    /// A text: a caption, an expression, the names of things.
    Text,
    /// A region of the picture: four location tokens.
    Region,
}

/// How the text of an answer is read: the references' "post-processing types".
///
/// Each [`Task`] has one ([`Task::answer_kind`]); an answer to a prompt of a fine-tune's own is read by the
/// kind that its caller picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum AnswerKind {
    /// Text as it is (`pure_text`).
    Text,
    /// A label and the boxes after it (`description_with_bboxes`).
    LabeledBoxes,
    /// Boxes without labels (`bboxes`).
    Boxes,
    /// As [`LabeledBoxes`](Self::LabeledBoxes), but banned phrases are left out (`phrase_grounding`).
    GroundedPhrases,
    /// A text and the quadrilateral after it (`ocr`).
    Quads,
    /// A label and the polygons after it (`description_with_polygons`).
    LabeledPolygons,
    /// Polygons without labels (`polygons`).
    Polygons,
    /// [`LabeledPolygons`](Self::LabeledPolygons) where `<poly>` occurs in the answer, else
    /// [`LabeledBoxes`](Self::LabeledBoxes) (`description_with_bboxes_or_polygons`).
    BoxesOrPolygons,
}

struct Row {
    task: Task,
    marker: &'static str,
    sentence: &'static str,
    input: InputKind,
    answer: AnswerKind,
}

const fn row(
    task: Task,
    marker: &'static str,
    sentence: &'static str,
    input: InputKind,
    answer: AnswerKind,
) -> Row {
    Row { task, marker, sentence, input, answer }
}

/// In the order of [`Task`], which [`Task::row`] relies on.
#[rustfmt::skip]
static ROWS: [Row; 15] = {
    use {AnswerKind as A, InputKind as I, Task as T};
    [
        row(T::Caption, "<CAPTION>", "What does the image describe?", I::Nothing, A::Text),
        row(T::DetailedCaption, "<DETAILED_CAPTION>", "Describe in detail what is shown in the image.", I::Nothing, A::Text),
        row(T::MoreDetailedCaption, "<MORE_DETAILED_CAPTION>", "Describe with a paragraph what is shown in the image.", I::Nothing, A::Text),
        row(T::Ocr, "<OCR>", "What is the text in the image?", I::Nothing, A::Text),
        row(T::OcrWithRegion, "<OCR_WITH_REGION>", "What is the text in the image, with regions?", I::Nothing, A::Quads),
        row(T::ObjectDetection, "<OD>", "Locate the objects with category name in the image.", I::Nothing, A::LabeledBoxes),
        row(T::DenseRegionCaption, "<DENSE_REGION_CAPTION>", "Locate the objects in the image, with their descriptions.", I::Nothing, A::LabeledBoxes),
        row(T::RegionProposal, "<REGION_PROPOSAL>", "Locate the region proposals in the image.", I::Nothing, A::Boxes),
        row(T::CaptionToPhraseGrounding, "<CAPTION_TO_PHRASE_GROUNDING>", "Locate the phrases in the caption: {input}", I::Text, A::GroundedPhrases),
        row(T::ReferringExpressionSegmentation, "<REFERRING_EXPRESSION_SEGMENTATION>", "Locate {input} in the image with mask", I::Text, A::Polygons),
        row(T::RegionToSegmentation, "<REGION_TO_SEGMENTATION>", "What is the polygon mask of region {input}", I::Region, A::Polygons),
        row(T::OpenVocabularyDetection, "<OPEN_VOCABULARY_DETECTION>", "Locate {input} in the image.", I::Text, A::BoxesOrPolygons),
        row(T::RegionToCategory, "<REGION_TO_CATEGORY>", "What is the region {input}?", I::Region, A::Text),
        row(T::RegionToDescription, "<REGION_TO_DESCRIPTION>", "What does the region {input} describe?", I::Region, A::Text),
        row(T::RegionToOcr, "<REGION_TO_OCR>", "What text is in the region {input}?", I::Region, A::Text),
    ]
};

impl Task {
    /// All fifteen. Those that take no input come first, as the references try them first.
    pub const ALL: [Self; 15] = [
        Self::Caption,
        Self::DetailedCaption,
        Self::MoreDetailedCaption,
        Self::Ocr,
        Self::OcrWithRegion,
        Self::ObjectDetection,
        Self::DenseRegionCaption,
        Self::RegionProposal,
        Self::CaptionToPhraseGrounding,
        Self::ReferringExpressionSegmentation,
        Self::RegionToSegmentation,
        Self::OpenVocabularyDetection,
        Self::RegionToCategory,
        Self::RegionToDescription,
        Self::RegionToOcr,
    ];

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The marker, such as `<OD>`.
    #[must_use]
    pub fn marker(self) -> &'static str {
        self.row().marker
    }

    /// The marker without its angle brackets, such as `OD`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let marker = self.marker();
        &marker[1..marker.len() - 1]
    }

    /// The sentence that the model is asked, with `{input}` where the input goes.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        self.row().sentence
    }

    /// What the task needs besides the picture.
    #[must_use]
    pub fn input_kind(self) -> InputKind {
        self.row().input
    }

    /// How its answer is read.
    #[must_use]
    pub fn answer_kind(self) -> AnswerKind {
        self.row().answer
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.marker())
    }
}

impl FromStr for Task {
    type Err = UnknownTask;

    fn from_str(text: &str) -> Result<Self, UnknownTask> {
        let trimmed = text.trim();
        let name = match (trimmed.strip_prefix('<'), trimmed.strip_suffix('>')) {
            (Some(inner), Some(_)) => inner.strip_suffix('>'),
            (None, None) => Some(trimmed),
            _ => None,
        };
        name.and_then(|name| ROWS.iter().find(|row| row.task.name().eq_ignore_ascii_case(name)))
            .map(|row| row.task)
            .ok_or_else(|| UnknownTask::new(trimmed))
    }
}

impl AnswerKind {
    /// All eight.
    pub const ALL: [Self; 8] = [
        Self::Text,
        Self::LabeledBoxes,
        Self::Boxes,
        Self::GroundedPhrases,
        Self::Quads,
        Self::LabeledPolygons,
        Self::Polygons,
        Self::BoxesOrPolygons,
    ];

    /// The name that the command line and the JSON forms use, such as `labeled_boxes`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::LabeledBoxes => "labeled_boxes",
            Self::Boxes => "boxes",
            Self::GroundedPhrases => "grounded_phrases",
            Self::Quads => "quads",
            Self::LabeledPolygons => "labeled_polygons",
            Self::Polygons => "polygons",
            Self::BoxesOrPolygons => "boxes_or_polygons",
        }
    }

    /// Whether such an answer holds places of the picture, so that its size is needed to read it.
    #[must_use]
    pub fn has_locations(self) -> bool {
        self != Self::Text
    }
}

/// The names of [`AnswerKind::name`].
impl FromStr for AnswerKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownKind)
    }
}

/// A text that names no kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind;

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a kind of answer; they are:")?;
        AnswerKind::ALL
            .iter()
            .enumerate()
            .try_for_each(|(at, kind)| write!(f, "{} {kind}", if at == 0 { "" } else { "," }))
    }
}

impl core::error::Error for UnknownKind {}

impl fmt::Display for AnswerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Task> for AnswerKind {
    fn from(task: Task) -> Self {
        task.answer_kind()
    }
}

/// A text that names none of the fifteen tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTask {
    /// What was given, cut after 64 characters.
    pub given: Box<str>,
}

impl UnknownTask {
    pub(crate) fn new(given: &str) -> Self {
        let cut = given.char_indices().nth(64).map_or(given.len(), |(at, _)| at);
        Self { given: given[..cut].into() }
    }
}

impl fmt::Display for UnknownTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is none of Florence-2's fifteen tasks:", self.given)?;
        Task::ALL
            .iter()
            .enumerate()
            .try_for_each(|(at, task)| write!(f, "{} {task}", if at == 0 { "" } else { "," }))
    }
}

impl core::error::Error for UnknownTask {}

#[cfg(feature = "serde")]
mod with_serde {
    use super::Task;
    use alloc::borrow::Cow;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    impl Serialize for Task {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(self.marker())
        }
    }

    impl<'de> Deserialize<'de> for Task {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Cow::<'_, str>::deserialize(deserializer)?.parse().map_err(Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_table_follows_the_enum() {
        for (at, task) in Task::ALL.into_iter().enumerate() {
            assert_eq!(task as usize, at);
            assert_eq!(ROWS[at].task, task);
            assert_eq!(
                task.sentence().contains("{input}"),
                task.input_kind() != InputKind::Nothing,
                "{task}"
            );
        }
    }

    #[test]
    fn markers_are_read_in_any_case_with_and_without_brackets() {
        for task in Task::ALL {
            for text in
                [task.marker(), task.name(), &task.marker().to_lowercase(), &task.name().to_lowercase()]
            {
                assert_eq!(text.parse(), Ok(task), "{text}");
            }
            assert_eq!(alloc::format!("  {task}\n").parse(), Ok(task));
        }
    }

    #[test]
    fn an_unknown_marker_is_told_with_the_fifteen() {
        for text in ["", "<>", "<OD", "OD>", "<<OD>>", "<ODD>", "O D", "<OCR> x"] {
            let error = text.parse::<Task>().expect_err(text).to_string();
            assert!(Task::ALL.iter().all(|task| error.contains(task.marker())), "{error}");
        }
        assert!("é".repeat(10_000).parse::<Task>().expect_err("long").to_string().len() < 1_000);
    }
}
