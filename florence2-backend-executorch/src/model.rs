//! The network behind the trait.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use florence2_core::{Ask, ModelSpec, PixelValues, RequestError, VisionSeq2Seq};

use crate::decoder::{Encoded, Group};
use crate::error::{LoadError, RunError};
use crate::folder::{Form, Part, Paths, Programs, Variants, text_config};
use crate::parts::{Decoder, Method, Parts};
use crate::program::Program;
use crate::runtime::Runtime;
use crate::tensor::{Floats, Input, Whole};

/// How to load and run a network.
///
/// ```no_run
/// use florence2_backend_executorch::ExecuTorch;
///
/// let model = ExecuTorch::default().load("Florence-2-base-ft-pte".as_ref())?;
/// # Ok::<(), florence2_backend_executorch::LoadError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ExecuTorch {
    /// Which form of the weights is taken, where several are there.
    pub variants: Variants,
    /// Files whose names do not say which part they are; in the folder, if they are not absolute.
    pub paths: Paths,
    /// The decoder's form. `None`: with a cache, if there is such a file, or else with a window.
    pub form: Option<Form>,
    /// Has tables stay in the files, which are mapped into memory, instead of reading them. That takes less memory (at the base
    /// size 0.4 GB less) and loads faster; but whoever then writes to a file in its place changes the weights of the running
    /// network, and whoever shortens it ends this process. A file may be removed, or replaced by another that is renamed to it.
    pub map: bool,
    /// Threads; `None` for as many as there are cores. ExecuTorch has them for the whole process: the first network that is
    /// loaded says how many, and who asks for another number later is refused.
    pub threads: Option<NonZeroUsize>,
}

