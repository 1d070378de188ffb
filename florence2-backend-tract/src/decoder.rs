//! The decoder: the keys and values of the cross-attention, and steps.

use std::ops::Range;

use tract_onnx::prelude::{IntoTValue, TValue, TVec, Tensor};
use tract_onnx::tract_hir::internal::{format_err, tvec};

use crate::error::{LoadError, RunError, Source};
use crate::folder::DecoderFiles;
use crate::graph::Graph;
use crate::parts::{PAST, names, next, place, positions, ready};
use crate::plan::{Context, Length, Plan, Shape, floats, ids};

const FIRST: &str = "decoder_model";
const NEXT: &str = "decoder_with_past_model";

#[derive(Debug)]
pub(crate) struct Decoder {
    width: usize,
    heads: usize,
    /// Width of a head.
    head: usize,
    pub(crate) vocabulary: usize,
    /// How many the file has, where it can be told.
    pub(crate) positions: Option<usize>,
    cross: Plan,
    /// The place of each output among the keys and values.
    cross_order: Vec<usize>,
    step: Plan,
    inputs: Vec<Input>,
    /// The place of each output behind the logits among the keys and values.
    order: Vec<usize>,
    /// Whether one run takes any number of rows.
    pub(crate) batches: bool,
}

/// An encoded prompt.
pub(crate) struct Encoded {
    mask: TValue,
    hidden: TValue,
    /// Keys and values of the cross-attention, `[1][heads][length][width of a head]` each.
    cross: Vec<TValue>,
}

/// Keys and values of what was decoded, `[rows][heads][position][width of a head]` each.
pub(crate) type Past = Vec<TValue>;

impl Decoder {
    /// From the graphs that [`Parts`](crate::parts::Parts) has of these files.
    pub(crate) fn new(
        [mut first, mut step]: [Graph; 2],
        files: &DecoderFiles,
        width: usize,
        batches: bool,
        context: &Context,
    ) -> Result<Self, LoadError> {
        ready(&mut first)?;
        let outputs = first.outputs();
        let cross_order: Option<Vec<usize>> =
            outputs.iter().map(|output| place(output, "present.", "encoder")).collect();
        let Some(cross_order) = cross_order.filter(|order| is_whole(order)) else {
            let problem = "does not give present.N.encoder.key and .value for each layer".to_owned();
            return Err(names(&first, FIRST, problem));
        };
        if let Some(other) = first.inputs().iter().find(|name| *name != "encoder_hidden_states") {
            return Err(names(&first, FIRST, format!("needs {other} for the cross-attention's keys")));
        }
        let hidden = floats(&[Length::Known(1), Length::Any("S"), Length::Known(width)]);
        let cross = Plan::new(FIRST, first, &[hidden], context)?;
        let [heads, head] = heads_of(&cross, 0..cross_order.len())?;

        ready(&mut step)?;
        let positions = positions(&step);
        let inputs = step_inputs(&step, cross_order.len() / 2)?;
        let order = step_order(&step, cross_order.len())?;
        let shapes = |rows| step_shapes(&inputs, rows, [width, heads, head]);
        // Where an exporter has wired the rows so that tract cannot follow their number: one by one.
        let rows = if batches { Length::Any("B") } else { Length::Known(1) };
        let (step, batches) = match Plan::new(NEXT, step, &shapes(rows), context) {
            Err(LoadError::Tract { .. }) if batches => {
                let mut graph = next(files)?;
                ready(&mut graph)?;
                (Plan::new(NEXT, graph, &shapes(Length::Known(1)), context)?, false)
            }
            plan => (plan?, batches),
        };
        let &[_, Some(1), Some(vocabulary)] = step.output(0)?.as_slice() else {
            return Err(step.wrong("its logits are not of the shape [batch, 1, vocabulary]".to_owned()));
        };
        if heads_of(&step, 1..order.len() + 1)? != [heads, head] {
            return Err(step.wrong(format!("its keys are not of {heads} heads of a width of {head}")));
        }
        Ok(Self {
            width,
            heads,
            head,
            vocabulary,
            positions,
            cross,
            cross_order,
            step,
            inputs,
            order,
            batches,
        })
    }

