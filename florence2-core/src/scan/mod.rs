//! The scanners: one pass from left to right, over text that may arrive in pieces.
//!
//! Text goes through the wrapper filters ([`unwrap`]), is cut at tokens ([`lexer`]), and drives the machine of
//! its kind ([`boxes`], [`quads`], [`polygons`]; [`text`] needs no tokens). Each holds what is not decided yet
//! and nothing else, so that a whole answer, a stream, and a scored answer are read by the same code. That they
//! find what the references' regular expressions find is argued in each module, and checked against those
//! expressions by the tests and the fuzz targets.

pub(crate) mod boxes;
pub(crate) mod lexer;
pub(crate) mod polygons;
pub(crate) mod quads;
mod run;
pub(crate) mod text;
pub(crate) mod unwrap;

use alloc::string::String;
use alloc::vec::Vec;

use self::boxes::{BoxMachine, Labels};
use self::lexer::{Partial, Reader, Token, plain_at_start_of, token_at_start_of};
use self::polygons::PolygonMachine;
pub(crate) use self::polygons::left_over;
use self::quads::QuadMachine;
use self::text::TextScanner;
use self::unwrap::{Unwrap, Wrappers};
use crate::answer::{Answer, Instance, Labeled};
use crate::chars::is_space;
use crate::geometry::{BoundingBox, Point, Polygon, Quad};
use crate::grid::LocGrid;
use crate::parse::{Dialect, ParseOptions};
use crate::score::{Tag, Tally};
use crate::task::AnswerKind;

/// What every machine needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) grid: LocGrid,
    pub(crate) options: ParseOptions<'a>,
}

impl Context<'_> {
    /// The pixel that two bins stand for in this dialect.
    fn point(&self, x: u64, y: u64) -> Point {
        let point = self.grid.point_of_bins(x, y);
        match self.options.dialect {
            Dialect::Microsoft => point,
            Dialect::Transformers => Point { x: int32(point.x), y: int32(point.y) },
        }
    }

    /// The pixels of an outline or a quadrilateral.
    ///
    /// Microsoft's code passes these through numpy, which makes them all `f64` if one does not fit `i64`.
    fn points<'p>(&'p self, pairs: &'p [[u64; 2]]) -> impl ExactSizeIterator<Item = Point> + 'p {
        let wide = self.options.dialect == Dialect::Microsoft
            && pairs.as_flattened().iter().any(|&bin| i64::try_from(bin).is_err());
        pairs
            .iter()
            .map(move |&[x, y]| if wide { self.grid.point_of_bins_wide(x, y) } else { self.point(x, y) })
    }
}

/// A tensor's `.int()`: cut towards zero; what does not fit becomes the least integer, as on x86.
fn int32(v: f32) -> f32 {
    // Both bounds are exact in f32; the upper one is the first value that does not fit.
    if (i32::MIN as f32..-(i32::MIN as f32)).contains(&v) { (v as i32) as f32 } else { i32::MIN as f32 }
}

/// Where finished instances go.
pub(crate) trait Sink {
    fn text(&mut self, text: &str);
    fn bounding_box(&mut self, one: Labeled<BoundingBox>);
    fn quad(&mut self, one: Labeled<Quad>);
    fn polygons(&mut self, one: Labeled<Vec<Polygon>>);
}

/// An answer takes what is of its own family; a scanner gives nothing else, except that open vocabulary detection
/// begins as boxes and may turn out to be polygons.
impl Sink for Answer {
    fn text(&mut self, text: &str) {
        if let Self::Text(all) = self {
            all.push_str(text);
        }
    }

    fn bounding_box(&mut self, one: Labeled<BoundingBox>) {
        if let Self::Boxes(all) = self {
            all.push(one);
        }
    }

    fn quad(&mut self, one: Labeled<Quad>) {
        if let Self::Quads(all) = self {
            all.push(one);
        }
    }

    fn polygons(&mut self, one: Labeled<Vec<Polygon>>) {
        if matches!(self, Self::Boxes(boxes) if boxes.is_empty()) {
            *self = Self::Polygons(Vec::new());
        }
        if let Self::Polygons(all) = self {
            all.push(one);
        }
    }
}

impl Sink for Vec<Instance> {
    fn text(&mut self, text: &str) {
        match self.last_mut() {
            Some(Instance::Text(last)) => last.push_str(text),
            _ => self.push(Instance::Text(text.into())),
        }
    }

    fn bounding_box(&mut self, one: Labeled<BoundingBox>) {
        self.push(Instance::Box(one));
    }

    fn quad(&mut self, one: Labeled<Quad>) {
        self.push(Instance::Quad(one));
    }

