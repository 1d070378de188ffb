//! What an answer says, as values.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

use crate::geometry::{BoundingBox, Polygon, Quad};
use crate::task::AnswerKind;

/// The text beside a shape; it reads as a `str`, and is shared where one label has many shapes.
///
/// Sharing is what keeps a parse linear: an answer may be half a long label and half boxes, and a copy for each
/// box would be as large as the two multiplied.
#[derive(Clone, Default)]
pub struct Label(
    /// `None`: empty, which needs no allocation.
    Option<Arc<str>>,
);

impl Label {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether both are one allocation, so that they count once towards memory.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

/// As of its text. Shared labels are equal without a look at it: an answer may have one long label in every row.
impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.shares_with(other) || self.as_str() == other.as_str()
    }
}

impl Eq for Label {}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Label {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.shares_with(other) { Ordering::Equal } else { self.as_str().cmp(other.as_str()) }
    }
}

impl Hash for Label {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Borrow<str> for Label {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.into()))
    }
}

impl From<String> for Label {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.as_str().into()
    }
}

impl Deref for Label {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Label {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl PartialEq<str> for Label {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<String> for Label {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Label {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

/// A shape with its label, and with scores if the parse was given log-probabilities.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Labeled<T> {
    /// What the model calls it; empty where the task has no labels.
    pub label: Label,
    /// Where it is.
    pub shape: T,
    /// `exp` of the mean log-probability of the shape's location tokens: 0 to 1; `None` also if the shape has no
    /// point.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub score: Option<f32>,
    /// `exp` of the mean log-probability of the label's tokens; `None` also if the label is empty.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub label_score: Option<f32>,
}

impl<T> Labeled<T> {
    /// Without scores.
    pub fn new(label: impl Into<Label>, shape: T) -> Self {
        Self { label: label.into(), shape, score: None, label_score: None }
    }
}

/// An answer, by the family of its task.
///
/// What belongs together is one value: a box cannot lose its label, and an answer without boxes is an empty list.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Answer {
    /// A caption, a text, a category.
    Text(String),
    /// Detected or grounded things.
    Boxes(Vec<Labeled<BoundingBox>>),
    /// Lines of text.
    Quads(Vec<Labeled<Quad>>),
    /// Segmented things; each may have several outlines.
    Polygons(Vec<Labeled<Vec<Polygon>>>),
}

impl Answer {
    /// The answer of that kind which says nothing.
    ///
    /// For [`AnswerKind::BoxesOrPolygons`] that is no boxes.
    #[must_use]
    pub fn empty(kind: impl Into<AnswerKind>) -> Self {
        match kind.into() {
            AnswerKind::Text => Self::Text(String::new()),
            AnswerKind::LabeledBoxes
            | AnswerKind::Boxes
            | AnswerKind::GroundedPhrases
            | AnswerKind::BoxesOrPolygons => Self::Boxes(Vec::new()),
            AnswerKind::Quads => Self::Quads(Vec::new()),
            AnswerKind::LabeledPolygons | AnswerKind::Polygons => Self::Polygons(Vec::new()),
        }
    }

    /// The text, if the task answers in text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Boxes(_) | Self::Quads(_) | Self::Polygons(_) => None,
        }
    }

    /// The boxes, if the answer is boxes.
    #[must_use]
    pub fn as_boxes(&self) -> Option<&[Labeled<BoundingBox>]> {
        match self {
            Self::Boxes(boxes) => Some(boxes),
            Self::Text(_) | Self::Quads(_) | Self::Polygons(_) => None,
        }
    }

    /// The quadrilaterals, if the answer is quadrilaterals.
    #[must_use]
    pub fn as_quads(&self) -> Option<&[Labeled<Quad>]> {
        match self {
            Self::Quads(quads) => Some(quads),
            Self::Text(_) | Self::Boxes(_) | Self::Polygons(_) => None,
        }
    }

    /// The polygons, if the answer is polygons.
    #[must_use]
    pub fn as_polygons(&self) -> Option<&[Labeled<Vec<Polygon>>]> {
        match self {
            Self::Polygons(polygons) => Some(polygons),
            Self::Text(_) | Self::Boxes(_) | Self::Quads(_) => None,
        }
    }

    /// How many boxes, quadrilaterals or segmented things there are; of a text, 1 unless it is empty.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => usize::from(!text.is_empty()),
            Self::Boxes(boxes) => boxes.len(),
            Self::Quads(quads) => quads.len(),
            Self::Polygons(polygons) => polygons.len(),
        }
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A part of an answer that cannot change any more: what an [`AnswerStream`](crate::AnswerStream) gives.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Instance {
    /// More text, to be put after what came before.
    Text(String),
    /// One more box.
    Box(Labeled<BoundingBox>),
    /// One more quadrilateral.
    Quad(Labeled<Quad>),
    /// One more segmented thing.
    Polygons(Labeled<Vec<Polygon>>),
}

/// Joins instances into the answer that they are the parts of.
///
/// ```
/// use florence2_core::{Answer, AnswerKind, Instance};
///
/// let mut answer = Answer::empty(AnswerKind::Text);
/// answer.extend([Instance::Text("a green ".into()), Instance::Text("car".into())]);
/// assert_eq!(answer, Answer::Text("a green car".into()));
/// ```
///
/// An instance of another family than the answer's is left out: the instances of one stream never mix. Only
/// polygons turn an empty list of boxes into polygons, for open vocabulary detection.
impl Extend<Instance> for Answer {
    fn extend<I: IntoIterator<Item = Instance>>(&mut self, instances: I) {
        crate::scan::release(instances, self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// Held by every caller that sends an answer to another thread.
    const fn crosses_threads<T: Send + Sync + 'static>() {}
    const _: () = crosses_threads::<Answer>();
    const _: () = crosses_threads::<Instance>();
    const _: () = crosses_threads::<crate::AnswerStream<'static>>();

    #[test]
    fn a_label_is_its_text() {
        let (one, other) = (Label::from("car"), Label::from("car"));
        assert!(!one.shares_with(&other) && one.shares_with(&one.clone()));
        assert_eq!(one, other);
        assert_eq!(BTreeSet::from([one.clone()]).get("car"), Some(&other));
        assert!(Label::default().is_empty() && Label::default().shares_with(&"".into()));
        assert_eq!(String::from(one), "car");
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::Label;
    use alloc::string::String;
    use serde::de::{Deserialize, Deserializer};
    use serde::ser::{Serialize, Serializer};

    impl Serialize for Label {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Label {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer).map(Self::from)
        }
    }
}
