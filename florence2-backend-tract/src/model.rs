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

use crate::error::{LoadError, RunError, Source};
use crate::folder::{Config, Decoder, Files, Variants, image_size};
use crate::graph::Graph;
use crate::plan::{Length, Plan, Shape, floats, ids};

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

/// What the names of the decoder's keys and values begin with, where it takes them.
const PAST: &str = "past_key_values.";

/// Key and value.
const KINDS: [&str; 2] = ["key", "value"];

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
    pub fn load(&self, folder: &Path) -> Result<TractModel, LoadError> {
        let config = Config::read(folder)?;
        let (width, height) = match self.image_size {
            Some(size) => size,
            None => image_size(folder)?,
        };
        let files = Files::find(folder, &self.variants)?;
        let parts = Parts::read(&files)?;
        let executor = executor(self.threads)?;

        let embed = Plan::new(
            "embed_tokens",
            parts.embed_tokens,
            &[ids(&[Length::Known(1), Length::Any("T")])],
            &executor,
        )?;
        let file = |file: &Path, problem: String| LoadError::Onnx { file: file.to_owned(), problem };
        let &[_, _, Some(width_of_text)] = embed.output(0)?.as_slice() else {
            return Err(file(
                &files.embed_tokens,
                "its output is not of the shape [1, tokens, width]".to_owned(),
            ));
        };
        let picture =
            floats(&[Length::Known(1), Length::Known(3), Length::Known(height), Length::Known(width)]);
        let vision = Plan::new("vision_encoder", parts.vision_encoder, &[picture], &executor)?;
        let image_tokens = match *vision.output(0)?.as_slice() {
            [_, Some(tokens), Some(width)] if width == width_of_text => tokens,
            ref other => {
                return Err(file(
                    &files.vision_encoder,
                    format!(
                        "its output is of the shape {other:?}, and [1, image tokens, {width_of_text}] is expected"
                    ),
                ));
            }
        };
        let sequence = [Length::Known(1), Length::Any("S")];
        let hidden = [Length::Known(1), Length::Any("S"), Length::Known(width_of_text)];
        let shapes: Vec<Shape> = parts
            .encoder_model
            .inputs()
            .iter()
            .map(|name| if name == "attention_mask" { ids(&sequence) } else { floats(&hidden) })
            .collect();
        let encoder_inputs = parts.encoder_model.inputs();
        let encoder_positions = positions(&parts.encoder_model);
        let encoder = Plan::new("encoder_model", parts.encoder_model, &shapes, &executor)?;

        let cross = Cross::new(&parts.first, width_of_text)?;
        let first_file = parts.first.file().to_owned();
        let cross_plan = Plan::new("decoder_model", parts.first, &cross.shapes, &executor)?;
        let &[_, Some(heads), _, Some(head)] = cross_plan.output(0)?.as_slice() else {
            return Err(file(
                &first_file,
                "its keys are not of the shape [batch, heads, length, width]".to_owned(),
            ));
        };
        let decoder_positions = positions(&parts.next);
        let step_inputs = step_inputs(&parts.next, cross.layers)?;
        let next_file = parts.next.file().to_owned();
        let sizes = [width_of_text, heads, head];
        // Where an exporter has wired the rows so that tract cannot follow their number: one by one.
        let step = match Step::new(parts.next, &step_inputs, sizes, true, &executor) {
            Err(LoadError::Tract { .. }) => {
                let mut graph = next(&files)?;
                graph.widen()?;
                drop_masks(&mut graph);
                Step::new(graph, &step_inputs, sizes, false, &executor)?
            }
            other => other?,
        };
        let &[_, _, Some(vocabulary_size)] = step.plan.output(0)?.as_slice() else {
            return Err(file(
                &next_file,
                "its logits are not of the shape [batch, 1, vocabulary]".to_owned(),
            ));
        };
        let positions = [Some(config.positions), encoder_positions, decoder_positions];
        let max_positions = positions.into_iter().flatten().min().unwrap_or_default();
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
            vocabulary_size,
            max_positions,
            special: config.special,
        };
        Ok(TractModel {
            id: next_id(),
            spec,
            width: width_of_text,
            heads: [heads, head],
            vision,
            embed,
            encoder,
            encoder_inputs,
            cross: cross_plan,
            cross_inputs: cross.inputs,
            cross_order: cross.order,
            step,
        })
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
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|source| LoadError::Threads { threads, source })?;
    Ok(Executor::MultiThread(Arc::new(pool)))
}

