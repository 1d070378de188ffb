//! The references' own dictionary, key for key.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::answer::{Answer, Labeled};
use crate::geometry::{BoundingBox, Polygon};
use crate::parse::Dialect;
use crate::task::{AnswerKind, Task};

/// An answer as `post_process_generation` returns it: `{"<OD>": {"bboxes": …, "labels": …}}`.
///
/// Coordinates are whole numbers in the transformers dialect, and the `f32` widened as Python prints it in
/// microsoft's. `"scores"` is there where microsoft's code has it: for labelled boxes that were scored.
///
/// The label of every shape is written out: where one long [`Label`](crate::Label) has many shapes, the JSON is as
/// large as the two multiplied. Give text from strangers a writer with a limit.
///
/// ```
/// use florence2_core::{Dialect, HfAnswer, ImageSize, ParseOptions, Task, parse};
///
/// let options = ParseOptions::default().dialect(Dialect::Transformers);
/// let size = ImageSize::from_width_height(640, 480)?;
/// let answer = parse(Task::ObjectDetection, "car<loc_54><loc_375><loc_906><loc_707>", size, &options);
/// let view = HfAnswer::new(Task::ObjectDetection, &answer, options.dialect);
/// assert_eq!(serde_json::to_string(&view)?, r#"{"<OD>":{"bboxes":[[34,180,580,339]],"labels":["car"]}}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HfAnswer<'a> {
    key: &'a str,
    kind: AnswerKind,
    answer: &'a Answer,
    dialect: Dialect,
}

impl<'a> HfAnswer<'a> {
    /// The answer to one of the fifteen tasks, parsed in this dialect.
    #[must_use]
    pub fn new(task: Task, answer: &'a Answer, dialect: Dialect) -> Self {
        Self::with_key(task.marker(), task.answer_kind(), answer, dialect)
    }

    /// The answer to a fine-tune's own task, under its own marker.
    #[must_use]
    pub fn with_key(key: &'a str, kind: AnswerKind, answer: &'a Answer, dialect: Dialect) -> Self {
        Self { key, kind, answer, dialect }
    }
}

impl Serialize for HfAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self.answer {
            Answer::Text(text) => map.serialize_entry(self.key, text)?,
            _ => map.serialize_entry(self.key, &Columns(*self))?,
        }
        map.end()
    }
}

/// The value under the task: columns instead of rows.
struct Columns<'a>(HfAnswer<'a>);

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(HfAnswer { kind, answer, dialect, .. }) = *self;
        let (shapes, labels) = (Shapes(answer, dialect), Labels(answer));
        let mut map = serializer.serialize_map(None)?;
        match (kind, answer) {
            (AnswerKind::BoxesOrPolygons, Answer::Polygons(_)) => {
                map.serialize_entry("bboxes", &NONE)?;
                map.serialize_entry("bboxes_labels", &NONE)?;
                map.serialize_entry("polygons", &shapes)?;
                map.serialize_entry("polygons_labels", &labels)?;
            }
            (AnswerKind::BoxesOrPolygons, _) => {
                map.serialize_entry("bboxes", &shapes)?;
                map.serialize_entry("bboxes_labels", &labels)?;
                map.serialize_entry("polygons", &NONE)?;
                map.serialize_entry("polygons_labels", &NONE)?;
            }
            _ => {
                let shapes_key = match answer {
                    Answer::Text(_) | Answer::Boxes(_) => "bboxes",
                    Answer::Quads(_) => "quad_boxes",
                    Answer::Polygons(_) => "polygons",
                };
                map.serialize_entry(shapes_key, &shapes)?;
                map.serialize_entry("labels", &labels)?;
            }
        }
        let scored = match (kind, answer, dialect) {
            (AnswerKind::LabeledBoxes, Answer::Boxes(boxes), Dialect::Microsoft) => {
                boxes.iter().any(|one| one.score.is_some()).then_some(Scores(boxes))
            }
            _ => None,
        };
        if let Some(scores) = scored {
            map.serialize_entry("scores", &scores)?;
        }
        map.end()
    }
}

const NONE: [(); 0] = [];

struct Labels<'a>(&'a Answer);

impl Serialize for Labels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Answer::Text(_) => serializer.collect_seq(NONE),
            Answer::Boxes(rows) => serializer.collect_seq(rows.iter().map(|row| &row.label)),
            Answer::Quads(rows) => serializer.collect_seq(rows.iter().map(|row| &row.label)),
            Answer::Polygons(rows) => serializer.collect_seq(rows.iter().map(|row| &row.label)),
        }
    }
}

struct Scores<'a>(&'a [Labeled<BoundingBox>]);

impl Serialize for Scores<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|row| row.score))
    }
}

struct Shapes<'a>(&'a Answer, Dialect);

impl Serialize for Shapes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(answer, dialect) = *self;
        match answer {
            Answer::Text(_) => serializer.collect_seq(NONE),
            Answer::Boxes(rows) => serializer
                .collect_seq(rows.iter().map(|row| row.shape.to_array().map(|v| Coordinate(v, dialect)))),
            Answer::Quads(rows) => serializer
                .collect_seq(rows.iter().map(|row| row.shape.to_array().map(|v| Coordinate(v, dialect)))),
            Answer::Polygons(rows) => {
                serializer.collect_seq(rows.iter().map(|row| Outlines(&row.shape, dialect)))
            }
        }
    }
}

struct Outlines<'a>(&'a [Polygon], Dialect);

impl Serialize for Outlines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|outline| Outline(outline, self.1)))
    }
}

struct Outline<'a>(&'a Polygon, Dialect);

impl Serialize for Outline<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let flat = self.0.0.iter().flat_map(|point| [point.x, point.y]);
        serializer.collect_seq(flat.map(|v| Coordinate(v, self.1)))
    }
}

struct Coordinate(f32, Dialect);

impl Serialize for Coordinate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.1 {
            Dialect::Microsoft => serializer.serialize_f64(self.0.into()),
            // Whole already, and within `i32`.
            Dialect::Transformers => serializer.serialize_i32(self.0 as i32),
        }
    }
}
