//! Operators in the place of several, with kernels of our own.
//!
//! Found after tract has decluttered a graph, when all exporters' ways of writing one look alike. What is not found is left as
//! it is, and computed by tract.

use std::sync::Arc;

use florence2_kernels::{self as kernels, Attention, Rows, Scratch};
use tract_linalg::multithread::par_chunks_mut;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::array::Slice;
use tract_onnx::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_core::ops::einsum::EinSum;
use tract_onnx::tract_core::ops::math::{Add, Mul, Sub};
use tract_onnx::tract_core::ops::nn::{Reduce, Reducer, RmsNorm, Softmax, SoftmaxKind};
use tract_onnx::tract_hir::internal::{
    DimLike, EvalContext, EvalOp, Op, StaticName, TypedOp, as_op, ensure, format_err, op_as_typed_op,
    op_out_of_plan, tvec,
};

use crate::plan::caught;

/// Replaces what is found.
pub(crate) fn fuse(model: &mut TypedModel) -> TractResult<()> {
    // Nodes are only ever added: those that are there keep their numbers.
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        // What is odd enough to be an error here is not what is looked for, and left to tract.
        let found = caught(|| {
            if node.op_is::<RmsNorm>() {
                LayerNorm::find(model, node)
            } else if node.op_is::<Softmax>() {
                Sdpa::find(model, node)
            } else {
                Ok(None)
            }
        });
        if let Ok(Some(patch)) = found {
            patch.apply(model)?;
        }
    }
    model.compact()
}

/// The only node that takes what this one gives.
fn successor<'a>(model: &'a TypedModel, node: &TypedNode) -> Option<&'a TypedNode> {
    match node.outputs.as_slice() {
        [output] if !model.output_outlets().ok()?.iter().any(|outlet| outlet.node == node.id) => {
            match output.successors.as_slice() {
                [successor] => Some(model.node(successor.node)),
                _ => None,
            }
        }
        _ => None,
    }
}

fn is_binary<T: tract_onnx::tract_core::ops::binary::BinMiniOp>(node: &TypedNode) -> bool {
    node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<T>() && op.1.is_none())
}

/// Of an operator with two inputs, one of which is known: the other, and what is known.
fn with_constant(model: &TypedModel, node: &TypedNode) -> Option<(OutletId, Arc<Tensor>)> {
    let &[a, b] = node.inputs.as_slice() else { return None };
    let known = |outlet| model.outlet_fact(outlet).ok()?.konst.clone();
    match (known(a), known(b)) {
        (None, Some(known)) => Some((a, known)),
        (Some(known), None) => Some((b, known)),
        _ => None,
    }
}

fn numbers(tensor: &Tensor) -> Option<&[f32]> {
    tensor.try_as_plain_ram().ok()?.as_slice::<f32>().ok()
}

fn only_number(tensor: &Tensor) -> Option<f32> {
    match numbers(tensor)? {
        &[number] => Some(number),
        _ => None,
    }
}

/// Numbers that are compared by their bits, as operators must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bits(u32);

impl Bits {
    fn new(number: f32) -> Self {
        Self(number.to_bits())
    }

    fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// Normalises along an axis to mean 0 and variance 1, then scales and shifts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LayerNorm {
    axis: usize,
    epsilon: Bits,
    scale: Arc<Tensor>,
    shift: Arc<Tensor>,
}

impl LayerNorm {
    /// `RmsNorm(x - mean(x)) · scale + shift`, which is what tract makes of it.
    fn find(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let Some((norm, input, last)) = Self::match_at(model, node) else { return Ok(None) };
        let mut patch = TypedModelPatch::default();
        let tap = patch.tap_model(model, input)?;
        let out = patch.wire_node(&node.name, norm, &[tap])?;
        patch.shunt_outside(model, last.into(), out[0])?;
        Ok(Some(patch))
    }

    /// The operator, what it takes, and the node that it stands for.
    fn match_at(model: &TypedModel, node: &TypedNode) -> Option<(Self, OutletId, usize)> {
        let norm = node.op_as::<RmsNorm>()?;
        let axis = norm.axis;
        let epsilon = norm.eps.cast_to_scalar::<f32>().ok()?;
        let centred = model.node(node.inputs.first()?.node);
        let &[input, mean] = centred.inputs.as_slice() else { return None };
        let fact = model.outlet_fact(input).ok()?;
        let length = fact.shape.get(axis)?.to_usize().ok()?;
        if fact.datum_type != f32::datum_type() || !is_binary::<Sub>(centred) {
            return None;
        }
        // The mean is a sum times a number.
        let mean = model.node(mean.node);
        let (sum, factor) = with_constant(model, mean).filter(|_| is_binary::<Mul>(mean))?;
        let factor = only_number(&factor)?;
        let sum = model.node(sum.node);
        let reduce = sum.op_as::<Reduce>()?;
        let is_mean = reduce.reducer == Reducer::Sum
            && reduce.axes.as_slice() == [axis]
            && sum.inputs.as_slice() == [input]
            && (factor * length as f32 - 1.0).abs() < 1e-6;
        let scaled = successor(model, node).filter(|node| is_binary::<Mul>(node))?;
        let shifted = successor(model, scaled).filter(|node| is_binary::<Add>(node))?;
        let along = |node: &TypedNode| {
            let (_, constant) = with_constant(model, node)?;
            // One number for each place on the axis, and nothing else.
            let is_along = constant.len() == length && constant.shape().get(axis) == Some(&length);
            (is_along && constant.rank() == fact.rank()).then_some(constant)
        };
        let (scale, shift) = (along(scaled)?, along(shifted)?);
        numbers(&scale)?;
        numbers(&shift)?;
        // What it gives has the shape of what it takes: nothing else is broadcast.
        let is_same = model.outlet_fact(shifted.id.into()).ok()?.shape == fact.shape;
        (is_mean && is_same).then_some((
            Self { axis, epsilon: Bits::new(epsilon), scale, shift },
            input,
            shifted.id,
        ))
    }
}

