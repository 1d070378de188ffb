//! Polygons: `label<poly><loc_x1><loc_y1>…<sep>…</poly>`.
//!
//! A *chunk* is as with boxes, but any of `<loc_N>`, `<sep>`, `<poly>`, `</poly>` counts, and four in all are
//! enough. If the chunk holds both `<poly>` and `</poly>`, each `<poly>…</poly>` is an instance; else the whole
//! chunk is one. An outline is a run of locations before `<sep>` or the end of its instance; one that another
//! token follows is none. An odd last coordinate is dropped, so that an outline may be empty.
//!
//! Which of the two readings holds is not known before both tokens have come. Until then the outlines are kept as
//! the whole chunk's; those since the first `<poly>` are the instance's if a `</poly>` comes.

use alloc::vec::Vec;
use core::ops::Range;

use super::lexer::Token;
use super::run::{Last, Run};
use super::{Context, Machine, Sink};
use crate::answer::{Label, Labeled};
use crate::chars::digit;
use crate::geometry::Polygon;
use crate::parse::Dialect;
use crate::score::Tally;

#[derive(Clone, Debug)]
pub(crate) struct PolygonMachine {
    labeled: bool,
    run: Run,
    /// The last token: what the run becomes, should this one be given up.
    last: Last,
    chunk: Chunk,
}

/// What has come of a chunk since its label.
#[derive(Clone, Debug, Default)]
struct Chunk {
    tokens: usize,
    label: LabelState,
    seen_start: bool,
    seen_end: bool,
    /// The number of outlines at the `<poly>` that is open.
    open_at: Option<usize>,
    outlines: Vec<Outline>,
    current: Option<Current>,
    /// The pairs of bins of the outlines and the current one, one after the other.
    pairs: Vec<[u64; 2]>,
    /// An instance that is complete before the chunk is certain.
    early: Option<Labeled<Vec<Polygon>>>,
}

#[derive(Clone, Debug, Default)]
enum LabelState {
    /// No token has come that ends the label.
    #[default]
    Open,
    Known(Label, Option<f32>),
    /// The references drop the chunk.
    Dropped,
}

/// A range of pairs, and where they came from.
#[derive(Clone, Debug)]
struct Outline {
    pairs: Range<usize>,
    tally: Tally,
}

/// An outline that has begun, with an x that waits for its y.
#[derive(Clone, Debug)]
struct Current {
    start: usize,
    x: Option<(u64, Tally)>,
    tally: Tally,
}

impl PolygonMachine {
    pub(crate) fn new(labeled: bool) -> Self {
        Self { labeled, run: Run::default(), last: Last::default(), chunk: Chunk::default() }
    }

    /// Settles the label where `token` ends it, and lengthens it where it does not: `cat<sep><loc_1>` has the
    /// label `cat<sep>`.
    fn settle_label(&mut self, cx: &Context<'_>, token: Token, raw: &str, tally: &Tally) {
        if !matches!(self.chunk.label, LabelState::Open) {
            return;
        }
        match token {
            Token::Sep | Token::PolyEnd => return self.run.push(raw, tally),
            // Transformers looks for the label behind a location that the chunk begins with.
            Token::Loc(_) if self.leads_chunk() && cx.options.dialect == Dialect::Transformers => return,
            Token::Loc(_) | Token::PolyStart => {}
        }
        let text = self.run.as_str();
        let from = match cx.options.dialect {
            // The left-over of a location, which microsoft takes off once.
            Dialect::Microsoft => left_over(text),
            Dialect::Transformers => 0,
        };
        self.chunk.label = match self.run.phrase_from(from) {
            None => LabelState::Dropped,
            Some("") => LabelState::Known(Label::default(), None),
            Some(phrase) => LabelState::Known(phrase.into(), self.run.tally().score()),
        };
    }

    /// Whether the token at hand is the first of its chunk, with nothing before it.
    fn leads_chunk(&self) -> bool {
        !self.labeled && self.chunk.tokens == 0
    }

    /// Ends the chunk: what follows is no token.
    fn end_chunk(&mut self, cx: &Context<'_>, sink: &mut impl Sink) {
        let chunk = &mut self.chunk;
        if chunk.tokens >= 4 && !(chunk.seen_start && chunk.seen_end) {
            chunk.end_outline();
            if let Some(whole) = chunk.instance(cx, 0) {
                sink.polygons(whole);
            }
        }
        chunk.forget();
        let (outlines, pairs) = (core::mem::take(&mut chunk.outlines), core::mem::take(&mut chunk.pairs));
        *chunk = Chunk { outlines, pairs, ..Chunk::default() };
        self.run.clear();
    }
}

