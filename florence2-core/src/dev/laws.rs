//! What holds for every answer and every prompt, whatever the text.
//!
//! Each law is a function that panics if it is violated, and says with what.
#![expect(clippy::missing_panics_doc, reason = "to panic is how a law says that it is violated")]

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Debug;

use super::hostile::{Drawn, Thing};
use super::oracle;
use crate::answer::{Answer, Instance, Label, Labeled};
use crate::banned::BannedPhrases;
use crate::geometry::ImageSize;
use crate::grid::LocGrid;
use crate::parse::{Dialect, ParseOptions, parse, parse_scored};
use crate::prompt::Prompt;
use crate::stream::AnswerStream;
use crate::symptoms::symptoms;
use crate::target::target_text;
use crate::task::AnswerKind;
use crate::token::{Loc, Segment, TokenLayout, segments};

/// Both.
pub const DIALECTS: [Dialect; 2] = [Dialect::Microsoft, Dialect::Transformers];

/// The parser finds what the references' regular expressions find, bit for bit.
pub fn agrees_with_the_oracle(
    kind: AnswerKind,
    text: &str,
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
) {
    let size = size.into();
    let (found, expected) = (parse(kind, text, size, options), oracle::parse(kind, text, size, options));
    assert_same(&found, &expected, "the parser and the oracle", text, &(kind, size, options));
}

/// However the text is cut, the stream says what the parser says.
///
/// A cut that is not between two characters is ignored.
pub fn splits_do_not_matter(
    kind: AnswerKind,
    text: &str,
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
    cuts: &[usize],
) {
    let size = size.into();
    let mut stream = AnswerStream::new(kind, size, options);
    let mut instances: Vec<Instance> =
        pieces(text, cuts).into_iter().flat_map(|piece| stream.push(piece)).collect();
    let mut joined = Answer::empty(stream.kind());
    instances.extend(stream.finish());
    joined.extend(instances);
    let whole = parse(kind, text, size, options);
    assert_same(&joined, &whole, "the stream and the parser", text, &(kind, size, options, cuts));
}

/// An answer holds no more than its text pays for.
///
/// A location is written in at least seven bytes, and a shared label counts once.
pub fn output_is_bounded(kind: AnswerKind, text: &str, size: impl Into<LocGrid>, options: &ParseOptions<'_>) {
    const LOC: usize = "<loc_1>".len();
    let (paid, labels) = match parse(kind, text, size, options) {
        Answer::Text(text) => (text.len(), 0),
        Answer::Boxes(rows) => (rows.len() * 4 * LOC, distinct(&rows)),
        Answer::Quads(rows) => (rows.len() * 8 * LOC, distinct(&rows)),
        Answer::Polygons(rows) => {
            assert!(rows.iter().all(|row| !row.shape.is_empty()), "a thing without outlines\n{text:?}");
            // An outline is one location at least, even one that is left over.
            let outlines = rows.iter().flat_map(|row| &row.shape).map(|outline| (outline.0.len() * 2).max(1));
            (outlines.sum::<usize>() * LOC, distinct(&rows))
        }
    };
    assert!(paid + labels <= text.len(), "{kind}: {paid} + {labels} bytes from {}\n{text:?}", text.len());
}

/// The bytes of all labels; rows that share one stand side by side.
fn distinct<T>(rows: &[Labeled<T>]) -> usize {
    let own = |at: usize| at == 0 || !rows[at].label.shares_with(&rows[at - 1].label);
    (0..rows.len()).filter(|&at| own(at)).map(|at| rows[at].label.len()).sum()
}

/// A bin's centre lies in the bin.
pub fn quantize_undoes_dequantize(size: ImageSize, bins: [Loc; 2]) {
    let grid = LocGrid::from(size);
    let centre = grid.dequantize_point(bins);
    assert_eq!(grid.quantize_point(centre), bins, "{size}, {centre:?}");
}

/// The dialects find the same boxes with the same labels; transformers cuts the coordinates, and what `i32`
/// cannot hold becomes its least value.
///
/// Of the other shapes that is not so: the label decides whether there is a shape, and the dialects read it apart.
pub fn dialects_are_related(
    kind: AnswerKind,
    text: &str,
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
) {
    let size = size.into();
    let [of_microsoft, of_transformers] =
        DIALECTS.map(|dialect| parse(kind, text, size, &options.dialect(dialect)));
    let (Answer::Boxes(of_microsoft), Answer::Boxes(of_transformers)) = (of_microsoft, of_transformers)
    else {
        return;
    };
    assert_eq!(of_microsoft.len(), of_transformers.len(), "{kind}\n{text:?}");
    let cut = |v: f32| {
        let cut = f64::from(v).trunc();
        if (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&cut) { cut as f32 } else { i32::MIN as f32 }
    };
    for (a, b) in of_microsoft.iter().zip(&of_transformers) {
        assert_eq!(a.label, b.label, "{kind}\n{text:?}");
        assert_eq!(a.shape.to_array().map(cut), b.shape.to_array(), "{kind}, {:?}\n{text:?}", a.shape);
    }
}

