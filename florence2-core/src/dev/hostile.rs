//! Answers that no model writes, made out of bytes.
//!
//! The bytes choose fragments of the answers' language, so that whole structures are as frequent as their
//! ruins. Everything here is total and deterministic: proptest and the fuzz targets feed the same functions, and
//! a find is a file of bytes.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use std::sync::LazyLock;

use crate::answer::{Answer, Label, Labeled};
use crate::banned::BannedPhrases;
use crate::geometry::{ImageSize, Polygon};
use crate::grid::LocGrid;
use crate::parse::{Dialect, ParseOptions};
use crate::task::{AnswerKind, Task};
use crate::token::Loc;

/// The bytes before the text: kind, flags, size, and the seeds of the cuts and of the log-probabilities.
const HEADER: usize = 5;
/// In the flags: the rest of the bytes is the text, and chooses nothing.
const RAW: u8 = 0x80;
/// In bytes, give or take a fragment: short texts make many cases.
const LONGEST: usize = 2 << 10;

static OWN_BANNED: LazyLock<BTreeSet<String>> =
    LazyLock::new(|| ["dog", "é", "loc_1>", ""].map(String::from).into());

/// A text, how it is to be read, and how it is to be cut.
#[derive(Clone, Debug)]
pub struct Case {
    /// The kind of answer.
    pub kind: AnswerKind,
    /// Whose rules hold.
    pub dialect: Dialect,
    /// The banned phrases.
    pub banned: BannedPhrases<'static>,
    /// Whether white space between locations is passed over.
    pub spaced: bool,
    /// The picture's.
    pub size: ImageSize,
    /// The answer.
    pub text: String,
    /// Where it is cut: in order, each between two characters.
    pub cuts: Vec<usize>,
    /// One for each piece.
    pub log_probs: Vec<f32>,
}

impl Case {
    /// Any bytes are a case; a small change of the bytes is a small change of the case.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let [kind, flags, size, cut, log_prob] = header(bytes);
        let rest = bytes.get(HEADER..).unwrap_or_default();
        let text = if flags & RAW == 0 {
            grammar(rest, &FRAGMENTS)
        } else {
            String::from_utf8_lossy(rest).into_owned()
        };
        let cuts = cuts(&text, cut);
        let log_probs = log_probs(log_prob, cuts.len() + 1);
        Self {
            kind: AnswerKind::ALL[usize::from(kind) % AnswerKind::ALL.len()],
            dialect: if flags & 1 == 0 { Dialect::Microsoft } else { Dialect::Transformers },
            banned: match flags >> 1 & 3 {
                0 | 1 => BannedPhrases::Florence2,
                2 => BannedPhrases::None,
                _ => BannedPhrases::Only(&OWN_BANNED),
            },
            spaced: flags & 8 != 0,
            size: size_of(size),
            text,
            cuts,
            log_probs,
        }
    }

    /// Bytes whose case has this text: how a known answer becomes a seed.
    #[must_use]
    pub fn bytes_of(kind: AnswerKind, dialect: Dialect, text: &str) -> Vec<u8> {
        let kind = AnswerKind::ALL.iter().position(|&other| other == kind).unwrap_or_default();
        let flags = RAW | u8::from(dialect == Dialect::Transformers);
        let seed = text.len() as u8;
        [&[kind as u8, flags, seed, seed, seed], text.as_bytes()].concat()
    }

    /// The options that it is read with.
    #[must_use]
    pub fn options(&self) -> ParseOptions<'static> {
        ParseOptions::default().dialect(self.dialect).banned(self.banned).spaced_locations(self.spaced)
    }
}

/// A prompt, or what is none; most begin with a marker.
#[must_use]
pub fn prompt(bytes: &[u8]) -> String {
    match bytes {
        [flags, rest @ ..] if flags & RAW != 0 => String::from_utf8_lossy(rest).into_owned(),
        [flags, rest @ ..] => {
            let mut text = grammar(rest, &PROMPT_FRAGMENTS);
            if let Some(task) = Task::ALL.get(usize::from(*flags)) {
                text.insert_str(0, task.marker());
            }
            text
        }
        [] => String::new(),
    }
}

/// Bytes whose prompt is this text.
#[must_use]
pub fn bytes_of_prompt(text: &str) -> Vec<u8> {
    [&[RAW], text.as_bytes()].concat()
}

/// What an annotator would draw: things with labels and outlines, in bins.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// How it is to be written.
    pub kind: AnswerKind,
    /// The picture's.
    pub size: ImageSize,
    /// What is drawn.
    pub things: Vec<Thing>,
}

