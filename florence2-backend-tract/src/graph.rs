//! An ONNX graph before tract sees it: read and checked, cut down to what is asked of it, and brought to one arithmetic.
//!
//! tract runs the fp32 export well. Its kernels for other types are slow (an fp16 step takes twenty times as long as an
//! fp32 one), and it lacks some of the 4-bit exports' operators. All of these are ways to store the same network, so that
//! weights are widened here, when they are loaded, and only fp32 graphs are run:
//!
//! - fp16 and bf16 tensors become fp32, casts to them casts to fp32;
//! - `MatMulInteger`, `ConvInteger` become `MatMul`, `Conv` of what was quantised on the fly before, and of the weights less
//!   their zero point; the scales are multiplied behind, as they were;
//! - `MatMulNBits` and `MatMulBnb4` become `MatMul` of the unpacked weights.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::type_proto::Value;
use tract_onnx::pb::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use tract_onnx::prelude::*;

use crate::error::LoadError;
use crate::plan::caught;
use crate::unpack::{self, Blocks};
use crate::wire::outline;

/// One part of the network, as its file has it.
pub(crate) struct Graph {
    file: PathBuf,
    model: ModelProto,
    graph: GraphProto,
}

impl Graph {
    /// Reads a file, but for the numbers of its large tensors ([`fetch`](Self::fetch)): only that they are there.
    pub(crate) fn read(path: &Path) -> Result<Self, LoadError> {
        let io = |source| LoadError::Io { path: path.to_owned(), source };
        let broken = |problem: String| LoadError::Onnx { file: path.to_owned(), problem };
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut begin = Vec::new();
        (&mut file).take(64).read_to_end(&mut begin).map_err(io)?;
        if let Some(found) = florence2_files::substitute(&begin) {
            return Err(LoadError::Substitute { file: path.to_owned(), found });
        }
        file.rewind().map_err(io)?;
        let mut model = outline(path, file).map_err(|error| match error.kind() {
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => {
                broken(format!("its {length} bytes do not parse; the download may have been cut off"))
            }
            _ => io(error),
        })?;
        let mut graph = model.graph.take().unwrap_or_default();
        if graph.node.is_empty() {
            return Err(broken("it holds no graph; the download may have been cut off".to_owned()));
        }
        // No file has its bytes twice, so that no more is read than there is.
        let mut located: HashMap<PathBuf, u64> = HashMap::new();
        for_each_tensor(&mut graph, &mut |tensor| {
            if is_external(tensor) {
                let Place { file, length, of, .. } = locate(tensor, path)?;
                let sum = located.entry(file).or_default();
                *sum = sum.saturating_add(length as u64);
                if *sum > of {
                    return Err(broken("its tensors lie over each other".to_owned()));
                }
                return Ok(());
            }
            check_tensor(tensor).map_err(|problem| broken(format!("its tensor {} {problem}", tensor.name)))
        })?;
        Ok(Self { file: path.to_owned(), model, graph })
    }