    fn polygons(&mut self, one: Labeled<Vec<Polygon>>) {
        self.push(Instance::Polygons(one));
    }
}

/// What reads one kind of answer, token by token.
pub(crate) trait Machine {
    /// Text is never empty, and has a `<` nowhere but at its beginning; how it is cut does not matter.
    fn text<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S, text: &str, tally: &Tally);
    /// `raw` is the token as it was written.
    fn token<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S, token: Token, raw: &str, tally: &Tally);
    fn finish<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S);
}

/// White space between tokens, if it is to be passed over.
#[derive(Clone, Debug, Default)]
struct Spacing {
    on: bool,
    after_token: bool,
    /// White space since the last token: dropped if a token follows.
    held: String,
    tally: Tally,
}

/// A machine at work: the lexer's reader.
struct Driver<'x, 'a, M, S> {
    machine: &'x mut M,
    spacing: &'x mut Spacing,
    cx: &'x Context<'a>,
    sink: &'x mut S,
}

impl<M: Machine, S: Sink> Driver<'_, '_, M, S> {
    fn release_space(&mut self) {
        if !self.spacing.held.is_empty() {
            self.machine.text(self.cx, self.sink, &self.spacing.held, &self.spacing.tally);
            self.spacing.held.clear();
            self.spacing.tally = Tally::default();
        }
    }
}

impl<M: Machine, S: Sink> Reader for Driver<'_, '_, M, S> {
    fn text(&mut self, text: &str, tally: &Tally) {
        if self.spacing.after_token {
            if text.chars().all(is_space) {
                self.spacing.held.push_str(text);
                self.spacing.tally.join(tally);
                return;
            }
            self.release_space();
            self.spacing.after_token = false;
        }
        self.machine.text(self.cx, self.sink, text, tally);
    }

    fn token(&mut self, token: Token, raw: &str, tally: &Tally) {
        if self.spacing.on {
            self.spacing.held.clear();
            self.spacing.tally = Tally::default();
            self.spacing.after_token = true;
        }
        self.machine.token(self.cx, self.sink, token, raw, tally);
    }
}

/// A machine with its filters and its lexer.
#[derive(Clone, Debug)]
pub(crate) struct Scanner<M> {
    unwrap: Unwrap,
    partial: Partial,
    spacing: Spacing,
    machine: M,
}

impl<M: Machine> Scanner<M> {
    fn new(machine: M, wrappers: Wrappers, options: &ParseOptions<'_>) -> Self {
        Self {
            unwrap: Unwrap::new(wrappers),
            partial: Partial::default(),
            spacing: Spacing { on: options.spaced_locations, ..Spacing::default() },
            machine,
        }
    }

    fn push<S: Sink>(&mut self, cx: &Context<'_>, text: &str, tag: Tag, sink: &mut S) {
        let Self { unwrap, partial, spacing, machine } = self;
        let mut driver = Driver { machine, spacing, cx, sink };
        let tally = Tally::of(tag);
        let mut rest = text;
        while let Some(&first) = rest.as_bytes().first() {
            // With nothing held, what has no `<` is text, and a token or a wrapper in one piece is just that:
            // no filter holds on to it, since its one `<` stands at its beginning.
            if unwrap.is_idle() && partial.is_idle() {
                if first != b'<' {
                    let plain = rest.find('<').unwrap_or(rest.len());
                    driver.text(&rest[..plain], &tally);
                    rest = &rest[plain..];
                    continue;
                }
                if let Some((token, len)) = token_at_start_of(rest) {
                    driver.token(token, &rest[..len], &tally);
                    rest = &rest[len..];
                    continue;
                }
                if let Some(len) = unwrap.whole_at_start_of(rest) {
                    rest = &rest[len..];
                    continue;
                }
                if let Some(len) = plain_at_start_of(rest, |next| next == b'l') {
                    driver.text(&rest[..len], &tally);
                    rest = &rest[len..];
                    continue;
                }
            }
            let Some(c) = rest.chars().next() else { return };
            unwrap.push(c, tag, |c, tag| partial.push(c, tag, &mut driver));
            rest = &rest[c.len_utf8()..];
        }
    }

    fn finish<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S) {
        let Self { unwrap, partial, spacing, machine } = self;
        let mut driver = Driver { machine, spacing, cx, sink };
        unwrap.finish(|c, tag| partial.push(c, tag, &mut driver));
        partial.release(&mut driver);
        driver.release_space();
        self.machine.finish(cx, sink);
    }
}

/// The scanner of one kind of answer.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    Text(TextScanner),
    Boxes(Scanner<BoxMachine>),
    Quads(Scanner<QuadMachine>),
    Polygons(Scanner<PolygonMachine>),
    Either(alloc::boxed::Box<Either>),
}

