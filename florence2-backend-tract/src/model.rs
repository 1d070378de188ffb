//! The network behind the trait.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use florence2_core::{Ask, ModelSpec, PixelValues, RequestError, VisionSeq2Seq};
use tract_linalg::multithread::Executor;
use tract_onnx::prelude::{IntoTValue, TValue, TVec, Tensor};
use tract_onnx::tract_hir::internal::{IntoTensor, format_err, tvec};

use crate::decoder::{Decoder, Encoded, Past, slice};
use crate::error::{LoadError, RunError};
use crate::folder::{Files, Variants, image_size, text_config};
use crate::graph::Graph;
use crate::parts::{Parts, positions, ready};
use crate::plan::{Context, Cost, Length, Plan, Shape, floats, ids};

/// How to load and run a network.
///
/// ```no_run
/// use florence2_backend_tract::Tract;
///
/// let model = Tract::default().load("Florence-2-base-ft".as_ref())?;
/// # Ok::<(), florence2_backend_tract::LoadError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tract {
    /// Which form of the weights is taken, where several are there.
    pub variants: Variants,
    /// Threads; `None` for as many as there are cores. Results do not depend on it.
    pub threads: Option<NonZeroUsize>,
    /// Width and height of the pictures. `None`: what the folder's `preprocessor_config.json` says, or 768×768.
    pub image_size: Option<(usize, usize)>,
}

impl Tract {
    /// The files that [`load`](Self::load) would take.
    ///
    /// # Errors
    ///
    /// If parts of the network are missing.
    pub fn files(&self, folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
        let files = Files::find(folder, &self.variants)?;
        Ok(files.all().into_iter().map(Path::to_owned).collect())
    }

    /// Loads a network from a folder in the layout of the hub's ONNX exports: `config.json`, and in `onnx/` or beside it
    /// `vision_encoder`, `embed_tokens`, `encoder_model`, and `decoder_model` with `decoder_with_past_model`, or
    /// `decoder_model_merged`.
    ///
    /// # Errors
    ///
    /// If a file is missing or broken, if a graph is not what its name says, or if tract cannot run it.
    ///
    /// A graph is a program. Damaged files are errors, but one that was made to take all memory or time can: load what you
    /// would run.
    pub fn load(&self, folder: &Path) -> Result<TractModel, LoadError> {
        self.load_as(folder, true)
    }

    /// With the rows of an ask in one run, or one by one.
    fn load_as(&self, folder: &Path, batches: bool) -> Result<TractModel, LoadError> {
        let config = text_config(folder)?;
        let (width, height) = match self.image_size {
            Some(size) => size,
            None => image_size(folder)?,
        };
        let files = Files::find(folder, &self.variants)?;
        let Parts { vision_encoder, embed_tokens, encoder_model, first, next } = Parts::read(&files)?;
        let context = Context::new(executor(self.threads)?);
        let picture = [Length::Known(1), Length::Known(3), Length::Known(height), Length::Known(width)];
        // Two halves of the work, side by side where there are threads. Within one, a graph is let go of before the next is
        // read.
        let (vision, text) = both(
            &context.executor,
            || vision(vision_encoder, &picture, &context),
            || Text::new([embed_tokens, encoder_model, first, next], &files, batches, &context),
        );
        let (text, (vision, image_tokens, vision_width)) = (text?, vision?);
        if vision_width != text.width {
            return Err(vision.wrong(format!(
                "its output is {vision_width} numbers wide, and the text's embeddings are {}",
                text.width
            )));
        }
        let Text { embed, encoder, encoder_inputs, encoder_positions, decoder, width: width_of_text } = text;
        // The files have the last word: configurations with 1024 for 4096 rows were published.
        let positions = [encoder_positions, decoder.positions];
        let max_positions = positions.into_iter().flatten().min().unwrap_or(config.positions.unwrap_or(1024));
        if image_tokens >= max_positions {
            return Err(LoadError::Config {
                file: folder.join("preprocessor_config.json"),
                problem: format!(
                    "pictures of {width}x{height} are {image_tokens} image tokens, which leave no room for a prompt in \
                     {max_positions} positions"
                ),
            });
        }
        let spec = ModelSpec {
            image_width: width,
            image_height: height,
            image_tokens,
            vocabulary_size: decoder.vocabulary,
            max_prompt_tokens: max_positions - image_tokens,
            max_positions,
            special: config.special,
        };
        Ok(TractModel {
            id: next_id(),
            spec,
            width: width_of_text,
            vision,
            embed,
            encoder,
            encoder_inputs,
            decoder,
            context,
        })
    }
}

