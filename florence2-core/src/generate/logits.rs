//! One row of logits: what is wrong with it, its log-softmax, its best tokens.
//!
//! A row has 51,289 logits and a step has a row for each beam, so each pass over it is written for the
//! vectoriser: plain multiplications and additions, in lanes whose number is fixed. So the result is the same on every
//! machine, too.

use alloc::vec::Vec;

const LANES: usize = 16;
/// So many numbers are added in `f32`, in lanes, before their sum goes to an `f64`.
pub(crate) const BLOCK: usize = 64 * LANES;

/// What makes log-probabilities of a row's logits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Softmax {
    max: f32,
    log_sum: f32,
}

impl Softmax {
    /// Of a row, or its first logit that is none: NaN or infinite. Minus infinity is a logit, unless all are.
    pub(crate) fn of(logits: &[f32]) -> Result<Self, BadLogit> {
        let max = max(logits)?;
        // The greatest adds exactly 1, so that the logarithm is never under 0.
        let log_sum = libm::log(sum_exp(logits, max)) as f32;
        Ok(Self { max, log_sum })
    }

    /// The greatest log-probability.
    pub(crate) fn best(self) -> f32 {
        -self.log_sum
    }

    /// In the order of the reference's log-softmax.
    pub(crate) fn log_prob(self, logit: f32) -> f32 {
        (logit - self.max) - self.log_sum
    }
}

/// A logit that is no number, or minus infinity where all are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadLogit {
    pub(crate) token: usize,
    pub(crate) logit: f32,
}

pub(crate) fn max(logits: &[f32]) -> Result<f32, BadLogit> {
    let mut greatest = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let logit = chunk[lane];
            greatest[lane] = if logit > greatest[lane] { logit } else { greatest[lane] };
            bad[lane] |= is_bad(logit);
        }
    }
    for (lane, &logit) in rest.iter().enumerate() {
        greatest[lane] = greatest[lane].max(logit);
        bad[lane] |= is_bad(logit);
    }
    let max = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if bad.contains(&true) || max == f32::NEG_INFINITY {
        let token = logits.iter().position(|&logit| is_bad(logit)).unwrap_or(0);
        return Err(BadLogit { token, logit: logits.get(token).copied().unwrap_or(f32::NAN) });
    }
    Ok(max)
}

/// Without a branch, which `||` would be.
#[inline]
fn is_bad(logit: f32) -> bool {
    logit.is_nan() | (logit == f32::INFINITY)
}

fn sum_exp(logits: &[f32], max: f32) -> f64 {
    logits.chunks(BLOCK).map(|block| sum_of(block, |logit| exp(logit - max))).sum()
}

/// The sum of a block.
pub(crate) fn sum(block: &[f32]) -> f64 {
    sum_of(block, |value| value)
}

#[inline]
fn sum_of(block: &[f32], value: impl Fn(f32) -> f32) -> f64 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += value(chunk[lane]);
        }
    }
    for (sum, &rest) in sums.iter_mut().zip(rest) {
        *sum += value(rest);
    }
    sums.into_iter().map(f64::from).sum()
}

/// `e^x` for `x` of at most 0, within two units in the last place; 0 under -87, where `f32` has no normal numbers left.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    const LEAST: f32 = -87.0;
    // Adding it leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with so few digits that its multiples are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // A minimax polynomial for (e^r - 1 - r) / r² on ±ln(2)/2, as in Cephes' expf.
    const P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let held = if x > LEAST { x } else { LEAST };
    let shifted = held * core::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (held - n * LN_2[0]) - n * LN_2[1];
    let mut p = P[0];
    for c in &P[1..] {
        p = p * r + c;
    }
    let e = (p * (r * r) + r) + 1.0;
    // 2^n: the low bits of `shifted` are n, in two's complement.
    let two_to_n = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x < LEAST { 0.0 } else { e * two_to_n }
}

/// A token that a beam could go on with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// The beam's score with the token's log-probability.
    pub(crate) score: f32,
    pub(crate) beam: usize,
    pub(crate) token: u32,
}