#[cfg(target_family = "wasm")]
fn executor(_: Option<NonZeroUsize>) -> Result<Executor, LoadError> {
    Ok(Executor::SingleThread)
}

/// The graphs, each cut down to what is asked of it.
struct Parts {
    vision_encoder: Graph,
    embed_tokens: Graph,
    encoder_model: Graph,
    /// What makes the keys and values of the cross-attention.
    first: Graph,
    /// A step of the decoder, the first among them: its past is empty then.
    next: Graph,
}

impl Parts {
    fn read(files: &Files) -> Result<Self, LoadError> {
        let vision_encoder =
            part(&files.vision_encoder, "vision_encoder", &["pixel_values"], "image_features")?;
        let embed_tokens = part(&files.embed_tokens, "embed_tokens", &["input_ids"], "inputs_embeds")?;
        let encoder_inputs = ["attention_mask", "inputs_embeds"];
        let encoder_model =
            part(&files.encoder_model, "encoder_model", &encoder_inputs, "last_hidden_state")?;
        let mut parts =
            Self { vision_encoder, embed_tokens, encoder_model, first: first(files)?, next: next(files)? };
        let mut unknown = Vec::new();
        for graph in parts.each() {
            graph.widen()?;
            drop_masks(graph);
            let operators = graph.unknown_operators();
            // Both halves of a merged decoder are of one file.
            if !operators.is_empty() && !unknown.iter().any(|(file, _)| file == graph.file()) {
                unknown.push((graph.file().to_owned(), operators));
            }
        }
        if unknown.is_empty() { Ok(parts) } else { Err(LoadError::Operators { files: unknown }) }
    }

    fn each(&mut self) -> [&mut Graph; 5] {
        let Self { vision_encoder, embed_tokens, encoder_model, first, next } = self;
        [vision_encoder, embed_tokens, encoder_model, first, next]
    }
}

/// Takes masks out of a graph, whichever it is.
fn drop_masks(graph: &mut Graph) {
    // Positions are embedded in rows of this width.
    let Some([_, width]) = graph.matrix("embed_positions") else { return };
    let encodes = graph.inputs().iter().any(|name| name == "attention_mask");
    let past = |length| if encodes { usize::MAX } else { length };
    graph.drop_masks(&[
        &|name| probe(name, [1, past(0), 5], width),
        &|name| probe(name, [2, past(3), 4], width),
        &|name| probe(name, [1, past(7), 7], width),
    ]);
}

/// An input of a run for two rows or one, whose lengths are so many; masks hide nothing.
fn probe(name: &str, [rows, past, sequence]: [usize; 3], width: usize) -> Option<Tensor> {
    match name {
        "attention_mask" | "encoder_attention_mask" => {
            Tensor::from_shape(&[rows, sequence], &vec![1i64; rows * sequence]).ok()
        }
        "inputs_embeds" => {
            Tensor::zero::<f32>(&[rows, if past == usize::MAX { sequence } else { 1 }, width]).ok()
        }
        "encoder_hidden_states" => Tensor::zero::<f32>(&[rows, sequence, width]).ok(),
        _ => {
            let decoder = place(name, PAST, "decoder").map(|_| past);
            let length = decoder.or_else(|| place(name, PAST, "encoder").map(|_| sequence))?;
            Tensor::zero::<f32>(&[rows, 2, length, width / 2]).ok()
        }
    }
}

/// The first decoder, cut down to the keys and values of the cross-attention: little is left of it.
fn first(files: &Files) -> Result<Graph, LoadError> {
    let mut graph = match &files.decoder {
        Decoder::Split { first, .. } => Graph::read(first)?,
        Decoder::Merged(file) => {
            let mut graph = Graph::read(file)?;
            graph.take_branch(false)?;
            graph
        }
    };
    graph.keep(|name| name.starts_with("present.") && name.contains(".encoder."));
    Ok(graph)
}

