//! The laws of `florence2_core::dev::conformance`, on the demo's ONNX parts.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use florence2_backend_tract::{Tract, TractModel};
use florence2_core::dev::conformance::{Fixture, check_all};
use florence2_core::{Ask, PixelValues, VisionSeq2Seq};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/onnx")
}

fn load(threads: usize) -> TractModel {
    Tract { threads: NonZeroUsize::new(threads), ..Tract::default() }.load(&demo()).unwrap()
}

fn picture(number: usize) -> PixelValues {
    let values = (0..3 * 192 * 192).map(|index| ((index * (7 + number)) % 251) as f32 / 125.0 - 1.0);
    PixelValues::new(192, 192, values.collect()).unwrap()
}

#[test]
fn the_network_keeps_the_laws() {
    let fixture = Fixture {
        pixels: &[picture(0), picture(1)],
        prompts: &[&[0, 5, 6, 7, 8, 9, 2], &[0, 11, 2], &[0, 20, 21, 22, 2]],
        tokens: &[0, 17, 4, 90, 33],
        tolerance: 1e-4,
        use_up_positions: true,
    };
    if let Err(violation) = check_all(&mut load(2), &fixture) {
        panic!("{violation}");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        let mut model = load(threads);
        let images = model.encode_image(&[picture(0)]).unwrap();
        let ask = Ask { image: &images[0], prompt: &[0, 5, 6, 7, 2] };
        let mut state = model.encode_prompt(&[ask]).unwrap();
        model.select_rows(&mut state, &[0; 5]).unwrap();
        let mut logits = vec![0.0; 5 * model.spec().vocabulary_size];
        for token in 2..20 {
            model.decode_step(&mut state, &[token, token + 1, token + 2, token, 0], &mut logits).unwrap();
        }
        (images[0].as_slice().to_vec(), logits)
    };
    let one = run(1);
    for threads in [2, 3, 8] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn images_and_states_of_another_network_are_refused() {
    let (mut model, mut other) = (load(1), load(1));
    let image = other.encode_image(&[picture(0)]).unwrap().remove(0);
    let asks = [Ask { image: &image, prompt: &[0, 2] }];
    let error = model.encode_prompt(&asks).unwrap_err();
    assert_eq!(error.to_string(), "ask 0's image was encoded by another network than this one");
    let mut state = other.encode_prompt(&asks).unwrap();
    let error = model.select_rows(&mut state, &[0]).unwrap_err();
    assert_eq!(error.to_string(), "the state was made by another network than this one");
    // The state itself has come to no harm.
    let mut logits = vec![0.0; other.spec().vocabulary_size];
    other.decode_step(&mut state, &[2], &mut logits).unwrap();
}
