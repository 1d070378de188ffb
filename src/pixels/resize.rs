//! Pillow's bicubic resize of 8-bit pictures, bit for bit.
//!
//! Two passes, one an axis, with a `u8` picture between them. Each output value is a weighted sum over a window of
//! inputs: the cubic kernel with a = −1/2, stretched when shrinking (which is what keeps thin lines from flickering),
//! cut off at the picture's edge and normalised. Weights are computed in `f64` and rounded to 22 bits after the point;
//! sums are `i32`, so that every engine and every order of adding gives the same value.
//!
//! Both passes are one kernel, [`blend`]: a weighted sum of lines. In the vertical pass a line is a piece of a row. In
//! the horizontal pass it is one column of [`ROWS`] rows, which are turned on their side first. The kernel is plain
//! code over arrays that the compiler turns into vectors; `pulp` runs it compiled for what the processor has.

use std::{array, iter};

/// Rows that the horizontal pass works on at a time.
const ROWS: usize = 16;
/// Bytes of a column of so many rows.
const COLUMN: usize = 3 * ROWS;
/// Bytes that are blended at a time: so few that their sums stay in registers.
const PIECE: usize = 16;
/// Bits of a weight after the point: what is left of 32 by 8 of the value, and two for the sum's overshoot and sign.
const PRECISION: u32 = 32 - 8 - 2;
/// Where the kernel ends, in pixels.
const SUPPORT: f64 = 2.0;

/// Which axis is resized first. It matters, if little, since the picture between the passes is rounded to `u8`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PassOrder {
    /// As Pillow 13 and later do: rows first, unless the height shrinks by over twice as much as the width.
    #[default]
    Newest,
    /// Always along the rows first, as Pillow 11 and earlier do. Pillow 12 does, too, for all but very tall pictures.
    HorizontalFirst,
}

impl PassOrder {
    fn vertical_first(self, from: (usize, usize), to: (usize, usize)) -> bool {
        let shrinks_by =
            |from: usize, to: usize| i128::try_from(from).and_then(|from| Ok(from - i128::try_from(to)?));
        let (Ok(width), Ok(height)) = (shrinks_by(from.0, to.0), shrinks_by(from.1, to.1)) else {
            return false;
        };
        self == Self::Newest && height > 0 && height > 2 * width
    }
}

/// Resizes RGB rows `from` (width, height) `to` (width, height). No side is zero, and `source` has the length that
/// `from` says. An axis that keeps its length is left alone.
pub(super) fn bicubic(source: &[u8], from: (usize, usize), to: (usize, usize), order: PassOrder) -> Vec<u8> {
    let horizontal = |source: &[u8]| {
        let pass = Horizontal { source, width: from.0, windows: &Windows::new(from.0, to.0) };
        pulp::Arch::new().dispatch(pass)
    };
    let vertical = |source: &[u8]| {
        let pass = Vertical { source, height: from.1, windows: &Windows::new(from.1, to.1) };
        pulp::Arch::new().dispatch(pass)
    };
    match (from.0 != to.0, from.1 != to.1) {
        (false, false) => source.to_vec(),
        (true, false) => horizontal(source),
        (false, true) => vertical(source),
        (true, true) if order.vertical_first(from, to) => horizontal(&vertical(source)),
        (true, true) => vertical(&horizontal(source)),
    }
}

/// For each output of an axis, the inputs that it is made of.
#[derive(Debug)]
struct Windows {
    /// Of each output: its first input, and where its weights end in `weights`.
    spans: Vec<(usize, usize)>,
    weights: Vec<i32>,
}

impl Windows {
    fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = SUPPORT * stretch;
        // The products and their order are Pillow's: another one may round another way.
        let squeeze = 1.0 / stretch;
        let mut windows = Self { spans: Vec::with_capacity(to), weights: Vec::new() };
        let mut kernel = Vec::new();
        for at in 0..to {
            let center = (at as f64 + 0.5) * scale;
            // `as` cuts off towards zero and holds at zero, which is where the picture begins.
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            kernel.clear();
            kernel.extend((start..end).map(|x| cubic((x as f64 - center + 0.5) * squeeze)));
            let sum: f64 = kernel.iter().sum();
            windows.weights.extend(kernel.iter().map(|weight| {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                (weight * f64::from(1 << PRECISION) + 0.5f64.copysign(weight)) as i32
            }));
            windows.spans.push((start, windows.weights.len()));
        }
        windows
    }

    /// The first input and the weights of each output.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let begins = iter::once(0).chain(self.spans.iter().map(|&(_, end)| end));
        self.spans.iter().zip(begins).map(|(&(start, end), begin)| (start, &self.weights[begin..end]))
    }
}

