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
    /// Positions of the decoder: so many tokens can be fed, the start token among them. The encoder has as many, for
    /// the image tokens and the prompt together.
    pub max_positions: usize,
    /// The ids with a meaning of their own.
    pub special: SpecialIds,
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
