//! The language model (BART): an encoder over image tokens and prompt, and a decoder that is fed a token at a time.
//!
//! Rows of a batch lie one behind the other without padding: a product sees them all at once, attention sees each by
//! itself. So nothing has to be masked.

use std::sync::Arc;

use rayon::prelude::*;

use super::layers::{Linear, Norm, Workspace, block, in_order, read_rows, room};
use crate::config::{StackConfig, TextConfig};
use crate::error::LoadError;
use crate::weights::{LOGITS_BIAS, Weights};
use florence2_kernels::{self as kernels, Attention, PackedHead, Precision, Rows, SLOTS};

#[derive(Debug)]
pub(super) struct Text {
    width: usize,
    scale: f32,
    /// Embeds tokens, and gives the logits.
    embeddings: Linear,
    encoder: Stack<EncoderLayer>,
    decoder: Stack<DecoderLayer>,
}

#[derive(Debug)]
struct Stack<L> {
    heads: usize,
    /// `[positions][width]`, without the two rows that BART leaves unused in front.
    positions: Vec<f32>,
    norm: Norm,
    layers: Vec<L>,
}

#[derive(Debug)]
struct EncoderLayer {
    qkv: Linear,
    out: Linear,
    attention_norm: Norm,
    mlp: Mlp,
}

#[derive(Debug)]
struct DecoderLayer {
    qkv: Linear,
    out: Linear,
    attention_norm: Norm,
    cross_query: Linear,
    cross_kv: Linear,
    cross_out: Linear,
    cross_norm: Norm,
    mlp: Mlp,
}

#[derive(Debug)]
struct Mlp {
    inner: Linear,
    outer: Linear,
    norm: Norm,
}

/// What the decoder looks up of one encoded prompt: for each layer and head, keys and values.
#[derive(Debug)]
pub(crate) struct Cross {
    layers: Vec<Vec<PackedHead>>,
}

/// One sequence that is being decoded.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    cross: Arc<Cross>,
    /// Keys and values of what was decoded, [`SLOTS`] tokens a page. Rows that have a beginning in common share its
    /// pages; a page is copied when one of them writes to it.
    pages: Vec<Arc<Page>>,
}

#[derive(Clone, Debug)]
struct Page {
    /// `[layers][width][SLOTS]`
    keys: Vec<f32>,
    /// `[layers][SLOTS][width]`
    values: Vec<f32>,
}

impl Text {
    pub(super) fn load(
        weights: &Weights,
        config: &TextConfig,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let &TextConfig { vocabulary, width, encoder, decoder, embedding_scale: scale, .. } = config;
        let matrix = weights.embeddings(&[vocabulary, width])?;
        let bias = if weights.holds(LOGITS_BIAS) {
            let bias = weights.tensor(LOGITS_BIAS, &[1, vocabulary])?;
            bias.iter().any(|&x| x != 0.0).then_some(bias)
        } else {
            None
        };
        let embeddings = Linear::new(read_rows(&[matrix], vocabulary, width, precision)?, bias);
        Ok(Self {
            width,
            scale,
            embeddings,
            encoder: Stack::load(weights, "encoder", width, encoder, |weights, name| {
                EncoderLayer::load(weights, name, width, encoder.hidden, precision)
            })?,
            decoder: Stack::load(weights, "decoder", width, decoder, |weights, name| {
                DecoderLayer::load(weights, name, width, decoder.hidden, precision)
            })?,
        })
    }

    /// Positions of the encoder and of the decoder.
    pub(super) fn positions(&self) -> (usize, usize) {
        (self.encoder.positions.len() / self.width, self.decoder.positions.len() / self.width)
    }

