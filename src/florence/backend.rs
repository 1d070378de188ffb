//! What makes a network from a checkpoint's files.

use std::path::Path;

use florence2_core::VisionSeq2Seq;

/// A way to run the network, with all that it needs to be told: the device, the type of numbers, the threads.
///
/// A value, so that a program can be built with several and pick one when it runs.
pub trait Backend {
    /// The network.
    type Model: VisionSeq2Seq;
    /// Why it could not be loaded.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Loads the network from a checkpoint's folder.
    ///
    /// # Errors
    ///
    /// If a file is missing or broken, or the network cannot be run.
    fn load(&self, folder: &Path) -> Result<Self::Model, Self::Error>;
}

/// A [`Backend`] whose networks are of safetensors, which need no folder.
pub trait BackendFromBytes: Backend {
    /// Loads the network from memory: the text of its `config.json`, the bytes of its `model.safetensors`, and the width
    /// and height of the pictures that it is to take.
    ///
    /// # Errors
    ///
    /// If they are broken, or the network cannot be run.
    fn load_bytes(
        &self,
        config_json: &str,
        safetensors: &[u8],
        image_size: (usize, usize),
    ) -> Result<Self::Model, Self::Error>;
}

#[cfg(feature = "candle")]
impl Backend for florence2_backend_candle::Candle {
    type Model = florence2_backend_candle::CandleModel;
    type Error = florence2_backend_candle::LoadError;

    fn load(&self, folder: &Path) -> Result<Self::Model, Self::Error> {
        Self::load(self, folder)
    }
}

#[cfg(feature = "candle")]
impl BackendFromBytes for florence2_backend_candle::Candle {
    fn load_bytes(
        &self,
        config_json: &str,
        safetensors: &[u8],
        image_size: (usize, usize),
    ) -> Result<Self::Model, Self::Error> {
        let candle = Self { image_size: Some(image_size), ..self.clone() };
        candle.load_bytes(config_json, safetensors.to_vec())
    }
}

#[cfg(feature = "executorch")]
impl Backend for florence2_backend_executorch::ExecuTorch {
    type Model = florence2_backend_executorch::ExecuTorchModel;
    type Error = florence2_backend_executorch::LoadError;

    fn load(&self, folder: &Path) -> Result<Self::Model, Self::Error> {
        Self::load(self, folder)
    }
}

#[cfg(feature = "tract")]
impl Backend for florence2_backend_tract::Tract {
    type Model = florence2_backend_tract::TractModel;
    type Error = florence2_backend_tract::LoadError;

    fn load(&self, folder: &Path) -> Result<Self::Model, Self::Error> {
        Self::load(self, folder)
    }
}
