//! The network on the processor, with kernels of our own.

mod layers;
mod text;
mod vision;

use florence2_core::PixelValues;

pub(crate) use florence2_kernels::Precision;
pub(crate) use text::Row;

use crate::config::NetworkConfig;
use crate::error::LoadError;
use crate::weights::Weights;

/// Weights, repacked for the processor.
#[derive(Debug)]
pub(crate) struct Network {
    vision: vision::Vision,
    text: text::Text,
}

impl Network {
    pub(crate) fn load(
        weights: &Weights,
        config: &NetworkConfig,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let (vision, text) = rayon::join(
            || vision::Vision::load(weights, &config.vision, precision),
            || text::Text::load(weights, &config.text, precision),
        );
        Ok(Self { vision: vision?, text: text? })
    }

    /// Positions of the encoder and of the decoder.
    pub(crate) fn positions(&self) -> (usize, usize) {
        self.text.positions()
    }

    /// Image tokens of one picture.
    pub(crate) fn image(&self, pixels: &PixelValues) -> Vec<f32> {
        self.vision.forward(pixels)
    }

    /// Image tokens and prompt of each ask.
    pub(crate) fn encode(&self, asks: &[(&[f32], &[u32])]) -> Vec<Row> {
        self.text.encode(asks)
    }

    /// One token for each row.
    pub(crate) fn step(&self, rows: &mut [Row], position: usize, tokens: &[u32], logits: &mut [f32]) {
        self.text.step(rows, position, tokens, logits);
    }
}