    /// Reads the numbers of the tensors that are left.
    fn fetch(&mut self) -> Result<(), LoadError> {
        let graph = &self.file;
        for_each_tensor(&mut self.graph, &mut |tensor| {
            if !is_external(tensor) {
                return Ok(());
            }
            let Place { file: path, offset, length, .. } = locate(tensor, graph)?;
            let io = |source| LoadError::Io { path: path.clone(), source };
            let mut file = File::open(&path).map_err(io)?;
            file.seek(SeekFrom::Start(offset)).map_err(io)?;
            let mut bytes = vec![0; length];
            file.read_exact(&mut bytes).map_err(io)?;
            tensor.raw_data = bytes;
            tensor.data_location = None;
            tensor.external_data.clear();
            Ok(())
        })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// What has to be given. (Old files list their weights here, too.)
    pub(crate) fn inputs(&self) -> Vec<String> {
        let stored: HashSet<&str> =
            self.graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let inputs = self.graph.input.iter().map(|input| input.name.as_str());
        inputs.filter(|name| !stored.contains(name)).map(str::to_owned).collect()
    }

    pub(crate) fn outputs(&self) -> Vec<String> {
        self.graph.output.iter().map(|output| output.name.clone()).collect()
    }

    /// The shape of a stored tensor of two axes whose name has `part` in it.
    pub(crate) fn matrix(&self, part: &str) -> Option<[usize; 2]> {
        self.graph.initializer.iter().find_map(|tensor| match *tensor.dims {
            [rows, columns] if tensor.name.contains(part) => {
                Some([usize::try_from(rows).ok()?, usize::try_from(columns).ok()?])
            }
            _ => None,
        })
    }

    /// Replaces the `If` that a merged decoder is by one of its branches.
    pub(crate) fn take_branch(&mut self, condition: bool) -> Result<(), LoadError> {
        let graph = &mut self.graph;
        let problem =
            |problem: &str| LoadError::Onnx { file: self.file.clone(), problem: problem.to_owned() };
        let mut branching = graph.node.iter().enumerate().filter(|(_, node)| node.op_type == "If");
        let (Some((at, _)), None) = (branching.next(), branching.next()) else {
            return Err(problem("a merged decoder is one `If`, and this file has none or several"));
        };
        let mut node = graph.node.remove(at);
        let name = if condition { "then_branch" } else { "else_branch" };
        let attribute = node.attribute.iter_mut().find(|attribute| attribute.name == name);
        let Some(branch) = attribute.and_then(|attribute| attribute.g.take()) else {
            return Err(problem("its `If` lacks a branch"));
        };
        if branch.output.len() != node.output.len() {
            return Err(problem("the branches of its `If` have other outputs than the `If`"));
        }
        // What a branch names is its own, and may be named so outside, too: as the outputs of the `If` are by optimum.
        let branch = rename_own(branch);
        graph.initializer.extend(branch.initializer);
        let pairs = node.output.into_iter().zip(branch.output);
        let outputs = pairs.map(|(outer, inner)| operation("Identity", vec![inner.name], outer));
        graph.node.splice(at..at, branch.node.into_iter().chain(outputs));
        if let Some(condition) = node.input.into_iter().next() {
            graph.input.retain(|input| input.name != condition);
        }
        Ok(())
    }

    /// Leaves out everything that the wanted outputs do not need, weights and inputs among it.
    pub(crate) fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        let graph = &mut self.graph;
        graph.output.retain(|output| wanted(&output.name));
        let outputs = graph.output.iter().map(|output| output.name.clone()).collect();
        let (kept, needed) = behind(&graph.node, outputs);
        let mut kept = kept.into_iter();
        graph.node.retain(|_| kept.next().unwrap_or(true));
        graph.initializer.retain(|tensor| needed.contains(&tensor.name));
        graph.input.retain(|input| needed.contains(&input.name));
        graph.value_info.clear();
    }

    /// Reads all that is left, and makes all arithmetic fp32.
    pub(crate) fn widen(&mut self) -> Result<(), LoadError> {
        self.fetch()?;
        for_each_tensor(&mut self.graph, &mut |tensor| {
            widen_tensor(tensor);
            Ok(())
        })?;
        for_each_node(&mut self.graph, &mut |node| {
            if node.op_type == "Cast" {
                let targets = node.attribute.iter_mut().filter(|attribute| attribute.name == "to");
                targets.filter(|to| is_half(to.i as i32)).for_each(|to| to.i = DataType::Float as i64);
            }
        });
        let graph = &mut self.graph;
        for value in graph.input.iter_mut().chain(&mut graph.output) {
            if let Some(Value::TensorType(tensor)) =
                value.r#type.as_mut().and_then(|kind| kind.value.as_mut())
                && is_half(tensor.elem_type)
            {
                tensor.elem_type = DataType::Float as i32;
            }
        }
        self.dequantise()
    }