impl Op for LayerNorm {
    fn name(&self) -> StaticName {
        "LayerNorm".into()
    }

    op_as_typed_op!();
}

impl EvalOp for LayerNorm {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let mut tensor = one(inputs)?.into_tensor();
        let length = self.scale.len();
        let shape = tensor.shape();
        ensure!(shape.get(self.axis) == Some(&length), "{shape:?} is not {length} long along {}", self.axis);
        let (inner, rank): (usize, usize) = (shape[self.axis + 1..].iter().product(), shape.len());
        let (scale, shift) = (numbers(&self.scale), numbers(&self.shift));
        let (Some(scale), Some(shift)) = (scale, shift) else { return Err(format_err!("no numbers")) };
        let epsilon = self.epsilon.get();
        let all = tensor.len();
        let mut view = tensor.try_as_plain_ram_mut()?;
        let data = view.as_slice_mut::<f32>()?;
        if all == 0 {
            return Ok(tvec!(tensor.into_tvalue()));
        }
        // By the axis, not by the lengths, which may be the rows of a batch: sums are of another order below.
        if self.axis + 1 == rank {
            par_chunks_mut(data, length, all, |_, rows| {
                kernels::layer_norm_in_place(rows, scale, shift, epsilon);
                Ok(())
            })?;
            return Ok(tvec!(tensor.into_tvalue()));
        }
        let mut moments = vec![[0.0; 2]; inner];
        for block in data.chunks_exact_mut(length * inner) {
            // In few pieces, so that what a thread reads of a row is long.
            par_chunks_mut(&mut moments, 1, all, |first, moments| {
                kernels::moments_of_columns(block, inner, first, epsilon, moments);
                Ok(())
            })?;
            par_chunks_mut(block, inner, all, |first, rows| {
                let places = scale[first..].iter().zip(&shift[first..]);
                for (row, (&scale, &shift)) in rows.chunks_exact_mut(inner).zip(places) {
                    kernels::normalise_row(row, &moments, scale, shift);
                }
                Ok(())
            })?;
        }
        Ok(tvec!(tensor.into_tvalue()))
    }
}

impl TypedOp for LayerNorm {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(f32::fact(inputs[0].shape.clone())))
    }

    as_op!();
}

/// Where the numbers of an operand are. The last of its axes is a head's width.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    /// Its axis for each axis of the batch.
    batch: TVec<Option<usize>>,
    /// The axis of its rows: queries, or what is attended to. None for one row.
    rows: Option<usize>,
    /// The part of an axis that it is, if not all: axis, and where it begins.
    part: Option<(usize, usize)>,
}

/// `softmax(scale · queries · keysᵀ) · values` over a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sdpa {
    queries: View,
    keys: View,
    values: View,
    out: View,
    /// Where the length of each axis of the output comes from: which of the three operands, and its axis.
    shape: TVec<(usize, usize)>,
    /// Whether there are so few queries that keys are read as they lie.
    few: bool,
    scale: Bits,
}

/// An axis of a product, by where it is in the operands and in the result.
struct Role {
    a: Option<usize>,
    b: Option<usize>,
    out: Option<usize>,
}

/// The axes of a product of two.
fn roles(product: &EinSum) -> Option<Vec<Role>> {
    let is_plain = product.q_params.is_none() && product.operating_dt == f32::datum_type();
    if product.axes.input_count() != 2 || !is_plain {
        return None;
    }
    let place = |places: &[usize]| match places {
        [] => Some(None),
        &[place] => Some(Some(place)),
        // A diagonal, or the like.
        _ => None,
    };
    let axes = product.axes.iter_all_axes();
    axes.map(|axis| {
        Some(Role { a: place(&axis.inputs[0])?, b: place(&axis.inputs[1])?, out: place(&axis.outputs[0])? })
    })
    .collect()
}

