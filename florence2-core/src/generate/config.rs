//! How to generate, and what comes of it.

use alloc::vec::Vec;

use crate::model::ModelSpec;

/// How an answer is searched for. The default is what the checkpoints' own configuration asks for: three beams, early
/// stopping, no 3-gram twice.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// New tokens at most, `<s>` and `</s>` included. `None`: 1024, or as many as the network has positions for.
    pub max_new_tokens: Option<usize>,
    /// `</s>` is not taken before so many new tokens.
    pub min_new_tokens: usize,
    /// Beams of the search; 1 is greedy (or, with `sampling`, one draw a step).
    pub beams: usize,
    /// Sequences that are returned for each ask: the best of the beams, or so many samples.
    pub sequences: usize,
    /// Draw tokens, instead of taking the most probable. Not together with beams.
    pub sampling: Option<Sampling>,
    /// No run of so many tokens occurs twice in an answer; 0 switches the ban off. Large checkpoints need it (they
    /// repeat `<s>` without end otherwise); answers like JSON or tables need it off.
    pub no_repeat_ngram: usize,
    /// The first new token is `<s>`, whatever the logits say.
    pub force_bos: bool,
    /// The last token that fits is `</s>`, whatever the logits say.
    pub force_eos: bool,
    /// A finished beam scores `sum of log-probabilities / length ^ penalty`: over 0 favours long answers.
    pub length_penalty: f32,
    /// When a beam search may end.
    pub early_stopping: EarlyStopping,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            min_new_tokens: 0,
            beams: 3,
            sequences: 1,
            sampling: None,
            no_repeat_ngram: 3,
            force_bos: true,
            force_eos: true,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::WhenEnough,
        }
    }
}

impl GenerationConfig {
    /// Beams, or samples, of one ask at most: each is a row of logits, and has a cache of its own.
    pub const MOST_ROWS: usize = 1024;

    /// One beam, otherwise the default.
    pub fn greedy() -> Self {
        Self { beams: 1, ..Self::default() }
    }

    /// Whether the network can be asked so. [`generate`](crate::generate()) checks it by itself; a program may want
    /// to know before it loads a picture.
    ///
    /// # Errors
    ///
    /// If a value is outside of its range, or two of them exclude each other.
    pub fn validate(&self, spec: &ModelSpec) -> Result<(), ConfigError> {
        let vocabulary = spec.vocabulary_size;
        if let Some((name, id)) = spec.special.outside(vocabulary) {
            return Err(ConfigError::SpecialId { name, id, vocabulary });
        }
        if self.beams == 0 {
            return Err(ConfigError::NoBeams);
        }
        if self.sequences == 0 {
            return Err(ConfigError::NoSequences);
        }
        if let Some(sampling) = self.sampling {
            sampling.validate()?;
            if self.beams > 1 {
                return Err(ConfigError::SamplingWithBeams { beams: self.beams });
            }
        } else if self.sequences > self.beams {
            return Err(ConfigError::TooManySequences { sequences: self.sequences, beams: self.beams });
        }
        for (name, count) in [("beams", self.beams), ("sequences", self.sequences)] {
            if count > Self::MOST_ROWS {
                return Err(ConfigError::TooManyRows { name, count });
            }
        }
        // Each step takes two candidates a beam, and the first of them all come from one row.
        if self.beams > 1 && self.beams > vocabulary / 2 {
            return Err(ConfigError::TooManyBeams { beams: self.beams, vocabulary });
        }
        let max_new_tokens = self.max_new_tokens(spec);
        if max_new_tokens == 0 {
            return Err(ConfigError::NoNewTokens);
        }
        if max_new_tokens > spec.max_positions {
            return Err(ConfigError::TooManyNewTokens { max_new_tokens, positions: spec.max_positions });
        }
        if self.min_new_tokens > max_new_tokens {
            return Err(ConfigError::MinOverMax { min_new_tokens: self.min_new_tokens, max_new_tokens });
        }
        // Beyond this the greatest length, raised to the penalty, is no number, and no score can be told from another.
        let strongest = libm::pow(max_new_tokens as f64, f64::from(self.length_penalty).abs());
        if strongest.is_nan() || strongest > 1e30 {
            return Err(ConfigError::LengthPenalty { length_penalty: self.length_penalty, max_new_tokens });
        }
        Ok(())
    }

    /// The limit that holds: what was asked for, or else 1024, or the network's positions if there are fewer.
    pub fn max_new_tokens(&self, spec: &ModelSpec) -> usize {
        self.max_new_tokens.unwrap_or_else(|| spec.max_positions.min(1024))
    }
}

