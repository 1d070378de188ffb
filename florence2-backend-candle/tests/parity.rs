//! The network against transformers, on a tiny random checkpoint in both layouts, and on real sizes where
//! `FLORENCE2_RANDOM_CHECKPOINTS` names folders that `tools/random_checkpoint.py` wrote.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
#![expect(clippy::print_stdout, reason = "the opt-in test is run for its figures")]

mod common;

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::DType;
use common::{Expected, check_greedy, distance, load, tiny};
use florence2_backend_candle::{Candle, Device, Dtype};
use florence2_core::{Ask, VisionSeq2Seq};

#[test]
fn tiny_checkpoints_give_what_transformers_gives() {
    for layout in ["transformers", "microsoft"] {
        let expected = Expected::read(&tiny(layout));
        for device in [Device::Cpu, Device::CandleCpu] {
            let mut model = load(&tiny(layout), device, Dtype::F32);
            let distance = distance(&mut model, &expected);
            assert!(
                distance.features < 1e-5,
                "{layout} on {device}: features differ by {}",
                distance.features
            );
            assert!(distance.logits < 1e-4, "{layout} on {device}: logits differ by {}", distance.logits);
            check_greedy(&mut model, &expected);
        }
    }
}

/// The tiny checkpoint with its weights in another type, and the logits of some steps.
fn logits_of(dtype_on_disk: DType, dtype: Dtype) -> Vec<f32> {
    let folder = tiny("transformers");
    let tensors =
        candle_core::safetensors::load(folder.join("model.safetensors"), &candle_core::Device::Cpu).unwrap();
    let tensors: HashMap<_, _> =
        tensors.into_iter().map(|(name, tensor)| (name, tensor.to_dtype(dtype_on_disk).unwrap())).collect();
    let path = std::env::temp_dir()
        .join(format!("florence2-parity-{}-{dtype_on_disk:?}-{dtype}", std::process::id()));
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let weights = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let candle = Candle { dtype, image_size: Some((136, 104)), ..Candle::default() };
    let mut model = candle.load_bytes(&config, weights).unwrap();
    let images = model.encode_image(&[common::picture(0, 136, 104)]).unwrap();
    let mut state = model.encode_prompt(&[Ask { image: &images[0], prompt: &[0, 5, 6, 2] }]).unwrap();
    let mut logits = vec![0.0; 3 * 120];
    for (step, logits) in logits.chunks_mut(120).enumerate() {
        model.decode_step(&mut state, &[[2, 0, 7][step]], logits).unwrap();
    }
    logits
}

#[test]
fn weights_that_are_stored_in_16_bits_lose_nothing_by_being_held_so() {
    assert_eq!(logits_of(DType::F16, Dtype::F16), logits_of(DType::F16, Dtype::F32));
    assert_eq!(logits_of(DType::BF16, Dtype::Bf16), logits_of(DType::BF16, Dtype::F32));
    assert_ne!(logits_of(DType::F32, Dtype::Bf16), logits_of(DType::F32, Dtype::F32));
}

/// candle computes in 16 bits, so that each layer rounds. transformers' own features, computed in f16, are 0.0027 from
/// those in f32; other orders of the same sums may be a few times that, and a wrong one is far beyond.
#[test]
fn candle_in_16_bits_rounds_and_no_more() {
    let expected = Expected::read(&tiny("transformers"));
    let folder = tiny("transformers");
    let distance = distance(&mut load(&folder, Device::CandleCpu, Dtype::F16), &expected);
    assert!(distance.features < 3.0 * 0.0027, "features differ by {}", distance.features);
    let bf16 = Candle { device: Device::CandleCpu, dtype: Dtype::Bf16, ..Candle::default() };
    let message = bf16.load(&folder).unwrap_err().to_string();
    assert_eq!(message, "candle-cpu has no products in bf16; take f32 or f16, or the device cpu");
}

#[test]
#[ignore = "needs FLORENCE2_RANDOM_CHECKPOINTS=FOLDER[:FOLDER…], which tools/random_checkpoint.py writes"]
fn real_sizes_give_what_transformers_gives() {
    let folders =
        std::env::var("FLORENCE2_RANDOM_CHECKPOINTS").expect("FLORENCE2_RANDOM_CHECKPOINTS names folders");
    for folder in std::env::split_paths(&folders).collect::<Vec<PathBuf>>() {
        let begin = std::time::Instant::now();
        let mut model = load(&folder, Device::Cpu, Dtype::F32);
        let loaded = begin.elapsed();
        let expected = Expected::read(&folder);
        let distance = distance(&mut model, &expected);
        println!(
            "{}: features {:.1e} relative, logits {:.1e}; loaded in {loaded:.2?}",
            folder.display(),
            distance.features,
            distance.logits
        );
        assert!(distance.features < 1e-4, "features differ by {}", distance.features);
        assert!(distance.logits < 1e-3, "logits differ by {}", distance.logits);
        let (tokens, margin) = check_greedy(&mut model, &expected);
        println!("    {tokens} greedy tokens equal, the closest decided by {margin:.1e}");
    }
}
