//! The vision tower (DaViT) and the projection of its map to image tokens.
//!
//! Pixels lie channels-last throughout, `[height][width][channels]`, so that a convolution, a norm and a product all read
//! what lies side by side, and nothing is transposed between layers. Each half of a block is cut where a thread can do
//! it in its caches: a window with its attention, some rows with their MLP. What would be large (queries and keys of the
//! whole map, the MLP's hidden layer) is never written out.

use florence2_core::PixelValues;
use rayon::prelude::*;

use super::layers::{Linear, Norm, Workspace, block, in_order, room};
use crate::config::{StageConfig, VisionConfig};
use crate::error::LoadError;
use crate::weights::{IMAGE_PROJECTION, Weights};
use florence2_kernels::{self as kernels, Attention, Depthwise, Order, Packed, Precision, Rows};

#[derive(Debug)]
pub(super) struct Vision {
    stages: Vec<Stage>,
    window: usize,
    rows: Vec<f32>,
    columns: Vec<f32>,
    temporal: Vec<f32>,
    projection: Linear,
    norm: Norm,
}

#[derive(Debug)]
struct Stage {
    config: StageConfig,
    patches: Linear,
    norm: Norm,
    blocks: Vec<(Block, Block)>,
}

/// Half of a block: one attention and one MLP, each after a convolution.
#[derive(Debug)]
struct Block {
    before: Convolution,
    norm: Norm,
    qkv: Linear,
    projection: Linear,
    between: Convolution,
    mlp: Mlp,
}

#[derive(Debug)]
struct Convolution {
    /// `[9][channels]`
    weights: Vec<f32>,
    bias: Vec<f32>,
    zeros: Vec<f32>,
}

#[derive(Debug)]
struct Mlp {
    norm: Norm,
    inner: Linear,
    outer: Linear,
}

/// A channels-last picture.
#[derive(Clone, Copy)]
struct Map {
    width: usize,
    height: usize,
    channels: usize,
}

impl Map {
    fn pixels(self) -> usize {
        self.width * self.height
    }
}

impl Vision {
    pub(super) fn load(
        weights: &Weights,
        config: &VisionConfig,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let mut stages = Vec::with_capacity(config.stages.len());
        for (index, &stage) in config.stages.iter().enumerate() {
            stages.push(Stage::load(weights, index, stage, config.qkv_bias, precision)?);
        }
        let channels = config.stages[config.stages.len() - 1].channels;
        let half = channels / 2;
        let projector = "model.multi_modal_projector";
        let positions = config.max_positions;
        let position = format!("{projector}.image_position_embed");
        let rows = weights.tensor(&format!("{position}.row_embeddings.weight"), &[positions, half])?;
        let columns =
            weights.tensor(&format!("{position}.column_embeddings.weight"), &[positions, channels - half])?;
        let temporal_name = format!("{projector}.visual_temporal_embed.pos_idx_to_embed");
        let mut temporal = weights.tensor(&temporal_name, &[config.max_temporal, channels])?;
        // One picture is one moment: the first.
        temporal.truncate(channels);
        let matrix = weights.tensor(IMAGE_PROJECTION, &[config.projection, channels])?;
        let projection = Linear::new(Packed::new(&matrix, config.projection, channels, precision), None);
        let norm = Norm::load(weights, &format!("{projector}.image_proj_norm"), config.projection)?;
        Ok(Self { stages, window: config.window, rows, columns, temporal, projection, norm })
    }

    /// The image tokens, `(pixels of the last map + 1) × width of the text`.
    pub(super) fn forward(&self, pixels: &PixelValues) -> Vec<f32> {
        let mut map = Map { width: pixels.width(), height: pixels.height(), channels: 3 };
        let mut x = interleave(pixels);
        for stage in &self.stages {
            x = stage.forward(x, &mut map, self.window);
        }
        self.project(x, map)
    }

