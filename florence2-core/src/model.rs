//! What a backend is: the network behind one trait, and what goes in.
//!
//! The network is cut where its costs are: a picture is encoded once, a prompt is asked of it many times, and a token
//! is decoded many times for each prompt. What one request leaves behind lives in a value ([`VisionSeq2Seq::State`]),
//! not in the model, so that dropping it is all that it takes to begin again.

use alloc::vec::Vec;

/// Florence-2's network: pictures and prompts in, logits out.
///
/// Implemented by the backends, driven by `generate`. `florence2_core::dev::conformance` has the laws that each
/// method must keep.
///
/// Methods take `&mut self`, because a device does one thing at a time.
pub trait VisionSeq2Seq {
    /// One picture as the decoder's side sees it: the projected image tokens. Holds for any number of prompts.
    type Image;
    /// The encoded prompts of a batch of rows, and what their decoders have seen so far. Dropping it ends the request.
    type State;
    /// Why the network could not run.
    type Error: core::error::Error + Send + Sync + 'static;

    /// What the network takes and gives.
    fn spec(&self) -> &ModelSpec;

    /// Runs the vision tower over each picture: one image for each, in order, the same as if it came alone.
    ///
    /// # Errors
    ///
    /// If the size of a picture is not the one that [`spec`](Self::spec) names, or the device fails.
    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<Self::Image>, Self::Error>;

    /// Encodes a batch of questions. Row *i* of the state is `asks[i]`, and no token has been decoded.
    ///
    /// Prompts may differ in length; padding and masks are the backend's business and change no row's result
    /// by more than rounding.
    ///
    /// # Errors
    ///
    /// If there is no ask, if a prompt is empty, too long for the network or holds an id outside of the
    /// vocabulary, or if the device fails.
    fn encode_prompt(&mut self, asks: &[Ask<'_, Self::Image>]) -> Result<Self::State, Self::Error>;

    /// Feeds one token to each row, and writes each row's logits of the next: `rows × vocabulary_size`, row after row.
    ///
    /// # Errors
    ///
    /// If `tokens` or `logits` do not fit the state's rows, if an id is outside of the vocabulary, if all positions
    /// are used up, or if the device fails. After an error the state is spent.
    fn decode_step(
        &mut self,
        state: &mut Self::State,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), Self::Error>;

    /// Makes row *i* of the state what row `rows[i]` was. Rows can be repeated, reordered and dropped.
    ///
    /// # Errors
    ///
    /// If `rows` is empty or names a row that there is not, or if the device fails. After an error the state is spent.
    fn select_rows(&mut self, state: &mut Self::State, rows: &[usize]) -> Result<(), Self::Error>;
}

impl<M: VisionSeq2Seq + ?Sized> VisionSeq2Seq for &mut M {
    type Image = M::Image;
    type State = M::State;
    type Error = M::Error;

    fn spec(&self) -> &ModelSpec {
        (**self).spec()
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<Self::Image>, Self::Error> {
        (**self).encode_image(pixels)
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, Self::Image>]) -> Result<Self::State, Self::Error> {
        (**self).encode_prompt(asks)
    }

    fn decode_step(
        &mut self,
        state: &mut Self::State,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), Self::Error> {
        (**self).decode_step(state, tokens, logits)
    }

    fn select_rows(&mut self, state: &mut Self::State, rows: &[usize]) -> Result<(), Self::Error> {
        (**self).select_rows(state, rows)
    }
}

/// What a network takes and gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Width of the pictures that the network takes, in pixels.
    pub image_width: usize,
    /// Height of the pictures that the network takes, in pixels.
    pub image_height: usize,
    /// Image tokens that stand before a prompt.
    pub image_tokens: usize,
    /// Logits of one row. Checkpoints may have more rows than their tokenizer has tokens.
    pub vocabulary_size: usize,
    /// Tokens of the longest prompt, its two ends included.
    pub max_prompt_tokens: usize,
    /// Positions of the decoder: so many tokens can be fed, the start token among them.
    pub max_positions: usize,
    /// The ids with a meaning of their own.
    pub special: SpecialIds,
}

/// What every backend checks before its network runs.
impl ModelSpec {
    /// Checks that pictures have the size that the network takes.
    ///
    /// # Errors
    ///
    /// [`RequestError::ImageSize`]
    pub fn check_pixels(&self, pixels: &[PixelValues]) -> Result<(), RequestError> {
        let (expected_width, expected_height) = (self.image_width, self.image_height);
        for pixels in pixels {
            let (width, height) = (pixels.width(), pixels.height());
            if (width, height) != (expected_width, expected_height) {
                return Err(RequestError::ImageSize { width, height, expected_width, expected_height });
            }
        }
        Ok(())
    }

