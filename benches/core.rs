//! The core, by what it is fed: `cargo bench --bench core`. Throughput is of the answer's text, on one thread.
//!
//! `reference patterns` is the references' own regular expressions on `fancy-regex`, which is what one would write
//! in Rust by translating their Python.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use florence2_core::dev::{hostile, oracle};
use florence2_core::{
    AnswerKind, AnswerStream, Dialect, ImageSize, ParseOptions, Prompt, Task, parse, parse_scored,
};

const SIZE: ImageSize = match ImageSize::from_width_height(640, 480) {
    Ok(size) => size,
    Err(_) => panic!("not zero"),
};

/// The stored real answers of each kind: the texts, and how many bytes they have together.
fn real_answers() -> Vec<(AnswerKind, Vec<String>)> {
    let lines = include_str!("../florence2-core/testdata/answers.jsonl").lines();
    let mut sets: Vec<(AnswerKind, Vec<String>)> = AnswerKind::ALL.map(|kind| (kind, Vec::new())).into();
    for line in lines {
        let line: serde_json::Value = serde_json::from_str(line).expect("testdata is JSON");
        let task = line["task"].as_str().and_then(|task| task.parse::<Task>().ok());
        let kind = task.map_or(AnswerKind::Text, Task::answer_kind);
        let text = line["text"].as_str().expect("a text").to_owned();
        sets.iter_mut().find(|(of, _)| *of == kind).expect("all kinds").1.push(text);
    }
    sets.retain(|(_, texts)| !texts.is_empty());
    sets
}

/// A thousand instances of a kind.
fn thousand(kind: AnswerKind) -> String {
    let loc = |at: usize| format!("<loc_{}>", at % 1000);
    let locs = |at: usize, n: usize| (0..n).map(|k| loc(at * 7 + k * 131)).collect::<String>();
    (0..1000)
        .map(|at| match kind {
            AnswerKind::Text => format!("a word and {at} more, "),
            AnswerKind::Boxes => locs(at, 4),
            AnswerKind::Quads => format!("LINE {at}{}", locs(at, 8)),
            AnswerKind::Polygons => format!("<poly>{}</poly>", locs(at, 24)),
            AnswerKind::LabeledPolygons => format!("thing {at}<poly>{}</poly>", locs(at, 24)),
            AnswerKind::LabeledBoxes | AnswerKind::GroundedPhrases | AnswerKind::BoxesOrPolygons => {
                format!("object {at}{}", locs(at, 4))
            }
        })
        .collect()
}

fn bytes(texts: &[String]) -> Throughput {
    Throughput::Bytes(texts.iter().map(|text| text.len() as u64).sum())
}

fn parsers(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse/real");
    for (kind, texts) in real_answers() {
        group.throughput(bytes(&texts));
        for dialect in [Dialect::Microsoft, Dialect::Transformers] {
            let options = ParseOptions::default().dialect(dialect);
            group.bench_function(format!("{kind}/{dialect:?}").to_lowercase(), |b| {
                b.iter(|| {
                    texts
                        .iter()
                        .for_each(|text| drop(black_box(parse(kind, black_box(text), SIZE, &options))));
                });
            });
        }
        group.bench_function(format!("{kind}/reference patterns"), |b| {
            let options = ParseOptions::default();
            b.iter(|| {
                texts
                    .iter()
                    .for_each(|text| drop(black_box(oracle::parse(kind, black_box(text), SIZE, &options))));
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("parse/thousand");
    for kind in AnswerKind::ALL {
        let text = thousand(kind);
        group.throughput(Throughput::Bytes(text.len() as u64));
        let options = ParseOptions::default();
        group.bench_function(kind.name(), |b| b.iter(|| parse(kind, black_box(&text), SIZE, &options)));
        group.sample_size(10);
        group.bench_function(format!("{kind}/reference patterns"), |b| {
            b.iter(|| oracle::parse(kind, black_box(&text), SIZE, &options));
        });
        group.sample_size(50);
    }
    group.finish();
}

/// `cargo bench --bench doubling` shows that the time is in proportion.
fn hostile_text(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse/hostile");
    group.sample_size(10);
    for (name, kind, family, n) in [
        (
            "labels through ocr",
            AnswerKind::Quads,
            hostile::labels_through_ocr as fn(usize) -> String,
            200_000,
        ),
        ("open angles", AnswerKind::LabeledBoxes, hostile::open_angles, 20_000),
        ("locs", AnswerKind::LabeledBoxes, hostile::locs, 1_000_000),
        ("short runs", AnswerKind::LabeledBoxes, hostile::short_runs, 100_000),
        ("one label, many boxes", AnswerKind::LabeledBoxes, hostile::one_label_many_boxes, 100_000),
        ("separators", AnswerKind::Polygons, hostile::seps, 1_000_000),
        ("nested wrappers", AnswerKind::LabeledBoxes, hostile::nested_wrappers, 100_000),
        ("unfinished locs", AnswerKind::LabeledPolygons, hostile::unfinished_locs, 100_000),
    ] {
        let text = family(n);
        group.throughput(Throughput::Bytes(text.len() as u64));
        let options = ParseOptions::default();
        group.bench_function(name, |b| b.iter(|| parse(kind, black_box(&text), SIZE, &options)));
    }
    group.finish();
}

fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream/thousand");
    let options = ParseOptions::default();
    for kind in AnswerKind::ALL {
        let text = thousand(kind);
        // As a decoder gives it: a token at a time.
        let pieces: Vec<&str> = text.split_inclusive(['>', ' ']).collect();
        let scored: Vec<(&str, f32)> = pieces.iter().map(|piece| (*piece, -0.25)).collect();
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(kind.name(), |b| {
            b.iter(|| {
                let mut stream = AnswerStream::new(kind, SIZE, &options);
                for piece in &pieces {
                    black_box(stream.push(black_box(piece)));
                }
                black_box(stream.finish())
            });
        });
        group.bench_function(format!("{kind}/scored"), |b| {
            b.iter(|| parse_scored(kind, black_box(&scored), SIZE, &options));
        });
    }
    group.finish();
}

fn prompts(c: &mut Criterion) {
    let texts = [
        "<OD>",
        "<CAPTION_TO_PHRASE_GROUNDING>a green car parked in front of a yellow building",
        "<REGION_TO_CATEGORY><loc_52><loc_332><loc_932><loc_774>",
    ];
    let mut group = c.benchmark_group("prompt");
    for text in texts {
        group.bench_function(text.split_inclusive('>').next().expect("a marker"), |b| {
            b.iter(|| black_box(text).parse::<Prompt>().map(|prompt| prompt.sentence(Dialect::Microsoft)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = parsers, hostile_text, streams, prompts
}
criterion_main!(benches);
