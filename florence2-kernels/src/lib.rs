//! The arithmetic of Florence-2 on a processor: matrix products over packed weights, and what stands between them.
//!
//! Shared by the backends of `florence2`, and made for them: the interface may change with every version.
//!
//! Every kernel but [`Packed::new`] and [`Packed::read`] runs on one thread over the rows that it is given, compiled for each
//! instruction set that `pulp` knows and chosen when it is called. What a row comes to does not depend on the rows beside it, nor on how many there are:
//! that is why an answer in a batch is, to the bit, the answer alone.

#![forbid(unsafe_code)]

use core::convert::Infallible;
use core::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Columns of a panel of packed weights.
pub const PANEL: usize = 16;
/// Rows that are multiplied with a panel at once: as many as the registers of AVX2 hold sums for.
const TILE: usize = 6;
/// Depth of the part of a panel that stays in the first-level cache while rows go by.
const DEPTH: usize = 384;

/// How a matrix of weights is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As `f32`.
    F32,
    /// As `f16`.
    F16,
    /// As `bf16`.
    Bf16,
}

/// A matrix of `outputs × inputs` weights, cut into panels of sixteen outputs: `[outputs / 16][inputs][16]`, with zeros
/// where outputs are missing. Read from front to end by a product, whatever the number of rows.
#[derive(Debug)]
pub struct Packed {
    inputs: usize,
    outputs: usize,
    panels: Panels,
}

#[derive(Debug)]
enum Panels {
    F32(Vec<[f32; PANEL]>),
    F16(Vec<[f16; PANEL]>),
    Bf16(Vec<[bf16; PANEL]>),
}