/// The length of `loc_\d+>` at the beginning.
pub(crate) fn left_over(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("loc_") else { return 0 };
    let after = rest.trim_start_matches(|c| digit(c).is_some());
    match after.strip_prefix('>') {
        Some(after_all) if after.len() < rest.len() => text.len() - after_all.len(),
        _ => 0,
    }
}

impl Chunk {
    /// Whether outlines at this place belong to something.
    fn collects(&self) -> bool {
        self.open_at.is_some() || !(self.seen_start && self.seen_end)
    }

    fn location(&mut self, bin: u64, tally: &Tally) {
        if !self.collects() {
            return;
        }
        let start = self.pairs.len();
        let current = self.current.get_or_insert(Current { start, x: None, tally: Tally::default() });
        match current.x.take() {
            None => current.x = Some((bin, *tally)),
            Some((x, pieces)) => {
                self.pairs.push([x, bin]);
                current.tally.join(&pieces);
                current.tally.join(tally);
            }
        }
    }

    /// Ends an outline at a place where it may end.
    fn end_outline(&mut self) {
        let end = self.pairs.len();
        let ended = self.current.take();
        self.outlines.extend(ended.map(|Current { start, tally, .. }| Outline { pairs: start..end, tally }));
    }

    /// Drops an outline at a place where it may not end.
    fn break_outline(&mut self) {
        if let Some(current) = self.current.take() {
            self.pairs.truncate(current.start);
        }
    }

    fn forget(&mut self) {
        self.current = None;
        self.outlines.clear();
        self.pairs.clear();
    }

    fn poly_start(&mut self) {
        self.break_outline();
        self.seen_start = true;
        self.open_at = self.open_at.or(Some(self.outlines.len()));
    }

    fn poly_end(&mut self, cx: &Context<'_>) -> Option<Labeled<Vec<Polygon>>> {
        self.seen_end = true;
        let Some(at) = self.open_at.take() else {
            self.break_outline();
            return None;
        };
        self.end_outline();
        let instance = self.instance(cx, at);
        self.forget();
        instance
    }

    /// The outlines from `at` on as an instance, if there are any and the chunk is not dropped.
    fn instance(&self, cx: &Context<'_>, at: usize) -> Option<Labeled<Vec<Polygon>>> {
        let LabelState::Known(label, label_score) = &self.label else { return None };
        let outlines = self.outlines.get(at..).filter(|outlines| !outlines.is_empty())?;
        let mut tally = Tally::default();
        let shape = outlines
            .iter()
            .map(|outline| {
                tally.join(&outline.tally);
                Polygon(cx.points(&self.pairs[outline.pairs.clone()]).collect())
            })
            .collect();
        Some(Labeled { label: label.clone(), shape, score: tally.score(), label_score: *label_score })
    }
}

impl Machine for PolygonMachine {
    fn text<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S, text: &str, tally: &Tally) {
        if self.chunk.tokens > 0 {
            let given_up = self.chunk.tokens < 4;
            self.end_chunk(cx, sink);
            if given_up && self.labeled {
                self.last.push_to(&mut self.run);
            }
        }
        if !self.labeled {
            return;
        }
        self.run.push_after_angle(text, tally);
    }

    fn token<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S, token: Token, raw: &str, tally: &Tally) {
        if self.labeled && self.run.is_empty() {
            self.run.push_after_angle(raw, tally);
            return;
        }
        self.settle_label(cx, token, raw, tally);
        self.chunk.tokens += 1;
        if self.chunk.tokens < 4 {
            self.last.set(raw, tally);
        }
        let instance = match token {
            Token::Loc(bin) => {
                self.chunk.location(bin, tally);
                None
            }
            Token::Sep => {
                self.chunk.end_outline();
                None
            }
            Token::PolyStart => {
                self.chunk.poly_start();
                None
            }
            Token::PolyEnd => self.chunk.poly_end(cx),
        };
        if self.chunk.tokens < 4 {
            self.chunk.early = instance.or(self.chunk.early.take());
            return;
        }
        for certain in self.chunk.early.take().into_iter().chain(instance) {
            sink.polygons(certain);
        }
    }

    fn finish<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S) {
        self.end_chunk(cx, sink);
    }
}