    /// Checks the prompts of a batch.
    ///
    /// # Errors
    ///
    /// If there is none, or if one is empty, too long, or holds an id that there is not.
    pub fn check_prompts<'a>(
        &self,
        prompts: impl IntoIterator<Item = &'a [u32]>,
    ) -> Result<(), RequestError> {
        let mut none = true;
        for (ask, prompt) in prompts.into_iter().enumerate() {
            none = false;
            if prompt.is_empty() {
                return Err(RequestError::EmptyPrompt { ask });
            }
            let room = self.max_prompt_tokens;
            if prompt.len() > room {
                return Err(RequestError::PromptTooLong { ask, tokens: prompt.len(), room });
            }
            self.check_tokens(prompt)?;
        }
        if none { Err(RequestError::NoAsk) } else { Ok(()) }
    }

    /// Checks what is given to a step of `rows` rows that have seen `position` tokens.
    ///
    /// # Errors
    ///
    /// If the lengths do not fit, if there is no position left, or if there is no such id.
    pub fn check_step(
        &self,
        rows: usize,
        position: usize,
        tokens: &[u32],
        logits: &[f32],
    ) -> Result<(), RequestError> {
        if tokens.len() != rows {
            return Err(RequestError::Rows { what: "tokens", given: tokens.len(), expected: rows, rows });
        }
        let expected = rows * self.vocabulary_size;
        if logits.len() != expected {
            return Err(RequestError::Rows { what: "logits", given: logits.len(), expected, rows });
        }
        self.check_tokens(tokens)?;
        if position >= self.max_positions {
            return Err(RequestError::Positions { positions: self.max_positions });
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), RequestError> {
        let vocabulary = self.vocabulary_size;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(RequestError::Token { token, vocabulary }),
            None => Ok(()),
        }
    }
}

/// What was asked of a network that cannot be, by [`ModelSpec`] and the laws of [`VisionSeq2Seq`]. Backends have it among
/// their errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A picture of a size that the network was not loaded for.
    #[error(
        "the picture has {width}x{height} values, and the network takes {expected_width}x{expected_height}"
    )]
    ImageSize {
        /// Its width.
        width: usize,
        /// Its height.
        height: usize,
        /// The width that is needed.
        expected_width: usize,
        /// The height that is needed.
        expected_height: usize,
    },
    /// An image that another network encoded.
    #[error("ask {ask}'s image was encoded by another network than this one")]
    ForeignImage {
        /// Index of the ask.
        ask: usize,
    },
    /// A state of another network.
    #[error("the state was made by another network than this one")]
    ForeignState,
    /// There was nothing to encode.
    #[error("there is no ask; a batch has at least one")]
    NoAsk,
    /// A prompt without a token.
    #[error("ask {ask}'s prompt is empty; it has at least `<s>` and `</s>`")]
    EmptyPrompt {
        /// Index of the ask.
        ask: usize,
    },
    /// A prompt that does not fit.
    #[error("ask {ask}'s prompt has {tokens} tokens, and the network takes {room}")]
    PromptTooLong {
        /// Index of the ask.
        ask: usize,
        /// Its length.
        tokens: usize,
        /// How many there may be.
        room: usize,
    },
    /// A token that there is not.
    #[error("token {token} is not in the network's vocabulary of {vocabulary}")]
    Token {
        /// The id.
        token: u32,
        /// Ids there are.
        vocabulary: usize,
    },
    /// A number of tokens or logits that does not fit the state.
    #[error("{given} {what} were given, and {rows} rows need {expected}")]
    Rows {
        /// What they are.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many are needed.
        expected: usize,
        /// Rows of the state.
        rows: usize,
    },
    /// A selection of a row that there is not.
    #[error("row {row} was selected, and there are {rows}")]
    NoSuchRow {
        /// The row.
        row: usize,
        /// Rows of the state.
        rows: usize,
    },
    /// A selection of no row.
    #[error("no row was selected; drop the state to end a request")]
    NoRow,
    /// No position is left.
    #[error("all {positions} positions of the decoder are used up")]
    Positions {
        /// How many there are.
        positions: usize,
    },
    /// An earlier step failed.
    #[error("the state is spent, because an earlier step failed; encode the prompt again")]
    Spent,
}