impl Packed {
    /// From `outputs × inputs` numbers, row-major, as a linear layer stores its weights.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    pub fn new(weights: &[f32], outputs: usize, inputs: usize, precision: Precision) -> Self {
        assert_eq!(weights.len(), outputs * inputs);
        let copied = Self::read(outputs, inputs, precision, |rows, out| {
            out.copy_from_slice(&weights[rows.start * inputs..rows.end * inputs]);
            Ok::<_, Infallible>(())
        });
        copied.unwrap_or_else(|never| match never {})
    }

    /// The same, of rows that are read when they are packed, and then not a second time. Several threads read.
    ///
    /// # Errors
    ///
    /// What `rows` returns.
    pub fn read<E: Send>(
        outputs: usize,
        inputs: usize,
        precision: Precision,
        rows: impl Fn(Range<usize>, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let panels = match precision {
            Precision::F32 => Panels::F32(pack(outputs, inputs, rows, |x| x)?),
            Precision::F16 => Panels::F16(pack(outputs, inputs, rows, f16::from_f32)?),
            Precision::Bf16 => Panels::Bf16(pack(outputs, inputs, rows, bf16::from_f32)?),
        };
        Ok(Self { inputs, outputs, panels })
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The weights of one output, as an embedding looks them up.
    ///
    /// # Panics
    ///
    /// If there is no such output, or `out` has not as many numbers as there are inputs.
    pub fn row(&self, output: usize, out: &mut [f32]) {
        assert!(output < self.outputs && out.len() == self.inputs);
        fn copy<T: Stored>(panel: &[[T; PANEL]], column: usize, out: &mut [f32]) {
            for (out, values) in out.iter_mut().zip(panel) {
                *out = values[column].widen();
            }
        }
        let (panel, column) = (output / PANEL, output % PANEL);
        let range = panel * self.inputs..(panel + 1) * self.inputs;
        match &self.panels {
            Panels::F32(panels) => copy(&panels[range], column, out),
            Panels::F16(panels) => copy(&panels[range], column, out),
            Panels::Bf16(panels) => copy(&panels[range], column, out),
        }
    }
}

fn pack<T: Stored, E: Send>(
    outputs: usize,
    inputs: usize,
    rows: impl Fn(Range<usize>, &mut [f32]) -> Result<(), E> + Sync,
    narrow: fn(f32) -> T,
) -> Result<Vec<[T; PANEL]>, E> {
    let mut panels = vec![[T::zeroed(); PANEL]; outputs.div_ceil(PANEL) * inputs];
    let packed =
        panels.par_chunks_mut(inputs.max(1)).enumerate().map_init(Vec::new, |room, (index, panel)| {
            let begin = index * PANEL;
            let columns = PANEL.min(outputs - begin);
            room.resize(columns * inputs, 0.0);
            rows(begin..begin + columns, room)?;
            // Sixteen inputs at a time, which is as much as is written to at once.
            for (block, panel) in panel.chunks_mut(PANEL).enumerate() {
                for column in 0..columns {
                    let row = &room[column * inputs + block * PANEL..][..panel.len()];
                    for (values, &weight) in panel.iter_mut().zip(row) {
                        values[column] = narrow(weight);
                    }
                }
            }
            Ok(())
        });
    packed.find_map_first(Result::err).map_or(Ok(panels), Err)
}

/// A number as it is stored, widened to `f32` where it is used.
trait Stored: Pod + Send + Sync {
    fn widen(self) -> f32;

    /// A panel that many rows are multiplied with: widened once for all of them, in `room` if need be.
    #[inline(always)]
    fn widen_panel<'a>(panel: &'a [[Self; PANEL]], room: &'a mut Vec<[f32; PANEL]>) -> &'a [[f32; PANEL]] {
        room.clear();
        room.extend(panel.iter().map(|values| values.map(Self::widen)));
        room
    }
}

impl Stored for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn widen_panel<'a>(panel: &'a [[f32; PANEL]], _: &'a mut Vec<[f32; PANEL]>) -> &'a [[f32; PANEL]] {
        panel
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Stored for f16 {
    // `half`'s own conversion asks for the processor's features at each number. This one becomes a few vector
    // instructions: the bits are moved to where `f32` has them, and the exponent's bias is made up for by a product,
    // which is exact, subnormal numbers included. Weights are finite, which loading checks.
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
    }
}

/// What a product is multiplied with: packed weights, or an operand that was packed for the occasion.
#[derive(Clone, Copy)]
enum Operand<'a> {
    F32(&'a [[f32; PANEL]]),
    F16(&'a [[f16; PANEL]]),
    Bf16(&'a [[bf16; PANEL]]),
}

/// What a kernel needs room for. One for each thread, reused.
#[derive(Debug, Default)]
pub struct Scratch {
    rows: Vec<[f32; TILE]>,
    panel: Vec<[f32; PANEL]>,
    keys: Vec<[f32; PANEL]>,
    values: Vec<[f32; PANEL]>,
    scores: Vec<f32>,
}

/// A matrix within a slice: `rows` rows of `stride` numbers.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The slice; the first row begins with it.
    pub data: &'a [f32],
    /// How many there are.
    pub rows: usize,
    /// From the beginning of a row to that of the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows that lie one behind the other.
    pub fn new(data: &'a [f32], width: usize) -> Self {
        Self { data, rows: data.len() / width, stride: width }
    }
}

/// Where a product goes.
#[derive(Debug)]
pub struct Out<'a> {
    /// The slice; the first row begins with it.
    pub data: &'a mut [f32],
    /// From the beginning of a row to that of the next.
    pub stride: usize,
    /// Adds to what is there, instead of replacing it.
    pub add: bool,
}

/// `out (+)= left · weightsᵀ + bias`, for the rows of `left`.
pub fn product(left: Rows<'_>, weights: &Packed, bias: Option<&[f32]>, out: Out<'_>, scratch: &mut Scratch) {
    product_of_panels(left, weights, 0..weights.outputs.div_ceil(PANEL), bias, out, scratch);
}

/// As [`product`], for the outputs of some panels only, which are the columns of `out` and `bias` then.
pub fn product_of_panels(
    left: Rows<'_>,
    weights: &Packed,
    panels: Range<usize>,
    bias: Option<&[f32]>,
    out: Out<'_>,
    scratch: &mut Scratch,
) {
    let depth = weights.inputs;
    let columns = weights.outputs.min(panels.end * PANEL) - panels.start * PANEL;
    let range = panels.start * depth..panels.end * depth;
    let operand = match &weights.panels {
        Panels::F32(panels) => Operand::F32(&panels[range]),
        Panels::F16(panels) => Operand::F16(&panels[range]),
        Panels::Bf16(panels) => Operand::Bf16(&panels[range]),
    };
    multiply(left, operand, Shape { depth, columns }, bias, out, &mut scratch.rows, &mut scratch.panel);
}

#[derive(Clone, Copy)]
struct Shape {
    depth: usize,
    columns: usize,
}

fn multiply(
    left: Rows<'_>,
    right: Operand<'_>,
    shape: Shape,
    bias: Option<&[f32]>,
    out: Out<'_>,
    rows: &mut Vec<[f32; TILE]>,
    panel: &mut Vec<[f32; PANEL]>,
) {
    match right {
        Operand::F32(right) => Arch::new().dispatch(Multiply { left, right, shape, bias, out, rows, panel }),
        Operand::F16(right) => Arch::new().dispatch(Multiply { left, right, shape, bias, out, rows, panel }),
        Operand::Bf16(right) => Arch::new().dispatch(Multiply { left, right, shape, bias, out, rows, panel }),
    }
}

struct Multiply<'a, T> {
    left: Rows<'a>,
    right: &'a [[T; PANEL]],
    shape: Shape,
    bias: Option<&'a [f32]>,
    out: Out<'a>,
    rows: &'a mut Vec<[f32; TILE]>,
    panel: &'a mut Vec<[f32; PANEL]>,
}

