//! What both halves of the network are made of.

use rayon::prelude::*;

use crate::error::LoadError;
use crate::weights::{Tensor, Weights};
use florence2_kernels::{self as kernels, Out, PANEL, Packed, Precision, Rows, Scratch};

/// Room for what one thread works on.
#[derive(Default)]
pub(super) struct Workspace {
    pub(super) scratch: Scratch,
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) c: Vec<f32>,
}

/// A slice of this length, whatever was in it.
pub(super) fn room(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

/// What was loaded in parallel, or the first error there is: the same one whichever came about first.
pub(super) fn in_order<T: Send>(
    loaded: impl ParallelIterator<Item = Result<T, LoadError>>,
) -> Result<Vec<T>, LoadError> {
    loaded.collect::<Vec<_>>().into_iter().collect()
}

/// Packs matrices of `outputs × inputs`, one below the other.
pub(super) fn read_rows(
    tensors: &[Tensor<'_>],
    outputs: usize,
    inputs: usize,
    precision: Precision,
) -> Result<Packed, LoadError> {
    Packed::read(outputs * tensors.len(), inputs, precision, |rows, mut out| {
        let mut row = rows.start;
        while row < rows.end {
            let (tensor, first) = (row / outputs, row % outputs);
            let count = (rows.end - row).min(outputs - first);
            let (own, behind) = out.split_at_mut(count * inputs);
            tensors[tensor].read(first * inputs, own)?;
            (row, out) = (row + count, behind);
        }
        Ok(())
    })
}

/// Rows of a block that one thread works on: enough for the weights to be worth reading, few enough for all threads to
/// have something to do. A row's result does not depend on it.
pub(super) fn block(rows: usize) -> usize {
    rows.div_ceil(2 * rayon::current_num_threads()).clamp(24, 144).next_multiple_of(6)
}

/// Under so many rows a product is cut by columns: the weights are then read once, and that is what takes the time.
pub(super) const FEW: usize = 64;

#[derive(Debug)]
pub(super) struct Linear {
    weight: Packed,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// `{name}.weight` and, if there is to be one, `{name}.bias`.
    pub(super) fn load(
        weights: &Weights,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        Self::join(weights, &[name], outputs, inputs, bias, precision)
    }

    /// Several layers with the same input as one, their outputs one behind the other.
    pub(super) fn join(
        weights: &Weights,
        names: &[&str],
        outputs: usize,
        inputs: usize,
        bias: bool,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let mut tensors = Vec::with_capacity(names.len());
        let mut biases = Vec::new();
        for name in names {
            tensors.push(weights.find(&format!("{name}.weight"), &[outputs, inputs])?);
            if bias {
                biases.append(&mut weights.tensor(&format!("{name}.bias"), &[outputs])?);
            }
        }
        let weight = read_rows(&tensors, outputs, inputs, precision)?;
        Ok(Self { weight, bias: bias.then_some(biases) })
    }

    pub(super) fn new(weight: Packed, bias: Option<Vec<f32>>) -> Self {
        Self { weight, bias }
    }

    pub(super) fn inputs(&self) -> usize {
        self.weight.inputs()
    }

    pub(super) fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    pub(super) fn weight(&self) -> &Packed {
        &self.weight
    }

    /// On this thread: `out (+)= left · weightᵀ + bias`, the rows of `out` one behind the other.
    pub(super) fn apply(&self, left: Rows<'_>, out: &mut [f32], add: bool, scratch: &mut Scratch) {
        let out = Out { data: out, stride: self.outputs(), add };
        kernels::product(left, &self.weight, self.bias.as_deref(), out, scratch);
    }

    /// On all threads.
    pub(super) fn forward(&self, input: &[f32], out: &mut [f32], add: bool) {
        let rows = input.len() / self.inputs();
        if rows >= FEW {
            let block = block(rows);
            let inputs = input.par_chunks(block * self.inputs());
            out.par_chunks_mut(block * self.outputs()).zip(inputs).for_each_init(
                Workspace::default,
                |work, (out, input)| {
                    self.apply(Rows::new(input, self.inputs()), out, add, &mut work.scratch);
                },
            );
            return;
        }
        let panels = self.outputs().div_ceil(PANEL);
        // A few tasks for each thread, so that none waits long for another.
        let share = panels.div_ceil(4 * rayon::current_num_threads()).max(2);
        let width = share * PANEL;
        let mut parts = vec![0.0; panels.div_ceil(share) * rows * width];
        let columns = |index: usize| index * width..self.outputs().min((index + 1) * width);
        let shared: &[f32] = out;
        parts.par_chunks_mut(rows * width).enumerate().for_each_init(
            Workspace::default,
            |work, (index, part)| {
                let columns = columns(index);
                if add {
                    for (part, out) in part.chunks_exact_mut(width).zip(shared.chunks_exact(self.outputs())) {
                        part[..columns.len()].copy_from_slice(&out[columns.clone()]);
                    }
                }
                let bias = self.bias.as_deref().map(|bias| &bias[columns]);
                let panels = index * share..panels.min((index + 1) * share);
                let out = Out { data: part, stride: width, add };
                kernels::product_of_panels(
                    Rows::new(input, self.inputs()),
                    &self.weight,
                    panels,
                    bias,
                    out,
                    &mut work.scratch,
                );
            },
        );
        for (index, part) in parts.chunks_exact(rows * width).enumerate() {
            let columns = columns(index);
            for (part, out) in part.chunks_exact(width).zip(out.chunks_exact_mut(self.outputs())) {
                out[columns.clone()].copy_from_slice(&part[..columns.len()]);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Norm {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

/// Of all of Florence-2's norms.
const EPSILON: f32 = 1e-5;

impl Norm {
    pub(super) fn load(weights: &Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            scale: weights.tensor(&format!("{name}.weight"), &[width])?,
            shift: weights.tensor(&format!("{name}.bias"), &[width])?,
        })
    }

    pub(super) fn apply(&self, input: &[f32], out: &mut [f32]) {
        kernels::layer_norm(input, &self.scale, &self.shift, EPSILON, out);
    }

    pub(super) fn apply_in_place(&self, rows: &mut [f32]) {
        kernels::layer_norm_in_place(rows, &self.scale, &self.shift, EPSILON);
    }
}
