//! Drawing a token.

use alloc::vec::Vec;

use super::config::{ConfigError, Sampling};
use super::logits::{BLOCK, Candidate, exp, sum, take_best};

impl Sampling {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            return Err(ConfigError::Temperature(self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(ConfigError::TopP(self.top_p));
        }
        Ok(())
    }

    /// The probabilities that tokens with these scores (logits or log-probabilities) are drawn with: 0 where
    /// `top_k` or `top_p` leaves a token out.
    ///
    /// As in the reference, `top_k` keeps all tokens that are as probable as the last one that fits, and of tokens that
    /// are equally probable `top_p` leaves out those with lower ids first. Tokens that are less than `e^-87` times as
    /// probable as the most probable one count as impossible.
    ///
    /// # Errors
    ///
    /// If the temperature or `top_p` is outside of its range.
    pub fn probabilities(&self, scores: &[f32]) -> Result<Vec<f32>, ConfigError> {
        self.validate()?;
        let mut weights = Weights::default();
        weights.weigh(scores, self);
        let total = weights.total();
        Ok(weights.weights.iter().map(|&weight| (f64::from(weight) / total) as f32).collect())
    }

    /// A number in [0, 1): the same for the same seed, sequence and step.
    ///
    /// The seed and the sequence choose a stream of SplitMix64, and the step a place in it.
    pub(super) fn uniform(&self, sequence: usize, step: usize) -> f64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let stream = mix(mix(self.seed).wrapping_add((sequence as u64).wrapping_mul(GOLDEN)));
        let bits = mix(stream.wrapping_add((step as u64 + 1).wrapping_mul(GOLDEN)));
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The weights of one row's tokens, and what it takes to find them.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// `e^((score - greatest) / temperature)`, or 0 for a token that is left out.
    weights: Vec<f32>,
    scaled: Vec<f32>,
    best: Vec<Candidate>,
    keys: Vec<u64>,
    /// The sum of each block of weights.
    blocks: Vec<f64>,
}

impl Weights {
    /// Takes in a row of scores. Minus infinity is a score, NaN and infinity are not.
    pub(super) fn weigh(&mut self, scores: &[f32], sampling: &Sampling) {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // The greatest is taken off first, unlike in the reference, where a small temperature overflows.
        self.scaled.clear();
        self.scaled.extend(scores.iter().map(|&score| (score - max) / sampling.temperature));
        self.weights.clear();
        self.blocks.clear();
        if max == f32::NEG_INFINITY {
            self.weights.resize(scores.len(), 0.0);
            return;
        }
        if (1..scores.len()).contains(&sampling.top_k) {
            let last = self.greatest(sampling.top_k);
            for scaled in &mut self.scaled {
                *scaled = if *scaled < last { f32::NEG_INFINITY } else { *scaled };
            }
        }
        self.weights.extend(self.scaled.iter().map(|&scaled| exp(scaled)));
        if sampling.top_p < 1.0 {
            self.cut(sampling.top_p);
        }
        self.blocks.extend(self.weights.chunks(BLOCK).map(sum));
    }

    /// The `nth` greatest of the scaled scores, counted from 1.
    fn greatest(&mut self, nth: usize) -> f32 {
        // In one pass, as long as a sorted list is short.
        if nth <= 256 {
            self.best.clear();
            take_best(&mut self.best, nth, 0, &self.scaled, |scaled| scaled);
            return self.best[nth - 1].score;
        }
        self.keys.clear();
        self.keys.extend(self.scaled.iter().map(|&scaled| key(scaled, 0)));
        let (_, &mut nth, _) = self.keys.select_nth_unstable(nth - 1);
        -f32::from_bits((nth >> 32) as u32)
    }

