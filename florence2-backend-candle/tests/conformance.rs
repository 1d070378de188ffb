//! The laws of `florence2_core::dev::conformance`, and those that this backend adds.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod common;

use std::num::NonZeroUsize;

use common::{load, picture, tiny};
use florence2_backend_candle::{Candle, Device, Dtype};
use florence2_core::dev::conformance::{Fixture, check_all, check_apart};
use florence2_core::{Ask, VisionSeq2Seq};

#[test]
fn every_device_and_type_keeps_the_laws() {
    for layout in ["transformers", "microsoft"] {
        for (device, dtype, tolerance) in [
            // Nothing is padded and no sum depends on what is beside it: equal to the bit.
            (Device::Cpu, Dtype::F32, 0.0),
            (Device::Cpu, Dtype::F16, 0.0),
            (Device::Cpu, Dtype::Bf16, 0.0),
            (Device::CandleCpu, Dtype::F32, 1e-4),
        ] {
            let mut model = load(&tiny(layout), device, dtype);
            let (width, height) = (model.spec().image_width, model.spec().image_height);
            let fixture = Fixture {
                pixels: &[picture(0, width, height), picture(1, width, height)],
                prompts: &[&[0, 5, 6, 7, 8, 9, 2], &[0, 11, 2], &[0, 20, 21, 22, 2]],
                tokens: &[0, 17, 4, 90, 33],
                tolerance,
                use_up_positions: true,
            };
            if let Err(violation) = check_all(&mut model, &fixture) {
                panic!("{layout}, {dtype} on {device}: {violation}");
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        let candle = Candle { threads: NonZeroUsize::new(threads), ..Candle::default() };
        let mut model = candle.load(&tiny("transformers")).unwrap();
        let images = model.encode_image(&[picture(0, 136, 104)]).unwrap();
        let ask = Ask { image: &images[0], prompt: &[0, 5, 6, 7, 2] };
        let mut state = model.encode_prompt(&[ask; 5]).unwrap();
        let mut logits = vec![0.0; 5 * 120];
        for token in 2..40 {
            model.decode_step(&mut state, &[token, token + 1, token + 2, token, 0], &mut logits).unwrap();
        }
        (images[0].to_vec().unwrap(), logits)
    };
    let one = run(1);
    for threads in [2, 3, 8] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn images_and_states_of_another_network_are_refused() {
    let mut model = load(&tiny("transformers"), Device::Cpu, Dtype::F32);
    let mut other = load(&tiny("transformers"), Device::Cpu, Dtype::F32);
    let fixture = Fixture {
        pixels: &[picture(0, 136, 104)],
        prompts: &[&[0, 2]],
        tokens: &[],
        tolerance: 0.0,
        use_up_positions: false,
    };
    check_apart(&mut model, &mut other, &fixture).unwrap();
}
