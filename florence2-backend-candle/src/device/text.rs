//! The language model in candle's operators.

use candle_core::{Result, Tensor};

use super::{Linear, Norm, Place, attention};
use crate::config::{StackConfig, TextConfig};
use crate::error::LoadError;
use crate::weights::{LOGITS_BIAS, Weights};

#[derive(Debug)]
pub(super) struct Text {
    place: Place,
    pad: u32,
    scale: f64,
    /// `[vocabulary, width]`
    embeddings: Tensor,
    logits_bias: Option<Tensor>,
    encoder: Stack<EncoderLayer>,
    decoder: Stack<DecoderLayer>,
}

#[derive(Debug)]
struct Stack<L> {
    /// `[positions, width]`, without the two rows that BART leaves unused in front.
    positions: Tensor,
    norm: Norm,
    layers: Vec<L>,
}

#[derive(Debug)]
struct Projections {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: usize,
}

#[derive(Debug)]
struct Mlp {
    inner: Linear,
    outer: Linear,
    norm: Norm,
}

#[derive(Debug)]
struct EncoderLayer {
    attention: Projections,
    norm: Norm,
    mlp: Mlp,
}

#[derive(Debug)]
struct DecoderLayer {
    attention: Projections,
    norm: Norm,
    cross: Projections,
    cross_norm: Norm,
    mlp: Mlp,
}

/// Rows that are being decoded.
#[derive(Debug)]
pub(crate) struct State {
    rows: usize,
    /// `[rows, 1, 1, tokens]`: zero, and minus infinity for padding.
    mask: Tensor,
    /// For each layer, keys and values of the encoder, `[rows, heads, tokens, width]`.
    cross: Vec<(Tensor, Tensor)>,
    /// For each layer, keys and values of the decoder, `[rows, heads, room, width]`.
    own: Vec<(Tensor, Tensor)>,
}

/// Tokens that the decoder's own keys and values have room for at first; doubled when it is used up.
const ROOM: usize = 64;

impl State {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn select(&mut self, rows: &[usize]) -> Result<()> {
        let index: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let index = Tensor::from_vec(index, rows.len(), self.mask.device())?;
        self.mask = self.mask.index_select(&index, 0)?;
        for (keys, values) in self.cross.iter_mut().chain(&mut self.own) {
            *keys = keys.index_select(&index, 0)?;
            *values = values.index_select(&index, 0)?;
        }
        self.rows = rows.len();
        Ok(())
    }
}

impl Text {
    pub(super) fn load(
        weights: &Weights,
        config: &TextConfig,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let &TextConfig { vocabulary, width, encoder, decoder, embedding_scale, pad, .. } = config;
        let embeddings = weights.embeddings(&[vocabulary, width])?.read_all()?;
        let embeddings = place.put(embeddings, &[vocabulary, width]).map_err(LoadError::Candle)?;
        let logits_bias = if weights.holds(LOGITS_BIAS) {
            Some(place.tensor(weights, LOGITS_BIAS, &[1, vocabulary])?)
        } else {
            None
        };
        Ok(Self {
            place: place.clone(),
            pad,
            scale: f64::from(embedding_scale),
            embeddings,
            logits_bias,
            encoder: Stack::load(weights, "encoder", width, encoder, place, |weights, name| {
                Ok(EncoderLayer {
                    attention: Projections::load(
                        weights,
                        &format!("{name}.self_attn"),
                        width,
                        encoder.heads,
                        place,
                    )?,
                    norm: Norm::load(weights, &format!("{name}.self_attn_layer_norm"), width, place)?,
                    mlp: Mlp::load(weights, name, width, encoder.hidden, place)?,
                })
            })?,
            decoder: Stack::load(weights, "decoder", width, decoder, place, |weights, name| {
                let projections = |weights: &Weights, part: &str| {
                    Projections::load(weights, &format!("{name}.{part}"), width, decoder.heads, place)
                };
                Ok(DecoderLayer {
                    attention: projections(weights, "self_attn")?,
                    norm: Norm::load(weights, &format!("{name}.self_attn_layer_norm"), width, place)?,
                    cross: projections(weights, "encoder_attn")?,
                    cross_norm: Norm::load(
                        weights,
                        &format!("{name}.encoder_attn_layer_norm"),
                        width,
                        place,
                    )?,
                    mlp: Mlp::load(weights, name, width, decoder.hidden, place)?,
                })
            })?,
        })
    }

    pub(super) fn positions(&self) -> (usize, usize) {
        let count = |positions: &Tensor| positions.dims()[0];
        (count(&self.encoder.positions), count(&self.decoder.positions))
    }

    pub(super) fn encode(&self, asks: &[(&Tensor, &[u32])]) -> Result<State> {
        let longest = asks.iter().map(|(_, prompt)| prompt.len()).max().unwrap_or_default();
        let (mut rows, mut masks) = (Vec::new(), Vec::new());
        for &(image, prompt) in asks {
            let mut ids = prompt.to_vec();
            ids.resize(longest, self.pad);
            rows.push(Tensor::cat(&[image, &self.embed(&ids)?], 0)?);
            let real = image.dim(0)? + prompt.len();
            masks.extend(
                (0..image.dim(0)? + longest).map(|token| if token < real { 0.0 } else { f32::NEG_INFINITY }),
            );
        }
        let x = Tensor::stack(&rows, 0)?;
        let tokens = x.dim(1)?;
        let mask = Tensor::from_vec(masks, (asks.len(), 1, 1, tokens), &self.place.device)?;
        let x = x.broadcast_add(&self.encoder.positions.narrow(0, 0, tokens)?)?;
        let mut x = self.encoder.norm.forward(&x)?;
        for layer in &self.encoder.layers {
            let (keys, values) = layer.attention.keys_values(&x)?;
            let mixed = layer.attention.forward(&x, &keys, &values, Some(&mask))?;
            x = layer.norm.forward(&(x + mixed)?)?;
            x = layer.mlp.forward(&x)?;
        }
        let cross =
            self.decoder.layers.iter().map(|layer| layer.cross.keys_values(&x)).collect::<Result<_>>()?;
        Ok(State { rows: asks.len(), mask, cross, own: Vec::new() })
    }

