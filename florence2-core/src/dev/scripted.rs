//! A network without weights: its logits are a hash of the picture, the prompt and what was decoded.
//!
//! So every row has logits of its own, which depend on all that they should depend on, and anybody can compute them:
//! `tools/golden_generation.py` runs the same network in Python through the reference's `generate`. It keeps the
//! contract of [`VisionSeq2Seq`] to the letter, refuses what the contract refuses, and records what it was asked.

use alloc::vec::Vec;

use crate::model::{Ask, ModelSpec, PixelValues, SpecialIds, VisionSeq2Seq};

/// A logit is a whole number of these.
const UNIT: f32 = 1.0 / (1 << 20) as f32;

/// What the logits depend on, besides what they must.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Script {
    /// Another seed is another network.
    pub seed: u64,
    /// How many of the last tokens the logits depend on. With few a sequence soon repeats itself.
    pub memory: usize,
    /// Bits that logits lose: 0 spreads them over ±8, 1 over ±4, and so on.
    pub flatness: u32,
    /// What is added to the logit of `</s>`: whole, and at most 8 either way.
    pub eos_bias: i8,
    /// So many of 256 logits are minus infinity, but never that of `<s>`.
    pub holes: u8,
}

impl Default for Script {
    fn default() -> Self {
        Self { seed: 0, memory: usize::MAX, flatness: 0, eos_bias: 0, holes: 0 }
    }
}

/// The network; see the [module](self).
#[derive(Clone, Debug)]
pub struct Scripted {
    spec: ModelSpec,
    script: Script,
    /// What it was asked, in order. What was refused is not in it.
    pub calls: Vec<Call>,
}

/// What the network was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// So many pictures were encoded.
    EncodeImage(usize),
    /// So many prompts were encoded.
    EncodePrompt(usize),
    /// These tokens were fed.
    DecodeStep(Vec<u32>),
    /// These rows were selected.
    SelectRows(Vec<usize>),
}

/// A picture, which is its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptedImage(pub u64);

/// Rows, each with the hash of its question and the tokens that it was fed.
#[derive(Clone, Debug)]
pub struct ScriptedState {
    rows: Vec<(u64, Vec<u32>)>,
    spent: bool,
}

/// A call that breaks the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptedError {
    /// A picture of another size.
    #[error("a picture is {found:?}, and the network takes {expected:?} (width, height)")]
    ImageSize {
        /// What the network takes.
        expected: (usize, usize),
        /// What came.
        found: (usize, usize),
    },
    /// No ask.
    #[error("there is no ask")]
    NoAsks,
    /// A prompt without ids.
    #[error("prompt {0} is empty")]
    EmptyPrompt(usize),
    /// A prompt that does not fit beside the image tokens.
    #[error("prompt {ask} has {tokens} ids, and {most} fit")]
    LongPrompt {
        /// Which one.
        ask: usize,
        /// Its length.
        tokens: usize,
        /// The most that fit.
        most: usize,
    },
    /// An id that there is not.
    #[error("id {0} is outside of the vocabulary")]
    UnknownId(u32),
    /// Tokens or logits of another number than the rows need.
    #[error("the rows need {expected}, and {found} came")]
    Length {
        /// What the rows need.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// Every position has its token.
    #[error("all {0} positions are used up")]
    Positions(usize),
    /// A selection of nothing.
    #[error("no row is selected")]
    NoRows,
    /// A row that there is not.
    #[error("there is no row {0}")]
    UnknownRow(usize),
    /// The state had an error before.
    #[error("the state was spent by an error")]
    Spent,
}