impl Sdpa {
    fn find(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let Some((attend, inputs, last)) = Self::match_at(model, node) else { return Ok(None) };
        let mut patch = TypedModelPatch::default();
        let taps = patch.taps(model, &inputs)?;
        let out = patch.wire_node(&node.name, attend, &taps)?;
        patch.shunt_outside(model, last.into(), out[0])?;
        Ok(Some(patch))
    }

    fn match_at(model: &TypedModel, node: &TypedNode) -> Option<(Self, [OutletId; 3], usize)> {
        let softmax = node.op_as::<Softmax>()?;
        let fact = model.outlet_fact(node.inputs[0]).ok()?;
        let rank = fact.rank();
        let is_plain = softmax.quant_output_dt.is_none()
            && softmax.kind == SoftmaxKind::Softmax
            && softmax.axes.as_slice() == [rank.checked_sub(1)?]
            && fact.datum_type == f32::datum_type();
        let (mut scores, mut scale) = (model.node(node.inputs[0].node), 1.0);
        if is_binary::<Mul>(scores) {
            let (input, factor) = with_constant(model, scores)?;
            scale = only_number(&factor)?;
            if model.outlet_fact(input).ok()?.shape != fact.shape {
                return None;
            }
            scores = model.node(input.node);
        }
        // The kernel looks for the largest score before it scales.
        if !(is_plain && scale > 0.0 && scale.is_finite()) {
            return None;
        }
        // Nothing else may want the scores: they do not come to be.
        for inner in [scores.id, node.inputs[0].node] {
            successor(model, model.node(inner))?;
        }
        let (first, second) = (scores.op_as::<EinSum>()?, successor(model, node)?);
        let (mixed, first_roles) = (second.op_as::<EinSum>()?, roles(first)?);
        let second_roles = roles(mixed)?;

        // Of the first product: which of its operands has the keys, whose rows are the last axis of the scores?
        let token = first_roles.iter().find(|role| role.out == Some(rank - 1))?;
        let keys_are_a = match (token.a, token.b) {
            (Some(_), None) => true,
            (None, Some(_)) => false,
            _ => return None,
        };
        let of = |role: &Role| if keys_are_a { (role.b, role.a) } else { (role.a, role.b) };
        let weights_are_a = second.inputs[0].node == node.id;
        let of_second = |role: &Role| if weights_are_a { (role.a, role.b) } else { (role.b, role.a) };
        let &[a, b] = scores.inputs.as_slice() else { return None };
        let (queries, keys) = if keys_are_a { (b, a) } else { (a, b) };
        let values = second.inputs[usize::from(weights_are_a)];
        let shape = |outlet: OutletId| {
            let fact = model.outlet_fact(outlet).ok()?;
            (fact.datum_type == f32::datum_type()).then_some(&fact.shape)
        };
        let (query_shape, key_shape, value_shape) = (shape(queries)?, shape(keys)?, shape(values)?);
        let is_one = |shape: &[TDim], axis: Option<usize>| {
            axis.is_none_or(|axis| shape[axis].to_usize().is_ok_and(|length| length == 1))
        };

        let mut found = Self {
            queries: View { batch: tvec!(), rows: None, part: None },
            keys: View { batch: tvec!(), rows: None, part: None },
            values: View { batch: tvec!(), rows: None, part: None },
            out: View { batch: tvec!(), rows: None, part: None },
            shape: tvec!(),
            few: false,
            scale: Bits::new(scale),
        };
        // Where the axes of the scores are in the output, and who has them.
        let mut out_shape: Vec<Option<(usize, usize)>> = vec![None; shape(second.id.into())?.len()];
        let mut depth = None;
        for role in &first_roles {
            match (of(role), role.out) {
                // What is summed over.
                ((Some(query), Some(key)), None) if depth.is_none() && query + 1 == query_shape.len() => {
                    depth = Some((query, key));
                }
                // Axes of no length.
                ((query, key), None) if is_one(query_shape, query) && is_one(key_shape, key) => {}
                // Rows of keys, which the second product sums over.
                ((None, Some(key)), Some(out)) if out + 1 == rank => {
                    let role = second_roles.iter().find(|role| of_second(role).0 == Some(out))?;
                    let (_, value) = of_second(role);
                    if role.out.is_some() {
                        return None;
                    }
                    found.keys.rows = Some(key);
                    found.values.rows = Some(value?);
                    // A product would take one value for all keys.
                    if key_shape[key] != value_shape[value?] {
                        return None;
                    }
                }
                // Rows of queries, or of a batch.
                ((Some(query), key), Some(score)) => {
                    let role = second_roles.iter().find(|role| of_second(role).0 == Some(score))?;
                    let (_, value) = of_second(role);
                    let out = role.out?;
                    out_shape[out] = Some((0, query));
                    if key.is_none() && value.is_none() && found.queries.rows.is_none() {
                        found.queries.rows = Some(query);
                        found.out.rows = Some(out);
                    } else {
                        found.queries.batch.push(Some(query));
                        found.keys.batch.push(key);
                        found.values.batch.push(value);
                        found.out.batch.push(Some(out));
                    }
                }
                _ => return None,
            }
        }
        // A head's width in the output, and axes of no length.
        for role in &second_roles {
            match (of_second(role), role.out) {
                ((None, Some(value)), Some(out)) => {
                    if out + 1 != out_shape.len() || value + 1 != value_shape.len() {
                        return None;
                    }
                    out_shape[out] = Some((2, value));
                }
                ((None, value), None) if is_one(value_shape, value) => {}
                ((Some(_), _), _) => {}
                _ => return None,
            }
        }
        let (query, key) = depth?;
        let width = query_shape[query].to_usize().ok()?;
        // The kernel's heads are as wide for values as for keys, and lie side by side.
        let is_whole = key + 1 == key_shape.len()
            && key_shape[key].to_usize().ok()? == width
            && value_shape.last()?.to_usize().ok()? == width
            && width > 0
            && found.keys.rows.is_some();
        if !is_whole {
            return None;
        }
        found.shape = out_shape.into_iter().collect::<Option<_>>()?;
        if found.shape.last() != Some(&(2, value_shape.len() - 1)) {
            return None;
        }
        // By what is known of their number: one that each run decides may be the rows of a batch, whose results do not depend
        // on how many there are.
        found.few =
            found.queries.rows.is_none_or(|axis| query_shape[axis].to_usize().is_ok_and(|rows| rows <= FEW));
        // Queries may be of one row for all of a batch, which is of another shape then.
        let out = found.out_shape([query_shape, key_shape, value_shape]);
        if out.as_slice() != &**shape(second.id.into())? {
            return None;
        }
        let mut inputs = [queries, keys, values];
        for (input, view) in inputs.iter_mut().zip([&mut found.queries, &mut found.keys, &mut found.values]) {
            view.fold_slice(model, input);
        }
        // Axes that are taken from a shape must not be those that were cut.
        let cut = [found.queries.part, found.keys.part, found.values.part];
        if found.shape.iter().any(|&(operand, axis)| cut[operand].is_some_and(|(at, _)| at == axis)) {
            return None;
        }
        Some((found, inputs, second.id))
    }

