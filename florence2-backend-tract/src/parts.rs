//! The parts of the network as graphs, each checked by its names and cut down to what is asked of it.

use std::path::Path;

use tract_onnx::prelude::Tensor;

use crate::error::LoadError;
use crate::folder::{DecoderFiles, Files};
use crate::graph::Graph;

/// What the names of the decoder's keys and values begin with, where it takes them.
pub(crate) const PAST: &str = "past_key_values.";

/// Key and value.
const KINDS: [&str; 2] = ["key", "value"];

/// The graphs, each cut down to what is asked of it, and without the numbers of large tensors yet.
pub(crate) struct Parts {
    pub(crate) vision_encoder: Graph,
    pub(crate) embed_tokens: Graph,
    pub(crate) encoder_model: Graph,
    /// What makes the keys and values of the cross-attention.
    pub(crate) first: Graph,
    /// A step of the decoder, the first among them: its past is empty then.
    pub(crate) next: Graph,
}

impl Parts {
    pub(crate) fn read(files: &Files) -> Result<Self, LoadError> {
        let vision_encoder =
            part(&files.vision_encoder, "vision_encoder", &["pixel_values"], "image_features")?;
        let embed_tokens = part(&files.embed_tokens, "embed_tokens", &["input_ids"], "inputs_embeds")?;
        let encoder_inputs = ["attention_mask", "inputs_embeds"];
        let encoder_model =
            part(&files.encoder_model, "encoder_model", &encoder_inputs, "last_hidden_state")?;
        let (first, next) = (first(&files.decoder)?, next(&files.decoder)?);
        let mut parts = Self { vision_encoder, embed_tokens, encoder_model, first, next };
        let mut unknown = Vec::new();
        for graph in parts.each() {
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

/// Reads what is left of a graph, and makes it one that tract runs well, whichever part it is.
pub(crate) fn ready(graph: &mut Graph) -> Result<(), LoadError> {
    graph.widen()?;
    // Positions are embedded in rows of this width; only parts that embed them have masks.
    let Some([rows, width]) = graph.matrix("embed_positions") else { return Ok(()) };
    // An encoder sees its whole sequence at once, and a decoder one token beside its past.
    let encodes = graph.inputs().iter().any(|name| name == "attention_mask");
    let run = |rows, past: usize, length| Run { rows, past: (!encodes).then_some(past), length, width };
    let runs = [run(1, 0, 5), run(2, 3, 4), run(1, rows.saturating_sub(3).min(1000), 700)];
    graph.drop_masks(&runs.each_ref().map(|run| move |name: &str| run.input(name)));
    Ok(())
}

/// The lengths of a run in which masks hide nothing.
struct Run {
    rows: usize,
    /// Tokens that were decoded before, in a decoder.
    past: Option<usize>,
    /// Of the encoder's sequence.
    length: usize,
    width: usize,
}

impl Run {
    /// What an input takes. Two heads do for shapes.
    fn input(&self, name: &str) -> Option<Tensor> {
        let &Self { rows, past, length, width } = self;
        let input = match name {
            "attention_mask" | "encoder_attention_mask" => {
                Tensor::from_shape(&[rows, length], &vec![1i64; rows * length])
            }
            "inputs_embeds" => Tensor::zero::<f32>(&[rows, if past.is_some() { 1 } else { length }, width]),
            "encoder_hidden_states" => Tensor::zero::<f32>(&[rows, length, width]),
            _ => {
                let decoded = place(name, PAST, "decoder").and(past);
                let looked_up = || place(name, PAST, "encoder").map(|_| length);
                Tensor::zero::<f32>(&[rows, 2, decoded.or_else(looked_up)?, width / 2])
            }
        };
        input.ok()
    }
}

/// The first decoder, cut down to the keys and values of the cross-attention: little is left of it.
pub(crate) fn first(files: &DecoderFiles) -> Result<Graph, LoadError> {
    let mut graph = match files {
        DecoderFiles::Split { first, .. } => Graph::read(first)?,
        DecoderFiles::Merged(file) => {
            let mut graph = Graph::read(file)?;
            graph.take_branch(false)?;
            graph
        }
    };
    graph.keep(|name| name.starts_with("present.") && name.contains(".encoder."));
    Ok(graph)
}

/// A step of the decoder.
pub(crate) fn next(files: &DecoderFiles) -> Result<Graph, LoadError> {
    let mut graph = match files {
        DecoderFiles::Split { next, .. } => Graph::read(next)?,
        DecoderFiles::Merged(file) => {
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

pub(crate) fn names(graph: &Graph, part: &'static str, problem: String) -> LoadError {
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
pub(crate) fn positions(graph: &Graph) -> Option<usize> {
    graph.matrix("embed_positions").and_then(|[rows, _]| rows.checked_sub(2))
}

/// `present.{layer}.{side}.{kind}`, as the place of a layer's key or value among all.
pub(crate) fn place(name: &str, prefix: &str, side: &str) -> Option<usize> {
    let (layer, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let kind = rest.strip_prefix(side)?.strip_prefix('.')?;
    Some(2 * layer.parse::<usize>().ok()? + KINDS.iter().position(|&known| known == kind)?)
}