    fn dequantise(&mut self) -> Result<(), LoadError> {
        let file = self.file.clone();
        let graph = &mut self.graph;
        let mut weights = Initialisers::new(&mut graph.initializer);
        // What is quantised on the fly, and is not now.
        let mut passed = HashSet::new();
        let mut nodes = Vec::with_capacity(graph.node.len());
        for mut node in std::mem::take(&mut graph.node) {
            let title = format!("{} ({})", node.name, node.op_type);
            let broken = |problem: String| LoadError::Onnx {
                file: file.clone(),
                problem: format!("its node {title} {problem}"),
            };
            match (node.domain.as_str(), node.op_type.as_str()) {
                ("" | "ai.onnx", "DynamicQuantizeLinear") => {
                    let [values, scale, zero] = node.output.as_slice() else {
                        return Err(broken("has not three outputs".to_owned()));
                    };
                    weights.add(tensor(scale, &[], &[1.0]));
                    passed.insert(zero.clone());
                    passed.insert(values.clone());
                    nodes.push(operation("Identity", vec![argument(&node, 0).to_owned()], values.clone()));
                }
                ("" | "ai.onnx", "MatMulInteger" | "ConvInteger") => {
                    let kind = if node.op_type == "MatMulInteger" { "MatMul" } else { "Conv" };
                    let (left, right) = (argument(&node, 0), argument(&node, 1));
                    let (left_zero, right_zero) = (argument(&node, 2), argument(&node, 3));
                    let left_is_passed =
                        passed.contains(left) && (left_zero.is_empty() || passed.contains(left_zero));
                    if !left_is_passed {
                        return Err(broken("takes what was not quantised in this graph".to_owned()));
                    }
                    let right = if passed.contains(right) {
                        if !right_zero.is_empty() && !passed.contains(right_zero) {
                            return Err(broken("takes what was not quantised in this graph".to_owned()));
                        }
                        right.to_owned()
                    } else {
                        // A matrix has its zero points along its columns, a convolution along its outputs.
                        let axis = if kind == "Conv" { Axis::First } else { Axis::Last };
                        weights.less_zero(right, right_zero, axis).map_err(broken)?
                    };
                    node.input = vec![left.to_owned(), right];
                    node.op_type = kind.to_owned();
                    nodes.push(node);
                }
                ("" | "ai.onnx", "DequantizeLinear") if weights.holds(argument(&node, 0)) => {
                    if integer(&node, "block_size").is_some_and(|size| size != 0) {
                        return Err(broken(
                            "has scales for blocks; take another form of the weights".to_owned(),
                        ));
                    }
                    let axis = integer(&node, "axis").unwrap_or(1);
                    let stored = [0, 1, 2].map(|index| argument(&node, index));
                    let widened = weights.scaled(stored, axis).map_err(broken)?;
                    let output = node.output.first().cloned().unwrap_or_default();
                    nodes.push(operation("Identity", vec![widened], output));
                }
                ("com.microsoft", kind @ ("MatMulNBits" | "MatMulBnb4")) => {
                    let unpacked = if kind == "MatMulNBits" {
                        weights.unpack_bits(&node)
                    } else {
                        weights.unpack_bnb4(&node)
                    };
                    let weight = unpacked.map_err(broken)?;
                    let output = node.output.first().cloned().unwrap_or_default();
                    let bias = argument(&node, 5);
                    let product = if bias.is_empty() { output.clone() } else { format!("{output}/product") };
                    let inputs = vec![argument(&node, 0).to_owned(), weight];
                    nodes.push(operation("MatMul", inputs, product.clone()));
                    if !bias.is_empty() {
                        nodes.push(operation("Add", vec![product, bias.to_owned()], output));
                    }
                }
                _ => {
                    let mut inputs = Vec::new();
                    reads(&node, &mut inputs);
                    if let Some(input) = inputs.iter().find(|input| passed.contains(*input)) {
                        return Err(broken(format!("takes {input}, which was quantised on the fly")));
                    }
                    nodes.push(node);
                }
            }
        }
        graph.node = nodes;
        // What was packed is not needed beside what was unpacked.
        self.keep(|_| true);
        Ok(())
    }

    /// Takes out what masks add to scores. No run pads anything, so that masks hide nothing and add zeros, by way of
    /// some hundred nodes; and tract cannot follow a number of rows through them.
    ///
    /// What is added must have come out as zeros for each of the probes, which are inputs by their names. Where that
    /// cannot be found out, all stays.
    pub(crate) fn drop_masks(&mut self, probes: &[impl Fn(&str) -> Option<Tensor>]) {
        // What depends on shapes and masks only.
        let mut structural: HashSet<&str> = HashSet::new();
        structural.extend(self.graph.initializer.iter().map(|tensor| tensor.name.as_str()));
        structural.extend(["attention_mask", "encoder_attention_mask"]);
        let mut computed: HashSet<&str> = HashSet::new();
        for node in &self.graph.node {
            let all = node.input.iter().all(|input| input.is_empty() || structural.contains(input.as_str()));
            if node.op_type == "Shape"
                || (all && node.attribute.iter().all(|attribute| attribute.g.is_none()))
            {
                let outputs = node.output.iter().map(String::as_str);
                structural.extend(outputs.clone());
                if node.op_type != "Constant" {
                    computed.extend(outputs);
                }
            }
        }
        // The place of what is added, and of what it is added to.
        let added = |node: &NodeProto| {
            let [left, right] = [argument(node, 0), argument(node, 1)];
            match (node.op_type.as_str(), computed.contains(left), computed.contains(right)) {
                ("Add", true, false) if !structural.contains(right) => Some((0, 1)),
                ("Add", false, true) if !structural.contains(left) => Some((1, 0)),
                _ => None,
            }
        };
        let mut names: Vec<String> = Vec::new();
        for node in &self.graph.node {
            if let Some((place, _)) = added(node)
                && !names.contains(&node.input[place])
            {
                names.push(node.input[place].clone());
            }
        }
        let zeros = self.zeros(&names, probes);
        let replaced: Vec<Option<usize>> = self
            .graph
            .node
            .iter()
            .map(|node| {
                added(node).filter(|&(place, _)| zeros.contains(&node.input[place])).map(|(_, kept)| kept)
            })
            .collect();
        for (node, kept) in self.graph.node.iter_mut().zip(replaced) {
            if let Some(kept) = kept {
                let input = node.input.swap_remove(kept);
                let output = node.output.first().cloned().unwrap_or_default();
                *node = operation("Identity", vec![input], output);
            }
        }
        self.keep(|_| true);
    }