impl ExecuTorch {
    /// Which variant of each part [`load`](Self::load) would take, by the names of the files; `None` where there is none.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn resolve(&self, folder: &Path) -> Result<Variants, LoadError> {
        let programs = Programs::find(folder)?;
        let of = |part| programs.variant(part, &self.variants, &self.paths);
        Ok(Variants { vision: of(Part::Vision), encoder: of(Part::Encoder), decoder: of(Part::Decoder) })
    }

    /// Loads a network from a folder with its programs, `*.pte`, or with a folder `executorch` that has them.
    ///
    /// Names say which part a file is, `vision`, `encoder` or `decoder`, and its methods say the rest; [`paths`](Self::paths)
    /// is for other names. The published files have a method `forward` each. `tools/export_executorch.py` of the repository
    /// writes those, and files with the methods `cross` and `step`, a decoder with a cache.
    ///
    /// If there is a `manifest.json` beside them, as that tool writes it, files must have the bytes that it says. All is read
    /// before this returns, but for what [`map`](Self::map) leaves in the files: they can be replaced under a running program.
    ///
    /// # Errors
    ///
    /// If a file is missing or broken, if a method is not what its name says, or if ExecuTorch is not there or cannot load
    /// one.
    pub fn load(&self, folder: &Path) -> Result<ExecuTorchModel, LoadError> {
        // Whether there is an ExecuTorch at all, before anything else.
        Runtime::start()?;
        let config = text_config(folder)?;
        let mut parts = Parts::find(folder, self)?;
        let Parts { vision, encoder, decoder, .. } = &parts;
        let spec = ModelSpec {
            image_width: vision.width,
            image_height: vision.height,
            image_tokens: vision.tokens,
            vocabulary_size: decoder.vocabulary(),
            max_prompt_tokens: encoder.prompt,
            max_positions: decoder.positions(),
            special: config.special,
        };
        let vocabulary = spec.vocabulary_size;
        if let Some((name, id)) = spec.special.outside(vocabulary) {
            let problem = format!("{name}_token_id is {id}, and the programs know {vocabulary} tokens");
            return Err(LoadError::Config { file: folder.join("config.json"), problem });
        }
        parts.try_out()?;
        Ok(ExecuTorchModel { id: next_id(), spec, parts })
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A loaded network. Several can run at once, each on a thread of its own.
#[derive(Debug)]
pub struct ExecuTorchModel {
    /// Tells images and states of one network from those of another.
    id: u64,
    spec: ModelSpec,
    parts: Parts,
}

/// A picture, encoded.
#[derive(Clone)]
pub struct Image {
    model: u64,
    /// `[image tokens][width]`
    tokens: Floats,
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

impl ExecuTorchModel {
    /// How the decoder remembers what it has seen.
    #[must_use]
    pub fn form(&self) -> Form {
        match self.parts.decoder {
            Decoder::Window { .. } => Form::Window,
            Decoder::Cached(_) => Form::Cached,
        }
    }

    /// The files that it was loaded from, each once.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.parts.programs.iter().map(|program| program.file().to_owned()).collect()
    }

    fn encode(&mut self, image: &Image, prompt: &[u32]) -> Result<Encoded, RunError> {
        let Parts { programs, vision, encoder, decoder } = &mut self.parts;
        let window = encoder.prompt;
        let mut ids = prompt.to_vec();
        ids.resize(window, self.spec.special.pad);
        let mut ones = vec![1; prompt.len()];
        ones.resize(window, 0);
        let (ids, mask) = (Whole::new(encoder.ids, &ids), Whole::new(encoder.mask, &ones));
        let (features, shape) = ([1, vision.tokens, vision.dimension], [1, window]);
        let inputs = [
            Input::floats(&features, &image.tokens),
            Input::whole(&shape, &ids),
            Input::whole(&shape, &mask),
        ];
        let hidden = [1, vision.tokens + window, vision.dimension];
        let values = run(programs, &encoder.method, &inputs, &[&hidden], |outputs| Floats::of(outputs[0]))?;
        decoder.look_at(programs, values, hidden, &ones)
    }

    fn decode(&mut self, state: &mut State, tokens: &[u32], logits: &mut [f32]) -> Result<(), RunError> {
        self.spec.check_step(state.rows(), state.position, tokens, logits)?;
        let Parts { programs, decoder, .. } = &mut self.parts;
        for group in &mut state.groups {
            decoder.step(programs, group, state.position, tokens, self.spec.special.pad, logits)?;
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
            let picked: Vec<(usize, usize)> = picked.collect();
            groups.extend(self.parts.decoder.pick(group, &picked, state.position));
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

/// Runs a method, and reads its outputs if they have these shapes.
pub(crate) fn run<R>(
    programs: &mut [Program],
    method: &Method,
    inputs: &[Input<'_>],
    shapes: &[&[usize]],
    read: impl FnOnce(&[&[f32]]) -> R,
) -> Result<R, RunError> {
    let part = method.part;
    let result = programs[method.program].run(&method.name, inputs, |outputs| {
        let fits = outputs.len() == shapes.len()
            && outputs.iter().zip(shapes).all(|(output, shape)| output.is(shape));
        if !fits {
            let found: Vec<&[i32]> = outputs.iter().map(|output| output.shape).collect();
            let (found, expected) = (format!("{found:?}"), format!("{shapes:?}"));
            return Err(RunError::Output { part, found, expected });
        }
        let values: Vec<&[f32]> = outputs.iter().map(|output| output.values).collect();
        Ok(read(&values))
    });
    result.map_err(|source| RunError::ExecuTorch { part, source })?
}

impl VisionSeq2Seq for ExecuTorchModel {
    type Image = Image;
    type State = State;
    type Error = RunError;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<Image>, RunError> {
        self.spec.check_pixels(pixels)?;
        let Parts { programs, vision, .. } = &mut self.parts;
        let model = self.id;
        let encode = |pixels: &PixelValues| {
            let shape = [1, 3, vision.height, vision.width];
            let picture = Floats::of(pixels.values());
            let features = [1, vision.tokens, vision.dimension];
            let inputs = [Input::floats(&shape, &picture)];
            let copy = |outputs: &[&[f32]]| Floats::of(outputs[0]);
            Ok(Image { model, tokens: run(programs, &vision.method, &inputs, &[&features], copy)? })
        };
        pixels.iter().map(encode).collect()
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, Image>]) -> Result<State, RunError> {
        if let Some(ask) = asks.iter().position(|ask| ask.image.model != self.id) {
            return Err(RequestError::ForeignImage { ask }.into());
        }
        self.spec.check_prompts(asks.iter().map(|ask| ask.prompt))?;
        let groups = asks.iter().enumerate().map(|(row, ask)| {
            let encoded = self.encode(ask.image, ask.prompt)?;
            Ok(self.parts.decoder.begin(encoded, row))
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

// A network may be loaded on one thread and run on another.
const _: fn() = || {
    fn send<T: Send>() {}
    send::<ExecuTorchModel>();
    send::<Image>();
    send::<State>();
};
