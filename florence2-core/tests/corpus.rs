//! What the references return for real and for hostile answers, line for line and bit for bit.
#![cfg(feature = "serde")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test says what went wrong by failing")]

use std::path::Path;
use std::{env, fs};

use florence2_core::{
    Answer, AnswerKind, AnswerStream, Dialect, HfAnswer, ImageSize, LocGrid, ParseOptions, Prompt, SizeError,
    Task, parse,
};
use serde_json::Value;

const DIALECTS: [(Dialect, &str); 2] =
    [(Dialect::Microsoft, "microsoft"), (Dialect::Transformers, "transformers")];

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn own(file: &str) -> Vec<Value> {
    lines(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file))
}

/// The team's larger collection, where it lies beside the checkout; its absence is told.
fn shared(file: &str) -> Option<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus").join(file);
    if path.is_file() {
        return Some(lines(&path));
    }
    eprintln!("SKIPPED: {} is not there; testdata/ was checked", path.display());
    None
}

/// `None` where a picture cannot have such a size.
fn grid(line: &Value) -> Result<LocGrid, SizeError> {
    let [width, height] = [0, 1].map(|at| &line["image_size"][at]);
    match (width.as_u64(), height.as_u64()) {
        (Some(width), Some(height)) => {
            Ok(ImageSize::from_width_height(width.try_into().unwrap(), height.try_into().unwrap())?.into())
        }
        _ => LocGrid::from_extent(width.as_f64().unwrap(), height.as_f64().unwrap()),
    }
}

fn check_answer(line: &Value) {
    let id = &line["id"];
    let key = line["task"].as_str().unwrap();
    let kind = key.parse().map_or(AnswerKind::Text, Task::answer_kind);
    let text = line["text"].as_str().unwrap();
    // A text needs no size.
    let grid = match grid(line) {
        Ok(grid) => grid,
        Err(SizeError::Zero) if !kind.has_locations() => ImageSize::from_width_height(1, 1).unwrap().into(),
        // The references make every coordinate 0 of it.
        Err(SizeError::Zero) => {
            assert_eq!(line["image_size"], serde_json::json!([0, 0]), "{id}");
            return;
        }
        Err(error) => panic!("{id}: {error}"),
    };
    for (dialect, name) in DIALECTS {
        let options = ParseOptions::default().dialect(dialect);
        let answer = parse(kind, text, grid, &options);
        let expected = &line[name];
        if expected.get("error").is_some() {
            check_carried_on(&answer, text, dialect);
        } else {
            let view = HfAnswer::with_key(key, kind, &answer, dialect);
            let found = serde_json::to_value(view).unwrap();
            // With a location over `i64::MAX` numpy makes the outline f64, so that only its f32 can be compared.
            let equal = if text.contains("<loc_9223372036854775808>") { equal_f32 } else { equal_f64 };
            assert!(
                same(&found, expected, equal),
                "{id} {name}\n{text:.300}\nfound    {found:.2000}\nexpected {expected:.2000}"
            );
        }
        let mut stream = AnswerStream::new(kind, grid, &options);
        let mut pieces: Vec<_> = text
            .split_inclusive(|c: char| c.is_ascii_punctuation())
            .flat_map(|piece| stream.push(piece))
            .collect();
        let mut joined = Answer::empty(stream.kind());
        pieces.extend(stream.finish());
        joined.extend(pieces);
        assert_eq!(joined, answer, "{id} {name}: the stream");
    }
}

/// Where a reference raises, a location is too large for its integers: here it is one that is too large, or in the
/// transformers dialect the least integer, and everything else is read as ever.
fn check_carried_on(answer: &Answer, text: &str, dialect: Dialect) {
    let coordinates: Vec<f32> = match answer {
        Answer::Boxes(boxes) => boxes.iter().flat_map(|one| one.shape.to_array()).collect(),
        Answer::Polygons(things) => {
            things.iter().flat_map(|one| one.shape[0].0.iter().flat_map(|p| [p.x, p.y])).collect()
        }
        other => panic!("{text}: {other:?}"),
    };
    let huge = match dialect {
        Dialect::Microsoft => 9_223_372_036_854_775_808.0 * 0.64,
        Dialect::Transformers => i32::MIN as f32,
    };
    assert_eq!(coordinates[0], huge, "{text}");
    assert!(coordinates[1..].iter().all(|v| (0.0..1.0).contains(v)), "{coordinates:?}");
}

fn equal_f64(a: f64, b: f64) -> bool {
    a == b
}

fn equal_f32(a: f64, b: f64) -> bool {
    a as f32 == b as f32
}

/// Equal, numbers by their value: Python writes `5.9e+18` where Rust writes `5.9e18`.
fn same(a: &Value, b: &Value, equal: fn(f64, f64) -> bool) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => equal(a.as_f64().unwrap(), b.as_f64().unwrap()),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, equal))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((ka, a), (kb, b))| ka == kb && same(a, b, equal))
        }
        (a, b) => a == b,
    }
}

#[test]
fn own_answers_are_read_as_the_references_read_them() {
    for file in ["answers.jsonl", "adversarial.jsonl"] {
        let lines = own(file);
        assert!(lines.len() > 100, "{file}");
        lines.iter().for_each(check_answer);
    }
}

#[test]
fn shared_answers_are_read_as_the_references_read_them() {
    for file in ["answers.jsonl", "adversarial.jsonl"] {
        shared(file).iter().flatten().for_each(check_answer);
    }
}

/// What the references expand that is refused here, with the reason in the error.
fn is_refused_on_purpose(error: &str) -> bool {
    ["needs a text", "needs a region", "a region is four", "holds the marker", "raw prompt"]
        .iter()
        .any(|hint| error.contains(hint))
}

fn check_prompt(line: &Value) {
    let text = line["prompt"].as_str().unwrap();
    for (dialect, name) in DIALECTS {
        let expected = &line[name];
        match (text.parse::<Prompt>(), expected.as_str()) {
            (Ok(prompt), Some(sentence)) if sentence != text => {
                assert_eq!(prompt.sentence(dialect), sentence, "{text:?} {name}");
            }
            // A marker in another case, or without its brackets: the references ask it as it stands.
            (Ok(prompt), Some(_)) => assert!(text.parse() == Ok(prompt.task().unwrap()), "{text:?}"),
            // White space around a bare marker: the references raise.
            (Ok(prompt), None) => assert_eq!(prompt.to_string(), text.trim(), "{text:?}"),
            (Err(error), Some(_)) => {
                assert!(is_refused_on_purpose(&error.to_string()), "{text:?} {name}: {error}");
            }
            (Err(_), None) => {}
        }
    }
}

#[test]
fn prompts_are_expanded_as_the_references_expand_them() {
    let lines = own("prompts.jsonl");
    assert!(lines.len() >= 60);
    lines.iter().for_each(check_prompt);
    shared("prompts.jsonl").iter().flatten().for_each(check_prompt);
}