    /// Which of these values are zeros for all probes.
    fn zeros(&self, names: &[String], probes: &[impl Fn(&str) -> Option<Tensor>]) -> Vec<String> {
        let mut zeros = Vec::new();
        for name in names {
            let (kept, needed) = behind(&self.graph.node, vec![name.clone()]);
            let nodes =
                self.graph.node.iter().zip(kept).filter(|(_, kept)| *kept).map(|(node, _)| node.clone());
            let nodes: Vec<NodeProto> = nodes.collect();
            // Whatever multiplies matrices is no mask, and would take long.
            if nodes.iter().any(|node| matches!(node.op_type.as_str(), "MatMul" | "Gemm" | "Conv")) {
                continue;
            }
            let graph = GraphProto {
                node: nodes,
                initializer: self
                    .graph
                    .initializer
                    .iter()
                    .filter(|tensor| needed.contains(&tensor.name))
                    .cloned()
                    .collect(),
                input: self
                    .graph
                    .input
                    .iter()
                    .filter(|input| needed.contains(&input.name))
                    .cloned()
                    .collect(),
                output: vec![ValueInfoProto { name: name.clone(), ..ValueInfoProto::default() }],
                ..GraphProto::default()
            };
            let model = ModelProto { graph: Some(graph), ..self.model.clone() };
            if probes.iter().all(|probe| caught(|| is_zero(&model, probe)).unwrap_or(false)) {
                zeros.push(name.clone());
            }
        }
        zeros
    }

    /// The operators that neither tract nor [`widen`](Self::widen) knows, each once.
    pub(crate) fn unknown_operators(&mut self) -> Vec<String> {
        let onnx = onnx();
        let mut unknown = Vec::new();
        for_each_node(&mut self.graph, &mut |node| {
            let standard = matches!(node.domain.as_str(), "" | "ai.onnx");
            // Others' operators may have the names of ONNX's own and mean something else; arithmetic in integers is not
            // done here, and what tract makes of it was not compared.
            let known = if standard {
                let refused = node.op_type == "If" || node.op_type.starts_with('Q');
                onnx.op_register.0.contains_key(&node.op_type) && !refused
            } else {
                node.domain == "com.microsoft"
                    && matches!(node.op_type.as_str(), "MatMulNBits" | "MatMulBnb4")
            };
            if !known {
                let domain = if standard { String::new() } else { format!("{}.", node.domain) };
                unknown.push(format!("{domain}{}", node.op_type));
            }
        });
        unknown.sort();
        unknown.dedup();
        unknown
    }

    pub(crate) fn into_model(self) -> ModelProto {
        ModelProto { graph: Some(self.graph), ..self.model }
    }
}

/// Gives all that a graph names itself another name.
fn rename_own(mut graph: GraphProto) -> GraphProto {
    let mut own: HashSet<String> = graph.initializer.iter().map(|tensor| tensor.name.clone()).collect();
    own.extend(
        graph.node.iter().flat_map(|node| node.output.iter().filter(|name| !name.is_empty()).cloned()),
    );
    let rename = |name: &mut String| {
        if own.contains(name) {
            name.insert_str(0, "branch/");
        }
    };
    graph.initializer.iter_mut().for_each(|tensor| rename(&mut tensor.name));
    graph.output.iter_mut().for_each(|output| rename(&mut output.name));
    graph.node.iter_mut().flat_map(|node| &mut node.output).for_each(rename);
    for_each_node(&mut graph, &mut |node| {
        node.input.iter_mut().for_each(rename);
        // Nodes have names of their own, which tract wants to be different.
        if !node.name.is_empty() {
            node.name.insert_str(0, "branch/");
        }
    });
    graph
}

/// The nodes that values need, and all names that are needed.
fn behind(nodes: &[NodeProto], mut open: Vec<String>) -> (Vec<bool>, HashSet<String>) {
    let outputs = |(index, node): (usize, &'_ NodeProto)| {
        node.output.iter().map(|output| (output.clone(), index)).collect::<Vec<_>>()
    };
    let makers: HashMap<String, usize> = nodes.iter().enumerate().flat_map(outputs).collect();
    let mut kept = vec![false; nodes.len()];
    let mut needed = HashSet::new();
    while let Some(name) = open.pop() {
        if let Some(&index) = makers.get(&name).filter(|&&index| !kept[index]) {
            kept[index] = true;
            reads(&nodes[index], &mut open);
        }
        needed.insert(name);
    }
    (kept, needed)
}