/// Takes the best of a beam's tokens into `best`, which holds the `keep` best of the beams before, the best first.
///
/// Of equal scores the lower beam and the lower token come first; the reference leaves their order open.
pub(crate) fn take_best(
    best: &mut Vec<Candidate>,
    keep: usize,
    beam: usize,
    logits: &[f32],
    score: impl Fn(f32) -> f32,
) {
    const CHUNK: usize = 2 * LANES;
    let mut at = 0;
    while best.len() < keep && at < logits.len() {
        insert(best, keep, Candidate { score: score(logits[at]), beam, token: at as u32 });
        at += 1;
    }
    let Some(mut worst) = best.last().map(|worst| worst.score) else { return };
    for (chunk, at) in logits[at..].chunks(CHUNK).zip((at..).step_by(CHUNK)) {
        // Hardly any chunk has one, so that it is asked of the whole chunk first, without branches.
        let any = match <&[f32; CHUNK]>::try_from(chunk) {
            Ok(chunk) => chunk.iter().fold(false, |any, &logit| any | (score(logit) > worst)),
            Err(_) => true,
        };
        if any {
            for (&logit, at) in chunk.iter().zip(at..) {
                if score(logit) > worst {
                    insert(best, keep, Candidate { score: score(logit), beam, token: at as u32 });
                    worst = best[keep - 1].score;
                }
            }
        }
    }
}

fn insert(best: &mut Vec<Candidate>, keep: usize, candidate: Candidate) {
    best.truncate(keep - 1);
    let place = best.partition_point(|held| held.score >= candidate.score);
    best.insert(place, candidate);
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Any number in [0, 1).
    fn uniform(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1u64 << 24) as f32
    }

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        let mut state = 1;
        let mut worst = 0;
        let drawn =
            (0..200_000).map(|_| -87.0 * uniform(&mut state)).chain((0..200_000).map(|n| n as f32 * -1e-5));
        for x in drawn {
            let exact = libm::exp(f64::from(x)) as f32;
            worst = worst.max(exp(x).to_bits().abs_diff(exact.to_bits()));
        }
        assert!(worst <= 2, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert!(exp(-87.0) > 0.0);
        for x in [-87.01, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0);
        }
    }

    #[test]
    fn log_probabilities_are_those_of_f64() {
        let mut state = 7;
        for len in [1, 2, 15, 16, 17, 1000, 1024, 1025, 51_289] {
            for spread in [0.0, 1.0, 40.0, 3000.0] {
                let logits: Vec<f32> = (0..len).map(|_| spread * (uniform(&mut state) - 0.5)).collect();
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exact =
                    libm::log(logits.iter().map(|&x| libm::exp(f64::from(x) - f64::from(max))).sum::<f64>());
                let softmax = Softmax::of(&logits).expect("they are logits");
                for &logit in &logits {
                    let exact = f64::from(logit) - f64::from(max) - exact;
                    let found = f64::from(softmax.log_prob(logit));
                    assert!(
                        (found - exact).abs() <= 1e-6 + exact.abs() * 2e-7,
                        "{len} {spread}: {found} {exact}"
                    );
                    assert!(found <= 0.0);
                }
            }
        }
    }

    #[test]
    fn what_is_no_logit_is_found_wherever_it_stands() {
        for len in [1usize, 16, 17, 40, 100] {
            for at in 0..len {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    let mut logits = alloc::vec![1.0; len];
                    logits[at] = bad;
                    let error = Softmax::of(&logits).expect_err("one is none");
                    assert_eq!((error.token, error.logit.to_bits()), (at, bad.to_bits()));
                }
            }
            assert!(Softmax::of(&alloc::vec![f32::NEG_INFINITY; len]).is_err());
        }
        let some = Softmax::of(&[f32::NEG_INFINITY, 3.0]).expect("one is enough");
        assert_eq!([some.log_prob(f32::NEG_INFINITY), some.log_prob(3.0)], [f32::NEG_INFINITY, 0.0]);
        assert!(Softmax::of(&[]).is_err());
    }

    #[test]
    fn the_best_are_those_of_a_stable_sort() {
        let mut state = 3;
        for len in [1, 5, 31, 32, 33, 64, 100, 500] {
            for keep in [1, 2, 6, 10, 700] {
                // Few values, so that many are equal, and some rows of minus infinity.
                let rows: Vec<Vec<f32>> = (0..3)
                    .map(|_| {
                        let levels = 1.0 + 40.0 * uniform(&mut state);
                        let cut = uniform(&mut state);
                        let value =
                            |u: f32| if u < cut { f32::NEG_INFINITY } else { libm::floorf(u * levels) };
                        (0..len).map(|_| value(uniform(&mut state))).collect()
                    })
                    .collect();
                let mut best = Vec::new();
                let mut all = Vec::new();
                for (beam, row) in rows.iter().enumerate() {
                    let score = |logit: f32| logit - 0.5 * beam as f32;
                    take_best(&mut best, keep, beam, row, score);
                    all.extend(row.iter().zip(0..).map(|(&logit, token)| Candidate {
                        score: score(logit),
                        beam,
                        token,
                    }));
                }
                all.sort_by(|a, b| b.score.total_cmp(&a.score));
                all.truncate(keep);
                assert_eq!(best, all);
            }
        }
    }
}