    fn project(&self, mut x: Vec<f32>, map: Map) -> Vec<f32> {
        let Map { width, channels, .. } = map;
        let half = channels / 2;
        // Across first, then down.
        for (index, pixel) in x.chunks_exact_mut(channels).enumerate() {
            let (row, column) = (index / width, index % width);
            let (across, down) = pixel.split_at_mut(channels - half);
            kernels::add(&self.columns[column * (channels - half)..][..channels - half], across);
            kernels::add(&self.rows[row * half..][..half], down);
            kernels::add(&self.temporal, pixel);
        }
        // The mean of all positions is the first token.
        let mut mean = vec![0.0f64; channels];
        for pixel in x.chunks_exact(channels) {
            for (mean, &value) in mean.iter_mut().zip(pixel) {
                *mean += f64::from(value);
            }
        }
        let pixels = map.pixels() as f64;
        let mut tokens: Vec<f32> = mean.into_iter().map(|sum| (sum / pixels) as f32).collect();
        tokens.append(&mut x);
        let mut projected = vec![0.0; (map.pixels() + 1) * self.projection.outputs()];
        self.projection.forward(&tokens, &mut projected, false);
        self.norm.apply_in_place(&mut projected);
        projected
    }
}

/// Planes to pixels.
fn interleave(pixels: &PixelValues) -> Vec<f32> {
    let area = pixels.width() * pixels.height();
    let (red, rest) = pixels.values().split_at(area);
    let (green, blue) = rest.split_at(area);
    red.iter().zip(green).zip(blue).flat_map(|((&r, &g), &b)| [r, g, b]).collect()
}

impl Stage {
    fn load(
        weights: &Weights,
        index: usize,
        config: StageConfig,
        qkv_bias: bool,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let StageConfig { inputs, channels, patch, .. } = config;
        let name = format!("model.vision_tower.convs.{index}");
        let kernel = weights.tensor(&format!("{name}.conv.weight"), &[channels, inputs, patch, patch])?;
        // [out][in][y][x] → [out][y][x][in], the order of the pixels under a patch.
        let area = patch * patch;
        let mut reordered = vec![0.0; kernel.len()];
        for (kernel, reordered) in
            kernel.chunks_exact(inputs * area).zip(reordered.chunks_exact_mut(inputs * area))
        {
            for input in 0..inputs {
                for place in 0..area {
                    reordered[place * inputs + input] = kernel[input * area + place];
                }
            }
        }
        let bias = weights.tensor(&format!("{name}.conv.bias"), &[channels])?;
        let patches = Linear::new(Packed::new(&reordered, channels, inputs * area, precision), Some(bias));
        let norm =
            Norm::load(weights, &format!("{name}.norm"), if config.prenorm { inputs } else { channels })?;
        let blocks = (0..config.depth).into_par_iter().map(|block| {
            let half = |kind: &str, attention: &str| {
                let name = format!("model.vision_tower.blocks.{index}.{block}.{kind}_block");
                Block::load(weights, &name, attention, config, qkv_bias, precision)
            };
            Ok((half("spatial", "window_attn")?, half("channel", "channel_attn")?))
        });
        let blocks = in_order(blocks)?;
        Ok(Self { config, patches, norm, blocks })
    }

    fn forward(&self, mut x: Vec<f32>, map: &mut Map, window: usize) -> Vec<f32> {
        if self.config.prenorm {
            let chunk = 64 * map.channels;
            x.par_chunks_mut(chunk).for_each(|rows| self.norm.apply_in_place(rows));
        }
        x = self.embed(&x, map);
        for (spatial, channel) in &self.blocks {
            x = spatial.spatial(&x, *map, window, self.config.heads);
            x = channel.channel(&x, *map, self.config.groups);
        }
        x
    }

    /// Cuts patches, and makes one pixel of each.
    fn embed(&self, x: &[f32], map: &mut Map) -> Vec<f32> {
        let StageConfig { channels, patch, stride, padding, prenorm, .. } = self.config;
        let from = *map;
        // Checked when the network was loaded.
        let (width, height) = self.config.map((from.width, from.height)).unwrap_or_default();
        *map = Map { width, height, channels };
        let depth = self.patches.inputs();
        let mut out = vec![0.0; map.pixels() * channels];
        out.par_chunks_mut(width * channels).enumerate().for_each_init(
            Workspace::default,
            |work, (row, out)| {
                let patches = room(&mut work.a, width * depth);
                for (column, patches) in patches.chunks_exact_mut(depth).enumerate() {
                    // The columns of the patch that lie within the picture, and where they lie.
                    let left = column * stride;
                    let first = padding.saturating_sub(left).min(patch);
                    let end = (from.width + padding).saturating_sub(left).min(patch).max(first);
                    for (y, line) in patches.chunks_exact_mut(patch * from.channels).enumerate() {
                        let inside = (padding..from.height + padding).contains(&(row * stride + y));
                        if !inside || first == end {
                            line.fill(0.0);
                            continue;
                        }
                        let start = ((row * stride + y - padding) * from.width + left + first - padding)
                            * from.channels;
                        let (before, rest) = line.split_at_mut(first * from.channels);
                        let (within, after) = rest.split_at_mut((end - first) * from.channels);
                        before.fill(0.0);
                        within.copy_from_slice(&x[start..start + within.len()]);
                        after.fill(0.0);
                    }
                }
                self.patches.apply(Rows::new(patches, depth), out, false, &mut work.scratch);
                if !prenorm {
                    self.norm.apply_in_place(out);
                }
            },
        );
        out
    }
}

