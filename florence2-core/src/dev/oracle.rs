//! Answers read the way the references read them: their regular expressions, run as they stand.
//!
//! This shares nothing with the scanners but the types of the result, so that the two can check each other. It
//! is slow, and on hostile texts quadratic as the references are: not for products.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use std::sync::LazyLock;

use fancy_regex::{Captures, Regex, RegexBuilder};

use crate::answer::{Answer, Label, Labeled};
use crate::geometry::{BoundingBox, Point, Polygon, Quad};
use crate::grid::LocGrid;
use crate::parse::{Dialect, ParseOptions};
use crate::task::AnswerKind;

/// The references' patterns, letter for letter; where they put one together, as Python's `re` gets it.
mod pattern {
    pub(super) const OCR: &str =
        r"(.+?)<loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)>";
    pub(super) const LABELED_BOXES: &str = r"([^<]+(?:<loc_\d+>){4,})";
    pub(super) const BARE_BOXES: &str = r"(?:(?:<loc_\d+>){4,})";
    pub(super) const BOX_LABEL: &str = r"^\s*(.*?)(?=<od>|</od>|<box>|</box>|<bbox>|</bbox>|<loc_)";
    pub(super) const BOX: &str = r"<loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)>";
    pub(super) const LABELED_POLYGONS: &str = r"([^<]+(?:<loc_\d+>|<sep>|<poly>|</poly>){4,})";
    pub(super) const BARE_POLYGONS: &str = r"(?:(?:<loc_\d+>|<sep>|<poly>|</poly>){4,})";
    pub(super) const POLYGON_LABEL: &str =
        r"^\s*(.*?)(?=<od>|</od>|<box>|</box>|<bbox>|</bbox>|<loc_|<poly>)";
    pub(super) const INSTANCE: &str = r"<poly>(.*?)</poly>";
    pub(super) const OUTLINE: &str = r"((?:<loc_\d+>)+)(?:<sep>|$)";
    pub(super) const LOC: &str = r"<loc_(\d+)>";
    pub(super) const LEFT_OVER_OF_MICROSOFT: &str = r"^loc_\d+>";
    pub(super) const LEFT_OVER_OF_TRANSFORMERS: &str = r"^<loc_\d+>";
    pub(super) const DIGIT: &str = r"\d";
}

macro_rules! compiled {
    ($($name:ident)*) => { $(static $name: LazyLock<Regex> = LazyLock::new(|| compile(pattern::$name));)* };
}

compiled! {
    OCR LABELED_BOXES BARE_BOXES BOX_LABEL BOX LABELED_POLYGONS BARE_POLYGONS POLYGON_LABEL INSTANCE OUTLINE LOC
    LEFT_OVER_OF_MICROSOFT LEFT_OVER_OF_TRANSFORMERS DIGIT
}

fn compile(python: &str) -> Regex {
    // A search that is given up would read as an answer without shapes: none is.
    RegexBuilder::new(&in_rust(python)).backtrack_limit(usize::MAX).build().expect("the pattern is valid")
}

/// A pattern of Python's `re` as one of this engine: two classes mean more there. The rest means the same, `\d`
/// (general category Nd) and `.` (all but `\n`) included.
fn in_rust(python: &str) -> String {
    python
        // `str.isspace` also holds for the information separators.
        .replace(r"\s", r"[\s\x1c-\x1f]")
        // Without MULTILINE, `$` is the end, and also the place before a newline at the end.
        .replace('$', r"(?=\n?\z)")
}

fn searched<T>(found: Result<T, fancy_regex::Error>) -> T {
    found.expect("a search without a limit ends")
}

/// All matches from left to right: `re.finditer`.
fn all<'t>(regex: &'t Regex, text: &'t str) -> impl Iterator<Item = Captures<'t, str>> {
    regex.captures_iter(text).map(searched)
}

/// Group 1 of every match, or the whole match where the pattern has no groups: `re.findall`.
fn find_all<'t>(regex: &'t Regex, text: &'t str) -> impl Iterator<Item = &'t str> {
    all(regex, text).map(|found| found.get(1).or(found.get(0)).expect("the whole match").as_str())
}

