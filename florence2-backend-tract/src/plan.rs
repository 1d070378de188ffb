//! One part of the network, prepared by tract.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tract_linalg::multithread::Executor;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::knobs::KnobScope;
use tract_onnx::tract_core::plan::eval;
use tract_onnx::tract_hir::internal::{DimLike, TDim, format_err};

use crate::error::{LoadError, RunError, Source, TractError};
use crate::fuse::fuse;
use crate::graph::Graph;

/// A length: known, or a symbol that each run decides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Known(usize),
    Any(&'static str),
}

/// What an input takes.
pub(crate) struct Shape {
    pub(crate) kind: DatumType,
    pub(crate) dims: Vec<Length>,
}

pub(crate) fn floats(dims: &[Length]) -> Shape {
    Shape { kind: f32::datum_type(), dims: dims.to_vec() }
}

pub(crate) fn ids(dims: &[Length]) -> Shape {
    Shape { kind: i64::datum_type(), dims: dims.to_vec() }
}

/// What an operator took, once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cost {
    /// Which part of the network it belongs to.
    pub part: &'static str,
    /// Its kind, as tract names it.
    pub operator: String,
    /// Its own name, after what it was in the file.
    pub name: String,
    /// Shapes of what it takes.
    pub shapes: Vec<Vec<usize>>,
    /// By the clock; several threads may have worked on it.
    pub time: Duration,
}

/// What all plans of a network have in common.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) executor: Executor,
    /// Where costs are written down, while somebody wants them.
    costs: Arc<Mutex<Option<Vec<Cost>>>>,
}

impl Context {
    pub(crate) fn new(executor: Executor) -> Self {
        Self { executor, costs: Arc::default() }
    }

    /// Writes down costs until the recording ends.
    pub(crate) fn record(&self) -> Recording {
        let outer = self.costs().replace(Vec::new());
        Recording { context: self.clone(), outer, ended: false }
    }

    fn costs(&self) -> MutexGuard<'_, Option<Vec<Cost>>> {
        // A list is whole whenever it is let go of.
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> bool {
        self.costs().is_some()
    }

    fn add(&self, costs: Vec<Cost>) {
        if let Some(all) = &mut *self.costs() {
            all.extend(costs);
        }
    }
}

/// Ends when it is dropped, by a panic too. One within another is part of it.
pub(crate) struct Recording {
    context: Context,
    outer: Option<Vec<Cost>>,
    ended: bool,
}

impl Recording {
    pub(crate) fn end(mut self) -> Vec<Cost> {
        self.restore()
    }

    fn restore(&mut self) -> Vec<Cost> {
        self.ended = true;
        let mut held = self.context.costs();
        let costs = std::mem::replace(&mut *held, self.outer.take()).unwrap_or_default();
        if let Some(outer) = &mut *held {
            outer.extend(costs.iter().cloned());
        }
        costs
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.ended {
            self.restore();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Plan {
    part: &'static str,
    file: PathBuf,
    context: Context,
    plan: Arc<TypedRunnableModel>,
}

impl Plan {
    /// Prepares a graph whose inputs have these shapes, in the order of [`Graph::inputs`].
    pub(crate) fn new(
        part: &'static str,
        graph: Graph,
        shapes: &[Shape],
        context: &Context,
    ) -> Result<Self, LoadError> {
        let file = graph.file().to_owned();
        let prepared = caught(|| prepare(graph, shapes, &context.executor));
        match prepared {
            Ok(plan) => Ok(Self { part, file, context: context.clone(), plan }),
            Err(source) => Err(LoadError::Tract { file, source: TractError(source) }),
        }
    }

    /// The shape of an output, with `None` for lengths that each run decides.
    pub(crate) fn output(&self, index: usize) -> Result<Vec<Option<usize>>, LoadError> {
        match self.plan.model().output_fact(index) {
            Ok(fact) => Ok(fact.shape.iter().map(|dim| dim.to_usize().ok()).collect()),
            Err(source) => Err(LoadError::Tract { file: self.file.clone(), source: TractError(source) }),
        }
    }

    /// Of a graph that gives something else than its part.
    pub(crate) fn wrong(&self, problem: String) -> LoadError {
        LoadError::Onnx { file: self.file.clone(), problem }
    }

    pub(crate) fn run(&self, inputs: TVec<TValue>) -> Result<TVec<TValue>, RunError> {
        let outputs = if self.context.records() {
            caught(|| self.run_and_record(inputs))
        } else {
            caught(|| self.plan.run(inputs))
        };
        outputs.map_err(|source| self.failed(source))
    }

    fn run_and_record(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let mut costs = Vec::new();
        let outputs = self.plan.spawn()?.run_plan_with_eval(inputs, |turn, state, node, inputs| {
            let shapes = inputs.iter().map(|input| input.shape().to_vec()).collect();
            let before = Instant::now();
            let outputs = eval(turn, state, node, inputs);
            costs.push(Cost {
                part: self.part,
                operator: node.op().name().into_owned(),
                name: node.name.clone(),
                shapes,
                time: before.elapsed(),
            });
            outputs
        });
        self.context.add(costs);
        outputs
    }

    pub(crate) fn failed(&self, source: Source) -> RunError {
        RunError::Tract { part: self.part, source: TractError(source) }
    }
}

/// tract is made for graphs that make sense, and may panic over others: that is an error like any other here.
pub(crate) fn caught<T>(f: impl FnOnce() -> TractResult<T>) -> TractResult<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(format_err!("it panicked: {text}"))
    })
}

fn prepare(graph: Graph, shapes: &[Shape], executor: &Executor) -> TractResult<Arc<TypedRunnableModel>> {
    let names = graph.inputs();
    // Shapes that are written down for an exporter's own symbols do not agree with lengths that are known here.
    let onnx = onnx().with_ignore_output_shapes(true).with_ignore_value_info(true);
    let proto = graph.into_model();
    let parsed = onnx.parse(&proto, None)?;
    drop(proto);
    if let Some(name) = parsed.unresolved_inputs.first() {
        return Err(format_err!("nothing gives {name}"));
    }
    let mut model = parsed.model;
    let symbols = model.symbols.clone();
    let outlets = model.input_outlets()?.to_vec();
    for (index, outlet) in outlets.iter().enumerate() {
        let name = &model.node(outlet.node).name;
        let Some(shape) = names.iter().position(|other| other == name).and_then(|at| shapes.get(at)) else {
            return Err(format_err!("the input {name} was not expected"));
        };
        let dims: TVec<TDim> = shape
            .dims
            .iter()
            .map(|length| match length {
                Length::Known(length) => length.to_dim(),
                Length::Any(name) => symbols.sym(name).into(),
            })
            .collect();
        model.set_input_fact(index, InferenceFact::dt_shape(shape.kind, dims))?;
    }
    let options = RunOptions { executor: Some(executor.clone()), ..RunOptions::default() };
    let mut model = model.into_typed()?.into_decluttered()?;
    fuse(&mut model)?;
    // Of a stride of four, as the first layer has it, tract's direct convolution takes ten times as long as a product. A
    // version of tract that has no such switch does as it likes.
    let scope = KnobScope::new([("TRACT_DISABLE_DIRECT_SPATIAL", "true")]).unwrap_or_default();
    let model = scope.enter(|| model.into_optimized())?;
    model.into_runnable_with_options(&options)
}