/// One thing of a drawing.
#[derive(Clone, Debug)]
pub struct Thing {
    /// Empty where the kind has none.
    pub label: String,
    /// The points of each; a box is an outline of two.
    pub outlines: Vec<Vec<[Loc; 2]>>,
}

impl Drawn {
    /// Any bytes draw something.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let [kind, flags, size, ..] = header(bytes);
        let kind = AnswerKind::ALL[usize::from(kind) % AnswerKind::ALL.len()];
        let mut bytes = bytes.iter().skip(HEADER).copied();
        let mut things = Vec::new();
        while let Some(byte) = bytes.next() {
            let mut label = match kind {
                AnswerKind::Boxes | AnswerKind::Polygons => String::new(),
                _ => LABELS[usize::from(byte) % LABELS.len()].to_string(),
            };
            if byte & 0x40 != 0 && !label.is_empty() {
                label.push_str(LABELS[usize::from(byte >> 3) % LABELS.len()]);
            }
            let shape = bytes.next().unwrap_or_default();
            let (outlines, points) = match kind {
                AnswerKind::LabeledPolygons | AnswerKind::Polygons => (1 + shape % 3, 1 + shape / 16),
                AnswerKind::BoxesOrPolygons if flags & 1 != 0 => (1 + shape % 3, 1 + shape / 16),
                AnswerKind::Quads => (1, 4),
                _ => (1 + shape % 3, 2),
            };
            let mut loc = || {
                let [high, low] = [(); 2].map(|()| bytes.next().unwrap_or_default());
                Loc::clamped((u16::from(high) << 8 | u16::from(low)) % Loc::COUNT)
            };
            let outlines = (0..outlines).map(|_| (0..points).map(|_| [loc(), loc()]).collect()).collect();
            things.push(Thing { label, outlines });
        }
        Self { kind, size: size_of(size), things }
    }

    /// Whether it is drawn in outlines rather than boxes or quadrilaterals.
    #[must_use]
    pub fn has_polygons(&self) -> bool {
        match self.kind {
            AnswerKind::LabeledPolygons | AnswerKind::Polygons => true,
            // An outline of two points is a box.
            AnswerKind::BoxesOrPolygons => {
                self.things.iter().any(|thing| thing.outlines.iter().any(|one| one.len() != 2))
            }
            _ => false,
        }
    }

    /// The answer that shows it, each point in the middle of its bins.
    ///
    /// # Panics
    ///
    /// If a box has not two points, or a quadrilateral not four; none that [`from_bytes`](Self::from_bytes) draws.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let grid = LocGrid::from(self.size);
        let flat = |outline: &[[Loc; 2]]| outline.iter().flatten().copied().collect::<Vec<Loc>>();
        let labeled = self.things.iter().map(|thing| (Label::from(thing.label.as_str()), &thing.outlines));
        match self.kind {
            AnswerKind::Text => Answer::Text(self.things.iter().map(|thing| thing.label.as_str()).collect()),
            AnswerKind::Quads => Answer::Quads(
                labeled
                    .map(|(label, outlines)| {
                        let locs = flat(&outlines[0]).try_into().expect("four points");
                        Labeled::new(label, grid.dequantize_quad(locs))
                    })
                    .collect(),
            ),
            _ if self.has_polygons() => Answer::Polygons(
                labeled
                    .map(|(label, outlines)| {
                        let outlines: Vec<Polygon> =
                            outlines.iter().map(|outline| grid.dequantize_polygon(outline)).collect();
                        Labeled::new(label, outlines)
                    })
                    .collect(),
            ),
            _ => Answer::Boxes(
                labeled
                    .flat_map(|(label, outlines)| {
                        outlines.iter().map(move |outline| {
                            let locs = flat(outline).try_into().expect("two points");
                            Labeled::new(label.clone(), grid.dequantize_box(locs))
                        })
                    })
                    .collect(),
            ),
        }
    }
}

fn header(bytes: &[u8]) -> [u8; HEADER] {
    core::array::from_fn(|at| bytes.get(at).copied().unwrap_or_default())
}

/// Sides that round in their own way: 144, 1040 and 1680 fall below a whole number in `f32`, and at the largest
/// a bin leaves `i32`.
const SIDES: [u32; 16] =
    [640, 480, 1000, 1, 2, 3, 144, 333, 768, 999, 1001, 1040, 1680, 4096, 65_535, u32::MAX];

fn size_of(byte: u8) -> ImageSize {
    let [width, height] = [byte & 15, byte >> 4].map(|at| SIDES[usize::from(at)]);
    ImageSize::from_width_height(width, height).expect("no side is zero")
}

