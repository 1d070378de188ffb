//! Boxes: `label<loc_x1><loc_y1><loc_x2><loc_y2>`, with more boxes of that label after it.
//!
//! The references find a *chunk*, `([^<]+(?:<loc_\d+>){4,})`: a run of text without `<`, and four or more
//! locations after it. Read from left to right that is: a `<` that begins no location starts the run anew after
//! it; a run that fewer than four locations follow is given up, and the search goes on inside of what followed,
//! where the next run can only begin behind a `<` — so behind that of the last location, whose rest (`loc_9>`)
//! is the new run. Hence the label `loc_1>` of an answer that begins with bare locations. A chunk is certain at
//! its fourth location, and so is its first box.

use alloc::string::String;

use super::lexer::Token;
use super::run::{Last, Run, ascii_label};
use super::{Context, Machine, Sink};
use crate::answer::{Label, Labeled};
use crate::geometry::BoundingBox;
use crate::score::Tally;

/// Where the labels come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labels {
    /// There are none: a chunk is locations only.
    None,
    /// From the run before the locations.
    Run,
    /// From the run, unless it is banned.
    Grounded,
}

#[derive(Clone, Debug)]
pub(crate) struct BoxMachine {
    labels: Labels,
    run: Run,
    /// The last location: what the run becomes, should this one be given up.
    last: Last,
    /// Locations after the run.
    count: usize,
    bins: [u64; 4],
    tally: Tally,
    /// Of a certain chunk; `None` if the chunk is dropped.
    label: Option<(Label, Option<f32>)>,
    scratch: String,
}

impl BoxMachine {
    pub(crate) fn new(labels: Labels) -> Self {
        Self {
            labels,
            run: Run::default(),
            last: Last::default(),
            count: 0,
            bins: [0; 4],
            tally: Tally::default(),
            label: None,
            scratch: String::new(),
        }
    }

    fn chunk_label(&mut self, cx: &Context<'_>) -> Option<(Label, Option<f32>)> {
        if self.labels == Labels::None {
            return Some((Label::default(), None));
        }
        let phrase = self.run.phrase_from(0)?;
        if self.labels == Labels::Grounded && cx.options.banned.contains(phrase) {
            return None;
        }
        let label = ascii_label(phrase, &mut self.scratch);
        let score = if label.is_empty() { None } else { self.run.tally().score() };
        Some((label, score))
    }
}

impl Machine for BoxMachine {
    fn text<S: Sink>(&mut self, _: &Context<'_>, _: &mut S, text: &str, tally: &Tally) {
        if self.count > 0 {
            let given_up = self.count < 4;
            self.count = 0;
            self.tally = Tally::default();
            self.run.clear();
            if given_up && self.labels != Labels::None {
                self.last.push_to(&mut self.run);
            }
        }
        if self.labels == Labels::None {
            return;
        }
        self.run.push_after_angle(text, tally);
    }

    fn token<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S, token: Token, raw: &str, tally: &Tally) {
        let Token::Loc(bin) = token else { return self.text(cx, sink, raw, tally) };
        if self.labels != Labels::None && self.run.is_empty() {
            // Nothing stands before it, so it is not the first location but the label.
            self.run.push_after_angle(raw, tally);
            return;
        }
        self.bins[self.count % 4] = bin;
        self.tally.join(tally);
        self.count += 1;
        if self.count < 4 {
            self.last.set(raw, tally);
        } else if self.count == 4 {
            self.label = self.chunk_label(cx);
        }
        if self.count.is_multiple_of(4) {
            if let Some((label, label_score)) = &self.label {
                let [x1, y1, x2, y2] = self.bins;
                let (a, b) = (cx.point(x1, y1), cx.point(x2, y2));
                sink.bounding_box(Labeled {
                    label: label.clone(),
                    shape: BoundingBox { x1: a.x, y1: a.y, x2: b.x, y2: b.y },
                    score: self.tally.score(),
                    label_score: *label_score,
                });
            }
            self.tally = Tally::default();
        }
    }

    fn finish<S: Sink>(&mut self, _: &Context<'_>, _: &mut S) {}
}