fn next(files: &Files) -> Result<Graph, LoadError> {
    let mut graph = match &files.decoder {
        Decoder::Split { next, .. } => Graph::read(next)?,
        Decoder::Merged(file) => {
            let mut graph = Graph::read(file)?;
            graph.take_branch(true)?;
            graph
        }
    };
    graph.keep(|name| name == "logits" || (name.starts_with("present.") && name.contains(".decoder.")));
    Ok(graph)
}

/// Reads a part, and checks its names.
fn part(file: &Path, name: &'static str, inputs: &[&str], output: &str) -> Result<Graph, LoadError> {
    let mut graph = Graph::read(file)?;
    if !graph.outputs().iter().any(|found| found == output) {
        return Err(names(&graph, name, format!("does not give {output}")));
    }
    if let Some(input) = graph.inputs().iter().find(|found| !inputs.contains(&found.as_str())) {
        return Err(names(&graph, name, format!("takes {input}")));
    }
    graph.keep(|name| name == output);
    Ok(graph)
}

fn names(graph: &Graph, part: &'static str, problem: String) -> LoadError {
    LoadError::Names {
        file: graph.file().to_owned(),
        part,
        problem,
        inputs: graph.inputs(),
        outputs: graph.outputs(),
    }
}

/// Positions of a graph's table, without the two rows that BART leaves unused in front. The file has the last word:
/// configurations with 1024 for 4096 rows were published.
fn positions(graph: &Graph) -> Option<usize> {
    graph.matrix("embed_positions").and_then(|[rows, _]| rows.checked_sub(2))
}

/// `present.{layer}.{side}.{kind}`, as the place of a layer's key or value among all.
fn place(name: &str, prefix: &str, side: &str) -> Option<usize> {
    let (layer, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let kind = rest.strip_prefix(side)?.strip_prefix('.')?;
    Some(2 * layer.parse::<usize>().ok()? + KINDS.iter().position(|&known| known == kind)?)
}

/// The first decoder, cut down to the keys and values of the cross-attention.
struct Cross {
    layers: usize,
    inputs: Vec<String>,
    shapes: Vec<Shape>,
    /// Of each output, its place among the keys and values.
    order: Vec<usize>,
}

impl Cross {
    fn new(graph: &Graph, width: usize) -> Result<Self, LoadError> {
        const PART: &str = "decoder_model";
        let outputs = graph.outputs();
        let order: Option<Vec<usize>> =
            outputs.iter().map(|output| place(output, "present.", "encoder")).collect();
        let Some(order) = order.filter(|order| is_whole(order)) else {
            let problem = "does not give present.N.encoder.key and .value for each layer".to_owned();
            return Err(names(graph, PART, problem));
        };
        let inputs = graph.inputs();
        let mut shapes = Vec::with_capacity(inputs.len());
        for input in &inputs {
            shapes.push(match input.as_str() {
                "encoder_hidden_states" => {
                    floats(&[Length::Known(1), Length::Any("S"), Length::Known(width)])
                }
                other => {
                    return Err(names(graph, PART, format!("needs {other} for the cross-attention's keys")));
                }
            });
        }
        Ok(Self { layers: order.len() / 2, inputs, shapes, order })
    }
}

/// Whether each place is there once, from 0 on, and in pairs.
fn is_whole(places: &[usize]) -> bool {
    let mut sorted = places.to_vec();
    sorted.sort_unstable();
    !sorted.is_empty() && sorted.len().is_multiple_of(2) && sorted.into_iter().eq(0..places.len())
}

/// What an input of a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Embeddings,
    Mask,
    Hidden,
    /// Key or value of what was decoded.
    Past(usize),
    /// Key or value of the cross-attention.
    Cross(usize),
}