/// The output function of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn absorb(hash: u64, value: u64) -> u64 {
    mix(hash.wrapping_add(value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

impl Scripted {
    /// A network of this description. The vocabulary has at most 2^32 tokens.
    pub fn new(spec: ModelSpec, script: Script) -> Self {
        Self { spec, script, calls: Vec::new() }
    }

    /// Of pictures of 6×4 pixels, 5 image tokens and 64 positions.
    pub fn small(vocabulary_size: usize, script: Script) -> Self {
        let spec = ModelSpec {
            image_width: 6,
            image_height: 4,
            image_tokens: 5,
            vocabulary_size,
            max_prompt_tokens: 59,
            max_positions: 64,
            special: SpecialIds::FLORENCE2,
        };
        Self::new(spec, script)
    }

    /// The logits of the token after `history`, which begins with the start token.
    pub fn logits(&self, image: ScriptedImage, prompt: &[u32], history: &[u32]) -> Vec<f32> {
        let mut logits = alloc::vec![0.0; self.spec.vocabulary_size];
        self.write(self.question(image, prompt), history, &mut logits);
        logits
    }

    fn question(&self, image: ScriptedImage, prompt: &[u32]) -> u64 {
        let hash = absorb(mix(self.script.seed), image.0);
        prompt.iter().fold(hash, |hash, &id| absorb(hash, id.into()))
    }

    fn write(&self, question: u64, history: &[u32], logits: &mut [f32]) {
        let Script { memory, flatness, eos_bias, holes, .. } = self.script;
        let seen = &history[history.len().saturating_sub(memory)..];
        let hash = seen.iter().fold(mix(question), |hash, &id| absorb(hash, id.into()));
        let SpecialIds { bos, eos, .. } = self.spec.special;
        for (logit, token) in logits.iter_mut().zip(0u32..) {
            let drawn = absorb(hash, token.into());
            if drawn & 0xff < holes.into() && token != bos {
                *logit = f32::NEG_INFINITY;
                continue;
            }
            // 24 bits, which an f32 holds exactly.
            let level = (drawn >> 40) as i32 - (1 << 23);
            let bias = if token == eos { f32::from(eos_bias) } else { 0.0 };
            *logit = (level >> flatness) as f32 * UNIT + bias;
        }
    }

    fn known(&self, ids: &[u32]) -> Result<(), ScriptedError> {
        match ids.iter().find(|&&id| id as usize >= self.spec.vocabulary_size) {
            Some(&id) => Err(ScriptedError::UnknownId(id)),
            None => Ok(()),
        }
    }

    fn step(
        &mut self,
        rows: &mut [(u64, Vec<u32>)],
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), ScriptedError> {
        let vocabulary = self.spec.vocabulary_size;
        for (expected, found) in [(rows.len(), tokens.len()), (rows.len() * vocabulary, logits.len())] {
            if expected != found {
                return Err(ScriptedError::Length { expected, found });
            }
        }
        self.known(tokens)?;
        for (((question, history), &token), logits) in
            rows.iter_mut().zip(tokens).zip(logits.chunks_mut(vocabulary))
        {
            if history.len() == self.spec.max_positions {
                return Err(ScriptedError::Positions(self.spec.max_positions));
            }
            history.push(token);
            self.write(*question, history, logits);
        }
        self.calls.push(Call::DecodeStep(tokens.to_vec()));
        Ok(())
    }
}

impl VisionSeq2Seq for Scripted {
    type Image = ScriptedImage;
    type State = ScriptedState;
    type Error = ScriptedError;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<ScriptedImage>, ScriptedError> {
        let expected = (self.spec.image_width, self.spec.image_height);
        let encode = |pixels: &PixelValues| {
            let found = (pixels.width(), pixels.height());
            if found != expected {
                return Err(ScriptedError::ImageSize { expected, found });
            }
            Ok(ScriptedImage(pixels.values().iter().fold(0, |hash, v| absorb(hash, v.to_bits().into()))))
        };
        let images = pixels.iter().map(encode).collect::<Result<_, _>>()?;
        self.calls.push(Call::EncodeImage(pixels.len()));
        Ok(images)
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, ScriptedImage>]) -> Result<ScriptedState, ScriptedError> {
        if asks.is_empty() {
            return Err(ScriptedError::NoAsks);
        }
        let most = self.spec.max_prompt_tokens;
        for (at, ask) in asks.iter().enumerate() {
            if ask.prompt.is_empty() {
                return Err(ScriptedError::EmptyPrompt(at));
            }
            if ask.prompt.len() > most {
                return Err(ScriptedError::LongPrompt { ask: at, tokens: ask.prompt.len(), most });
            }
            self.known(ask.prompt)?;
        }
        self.calls.push(Call::EncodePrompt(asks.len()));
        let rows = asks.iter().map(|ask| (self.question(*ask.image, ask.prompt), Vec::new())).collect();
        Ok(ScriptedState { rows, spent: false })
    }

    fn decode_step(
        &mut self,
        state: &mut ScriptedState,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), ScriptedError> {
        if core::mem::replace(&mut state.spent, true) {
            return Err(ScriptedError::Spent);
        }
        self.step(&mut state.rows, tokens, logits)?;
        state.spent = false;
        Ok(())
    }

    fn select_rows(&mut self, state: &mut ScriptedState, rows: &[usize]) -> Result<(), ScriptedError> {
        if core::mem::replace(&mut state.spent, true) {
            return Err(ScriptedError::Spent);
        }
        if rows.is_empty() {
            return Err(ScriptedError::NoRows);
        }
        if let Some(&row) = rows.iter().find(|&&row| row >= state.rows.len()) {
            return Err(ScriptedError::UnknownRow(row));
        }
        state.rows = rows.iter().map(|&row| state.rows[row].clone()).collect();
        state.spent = false;
        self.calls.push(Call::SelectRows(rows.to_vec()));
        Ok(())
    }
}