    /// The shape of what it gives, from those of what it takes.
    fn out_shape<T: Clone>(&self, shapes: [&[T]; 3]) -> TVec<T> {
        self.shape.iter().map(|&(operand, axis)| shapes[operand][axis].clone()).collect()
    }
}

impl View {
    /// Takes a part of a tensor where it lies, instead of its copy.
    fn fold_slice(&mut self, model: &TypedModel, outlet: &mut OutletId) {
        let node = model.node(outlet.node);
        let Some(slice) = node.op_as::<Slice>() else { return };
        let (Ok(start), Some(&input)) = (slice.start.to_usize(), node.inputs.first()) else { return };
        // Only of one place: lengths are then those of axes that are not cut.
        let one = |end: &TDim| end.to_usize().is_ok_and(|end| end == start + 1);
        let is_batch = self.batch.contains(&Some(slice.axis)) || self.rows == Some(slice.axis);
        let is_width = model.outlet_fact(input).map_or(true, |fact| slice.axis + 1 == fact.rank());
        if one(&slice.end) && !is_batch && !is_width {
            self.part = Some((slice.axis, start));
            *outlet = input;
        }
    }

    /// Distances between neighbours along the axes of a tensor of this shape.
    fn strides(&self, shape: &[usize]) -> TractResult<Strides> {
        let all = strides(shape);
        let stride = |axis: Option<usize>| match axis {
            // One for all of the batch.
            Some(axis) if shape[axis] == 1 => 0,
            Some(axis) => all[axis],
            None => 0,
        };
        let first = match self.part {
            Some((axis, start)) => {
                ensure!(start < shape[axis], "{start} is outside of {shape:?}");
                start * all[axis]
            }
            None => 0,
        };
        Ok(Strides {
            first,
            batch: self.batch.iter().map(|&axis| stride(axis)).collect(),
            rows: self.rows.map_or(1, |axis| shape[axis]),
            row: self.rows.map_or(0, |axis| all[axis]),
        })
    }
}

struct Strides {
    /// Where the numbers begin.
    first: usize,
    /// Along each axis of the batch.
    batch: TVec<usize>,
    rows: usize,
    /// From one row to the next.
    row: usize,
}

impl Strides {
    /// The rows of a place in the batch, `width` numbers each.
    fn rows<'a>(&self, data: &'a [f32], place: &[usize], width: usize) -> Rows<'a> {
        let first = self.first + self.batch.iter().zip(place).map(|(stride, at)| stride * at).sum::<usize>();
        Rows { data: &data[first..], rows: self.rows, stride: self.row.max(width) }
    }
}