impl Block {
    fn load(
        weights: &Weights,
        name: &str,
        attention: &str,
        config: StageConfig,
        qkv_bias: bool,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let StageConfig { channels, hidden, .. } = config;
        let attention = format!("{name}.{attention}");
        Ok(Self {
            before: Convolution::load(weights, &format!("{name}.conv1"), channels)?,
            norm: Norm::load(weights, &format!("{name}.norm1"), channels)?,
            qkv: Linear::load(
                weights,
                &format!("{attention}.qkv"),
                3 * channels,
                channels,
                qkv_bias,
                precision,
            )?,
            projection: Linear::load(
                weights,
                &format!("{attention}.proj"),
                channels,
                channels,
                true,
                precision,
            )?,
            between: Convolution::load(weights, &format!("{name}.conv2"), channels)?,
            mlp: Mlp {
                norm: Norm::load(weights, &format!("{name}.norm2"), channels)?,
                inner: Linear::load(weights, &format!("{name}.ffn.fc1"), hidden, channels, true, precision)?,
                outer: Linear::load(weights, &format!("{name}.ffn.fc2"), channels, hidden, true, precision)?,
            },
        })
    }

    /// Pixels attend to the pixels of their window.
    ///
    /// A map that is no multiple of the window is filled up with zeros behind the norm, as the references do, and they
    /// are attended to: they have the keys and values that the biases give.
    fn spatial(&self, x: &[f32], map: Map, window: usize, heads: usize) -> Vec<f32> {
        let Map { width, height, channels } = map;
        let x = self.before.forward(x, Order::Rows, map);
        let across = width.div_ceil(window);
        let tokens = window * window;
        let head = channels / heads;
        let mut attended = vec![0.0; across * height.div_ceil(window) * tokens * channels];
        // The result lies window after window, which the convolution behind it reads as well as any order.
        attended.par_chunks_mut(tokens * channels).enumerate().for_each_init(
            Workspace::default,
            |work, (index, out)| {
                let Workspace { scratch, a, b, c } = work;
                let (top, left) = (index / across * window, index % across * window);
                let inside = window.min(width - left) * channels;
                let normed = room(a, tokens * channels);
                for (y, (out, normed)) in out
                    .chunks_exact_mut(window * channels)
                    .zip(normed.chunks_exact_mut(window * channels))
                    .enumerate()
                {
                    let inside = if top + y < height { inside } else { 0 };
                    let row = &x[(top + y).min(height - 1) * width * channels + left * channels..][..inside];
                    out[..inside].copy_from_slice(row);
                    self.norm.apply(row, &mut normed[..inside]);
                    normed[inside..].fill(0.0);
                }
                let qkv = room(b, tokens * 3 * channels);
                self.qkv.apply(Rows::new(normed, channels), qkv, false, scratch);
                let part = |first: usize| Rows {
                    data: &qkv[first * channels..],
                    rows: tokens,
                    stride: 3 * channels,
                };
                let attention = Attention {
                    queries: part(0),
                    keys: part(1),
                    values: part(2),
                    width: head,
                    scale: (head as f32).powf(-0.5),
                };
                let mixed = room(c, tokens * channels);
                for head in 0..heads {
                    attention.head(head, mixed, channels, scratch);
                }
                self.projection.apply(Rows::new(mixed, channels), out, true, scratch);
            },
        );
        let mut x = self.between.forward(&attended, Order::Windows { side: window, across }, map);
        drop(attended);
        self.mlp.forward(&mut x, channels);
        x
    }