/// The vision tower; how many tokens it makes of a picture, and how wide they are.
fn vision(
    mut graph: Graph,
    picture: &[Length],
    context: &Context,
) -> Result<(Plan, usize, usize), LoadError> {
    ready(&mut graph)?;
    let plan = Plan::new("vision_encoder", graph, &[floats(picture)], context)?;
    match *plan.output(0)?.as_slice() {
        [_, Some(tokens), Some(width)] => Ok((plan, tokens, width)),
        ref other => Err(plan.wrong(format!(
            "its output is of the shape {other:?}, and [1, image tokens, width of the text] is expected"
        ))),
    }
}

/// What is not the vision tower.
struct Text {
    embed: Plan,
    encoder: Plan,
    encoder_inputs: Vec<String>,
    /// How many the file has, where it can be told.
    encoder_positions: Option<usize>,
    decoder: Decoder,
    width: usize,
}

impl Text {
    fn new(
        [mut embed, mut encoder, first, next]: [Graph; 4],
        files: &Files,
        batches: bool,
        context: &Context,
    ) -> Result<Self, LoadError> {
        ready(&mut embed)?;
        let table = embed.matrix("");
        let tokens = ids(&[Length::Known(1), Length::Any("T")]);
        let embed = Plan::new("embed_tokens", embed, &[tokens], context)?;
        let &[_, _, Some(width)] = embed.output(0)?.as_slice() else {
            return Err(embed.wrong("its output is not of the shape [1, tokens, width]".to_owned()));
        };
        let sequence = [Length::Known(1), Length::Any("S")];
        let hidden = [Length::Known(1), Length::Any("S"), Length::Known(width)];
        ready(&mut encoder)?;
        let encoder_inputs = encoder.inputs();
        let shapes: Vec<Shape> = encoder_inputs
            .iter()
            .map(|name| if name == "attention_mask" { ids(&sequence) } else { floats(&hidden) })
            .collect();
        let encoder_positions = positions(&encoder);
        let encoder = Plan::new("encoder_model", encoder, &shapes, context)?;
        if !matches!(*encoder.output(0)?.as_slice(), [_, _, Some(given)] if given == width) {
            let problem = format!("its output is not of the shape [1, length, {width}]");
            return Err(encoder.wrong(problem));
        }
        let decoder = Decoder::new([first, next], &files.decoder, width, batches, context)?;
        if let Some(rows) = table.map(|[rows, _]| rows).filter(|&rows| rows < decoder.vocabulary) {
            let vocabulary = decoder.vocabulary;
            return Err(
                embed.wrong(format!("it embeds {rows} tokens, and the decoder gives logits of {vocabulary}"))
            );
        }
        Ok(Self { embed, encoder, encoder_inputs, encoder_positions, decoder, width })
    }
}

/// Does both, at once if there are threads for it. Neither may run a plan that has these threads: a worker that waits takes
/// other work, and tract has settings by thread.
fn both<A: Send, B: Send>(
    executor: &Executor,
    a: impl FnOnce() -> A + Send,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    match executor {
        Executor::MultiThread(pool) => pool.join(a, b),
        _ => (a(), b()),
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(not(target_family = "wasm"))]
fn executor(threads: Option<NonZeroUsize>) -> Result<Executor, LoadError> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    if threads == 1 {
        return Ok(Executor::SingleThread);
    }
    // Graphs are read and prepared on them, too, which may go deep: as a main thread may.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(8 << 20).build();
    let pool = pool.map_err(|source| LoadError::Threads { threads, source })?;
    Ok(Executor::MultiThread(Arc::new(pool)))
}

#[cfg(target_family = "wasm")]
fn executor(_: Option<NonZeroUsize>) -> Result<Executor, LoadError> {
    Ok(Executor::SingleThread)
}

