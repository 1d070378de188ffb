//! Real weights against published results, where they are at hand.
#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::path::{Path, PathBuf};

use florence2::{Candle, Florence2, GenerationConfig, Image};
use serde_json::Value;

fn named(variable: &str) -> PathBuf {
    std::env::var_os(variable).map(PathBuf::from).unwrap_or_else(|| panic!("{variable} is not set"))
}

/// The ids that the transformers library's own tests expect of its checkpoints.
#[test]
#[ignore = "needs FLORENCE2_CHECKPOINT, a folder of florence-community/Florence-2-base or -large, and FLORENCE2_PICTURES, a folder with \
            the pictures of transformers' tests as stop_sign.jpg (1300x876) and car.jpg (640x480)"]
fn published_answers_are_found() {
    let folder = named("FLORENCE2_CHECKPOINT");
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/assets/hf_test_groundtruth.json");
    let results: Value = serde_json::from_str(&std::fs::read_to_string(results).unwrap()).unwrap();
    let config: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let size = if config["text_config"]["d_model"] == 1024 { "large" } else { "base" };
    let mut florence = Florence2::load(&folder, Candle::default()).unwrap();
    let generation = GenerationConfig { max_new_tokens: Some(100), ..GenerationConfig::default() };
    let mut compared = 0;
    for entry in results.as_array().unwrap() {
        let Some(prompt) = entry["prompt"].as_str() else { continue };
        if !entry["model_name"].as_str().unwrap().ends_with(size) {
            continue;
        }
        let picture = if prompt.starts_with("<DETAILED_CAPTION>") { "stop_sign.jpg" } else { "car.jpg" };
        let seen = florence.see(&Image::open(named("FLORENCE2_PICTURES").join(picture)).unwrap()).unwrap();
        let prompt = prompt.parse().unwrap();
        let ids = |value: &Value| -> Vec<u32> {
            value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
        };
        assert_eq!(florence.prompt_ids(&prompt).unwrap(), ids(&entry["text_ids_after_577_image_tokens"][0]));
        let output = florence.ask(&seen, &prompt, &generation).unwrap();
        let found: Vec<u32> = output.tokens.iter().map(|token| token.id).collect();
        // The stored ones begin with what the decoder is fed first.
        assert_eq!(found, ids(&entry["EXPECTED_PREDICTION_IDS"][0])[1..], "{}", entry["test"]);
        compared += 1;
    }
    assert!(compared > 0);
}
