//! The network against what transformers computes of the same random weights: tiny ones, and at the real size those of a folder
//! that is named.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

#[path = "../../tests/common/expected.rs"]
mod expected;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use expected::{Expected, worse};
use florence2_backend_executorch::{ExecuTorch, ExecuTorchModel, Form, Variant, Variants};
use florence2_core::dev::conformance::picture;
use florence2_core::{Ask, GenerationConfig, VisionSeq2Seq, generate};

/// What came out, beside what should.
struct Found {
    features: f64,
    logits: f64,
    /// The least of the prompts.
    correlation: f64,
    /// For each prompt the greedy answer's length, how many tokens are the same, and the margin at the first that is not.
    greedy: Vec<(usize, usize, f64)>,
}

fn compare(model: &mut ExecuTorchModel, expected: &Expected) -> Found {
    let (width, height) = (model.spec().image_width, model.spec().image_height);
    let vocabulary = model.spec().vocabulary_size;
    let images = model.encode_image(&[picture(0, width, height), picture(1, width, height)]).unwrap();
    let features = (0..2).map(|n| expected.difference(&format!("image_features.{n}"), images[n].as_slice()));
    let features = features.fold(0.0, worse);
    let prompts = [expected.ids("prompt.0"), expected.ids("prompt.1")];
    let asks: Vec<_> = images.iter().zip(&prompts).map(|(image, prompt)| Ask { image, prompt }).collect();
    let mut state = model.encode_prompt(&asks).unwrap();
    let mut logits = vec![0.0; 2 * vocabulary];
    let mut both = [Vec::new(), Vec::new()];
    for token in expected.ids("forced") {
        model.decode_step(&mut state, &[token, token], &mut logits).unwrap();
        both.iter_mut().zip(logits.chunks(vocabulary)).for_each(|(all, row)| all.extend_from_slice(row));
    }
    let name = |n: usize| format!("logits.{n}");
    let logits = (0..2).map(|n| expected.difference(&name(n), &both[n])).fold(0.0, worse);
    let correlation = (0..2)
        .map(|n| expected.correlation(&name(n), &both[n]))
        .fold(1.0, |a: f64, b| if a.is_nan() || b >= a { a } else { b });
    let config = GenerationConfig {
        beams: 1,
        max_new_tokens: Some(expected.0["greedy.0.tokens"].len()),
        ..GenerationConfig::default()
    };
    let found = generate(model, &asks, &config, &mut |_| ControlFlow::Continue(())).unwrap();
    let greedy = (0..2).map(|n| {
        let tokens = expected.ids(&format!("greedy.{n}.tokens"));
        let equal = tokens.iter().zip(&found[n][0].tokens).take_while(|(a, b)| a == b).count();
        let margin = expected.0[&format!("greedy.{n}.margins")].get(equal).copied().unwrap_or(0.0);
        (tokens.len(), equal, margin)
    });
    Found { features, logits, correlation, greedy: greedy.collect() }
}

const FORMS: [Form; 2] = [Form::Window, Form::Cached];

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn tiny_programs_give_what_transformers_gives() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let expected = Expected::read(&here.join("../florence2-backend-candle/testdata/tiny/transformers"));
    for form in FORMS {
        let load = |variants: &str| {
            let variants = variants.parse().unwrap();
            let executorch = ExecuTorch { variants, form: Some(form), ..ExecuTorch::default() };
            executorch.load(&here.join("testdata/tiny")).unwrap()
        };
        let found = compare(&mut load("fp32"), &expected);
        assert!(
            found.features < 1e-4 && found.logits < 1e-4,
            "{form:?}: {} {}",
            found.features,
            found.logits
        );
        assert!(found.greedy.iter().all(|(all, equal, _)| all == equal), "{form:?}: {:?}", found.greedy);

        let found = compare(&mut load("vision=fp32,encoder=int8,decoder=int8"), &expected);
        assert!(found.correlation > 0.999, "{form:?}: {}", found.correlation);
        // The margin rule: where two tokens were nearly as probable, another one may come of rounded weights.
        for (all, equal, margin) in found.greedy {
            assert!(all == equal || margin < 1.0, "{form:?}: {equal} of {all}, margin {margin}");
        }
    }
}

#[test]
#[ignore = "needs FLORENCE2_RANDOM_PTE=PROGRAMS:CHECKPOINT, of tools/export_executorch.py and tools/random_checkpoint.py"]
#[expect(clippy::print_stdout, reason = "the opt-in test is run for its figures")]
fn real_sizes_give_what_transformers_gives() {
    let folders = std::env::var_os("FLORENCE2_RANDOM_PTE").expect("FLORENCE2_RANDOM_PTE names two folders");
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let [programs, checkpoint] = folders.as_slice() else {
        panic!("FLORENCE2_RANDOM_PTE=PROGRAMS:CHECKPOINT")
    };
    let expected = Expected::read(checkpoint);
    for variant in [Variant::F32, Variant::Int8] {
        for form in FORMS {
            let executorch =
                ExecuTorch { variants: Variants::all(variant), form: Some(form), ..ExecuTorch::default() };
            let Ok(mut model) = executorch.load(programs) else {
                println!("{variant}, {form:?}: not there");
                assert_ne!(variant, Variant::F32);
                continue;
            };
            let Found { features, logits, correlation, greedy } = compare(&mut model, &expected);
            println!(
                "{variant}, {form:?}: features {features:.1e}, logits {logits:.1e}, correlation {correlation:.6}, greedy \
                 (tokens, equal, margin where they part) {greedy:?}"
            );
            if variant == Variant::F32 {
                assert!(features < 1e-3 && logits < 1e-3);
                assert!(greedy.iter().all(|(all, equal, _)| all == equal));
            } else {
                assert!(correlation > 0.99);
                assert!(greedy.iter().all(|&(all, equal, margin)| all == equal || margin < 1.0));
            }
        }
    }
}
