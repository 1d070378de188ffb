//! The laws over generated cases, over the known answers, and over what fuzzing once found.
#![cfg(feature = "dev")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test says what went wrong by failing")]

mod common;

use std::path::{Path, PathBuf};
use std::{env, fs};

use common::{kind_of, own};
use florence2_core::dev::hostile::{self, Case, Drawn};
use florence2_core::dev::{TARGETS, check_all, laws, prompt_target};
use florence2_core::{AnswerKind, ImageSize, Loc, ParseOptions};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};
use serde_json::Value;

/// The oracle takes the square of the time.
const LONGEST: usize = 20_000;

fn own_answers() -> impl Iterator<Item = Value> {
    let lines = ["answers.jsonl", "adversarial.jsonl"].into_iter().flat_map(own);
    lines.filter(|line| line["text"].as_str().unwrap().len() <= LONGEST)
}

proptest! {
    // Finds are kept as bytes under fuzz/regressions, where the fuzz targets see them too.
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_keep_every_target(bytes in vec(any::<u8>(), 0..200)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }

    #[test]
    fn any_text_is_read_by_law(header in any::<[u8; 5]>(), text in "(<loc_[0-9]{1,4}>|<poly>|</poly>|<sep>|</?s>|<pad>|[a-z <>\n]|\\PC){0,40}") {
        // The highest bit of the flags: the text as it is.
        let [kind, flags, size, cut, log_prob] = header;
        let bytes = [&[kind, flags | 0x80, size, cut, log_prob], text.as_bytes()].concat();
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }

    #[test]
    fn any_drawing_is_scored_and_read_back(bytes in vec(any::<u8>(), 5..60), log_probs in vec(-20.0f32..=0.0, 1..40)) {
        let drawn = Drawn::from_bytes(&bytes);
        laws::scores_are_means(&drawn, &log_probs);
        laws::targets_round_trip(&drawn);
    }

    #[test]
    fn any_bin_of_any_size_comes_back(width in 1..=u32::MAX, height in 1..=u32::MAX, bins in any::<[u16; 2]>()) {
        let bins = bins.map(|bin| Loc::new(bin % Loc::COUNT).unwrap());
        laws::quantize_undoes_dequantize(ImageSize::from_width_height(width, height).unwrap(), bins);
    }
}

/// The bytes must reach what the laws are about: a generator of nonsense proves nothing.
#[test]
fn hostile_cases_hold_shapes_of_every_kind() {
    let mut with_shapes = [0; AnswerKind::ALL.len()];
    let mut state = 1u64;
    for _ in 0..2000 {
        let bytes: [u8; 40] = core::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        let case = Case::from_bytes(&bytes);
        assert!(case.cuts.iter().all(|&cut| case.text.is_char_boundary(cut)));
        let answer = florence2_core::parse(case.kind, &case.text, case.size, &case.options());
        let at = AnswerKind::ALL.iter().position(|&kind| kind == case.kind).unwrap();
        with_shapes[at] += usize::from(!answer.is_empty());
    }
    assert!(with_shapes.iter().all(|&count| count > 100), "{with_shapes:?}");
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::common::{assert_same, grid};
    use super::*;
    use florence2_core::dev::oracle;
    use florence2_core::{Dialect, HfAnswer};

    #[test]
    fn the_oracle_finds_what_the_references_found() {
        let mut compared = 0;
        for line in own_answers() {
            let (kind, text, key) =
                (kind_of(&line), line["text"].as_str().unwrap(), line["task"].as_str().unwrap());
            let Some(grid) = grid(&line) else { continue };
            for (dialect, name) in
                [(Dialect::Microsoft, "microsoft"), (Dialect::Transformers, "transformers")]
            {
                let options = ParseOptions::default().dialect(dialect);
                laws::agrees_with_the_oracle(kind, text, grid, &options);
                if line[name].get("error").is_some() {
                    continue;
                }
                let answer = oracle::parse(kind, text, grid, &options);
                let found = serde_json::to_value(HfAnswer::with_key(key, kind, &answer, dialect)).unwrap();
                assert_same(&found, &line, name);
                compared += 1;
            }
        }
        assert!(compared > 1200, "{compared}");
    }
}

/// Which digits there are, and their values: two tables, made in two ways.
#[test]
fn the_oracle_and_the_parser_know_the_same_digits() {
    let size = ImageSize::from_width_height(1000, 1000).unwrap();
    for c in ('\0'..=char::MAX).filter(|c| c.is_numeric()) {
        laws::agrees_with_the_oracle(
            AnswerKind::Boxes,
            &format!("<loc_{c}>").repeat(4),
            size,
            &ParseOptions::default(),
        );
    }
}