impl<T: Stored> WithSimd for Multiply<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.run::<S, 1>(simd),
            8 => self.run::<S, 2>(simd),
            4 => self.run::<S, 4>(simd),
            _ => self.run::<S, PANEL>(simd),
        }
    }
}

impl<T: Stored> Multiply<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S) {
        let Self { left, right, shape: Shape { depth, columns }, bias, out, rows, panel: widened } = self;
        if left.rows == 0 || columns == 0 {
            return;
        }
        if depth == 0 {
            for row in out.data.chunks_mut(out.stride).take(left.rows) {
                for column in 0..columns {
                    let kept = if out.add { row[column] } else { 0.0 };
                    row[column] = kept + bias.map_or(0.0, |bias| bias[column]);
                }
            }
            return;
        }
        // A tall product keeps a part of a panel in the cache while all rows go by; for a handful of rows, the
        // weights are read once anyway.
        let step = if left.rows <= TILE { depth } else { DEPTH };
        for begin in (0..depth).step_by(step) {
            let part = step.min(depth - begin);
            pack_rows(left, begin, part, rows);
            for (index, panel) in right.chunks_exact(depth).enumerate() {
                let panel = &panel[begin..begin + part];
                let first = index * PANEL;
                let width = PANEL.min(columns - first);
                let mut initial = [0.0; PANEL];
                if begin == 0
                    && let Some(bias) = bias
                {
                    initial[..width].copy_from_slice(&bias[first..first + width]);
                }
                let mut tile = Tile {
                    out: &mut out.data[first..],
                    stride: out.stride,
                    width,
                    initial,
                    keep: begin > 0 || out.add,
                };
                if left.rows <= TILE {
                    // Fewer sums for fewer rows: a product with one row waits for memory only.
                    match left.rows {
                        1 => tile.accumulate::<S, T, V, 1>(simd, rows, panel, 1),
                        2 => tile.accumulate::<S, T, V, 2>(simd, rows, panel, 2),
                        3 => tile.accumulate::<S, T, V, 3>(simd, rows, panel, 3),
                        count => tile.accumulate::<S, T, V, TILE>(simd, rows, panel, count),
                    }
                    continue;
                }
                let panel = T::widen_panel(panel, widened);
                for (index, rows) in rows.chunks_exact(part).enumerate() {
                    if index > 0 {
                        tile.out = &mut core::mem::take(&mut tile.out)[TILE * out.stride..];
                    }
                    let count = TILE.min(left.rows - index * TILE);
                    tile.accumulate::<S, f32, V, TILE>(simd, rows, panel, count);
                }
            }
        }
    }
}

/// A few rows and sixteen columns of a product.
struct Tile<'a> {
    /// From the tile's first number on.
    out: &'a mut [f32],
    stride: usize,
    /// Columns that there are.
    width: usize,
    /// What sums begin with, beside what is there.
    initial: [f32; PANEL],
    /// Whether they begin with what is there.
    keep: bool,
}

