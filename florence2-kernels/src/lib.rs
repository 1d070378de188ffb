//! The arithmetic of Florence-2 on a processor: matrix products over packed weights, and what stands between them.
//!
//! Shared by the backends of `florence2`, and made for them: the interface may change with every version.
//!
//! Every kernel but [`Packed::new`] and [`Packed::read`] runs on one thread over the rows that it is given, compiled for each
//! instruction set that `pulp` knows and chosen when it is called. What a row comes to does not depend on the rows beside it, nor on how many there are:
//! that is why an answer in a batch is, to the bit, the answer alone.

#![forbid(unsafe_code)]

mod attention;
mod convolution;
mod norm;
mod pointwise;
mod product;

pub use attention::{Attention, PackedHead, SLOTS, attend_pages, attend_rows, product_of_columns};
pub use convolution::{Depthwise, Order};
pub use norm::{layer_norm, layer_norm_in_place, moments_of_columns, normalise_row};
pub use pointwise::{add, gelu, softmax};
pub use product::{Out, PANEL, Packed, Precision, Rows, Scratch, product, product_of_panels};

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