    /// Channels attend to the channels of their group, over all pixels.
    fn channel(&self, x: &[f32], map: Map, groups: usize) -> Vec<f32> {
        /// Pixels that are summed up together. Fixed, so that sums do not depend on the number of threads.
        const SPAN: usize = 144;
        let channels = map.channels;
        let head = channels / groups;
        let scale = (map.pixels() as f32).powf(-0.5);
        let mut x = self.before.forward(x, Order::Rows, map);

        let mut values = vec![0.0; x.len()];
        let sums: Vec<Vec<f32>> = values
            .par_chunks_mut(SPAN * channels)
            .zip(x.par_chunks(SPAN * channels))
            .map_init(Workspace::default, |work, (values, x)| {
                let Workspace { scratch, a, b, .. } = work;
                let rows = x.len() / channels;
                let normed = room(a, x.len());
                self.norm.apply(x, normed);
                let qkv = room(b, 3 * x.len());
                self.qkv.apply(Rows::new(normed, channels), qkv, false, scratch);
                for (values, qkv) in values.chunks_exact_mut(channels).zip(qkv.chunks_exact(3 * channels)) {
                    values.copy_from_slice(&qkv[2 * channels..]);
                }
                let mut sums = vec![0.0; groups * head * head];
                for (group, sums) in sums.chunks_exact_mut(head * head).enumerate() {
                    let part = |first: usize| Rows {
                        data: &qkv[first + group * head..],
                        rows,
                        stride: 3 * channels,
                    };
                    kernels::product_of_columns(part(0), head, part(channels), head, sums, scratch);
                }
                sums
            })
            .collect();
        let mut scores = vec![0.0; groups * head * head];
        for sums in &sums {
            kernels::add(sums, &mut scores);
        }
        kernels::softmax(&mut scores, head, scale);
        let groups: Vec<Packed> = scores
            .chunks_exact(head * head)
            .map(|scores| Packed::new(scores, head, head, Precision::F32))
            .collect();

        let rows = block(map.pixels()) * channels;
        x.par_chunks_mut(rows).zip(values.par_chunks(rows)).for_each_init(
            Workspace::default,
            |work, (x, values)| {
                let mixed = room(&mut work.a, x.len());
                for (group, weights) in groups.iter().enumerate() {
                    let left =
                        Rows { data: &values[group * head..], rows: x.len() / channels, stride: channels };
                    let out = kernels::Out { data: &mut mixed[group * head..], stride: channels, add: false };
                    kernels::product(left, weights, None, out, &mut work.scratch);
                }
                self.projection.apply(Rows::new(mixed, channels), x, true, &mut work.scratch);
            },
        );
        drop(values);
        let mut x = self.between.forward(&x, Order::Rows, map);
        self.mlp.forward(&mut x, channels);
        x
    }
}

impl Convolution {
    fn load(weights: &Weights, name: &str, channels: usize) -> Result<Self, LoadError> {
        let kernel = weights.tensor(&format!("{name}.weight"), &[channels, 1, 3, 3])?;
        let mut reordered = vec![0.0; kernel.len()];
        for (channel, taps) in kernel.chunks_exact(9).enumerate() {
            for (tap, &weight) in taps.iter().enumerate() {
                reordered[tap * channels + channel] = weight;
            }
        }
        let bias = weights.tensor(&format!("{name}.bias"), &[channels])?;
        Ok(Self { weights: reordered, bias, zeros: vec![0.0; channels] })
    }

    /// The picture and its convolution, added; the result's rows lie one behind the other.
    fn forward(&self, input: &[f32], order: Order, map: Map) -> Vec<f32> {
        let Map { width, height, channels } = map;
        let Self { weights, bias, zeros } = self;
        let convolution = Depthwise { input, order, width, height, weights, bias, zeros };
        let mut out = vec![0.0; map.pixels() * channels];
        out.par_chunks_mut(width * channels).enumerate().for_each(|(row, out)| convolution.row(row, out));
        out
    }
}

impl Mlp {
    fn forward(&self, x: &mut [f32], channels: usize) {
        let block = block(x.len() / channels);
        x.par_chunks_mut(block * channels).for_each_init(Workspace::default, |work, x| {
            let Workspace { scratch, a, b, .. } = work;
            let normed = room(a, x.len());
            self.norm.apply(x, normed);
            let hidden = room(b, x.len() / channels * self.inner.outputs());
            self.inner.apply(Rows::new(normed, channels), hidden, false, scratch);
            kernels::gelu(hidden);
            self.outer.apply(Rows::new(hidden, self.inner.outputs()), x, true, scratch);
        });
    }
}
