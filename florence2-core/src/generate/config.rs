//! How to generate, and what comes of it.

use alloc::vec::Vec;

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
    /// One beam, otherwise the default.
    pub fn greedy() -> Self {
        Self { beams: 1, ..Self::default() }
    }
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
    /// `sum of log_probs / tokens ^ length_penalty`: what beams are ranked by.
    pub score: f32,
    /// Why it ended.
    pub finish: Finish,
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