    /// Encodes each ask, the image tokens first, and prepares what the decoder looks up.
    pub(super) fn encode(&self, asks: &[(&[f32], &[u32])]) -> Vec<Row> {
        let width = self.width;
        let lengths: Vec<usize> =
            asks.iter().map(|(image, prompt)| image.len() / width + prompt.len()).collect();
        let mut x = vec![0.0; lengths.iter().sum::<usize>() * width];
        let mut rest = x.as_mut_slice();
        for (&(image, prompt), &length) in asks.iter().zip(&lengths) {
            let (own, behind) = rest.split_at_mut(length * width);
            rest = behind;
            own[..image.len()].copy_from_slice(image);
            for (row, &token) in own[image.len()..].chunks_exact_mut(width).zip(prompt) {
                self.embed(token, row);
            }
            kernels::add(&self.encoder.positions[..own.len()], own);
        }
        self.encoder.norm.apply_in_place(&mut x);
        for layer in &self.encoder.layers {
            layer.forward(&mut x, &lengths, self.encoder.heads);
        }
        let head = width / self.decoder.heads;
        let mut crosses: Vec<Cross> = lengths.iter().map(|_| Cross { layers: Vec::new() }).collect();
        let mut kv = vec![0.0; 2 * x.len()];
        for layer in &self.decoder.layers {
            layer.cross_kv.forward(&x, &mut kv, false);
            let mut rest = kv.as_slice();
            for (cross, &length) in crosses.iter_mut().zip(&lengths) {
                let (own, behind) = rest.split_at(length * 2 * width);
                rest = behind;
                let part = |first: usize| Rows { data: &own[first..], rows: length, stride: 2 * width };
                let heads = (0..self.decoder.heads).into_par_iter();
                cross
                    .layers
                    .push(heads.map(|index| PackedHead::new(part(0), part(width), index, head)).collect());
            }
        }
        crosses.into_iter().map(|cross| Row { cross: Arc::new(cross), pages: Vec::new() }).collect()
    }

    /// Feeds a token to each row, all of which have seen `position` tokens, and writes their logits.
    pub(super) fn step(&self, rows: &mut [Row], position: usize, tokens: &[u32], logits: &mut [f32]) {
        let width = self.width;
        let mut x = vec![0.0; rows.len() * width];
        for ((x, &token), row) in x.chunks_exact_mut(width).zip(tokens).zip(rows.iter_mut()) {
            self.embed(token, x);
            kernels::add(&self.decoder.positions[position * width..][..width], x);
            if position.is_multiple_of(SLOTS) {
                let room = self.decoder.layers.len() * width * SLOTS;
                row.pages.push(Arc::new(Page { keys: vec![0.0; room], values: vec![0.0; room] }));
            }
        }
        self.decoder.norm.apply_in_place(&mut x);
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            layer.step(index, &mut x, rows, position, self.decoder.heads);
        }
        self.embeddings.forward(&x, logits, false);
    }

    fn embed(&self, token: u32, out: &mut [f32]) {
        self.embeddings.weight().row(token as usize, out);
        if self.scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= self.scale);
        }
    }
}

impl<L: Send> Stack<L> {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        config: StackConfig,
        layer: impl Fn(&Weights, &str) -> Result<L, LoadError> + Sync,
    ) -> Result<Self, LoadError> {
        let name = format!("model.language_model.{name}");
        let positions = weights.positions(&format!("{name}.embed_positions.weight"), width)?;
        let norm = Norm::load(weights, &format!("{name}.layernorm_embedding"), width)?;
        let layers = (0..config.layers).into_par_iter();
        let layers = layers.map(|index| layer(weights, &format!("{name}.layers.{index}")));
        Ok(Self { heads: config.heads, positions, norm, layers: in_order(layers)? })
    }
}

fn load_qkv(weights: &Weights, name: &str, width: usize, precision: Precision) -> Result<Linear, LoadError> {
    let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.self_attn.{part}"));
    Linear::join(weights, &[&q, &k, &v], width, width, true, precision)
}