fn step_inputs(graph: &Graph, layers: usize) -> Result<Vec<Input>, LoadError> {
    const PART: &str = "decoder_with_past_model";
    let mut inputs = Vec::new();
    for name in graph.inputs() {
        inputs.push(match name.as_str() {
            "inputs_embeds" => Input::Embeddings,
            "encoder_attention_mask" => Input::Mask,
            "encoder_hidden_states" => Input::Hidden,
            other => match (place(other, PAST, "decoder"), place(other, PAST, "encoder")) {
                (Some(place), _) if place < 2 * layers => Input::Past(place),
                (_, Some(place)) if place < 2 * layers => Input::Cross(place),
                _ => return Err(names(graph, PART, format!("takes {other}"))),
            },
        });
    }
    let all = |pick: fn(&Input) -> Option<usize>| inputs.iter().filter_map(pick).collect::<Vec<_>>();
    let past = all(|input| if let Input::Past(place) = input { Some(*place) } else { None });
    let cross = all(|input| if let Input::Cross(place) = input { Some(*place) } else { None });
    for (places, what) in [(past, "decoder"), (cross, "encoder")] {
        if places.len() != 2 * layers || !is_whole(&places) {
            let problem = format!("does not take past_key_values.N.{what}.key and .value of {layers} layers");
            return Err(names(graph, PART, problem));
        }
    }
    if !inputs.contains(&Input::Embeddings) {
        return Err(names(graph, PART, "does not take inputs_embeds".to_owned()));
    }
    Ok(inputs)
}

/// One step of the decoder.
#[derive(Debug)]
struct Step {
    plan: Plan,
    inputs: Vec<Input>,
    /// The place of each output behind the logits among the keys and values.
    order: Vec<usize>,
    /// Whether one run takes any number of rows.
    batches: bool,
}

impl Step {
    fn new(
        graph: Graph,
        inputs: &[Input],
        [width, heads, head]: [usize; 3],
        batches: bool,
        executor: &Executor,
    ) -> Result<Self, LoadError> {
        let outputs = graph.outputs();
        let order: Option<Vec<usize>> =
            outputs.iter().skip(1).map(|output| place(output, "present.", "decoder")).collect();
        let layers = inputs.iter().filter(|input| matches!(input, Input::Past(_))).count();
        let Some(order) =
            order.filter(|order| outputs[0] == "logits" && order.len() == layers && is_whole(order))
        else {
            let problem =
                "does not give logits, then present.N.decoder.key and .value for each layer".to_owned();
            return Err(names(&graph, "decoder_with_past_model", problem));
        };
        let known = Length::Known;
        let rows = if batches { Length::Any("B") } else { known(1) };
        let shape = |input: &Input| match input {
            Input::Embeddings => floats(&[rows, known(1), known(width)]),
            // One for all rows, which are of one ask.
            Input::Mask => ids(&[known(1), Length::Any("S")]),
            Input::Hidden => floats(&[known(1), Length::Any("S"), known(width)]),
            Input::Past(_) => floats(&[rows, known(heads), Length::Any("P"), known(head)]),
            Input::Cross(_) => floats(&[known(1), known(heads), Length::Any("S"), known(head)]),
        };
        let shapes: Vec<Shape> = inputs.iter().map(shape).collect();
        let plan = Plan::new("decoder_with_past_model", graph, &shapes, executor)?;
        Ok(Self { plan, inputs: inputs.to_vec(), order, batches })
    }
}

/// A loaded network.
#[derive(Debug)]
pub struct TractModel {
    /// Tells images and states of one network from those of another.
    id: u64,
    spec: ModelSpec,
    width: usize,
    /// How many there are, and how wide one is.
    heads: [usize; 2],
    vision: Plan,
    embed: Plan,
    encoder: Plan,
    encoder_inputs: Vec<String>,
    cross: Plan,
    cross_inputs: Vec<String>,
    cross_order: Vec<usize>,
    step: Step,
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
    /// Keys and values of what was decoded, `[rows][heads][position][width of a head]` each.
    past: Vec<TValue>,
}