/// What the references find in an answer, in the dialect and with the banned phrases of `options`.
///
/// Where they raise an error over a location that `i64` cannot hold, this carries on as
/// [`parse`](crate::parse()) says that it does. Spaced locations are beyond the references, and ignored.
#[must_use]
pub fn parse(
    kind: impl Into<AnswerKind>,
    text: &str,
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
) -> Answer {
    let grid = size.into();
    let reader = Reader { extents: [grid.width(), grid.height()], options: *options };
    match kind.into() {
        AnswerKind::Text => Answer::Text(reader.text(text)),
        AnswerKind::LabeledBoxes => Answer::Boxes(reader.boxes(text, &LABELED_BOXES, false)),
        AnswerKind::Boxes => Answer::Boxes(reader.boxes(text, &BARE_BOXES, false)),
        AnswerKind::GroundedPhrases => Answer::Boxes(reader.boxes(text, &LABELED_BOXES, true)),
        AnswerKind::Quads => Answer::Quads(reader.quads(text)),
        AnswerKind::LabeledPolygons => Answer::Polygons(reader.polygons(text, &LABELED_POLYGONS)),
        AnswerKind::Polygons => Answer::Polygons(reader.polygons(text, &BARE_POLYGONS)),
        AnswerKind::BoxesOrPolygons if text.contains("<poly>") => {
            Answer::Polygons(reader.polygons(text, &LABELED_POLYGONS))
        }
        AnswerKind::BoxesOrPolygons => Answer::Boxes(reader.boxes(text, &LABELED_BOXES, false)),
    }
}

struct Reader<'a> {
    /// Width, height.
    extents: [f64; 2],
    options: ParseOptions<'a>,
}

impl Reader<'_> {
    fn text(&self, text: &str) -> String {
        let text = text.replace("<s>", "").replace("</s>", "");
        match self.options.dialect {
            Dialect::Microsoft => text,
            Dialect::Transformers => strip(&text).to_owned(),
        }
    }

    fn quads(&self, text: &str) -> Vec<Labeled<Quad>> {
        let (text, trim): (String, fn(&str) -> &str) = match self.options.dialect {
            Dialect::Microsoft => (text.replace("<s>", ""), |label| label),
            Dialect::Transformers => (unwrapped(text), strip),
        };
        all(&OCR, &text)
            .map(|found| {
                let bins: Vec<u64> = (2..=9).map(|group| int(&found[group])).collect();
                let points = self.outline(&bins);
                Labeled::new(trim(&found[1]), Quad(points.try_into().expect("eight bins are four points")))
            })
            .collect()
    }

    fn boxes(&self, text: &str, chunks: &Regex, grounding: bool) -> Vec<Labeled<BoundingBox>> {
        let mut rows = Vec::new();
        for chunk in find_all(chunks, &unwrapped(text)) {
            let chunk = chunk.replacen("<ground>", "", 1).replacen("<obj>", "", 1);
            let Some(label) = searched(BOX_LABEL.find(&chunk)) else { continue };
            let label = strip(label.as_str());
            if grounding && self.options.banned.contains(label) {
                continue;
            }
            let label = Label::from(label.chars().filter(char::is_ascii).collect::<String>());
            for found in all(&BOX, &chunk) {
                let [x1, y1, x2, y2] = [(1, 0), (2, 1), (3, 0), (4, 1)]
                    .map(|(group, axis)| self.told(narrow(int(&found[group]), self.extents[axis])));
                rows.push(Labeled::new(label.clone(), BoundingBox { x1, y1, x2, y2 }));
            }
        }
        rows
    }

    fn polygons(&self, text: &str, chunks: &Regex) -> Vec<Labeled<Vec<Polygon>>> {
        let left_over: &Regex = match self.options.dialect {
            Dialect::Microsoft => &LEFT_OVER_OF_MICROSOFT,
            Dialect::Transformers => &LEFT_OVER_OF_TRANSFORMERS,
        };
        let mut rows = Vec::new();
        for chunk in find_all(chunks, &unwrapped(text)) {
            let rest = searched(left_over.find(chunk)).map_or(chunk, |found| &chunk[found.end()..]);
            let Some(label) = searched(POLYGON_LABEL.find(rest)) else { continue };
            let label = Label::from(strip(label.as_str()));
            let instances: Vec<&str> = if chunk.contains("<poly>") && chunk.contains("</poly>") {
                find_all(&INSTANCE, chunk).collect()
            } else {
                [chunk].into()
            };
            for instance in instances {
                let outlines: Vec<Polygon> = find_all(&OUTLINE, instance)
                    .map(|outline| {
                        let bins: Vec<u64> = find_all(&LOC, outline).map(int).collect();
                        Polygon(self.outline(&bins[..bins.len() / 2 * 2]))
                    })
                    .collect();
                if !outlines.is_empty() {
                    rows.push(Labeled::new(label.clone(), outlines));
                }
            }
        }
        rows
    }

    /// Pairs of bins as points.
    fn outline(&self, bins: &[u64]) -> Vec<Point> {
        // Microsoft's code makes a numpy array first, and numpy makes it one of f64 when `i64` is too small.
        let wide =
            self.options.dialect == Dialect::Microsoft && bins.iter().any(|&bin| i64::try_from(bin).is_err());
        let pixel =
            if wide { |bin, extent: f64| ((bin as f64 + 0.5) * (extent / 1000.0)) as f32 } else { narrow };
        bins.chunks_exact(2)
            .map(|pair| Point {
                x: self.told(pixel(pair[0], self.extents[0])),
                y: self.told(pixel(pair[1], self.extents[1])),
            })
            .collect()
    }

    /// A coordinate as the dialect tells it: transformers makes it an `int32`, out of range the least one.
    fn told(&self, pixel: f32) -> f32 {
        match self.options.dialect {
            Dialect::Microsoft => pixel,
            Dialect::Transformers => match pixel as i64 {
                whole if i32::try_from(whole).is_ok() => whole as f32,
                _ => i32::MIN as f32,
            },
        }
    }
}