/// A loaded network.
#[derive(Debug)]
pub struct TractModel {
    /// Tells images and states of one network from those of another.
    id: u64,
    spec: ModelSpec,
    width: usize,
    vision: Plan,
    embed: Plan,
    encoder: Plan,
    encoder_inputs: Vec<String>,
    decoder: Decoder,
    context: Context,
}

/// A picture, encoded.
#[derive(Clone)]
pub struct Image {
    model: u64,
    /// `[image tokens][width]`
    tokens: Vec<f32>,
}

impl Image {
    /// The image tokens, `[tokens, width of the text]`, row-major.
    pub fn as_slice(&self) -> &[f32] {
        &self.tokens
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").finish_non_exhaustive()
    }
}

/// A batch of prompts that are being answered.
pub struct State {
    model: u64,
    position: usize,
    /// None if the state is spent.
    groups: Vec<Group>,
}

/// Rows of one ask, which run together.
#[derive(Clone)]
struct Group {
    ask: Arc<Encoded>,
    /// Which rows of the batch they are.
    rows: Vec<usize>,
    past: Past,
}

impl State {
    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows.len()).sum()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("position", &self.position)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

impl TractModel {
    /// Whether the rows of an ask run together, as beams do: so unless an exporter has wired them in a way that tract cannot
    /// follow. Then they run one after the other, which gives the same.
    #[must_use]
    pub fn batches(&self) -> bool {
        self.decoder.batches
    }

    /// Does something with the network, and says what each operator took of the time, in the order of their runs; those of
    /// a run that fails, too.
    ///
    /// To look at each of them costs time, too: sums are larger than without. It needs a clock, which `wasm32-unknown-unknown`
    /// has not.
    ///
    /// ```no_run
    /// # use florence2_backend_tract::Tract;
    /// # use florence2_core::{PixelValues, VisionSeq2Seq};
    /// # let pixels = PixelValues::new(768, 768, vec![0.0; 3 * 768 * 768])?;
    /// let mut model = Tract::default().load("Florence-2-base-ft-ONNX".as_ref())?;
    /// let (image, costs) = model.profile(|model| model.encode_image(&[pixels]));
    /// let slowest = costs.iter().max_by_key(|cost| cost.time);
    /// # image?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn profile<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> (R, Vec<Cost>) {
        let recording = self.context.record();
        let result = f(self);
        (result, recording.end())
    }

    /// Embeds tokens, `[tokens][width]`.
    fn embed(&self, tokens: &[u32]) -> Result<TValue, RunError> {
        let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        let ids = Tensor::from_shape(&[1, ids.len()], &ids).map_err(|error| self.embed.failed(error))?;
        only(self.embed.run(tvec!(ids.into_tvalue()))?, &self.embed)
    }

    fn encode(&self, image: &Image, prompt: &[u32]) -> Result<Encoded, RunError> {
        let failed = |error| self.encoder.failed(error);
        let embedded = self.embed(prompt)?;
        let length = self.spec.image_tokens + prompt.len();
        let mut both = Vec::with_capacity(length * self.width);
        both.extend_from_slice(&image.tokens);
        both.extend_from_slice(slice(&embedded).map_err(failed)?);
        let both = Tensor::from_shape(&[1, length, self.width], &both).map_err(failed)?.into_tvalue();
        let mut inputs = TVec::new();
        for name in &self.encoder_inputs {
            inputs.push(if name == "attention_mask" {
                Tensor::from_shape(&[1, length], &vec![1i64; length]).map_err(failed)?.into_tvalue()
            } else {
                both.clone()
            });
        }
        self.decoder.look_at(only(self.encoder.run(inputs)?, &self.encoder)?)
    }

    fn decode(&self, state: &mut State, tokens: &[u32], logits: &mut [f32]) -> Result<(), RunError> {
        self.spec.check_step(state.rows(), state.position, tokens, logits)?;
        let vocabulary = self.spec.vocabulary_size;
        for group in &mut state.groups {
            let fed: Vec<u32> = group.rows.iter().map(|&row| tokens[row]).collect();
            let given = self.decoder.step(&group.ask, &mut group.past, self.embed(&fed)?.into_tensor())?;
            let given = self.decoder.numbers(&given)?;
            for (&row, given) in group.rows.iter().zip(given.chunks_exact(vocabulary)) {
                logits[row * vocabulary..][..vocabulary].copy_from_slice(given);
            }
        }
        state.position += 1;
        Ok(())
    }

    fn select(&self, state: &mut State, selected: &[usize]) -> Result<(), RunError> {
        RequestError::check_selection(selected, state.rows())?;
        let mut groups = Vec::new();
        for group in std::mem::take(&mut state.groups) {
            // New rows, and the places in the group that they come from.
            let place = |row: &usize| group.rows.iter().position(|own| own == row);
            let picked = selected.iter().enumerate().filter_map(|(new, row)| Some((new, place(row)?)));
            let (rows, places): (Vec<usize>, Vec<usize>) = picked.unzip();
            if places.is_empty() {
                continue;
            }
            if self.decoder.batches {
                let mut group = Group { rows, ..group };
                self.decoder.pick(&mut group.past, &places)?;
                groups.push(group);
            } else {
                groups.extend(rows.into_iter().map(|row| Group { rows: vec![row], ..group.clone() }));
            }
        }
        state.groups = groups;
        Ok(())
    }

    fn check_state(&self, state: &State) -> Result<(), RunError> {
        if state.model != self.id {
            return Err(RequestError::ForeignState.into());
        }
        if state.groups.is_empty() {
            return Err(RequestError::Spent.into());
        }
        Ok(())
    }
}

