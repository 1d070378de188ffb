//! Attention: of many queries by products, of one query by running sums.

use pulp::Arch;

use crate::pointwise::{exp, maximum, softmax, sum};
use crate::product::{Operand, Out, PANEL, Rows, Scratch, Shape, TILE, multiply};

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