impl Tile<'_> {
    /// `out[r][c] = initial + Σ rows[·][r] × panel[·][c]`, for the first `count` of `R` rows.
    #[inline(always)]
    fn accumulate<S: Simd, T: Stored, const V: usize, const R: usize>(
        &mut self,
        simd: S,
        rows: &[[f32; TILE]],
        panel: &[[T; PANEL]],
        count: usize,
    ) {
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        for (r, sums) in sums.iter_mut().enumerate().take(count) {
            let mut initial = self.initial;
            if self.keep {
                let old = &self.out[r * self.stride..];
                match old.first_chunk::<PANEL>() {
                    Some(old) if self.width == PANEL => {
                        for (initial, old) in initial.iter_mut().zip(old) {
                            *initial += old;
                        }
                    }
                    _ => {
                        for (initial, old) in initial.iter_mut().zip(&old[..self.width]) {
                            *initial += old;
                        }
                    }
                }
            }
            *sums = bytemuck::cast(initial);
        }
        for (row, panel) in rows.iter().zip(panel) {
            let panel: [S::f32s; V] = bytemuck::cast(panel.map(T::widen));
            for r in 0..R {
                let value = simd.splat_f32s(row[r]);
                for v in 0..V {
                    sums[r][v] = simd.mul_add_e_f32s(value, panel[v], sums[r][v]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate().take(count) {
            let sums: [f32; PANEL] = bytemuck::cast(*sums);
            let out = &mut self.out[r * self.stride..];
            match out.first_chunk_mut::<PANEL>() {
                Some(out) if self.width == PANEL => *out = sums,
                _ => out[..self.width].copy_from_slice(&sums[..self.width]),
            }
        }
    }
}

/// Six rows side by side, for each step of the depth; zeros for rows that there are not.
#[inline(always)]
fn pack_rows(left: Rows<'_>, begin: usize, part: usize, packed: &mut Vec<[f32; TILE]>) {
    packed.clear();
    packed.resize(left.rows.div_ceil(TILE) * part, [0.0; TILE]);
    for (index, tile) in packed.chunks_exact_mut(part).enumerate() {
        for lane in 0..TILE.min(left.rows - index * TILE) {
            let row = &left.data[(index * TILE + lane) * left.stride + begin..][..part];
            for (values, &value) in tile.iter_mut().zip(row) {
                values[lane] = value;
            }
        }
    }
}

/// Attention of some rows of queries to keys and values, one head after the other.
#[derive(Debug)]
pub struct Attention<'a> {
    /// A row for each query.
    pub queries: Rows<'a>,
    /// A row for each token that is attended to.
    pub keys: Rows<'a>,
    /// As many as there are keys.
    pub values: Rows<'a>,
    /// Width of a head: a head's numbers lie side by side in each row.
    pub width: usize,
    /// What scores are multiplied with.
    pub scale: f32,
}

impl Attention<'_> {
    /// Writes `softmax(scale · queries · keysᵀ) · values` of one head into that head's columns of `out`.
    pub fn head(&self, head: usize, out: &mut [f32], stride: usize, scratch: &mut Scratch) {
        let Self { queries, keys, values, width, scale } = *self;
        let first = head * width;
        pack_keys(keys, first, width, &mut scratch.keys);
        pack_values(values, first, width, &mut scratch.values);
        let Scratch { rows, panel, keys: packed_keys, values: packed_values, scores } = scratch;
        attend(
            Rows { data: &queries.data[first..], ..queries },
            (packed_keys, packed_values),
            Shape { depth: width, columns: keys.rows },
            scale,
            Out { data: &mut out[first..], stride, add: false },
            scores,
            (rows, panel),
        );
    }
}

/// `softmax(scale · queries · keysᵀ) · values` for keys and values that are packed: `shape` is the width of a head, and
/// the number of tokens.
fn attend(
    queries: Rows<'_>,
    (keys, values): (&[[f32; PANEL]], &[[f32; PANEL]]),
    shape: Shape,
    scale: f32,
    out: Out<'_>,
    scores: &mut Vec<f32>,
    (rows, panel): (&mut Vec<[f32; TILE]>, &mut Vec<[f32; PANEL]>),
) {
    let Shape { depth: width, columns: tokens } = shape;
    scores.clear();
    scores.resize(queries.rows * tokens, 0.0);
    let weights = Out { data: scores, stride: tokens, add: false };
    multiply(queries, Operand::F32(keys), shape, None, weights, rows, panel);
    softmax(scores, tokens, scale);
    let weights = Rows { data: scores, rows: queries.rows, stride: tokens };
    multiply(weights, Operand::F32(values), Shape { depth: tokens, columns: width }, None, out, rows, panel);
}

/// A head's keys as the right side of a product: `[tokens / 16][width][16]`.
fn pack_keys(keys: Rows<'_>, first: usize, width: usize, packed: &mut Vec<[f32; PANEL]>) {
    packed.clear();
    packed.resize(keys.rows.div_ceil(PANEL) * width, [0.0; PANEL]);
    for (index, panel) in packed.chunks_exact_mut(width).enumerate() {
        for column in 0..PANEL.min(keys.rows - index * PANEL) {
            let key = &keys.data[(index * PANEL + column) * keys.stride + first..][..width];
            for (values, &value) in panel.iter_mut().zip(key) {
                values[column] = value;
            }
        }
    }
}

/// A head's values as the right side of a product: `[width / 16][tokens][16]`.
fn pack_values(values: Rows<'_>, first: usize, width: usize, packed: &mut Vec<[f32; PANEL]>) {
    packed.clear();
    packed.resize(width.div_ceil(PANEL) * values.rows, [0.0; PANEL]);
    for (index, panel) in packed.chunks_exact_mut(values.rows).enumerate() {
        let columns = PANEL.min(width - index * PANEL);
        for (token, packed) in panel.iter_mut().enumerate() {
            let row = &values.data[token * values.stride + first + index * PANEL..][..columns];
            packed[..columns].copy_from_slice(row);
        }
    }
}

/// Keys and values of one head, packed once and asked by many queries.
#[derive(Debug)]
pub struct PackedHead {
    keys: Vec<[f32; PANEL]>,
    values: Vec<[f32; PANEL]>,
    tokens: usize,
    width: usize,
}

impl PackedHead {
    /// Of the head whose columns begin at `head * width`.
    pub fn new(keys: Rows<'_>, values: Rows<'_>, head: usize, width: usize) -> Self {
        let mut packed = Self { keys: Vec::new(), values: Vec::new(), tokens: keys.rows, width };
        pack_keys(keys, head * width, width, &mut packed.keys);
        pack_values(values, head * width, width, &mut packed.values);
        packed
    }

    /// `softmax(scale · queries · keysᵀ) · values`; `queries` begin at the head's columns, `out` is `rows × width`.
    pub fn attend(&self, queries: Rows<'_>, scale: f32, out: &mut [f32], scratch: &mut Scratch) {
        let Scratch { rows, panel, scores, .. } = scratch;
        attend(
            queries,
            (&self.keys, &self.values),
            Shape { depth: self.width, columns: self.tokens },
            scale,
            Out { data: out, stride: self.width, add: false },
            scores,
            (rows, panel),
        );
    }
}

/// Tokens on a page of the decoder's own keys and values.
pub const SLOTS: usize = PANEL;

/// Attention of one query of one head to the first `tokens` tokens of some pages.
///
/// A page has keys `[query][SLOTS]`, and values `stride` numbers apart.
pub fn attend_pages<'a>(
    query: &[f32],
    pages: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
    tokens: usize,
    stride: usize,
    scale: f32,
    out: &mut [f32],
    scores: &mut Vec<f32>,
) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            scores.clear();
            for (keys, _) in pages.clone() {
                let mut sums = [0.0f32; SLOTS];
                for (keys, &query) in keys.as_chunks::<SLOTS>().0.iter().zip(query) {
                    for (sum, &key) in sums.iter_mut().zip(keys) {
                        *sum += query * key;
                    }
                }
                scores.extend_from_slice(&sums);
            }
            scores.truncate(tokens);
            let largest = maximum(scores);
            for score in scores.iter_mut() {
                *score = exp((*score - largest) * scale);
            }
            let inverse = 1.0 / sum(scores, |x| x);
            out.fill(0.0);
            for ((_, values), scores) in pages.zip(scores.chunks(SLOTS)) {
                for (values, &score) in values.chunks(stride).zip(scores) {
                    let weight = score * inverse;
                    for (out, &value) in out.iter_mut().zip(values) {
                        *out += weight * value;
                    }
                }
            }
        },
    );
}

