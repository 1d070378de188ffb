//! Depthwise convolutions of channels-last pictures.

use pulp::Arch;

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