/// Whether a graph's only output is zeros.
fn is_zero(model: &ModelProto, probe: &impl Fn(&str) -> Option<Tensor>) -> TractResult<bool> {
    let onnx = onnx().with_ignore_output_shapes(true).with_ignore_value_info(true);
    let mut parsed = onnx.parse(model, None)?.model;
    let mut inputs = TVec::new();
    for index in 0..parsed.input_outlets()?.len() {
        let name = parsed.node(parsed.input_outlets()?[index].node).name.clone();
        let Some(value) = probe(&name) else { return Ok(false) };
        parsed.set_input_fact(index, InferenceFact::dt_shape(value.datum_type(), value.shape()))?;
        inputs.push(value.into_tvalue());
    }
    let outputs = parsed.into_typed()?.into_runnable()?.run(inputs)?;
    outputs.first().map_or(Ok(false), |output| output.is_all_zero())
}

/// All names that a node reads, those in its subgraphs among them.
fn reads(node: &NodeProto, names: &mut Vec<String>) {
    names.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
    for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
        graph.node.iter().for_each(|node| reads(node, names));
        names.extend(graph.output.iter().map(|output| output.name.clone()));
    }
}

fn for_each_node(graph: &mut GraphProto, f: &mut impl FnMut(&mut NodeProto)) {
    for node in &mut graph.node {
        f(node);
        node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()).for_each(|graph| {
            for_each_node(graph, f);
        });
    }
}

fn for_each_tensor<E>(
    graph: &mut GraphProto,
    f: &mut impl FnMut(&mut TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    graph.initializer.iter_mut().try_for_each(&mut *f)?;
    for attribute in graph.node.iter_mut().flat_map(|node| &mut node.attribute) {
        attribute.t.as_mut().map_or(Ok(()), &mut *f)?;
        attribute.tensors.iter_mut().try_for_each(&mut *f)?;
        attribute.g.as_mut().map_or(Ok(()), |graph| for_each_tensor(graph, f))?;
    }
    Ok(())
}

fn argument(node: &NodeProto, index: usize) -> &str {
    node.input.get(index).map_or("", String::as_str)
}

fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.i)
}

fn operation(kind: &str, input: Vec<String>, output: String) -> NodeProto {
    NodeProto {
        op_type: kind.to_owned(),
        name: output.clone(),
        input,
        output: vec![output],
        ..NodeProto::default()
    }
}

/// A stored tensor of fp32.
fn tensor(name: &str, dims: &[usize], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: dims.iter().map(|&n| n as i64).collect(),
        data_type: DataType::Float as i32,
        raw_data: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ..TensorProto::default()
    }
}

fn is_half(kind: i32) -> bool {
    kind == DataType::Float16 as i32 || kind == DataType::Bfloat16 as i32
}

/// How many bytes a number takes, of the types that tract loads and those that are widened here.
fn size_of(kind: i32) -> Option<usize> {
    Some(match DataType::try_from(kind).ok()? {
        DataType::Bool | DataType::Uint8 | DataType::Int8 => 1,
        DataType::Uint16 | DataType::Int16 | DataType::Float16 | DataType::Bfloat16 => 2,
        DataType::Uint32 | DataType::Int32 | DataType::Float => 4,
        DataType::Uint64 | DataType::Int64 | DataType::Double => 8,
        _ => return None,
    })
}

fn length_of(tensor: &TensorProto) -> Option<usize> {
    tensor.dims.iter().try_fold(1usize, |product, &n| product.checked_mul(usize::try_from(n).ok()?))
}

/// Whether a tensor has as many numbers as its shape says. What is wrong, otherwise.
fn check_tensor(tensor: &TensorProto) -> Result<(), String> {
    let kind = tensor.data_type;
    let size = size_of(kind).ok_or_else(|| format!("is of the type {kind} of ONNX, which is not read"))?;
    let length = length_of(tensor);
    let stored = if tensor.raw_data.is_empty() {
        tensor.float_data.len()
            + tensor.int32_data.len()
            + tensor.int64_data.len()
            + tensor.double_data.len()
            + tensor.uint64_data.len()
    } else if tensor.raw_data.len().is_multiple_of(size) {
        tensor.raw_data.len() / size
    } else {
        usize::MAX
    };
    if length == Some(stored) {
        return Ok(());
    }
    Err(format!(
        "has the shape {:?}, and other numbers are stored; the download may have been cut off",
        tensor.dims
    ))
}