/// `out += leftᵀ · right`, where both have the same number of rows: `left_columns × right_columns` sums.
pub fn product_of_columns(
    left: Rows<'_>,
    left_columns: usize,
    right: Rows<'_>,
    right_columns: usize,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    // The columns of `left` are the rows of the product.
    scratch.scores.clear();
    scratch.scores.resize(left_columns * left.rows, 0.0);
    for (token, row) in left.data.chunks(left.stride).take(left.rows).enumerate() {
        for (column, &value) in row[..left_columns].iter().enumerate() {
            scratch.scores[column * left.rows + token] = value;
        }
    }
    pack_values(right, 0, right_columns, &mut scratch.values);
    multiply(
        Rows { data: &scratch.scores, rows: left_columns, stride: left.rows },
        Operand::F32(&scratch.values),
        Shape { depth: left.rows, columns: right_columns },
        None,
        Out { data: out, stride: right_columns, add: true },
        &mut scratch.rows,
        &mut scratch.panel,
    );
}

/// Normalises each row to mean 0 and variance 1, then scales and shifts its columns.
pub fn layer_norm(input: &[f32], scale: &[f32], shift: &[f32], epsilon: f32, out: &mut [f32]) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for (row, out) in input.chunks_exact(scale.len()).zip(out.chunks_exact_mut(scale.len())) {
                let (mean, inverse) = moments(row, epsilon);
                for (((out, &x), &scale), &shift) in out.iter_mut().zip(row).zip(scale).zip(shift) {
                    *out = (x - mean) * inverse * scale + shift;
                }
            }
        },
    );
}