/// Scores beside, what comes with log-probabilities is read like the text alone; a score lies within 0 and 1; and
/// the stream gives the same scores.
///
/// A log-probability is at most 0; where there are fewer than pieces, they begin again.
pub fn scores_do_not_change_the_answer(
    kind: AnswerKind,
    text: &str,
    size: impl Into<LocGrid>,
    options: &ParseOptions<'_>,
    cuts: &[usize],
    log_probs: &[f32],
) {
    let size = size.into();
    let log_probs = log_probs.iter().copied().cycle().chain([0.0]);
    let pieces: Vec<(&str, f32)> = pieces(text, cuts).into_iter().zip(log_probs).collect();
    let scored = parse_scored(kind, &pieces, size, options);
    let circumstances = (kind, size, options, &pieces);

    let mut stream = AnswerStream::new(kind, size, options);
    let mut instances: Vec<Instance> =
        pieces.iter().flat_map(|&(piece, log_prob)| stream.push_scored(piece, log_prob)).collect();
    let mut joined = Answer::empty(stream.kind());
    instances.extend(stream.finish());
    joined.extend(instances);
    assert_same(&joined, &scored, "the scores of the stream and of the parser", text, &circumstances);

    let plain = match scored {
        Answer::Text(text) => Answer::Text(text),
        Answer::Boxes(rows) => Answer::Boxes(unscored(rows, |_| true)),
        Answer::Quads(rows) => Answer::Quads(unscored(rows, |_| true)),
        Answer::Polygons(rows) => {
            Answer::Polygons(unscored(rows, |outlines| outlines.iter().any(|one| !one.0.is_empty())))
        }
    };
    let whole = parse(kind, text, size, options);
    assert_same(&plain, &whole, "the scored parse and the parser", text, &circumstances);
}

fn unscored<T>(rows: Vec<Labeled<T>>, has_points: fn(&T) -> bool) -> Vec<Labeled<T>> {
    rows.into_iter()
        .map(|row| {
            assert!(row.score.is_some() || !has_points(&row.shape), "locations without a score");
            for score in [row.score, row.label_score].into_iter().flatten() {
                assert!((0.0..=1.0).contains(&score), "{score}");
            }
            assert!(!row.label.is_empty() || row.label_score.is_none(), "an empty label with a score");
            Labeled::new(row.label, row.shape)
        })
        .collect()
}

/// Where the pieces are whole tokens of a well-formed answer, a score is `exp` of the mean of the
/// log-probabilities of the locations, or of the label's tokens.
///
/// Things whose labels would not be read back word for word are left out.
pub fn scores_are_means(drawn: &Drawn, log_probs: &[f32]) {
    let mut log_probs = log_probs.iter().copied().cycle().chain([-1.0]);
    let mut pieces: Vec<(String, f32)> = Vec::new();
    let mut token = |text: String| {
        let log_prob = log_probs.next().unwrap_or(-1.0);
        pieces.push((text, log_prob));
        log_prob
    };
    let mut expected = Vec::new();
    for Thing { label, outlines } in &drawn.things {
        let needs_label = !matches!(drawn.kind, AnswerKind::Boxes | AnswerKind::Polygons);
        if drawn.kind == AnswerKind::Text || needs_label && !is_plain(label) {
            continue;
        }
        let label: Vec<f32> =
            label.split_inclusive(' ').filter(|_| needs_label).map(|word| token(word.to_owned())).collect();
        let mut shape = Vec::new();
        if drawn.has_polygons() {
            token("<poly>".to_owned());
        }
        for (at, outline) in outlines.iter().enumerate() {
            if drawn.has_polygons() && at > 0 {
                token("<sep>".to_owned());
            }
            shape.extend(outline.iter().flatten().map(|loc| token(loc.to_string())));
            if !drawn.has_polygons() {
                expected.push((mean(&shape), mean(&label)));
                shape.clear();
            }
        }
        if drawn.has_polygons() {
            token("</poly>".to_owned());
            expected.push((mean(&shape), mean(&label)));
        }
    }
    let options = ParseOptions::default().banned(BannedPhrases::None);
    let scores: Vec<_> = match parse_scored(drawn.kind, &pieces, drawn.size, &options) {
        Answer::Text(_) => Vec::new(),
        Answer::Boxes(rows) => rows.iter().map(|row| (row.score, row.label_score)).collect(),
        Answer::Quads(rows) => rows.iter().map(|row| (row.score, row.label_score)).collect(),
        Answer::Polygons(rows) => rows.iter().map(|row| (row.score, row.label_score)).collect(),
    };
    let near = |a: Option<f32>, b: Option<f32>| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6,
        (a, b) => a == b,
    };
    let equal = scores.len() == expected.len()
        && scores.iter().zip(&expected).all(|(a, b)| near(a.0, b.0) && near(a.1, b.1));
    assert!(equal, "{}: found {scores:?}\nexpected {expected:?}\n{pieces:?}", drawn.kind);
}

