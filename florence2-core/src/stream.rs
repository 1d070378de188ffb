//! Answers as they arrive.

use alloc::vec::Vec;

use crate::answer::Instance;
use crate::grid::LocGrid;
use crate::parse::ParseOptions;
use crate::scan::{Context, Engine};
use crate::score::Tag;
use crate::task::AnswerKind;

/// Reads an answer piece by piece and gives each instance as soon as it cannot change any more.
///
/// However the text is cut, the instances joined are what [`parse`](crate::parse()) gives for the whole. It holds
/// what is undecided and nothing else: the text since the last `<` or newline, and for an answer in polygons the
/// outlines since the last instance. Only in open vocabulary detection is everything undecided until a `<poly>`
/// comes, or the end.
///
/// ```
/// use florence2_core::{AnswerStream, ImageSize, ParseOptions, Task};
///
/// let size = ImageSize::from_width_height(1000, 1000)?;
/// let mut stream = AnswerStream::new(Task::ObjectDetection, size, &ParseOptions::default());
/// assert!(stream.push("c").is_empty());
/// assert!(stream.push("ar<loc_1><loc_2><loc_3").is_empty());
/// // The box is complete, though it may not be the car's last.
/// assert_eq!(stream.push("><loc_4>").len(), 1);
/// assert_eq!(stream.push("<loc_5>").len(), 0);
/// // Joined, they are the answer: `Answer::empty(stream.kind())` before the end, extended with each.
/// assert_eq!(stream.finish().len(), 0);
/// # Ok::<(), florence2_core::SizeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AnswerStream<'a> {
    kind: AnswerKind,
    engine: Engine,
    cx: Context<'a>,
    pieces: u32,
}

impl<'a> AnswerStream<'a> {
    /// For one answer, as for [`parse`](crate::parse()).
    #[must_use]
    pub fn new(kind: impl Into<AnswerKind>, size: impl Into<LocGrid>, options: &ParseOptions<'a>) -> Self {
        let kind = kind.into();
        Self {
            kind,
            engine: Engine::new(kind, options),
            cx: Context { grid: size.into(), options: *options },
            pieces: 0,
        }
    }

    /// More of the answer; gives what is now certain, in order.
    #[must_use = "instances are given once"]
    pub fn push(&mut self, text: &str) -> Vec<Instance> {
        self.push_tagged(text, Tag::NONE)
    }

    /// The text of one more token with its log-probability, for scores as [`parse_scored`](crate::parse_scored)
    /// gives them.
    #[must_use = "instances are given once"]
    pub fn push_scored(&mut self, text: &str, log_prob: f32) -> Vec<Instance> {
        self.pieces = self.pieces.saturating_add(1);
        self.push_tagged(text, Tag::new(self.pieces, log_prob))
    }

    fn push_tagged(&mut self, text: &str, tag: Tag) -> Vec<Instance> {
        let mut certain = Vec::new();
        self.engine.push(&self.cx, text, tag, &mut certain);
        certain
    }

    /// The end of the answer; gives what was undecided until now.
    #[must_use = "instances are given once"]
    pub fn finish(mut self) -> Vec<Instance> {
        let mut certain = Vec::new();
        self.engine.finish(&self.cx, &mut certain);
        certain
    }

    /// The kind of answer; in open vocabulary detection [`AnswerKind::LabeledPolygons`] once `<poly>` has come.
    #[must_use]
    pub fn kind(&self) -> AnswerKind {
        if self.engine.found_polygons() { AnswerKind::LabeledPolygons } else { self.kind }
    }
}