/// A pixel by the arithmetic of an `f32` tensor.
fn narrow(bin: u64, extent: f64) -> f32 {
    (bin as f32 + 0.5) * ((extent / 1000.0) as f32)
}

fn unwrapped(text: &str) -> String {
    text.replace("<s>", "").replace("</s>", "").replace("<pad>", "")
}

/// `str.strip`.
fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}'))
}

/// `int`, held at `u64::MAX`.
fn int(digits: &str) -> u64 {
    digits.chars().fold(0, |value: u64, c| value.saturating_mul(10).saturating_add(digit(c)))
}

/// The value of what `\d` matches.
fn digit(c: char) -> u64 {
    /// All decimal digits in order. Unicode encodes them by tens, zero first, so that the rank tells the value.
    static DIGITS: LazyLock<Vec<char>> = LazyLock::new(|| {
        let mut utf8 = [0; 4];
        ('\0'..=char::MAX)
            .filter(|c| c.is_numeric() && searched(DIGIT.is_match(&*c.encode_utf8(&mut utf8))))
            .collect()
    });
    c.to_digit(10).map_or_else(
        || DIGITS.binary_search(&c).expect("the pattern took it for a digit") as u64 % 10,
        u64::from,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::ImageSize;

    /// Each as Python's `re` answers it.
    #[test]
    fn patterns_mean_what_they_mean_in_python() {
        let matches = |python: &str, text: &str| searched(compile(python).is_match(text));
        for (python, text, expected) in [
            (r"^\s$", "\u{1c}", true),
            (r"^\s$", "\u{1f}", true),
            (r"^\s$", "\u{85}", true),
            (r"^\s$", "\u{3000}", true),
            (r"^\s$", "\u{200b}", false),
            (r"a$", "a\n", true),
            (r"a$", "a\n\n", false),
            (r"a$", "a\r", false),
            (r"^.$", "\r", true),
            (r"^.$", "\u{2028}", true),
            (r"^.$", "\n", false),
            (r"^\d$", "１", true),
            (r"^\d$", "٣", true),
            (r"^\d$", "²", false),
        ] {
            assert_eq!(matches(python, text), expected, "{python} {text:?}");
        }
    }

    #[test]
    fn digits_have_their_value() {
        for (digits, value) in [
            ("007", 7),
            ("１٣𝟗", 139),
            ("𝟎𝟘𝟢𝟬𝟶𝟿", 9),
            ("18446744073709551615", u64::MAX),
            ("18446744073709551616", u64::MAX),
            ("999999999999999999999999", u64::MAX),
        ] {
            assert_eq!(int(digits), value, "{digits}");
        }
    }

    /// An engine without Unicode tables would find nothing anywhere, and agree with whatever is empty.
    #[test]
    fn every_kind_finds_something() {
        let size = ImageSize::from_width_height(1000, 1000).expect("a size");
        let text = "a<poly><loc_1><loc_2><loc_3><loc_4></poly>b<loc_1><loc_2><loc_3><loc_4><loc_5><loc_6><loc_7><loc_8>";
        for kind in AnswerKind::ALL {
            assert!(!parse(kind, text, size, &ParseOptions::default()).is_empty(), "{kind}");
        }
    }
}