/// What most of the bytes stand for.
#[rustfmt::skip]
const FRAGMENTS: [&str; 64] = [
    // Tokens and their ruins.
    "<loc_12>", "<loc_", "<loc_1", "loc_1>", "<loc_>", "<loc_-1>", "<loc_ 1>", "<loc_007>", "<loc", "<", ">", "_",
    "<poly>", "</poly>", "<sep>", "<pol", "y>", "</", "<poly", "<sep",
    "<s>", "</s>", "<pad>", "<<s>s>", "<p<s>ad>", "<</s>/s>", "<pa", "d>", "<s", "s>", "/s>",
    "<od>", "</od>", "<box>", "</bbox>", "<and>", "<ground>", "<obj>",
    // Labels.
    "a", "dog", "a green car", "the image", "it", " it ", "é", "狗", "🐶", "A", "-", ",",
    // Digits, in three scripts.
    "7", "0", "１", "٣",
    // White space, or what Python takes for it; the zero-width space is none.
    " ", "\n", "\r", "\t", "\u{1c}", "\u{85}", "\u{a0}", "\u{2028}", "\u{3000}", "\u{200b}",
];

/// Markers and their ruins.
#[rustfmt::skip]
const PROMPT_FRAGMENTS: [&str; 64] = [
    "<CAPTION>", "<DETAILED_CAPTION>", "<MORE_DETAILED_CAPTION>", "<OCR>", "<OCR_WITH_REGION>", "<OD>",
    "<DENSE_REGION_CAPTION>", "<REGION_PROPOSAL>", "<CAPTION_TO_PHRASE_GROUNDING>",
    "<REFERRING_EXPRESSION_SEGMENTATION>", "<REGION_TO_SEGMENTATION>", "<OPEN_VOCABULARY_DETECTION>",
    "<REGION_TO_CATEGORY>", "<REGION_TO_DESCRIPTION>", "<REGION_TO_OCR>",
    "<od>", "OD", "ocr", "<caption_to_phrase_grounding>", "<Region_To_Ocr>", "<open_vocabulary_detection>",
    "<CAPTION_TO_", "PHRASE_GROUNDING>", "<O", "D>", "<REGION_TO_", "OCR>", "CAPTION", "<", ">", "_",
    "<loc_0>", "<loc_52>", "<loc_999>", "<loc_1000>", "<loc_007>", "<loc_1", "<loc_-1>", "<loc_１>", "loc_1>",
    "<loc_52><loc_332><loc_932><loc_774>", "<s>", "</s>", "<pad>", "<mask>", "<unk>", "<and>", "<sep>", "<image>",
    "a green car", "dog", "{input}", "é", "🐶", "0", "a", " ", "\n", "\t", "\r", "\u{1c}", "\u{85}", "\u{a0}", "\u{3000}",
];

/// Labels of all sorts, some of which cannot be written.
#[rustfmt::skip]
const LABELS: [&str; 24] = [
    "car", "green", "a", "it", "the image", "dog", "two words", "x", "7", "A1", "STOP", " lead", "trail ", "",
    "é", "狗", "loc_1>", "a<b", "x\ny", "\u{1c}", "a\u{a0}", "<poly>", "</s>", "and>",
];

/// Locations in their own digits, at the edges of what numbers hold.
#[rustfmt::skip]
const BINS: [&str; 16] = [
    "0", "1", "500", "999", "1000", "5000", "0000012", "３２", "٤٥", "𝟙𝟚", "16777217", "4294967295",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "123456789012345678901234567890",
];

/// Bytes below 0x80 are fragments, 0x80.. a row of locations, 0xc0.. the next byte's fragment over and over,
/// 0xe0.. a whole structure, 0xf0.. the next few bytes as they are.
fn grammar(bytes: &[u8], fragments: &[&str; 64]) -> String {
    let mut text = String::new();
    let mut bytes = bytes;
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        let low = usize::from(first & 15);
        match first {
            0x00..0x80 => text.push_str(fragments[usize::from(first & 63)]),
            0x80..0xc0 => locations(
                &mut text,
                usize::from(first >> 4 & 3),
                [1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8, 8, 8, 8, 9, 12][low],
            ),
            0xc0..0xe0 => {
                let times = [2, 3, 4, 5, 8, 16, 31, 64][usize::from(first & 7)];
                if let [next, rest @ ..] = bytes {
                    bytes = rest;
                    text.push_str(&fragments[usize::from(next & 63)].repeat(times));
                }
            }
            0xe0..0xf0 => {
                text.push_str(["", "car", "a green car", "it", "é", " dog", "x\ny", "STOP"][low & 7]);
                if low < 8 {
                    locations(&mut text, 0, 4 + low / 4 * 4);
                } else {
                    text.push_str("<poly>");
                    locations(&mut text, low & 3, 4 + low % 3);
                    text.push_str("<sep>");
                    locations(&mut text, 0, 6);
                    text.push_str("</poly>");
                }
            }
            0xf0.. => {
                let (raw, rest) = bytes.split_at((low + 1).min(bytes.len()));
                bytes = rest;
                text.push_str(&String::from_utf8_lossy(raw));
            }
        }
        if text.len() > LONGEST {
            break;
        }
    }
    text
}

