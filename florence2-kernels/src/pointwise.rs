//! What is done number by number, and along rows.

use pulp::Arch;

/// A sum in sixteen lanes, which is how it becomes vector instructions, and more exact than one running sum.
#[inline(always)]
pub(crate) fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
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
pub(crate) fn maximum(values: &[f32]) -> f32 {
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
pub(crate) fn exp(x: f32) -> f32 {
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
