//! Normalisation to mean 0 and variance 1.

use pulp::Arch;

use crate::pointwise::sum;

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