fn is_external(tensor: &TensorProto) -> bool {
    tensor.data_location == Some(DataLocation::External as i32)
}

/// Where a tensor's numbers are.
struct Place {
    file: PathBuf,
    /// The first of them, in bytes.
    offset: u64,
    /// How many bytes.
    length: usize,
    /// How many the file has.
    of: u64,
}

/// Finds a tensor's numbers, which the file has.
fn locate(tensor: &TensorProto, graph: &Path) -> Result<Place, LoadError> {
    let broken = |problem: String| LoadError::Onnx {
        file: graph.to_owned(),
        problem: format!("its tensor {} {problem}", tensor.name),
    };
    let value =
        |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &entry.value);
    let Some(location) = value("location") else { return Err(broken("lies in no file".to_owned())) };
    // Beside the graph; anything else would read files of somebody else's choice.
    if Path::new(location).file_name() != Some(location.as_ref()) {
        return Err(broken(format!("lies in {location:?}, which is not the name of a file in its folder")));
    }
    let number = |key: &str| match value(key) {
        Some(text) => text.parse::<u64>().map(Some).map_err(|_| broken(format!("has the {key} {text:?}"))),
        None => Ok(None),
    };
    let offset = number("offset")?.unwrap_or(0);
    let size = size_of(tensor.data_type).zip(length_of(tensor));
    let Some(length) = size.and_then(|(size, length)| size.checked_mul(length)) else {
        return Err(broken("has no size".to_owned()));
    };
    if number("length")?.is_some_and(|stated| stated != length as u64) {
        return Err(broken(format!("has {length} bytes by its shape, and another number beside it")));
    }
    let path = graph.with_file_name(location);
    let io = |source| LoadError::Io { path: path.clone(), source };
    let whole = std::fs::metadata(&path).map_err(io)?.len();
    if offset.checked_add(length as u64).is_none_or(|end| end > whole) {
        return Err(LoadError::Onnx {
            file: path,
            problem: format!(
                "its {whole} bytes end before the tensor {}; the download may have been cut off",
                tensor.name
            ),
        });
    }
    Ok(Place { file: path, offset, length, of: whole })
}

fn widen_tensor(tensor: &mut TensorProto) {
    let widen: fn(u16) -> f32 = match DataType::try_from(tensor.data_type) {
        Ok(DataType::Float16) => |bits| f16::from_bits(bits).to_f32(),
        Ok(DataType::Bfloat16) => |bits| bf16::from_bits(bits).to_f32(),
        _ => return,
    };
    let raw = std::mem::take(&mut tensor.raw_data);
    let stored = std::mem::take(&mut tensor.int32_data);
    let bits = raw.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let bits = bits.chain(stored.into_iter().map(|bits| bits as u16));
    tensor.raw_data = bits.flat_map(|bits| widen(bits).to_le_bytes()).collect();
    tensor.data_type = DataType::Float as i32;
}

enum Axis {
    First,
    Last,
}

/// The stored tensors, some of which are replaced by wider ones.
struct Initialisers<'a> {
    all: &'a mut Vec<TensorProto>,
    by_name: HashMap<String, usize>,
}

impl<'a> Initialisers<'a> {
    fn new(all: &'a mut Vec<TensorProto>) -> Self {
        let by_name = all.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Self { all, by_name }
    }