    pub(super) fn step(&self, state: &mut State, position: usize, tokens: &[u32]) -> Result<Tensor> {
        let x = self.embed(tokens)?.broadcast_add(&self.decoder.positions.narrow(0, position, 1)?)?;
        let mut x = self.decoder.norm.forward(&x.unsqueeze(1)?)?;
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            let (key, value) = layer.attention.keys_values(&x)?;
            if state.own.len() == index {
                state.own.push((room_for(&key, ROOM)?, room_for(&value, ROOM)?));
            }
            let own = &mut state.own[index];
            if own.0.dim(2)? == position {
                let larger = |old: &Tensor| {
                    let room = room_for(old, 2 * position)?;
                    room.slice_set(&old.contiguous()?, 2, 0)?;
                    Ok::<_, candle_core::Error>(room)
                };
                *own = (larger(&own.0)?, larger(&own.1)?);
            }
            own.0.slice_set(&key.contiguous()?, 2, position)?;
            own.1.slice_set(&value.contiguous()?, 2, position)?;
            let (keys, values) = (own.0.narrow(2, 0, position + 1)?, own.1.narrow(2, 0, position + 1)?);
            let mixed = layer.attention.forward(&x, &keys, &values, None)?;
            x = layer.norm.forward(&(x + mixed)?)?;
            let (keys, values) = &state.cross[index];
            let mixed = layer.cross.forward(&x, keys, values, Some(&state.mask))?;
            x = layer.cross_norm.forward(&(x + mixed)?)?;
            x = layer.mlp.forward(&x)?;
        }
        let logits = x.squeeze(1)?.matmul(&self.embeddings.t()?)?;
        match &self.logits_bias {
            Some(bias) => logits.broadcast_add(bias),
            None => Ok(logits),
        }
    }

    fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        let ids = Tensor::new(tokens, &self.place.device)?;
        let x = self.embeddings.index_select(&ids, 0)?;
        if self.scale == 1.0 { Ok(x) } else { x * self.scale }
    }
}

/// Zeros like `[rows, heads, _, width]`, with room for so many tokens.
fn room_for(like: &Tensor, room: usize) -> Result<Tensor> {
    let (rows, heads, _, width) = like.dims4()?;
    Tensor::zeros((rows, heads, room, width), like.dtype(), like.device())
}

impl<L> Stack<L> {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        config: StackConfig,
        place: &Place,
        layer: impl Fn(&Weights, &str) -> std::result::Result<L, LoadError>,
    ) -> std::result::Result<Self, LoadError> {
        let name = format!("model.language_model.{name}");
        let positions = weights.positions(&format!("{name}.embed_positions.weight"), width)?;
        let shape = [positions.len() / width, width];
        let positions = place.put(positions, &shape).map_err(LoadError::Candle)?;
        let norm = Norm::load(weights, &format!("{name}.layernorm_embedding"), width, place)?;
        let layers = (0..config.layers).map(|index| layer(weights, &format!("{name}.layers.{index}")));
        Ok(Self { positions, norm, layers: layers.collect::<std::result::Result<_, _>>()? })
    }
}

impl Projections {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        heads: usize,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        let square = |part: &str| Linear::load(weights, &format!("{name}.{part}"), width, width, true, place);
        Ok(Self {
            query: square("q_proj")?,
            key: square("k_proj")?,
            value: square("v_proj")?,
            out: square("out_proj")?,
            heads,
        })
    }

    /// `[rows, tokens, width]` to `[rows, heads, tokens, width / heads]`.
    fn split(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, tokens, width) = x.dims3()?;
        x.reshape((rows, tokens, self.heads, width / self.heads))?.transpose(1, 2)?.contiguous()
    }

    fn keys_values(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.split(&self.key.forward(x)?)?, self.split(&self.value.forward(x)?)?))
    }

    fn forward(&self, x: &Tensor, keys: &Tensor, values: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let queries = self.split(&self.query.forward(x)?)?;
        let scale = (queries.dim(3)? as f64).powf(-0.5);
        let mixed = attention(&queries, keys, values, scale, mask)?;
        self.out.forward(&mixed.transpose(1, 2)?.contiguous()?.flatten_from(2)?)
    }
}

impl Mlp {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        hidden: usize,
        place: &Place,
    ) -> std::result::Result<Self, LoadError> {
        Ok(Self {
            inner: Linear::load(weights, &format!("{name}.fc1"), hidden, width, true, place)?,
            outer: Linear::load(weights, &format!("{name}.fc2"), width, hidden, true, place)?,
            norm: Norm::load(weights, &format!("{name}.final_layer_norm"), width, place)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.inner.forward(x)?.gelu_erf()?;
        self.norm.forward(&(x + self.outer.forward(&hidden)?)?)
    }
}