impl RequestError {
    /// Checks which of `count` rows are selected.
    ///
    /// # Errors
    ///
    /// If none is, or one that there is not.
    pub fn check_selection(selected: &[usize], count: usize) -> Result<(), Self> {
        match selected.iter().find(|&&row| row >= count) {
            _ if selected.is_empty() => Err(Self::NoRow),
            Some(&row) => Err(Self::NoSuchRow { row, rows: count }),
            None => Ok(()),
        }
    }
}

/// The token ids that generation itself needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialIds {
    /// `<s>`, which is also what the first generated token is forced to be.
    pub bos: u32,
    /// `<pad>`.
    pub pad: u32,
    /// `</s>`, which ends an answer.
    pub eos: u32,
    /// What is fed first: `</s>`.
    pub decoder_start: u32,
}

impl SpecialIds {
    /// The ids of all published checkpoints.
    pub const FLORENCE2: Self = Self { bos: 0, pad: 1, eos: 2, decoder_start: 2 };

    /// The first that is not in a vocabulary of this size, by its name.
    #[must_use]
    pub fn outside(&self, vocabulary: usize) -> Option<(&'static str, u32)> {
        let Self { bos, pad, eos, decoder_start } = *self;
        [("bos", bos), ("pad", pad), ("eos", eos), ("decoder_start", decoder_start)]
            .into_iter()
            .find(|&(_, id)| usize::try_from(id).map_or(true, |id| id >= vocabulary))
    }
}

impl Default for SpecialIds {
    fn default() -> Self {
        Self::FLORENCE2
    }
}

/// One question: a picture and the ids of a prompt, `<s>` and `</s>` included.
#[derive(Debug)]
pub struct Ask<'a, I> {
    /// The picture, as [`VisionSeq2Seq::encode_image`] returned it.
    pub image: &'a I,
    /// The prompt's ids.
    pub prompt: &'a [u32],
}

// Not derived: an image need not be `Copy` for a reference to it to be.
impl<I> Copy for Ask<'_, I> {}
impl<I> Clone for Ask<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

/// One picture as numbers: three planes (red, green, blue), each row after row, rescaled and normalised.
#[derive(Clone, PartialEq)]
pub struct PixelValues {
    width: usize,
    height: usize,
    values: Vec<f32>,
}

impl PixelValues {
    /// From `3 × height × width` values.
    ///
    /// # Errors
    ///
    /// If a side is zero, or `values` has another length.
    pub fn new(width: usize, height: usize, values: Vec<f32>) -> Result<Self, PixelValuesError> {
        let expected = width.checked_mul(height).and_then(|area| area.checked_mul(3));
        if width == 0 || height == 0 || expected != Some(values.len()) {
            return Err(PixelValuesError { width, height, values: values.len() });
        }
        Ok(Self { width, height, values })
    }

    /// Pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of a plane.
    pub fn height(&self) -> usize {
        self.height
    }

    /// `[3, height, width]`, row-major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

impl core::fmt::Debug for PixelValues {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PixelValues")
            .field("width", &self.width)
            .field("height", &self.height)
            .finish_non_exhaustive()
    }
}

/// A number of values that does not make a picture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a picture of {width}x{height} pixels has 3 * {height} * {width} values, and no side of zero; {values} were given"
)]
pub struct PixelValuesError {
    width: usize,
    height: usize,
    values: usize,
}
