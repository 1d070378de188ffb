//! From values back to the text that the model should write: the inverse of the parser, for training data.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use crate::answer::{Answer, Label};
use crate::chars::strip;
use crate::geometry::Polygon;
use crate::grid::LocGrid;
use crate::scan::left_over;
use crate::task::AnswerKind;
use crate::token::Loc;

/// The text whose [`parse`](crate::parse()) is this answer, as far as bins can say it.
///
/// Neighbouring boxes with the same label share it, as in the model's own answers. Coordinates outside of the
/// picture go to its edge. [`AnswerKind::BoxesOrPolygons`] without any polygon is the empty text, which is read as
/// no boxes. Banned phrases are written like others; reading leaves them out.
///
/// ```
/// use florence2_core::{Answer, AnswerKind, BoundingBox, ImageSize, Labeled, target_text};
///
/// let size = ImageSize::from_width_height(1000, 1000)?;
/// let mug = Labeled::new("mug", BoundingBox { x1: 1.5, y1: 2.5, x2: 3.5, y2: 4.5 });
/// let text = target_text(AnswerKind::LabeledBoxes, &Answer::Boxes(vec![mug]), size)?;
/// assert_eq!(text, "mug<loc_1><loc_2><loc_3><loc_4>");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the answer is not of that kind, or a label cannot be written: it would be read as something else.
pub fn target_text(
    kind: impl Into<AnswerKind>,
    answer: &Answer,
    size: impl Into<LocGrid>,
) -> Result<String, TargetError> {
    let (kind, grid) = (kind.into(), size.into());
    check_numbers(answer)?;
    let mut writer = Writer::default();
    match (kind, answer) {
        (AnswerKind::Text, Answer::Text(text)) => {
            if text.contains("<s>") || text.contains("</s>") {
                return Err(TargetError::Text);
            }
            return Ok(text.clone());
        }
        (
            AnswerKind::LabeledBoxes | AnswerKind::GroundedPhrases | AnswerKind::BoxesOrPolygons,
            Answer::Boxes(rows),
        ) => {
            for row in rows {
                writer.phrase(&row.label, |_| true)?;
                writer.locs(grid.quantize_box(row.shape));
            }
        }
        (AnswerKind::Boxes, Answer::Boxes(rows)) => {
            for row in rows {
                no_label(&row.label)?;
                writer.locs(grid.quantize_box(row.shape));
            }
        }
        (AnswerKind::Quads, Answer::Quads(rows)) => {
            for row in rows {
                writer.line(&row.label)?;
                writer.locs(grid.quantize_quad(row.shape));
            }
        }
        (AnswerKind::LabeledPolygons | AnswerKind::BoxesOrPolygons, Answer::Polygons(rows)) => {
            for row in rows {
                // Microsoft's dialect takes the left-over of a location off such a label.
                writer.phrase(&row.label, |label| left_over(label) == 0)?;
                writer.instance(&grid, &row.shape)?;
            }
        }
        (AnswerKind::Polygons, Answer::Polygons(rows)) => {
            for row in rows {
                no_label(&row.label)?;
                writer.instance(&grid, &row.shape)?;
            }
        }
        _ => return Err(TargetError::Kind(kind)),
    }
    Ok(writer.text)
}

fn check_numbers(answer: &Answer) -> Result<(), TargetError> {
    let finite = |v: &f32| v.is_finite();
    let all_finite = match answer {
        Answer::Text(_) => true,
        Answer::Boxes(rows) => rows.iter().all(|row| row.shape.to_array().iter().all(finite)),
        Answer::Quads(rows) => rows.iter().all(|row| row.shape.to_array().iter().all(finite)),
        Answer::Polygons(rows) => {
            let mut points = rows.iter().flat_map(|row| &row.shape).flat_map(|outline| &outline.0);
            points.all(|point| finite(&point.x) && finite(&point.y))
        }
    };
    if all_finite { Ok(()) } else { Err(TargetError::NotANumber) }
}

fn no_label(label: &Label) -> Result<(), TargetError> {
    if label.is_empty() { Ok(()) } else { Err(TargetError::Unlabeled(label.clone())) }
}

/// Whether a label is read back as it is, apart from what boxes and polygons ask of theirs.
fn is_line(label: &str) -> bool {
    !label.is_empty() && strip(label) == label && !label.contains(['<', '\n'])
}

#[derive(Default)]
struct Writer<'a> {
    text: String,
    /// The label that is in force.
    label: Option<&'a Label>,
}

impl<'a> Writer<'a> {
    /// A label of boxes or polygons, unless it is in force already.
    fn phrase(&mut self, label: &'a Label, is_read_back: impl Fn(&str) -> bool) -> Result<(), TargetError> {
        if self.label == Some(label) {
            return Ok(());
        }
        if !is_line(label) || !label.is_ascii() || !is_read_back(label) {
            return Err(TargetError::Phrase(label.clone()));
        }
        self.label = Some(label);
        self.text.push_str(label);
        Ok(())
    }

    /// A line of text before its quadrilateral.
    fn line(&mut self, label: &Label) -> Result<(), TargetError> {
        if !is_line(label) {
            return Err(TargetError::Line(label.clone()));
        }
        self.text.push_str(label);
        Ok(())
    }

    fn locs(&mut self, locs: impl IntoIterator<Item = Loc>) {
        for loc in locs {
            // A `String` takes whatever is written to it.
            let _ = write!(self.text, "{loc}");
        }
    }

    fn instance(&mut self, grid: &LocGrid, outlines: &[Polygon]) -> Result<(), TargetError> {
        if outlines.is_empty() || outlines.iter().any(|outline| outline.0.is_empty()) {
            return Err(TargetError::Outline);
        }
        self.text.push_str("<poly>");
        for (at, outline) in outlines.iter().enumerate() {
            if at > 0 {
                self.text.push_str("<sep>");
            }
            let bins: Vec<[Loc; 2]> = grid.quantize_polygon(outline);
            self.locs(bins.into_iter().flatten());
        }
        self.text.push_str("</poly>");
        Ok(())
    }
}

/// Why an answer cannot be written as text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The answer is of another family.
    #[error("the answer is not of the kind {0}")]
    Kind(AnswerKind),
    /// The text holds a token that would be removed.
    #[error("the text holds <s> or </s>, which is removed when it is read")]
    Text,
    /// The kind has no labels.
    #[error("an answer of this kind has no labels, but one is {0:?}")]
    Unlabeled(Label),
    /// The label would not be read back.
    #[error(
        "the label {0:?} would not be read back: it must be ASCII, not empty, without white space at its ends, \
         newlines, or '<', and not begin like loc_1>"
    )]
    Phrase(Label),
    /// The line would not be read back.
    #[error(
        "the line {0:?} would not be read back: it must not be empty, begin or end with white space, or hold a newline or '<'"
    )]
    Line(Label),
    /// A coordinate is infinite or not a number.
    #[error("a coordinate is not a number")]
    NotANumber,
    /// A thing without outlines, or an outline without points.
    #[error("a segmented thing needs at least one outline, and each outline at least one point")]
    Outline,
}