    fn holds(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn get(&self, name: &str) -> Result<&TensorProto, String> {
        let index = self.by_name.get(name).ok_or_else(|| format!("takes {name:?}, which is not stored"))?;
        Ok(&self.all[*index])
    }

    fn add(&mut self, tensor: TensorProto) -> String {
        let name = tensor.name.clone();
        self.by_name.insert(name.clone(), self.all.len());
        self.all.push(tensor);
        name
    }

    /// Integers or fp32 as fp32.
    fn numbers(&self, name: &str) -> Result<Vec<f32>, String> {
        let tensor = self.get(name)?;
        let raw = &tensor.raw_data;
        let small = |widen: fn(u8) -> f32| {
            if raw.is_empty() {
                tensor.int32_data.iter().map(|&x| widen(x as u8)).collect()
            } else {
                raw.iter().map(|&byte| widen(byte)).collect()
            }
        };
        Ok(match DataType::try_from(tensor.data_type) {
            Ok(DataType::Uint8) => small(f32::from),
            Ok(DataType::Int8) => small(|byte| f32::from(byte as i8)),
            Ok(DataType::Int32) if raw.is_empty() => tensor.int32_data.iter().map(|&x| x as f32).collect(),
            Ok(DataType::Int32) => four_bytes(raw).map(|bytes| i32::from_le_bytes(bytes) as f32).collect(),
            Ok(DataType::Float) if raw.is_empty() => tensor.float_data.clone(),
            Ok(DataType::Float) => four_bytes(raw).map(f32::from_le_bytes).collect(),
            _ => return Err(format!("takes {name}, whose type is not read")),
        })
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        let tensor = self.get(name)?;
        if tensor.data_type != DataType::Uint8 as i32 {
            return Err(format!("takes {name}, which is not of bytes"));
        }
        Ok(if tensor.raw_data.is_empty() {
            tensor.int32_data.iter().map(|&x| x as u8).collect()
        } else {
            tensor.raw_data.clone()
        })
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>, String> {
        Ok(self.get(name)?.dims.iter().map(|&n| n as usize).collect())
    }

    /// A weight less its zero point or points.
    fn less_zero(&mut self, name: &str, zero: &str, axis: Axis) -> Result<String, String> {
        let new = format!("{name}/less {zero}");
        if self.holds(&new) {
            return Ok(new);
        }
        let shape = self.shape(name)?;
        let axis = match axis {
            Axis::First => 0,
            Axis::Last => shape.len().saturating_sub(1),
        };
        let zeros = if zero.is_empty() { vec![0.0] } else { self.numbers(zero)? };
        let values = along(self.numbers(name)?, &shape, axis, &[1.0], &zeros)?;
        Ok(self.add(tensor(&new, &shape, &values)))
    }

    /// `(weight - zero point) * scale`
    fn scaled(&mut self, [name, scale, zero]: [&str; 3], axis: i64) -> Result<String, String> {
        let shape = self.shape(name)?;
        let rank = i64::try_from(shape.len()).unwrap_or_default();
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).unwrap_or(usize::MAX);
        let single = self.shape(scale)?.iter().product::<usize>() == 1;
        if axis >= shape.len() && !single {
            return Err(format!("has an axis that its {rank} axes do not have"));
        }
        let new = format!("{name}/times {scale} less {zero} along {axis}");
        if self.holds(&new) {
            return Ok(new);
        }
        let zeros = if zero.is_empty() { vec![0.0] } else { self.numbers(zero)? };
        let values = along(self.numbers(name)?, &shape, axis, &self.numbers(scale)?, &zeros)?;
        Ok(self.add(tensor(&new, &shape, &values)))
    }

    fn unpack_bits(&mut self, node: &NodeProto) -> Result<String, String> {
        let blocks = Blocks::of(|name| integer(node, name))?;
        only_known(node, &["K", "N", "bits", "block_size", "accuracy_level"])?;
        if integer(node, "bits") != Some(4) {
            return Err("is of another number of bits than 4; take another form of the weights".to_owned());
        }
        if !argument(node, 4).is_empty() {
            return Err("has its inputs in another order (g_idx)".to_owned());
        }
        let (name, zeros) = (argument(node, 1), argument(node, 3));
        let new = format!("{name}/unpacked by {} less {zeros}", argument(node, 2));
        if self.holds(&new) {
            return Ok(new);
        }
        let packed = self.bytes(name)?;
        let scales = self.numbers(argument(node, 2))?;
        let zeros = match zeros {
            "" => None,
            packed if self.get(packed)?.data_type == DataType::Uint8 as i32 => Some(self.bytes(packed)?),
            _ => {
                return Err(
                    "has zero points that are not packed; take another form of the weights".to_owned()
                );
            }
        };
        let values = unpack::four_bits(blocks, &packed, &scales, zeros.as_deref())?;
        Ok(self.add(tensor(&new, &[blocks.inputs, blocks.outputs], &values)))
    }

    fn unpack_bnb4(&mut self, node: &NodeProto) -> Result<String, String> {
        let blocks = Blocks::of(|name| integer(node, name))?;
        only_known(node, &["K", "N", "block_size", "quant_type", "transB", "training_mode"])?;
        if integer(node, "transB").unwrap_or(1) != 1 {
            return Err(
                "has its weights in another order (transB); take another form of the weights".to_owned()
            );
        }
        let table = match integer(node, "quant_type") {
            Some(0) => &unpack::FP4,
            Some(1) => &unpack::NF4,
            other => return Err(format!("has the quant_type {other:?}; 0 (FP4) and 1 (NF4) are known")),
        };
        let (name, scales) = (argument(node, 1), argument(node, 2));
        let new = format!("{name}/unpacked by {scales}");
        if self.holds(&new) {
            return Ok(new);
        }
        let values = unpack::bnb4(blocks, &self.bytes(name)?, &self.numbers(scales)?, table)?;
        Ok(self.add(tensor(&new, &[blocks.inputs, blocks.outputs], &values)))
    }
}

/// An attribute that is not known may change what is stored.
fn only_known(node: &NodeProto, known: &[&str]) -> Result<(), String> {
    match node.attribute.iter().find(|attribute| !known.contains(&attribute.name.as_str())) {
        Some(other) => Err(format!(
            "has the attribute {}, which is not known here; take another form of the weights",
            other.name
        )),
        None => Ok(()),
    }
}

fn four_bytes(raw: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    raw.chunks_exact(4).map(|bytes| [bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// `(value - zero) * scale`, with one zero and one scale for all, or one for each place of an axis.
fn along(
    mut values: Vec<f32>,
    shape: &[usize],
    axis: usize,
    scales: &[f32],
    zeros: &[f32],
) -> Result<Vec<f32>, String> {
    let places = shape.get(axis).copied().unwrap_or(1);
    if [scales.len(), zeros.len()].into_iter().any(|length| length != 1 && length != places) {
        return Err(format!(
            "has {} scales and {} zero points for {places} places",
            scales.len(),
            zeros.len()
        ));
    }
    let inner: usize = shape.iter().skip(axis.saturating_add(1)).product();
    for (index, value) in values.iter_mut().enumerate() {
        let place = index / inner.max(1) % places.max(1);
        let pick = |list: &[f32]| if list.len() == 1 { list[0] } else { list[place] };
        *value = (*value - pick(zeros)) * pick(scales);
    }
    Ok(values)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use prost::Message;
    use tract_onnx::pb::{AttributeProto, OperatorSetIdProto};

    use super::*;

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.to_owned(), ..ValueInfoProto::default() }
    }

    /// One operation of `x` and a stored number, with the same names in each.
    fn branch(name: &str, kind: &str, stored: f32) -> AttributeProto {
        let graph = GraphProto {
            node: vec![operation(kind, vec!["x".to_owned(), "w".to_owned()], "logits".to_owned())],
            initializer: vec![tensor("w", &[1], &[stored])],
            output: vec![value("logits")],
            ..GraphProto::default()
        };
        AttributeProto { name: name.to_owned(), g: Some(graph), ..AttributeProto::default() }
    }

    #[test]
    fn names_within_a_branch_are_its_own() {
        let mut choice = operation("If", vec!["use_cache_branch".to_owned()], "logits".to_owned());
        choice.attribute = vec![branch("then_branch", "Mul", 2.0), branch("else_branch", "Add", 3.0)];
        let graph = GraphProto {
            node: vec![choice, operation("Mul", vec!["logits".to_owned(), "w".to_owned()], "y".to_owned())],
            initializer: vec![tensor("w", &[1], &[10.0])],
            input: vec![value("use_cache_branch"), value("x")],
            output: vec![value("y")],
            ..GraphProto::default()
        };
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
        let model = ModelProto { graph: Some(graph), opset_import, ..ModelProto::default() };
        let file = std::env::temp_dir().join(format!("florence2-branch-{}.onnx", std::process::id()));
        std::fs::write(&file, model.encode_to_vec()).unwrap();
        for (condition, expected) in [(true, 7.0 * 2.0 * 10.0), (false, (7.0 + 3.0) * 10.0)] {
            let mut graph = Graph::read(&file).unwrap();
            graph.take_branch(condition).unwrap();
            graph.keep(|name| name == "y");
            assert_eq!(graph.inputs(), ["x"]);
            // Types are not written down in this graph.
            let nodes: Vec<&str> = graph.graph.node.iter().map(|node| node.op_type.as_str()).collect();
            assert_eq!(nodes, [if condition { "Mul" } else { "Add" }, "Identity", "Mul"]);
            let float = tract_onnx::pb::type_proto::Tensor { elem_type: DataType::Float as i32, shape: None };
            let kind =
                tract_onnx::pb::TypeProto { value: Some(Value::TensorType(float)), ..Default::default() };
            graph.graph.input[0].r#type = Some(kind);
            let mut model = onnx().parse(&graph.into_model(), None).unwrap().model;
            model.set_input_fact(0, InferenceFact::dt_shape(f32::datum_type(), [1])).unwrap();
            let plan = model.into_typed().unwrap().into_runnable().unwrap();
            let y = plan.run(tvec!(Tensor::from_shape(&[1], &[7.0f32]).unwrap().into_tvalue())).unwrap();
            assert_eq!(y[0].try_as_plain_ram().unwrap().as_slice::<f32>().unwrap(), [expected]);
        }
        std::fs::remove_file(&file).unwrap();
    }
}
