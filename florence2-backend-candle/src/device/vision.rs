//! The vision tower in candle's operators.

use candle_core::{Result, Tensor};

use super::{Linear, Norm, Place, attention};
use crate::config::{StageConfig, VisionConfig};
use crate::error::LoadError;
use crate::weights::{IMAGE_PROJECTION, Weights};

#[derive(Debug)]
pub(super) struct Vision {
    stages: Vec<Stage>,
    window: usize,
    rows: Tensor,
    columns: Tensor,
    temporal: Tensor,
    projection: Tensor,
    norm: Norm,
}

#[derive(Debug)]
struct Stage {
    config: StageConfig,
    kernel: Tensor,
    bias: Tensor,
    norm: Norm,
    blocks: Vec<(Block, Block)>,
}

#[derive(Debug)]
struct Block {
    before: Convolution,
    norm: Norm,
    qkv: Linear,
    projection: Linear,
    between: Convolution,
    mlp_norm: Norm,
    inner: Linear,
    outer: Linear,
}

#[derive(Debug)]
struct Convolution {
    kernel: Tensor,
    bias: Tensor,
}

impl Vision {
    pub(super) fn load(
        weights: &Weights,
        config: &VisionConfig,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let mut stages = Vec::new();
        for (index, &stage) in config.stages.iter().enumerate() {
            stages.push(Stage::load(weights, index, stage, config.qkv_bias, place)?);
        }
        let channels = config.stages[config.stages.len() - 1].channels;
        let half = channels / 2;
        let projector = "model.multi_modal_projector";
        let position = format!("{projector}.image_position_embed");
        let positions = config.max_positions;
        let rows = place.tensor(weights, &format!("{position}.row_embeddings.weight"), &[positions, half])?;
        let columns = place.tensor(
            weights,
            &format!("{position}.column_embeddings.weight"),
            &[positions, channels - half],
        )?;
        let temporal_name = format!("{projector}.visual_temporal_embed.pos_idx_to_embed");
        let temporal = place.tensor(weights, &temporal_name, &[config.max_temporal, channels])?;
        let temporal = temporal.narrow(0, 0, 1).map_err(LoadError::Candle)?;
        let projection = place.tensor(weights, IMAGE_PROJECTION, &[config.projection, channels])?;
        let projection = projection.t().map_err(LoadError::Candle)?;
        let norm = Norm::load(weights, &format!("{projector}.image_proj_norm"), config.projection, place)?;
        Ok(Self { stages, window: config.window, rows, columns, temporal, projection, norm })
    }

    /// `[1, 3, height, width]` to `[image tokens, width of the text]`.
    pub(super) fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let mut x = pixels.clone();
        for stage in &self.stages {
            x = stage.forward(&x, self.window)?;
        }
        let (_, channels, height, width) = x.dims4()?;
        let half = channels / 2;
        let across =
            self.columns.narrow(0, 0, width)?.unsqueeze(0)?.broadcast_as((height, width, channels - half))?;
        let down = self.rows.narrow(0, 0, height)?.unsqueeze(1)?.broadcast_as((height, width, half))?;
        let position = Tensor::cat(&[&across.contiguous()?, &down.contiguous()?], 2)?;
        let x = x.flatten_from(2)?.squeeze(0)?.t()?;
        let x = (x + position.flatten_to(1)?)?.broadcast_add(&self.temporal)?;
        let x = Tensor::cat(&[&x.mean_keepdim(0)?, &x], 0)?;
        self.norm.forward(&x.matmul(&self.projection)?)
    }
}

impl Stage {
    fn load(
        weights: &Weights,
        index: usize,
        config: StageConfig,
        qkv_bias: bool,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let StageConfig { inputs, channels, patch, .. } = config;
        let name = format!("model.vision_tower.convs.{index}");
        let kernel =
            place.tensor(weights, &format!("{name}.conv.weight"), &[channels, inputs, patch, patch])?;
        let bias = place.tensor(weights, &format!("{name}.conv.bias"), &[channels])?;
        let normed = if config.prenorm { inputs } else { channels };
        let norm = Norm::load(weights, &format!("{name}.norm"), normed, place)?;
        let mut blocks = Vec::new();
        for block in 0..config.depth {
            let half = |weights: &Weights, kind: &str, attention: &str| {
                let name = format!("model.vision_tower.blocks.{index}.{block}.{kind}_block");
                Block::load(weights, &name, attention, config, qkv_bias, place)
            };
            let spatial = half(weights, "spatial", "window_attn")?;
            blocks.push((spatial, half(weights, "channel", "channel_attn")?));
        }
        Ok(Self { config, kernel, bias, norm, blocks })
    }

    fn forward(&self, x: &Tensor, window: usize) -> Result<Tensor> {
        let norm =
            |x: &Tensor| self.norm.forward(&x.permute((0, 2, 3, 1))?)?.permute((0, 3, 1, 2))?.contiguous();
        let x = if self.config.prenorm { norm(x)? } else { x.clone() };
        let x = x.conv2d(&self.kernel, self.config.padding, self.config.stride, 1, 1)?;
        let x = x.broadcast_add(&self.bias.reshape((1, (), 1, 1))?)?;
        let mut x = if self.config.prenorm { x } else { norm(&x)? };
        for (spatial, channel) in &self.blocks {
            x = spatial.forward(&x, |block, tokens| block.spatial(tokens, window, self.config.heads))?;
            x = channel.forward(&x, |block, tokens| block.channel(tokens, self.config.groups))?;
        }
        Ok(x)
    }
}

