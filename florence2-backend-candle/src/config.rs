//! `config.json`, of both layouts.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::LoadError;
use crate::json;

/// The shape of the network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NetworkConfig {
    pub(crate) vision: VisionConfig,
    pub(crate) text: TextConfig,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VisionConfig {
    pub(crate) stages: Vec<StageConfig>,
    pub(crate) window: usize,
    pub(crate) qkv_bias: bool,
    pub(crate) max_positions: usize,
    pub(crate) max_temporal: usize,
    pub(crate) projection: usize,
}

/// One stage of the vision tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageConfig {
    pub(crate) inputs: usize,
    pub(crate) channels: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) groups: usize,
    pub(crate) depth: usize,
    pub(crate) patch: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) prenorm: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TextConfig {
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) encoder: StackConfig,
    pub(crate) decoder: StackConfig,
    pub(crate) embedding_scale: f32,
    pub(crate) bos: u32,
    pub(crate) pad: u32,
    pub(crate) eos: u32,
    pub(crate) decoder_start: u32,
}

/// One of the two stacks of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackConfig {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
}

#[derive(Deserialize)]
struct Raw {
    text_config: RawText,
    vision_config: RawVision,
    projection_dim: Option<usize>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct RawText {
    vocab_size: usize,
    d_model: usize,
    encoder_layers: usize,
    decoder_layers: usize,
    encoder_attention_heads: usize,
    decoder_attention_heads: usize,
    encoder_ffn_dim: usize,
    decoder_ffn_dim: usize,
    activation_function: Option<String>,
    scale_embedding: Option<bool>,
    normalize_before: Option<bool>,
    add_final_layer_norm: Option<bool>,
    tie_word_embeddings: Option<bool>,
    bos_token_id: Option<u32>,
    pad_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    decoder_start_token_id: Option<u32>,
}

#[derive(Deserialize)]
struct RawVision {
    embed_dim: Option<Vec<usize>>,
    dim_embed: Option<Vec<usize>>,
    depths: Vec<usize>,
    num_heads: Vec<usize>,
    num_groups: Vec<usize>,
    patch_size: Vec<usize>,
    patch_stride: Vec<usize>,
    patch_padding: Vec<usize>,
    patch_prenorm: Vec<bool>,
    window_size: usize,
    mlp_ratio: Option<f64>,
    qkv_bias: Option<bool>,
    in_channels: Option<usize>,
    activation_function: Option<String>,
    projection_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    max_temporal_embeddings: Option<usize>,
    image_pos_embed: Option<RawPositions>,
    visual_temporal_embedding: Option<RawTemporal>,
    image_feature_source: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawPositions {
    r#type: Option<String>,
    max_pos_embeddings: usize,
}

#[derive(Deserialize)]
struct RawTemporal {
    r#type: Option<String>,
    max_temporal_embeddings: usize,
}

/// Sizes beyond any real network: a configuration with one is broken, and would overflow what is computed from it.
const LARGEST: usize = 1 << 24;
/// Layers of a stack, and blocks of a stage.
const DEEPEST: usize = 256;
/// No tensor's shape depends on the window, but the square of its square is how many scores it takes.
const LARGEST_WINDOW: usize = 64;
const LARGEST_PATCH: usize = 64;
const MOST_STAGES: usize = 16;
/// A side of a picture.
const LARGEST_SIDE: usize = 8192;

pub(crate) const CONFIG: &str = "config.json";

fn wrong(key: &str, value: impl ToString, need: impl Into<String>) -> LoadError {
    let file = CONFIG.into();
    LoadError::Config { file, key: key.to_owned(), value: value.to_string(), need: need.into() }
}

fn size(key: &str, value: usize) -> Result<usize, LoadError> {
    at_most(key, value, LARGEST)
}

fn at_most(key: &str, value: usize, largest: usize) -> Result<usize, LoadError> {
    if value == 0 || value > largest {
        return Err(wrong(key, value, format!("a number from 1 to {largest} is needed")));
    }
    Ok(value)
}

fn must_be<T: PartialEq + ToString>(key: &str, value: Option<T>, only: T) -> Result<(), LoadError> {
    match value {
        Some(value) if value != only => {
            Err(wrong(key, value, format!("only {} is supported", only.to_string())))
        }
        _ => Ok(()),
    }
}

impl NetworkConfig {
    /// From the text of a `config.json`, which errors name by this path.
    pub(crate) fn parse(path: &Path, json: &[u8]) -> Result<Self, LoadError> {
        let value: Value = json::parse(path, json)?;
        // Before anything else: another model's file has other keys, too.
        match value.get("model_type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if kind == "florence2" => {}
            Some(other) => {
                let kind = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                let need = "a checkpoint of Florence-2 (florence2) is needed";
                return Err(wrong("model_type", kind, need).in_file(path));
            }
        }
        let raw: Raw = serde_json::from_value(value)
            .map_err(|source| LoadError::Json { file: path.to_owned(), source })?;
        Self::new(&raw).map_err(|error| error.in_file(path))
    }