#[test]
fn known_answers_keep_every_law() {
    for line in own_answers() {
        let text = line["text"].as_str().unwrap();
        for dialect in laws::DIALECTS {
            let bytes = Case::bytes_of(kind_of(&line), dialect, text);
            TARGETS.iter().for_each(|(_, target)| target(&bytes));
        }
        if text.len() <= 200 {
            check_all(&Case::from_bytes(&Case::bytes_of(AnswerKind::Text, laws::DIALECTS[0], text)));
        }
    }
    for line in own("prompts.jsonl") {
        prompt_target(&hostile::bytes_of_prompt(line["prompt"].as_str().unwrap()));
    }
}

/// Texts on which one step of one machine decides, for every kind of answer, cut everywhere.
#[test]
fn texts_on_the_edge_keep_every_law() {
    for text in [
        // A location that leads a chunk hides the label from transformers only.
        "<loc_1><sep><loc_2><loc_3>",
        "<loc_1><sep><sep><sep>",
        "<sep><loc_1><loc_2><loc_3>",
        "<loc_1></poly><poly><loc_2><loc_3></poly>",
        // The marker that turns boxes into polygons, in pieces and beside what only looks like it.
        "<<poly>a<loc_1><loc_2><loc_3><loc_4></poly>",
        "<p<poly>a<loc_1><loc_2><loc_3><loc_4>",
        "a<loc_1><loc_2><loc_3><loc_4><po<s>ly>",
        "a<po<s>ly><loc_1><loc_2><loc_3><loc_4>",
        // Both markers, in either order, nested and left open.
        "a</poly><loc_1><loc_2><loc_3><poly><loc_4><loc_5></poly>",
        "a<poly><loc_1><loc_2><poly><loc_3><loc_4></poly><loc_5></poly>",
        "a<loc_1><loc_2><sep><poly><loc_3><loc_4></poly><loc_5><loc_6>",
        "a<poly><loc_1></poly>",
        "a<poly><loc_1></poly><sep>",
        "a<poly><loc_1><loc_2></poly><poly><loc_3><loc_4>",
        "a<loc_1><loc_2><poly><loc_3><loc_4><sep><loc_5>",
        // The left-over of a location, which microsoft takes off a polygon's label, once.
        "<loc_1>loc_2>a<poly><loc_1><loc_2></poly>",
        "loc_1>loc_2>a<poly><loc_1><loc_2></poly>",
        "loc_>a<poly><loc_1><loc_2></poly>",
        "loc_1>\n a<poly><loc_1><loc_2></poly>",
        // Newlines at the ends of labels.
        "\n \n a<loc_1><loc_2><loc_3><loc_4>\n",
        "a\n<loc_1><loc_2><loc_3><loc_4>b<loc_1><loc_2><loc_3><loc_4>",
        "\u{1c}\na<loc_1><loc_2><loc_3><loc_4>",
        // Wrappers that are only there once others are gone, and tokens that are.
        "<<s>/s>a<loc_<s>1><loc_2><lo</s>c_3><loc_4<pad>>",
        "<<pad>s>a<loc_1><loc_2><loc_3><loc_4>",
        "<s<s>>a<loc_1><loc_2><loc_3><loc_4><pa<s>d>",
        // Seven, eight, nine, sixteen locations after a text.
        "a<loc_1><loc_2><loc_3><loc_4><loc_5><loc_6><loc_7>b<loc_8>",
        "<loc_1><loc_2><loc_3><loc_4><loc_5><loc_6><loc_7><loc_8><loc_9>",
        "a\n<loc_1><loc_2><loc_3><loc_4><loc_5><loc_6><loc_7><loc_8>",
    ] {
        for dialect in laws::DIALECTS {
            for kind in AnswerKind::ALL {
                let mut case = Case::from_bytes(&Case::bytes_of(kind, dialect, text));
                case.cuts = text.char_indices().map(|(at, _)| at).skip(1).collect();
                check_all(&case);
            }
        }
    }
}

/// Read through at a length at which one that recurses would overflow its stack; `cargo bench` shows that the time is
/// in proportion.
#[test]
fn hostile_families_are_read_through() {
    for (name, family) in hostile::FAMILIES {
        let (long, short) = (family(2_000), family(40));
        for kind in AnswerKind::ALL {
            for dialect in laws::DIALECTS {
                let options = ParseOptions::default().dialect(dialect);
                let size = ImageSize::from_width_height(640, 480).unwrap();
                laws::output_is_bounded(kind, &long, size, &options);
                laws::splits_do_not_matter(kind, &long, size, &options, &[1, 500, 501, 1_000]);
                laws::agrees_with_the_oracle(kind, &short, size, &options);
            }
        }
        laws::symptoms_are_total(&long);
        laws::prompts_round_trip(&long);
        assert!(long.len() > short.len(), "{name}");
    }
}

/// What a fuzz target found, through the function of the target.
#[test]
fn regressions_stay_fixed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/regressions");
    if !folder.is_dir() {
        eprintln!("SKIPPED: {} is not there: it is not part of the published crate", folder.display());
        return;
    }
    for (name, target) in TARGETS {
        let Ok(files) = fs::read_dir(folder.join(name)) else { continue };
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        for file in files {
            eprintln!("{}", file.display());
            target(&fs::read(&file).unwrap());
        }
    }
}