    /// Prepares what steps look up of an encoder's output, `[1][length][width]`.
    pub(crate) fn look_at(&self, hidden: TValue) -> Result<Encoded, RunError> {
        let length = hidden.shape()[1];
        let mask = Tensor::from_shape(&[1, length], &vec![1i64; length]);
        let mask = mask.map_err(|error| self.cross.failed(error))?.into_tvalue();
        let outputs = self.cross.run(tvec!(hidden.clone()))?;
        Ok(Encoded { mask, hidden, cross: in_place(outputs, &self.cross_order) })
    }

    /// What one row has seen that has seen no token.
    pub(crate) fn nothing(&self) -> Result<Past, RunError> {
        let empty = Tensor::zero::<f32>(&[1, self.heads, 0, self.head]);
        let empty = empty.map_err(|error| self.step.failed(error))?.into_tvalue();
        Ok(vec![empty; self.order.len()])
    }

    /// Feeds a token to each row, by its embedding: `[rows][width]` in any shape. Gives their logits,
    /// `[rows][1][vocabulary]`.
    pub(crate) fn step(&self, ask: &Encoded, past: &mut Past, embedded: Tensor) -> Result<TValue, RunError> {
        let rows = past.first().map_or(1, |past| past.shape()[0]);
        let embedded = embedded.into_shape(&[rows, 1, self.width]);
        let embedded = embedded.map_err(|error| self.step.failed(error))?.into_tvalue();
        let inputs = self.inputs.iter().map(|input| match *input {
            Input::Embeddings => embedded.clone(),
            Input::Mask => ask.mask.clone(),
            Input::Hidden => ask.hidden.clone(),
            Input::Past(place) => past[place].clone(),
            Input::Cross(place) => ask.cross[place].clone(),
        });
        let inputs = inputs.collect();
        // tract is the only one that holds it now, and lets go of it when it is used.
        past.clear();
        let mut outputs = self.step.run(inputs)?;
        if outputs.iter().any(|output| output.shape().first() != Some(&rows)) {
            return Err(self.step.failed(format_err!("it gave other than {rows} rows")));
        }
        let logits = outputs.remove(0);
        *past = in_place(outputs, &self.order);
        Ok(logits)
    }

    /// Makes each row what the one at its place was.
    pub(crate) fn pick(&self, past: &mut Past, places: &[usize]) -> Result<(), RunError> {
        for past in past {
            if !places.iter().copied().eq(0..past.shape()[0]) {
                *past = pick_rows(past, places).map_err(|error| self.step.failed(error))?;
            }
        }
        Ok(())
    }

    /// The logits of a step as numbers.
    pub(crate) fn numbers<'a>(&self, logits: &'a TValue) -> Result<&'a [f32], RunError> {
        slice(logits).map_err(|error| self.step.failed(error))
    }
}

/// How many heads the keys and values at these outputs have, and how wide one is: the same in all.
fn heads_of(plan: &Plan, outputs: Range<usize>) -> Result<[usize; 2], LoadError> {
    let mut found = None;
    for index in outputs {
        match *plan.output(index)?.as_slice() {
            [_, Some(heads), _, Some(head)] if found.is_none_or(|found| found == [heads, head]) => {
                found = Some([heads, head]);
            }
            _ => {
                found = None;
                break;
            }
        }
    }
    found.ok_or_else(|| plan.wrong("its keys are not of the shape [batch, heads, length, width]".to_owned()))
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
    let mut inputs = Vec::new();
    for name in graph.inputs() {
        inputs.push(match name.as_str() {
            "inputs_embeds" => Input::Embeddings,
            "encoder_attention_mask" => Input::Mask,
            "encoder_hidden_states" => Input::Hidden,
            other => match (place(other, PAST, "decoder"), place(other, PAST, "encoder")) {
                (Some(place), _) if place < 2 * layers => Input::Past(place),
                (_, Some(place)) if place < 2 * layers => Input::Cross(place),
                _ => return Err(names(graph, NEXT, format!("takes {other}"))),
            },
        });
    }
    let all = |pick: fn(&Input) -> Option<usize>| inputs.iter().filter_map(pick).collect::<Vec<_>>();
    let past = all(|input| if let Input::Past(place) = input { Some(*place) } else { None });
    let cross = all(|input| if let Input::Cross(place) = input { Some(*place) } else { None });
    for (places, what) in [(past, "decoder"), (cross, "encoder")] {
        if places.len() != 2 * layers || !is_whole(&places) {
            let problem = format!("does not take past_key_values.N.{what}.key and .value of {layers} layers");
            return Err(names(graph, NEXT, problem));
        }
    }
    if !inputs.contains(&Input::Embeddings) {
        return Err(names(graph, NEXT, "does not take inputs_embeds".to_owned()));
    }
    Ok(inputs)
}