impl Block {
    fn load(
        weights: &Weights,
        name: &str,
        attention: &str,
        config: StageConfig,
        qkv_bias: bool,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let StageConfig { channels, hidden, .. } = config;
        let attention = format!("{name}.{attention}");
        Ok(Self {
            before: Convolution::load(weights, &format!("{name}.conv1"), channels, place)?,
            norm: Norm::load(weights, &format!("{name}.norm1"), channels, place)?,
            qkv: Linear::load(weights, &format!("{attention}.qkv"), 3 * channels, channels, qkv_bias, place)?,
            projection: Linear::load(weights, &format!("{attention}.proj"), channels, channels, true, place)?,
            between: Convolution::load(weights, &format!("{name}.conv2"), channels, place)?,
            mlp_norm: Norm::load(weights, &format!("{name}.norm2"), channels, place)?,
            inner: Linear::load(weights, &format!("{name}.ffn.fc1"), hidden, channels, true, place)?,
            outer: Linear::load(weights, &format!("{name}.ffn.fc2"), channels, hidden, true, place)?,
        })
    }

    /// `attend` takes and gives `[height, width, channels]`.
    fn forward(&self, x: &Tensor, attend: impl Fn(&Self, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let last = |x: &Tensor| x.squeeze(0)?.permute((1, 2, 0))?.contiguous();
        let first = |x: &Tensor| x.permute((2, 0, 1))?.contiguous()?.unsqueeze(0);
        let x = last(&self.before.forward(x)?)?;
        let x = (&x + attend(self, &self.norm.forward(&x)?)?)?;
        let x = last(&self.between.forward(&first(&x)?)?)?;
        let hidden = self.inner.forward(&self.mlp_norm.forward(&x)?)?.gelu_erf()?;
        first(&(x + self.outer.forward(&hidden)?)?)
    }

    fn spatial(&self, x: &Tensor, window: usize, heads: usize) -> Result<Tensor> {
        let (height, width, channels) = x.dims3()?;
        let padded = |side: usize| side.next_multiple_of(window);
        let x =
            x.pad_with_zeros(0, 0, padded(height) - height)?.pad_with_zeros(1, 0, padded(width) - width)?;
        let (down, across) = (padded(height) / window, padded(width) / window);
        let (tokens, head) = (window * window, channels / heads);
        let x =
            x.reshape((down, window, across, window, channels))?.permute((0, 2, 1, 3, 4))?.contiguous()?;
        let qkv = self.qkv.forward(&x.reshape((down * across, tokens, channels))?)?;
        let qkv =
            qkv.reshape((down * across, tokens, 3, heads, head))?.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let mixed = attention(&qkv.get(0)?, &qkv.get(1)?, &qkv.get(2)?, (head as f64).powf(-0.5), None)?;
        let mixed = mixed.transpose(1, 2)?.contiguous()?.reshape((down * across, tokens, channels))?;
        let mixed = self.projection.forward(&mixed)?.reshape((down, across, window, window, channels))?;
        let mixed = mixed.permute((0, 2, 1, 3, 4))?.contiguous()?.reshape((
            padded(height),
            padded(width),
            channels,
        ))?;
        mixed.narrow(0, 0, height)?.narrow(1, 0, width)?.contiguous()
    }

    fn channel(&self, x: &Tensor, groups: usize) -> Result<Tensor> {
        let (height, width, channels) = x.dims3()?;
        let tokens = height * width;
        let qkv = self.qkv.forward(&x.reshape((tokens, channels))?)?;
        let qkv = qkv.reshape((tokens, 3, groups, channels / groups))?.permute((1, 2, 3, 0))?.contiguous()?;
        let scale = (tokens as f64).powf(-0.5);
        let mixed = attention(&qkv.get(0)?, &qkv.get(1)?, &qkv.get(2)?, scale, None)?;
        let mixed = mixed.permute((2, 0, 1))?.contiguous()?.reshape((tokens, channels))?;
        self.projection.forward(&mixed)?.reshape((height, width, channels))
    }
}

impl Convolution {
    fn load(
        weights: &Weights,
        name: &str,
        channels: usize,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let kernel = place.tensor(weights, &format!("{name}.weight"), &[channels, 1, 3, 3])?;
        let bias = place.tensor(weights, &format!("{name}.bias"), &[channels])?;
        let bias = bias.reshape((1, channels, 1, 1)).map_err(LoadError::Candle)?;
        Ok(Self { kernel, bias })
    }

    /// Depthwise as nine products with shifted pictures: candle's grouped convolution runs one channel at a time.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, channels, height, width) = x.dims4()?;
        let padded = x.pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 1, 1)?;
        let mut sum = x.broadcast_add(&self.bias)?;
        for row in 0..3 {
            for column in 0..3 {
                let weight =
                    self.kernel.narrow(2, row, 1)?.narrow(3, column, 1)?.reshape((1, channels, 1, 1))?;
                let shifted = padded.narrow(2, row, height)?.narrow(3, column, width)?;
                sum = (sum + shifted.broadcast_mul(&weight)?)?;
            }
        }
        Ok(sum)
    }
}
