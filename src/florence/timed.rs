//! Where the time goes.

use std::time::{Duration, Instant};

use florence2_core::{Ask, ModelSpec, PixelValues, VisionSeq2Seq};

/// A network that takes its time.
pub(super) struct Timed<'a, M> {
    model: &'a mut M,
    /// In encoding prompts.
    pub(super) prompt: Duration,
    /// How often a token was fed to each row.
    pub(super) steps: usize,
}

impl<'a, M> Timed<'a, M> {
    pub(super) fn new(model: &'a mut M) -> Self {
        Self { model, prompt: Duration::ZERO, steps: 0 }
    }
}

impl<M: VisionSeq2Seq> VisionSeq2Seq for Timed<'_, M> {
    type Image = M::Image;
    type State = M::State;
    type Error = M::Error;

    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<M::Image>, M::Error> {
        self.model.encode_image(pixels)
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, M::Image>]) -> Result<M::State, M::Error> {
        let start = Instant::now();
        let state = self.model.encode_prompt(asks);
        self.prompt += start.elapsed();
        state
    }

    fn decode_step(
        &mut self,
        state: &mut M::State,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), M::Error> {
        self.steps += 1;
        self.model.decode_step(state, tokens, logits)
    }

    fn select_rows(&mut self, state: &mut M::State, rows: &[usize]) -> Result<(), M::Error> {
        self.model.select_rows(state, rows)
    }
}