/// A configuration that cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `beams` is 0.
    #[error("beams is 0; it takes 1 (greedy, or sampling) or more")]
    NoBeams,
    /// More beams or samples than [`GenerationConfig::MOST_ROWS`].
    #[error("{name} is {count}, over the limit of {}", GenerationConfig::MOST_ROWS)]
    TooManyRows {
        /// Which of the two.
        name: &'static str,
        /// What was asked for.
        count: usize,
    },
    /// `sequences` is 0.
    #[error("sequences is 0; at least 1 is returned")]
    NoSequences,
    /// More sequences than beams, and no sampling.
    #[error("{sequences} sequences were asked for, but {beams} beams end in as many; raise beams, or sample")]
    TooManySequences {
        /// What was asked for.
        sequences: usize,
        /// How many beams there are.
        beams: usize,
    },
    /// Sampling goes with one beam only.
    #[error("sampling draws one token at a time and has no use for {beams} beams; set beams to 1")]
    SamplingWithBeams {
        /// What was asked for.
        beams: usize,
    },
    /// A step needs two candidates for each beam.
    #[error("{beams} beams need a vocabulary of twice as many tokens; this network has {vocabulary}")]
    TooManyBeams {
        /// What was asked for.
        beams: usize,
        /// Logits of a row.
        vocabulary: usize,
    },
    /// The temperature is no number over 0.
    #[error(
        "temperature is {0}; it takes a finite number over 0 (for the most probable token, leave sampling off)"
    )]
    Temperature(f32),
    /// `top_p` is no probability over 0.
    #[error("top_p is {0}; it takes a number over 0, and at most 1 (all tokens)")]
    TopP(f32),
    /// `max_new_tokens` is 0, or the network has no positions.
    #[error("no new token may be generated; max_new_tokens takes 1 or more")]
    NoNewTokens,
    /// More than the network has positions for.
    #[error(
        "{max_new_tokens} new tokens do not fit into the {positions} positions of this network's decoder"
    )]
    TooManyNewTokens {
        /// What was asked for.
        max_new_tokens: usize,
        /// What the network has.
        positions: usize,
    },
    /// The least length is over the greatest.
    #[error("min_new_tokens is {min_new_tokens}, over the limit of {max_new_tokens} new tokens")]
    MinOverMax {
        /// What was asked for.
        min_new_tokens: usize,
        /// The limit that holds.
        max_new_tokens: usize,
    },
    /// The length penalty is no number, or so strong that scores overflow.
    #[error(
        "a length penalty of {length_penalty} gives no scores for {max_new_tokens} tokens; usual ones lie within -2 and 2"
    )]
    LengthPenalty {
        /// What was asked for.
        length_penalty: f32,
        /// The limit that holds.
        max_new_tokens: usize,
    },
    /// The network's own description is wrong.
    #[error(
        "the network says that its {name} token has the id {id}, outside of its vocabulary of {vocabulary}"
    )]
    SpecialId {
        /// Which of [`SpecialIds`](crate::SpecialIds).
        name: &'static str,
        /// Its id.
        id: u32,
        /// Logits of a row.
        vocabulary: usize,
    },
}

/// When a beam search may end. The names of the reference's values are in parentheses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As soon as there are as many finished beams as beams (`true`).
    #[default]
    WhenEnough,
    /// When the best running beam, at its length of now, does not beat the worst finished one (`false`).
    Heuristic,
    /// When no running beam can beat the worst finished one at any length (`"never"`).
    WhenCertain,
}

/// How tokens are drawn: first the temperature, then `top_k`, then `top_p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the scores: under 1 sharpens, over 1 flattens. More than 0.
    pub temperature: f32,
    /// Only so many of the most probable tokens; 0 for all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability; 1 for all.
    pub top_p: f32,
    /// The same seed draws the same answer, whatever else is in the batch.
    pub seed: u64,
}

/// One generated sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The new tokens, without the start token that was fed; `<s>` and `</s>` stand in it as they were generated.
    pub tokens: Vec<u32>,
    /// For each token its log-probability in the network's own distribution, as the reference scores it: a forced token
    /// has 0.
    pub log_probs: Vec<f32>,
    /// `sum of log_probs / number of tokens ^ length_penalty`: what beams are ranked by.
    pub score: f32,
    /// Why it ended.
    pub finish: Finish,
}

impl Generated {
    pub(super) fn parts(&self) -> (&[u32], &[f32]) {
        (&self.tokens, &self.log_probs)
    }
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The network ended it.
    EndOfSequence,
    /// It reached the greatest length, and may be cut off. A `</s>` at its end was forced.
    Length,
    /// The observer broke it off.
    Cancelled,
}

/// Tokens that have become certain: no later step takes them back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Index of the ask.
    pub ask: usize,
    /// Index of the sequence, for asks that are sampled more than once. 0 for beams: what is settled is settled for the
    /// best of them.
    pub sequence: usize,
    /// The tokens that are new since the last call; may be empty.
    pub tokens: &'a [u32],
    /// Their log-probabilities.
    pub log_probs: &'a [f32],
}
