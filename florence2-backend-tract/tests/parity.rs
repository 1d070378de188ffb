//! The network at its real size, against what transformers computes of the same random weights.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
#![expect(clippy::print_stdout, reason = "the opt-in test is run for its figures")]

#[path = "../../tests/common/expected.rs"]
mod expected;

use std::ops::ControlFlow;
use std::path::PathBuf;

use expected::{Expected, worse};
use florence2_backend_tract::{Tract, Variant, Variants};
use florence2_core::dev::conformance::picture;
use florence2_core::{Ask, GenerationConfig, VisionSeq2Seq, generate};

#[test]
#[ignore = "needs FLORENCE2_RANDOM_ONNX=PARTS:CHECKPOINT, of tools/export_onnx.py and tools/random_checkpoint.py"]
fn real_sizes_give_what_transformers_gives() {
    let folders = std::env::var_os("FLORENCE2_RANDOM_ONNX").expect("FLORENCE2_RANDOM_ONNX names two folders");
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let [parts, checkpoint] = folders.as_slice() else { panic!("FLORENCE2_RANDOM_ONNX=PARTS:CHECKPOINT") };
    let expected = Expected::read(checkpoint);
    // f16 rounds the weights, and little else.
    for (variant, bound) in [(Variant::F32, 1e-3), (Variant::F16, 0.1)] {
        let tract = Tract { variants: Variants::all(variant), ..Tract::default() };
        let Ok(mut model) = tract.load(parts) else {
            println!("{variant}: not there");
            assert_ne!(variant, Variant::F32);
            continue;
        };
        let (width, height) = (model.spec().image_width, model.spec().image_height);
        let vocabulary = model.spec().vocabulary_size;
        let images = model.encode_image(&[picture(0, width, height), picture(1, width, height)]).unwrap();
        let features =
            (0..2).map(|n| expected.difference(&format!("image_features.{n}"), images[n].as_slice()));
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
        let differences = (0..2).map(|n| expected.difference(&format!("logits.{n}"), &both[n]));
        let difference = differences.fold(0.0, worse);
        let config = GenerationConfig {
            beams: 1,
            max_new_tokens: Some(expected.0["greedy.0.tokens"].len()),
            ..GenerationConfig::default()
        };
        let found = generate(&mut model, &asks, &config, &mut |_| ControlFlow::Continue(())).unwrap();
        let equal = (0..2).map(|n| {
            let tokens = expected.ids(&format!("greedy.{n}.tokens"));
            tokens.iter().zip(&found[n][0].tokens).take_while(|(a, b)| a == b).count()
        });
        let equal: Vec<usize> = equal.collect();
        println!(
            "{variant}: features {features:.1e}, logits {difference:.1e}, greedy tokens equal {equal:?}"
        );
        assert!(features < bound && difference < bound, "{variant}");
        if variant == Variant::F32 {
            assert_eq!(equal, [expected.0["greedy.0.tokens"].len(), expected.0["greedy.1.tokens"].len()]);
        }
    }
}
