//! What the references return for real and for hostile answers, line for line and bit for bit.
#![cfg(feature = "serde")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test says what went wrong by failing")]

mod common;

use std::env;
use std::path::Path;

use common::{assert_same, grid, kind_of, lines, own};
use florence2_core::{Answer, AnswerStream, Dialect, HfAnswer, ParseOptions, Prompt, parse};
use serde_json::Value;

const DIALECTS: [(Dialect, &str); 2] =
    [(Dialect::Microsoft, "microsoft"), (Dialect::Transformers, "transformers")];

/// The team's larger collection, where it lies beside the checkout; its absence is told.
fn shared(file: &str) -> Option<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus").join(file);
    if path.is_file() {
        return Some(lines(&path));
    }
    eprintln!("SKIPPED: {} is not there; testdata/ was checked", path.display());
    None
}

fn check_answer(line: &Value) {
    let (id, kind) = (&line["id"], kind_of(line));
    let (key, text) = (line["task"].as_str().unwrap(), line["text"].as_str().unwrap());
    let Some(grid) = grid(line) else { return };
    for (dialect, name) in DIALECTS {
        let options = ParseOptions::default().dialect(dialect);
        let answer = parse(kind, text, grid, &options);
        if line[name].get("error").is_some() {
            check_carried_on(&answer, text, dialect);
        } else {
            let view = HfAnswer::with_key(key, kind, &answer, dialect);
            assert_same(&serde_json::to_value(view).unwrap(), line, name);
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