/// The output of a plan that has one.
fn only(outputs: TVec<TValue>, plan: &Plan) -> Result<TValue, RunError> {
    outputs.into_iter().next().ok_or_else(|| plan.failed(format_err!("it gave nothing")))
}

impl VisionSeq2Seq for TractModel {
    type Image = Image;
    type State = State;
    type Error = RunError;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<Image>, RunError> {
        self.spec.check_pixels(pixels)?;
        let encode = |pixels: &PixelValues| {
            let failed = |error| self.vision.failed(error);
            let shape = [1, 3, pixels.height(), pixels.width()];
            let picture = Tensor::from_shape(&shape, pixels.values()).map_err(failed)?;
            let features = only(self.vision.run(tvec!(picture.into_tvalue()))?, &self.vision)?;
            let tokens = slice(&features).map_err(failed)?.to_vec();
            Ok(Image { model: self.id, tokens })
        };
        pixels.iter().map(encode).collect()
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, Image>]) -> Result<State, RunError> {
        if let Some(ask) = asks.iter().position(|ask| ask.image.model != self.id) {
            return Err(RequestError::ForeignImage { ask }.into());
        }
        self.spec.check_prompts(asks.iter().map(|ask| ask.prompt))?;
        let groups = asks.iter().enumerate();
        let groups = groups.map(|(row, ask)| {
            let (image, past) = (ask.image, self.decoder.nothing()?);
            Ok(Group { ask: Arc::new(self.encode(image, ask.prompt)?), rows: vec![row], past })
        });
        let groups = groups.collect::<Result<_, RunError>>()?;
        Ok(State { model: self.id, position: 0, groups })
    }

    fn decode_step(&mut self, state: &mut State, tokens: &[u32], logits: &mut [f32]) -> Result<(), RunError> {
        self.check_state(state)?;
        let result = self.decode(state, tokens, logits);
        if result.is_err() {
            state.groups.clear();
        }
        result
    }

    fn select_rows(&mut self, state: &mut State, rows: &[usize]) -> Result<(), RunError> {
        self.check_state(state)?;
        let result = self.select(state, rows);
        if result.is_err() {
            state.groups.clear();
        }
        result
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use florence2_core::dev::conformance::{Fixture, check_all, picture};

    use super::*;

    #[test]
    fn rows_that_run_one_by_one_keep_the_laws() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/onnx");
        let mut model = Tract::default().load_as(&folder, false).unwrap();
        assert!(!model.decoder.batches);
        let fixture = Fixture {
            pixels: &[picture(0, 192, 192), picture(1, 192, 192)],
            prompts: &[&[0, 5, 6, 7, 8, 9, 2], &[0, 11, 2], &[0, 20, 21, 22, 2]],
            tokens: &[0, 17, 4, 90, 33],
            tolerance: 1e-4,
            use_up_positions: false,
        };
        if let Err(violation) = check_all(&mut model, &fixture) {
            panic!("{violation}");
        }
    }
}