impl EncoderLayer {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        hidden: usize,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            qkv: load_qkv(weights, name, width, precision)?,
            out: Linear::load(weights, &format!("{name}.self_attn.out_proj"), width, width, true, precision)?,
            attention_norm: Norm::load(weights, &format!("{name}.self_attn_layer_norm"), width)?,
            mlp: Mlp::load(weights, name, width, hidden, precision)?,
        })
    }

    fn forward(&self, x: &mut [f32], lengths: &[usize], heads: usize) {
        let width = self.out.outputs();
        let head = width / heads;
        let mut qkv = vec![0.0; 3 * x.len()];
        self.qkv.forward(x, &mut qkv, false);
        // One task is one head of one sequence: its result, head after head, is gathered behind.
        let mut parts = vec![0.0; x.len()];
        let mut tasks = Vec::with_capacity(lengths.len() * heads);
        let (mut rest, mut begin) = (parts.as_mut_slice(), 0);
        for &length in lengths {
            for index in 0..heads {
                let (part, behind) = rest.split_at_mut(length * head);
                rest = behind;
                tasks.push((part, begin, length, index));
            }
            begin += length;
        }
        tasks.into_par_iter().for_each_init(Workspace::default, |work, (part, begin, length, index)| {
            let own = &qkv[begin * 3 * width..][..length * 3 * width];
            let columns =
                |first: usize| Rows { data: &own[first + index * head..], rows: length, stride: 3 * width };
            let scale = (head as f32).powf(-0.5);
            let attention = Attention {
                queries: columns(0),
                keys: columns(width),
                values: columns(2 * width),
                width: head,
                scale,
            };
            attention.head(0, part, head, &mut work.scratch);
        });
        let mut mixed = qkv;
        mixed.truncate(x.len());
        let (mut parts, mut mixed_rest) = (parts.as_slice(), mixed.as_mut_slice());
        for &length in lengths {
            let (own, behind) = mixed_rest.split_at_mut(length * width);
            mixed_rest = behind;
            let (part, behind) = parts.split_at(length * width);
            parts = behind;
            for (index, part) in part.chunks_exact(length * head).enumerate() {
                for (row, part) in own.chunks_exact_mut(width).zip(part.chunks_exact(head)) {
                    row[index * head..][..head].copy_from_slice(part);
                }
            }
        }
        self.out.forward(&mixed, x, true);
        self.attention_norm.apply_in_place(x);
        self.mlp.forward(x);
    }
}

impl DecoderLayer {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        hidden: usize,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let [k, v] = ["k_proj", "v_proj"].map(|part| format!("{name}.encoder_attn.{part}"));
        let square =
            |part: &str| Linear::load(weights, &format!("{name}.{part}"), width, width, true, precision);
        let out = square("self_attn.out_proj")?;
        let cross_query = square("encoder_attn.q_proj")?;
        let cross_out = square("encoder_attn.out_proj")?;
        Ok(Self {
            qkv: load_qkv(weights, name, width, precision)?,
            out,
            attention_norm: Norm::load(weights, &format!("{name}.self_attn_layer_norm"), width)?,
            cross_query,
            cross_kv: Linear::join(weights, &[&k, &v], width, width, true, precision)?,
            cross_out,
            cross_norm: Norm::load(weights, &format!("{name}.encoder_attn_layer_norm"), width)?,
            mlp: Mlp::load(weights, name, width, hidden, precision)?,
        })
    }

    fn step(&self, layer: usize, x: &mut [f32], rows: &mut [Row], position: usize, heads: usize) {
        let width = self.out.outputs();
        let head = width / heads;
        let scale = (head as f32).powf(-0.5);

        let mut qkv = vec![0.0; 3 * x.len()];
        self.qkv.forward(x, &mut qkv, false);
        for (row, qkv) in rows.iter_mut().zip(qkv.chunks_exact(3 * width)) {
            if let Some(page) = row.pages.last_mut() {
                Arc::make_mut(page).write(layer, position % SLOTS, &qkv[width..2 * width], &qkv[2 * width..]);
            }
        }
        let mut mixed = vec![0.0; x.len()];
        let shared: &[Row] = rows;
        let one = |work: &mut Workspace, index: usize, out: &mut [f32]| {
            let (row, first) = (index / heads, index % heads * head);
            let query = &qkv[row * 3 * width + first..][..head];
            let pages = shared[row].pages.iter().map(|page| page.head(layer, width, first, head));
            kernels::attend_pages(query, pages, position + 1, width, scale, out, &mut work.a);
        };
        // Threads cost more than they bring while there is little to attend to.
        if position * rows.len() < 64 {
            let work = &mut Workspace::default();
            mixed.chunks_exact_mut(head).enumerate().for_each(|(index, out)| one(work, index, out));
        } else {
            let tasks = mixed.par_chunks_exact_mut(head).enumerate();
            tasks.for_each_init(Workspace::default, |work, (index, out)| one(work, index, out));
        }
        self.out.forward(&mixed, x, true);
        self.attention_norm.apply_in_place(x);

        let mut queries = vec![0.0; x.len()];
        self.cross_query.forward(x, &mut queries, false);
        // Neighbouring rows of the same ask, as the beams of a search are, look up together.
        let mut parts = vec![0.0; x.len()];
        let mut tasks = Vec::new();
        let (mut rest, mut begin) = (parts.as_mut_slice(), 0);
        for run in rows.chunk_by(|a, b| Arc::ptr_eq(&a.cross, &b.cross)) {
            for (index, packed) in run[0].cross.layers[layer].iter().enumerate() {
                let (part, behind) = rest.split_at_mut(run.len() * head);
                rest = behind;
                let data = &queries[begin * width + index * head..];
                tasks.push((packed, Rows { data, rows: run.len(), stride: width }, part));
            }
            begin += run.len();
        }
        tasks.into_par_iter().for_each_init(Workspace::default, |work, (packed, queries, part)| {
            packed.attend(queries, scale, part, &mut work.scratch);
        });
        let (mut parts, mut begin) = (parts.as_slice(), 0);
        for run in rows.chunk_by(|a, b| Arc::ptr_eq(&a.cross, &b.cross)) {
            for index in 0..heads {
                let (part, behind) = parts.split_at(run.len() * head);
                parts = behind;
                for (row, part) in part.chunks_exact(head).enumerate() {
                    mixed[(begin + row) * width + index * head..][..head].copy_from_slice(part);
                }
            }
            begin += run.len();
        }
        self.cross_out.forward(&mixed, x, true);
        self.cross_norm.apply_in_place(x);
        self.mlp.forward(x);
    }
}

