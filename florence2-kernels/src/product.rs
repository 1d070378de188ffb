//! Products of rows with packed matrices.

use core::convert::Infallible;
use core::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Columns of a panel of packed weights.
pub const PANEL: usize = 16;
/// Rows that are multiplied with a panel at once: as many as the registers of AVX2 hold sums for.
pub(crate) const TILE: usize = 6;
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
pub(crate) enum Operand<'a> {
    F32(&'a [[f32; PANEL]]),
    F16(&'a [[f16; PANEL]]),
    Bf16(&'a [[bf16; PANEL]]),
}

/// What a kernel needs room for. One for each thread, reused.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) rows: Vec<[f32; TILE]>,
    pub(crate) panel: Vec<[f32; PANEL]>,
    pub(crate) keys: Vec<[f32; PANEL]>,
    pub(crate) values: Vec<[f32; PANEL]>,
    pub(crate) scores: Vec<f32>,
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
pub(crate) struct Shape {
    pub(crate) depth: usize,
    pub(crate) columns: usize,
}

pub(crate) fn multiply(
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
