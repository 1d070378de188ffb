//! Is the time in proportion to the text? `cargo bench --bench doubling`
//!
//! Each family of hostile answers is parsed at a length and at twice the length, in turns, and the fastest of many
//! turns counts, so that what else the machine does matters little. 2.0 is proportion, 4.0 would be its square. The
//! results stay under 32 MiB, from where on glibc maps new pages for every allocation, which takes longer than the parse.
#![expect(clippy::print_stdout, reason = "a table is its result")]

use std::hint::black_box;
use std::time::Instant;

use florence2_core::dev::hostile;
use florence2_core::{AnswerKind, ImageSize, ParseOptions, parse};

type Family = fn(usize) -> String;

const FAMILIES: [(&str, AnswerKind, Family, usize); 8] = [
    ("labels through the OCR route", AnswerKind::Quads, hostile::labels_through_ocr, 100_000),
    ("<<<<…", AnswerKind::LabeledBoxes, hostile::open_angles, 20_000),
    ("locations", AnswerKind::LabeledBoxes, hostile::locs, 1_000_000),
    ("runs one location short", AnswerKind::LabeledBoxes, hostile::short_runs, 100_000),
    ("one label, many boxes", AnswerKind::LabeledBoxes, hostile::one_label_many_boxes, 100_000),
    ("separators", AnswerKind::Polygons, hostile::seps, 200_000),
    ("nested wrappers", AnswerKind::LabeledBoxes, hostile::nested_wrappers, 100_000),
    ("unfinished locations", AnswerKind::LabeledPolygons, hostile::unfinished_locs, 100_000),
];

fn main() {
    // `cargo bench -- --test`: once is enough to see that it runs.
    let turns = if std::env::args().any(|arg| arg == "--test") { 1 } else { 25 };
    let size = ImageSize::from_width_height(640, 480).expect("not zero");
    let options = ParseOptions::default();
    println!("{:<30} {:>10} {:>12} {:>12} {:>7}", "answers", "bytes", "ms", "twice, ms", "ratio");
    for (name, kind, family, n) in FAMILIES {
        let texts = [family(n), family(2 * n)];
        let mut best = [f64::INFINITY; 2];
        for _ in 0..turns {
            for (text, best) in texts.iter().zip(&mut best) {
                let start = Instant::now();
                let answer = black_box(parse(kind, black_box(text), size, &options));
                *best = best.min(start.elapsed().as_secs_f64());
                drop(answer);
            }
        }
        let [once, twice] = best;
        println!(
            "{name:<30} {:>10} {:>12.3} {:>12.3} {:>7.2}",
            texts[0].len(),
            once * 1e3,
            twice * 1e3,
            twice / once
        );
    }
}
