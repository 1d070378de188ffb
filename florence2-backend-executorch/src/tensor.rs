//! What goes into a method and comes out of it.

use std::fmt;

/// What the numbers of a tensor are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    I64,
    I32,
    Bool,
    /// Something else, or no tensor.
    Other(String),
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::Bool => "bool",
            Self::Other(name) => name,
        })
    }
}

/// What a method says of an input or an output. Of an axis whose length is free it says the greatest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorType {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// What a method takes and gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) inputs: Vec<TensorType>,
    pub(crate) outputs: Vec<TensorType>,
}

/// `takes f32[1, 3, 768, 768] and gives f32[1, 577, 768]`
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "takes {} and gives {}", List(&self.inputs), List(&self.outputs))
    }
}

struct List<'a>(&'a [TensorType]);
impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (index, tensor) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{tensor}", if index > 0 { ", " } else { "" })?;
        }
        if self.0.len() > SHOWN {
            write!(f, " and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Numbers with room behind them: kernels of XNNPACK read up to 16 bytes beyond an input's end.
#[derive(Clone, Debug)]
pub(crate) struct Floats {
    values: Vec<f32>,
    length: usize,
}

impl Floats {
    const ROOM: usize = 16;

    pub(crate) fn zeros(length: usize) -> Self {
        Self { values: vec![0.0; length + Self::ROOM], length }
    }

    pub(crate) fn of(values: &[f32]) -> Self {
        let mut all = Vec::with_capacity(values.len() + Self::ROOM);
        all.extend_from_slice(values);
        all.resize(values.len() + Self::ROOM, 0.0);
        Self { values: all, length: values.len() }
    }

    /// Cuts numbers off at the end, or adds zeros.
    pub(crate) fn resize(&mut self, length: usize) {
        self.values.resize(length + Self::ROOM, 0.0);
        // What was a number is room now, and may be one again.
        self.values[length..].fill(0.0);
        self.length = length;
    }
}

impl std::ops::Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[..self.length]
    }
}

impl std::ops::DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.length]
    }
}

/// What an input of whole numbers takes them in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeType {
    I64,
    I32,
    F32,
    Bool,
}

impl Dtype {
    pub(crate) fn whole(&self) -> Option<WholeType> {
        Some(match self {
            Self::I64 => WholeType::I64,
            Self::I32 => WholeType::I32,
            Self::F32 => WholeType::F32,
            Self::Bool => WholeType::Bool,
            Self::Other(_) => return None,
        })
    }
}

/// Whole numbers in what a program takes them in.
#[derive(Clone, Debug)]
pub(crate) enum Whole {
    I64(Vec<i64>),
    I32(Vec<i32>),
    F32(Floats),
    Bool(Vec<bool>),
}

impl Whole {
    pub(crate) fn new(dtype: WholeType, numbers: &[u32]) -> Self {
        let numbers = numbers.iter().copied();
        match dtype {
            WholeType::I64 => Self::I64(numbers.map(i64::from).collect()),
            // Ids and positions lie within the vocabulary and the table.
            WholeType::I32 => Self::I32(numbers.map(u32::cast_signed).collect()),
            WholeType::F32 => Self::F32(Floats::of(&numbers.map(|n| n as f32).collect::<Vec<_>>())),
            WholeType::Bool => Self::Bool(numbers.map(|n| n != 0).collect()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::I64(numbers) => numbers.len(),
            Self::I32(numbers) => numbers.len(),
            Self::F32(numbers) => numbers.len(),
            Self::Bool(numbers) => numbers.len(),
        }
    }

    pub(crate) fn data(&self) -> Data<'_> {
        match self {
            Self::I64(numbers) => Data::I64(numbers),
            Self::I32(numbers) => Data::I32(numbers),
            Self::F32(numbers) => Data::F32(numbers),
            Self::Bool(numbers) => Data::Bool(numbers),
        }
    }
}

/// The numbers of an input, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    F32(&'a [f32]),
    I64(&'a [i64]),
    I32(&'a [i32]),
    Bool(&'a [bool]),
}

/// An input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) data: Data<'a>,
}

impl<'a> Input<'a> {
    pub(crate) fn floats(shape: &'a [usize], values: &'a Floats) -> Self {
        Self { shape, data: Data::F32(values) }
    }

    pub(crate) fn whole(shape: &'a [usize], numbers: &'a Whole) -> Self {
        Self { shape, data: numbers.data() }
    }
}

/// An output of f32, as long as it lies in the method's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output<'a> {
    pub(crate) shape: &'a [i32],
    pub(crate) values: &'a [f32],
}

impl Output<'_> {
    pub(crate) fn is(&self, shape: &[usize]) -> bool {
        self.values.len() == shape.iter().product::<usize>()
            && self.shape.len() == shape.len()
            && self.shape.iter().zip(shape).all(|(&a, &b)| usize::try_from(a) == Ok(b))
    }
}