/// An encoded prompt.
struct Encoded {
    mask: TValue,
    hidden: TValue,
    /// Keys and values of the cross-attention, `[1][heads][length][width of a head]` each.
    cross: Vec<TValue>,
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
        let mask = Tensor::from_shape(&[1, length], &vec![1i64; length]).map_err(failed)?.into_tvalue();
        let inputs = self.encoder_inputs.iter();
        let inputs =
            inputs.map(|name| if name == "attention_mask" { mask.clone() } else { both.clone() }).collect();
        let hidden = only(self.encoder.run(inputs)?, &self.encoder)?;
        let outputs = self.cross.run(self.cross_inputs.iter().map(|_| hidden.clone()).collect())?;
        Ok(Encoded { mask, hidden, cross: in_place(outputs, &self.cross_order) })
    }

    /// A row that has seen no token.
    fn start(&self, row: usize, ask: Encoded) -> Result<Group, RunError> {
        let [heads, head] = self.heads;
        let empty =
            Tensor::zero::<f32>(&[1, heads, 0, head]).map_err(|error| self.step.plan.failed(error))?;
        let past = vec![empty.into_tvalue(); ask.cross.len()];
        Ok(Group { ask: Arc::new(ask), rows: vec![row], past })
    }

    /// Feeds a token to each row of a group. Gives their logits.
    fn feed(&self, group: &mut Group, tokens: &[u32]) -> Result<TValue, RunError> {
        let failed = |error| self.step.plan.failed(error);
        let embedded = self.embed(tokens)?.into_tensor();
        let embedded = embedded.into_shape(&[tokens.len(), 1, self.width]).map_err(failed)?.into_tvalue();
        let ask = &group.ask;
        let inputs = self.step.inputs.iter().map(|input| match *input {
            Input::Embeddings => embedded.clone(),
            Input::Mask => ask.mask.clone(),
            Input::Hidden => ask.hidden.clone(),
            Input::Past(place) => group.past[place].clone(),
            Input::Cross(place) => ask.cross[place].clone(),
        });
        let inputs = inputs.collect();
        // tract is the only one that holds it now, and lets go of it when it is used.
        group.past.clear();
        let mut outputs = self.step.plan.run(inputs)?;
        let logits = outputs.remove(0);
        group.past = in_place(outputs, &self.step.order);
        Ok(logits)
    }

    fn decode(&self, state: &mut State, tokens: &[u32], logits: &mut [f32]) -> Result<(), RunError> {
        self.spec.check_step(state.rows(), state.position, tokens, logits)?;
        let vocabulary = self.spec.vocabulary_size;
        for group in &mut state.groups {
            let fed: Vec<u32> = group.rows.iter().map(|&row| tokens[row]).collect();
            let given = self.feed(group, &fed)?;
            let given = slice(&given).map_err(|error| self.step.plan.failed(error))?;
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
            if self.step.batches {
                groups.push(self.pick(Group { rows, ..group }, &places)?);
            } else {
                groups.extend(rows.into_iter().map(|row| Group { rows: vec![row], ..group.clone() }));
            }
        }
        state.groups = groups;
        Ok(())
    }

    fn pick(&self, mut group: Group, places: &[usize]) -> Result<Group, RunError> {
        for past in &mut group.past {
            if !places.iter().copied().eq(0..past.shape()[0]) {
                *past = pick_rows(past, places).map_err(|error| self.step.plan.failed(error))?;
            }
        }
        Ok(group)
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

/// The rows of a tensor at these places.
fn pick_rows(tensor: &TValue, places: &[usize]) -> Result<TValue, Source> {
    let mut shape = tensor.shape().to_vec();
    let row: usize = shape[1..].iter().product();
    shape[0] = places.len();
    let values = slice(tensor)?;
    let mut picked = Vec::with_capacity(places.len() * row);
    for &place in places {
        picked.extend_from_slice(&values[place * row..][..row]);
    }
    Ok(Tensor::from_shape(&shape, &picked)?.into_tvalue())
}

fn slice(tensor: &TValue) -> Result<&[f32], Source> {
    tensor.try_as_plain_ram()?.as_slice::<f32>()
}

/// The output of a plan that has one.
fn only(outputs: TVec<TValue>, plan: &Plan) -> Result<TValue, RunError> {
    outputs.into_iter().next().ok_or_else(|| plan.failed(format_err!("it gave nothing")))
}

/// Keys and values by their places.
fn in_place(outputs: TVec<TValue>, order: &[usize]) -> Vec<TValue> {
    let mut placed: Vec<(usize, TValue)> = order.iter().copied().zip(outputs).collect();
    placed.sort_by_key(|&(place, _)| place);
    placed.into_iter().map(|(_, value)| value).collect()
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
        let groups = groups.map(|(row, ask)| self.start(row, self.encode(ask.image, ask.prompt)?));
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