/// Open vocabulary detection: one `<poly>` anywhere turns the whole answer into polygons, so both are read until
/// one has come, and nothing is certain before.
#[derive(Clone, Debug)]
pub(crate) struct Either {
    boxes: Scanner<BoxMachine>,
    held_boxes: Vec<Instance>,
    polygons: Scanner<PolygonMachine>,
    held_polygons: Vec<Instance>,
    /// How much of `<poly>` has come; all of it once it has been found.
    matched: usize,
}

const POLY: &str = "<poly>";

impl Either {
    fn is_polygons(&self) -> bool {
        self.matched == POLY.len()
    }

    /// Looks for `<poly>` in the answer as it is, wrappers included, as the references do.
    fn search(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.is_polygons() {
                return;
            }
            self.matched = match byte {
                _ if byte == POLY.as_bytes()[self.matched] => self.matched + 1,
                b'<' => 1,
                _ => 0,
            };
        }
    }

    fn push<S: Sink>(&mut self, cx: &Context<'_>, text: &str, tag: Tag, sink: &mut S) {
        if self.is_polygons() {
            return self.polygons.push(cx, text, tag, sink);
        }
        self.polygons.push(cx, text, tag, &mut self.held_polygons);
        self.search(text);
        if self.is_polygons() {
            self.held_boxes = Vec::new();
            release(core::mem::take(&mut self.held_polygons), sink);
        } else {
            self.boxes.push(cx, text, tag, &mut self.held_boxes);
        }
    }

    fn finish<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S) {
        if self.is_polygons() {
            return self.polygons.finish(cx, sink);
        }
        self.boxes.finish(cx, &mut self.held_boxes);
        release(core::mem::take(&mut self.held_boxes), sink);
    }
}

/// Passes instances on.
pub(crate) fn release(instances: impl IntoIterator<Item = Instance>, sink: &mut impl Sink) {
    for instance in instances {
        match instance {
            Instance::Text(text) => sink.text(&text),
            Instance::Box(one) => sink.bounding_box(one),
            Instance::Quad(one) => sink.quad(one),
            Instance::Polygons(one) => sink.polygons(one),
        }
    }
}

impl Engine {
    pub(crate) fn new(kind: AnswerKind, options: &ParseOptions<'_>) -> Self {
        let boxes = |labels| Scanner::new(BoxMachine::new(labels), Wrappers::BosEosPad, options);
        let polygons = |labeled| Scanner::new(PolygonMachine::new(labeled), Wrappers::BosEosPad, options);
        let transformers = options.dialect == Dialect::Transformers;
        match kind {
            AnswerKind::Text => Self::Text(TextScanner::new(transformers)),
            AnswerKind::LabeledBoxes => Self::Boxes(boxes(Labels::Run)),
            AnswerKind::Boxes => Self::Boxes(boxes(Labels::None)),
            AnswerKind::GroundedPhrases => Self::Boxes(boxes(Labels::Grounded)),
            AnswerKind::Quads => {
                let wrappers = if transformers { Wrappers::BosEosPad } else { Wrappers::Bos };
                Self::Quads(Scanner::new(QuadMachine::default(), wrappers, options))
            }
            AnswerKind::LabeledPolygons => Self::Polygons(polygons(true)),
            AnswerKind::Polygons => Self::Polygons(polygons(false)),
            AnswerKind::BoxesOrPolygons => Self::Either(alloc::boxed::Box::new(Either {
                boxes: boxes(Labels::Run),
                held_boxes: Vec::new(),
                polygons: polygons(true),
                held_polygons: Vec::new(),
                matched: 0,
            })),
        }
    }

    pub(crate) fn push<S: Sink>(&mut self, cx: &Context<'_>, text: &str, tag: Tag, sink: &mut S) {
        match self {
            Self::Text(scanner) => scanner.push(text, sink),
            Self::Boxes(scanner) => scanner.push(cx, text, tag, sink),
            Self::Quads(scanner) => scanner.push(cx, text, tag, sink),
            Self::Polygons(scanner) => scanner.push(cx, text, tag, sink),
            Self::Either(either) => either.push(cx, text, tag, sink),
        }
    }

    pub(crate) fn finish<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S) {
        match self {
            Self::Text(scanner) => scanner.finish(sink),
            Self::Boxes(scanner) => scanner.finish(cx, sink),
            Self::Quads(scanner) => scanner.finish(cx, sink),
            Self::Polygons(scanner) => scanner.finish(cx, sink),
            Self::Either(either) => either.finish(cx, sink),
        }
    }

    /// Whether open vocabulary detection has turned out to be polygons.
    pub(crate) fn found_polygons(&self) -> bool {
        matches!(self, Self::Either(either) if either.is_polygons())
    }
}