/// Where each output behind the logits belongs.
fn step_order(graph: &Graph, count: usize) -> Result<Vec<usize>, LoadError> {
    let outputs = graph.outputs();
    let order: Option<Vec<usize>> =
        outputs.iter().skip(1).map(|output| place(output, "present.", "decoder")).collect();
    let is_logits = outputs.first().is_some_and(|output| output == "logits");
    order.filter(|order| is_logits && order.len() == count && is_whole(order)).ok_or_else(|| {
        let problem = "does not give logits, then present.N.decoder.key and .value for each layer".to_owned();
        names(graph, NEXT, problem)
    })
}

fn step_shapes(inputs: &[Input], rows: Length, [width, heads, head]: [usize; 3]) -> Vec<Shape> {
    let (known, any) = (Length::Known, Length::Any);
    let shape = |input: &Input| match input {
        Input::Embeddings => floats(&[rows, known(1), known(width)]),
        // One for all rows, which are of one ask.
        Input::Mask => ids(&[known(1), any("S")]),
        Input::Hidden => floats(&[known(1), any("S"), known(width)]),
        Input::Past(_) => floats(&[rows, known(heads), any("P"), known(head)]),
        Input::Cross(_) => floats(&[known(1), known(heads), any("S"), known(head)]),
    };
    inputs.iter().map(shape).collect()
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

pub(crate) fn slice(tensor: &TValue) -> Result<&[f32], Source> {
    tensor.try_as_plain_ram()?.as_slice::<f32>()
}

/// Keys and values by their places.
fn in_place(outputs: TVec<TValue>, order: &[usize]) -> Vec<TValue> {
    let mut placed: Vec<(usize, TValue)> = order.iter().copied().zip(outputs).collect();
    placed.sort_by_key(|&(place, _)| place);
    placed.into_iter().map(|(_, value)| value).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use std::path::{Path, PathBuf};

    use safetensors::SafeTensors;
    use tract_linalg::multithread::Executor;

    use super::*;
    use crate::folder::Variant;
    use crate::parts::first;

    fn floats_of(file: &Path, name: &str) -> Vec<f32> {
        let bytes = std::fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        match tensor.dtype() {
            safetensors::Dtype::F32 => {
                tensor.data().chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
            }
            safetensors::Dtype::F16 => tensor
                .data()
                .chunks_exact(2)
                .map(|x| half::f16::from_le_bytes(x.try_into().unwrap()).to_f32())
                .collect(),
            safetensors::Dtype::I64 => tensor
                .data()
                .chunks_exact(8)
                .map(|x| i64::from_le_bytes(x.try_into().unwrap()) as f32)
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn here(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    /// The logits of twelve steps of the tiny random checkpoint, and what transformers has of its fp32 weights.
    fn logits(files: &DecoderFiles) -> (Vec<f32>, Vec<f32>) {
        let tiny = here("../florence2-backend-candle/testdata/tiny/microsoft");
        let expected = tiny.join("expected.safetensors");
        let hidden = floats_of(&expected, "encoder.0");
        let table = floats_of(&tiny.join("model.safetensors"), "language_model.model.shared.weight");
        let width = 32;
        let mut graphs = [first(files).unwrap(), next(files).unwrap()];
        for graph in &mut graphs {
            assert_eq!(graph.unknown_operators(), Vec::<String>::new());
        }
        let decoder =
            Decoder::new(graphs, files, width, true, &Context::new(Executor::SingleThread)).unwrap();
        assert!(decoder.batches, "masks have stayed in {files:?}");
        assert_eq!((decoder.positions, decoder.vocabulary), (Some(64), 120));
        let hidden = Tensor::from_shape(&[1, hidden.len() / width, width], &hidden).unwrap();
        let ask = decoder.look_at(hidden.into_tvalue()).unwrap();
        let mut past = decoder.nothing().unwrap();
        let mut found = Vec::new();
        for token in floats_of(&expected, "forced") {
            let row = &table[token as usize * width..][..width];
            let given = decoder.step(&ask, &mut past, Tensor::from_shape(&[width], row).unwrap()).unwrap();
            found.extend_from_slice(decoder.numbers(&given).unwrap());
        }
        (found, floats_of(&expected, "logits.0"))
    }

    /// Root of the mean square of the difference, in parts of that of what is expected.
    fn distance(found: &[f32], expected: &[f32]) -> f64 {
        assert_eq!(found.len(), expected.len());
        let square = |x: f32| f64::from(x) * f64::from(x);
        let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
        (difference / expected.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
    }

    fn split(variant: Variant) -> DecoderFiles {
        let file = |part: &str| here(&format!("testdata/tiny/onnx/{part}{}.onnx", variant.suffix()));
        DecoderFiles::Split { first: file("decoder_model"), next: file("decoder_with_past_model") }
    }

    #[test]
    fn a_merged_decoder_in_f16_is_that_of_its_weights() {
        let files = DecoderFiles::Merged(here("testdata/tiny/onnx/decoder_model_merged_fp16.onnx"));
        let (found, expected) = logits(&files);
        let distance = distance(&found, &expected);
        assert!(distance < 1e-3, "{distance}");
    }

    #[test]
    fn an_encoder_and_embeddings_of_8_bits_are_near_to_what_they_were() {
        let tiny = here("../florence2-backend-candle/testdata/tiny/microsoft");
        let expected = tiny.join("expected.safetensors");
        let table = floats_of(&tiny.join("model.safetensors"), "language_model.model.shared.weight");
        let plan = |part: &'static str, shape: fn(&str) -> Shape| {
            let mut graph = Graph::read(&here(&format!("testdata/tiny/onnx/{part}_int8.onnx"))).unwrap();
            assert_eq!(graph.unknown_operators(), Vec::<String>::new());
            ready(&mut graph).unwrap();
            let shapes: Vec<Shape> = graph.inputs().iter().map(|name| shape(name)).collect();
            assert_eq!(shapes.len(), 1, "masks have stayed");
            Plan::new(part, graph, &shapes, &Context::new(Executor::SingleThread)).unwrap()
        };
        let embed = plan("embed_tokens", |_| ids(&[Length::Known(1), Length::Any("T")]));
        let all: Vec<i64> = (0..120).collect();
        let found = embed.run(tvec!(Tensor::from_shape(&[1, 120], &all).unwrap().into_tvalue())).unwrap();
        let far = distance(slice(&found[0]).unwrap(), &table);
        assert!(far < 0.02 && far > 1e-4, "{far}");

        let encoder =
            plan("encoder_model", |_| floats(&[Length::Known(1), Length::Any("S"), Length::Known(32)]));
        let mut input = floats_of(&expected, "image_features.0");
        for token in floats_of(&expected, "prompt.0") {
            input.extend_from_slice(&table[token as usize * 32..][..32]);
        }
        let input = Tensor::from_shape(&[1, input.len() / 32, 32], &input).unwrap();
        let found = encoder.run(tvec!(input.into_tvalue())).unwrap();
        let far = distance(slice(&found[0]).unwrap(), &floats_of(&expected, "encoder.0"));
        assert!(far < 0.05 && far > 1e-4, "{far}");
    }

    #[test]
    fn narrow_weights_differ_by_what_they_were_rounded() {
        // Weights of 8 bits are within a 256th of their greatest, of 4 bits within an 8th of their block's; a wrong order,
        // scale or zero point has nothing to do with the network any more, a distance of 1 and over.
        for (variant, bound) in [(Variant::Int8, 0.05), (Variant::Q4, 0.3), (Variant::Bnb4, 0.3)] {
            let (found, expected) = logits(&split(variant));
            let distance = distance(&found, &expected);
            assert!(distance < bound && distance > 1e-4, "{variant}: {distance}");
        }
    }
}