/// As [`layer_norm`], in place.
pub fn layer_norm_in_place(rows: &mut [f32], scale: &[f32], shift: &[f32], epsilon: f32) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for row in rows.chunks_exact_mut(scale.len()) {
                let (mean, inverse) = moments(row, epsilon);
                for ((x, &scale), &shift) in row.iter_mut().zip(scale).zip(shift) {
                    *x = (*x - mean) * inverse * scale + shift;
                }
            }
        },
    );
}

/// A row's mean, and one over its deviation.
#[inline(always)]
fn moments(row: &[f32], epsilon: f32) -> (f32, f32) {
    let mean = sum(row, |x| x) / row.len() as f32;
    let variance = sum(row, |x| (x - mean) * (x - mean)) / row.len() as f32;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

/// A sum in sixteen lanes, which is how it becomes vector instructions, and more exact than one running sum.
#[inline(always)]
fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (body, tail) = values.as_chunks::<16>();
    for chunk in body {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f(x);
        }
    }
    let mut total = 0.0;
    for lane in lanes {
        total += lane;
    }
    for &x in tail {
        total += f(x);
    }
    total
}

/// The largest value; a lane at a time, like [`sum`].
#[inline(always)]
fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (body, tail) = values.as_chunks::<16>();
    for chunk in body {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    tail.iter().chain(&lanes).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

/// Softmax of each row, after multiplying it by `scale` (more than 0).
pub fn softmax(rows: &mut [f32], width: usize, scale: f32) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for row in rows.chunks_exact_mut(width) {
                let largest = maximum(row);
                for x in row.iter_mut() {
                    *x = exp((*x - largest) * scale);
                }
                let inverse = 1.0 / sum(row, |x| x);
                for x in row.iter_mut() {
                    *x *= inverse;
                }
            }
        },
    );
}

/// `e^x` for `x <= 0`, to 1.2 units in the last place; 0 under -87.3, where the result would be subnormal.
///
/// `x = n·ln 2 + r`: the polynomial is Taylor's, long enough for `|r| <= ln 2 / 2`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: what is added to it is rounded to an integer, which stands in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -87.3 { -87.3 } else { x };
    let shifted = clamped * core::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, the first of few bits, so that n times it is exact.
    let r = (clamped - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    // NaN stays what it is, so that it is found in the logits.
    if x < -87.3 { 0.0 } else { p * power }
}

/// The exact GELU, `x · Φ(x)`, in place; the error is under 3e-7 of `max(1, |x|)`.
pub fn gelu(values: &mut [f32]) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for x in values {
                *x = 0.5 * *x * (1.0 + erf(*x * core::f32::consts::FRAC_1_SQRT_2));
            }
        },
    );
}

/// Abramowitz and Stegun 7.1.26; the absolute error is under 1.5e-7.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152_1;
    p = p * t + 1.421_413_8;
    p = p * t - 0.284_496_72;
    p = p * t + 0.254_829_6;
    let tail = p * t * exp(-x * x);
    (1.0 - tail).copysign(x)
}

/// One pixel of a depthwise 3×3 convolution with its residual: `out = centre + bias + Σ weights · neighbours`.
///
/// `neighbours` are the nine pixels around, row by row, `channels` numbers each; `weights` is `[9][channels]`.
#[inline(always)]
fn depthwise_pixel(neighbours: [&[f32]; 9], weights: &[f32], bias: &[f32], out: &mut [f32]) {
    const LANES: usize = 16;
    let channels = bias.len();
    let (out, tail) = out.as_chunks_mut::<LANES>();
    for (index, out) in out.iter_mut().enumerate() {
        let first = index * LANES;
        let lanes = |values: &[f32], at: usize| -> [f32; LANES] {
            let mut lanes = [0.0; LANES];
            lanes.copy_from_slice(&values[at..at + LANES]);
            lanes
        };
        let (mut sum, bias) = (lanes(neighbours[4], first), lanes(bias, first));
        for lane in 0..LANES {
            sum[lane] += bias[lane];
        }
        for (tap, neighbour) in neighbours.into_iter().enumerate() {
            let (values, weights) = (lanes(neighbour, first), lanes(weights, tap * channels + first));
            for lane in 0..LANES {
                sum[lane] += values[lane] * weights[lane];
            }
        }
        *out = sum;
    }
    let first = channels - tail.len();
    for (c, out) in (first..).zip(tail) {
        let taps = neighbours.into_iter().enumerate();
        *out = taps.fold(neighbours[4][c] + bias[c], |sum, (tap, values)| {
            sum + values[c] * weights[tap * channels + c]
        });
    }
}

/// Where the pixels of a channels-last picture lie.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Row after row.
    Rows,
    /// Window after window.
    Windows {
        /// Pixels of a window in a row, and its rows.
        side: usize,
        /// Windows in a row of them.
        across: usize,
    },
}