fn is_plain(label: &str) -> bool {
    !label.is_empty()
        && label.split(' ').all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric()))
}

fn mean(log_probs: &[f32]) -> Option<f32> {
    let sum: f64 = log_probs.iter().copied().map(f64::from).sum();
    (!log_probs.is_empty()).then(|| (sum / log_probs.len() as f64).exp() as f32)
}

/// What can be written as a target is read back, bins and labels.
pub fn targets_round_trip(drawn: &Drawn) {
    let answer = drawn.answer();
    let Ok(text) = target_text(drawn.kind, &answer, drawn.size) else {
        return;
    };
    let options = ParseOptions::default().banned(BannedPhrases::None);
    let read = parse(drawn.kind, &text, drawn.size, &options);
    // Nothing at all does not say of which kind it is.
    let same = read == answer || read.is_empty() && answer.is_empty();
    assert!(same, "{}: read {read:?}\nwritten {answer:?}\n{text:?}", drawn.kind);

    let as_transformers = parse(drawn.kind, &text, drawn.size, &options.dialect(Dialect::Transformers));
    assert_eq!(labels(&as_transformers), labels(&answer), "{}\n{text:?}", drawn.kind);
}

fn labels(answer: &Answer) -> Vec<&Label> {
    match answer {
        Answer::Text(_) => Vec::new(),
        Answer::Boxes(rows) => rows.iter().map(|row| &row.label).collect(),
        Answer::Quads(rows) => rows.iter().map(|row| &row.label).collect(),
        Answer::Polygons(rows) => rows.iter().map(|row| &row.label).collect(),
    }
}

/// Any text is a prompt or an error; a prompt is written as it is read, can be asked in both dialects, and its
/// tokens are its text.
pub fn prompts_round_trip(text: &str) {
    match text.parse::<Prompt>() {
        Ok(prompt) => {
            assert_eq!(prompt.to_string().parse().as_ref(), Ok(&prompt), "{text:?}");
            let task =
                prompt.task().unwrap_or_else(|| panic!("a prompt without a marker was read\n{text:?}"));
            let [of_microsoft, of_transformers] = DIALECTS.map(|dialect| prompt.sentence(dialect));
            let (before, after) = task.sentence().split_once("{input}").unwrap_or((task.sentence(), ""));
            for sentence in [&of_microsoft, &of_transformers] {
                let input = sentence.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                let input = input.unwrap_or_else(|| panic!("{sentence:?}\n{text:?}"));
                assert_eq!(strip(input), strip(prompt.input()), "{text:?}");
            }
            segments_lose_nothing(&of_microsoft);
        }
        Err(error) => assert!(!error.to_string().is_empty(), "{text:?}"),
    }
    segments_lose_nothing(text);
    for kind in AnswerKind::ALL {
        let raw = Prompt::raw(text, kind);
        assert_eq!((raw.answer_kind(), raw.task(), raw.to_string().as_str()), (kind, None, text));
        assert_eq!(DIALECTS.map(|dialect| raw.sentence(dialect)), [text, text]);
    }
}

fn segments_lose_nothing(text: &str) {
    let joined: String = segments(text)
        .map(|segment| match segment {
            Segment::Text(text) => text.to_owned(),
            Segment::Special(token) => token.text().to_owned(),
            Segment::Added(token) => token.to_string(),
        })
        .collect();
    assert_eq!(joined, without_space_before_masks(text));
    let ids = TokenLayout::FLORENCE2.encode(text, |text, ids| {
        assert!(!text.is_empty());
        ids.push(7);
    });
    assert_eq!((ids.first(), ids.last()), (Some(&0), Some(&2)), "{text:?}");
}

/// `<mask>` takes the white space in front of it along.
fn without_space_before_masks(text: &str) -> String {
    let mut stretches: Vec<&str> = text.split("<mask>").collect();
    let last = stretches.pop().unwrap_or_default();
    stretches.iter().flat_map(|before| [before.trim_end(), "<mask>"]).chain([last]).collect()
}

fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}'))
}

/// Any text may be asked about its symptoms, which come in order and once each.
pub fn symptoms_are_total(text: &str) {
    for kind in AnswerKind::ALL {
        let found = symptoms(kind, text, &ParseOptions::default());
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{kind}: {found:?}\n{text:?}");
        assert!(found.iter().all(|symptom| !symptom.to_string().is_empty()));
    }
}

fn pieces<'t>(text: &'t str, cuts: &[usize]) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for &cut in cuts {
        if cut > from && cut < text.len() && text.is_char_boundary(cut) {
            pieces.push(&text[from..cut]);
            from = cut;
        }
    }
    pieces.push(&text[from..]);
    pieces
}

fn assert_same(found: &Answer, expected: &Answer, who: &str, text: &str, circumstances: &dyn Debug) {
    assert!(
        found == expected,
        "{who} differ on {text:?}\n   found {found:.2?}\nexpected {expected:.2?}\n    with {circumstances:?}"
    );
}
