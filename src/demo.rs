//! The checkpoint that comes with the crate.

pub(crate) const CONFIG: &str = include_str!("../demo/checkpoint/config.json");
pub(crate) const PREPROCESSOR_CONFIG: &str = include_str!("../demo/checkpoint/preprocessor_config.json");
pub(crate) const PROCESSOR_CONFIG: &str = include_str!("../demo/checkpoint/processor_config.json");
pub(crate) const TOKENIZER: &[u8] = include_bytes!("../demo/checkpoint/tokenizer.json");
pub(crate) const WEIGHTS: &[u8] = include_bytes!("../demo/checkpoint/model.safetensors");

/// As in its preprocessor's configuration.
pub(crate) const IMAGE_SIZE: (usize, usize) = (192, 192);