/// A row of locations: plain, at the edges, in another script, or huge.
fn locations(text: &mut String, style: usize, count: usize) {
    for at in 0..count {
        match style {
            0 => text.push_str(&format!("<loc_{}>", (text.len() * 7 + at * 131) % 1000)),
            1 => text.push_str(&format!("<loc_{}>", BINS[at % 7])),
            2 => text.push_str(&format!("<loc_{}>", BINS[7 + at % 3])),
            _ => text.push_str(&format!("<loc_{}>", BINS[(text.len() + at) % BINS.len()])),
        }
    }
}

/// The numbers that a seed stands for; a multiplier of L'Ecuyer's.
fn numbers(seed: u8) -> impl FnMut() -> usize {
    let mut state = u64::from(seed).wrapping_add(1);
    move || {
        state = state.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(3_037_000_493);
        (state >> 33) as usize
    }
}

/// Nowhere, between all characters, after every token, or here and there.
fn cuts(text: &str, seed: u8) -> Vec<usize> {
    let inner = text.char_indices().skip(1).map(|(at, _)| at);
    let mut number = numbers(seed);
    match seed % 8 {
        0 => Vec::new(),
        1 => inner.collect(),
        2 => inner.filter(|&at| matches!(text.as_bytes()[at - 1], b'>')).collect(),
        3 => inner.filter(|&at| matches!(text.as_bytes()[at], b'<')).collect(),
        few => inner.filter(|_| number().is_multiple_of(usize::from(few) * 2 - 5)).collect(),
    }
}

fn log_probs(seed: u8, count: usize) -> Vec<f32> {
    let mut number = numbers(seed);
    (0..count)
        .map(|_| match number() % 16 {
            // What a token has that a rule forbade.
            0 => f32::NEG_INFINITY,
            1 => 0.0,
            sixteenths => -(sixteenths as f32) / 8.0,
        })
        .collect()
}

/// `n` labels, none with a quadrilateral: both references take the square of the time in the OCR route.
#[must_use]
pub fn labels_through_ocr(n: usize) -> String {
    "label<loc_1><loc_2><loc_3><loc_4>".repeat(n)
}

/// `<`, `n` times.
#[must_use]
pub fn open_angles(n: usize) -> String {
    "<".repeat(n)
}

/// `n` locations and nothing else.
#[must_use]
pub fn locs(n: usize) -> String {
    "<loc_12>".repeat(n)
}

/// `n` labels, each with one location less than a box has.
#[must_use]
pub fn short_runs(n: usize) -> String {
    "dog<loc_1><loc_2><loc_3>".repeat(n)
}

/// A label of `n` bytes and `n` boxes: one copy of the label for each would be quadratic.
#[must_use]
pub fn one_label_many_boxes(n: usize) -> String {
    "x".repeat(n) + &"<loc_1><loc_2><loc_3><loc_4>".repeat(n)
}

/// `n` outlines of one location.
#[must_use]
pub fn seps(n: usize) -> String {
    String::from("dog<poly>") + &"<loc_1><sep>".repeat(n) + "</poly>"
}

/// `<s>` around `<s>`, `n` deep, of which one pass removes only the innermost.
#[must_use]
pub fn nested_wrappers(n: usize) -> String {
    "<".repeat(n) + &"s>".repeat(n)
}

/// `n` locations without an end.
#[must_use]
pub fn unfinished_locs(n: usize) -> String {
    "<loc_1".repeat(n)
}

/// Such a text, `n` times as long as its pattern.
pub type Family = fn(usize) -> String;

/// All of these, by name.
pub const FAMILIES: [(&str, Family); 8] = [
    ("labels_through_ocr", labels_through_ocr),
    ("open_angles", open_angles),
    ("locs", locs),
    ("short_runs", short_runs),
    ("one_label_many_boxes", one_label_many_boxes),
    ("seps", seps),
    ("nested_wrappers", nested_wrappers),
    ("unfinished_locs", unfinished_locs),
];