/// The cubic convolution kernel with a = −1/2.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < SUPPORT {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// The weighted sum of [`PIECE`] bytes of lines that are `stride` apart, rounded and held within a byte.
#[inline(always)]
fn blend<const N: usize>(weights: &[i32], lines: &[u8], stride: usize) -> [u8; N] {
    let mut sums = [1 << (PRECISION - 1); N];
    let mut at = 0;
    for &weight in weights {
        for (sum, &value) in sums.iter_mut().zip(&lines[at..at + N]) {
            *sum += weight * i32::from(value);
        }
        at += stride;
    }
    sums.map(|sum| (sum >> PRECISION).clamp(0, 255) as u8)
}

struct Vertical<'a> {
    source: &'a [u8],
    height: usize,
    windows: &'a Windows,
}

// A type and not a closure: what is to be compiled for the processor must be inlined, and a closure's call need not be.
impl pulp::NullaryFnOnce for Vertical<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        let Self { source, height, windows } = self;
        let stride = source.len() / height;
        let mut target = vec![0; windows.spans.len() * stride];
        for (row, (first, weights)) in target.chunks_exact_mut(stride).zip(windows.iter()) {
            let lines = &source[first * stride..];
            let Some(last) = stride.checked_sub(PIECE) else {
                for (at, value) in row.iter_mut().enumerate() {
                    [*value] = blend(weights, &lines[at..], stride);
                }
                continue;
            };
            // The last piece begins earlier, so that it is whole, too.
            for at in (0..last).step_by(PIECE).chain([last]) {
                row[at..at + PIECE].copy_from_slice(&blend::<PIECE>(weights, &lines[at..], stride));
            }
        }
        target
    }
}

struct Horizontal<'a> {
    source: &'a [u8],
    width: usize,
    windows: &'a Windows,
}

impl pulp::NullaryFnOnce for Horizontal<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        let Self { source, width, windows } = self;
        let (stride, target_stride) = (3 * width, 3 * windows.spans.len());
        let mut target = vec![0; source.len() / stride * target_stride];
        let mut columns = vec![0; width * COLUMN + 1];
        let mut blended = vec![0; windows.spans.len() * COLUMN];
        for (source, target) in source.chunks(ROWS * stride).zip(target.chunks_mut(ROWS * target_stride)) {
            to_columns(source, stride, &mut columns);
            for (column, (first, weights)) in blended.chunks_exact_mut(COLUMN).zip(windows.iter()) {
                for at in (0..COLUMN).step_by(PIECE) {
                    let lines = &columns[first * COLUMN + at..];
                    column[at..at + PIECE].copy_from_slice(&blend::<PIECE>(weights, lines, COLUMN));
                }
            }
            to_rows(&blended, target, target_stride);
        }
        target
    }
}

/// Turns rows of pixels into columns of pixels, and writes a byte after them. Where there are fewer rows, the last one
/// is repeated.
#[inline(always)]
fn to_columns(source: &[u8], stride: usize, columns: &mut [u8]) {
    let last = source.len() - stride;
    let rows: [&[u8]; ROWS] = array::from_fn(|row| &source[(row * stride).min(last)..][..stride]);
    let inner = stride - 3;
    // A pixel is copied with the byte after it, whose place the next one then takes: four bytes are one move.
    for (at, column) in (0..inner).step_by(3).zip((0..).step_by(COLUMN)) {
        let column = &mut columns[column..=column + COLUMN];
        for (row, pixels) in rows.iter().enumerate() {
            column[3 * row..3 * row + 4].copy_from_slice(&pixels[at..at + 4]);
        }
    }
    let column = &mut columns[inner / 3 * COLUMN..];
    for (pixel, pixels) in column.chunks_exact_mut(3).zip(rows) {
        pixel.copy_from_slice(&pixels[inner..]);
    }
}

/// Turns columns of pixels into rows of pixels, as many as there is room for.
#[inline(always)]
fn to_rows(columns: &[u8], target: &mut [u8], stride: usize) {
    for (row, pixels) in target.chunks_exact_mut(stride).enumerate() {
        for (pixel, column) in pixels.chunks_exact_mut(3).zip(columns.chunks_exact(COLUMN)) {
            pixel.copy_from_slice(&column[3 * row..3 * row + 3]);
        }
    }
}
