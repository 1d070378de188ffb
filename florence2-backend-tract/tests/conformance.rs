//! The laws of `florence2_core::dev::conformance`, on the demo's ONNX parts.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use florence2_backend_tract::{Tract, TractModel};
use florence2_core::dev::conformance::{Fixture, Violation, check_all, check_apart, picture};
use florence2_core::{Ask, VisionSeq2Seq};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/onnx")
}

fn load(threads: usize) -> TractModel {
    Tract { threads: NonZeroUsize::new(threads), ..Tract::default() }.load(&demo()).unwrap()
}

fn fixture(check: impl FnOnce(&Fixture<'_>) -> Result<(), Violation>) {
    let fixture = Fixture {
        pixels: &[picture(0, 192, 192), picture(1, 192, 192)],
        prompts: &[&[0, 5, 6, 7, 8, 9, 2], &[0, 11, 2], &[0, 20, 21, 22, 2]],
        tokens: &[0, 17, 4, 90, 33],
        tolerance: 1e-4,
        use_up_positions: true,
    };
    if let Err(violation) = check(&fixture) {
        panic!("{violation}");
    }
}

#[test]
fn the_network_keeps_the_laws() {
    fixture(|fixture| check_all(&mut load(2), fixture));
}

#[test]
fn images_and_states_of_another_network_are_refused() {
    fixture(|fixture| check_apart(&mut load(1), &mut load(1), fixture));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        let mut model = load(threads);
        let images = model.encode_image(&[picture(0, 192, 192)]).unwrap();
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

/// Should a new version of tract leave graphs in another form, they would only be slower.
#[test]
fn norms_and_attention_are_one_operator_each() {
    let mut model = load(1);
    assert!(model.batches());
    let (result, costs) = model.profile(|model| {
        let images = model.encode_image(&[picture(0, 192, 192)])?;
        let mut state = model.encode_prompt(&[Ask { image: &images[0], prompt: &[0, 5, 2] }])?;
        model.decode_step(&mut state, &[2], &mut vec![0.0; model.spec().vocabulary_size])
    });
    result.unwrap();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for cost in &costs {
        *counts.entry((cost.part, &cost.operator)).or_default() += 1;
    }
    let count = |part, operator| counts.get(&(part, operator)).copied().unwrap_or_default();
    let of =
        |part| [count(part, "LayerNorm"), count(part, "ScaledDotProductAttention"), count(part, "Softmax")];
    // Of the 10 blocks of 5 pairs, those of channels attend along an axis for which there is no kernel.
    assert_eq!(of("vision_encoder"), [25, 5, 5]);
    assert_eq!(of("encoder_model"), [5, 2, 0]);
    assert_eq!(of("decoder_with_past_model"), [7, 4, 0]);
    assert!(costs.iter().all(|cost| cost.operator != "RmsNorm"));
    // Nothing is written down when nobody asks, and a part of what is asked for is in the whole.
    assert!(model.profile(|_| ()).1.is_empty());
    let see = |model: &mut TractModel| model.encode_image(&[picture(0, 192, 192)]).unwrap().len();
    let (part, all) = model.profile(|model| {
        see(model);
        let part = model.profile(see).1;
        see(model);
        part
    });
    assert_eq!(all.len(), 3 * part.len());
    // A panic ends it.
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| model.profile(|_| panic!("on purpose"))));
    assert!(caught.is_err());
    see(&mut model);
    assert!(model.profile(|_| ()).1.is_empty());
}