impl Page {
    fn write(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let width = key.len();
        let keys = &mut self.keys[layer * width * SLOTS..][..width * SLOTS];
        for (keys, &key) in keys.chunks_exact_mut(SLOTS).zip(key) {
            keys[slot] = key;
        }
        self.values[(layer * SLOTS + slot) * width..][..width].copy_from_slice(value);
    }

    /// Keys `[head][SLOTS]`, and values with `width` numbers from one to the next.
    fn head(&self, layer: usize, width: usize, first: usize, head: usize) -> (&[f32], &[f32]) {
        let keys = &self.keys[(layer * width + first) * SLOTS..][..head * SLOTS];
        let values = &self.values[layer * width * SLOTS + first..(layer + 1) * width * SLOTS];
        (keys, values)
    }
}

impl Mlp {
    fn load(
        weights: &Weights,
        name: &str,
        width: usize,
        hidden: usize,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            inner: Linear::load(weights, &format!("{name}.fc1"), hidden, width, true, precision)?,
            outer: Linear::load(weights, &format!("{name}.fc2"), width, hidden, true, precision)?,
            norm: Norm::load(weights, &format!("{name}.final_layer_norm"), width)?,
        })
    }

    fn forward(&self, x: &mut [f32]) {
        let (width, hidden) = (self.outer.outputs(), self.inner.outputs());
        let rows = x.len() / width;
        if rows >= super::layers::FEW {
            x.par_chunks_mut(block(rows) * width).for_each_init(Workspace::default, |work, x| {
                let inner = room(&mut work.a, x.len() / width * hidden);
                self.inner.apply(Rows::new(x, width), inner, false, &mut work.scratch);
                kernels::gelu(inner);
                self.outer.apply(Rows::new(inner, hidden), x, true, &mut work.scratch);
                self.norm.apply_in_place(x);
            });
            return;
        }
        let mut inner = vec![0.0; rows * hidden];
        self.inner.forward(x, &mut inner, false);
        kernels::gelu(&mut inner);
        self.outer.forward(&inner, x, true);
        self.norm.apply_in_place(x);
    }
}
