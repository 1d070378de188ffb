//! What comes of a question.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use florence2_core::{
    Answer, AnswerKind, BannedPhrases, Dialect, Finish, Generated, ImageSize, ModelSpec, ParseOptions,
    Prompt, Symptom, parse, parse_scored, symptoms,
};

use super::Words;

/// The answer to one question, with all that it took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output {
    /// The answer, with a score for each thing and each label.
    pub answer: Answer,
    /// The answer's text as the references decode it: special tokens are kept, and the one that the decoder starts with
    /// is in front (`</s><s>a green car</s>`).
    pub text: String,
    /// The tokens that were generated.
    pub tokens: Vec<OutputToken>,
    /// The sum of the tokens' log-probabilities, divided by `tokens ^ length_penalty`.
    pub score: f32,
    /// Why it ended. An answer that ended for its length may be cut off.
    pub finish: Finish,
    /// What looks wrong in the answer; usually nothing.
    pub symptoms: Vec<Symptom>,
    /// The other sequences, where more than one was asked for: with beams the best first.
    pub alternatives: Vec<Sequence>,
    /// What was asked.
    pub prompt: Prompt,
    /// The picture's size, in whose pixels the answer is.
    pub image_size: ImageSize,
    /// Whose rules were followed.
    pub dialect: Dialect,
    /// How long it took.
    pub timings: Timings,
    rules: Rules,
}

impl Output {
    /// `None` if there is no sequence.
    pub(super) fn new(
        prompt: &Prompt,
        image_size: ImageSize,
        rules: &Rules,
        timings: Timings,
        mut sequences: Vec<Sequence>,
    ) -> Option<Self> {
        if sequences.is_empty() {
            return None;
        }
        let Sequence { answer, text, tokens, score, finish, symptoms } = sequences.remove(0);
        Some(Self {
            answer,
            text,
            tokens,
            score,
            finish,
            symptoms,
            alternatives: sequences,
            prompt: prompt.clone(),
            image_size,
            dialect: rules.dialect,
            timings,
            rules: rules.clone(),
        })
    }

    /// How the answer was read.
    #[must_use]
    pub fn kind(&self) -> AnswerKind {
        self.prompt.answer_kind()
    }

    /// The answer letter for letter as the reference returns it, for [`HfAnswer`](florence2_core::HfAnswer).
    ///
    /// It has no scores, and in microsoft's dialect the first label of a text with regions begins with `</s>`: the
    /// token that the decoder starts with, which is no part of what was generated, nor of
    /// [`answer`](Self::answer).
    #[must_use]
    pub fn reference_answer(&self) -> Answer {
        parse(self.kind(), &self.text, self.image_size, &self.rules.options())
    }
}

/// One of several sequences that were generated for a question; the fields are those of [`Output`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sequence {
    /// The answer.
    pub answer: Answer,
    /// Its text, special tokens kept.
    pub text: String,
    /// The tokens that were generated.
    pub tokens: Vec<OutputToken>,
    /// What sequences are ranked by.
    pub score: f32,
    /// Why it ended.
    pub finish: Finish,
    /// What looks wrong in it.
    pub symptoms: Vec<Symptom>,
}

/// A token that was generated.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct OutputToken {
    /// Its id.
    pub id: u32,
    /// Its text. Empty for the first tokens of a character that several tokens make up; the last of them has it.
    pub text: String,
    /// Its log-probability in the network's own distribution; 0 where it was forced.
    pub log_prob: f32,
}

/// How long an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// To see the picture. It is the same for all prompts that the picture was asked.
    pub vision: Duration,
    /// To encode the prompts of the batch.
    pub prompt: Duration,
    /// To decode the answers of the batch.
    pub decode: Duration,
    /// How often the decoder ran: once for a token of every running sequence of the batch.
    pub steps: usize,
    /// How many questions there were in the batch.
    pub batch: usize,
}

impl Timings {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.vision + self.prompt + self.decode
    }

    /// Steps of the decoder in a second: tokens of each answer, as long as it runs.
    #[must_use]
    pub fn steps_per_second(&self) -> f64 {
        let seconds = self.decode.as_secs_f64();
        if seconds > 0.0 { self.steps as f64 / seconds } else { 0.0 }
    }
}

/// Whose rules hold for prompts and answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) dialect: Dialect,
    /// What `processor_config.json` lists.
    pub(super) banned: Option<Arc<BTreeSet<String>>>,
    pub(super) spaced_locations: bool,
}

impl Rules {
    pub(super) fn options(&self) -> ParseOptions<'_> {
        let banned = match (self.dialect, &self.banned) {
            (Dialect::Transformers, Some(own)) => BannedPhrases::Only(own),
            (Dialect::Transformers, None) | (Dialect::Microsoft, _) => BannedPhrases::Florence2,
        };
        ParseOptions::default().dialect(self.dialect).banned(banned).spaced_locations(self.spaced_locations)
    }
}

impl Words {
    /// One sequence as an answer.
    pub(super) fn read(
        &self,
        generated: Generated,
        size: ImageSize,
        prompt: &Prompt,
        spec: &ModelSpec,
    ) -> Sequence {
        let (kind, options) = (prompt.answer_kind(), self.rules.options());
        let Generated { tokens: ids, log_probs, score, finish } = generated;
        let scored: Vec<(String, f32)> = self.tokenizer.pieces(&ids).into_iter().zip(log_probs).collect();
        let answer = parse_scored(kind, &scored, size, &options);
        let mut text = self.tokenizer.decode(&[spec.special.decoder_start]);
        text.extend(scored.iter().map(|(piece, _)| piece.as_str()));
        let symptoms = symptoms(kind, &text, &options);
        let tokens = ids.into_iter().zip(scored);
        let tokens = tokens.map(|(id, (text, log_prob))| OutputToken { id, text, log_prob }).collect();
        Sequence { answer, text, tokens, score, finish, symptoms }
    }
}