    fn new(raw: &Raw) -> Result<Self, LoadError> {
        must_be("tie_word_embeddings", raw.tie_word_embeddings, true)?;
        let projection = raw.vision_config.projection_dim.or(raw.projection_dim);
        let text = TextConfig::new(&raw.text_config)?;
        let vision = VisionConfig::new(&raw.vision_config, projection)?;
        if vision.projection != text.width {
            return Err(wrong(
                "vision_config.projection_dim",
                vision.projection,
                format!("image tokens need the text's width, {} (text_config.d_model)", text.width),
            ));
        }
        Ok(Self { vision, text })
    }
}

impl TextConfig {
    fn new(raw: &RawText) -> Result<Self, LoadError> {
        must_be("text_config.activation_function", raw.activation_function.as_deref(), "gelu")?;
        must_be("text_config.normalize_before", raw.normalize_before, false)?;
        must_be("text_config.add_final_layer_norm", raw.add_final_layer_norm, false)?;
        must_be("text_config.tie_word_embeddings", raw.tie_word_embeddings, true)?;
        let width = size("text_config.d_model", raw.d_model)?;
        let stack = |name: &str, layers, heads, hidden| {
            let heads_key = format!("text_config.{name}_attention_heads");
            let heads = size(&heads_key, heads)?;
            if !width.is_multiple_of(heads) {
                return Err(wrong(&heads_key, heads, format!("it must divide the width, {width}")));
            }
            Ok(StackConfig {
                layers: at_most(&format!("text_config.{name}_layers"), layers, DEEPEST)?,
                heads,
                hidden: size(&format!("text_config.{name}_ffn_dim"), hidden)?,
            })
        };
        let vocabulary = size("text_config.vocab_size", raw.vocab_size)?;
        let special = |key: &str, value: Option<u32>, default: u32| {
            let value = value.unwrap_or(default);
            if value as usize >= vocabulary {
                return Err(wrong(key, value, format!("the vocabulary has {vocabulary} ids")));
            }
            Ok(value)
        };
        Ok(Self {
            vocabulary,
            width,
            encoder: stack("encoder", raw.encoder_layers, raw.encoder_attention_heads, raw.encoder_ffn_dim)?,
            decoder: stack("decoder", raw.decoder_layers, raw.decoder_attention_heads, raw.decoder_ffn_dim)?,
            embedding_scale: if raw.scale_embedding == Some(true) { (width as f32).sqrt() } else { 1.0 },
            bos: special("text_config.bos_token_id", raw.bos_token_id, 0)?,
            pad: special("text_config.pad_token_id", raw.pad_token_id, 1)?,
            eos: special("text_config.eos_token_id", raw.eos_token_id, 2)?,
            decoder_start: special("text_config.decoder_start_token_id", raw.decoder_start_token_id, 2)?,
        })
    }
}

impl VisionConfig {
    fn new(raw: &RawVision, projection: Option<usize>) -> Result<Self, LoadError> {
        must_be("vision_config.activation_function", raw.activation_function.as_deref(), "gelu")?;
        must_be("vision_config.in_channels", raw.in_channels, 3)?;
        if let Some(positions) = &raw.image_pos_embed {
            must_be("vision_config.image_pos_embed.type", positions.r#type.as_deref(), "learned_abs_2d")?;
        }
        if let Some(temporal) = &raw.visual_temporal_embedding {
            must_be("vision_config.visual_temporal_embedding.type", temporal.r#type.as_deref(), "COSINE")?;
        }
        if let Some(source) = &raw.image_feature_source
            && source != &["spatial_avg_pool", "temporal_avg_pool"]
        {
            let need = "only [\"spatial_avg_pool\", \"temporal_avg_pool\"] is supported";
            return Err(wrong("vision_config.image_feature_source", format!("{source:?}"), need));
        }
        let Some(channels) = raw.embed_dim.as_ref().or(raw.dim_embed.as_ref()) else {
            return Err(wrong(
                "vision_config.embed_dim",
                "absent",
                "it (or dim_embed) says how wide each stage is",
            ));
        };
        let count = at_most("the number of stages (vision_config.embed_dim)", channels.len(), MOST_STAGES)?;
        let lengths = [
            ("depths", raw.depths.len()),
            ("num_heads", raw.num_heads.len()),
            ("num_groups", raw.num_groups.len()),
            ("patch_size", raw.patch_size.len()),
            ("patch_stride", raw.patch_stride.len()),
            ("patch_padding", raw.patch_padding.len()),
            ("patch_prenorm", raw.patch_prenorm.len()),
        ];
        if let Some((name, length)) = lengths.into_iter().find(|&(_, length)| length != count) {
            let key = format!("the length of vision_config.{name}");
            return Err(wrong(&key, length, format!("there are {count} stages (embed_dim)")));
        }
        let ratio = raw.mlp_ratio.unwrap_or(4.0);
        let mut stages = Vec::with_capacity(count);
        let mut inputs = 3;
        for stage in 0..count {
            let key = |name: &str| format!("vision_config.{name}[{stage}]");
            let channels = size(&key("embed_dim"), channels[stage])?;
            let divisor = |name: &str, value: usize| {
                if value == 0 || !channels.is_multiple_of(value) {
                    return Err(wrong(
                        &key(name),
                        value,
                        format!("it must divide the stage's width, {channels}"),
                    ));
                }
                Ok(value)
            };
            let padding = raw.patch_padding[stage];
            let patch = at_most(&key("patch_size"), raw.patch_size[stage], LARGEST_PATCH)?;
            if padding >= patch {
                return Err(wrong(
                    &key("patch_padding"),
                    padding,
                    format!("it must be less than the patch, {patch}"),
                ));
            }
            stages.push(StageConfig {
                inputs,
                channels,
                hidden: size("vision_config.mlp_ratio times the width", (channels as f64 * ratio) as usize)?,
                heads: divisor("num_heads", raw.num_heads[stage])?,
                groups: divisor("num_groups", raw.num_groups[stage])?,
                depth: at_most(&key("depths"), raw.depths[stage], DEEPEST)?,
                patch,
                stride: at_most(&key("patch_stride"), raw.patch_stride[stage], patch)?,
                padding,
                prenorm: raw.patch_prenorm[stage],
            });
            inputs = channels;
        }
        let max_positions = raw
            .max_position_embeddings
            .or(raw.image_pos_embed.as_ref().map(|p| p.max_pos_embeddings))
            .unwrap_or(50);
        let max_temporal = raw
            .max_temporal_embeddings
            .or(raw.visual_temporal_embedding.as_ref().map(|t| t.max_temporal_embeddings))
            .unwrap_or(100);
        Ok(Self {
            stages,
            window: at_most("vision_config.window_size", raw.window_size, LARGEST_WINDOW)?,
            qkv_bias: raw.qkv_bias.unwrap_or(true),
            max_positions: size("vision_config.max_position_embeddings", max_positions)?,
            max_temporal: size("vision_config.max_temporal_embeddings", max_temporal)?,
            projection: size("vision_config.projection_dim", projection.unwrap_or(1024))?,
        })
    }

    /// Width and height of the last stage's map, for pictures of this size.
    pub(crate) fn map(&self, width: usize, height: usize) -> Result<(usize, usize), LoadError> {
        for side in [width, height] {
            at_most("a side of the picture", side, LARGEST_SIDE)?;
        }
        let mut map = (width, height);
        for (index, stage) in self.stages.iter().enumerate() {
            map = stage.map(map).ok_or_else(|| {
                wrong(
                    "the picture's size",
                    format!("{width}x{height}"),
                    format!("stage {index} leaves nothing of it"),
                )
            })?;
        }
        if map.0 > self.max_positions || map.1 > self.max_positions {
            return Err(wrong(
                "the picture's size",
                format!("{width}x{height}"),
                format!("its map of {}x{} needs more than {} positions", map.0, map.1, self.max_positions),
            ));
        }
        Ok(map)
    }
}

impl StageConfig {
    /// Width and height after this stage's patches.
    pub(crate) fn map(&self, (width, height): (usize, usize)) -> Option<(usize, usize)> {
        let side = |side: usize| Some((side + 2 * self.padding).checked_sub(self.patch)? / self.stride + 1);
        Some((side(width)?, side(height)?))
    }
}