impl Order {
    /// Which pixel of the slice the one in this row and column of the picture is.
    #[inline(always)]
    pub fn index(self, row: usize, column: usize, width: usize) -> usize {
        match self {
            Self::Rows => row * width + column,
            Self::Windows { side, across } => {
                let window = row / side * across + column / side;
                (window * side + row % side) * side + column % side
            }
        }
    }
}

/// A row of a depthwise 3×3 convolution with its residual. What lies outside of the picture counts as zero.
#[derive(Debug)]
pub struct Depthwise<'a> {
    /// The picture, `channels` numbers for each pixel.
    pub input: &'a [f32],
    /// Where its pixels lie.
    pub order: Order,
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `[3][3][channels]`
    pub weights: &'a [f32],
    /// One for each channel.
    pub bias: &'a [f32],
    /// As many zeros as there are channels.
    pub zeros: &'a [f32],
}

impl Depthwise<'_> {
    /// Writes one row of the result.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let channels = self.bias.len();
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for (column, out) in out.chunks_exact_mut(channels).enumerate() {
                    let neighbours = core::array::from_fn(|tap| {
                        // One too far to the right and down, so that it is never negative.
                        let (y, x) = (row + tap / 3, column + tap % 3);
                        if (1..=self.height).contains(&y) && (1..=self.width).contains(&x) {
                            &self.input[self.order.index(y - 1, x - 1, self.width) * channels..][..channels]
                        } else {
                            self.zeros
                        }
                    });
                    depthwise_pixel(neighbours, self.weights, self.bias, out);
                }
            },
        );
    }
}

/// `out += values`, number by number.
pub fn add(values: &[f32], out: &mut [f32]) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for (out, &value) in out.iter_mut().zip(values) {
                *out += value;
            }
        },
    );
}

/// Of some columns of a matrix, `columns` numbers in a row, the mean and one over the deviation. The columns are those from
/// `first` on, as many as there is room for.
///
/// # Panics
///
/// If there are not so many.
pub fn moments_of_columns(
    matrix: &[f32],
    columns: usize,
    first: usize,
    epsilon: f32,
    moments: &mut [[f32; 2]],
) {
    /// Columns at a time: their sums stay in the first-level cache.
    const BLOCK: usize = 512;
    let count = (matrix.len() / columns) as f32;
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for (index, moments) in moments.chunks_mut(BLOCK).enumerate() {
                let begin = first + index * BLOCK;
                let (mut means, mut squares) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
                let (means, squares) = (&mut means[..moments.len()], &mut squares[..moments.len()]);
                for row in matrix.chunks_exact(columns) {
                    for (sum, &x) in means.iter_mut().zip(&row[begin..][..moments.len()]) {
                        *sum += x;
                    }
                }
                for mean in means.iter_mut() {
                    *mean /= count;
                }
                for row in matrix.chunks_exact(columns) {
                    let row = row[begin..][..moments.len()].iter().zip(&*means);
                    for (sum, (&x, &mean)) in squares.iter_mut().zip(row) {
                        *sum += (x - mean) * (x - mean);
                    }
                }
                for ((moments, &mean), &square) in moments.iter_mut().zip(&*means).zip(&*squares) {
                    *moments = [mean, 1.0 / (square / count + epsilon).sqrt()];
                }
            }
        },
    );
}

/// Normalises the numbers of a row, each by the moments of its column, then scales and shifts them.
pub fn normalise_row(row: &mut [f32], moments: &[[f32; 2]], scale: f32, shift: f32) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for (x, &[mean, inverse]) in row.iter_mut().zip(moments) {
                *x = (*x - mean) * inverse * scale + shift;
            }
        },
    );
}

/// Some columns of rows, at most a panel of them, added up by weights.
#[inline(always)]
fn mix(weights: &[f32], rows: Rows<'_>, first: usize, columns: usize) -> [f32; PANEL] {
    let mut sums = [0.0f32; PANEL];
    for (row, &weight) in weights.iter().enumerate() {
        let row = &rows.data[row * rows.stride + first..][..columns];
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += weight * x;
        }
    }
    sums
}

