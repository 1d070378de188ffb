//! What transformers computed with a checkpoint, and how far we are from it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use florence2_backend_candle::{Candle, CandleModel, Device, Dtype};
pub(crate) use florence2_core::dev::conformance::picture;
use florence2_core::{Ask, GenerationConfig, VisionSeq2Seq, generate};

pub(crate) struct Expected(HashMap<String, Tensor>);

impl Expected {
    /// What `tools/random_checkpoint.py` stored beside the weights.
    pub(crate) fn read(folder: &Path) -> Self {
        Self(
            candle_core::safetensors::load(folder.join("expected.safetensors"), &candle_core::Device::Cpu)
                .unwrap(),
        )
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.0[name].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].to_dtype(DType::U32).unwrap().to_vec1().unwrap()
    }
}

pub(crate) fn tiny(layout: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tiny").join(layout)
}

pub(crate) fn load(folder: &Path, device: Device, dtype: Dtype) -> CandleModel {
    Candle { device, dtype, ..Candle::default() }.load(folder).unwrap()
}

/// The largest difference, as a part of the largest magnitude.
pub(crate) fn relative(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let scale = theirs.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    absolute(ours, theirs) / scale
}

/// The larger of two differences. One that is not a number must not be lost.
fn worse(a: f32, b: f32) -> f32 {
    if a.is_nan() || b <= a { a } else { b }
}

pub(crate) fn absolute(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, worse)
}

/// How far image features are from transformers', relatively, and logits, absolutely.
pub(crate) struct Distance {
    pub(crate) features: f32,
    pub(crate) logits: f32,
}

/// Searches greedily for both of the stored asks as one batch, which must give the stored tokens and log-probabilities.
/// Returns how many tokens there were, and the smallest gap between a token's score and the next best.
pub(crate) fn check_greedy(model: &mut CandleModel, expected: &Expected) -> (usize, f32) {
    let (width, height) = (model.spec().image_width, model.spec().image_height);
    let images = model.encode_image(&[picture(0, width, height), picture(1, width, height)]).unwrap();
    let prompts = [expected.ids("prompt.0"), expected.ids("prompt.1")];
    let asks: Vec<_> = images.iter().zip(&prompts).map(|(image, prompt)| Ask { image, prompt }).collect();
    let new = expected.ids("greedy.0.tokens").len().max(expected.ids("greedy.1.tokens").len());
    let config = GenerationConfig { beams: 1, max_new_tokens: Some(new), ..GenerationConfig::default() };
    let found = generate(model, &asks, &config, &mut |_| ControlFlow::Continue(())).unwrap();
    let (mut tokens, mut margin) = (0, f32::INFINITY);
    for (index, sequences) in found.iter().enumerate() {
        let stored = |what: &str| format!("greedy.{index}.{what}");
        assert_eq!(sequences[0].tokens, expected.ids(&stored("tokens")), "ask {index}");
        let difference = absolute(&sequences[0].log_probs, &expected.floats(&stored("log_probs")));
        assert!(difference < 1e-3, "ask {index}: log-probabilities differ by {difference}");
        tokens += sequences[0].tokens.len();
        margin = expected.floats(&stored("margins")).into_iter().fold(margin, f32::min);
    }
    (tokens, margin)
}

/// Runs both of the stored asks as one batch, fed with the stored tokens.
pub(crate) fn distance(model: &mut CandleModel, expected: &Expected) -> Distance {
    let (width, height) = (model.spec().image_width, model.spec().image_height);
    let vocabulary = model.spec().vocabulary_size;
    let images = model.encode_image(&[picture(0, width, height), picture(1, width, height)]).unwrap();
    let prompts = [expected.ids("prompt.0"), expected.ids("prompt.1")];
    let mut distance = Distance { features: 0.0, logits: 0.0 };
    for (index, image) in images.iter().enumerate() {
        let ours = image.to_vec().unwrap();
        let theirs = expected.floats(&format!("image_features.{index}"));
        distance.features = worse(distance.features, relative(&ours, &theirs));
    }
    let asks: Vec<_> = images.iter().zip(&prompts).map(|(image, prompt)| Ask { image, prompt }).collect();
    let mut state = model.encode_prompt(&asks).unwrap();
    let expected_logits = [expected.floats("logits.0"), expected.floats("logits.1")];
    let mut logits = vec![0.0; 2 * vocabulary];
    for (step, token) in expected.ids("forced").into_iter().enumerate() {
        model.decode_step(&mut state, &[token, token], &mut logits).unwrap();
        for (ours, theirs) in logits.chunks(vocabulary).zip(&expected_logits) {
            distance.logits =
                worse(distance.logits, absolute(ours, &theirs[step * vocabulary..][..vocabulary]));
        }
    }
    distance
}