fn strides(shape: &[usize]) -> TVec<usize> {
    let mut strides: TVec<usize> = tvec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

impl Op for Sdpa {
    fn name(&self) -> StaticName {
        "ScaledDotProductAttention".into()
    }

    op_as_typed_op!();
}

/// Queries up to which keys are read as they lie: to pack them pays only with more.
const FEW: usize = 3;

impl EvalOp for Sdpa {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let [queries, keys, values] = inputs.as_slice() else {
            return Err(format_err!("it takes three inputs, and got {}", inputs.len()));
        };
        let shapes = [queries.shape(), keys.shape(), values.shape()];
        let out_shape = self.out_shape(shapes);
        let width = *out_shape.last().ok_or_else(|| format_err!("no shape"))?;
        let mut out = Tensor::zero::<f32>(&out_shape)?;
        let (at, all) = (strides(&out_shape), out.len());
        let [query_at, key_at, value_at] = [
            self.queries.strides(shapes[0])?,
            self.keys.strides(shapes[1])?,
            self.values.strides(shapes[2])?,
        ];
        ensure!(key_at.rows == value_at.rows, "{} keys, {} values", key_at.rows, value_at.rows);
        for (view, shape) in [(&self.queries, shapes[0]), (&self.keys, shapes[1]), (&self.values, shapes[2])]
        {
            let fits = view.batch.iter().zip(&self.out.batch).all(|(&own, &out)| {
                let (own, out) = (own.map(|axis| shape[axis]), out.map(|axis| out_shape[axis]));
                own.is_none_or(|own| own == 1 || Some(own) == out)
            });
            ensure!(fits && shape.last() == Some(&width), "{shape:?} does not go with {out_shape:?}");
        }
        if all == 0 || key_at.rows == 0 {
            return Ok(tvec!(out.into_tvalue()));
        }
        let numbers = [queries, keys, values].map(|tensor| {
            let plain = tensor.try_as_plain_ram()?;
            plain.as_slice::<f32>()
        });
        let [queries, keys, values] = numbers;
        let (queries, keys, values) = (queries?, keys?, values?);
        // Threads share the batch along the axes that come first in the output: what one writes lies together. Where rows
        // come first there is one window, and little to do.
        let is_batch = |axis: usize| self.out.batch.contains(&Some(axis));
        let shared = (0..out_shape.len()).take_while(|&axis| is_batch(axis)).count();
        let piece: usize = out_shape[shared..].iter().product();
        // The axes of the batch within a piece.
        let within: Vec<usize> = (shared..out_shape.len()).filter(|&axis| is_batch(axis)).collect();
        let out_row = self.out.rows.map_or(width, |axis| at[axis]);
        let scale = self.scale.get();
        let attend = |first: usize, pieces: &mut [f32]| {
            let mut scratch = Scratch::default();
            let mut scores = Vec::new();
            let mut place = vec![0; self.out.batch.len()];
            for (index, piece) in (first..).zip(pieces.chunks_exact_mut(piece)) {
                // The axes that threads share, and after them those within.
                let mut axis_places = vec![0; out_shape.len()];
                let mut rest = index;
                for axis in (0..shared).rev() {
                    axis_places[axis] = rest % out_shape[axis];
                    rest /= out_shape[axis];
                }
                let many: usize = within.iter().map(|&axis| out_shape[axis]).product();
                for inner in 0..many {
                    let (mut rest, mut offset) = (inner, 0);
                    for &axis in within.iter().rev() {
                        axis_places[axis] = rest % out_shape[axis];
                        rest /= out_shape[axis];
                        offset += axis_places[axis] * at[axis];
                    }
                    for (place, axis) in place.iter_mut().zip(&self.out.batch) {
                        *place = axis.map_or(0, |axis| axis_places[axis]);
                    }
                    let queries = query_at.rows(queries, &place, width);
                    let keys = key_at.rows(keys, &place, width);
                    let values = value_at.rows(values, &place, width);
                    let out = &mut piece[offset..];
                    if self.few {
                        for row in 0..queries.rows {
                            let query = &queries.data[row * queries.stride..][..width];
                            let out = &mut out[row * out_row..][..width];
                            kernels::attend_rows(query, keys, values, scale, out, &mut scores);
                        }
                    } else {
                        let attention = Attention { queries, keys, values, width, scale };
                        attention.head(0, out, out_row, &mut scratch);
                    }
                }
            }
            Ok(())
        };
        let mut view = out.try_as_plain_ram_mut()?;
        // As many multiplications as there are, for the threshold under which threads do not pay.
        par_chunks_mut(view.as_slice_mut::<f32>()?, piece, all.saturating_mul(key_at.rows), attend)?;
        Ok(tvec!(out.into_tvalue()))
    }
}

impl TypedOp for Sdpa {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let &[queries, keys, values] = inputs else { return Err(format_err!("it takes three inputs")) };
        let shape = self.out_shape([&queries.shape, &keys.shape, &values.shape]);
        Ok(tvec!(f32::fact(shape)))
    }

    as_op!();
}