/// Attention of one query, `softmax(scale · keys · query) · values`, to rows that are read as they lie.
///
/// # Panics
///
/// If there are no keys, or not as many values, or if a row is narrower than the query.
pub fn attend_rows(
    query: &[f32],
    keys: Rows<'_>,
    values: Rows<'_>,
    scale: f32,
    out: &mut [f32],
    scores: &mut Vec<f32>,
) {
    assert!(keys.rows > 0 && keys.rows == values.rows, "{} keys, {} values", keys.rows, values.rows);
    let width = query.len();
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let (query_body, query_tail) = query.as_chunks::<PANEL>();
            scores.clear();
            scores.extend((0..keys.rows).map(
                #[inline(always)]
                |token| {
                    let key = &keys.data[token * keys.stride..][..width];
                    let (body, tail) = key.as_chunks::<PANEL>();
                    let mut lanes = [0.0f32; PANEL];
                    for (key, query) in body.iter().zip(query_body) {
                        for ((lane, &key), &query) in lanes.iter_mut().zip(key).zip(query) {
                            *lane += key * query;
                        }
                    }
                    let (low, high) = lanes.split_at(PANEL / 2);
                    let mut half = [0.0f32; PANEL / 2];
                    for ((half, &low), &high) in half.iter_mut().zip(low).zip(high) {
                        *half = low + high;
                    }
                    let lanes = half.iter().sum::<f32>();
                    tail.iter().zip(query_tail).fold(lanes, |sum, (&key, &query)| sum + key * query)
                },
            ));
            let largest = maximum(scores);
            for score in scores.iter_mut() {
                *score = exp((*score - largest) * scale);
            }
            let inverse = 1.0 / sum(scores, |x| x);
            for (index, out) in out[..width].chunks_mut(PANEL).enumerate() {
                let first = index * PANEL;
                // A whole panel is known to be one, which makes it registers.
                let sums = match out.len() {
                    PANEL => mix(scores, values, first, PANEL),
                    columns => mix(scores, values, first, columns),
                };
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum * inverse;
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (f64::from(state) / f64::from(u32::MAX)) as f32 * 4.0 - 2.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn assert_close(given: &[f32], expected: &[f32]) {
        assert_eq!(given.len(), expected.len());
        for (given, expected) in given.iter().zip(expected) {
            assert!((given - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{given}, not {expected}");
        }
    }

    #[test]
    fn columns_are_normalised_as_rows_are() {
        for (rows, columns) in [(1, 1), (7, 3), (32, 600), (5, 1025)] {
            let matrix = noise(3, rows * columns);
            let (scale, shift) = (noise(4, rows), noise(5, rows));
            let mut turned: Vec<f32> =
                (0..columns * rows).map(|at| matrix[at % rows * columns + at / rows]).collect();
            layer_norm_in_place(&mut turned, &scale, &shift, 1e-5);
            let mut given = matrix.clone();
            let mut moments = vec![[0.0; 2]; columns];
            // In pieces, as threads share it.
            let half = columns / 2;
            moments_of_columns(&matrix, columns, 0, 1e-5, &mut moments[..half]);
            moments_of_columns(&matrix, columns, half, 1e-5, &mut moments[half..]);
            for (row, (&scale, &shift)) in given.chunks_exact_mut(columns).zip(scale.iter().zip(&shift)) {
                normalise_row(row, &moments, scale, shift);
            }
            let expected: Vec<f32> =
                (0..rows * columns).map(|at| turned[at % columns * rows + at / columns]).collect();
            assert_close(&given, &expected);
        }
    }

    #[test]
    fn one_query_attends_as_many_do() {
        for (tokens, width, stride) in [(1, 16, 16), (5, 3, 7), (77, 40, 40), (33, 64, 128)] {
            let (keys, values) = (noise(6, tokens * stride), noise(7, tokens * stride));
            let queries = noise(8, 2 * width);
            let rows = |data| Rows { data, rows: tokens, stride };
            let mut expected = vec![0.0; 2 * width];
            let attention = Attention {
                queries: Rows::new(&queries, width),
                keys: rows(&keys),
                values: rows(&values),
                width,
                scale: 0.4,
            };
            attention.head(0, &mut expected, width, &mut Scratch::default());
            let mut given = vec![0.0; 2 * width];
            for (query, out) in queries.chunks(width).zip(given.chunks_mut(width)) {
                attend_rows(query, rows(&keys), rows(&values), 0.4, out, &mut Vec::new());
            }
            assert_close(&given, &expected);
            // And as it is written.
            for (query, out) in queries.chunks(width).zip(given.chunks(width)) {
                let score = |token: usize| -> f64 {
                    let key = &keys[token * stride..];
                    query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() * 0.4
                };
                let weights: Vec<f64> = (0..tokens).map(|token| score(token).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mixed: Vec<f32> = (0..width)
                    .map(|column| {
                        let values = (0..tokens).map(|token| f64::from(values[token * stride + column]));
                        (values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / total) as f32
                    })
                    .collect();
                assert_close(out, &mixed);
            }
        }
    }
}