    /// Leaves out the least probable tokens that together do not exceed `1 - top_p`.
    ///
    /// Where the edge lies is found by halves, so that nothing is sorted.
    fn cut(&mut self, top_p: f32) {
        let left_out = (1.0 - f64::from(top_p)) as f32;
        let Self { weights, scaled, keys, .. } = self;
        let total: f64 = weights.chunks(BLOCK).map(sum).sum();
        let probability = |weight: f32| f64::from((f64::from(weight) / total) as f32);
        // All that weigh no more than this are together less than may be left out.
        let negligible = (f64::from(left_out) * total / (2 * weights.len()) as f64) as f32;
        // Mass of what is left out.
        let mut below = 0.0;
        keys.clear();
        for ((weight, &scaled), id) in weights.iter_mut().zip(&*scaled).zip(0..) {
            if *weight <= negligible {
                below += f64::from(*weight);
                *weight = 0.0;
            } else {
                keys.push(key(scaled, id));
            }
        }
        below /= total;
        // What lies from `end` on is left out; if what lies from `start` on were too, it would be too much. The most
        // probable token always stays.
        let (mut start, mut end) = (0, keys.len());
        while end - start > 1 {
            let middle = start + (end - start) / 2;
            keys[start..end].select_nth_unstable(middle - start);
            let more: f64 = keys[middle..end].iter().map(|&key| probability(weights[id(key)])).sum();
            if (below + more) as f32 <= left_out {
                (end, below) = (middle, below + more);
            } else {
                start = middle;
            }
        }
        for &key in &keys[end..] {
            weights[id(key)] = 0.0;
        }
    }

    fn total(&self) -> f64 {
        self.blocks.iter().sum()
    }

    /// The token at `uniform` (in [0, 1)) of the way through the distribution; `None` if no token has a weight.
    pub(super) fn draw(&self, uniform: f64) -> Option<u32> {
        let aim = self.total() * uniform;
        let mut passed = 0.0;
        let mut last = None;
        for ((block, &whole), first) in self.weights.chunks(BLOCK).zip(&self.blocks).zip((0..).step_by(BLOCK))
        {
            // Rounding may leave the aim at the end of the last block that has any weight.
            if whole > 0.0 {
                last = Some((block, first, passed));
            }
            passed += whole;
            if passed > aim {
                break;
            }
        }
        let (block, first, mut passed) = last?;
        let mut token = None;
        for (&weight, id) in block.iter().zip(first..) {
            if weight > 0.0 {
                passed += f64::from(weight);
                token = Some(id);
                if passed > aim {
                    break;
                }
            }
        }
        token
    }
}

/// Orders tokens by their scaled score, which is at most 0: the greatest first, and of equal ones the highest id.
fn key(scaled: f32, id: u32) -> u64 {
    u64::from(scaled.abs().to_bits()) << 32 | u64::from(!id)
}

fn id(key: u64) -> usize {
    !(key as u32) as usize
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Every token in order, as the reference has it, on more tokens than the goldens have.
    fn by_sorting(scores: &[f32], sampling: &Sampling) -> Vec<bool> {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scaled: Vec<f32> = scores.iter().map(|&score| (score - max) / sampling.temperature).collect();
        let mut sorted = scaled.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let last = if sampling.top_k == 0 {
            f32::NEG_INFINITY
        } else {
            sorted[sampling.top_k.min(scores.len()) - 1]
        };
        let weight = |id: usize| if scaled[id] < last { 0.0 } else { libm::exp(f64::from(scaled[id])) };
        let mut ids: Vec<usize> = (0..scores.len()).collect();
        ids.sort_by(|&a, &b| scaled[a].total_cmp(&scaled[b]).then(a.cmp(&b)));
        let total: f64 = ids.iter().map(|&id| weight(id)).sum();
        let mut kept = alloc::vec![false; scores.len()];
        let mut sum = 0.0;
        for (at, &id) in ids.iter().enumerate() {
            sum += weight(id) / total;
            let out = sampling.top_p < 1.0 && sum <= 1.0 - f64::from(sampling.top_p) && at + 1 < ids.len();
            kept[id] = weight(id) > 0.0 && !out;
        }
        kept
    }

    #[test]
    fn what_is_left_out_is_what_sorting_leaves_out() {
        let mut state = 11u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        for len in [1, 2, 300, 1025, 5000] {
            for spread in [0.5, 8.0, 60.0] {
                let scores: Vec<f32> = (0..len).map(|_| spread * uniform()).collect();
                for top_k in [0, 1, 7, 256, 257, 1000, 9000] {
                    for top_p in [1.0, 0.999, 0.9, 0.3, 0.001] {
                        let sampling = Sampling { temperature: 0.7, top_k, top_p, seed: 0 };
                        let found = sampling.probabilities(&scores).expect("they are in range");
                        let expected = by_sorting(&scores, &sampling);
                        let differ = found.iter().zip(&expected).filter(|&(&p, &kept)| (p > 0.0) != kept);
                        // Rounding may decide of the one on the edge.
                        assert!(differ.count() <= 1, "{len} {spread} {sampling:?}");
                        let total: f32 = found.iter().sum();
                        assert!((total - 1.0).abs() < 1e-4, "{total}");
                    }
                }
            }
        }
    }
}