fn one(inputs: TVec<TValue>) -> TractResult<TValue> {
    let count = inputs.len();
    let mut inputs = inputs.into_iter();
    match (inputs.next(), inputs.next()) {
        (Some(input), None) => Ok(input),
        _ => Err(format_err!("it takes one input, and got {count}")),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use tract_linalg::multithread::Executor;
    use tract_onnx::tract_hir::internal::AxesMapping;

    use super::*;

    /// Numbers that are all over the place.
    fn noise(seed: u32, shape: &[usize]) -> Tensor {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (f64::from(state) / f64::from(u32::MAX)) as f32 * 4.0 - 2.0
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        Tensor::from_shape(shape, &values).unwrap()
    }

    fn count(model: &TypedModel, name: &str) -> usize {
        model.nodes().iter().filter(|node| node.op().name() == name).count()
    }

    /// Runs a model as it is, and fused: with how many operators of this name?
    fn check(model: TypedModel, inputs: &[Tensor], name: &str) -> usize {
        let mut fused = model.clone();
        fuse(&mut fused).unwrap();
        let found = count(&fused, name);
        let inputs: TVec<TValue> = inputs.iter().map(|input| input.clone().into_tvalue()).collect();
        let expected = model.into_runnable().unwrap().run(inputs.clone()).unwrap();
        let given = fused.into_runnable().unwrap().run(inputs).unwrap();
        assert_eq!(given.len(), expected.len());
        for (given, expected) in given.iter().zip(&expected) {
            assert_eq!(given.shape(), expected.shape());
            let (given, expected) = (numbers(given).unwrap(), numbers(expected).unwrap());
            for (given, expected) in given.iter().zip(expected) {
                assert!((given - expected).abs() <= 2e-5 * (1.0 + expected.abs()), "{given}, not {expected}");
            }
        }
        found
    }

    /// What surrounds a `RmsNorm` in a layer norm, with a mean and constants as they are told.
    fn layer_norm(shape: &[usize], axis: usize, mean_axis: usize, factor: f32, along: usize) -> TypedModel {
        let mut model = TypedModel::default();
        let x = model.add_source("x", f32::fact(shape)).unwrap();
        let all_ones: TVec<usize> = tvec![1; shape.len()];
        let reduce = Reduce { axes: tvec![mean_axis], reducer: Reducer::Sum };
        let sum = model.wire_node("sum", reduce, &[x]).unwrap();
        let factor = model.add_const("factor", Tensor::from_shape(&all_ones, &[factor]).unwrap()).unwrap();
        let mean = model.wire_node("mean", TypedBinOp(Box::new(Mul), None), &[sum[0], factor]).unwrap();
        let centred = model.wire_node("centred", TypedBinOp(Box::new(Sub), None), &[x, mean[0]]).unwrap();
        let eps = tensor0(1e-5f32).into_arc_tensor();
        let norm = model.wire_node("norm", RmsNorm { axis, eps }, &centred).unwrap();
        let mut place = all_ones.clone();
        place[along] = shape[along];
        let scale = model.add_const("scale", noise(7, &place)).unwrap();
        let shift = model.add_const("shift", noise(8, &place)).unwrap();
        // Constants may be on either side.
        let scaled = model.wire_node("scaled", TypedBinOp(Box::new(Mul), None), &[scale, norm[0]]).unwrap();
        let out = model.wire_node("out", TypedBinOp(Box::new(Add), None), &[scaled[0], shift]).unwrap();
        model.select_output_outlets(&out).unwrap();
        model
    }

    #[test]
    fn layer_norms_are_found_along_any_axis() {
        for shape in [&[2, 5, 33][..], &[1, 7, 3, 600], &[4, 1, 8], &[3, 19]] {
            for axis in 0..shape.len() {
                let x = noise(axis as u32 + 1, shape);
                let model = layer_norm(shape, axis, axis, 1.0 / shape[axis] as f32, axis);
                assert_eq!(check(model, &[x], "LayerNorm"), 1, "{shape:?}, axis {axis}");
            }
        }
    }

    #[test]
    fn what_is_like_a_layer_norm_and_is_none_stays() {
        let x = [noise(3, &[4, 4, 4])];
        for (axis, mean_axis, factor, along) in [(1, 2, 0.25, 1), (1, 1, 0.5, 1), (1, 1, 0.25, 2)] {
            let model = layer_norm(&[4, 4, 4], axis, mean_axis, factor, along);
            assert_eq!(check(model, &x, "LayerNorm"), 0, "{axis} {mean_axis} {factor} {along}");
        }
        // Somebody wants what is within.
        let mut model = layer_norm(&[4, 4, 4], 1, 1, 0.25, 1);
        let within = model.node_by_name("scaled").unwrap().id;
        let out = model.output_outlets().unwrap()[0];
        model.select_output_outlets(&[out, within.into()]).unwrap();
        assert_eq!(check(model, &x, "LayerNorm"), 0);
    }

    /// Two products with a softmax between.
    struct Case<'a> {
        products: [&'a str; 2],
        shapes: [&'a [usize]; 3],
        /// Takes one place of this axis of each operand, as of queries, keys and values that were computed in one.
        cut: Option<usize>,
        scale: Option<f32>,
    }

    impl Case<'_> {
        fn model(&self) -> (TypedModel, Vec<Tensor>) {
            let mut model = TypedModel::default();
            let mut operands = Vec::new();
            let mut inputs = Vec::new();
            for (index, shape) in self.shapes.iter().enumerate() {
                let mut shape = shape.to_vec();
                if let Some(axis) = self.cut {
                    shape[axis] = 3;
                }
                inputs.push(noise(index as u32 + 11, &shape));
                let mut operand = model.add_source(format!("input {index}"), f32::fact(&shape)).unwrap();
                if let Some(axis) = self.cut {
                    let slice = Slice::new(axis, index, index + 1);
                    operand = model.wire_node(format!("slice {index}"), slice, &[operand]).unwrap()[0];
                }
                operands.push(operand);
            }
            let product = |text: &str| EinSum::new(text.parse::<AxesMapping>().unwrap(), f32::datum_type());
            let mut scores = model.wire_node("scores", product(self.products[0]), &operands[..2]).unwrap();
            let rank = model.outlet_fact(scores[0]).unwrap().rank();
            if let Some(scale) = self.scale {
                let ones: TVec<usize> = tvec![1; rank];
                let scale = model.add_const("scale", Tensor::from_shape(&ones, &[scale]).unwrap()).unwrap();
                scores =
                    model.wire_node("scaled", TypedBinOp(Box::new(Mul), None), &[scores[0], scale]).unwrap();
            }
            let softmax = Softmax { axes: tvec![rank - 1], ..Softmax::default() };
            let weights = model.wire_node("softmax", softmax, &scores).unwrap();
            let out = model.wire_node("out", product(self.products[1]), &[weights[0], operands[2]]).unwrap();
            model.select_output_outlets(&out).unwrap();
            (model, inputs)
        }

        fn found(&self) -> usize {
            let (model, inputs) = self.model();
            check(model, &inputs, "ScaledDotProductAttention")
        }
    }

    #[test]
    fn attention_is_found_in_any_order_of_its_axes() {
        let (steps, past) = (["abk,abnk->abn", "abk,abkn->abn"], [5, 3, 21, 40]);
        let cases = [
            // Steps of the decoder: rows that share what they look up, and rows with a past each.
            Case {
                products: steps,
                shapes: [&[5, 3, 40], &[1, 3, 21, 40], &[1, 3, 21, 40]],
                cut: None,
                scale: None,
            },
            Case { products: steps, shapes: [&[5, 3, 40], &past, &past], cut: None, scale: Some(0.3) },
            Case {
                products: steps,
                shapes: [&[1, 3, 40], &[1, 3, 1, 40], &[1, 3, 1, 40]],
                cut: None,
                scale: None,
            },
            // An encoder's.
            Case {
                products: ["abmk,abnk->abmn", "abmk,abkn->abmn"],
                shapes: [&[1, 2, 9, 16], &[1, 2, 31, 16], &[1, 2, 31, 16]],
                cut: None,
                scale: Some(0.25),
            },
            // Windows, of one tensor with all three.
            Case {
                products: ["amdbk,ancbk->abmn", "abmk,akcbn->ambn"],
                shapes: [&[6, 10, 1, 4, 32]; 3],
                cut: Some(2),
                scale: Some(0.2),
            },
            // The batch behind the rows, and few of them.
            Case {
                products: ["mabk,nabk->abmn", "abmk,kabn->mabn"],
                shapes: [&[3, 2, 5, 8], &[7, 2, 5, 8], &[7, 2, 5, 8]],
                cut: None,
                scale: None,
            },
        ];
        for case in &cases {
            assert_eq!(case.found(), 1, "{:?} {:?}", case.products, case.shapes);
        }
    }

    /// Rows of a batch may be the queries of one head: what one comes to does not depend on how many there are, nor do
    /// threads matter.
    #[test]
    fn rows_do_not_depend_on_their_number_nor_on_threads() {
        let mut model = TypedModel::default();
        let (rows, length): (TDim, TDim) = (model.sym("B").into(), model.sym("S").into());
        let queries = [rows, 3.to_dim(), 40.to_dim()];
        let looked_up = [3.to_dim(), length, 40.to_dim()];
        let mut wires: TVec<OutletId> = tvec!();
        for (name, shape) in [("q", &queries), ("k", &looked_up), ("v", &looked_up)] {
            wires.push(model.add_source(name, f32::fact(shape)).unwrap());
        }
        let product = |text: &str| EinSum::new(text.parse::<AxesMapping>().unwrap(), f32::datum_type());
        let scores = model.wire_node("scores", product("abk,bnk->ban"), &wires[..2]).unwrap();
        let softmax = Softmax { axes: tvec![2], ..Softmax::default() };
        let weights = model.wire_node("softmax", softmax, &scores).unwrap();
        let out = model.wire_node("out", product("bak,bkn->ban"), &[weights[0], wires[2]]).unwrap();
        model.select_output_outlets(&out).unwrap();
        fuse(&mut model).unwrap();
        assert_eq!(count(&model, "ScaledDotProductAttention"), 1);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let executors = [Executor::SingleThread, Executor::MultiThread(Arc::new(pool))];
        let plans = executors.map(|executor| {
            let options = RunOptions { executor: Some(executor), ..RunOptions::default() };
            model.clone().into_runnable_with_options(&options).unwrap()
        });
        // Enough for tract to ask threads.
        let looked_up = [noise(2, &[3, 700, 40]), noise(3, &[3, 700, 40])];
        let all = noise(1, &[8, 3, 40]);
        let mut expected = None;
        for rows in [8, 4, 3, 1] {
            let queries = all.slice(0, 0, rows).unwrap();
            for plan in &plans {
                let inputs = [&queries, &looked_up[0], &looked_up[1]];
                let inputs = inputs.into_iter().map(|tensor| tensor.clone().into_tvalue()).collect();
                let given = plan.run(inputs).unwrap().remove(0).into_tensor();
                let expected = expected.get_or_insert_with(|| given.clone()).slice(1, 0, rows).unwrap();
                assert_eq!(given, expected, "{rows} rows");
            }
        }
        // Nothing to look at yet, or nobody to look.
        for (rows, length) in [(2, 0), (0, 5)] {
            let tensors = [&[rows, 3, 40], &[3, length, 40], &[3, length, 40]].map(|shape| noise(1, shape));
            let given = plans[0].run(tensors.into_iter().map(Tensor::into_tvalue).collect()).unwrap();
            assert_eq!(given[0].shape(), &[3, rows, 40]);
        }
    }

    #[test]
    fn norms_do_not_depend_on_threads() {
        for axis in [1, 2] {
            let shape = [2, 70, 900];
            let mut model = layer_norm(&shape, axis, axis, 1.0 / shape[axis] as f32, axis);
            fuse(&mut model).unwrap();
            assert_eq!(count(&model, "LayerNorm"), 1);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let given = [Executor::SingleThread, Executor::MultiThread(Arc::new(pool))].map(|executor| {
                let options = RunOptions { executor: Some(executor), ..RunOptions::default() };
                let plan = model.clone().into_runnable_with_options(&options).unwrap();
                plan.run(tvec!(noise(5, &shape).into_tvalue())).unwrap().remove(0).into_tensor()
            });
            assert_eq!(given[0], given[1]);
        }
    }

    #[test]
    fn what_is_like_attention_and_is_none_stays() {
        let shapes: [&[usize]; 3] = [&[2, 3, 9, 16], &[2, 3, 31, 16], &[2, 3, 31, 16]];
        let plain = ["abmk,abnk->abmn", "abmk,abkn->abmn"];
        let cases = [
            // Channels attend to channels: widths are not side by side.
            Case {
                products: ["abkm,abkn->abmn", "abmk,abnk->abnm"],
                shapes: [&[2, 3, 16, 8]; 3],
                cut: None,
                scale: None,
            },
            // The largest score is the smallest after scaling.
            Case { products: plain, shapes, cut: None, scale: Some(-0.5) },
            // Values without a width.
            Case {
                products: ["abmk,abnk->abmn", "abmn,abn->abm"],
                shapes: [&[2, 3, 9, 16], &[2, 3, 16, 16], &[2, 3, 16]],
                cut: None,
                scale: None,
            },
            // Values that are wider than keys.
            Case { products: plain, shapes: [shapes[0], shapes[1], &[2, 3, 31, 20]], cut: None, scale: None },
        ];
        for case in &cases {
            assert_eq!(case.found(), 0, "{:?} {:?}", case.products, case.shapes);
        }
        // Somebody wants the scores.
        let case = Case { products: plain, shapes, cut: None, scale: Some(0.5) };
        let (mut model, inputs) = case.model();
        let scores = model.node_by_name("scores").unwrap().id;
        let out = model.output_outlets().unwrap()[0];
        model.select_output_outlets(&[out, scores.into()]).unwrap();
        assert_eq!(check(model, &inputs, "ScaledDotProductAttention"), 0);
        // Or what becomes of them.
        let (mut model, inputs) = case.model();
        let weights = model.node_by_name("softmax").unwrap().id;
        let other = model
            .wire_node("other", TypedBinOp(Box::new(Add), None), &[weights.into(), weights.into()])
            .unwrap();
        model.select_output_outlets(&[model.output_outlets().unwrap()[0], other[0]]).unwrap();
        assert_eq!(check(model, &inputs, "ScaledDotProductAttention"), 0);
        assert_eq!(case.found(), 1);
    }
}
