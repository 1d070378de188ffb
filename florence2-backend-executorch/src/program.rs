//! A file of ExecuTorch's, and running its methods.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::ExecuTorchError;
use crate::tensor::{Input, Output, Signature};

/// A loaded file. Methods are loaded one by one.
pub(crate) struct Program {
    file: PathBuf,
    module: imp::Module,
}

impl Program {
    /// ExecuTorch must have been started before.
    pub(crate) fn open(file: &Path, map: bool) -> Result<Self, ExecuTorchError> {
        Ok(Self { file: file.to_owned(), module: imp::Module::open(file, map)? })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The names of the methods, in alphabetical order.
    pub(crate) fn methods(&mut self) -> Result<Vec<String>, ExecuTorchError> {
        self.module.methods()
    }

    pub(crate) fn signature(&mut self, method: &str) -> Result<Signature, ExecuTorchError> {
        self.module.signature(method)
    }

    /// Loads a method, with all that its runs need.
    pub(crate) fn prepare(&mut self, method: &str) -> Result<(), ExecuTorchError> {
        self.module.prepare(method)
    }

    /// Runs a method, and reads its outputs where they are f32.
    pub(crate) fn run<R>(
        &mut self,
        method: &str,
        inputs: &[Input<'_>],
        read: impl FnOnce(&[Output<'_>]) -> R,
    ) -> Result<R, ExecuTorchError> {
        self.module.run(method, inputs, read)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(not(feature = "runtime"))]
mod imp {
    use std::path::Path;

    use super::{ExecuTorchError, Input, Output, Signature};

    /// There is none.
    pub(super) enum Module {}

    impl Module {
        pub(super) fn open(_: &Path, _: bool) -> Result<Self, ExecuTorchError> {
            Err(ExecuTorchError { status: "NotBuilt".to_owned(), log: Vec::new() })
        }

        pub(super) fn methods(&mut self) -> Result<Vec<String>, ExecuTorchError> {
            match *self {}
        }

        pub(super) fn signature(&mut self, _: &str) -> Result<Signature, ExecuTorchError> {
            match *self {}
        }

        pub(super) fn prepare(&mut self, _: &str) -> Result<(), ExecuTorchError> {
            match *self {}
        }

        pub(super) fn run<R>(
            &mut self,
            _: &str,
            _: &[Input<'_>],
            _: impl FnOnce(&[Output<'_>]) -> R,
        ) -> Result<R, ExecuTorchError> {
            match *self {}
        }
    }
}

#[cfg(feature = "runtime")]
#[expect(unsafe_code, reason = "the bindings leave it to their caller that shapes and numbers agree")]
mod imp {
    use std::path::Path;

    use executorch::evalue::{EValue, IntoEValue, Tag};
    use executorch::module::{LoadMode, ModuleBuilder};
    use executorch::program::{ProgramVerification, TensorInfo};
    use executorch::tensor::{Scalar, ScalarType, TensorPtr, TensorPtrBuilder, View};

    use super::{ExecuTorchError, Input, Output, Signature};
    use crate::runtime::logged;
    use crate::tensor::{Data, Dtype, TensorType};

    pub(super) struct Module(executorch::module::Module<'static>);

    impl Module {
        pub(super) fn open(file: &Path, map: bool) -> Result<Self, ExecuTorchError> {
            let mode = if map { LoadMode::Mmap } else { LoadMode::File };
            // Methods of one file use the same memory, one after the other.
            let mut module = ModuleBuilder::new(file).load_mode(mode).share_memory_arenas(true).build();
            // Of damaged files, about one in twenty crashes the runtime with its default, and one in two hundred with this.
            logged(|| module.load(Some(ProgramVerification::InternalConsistency), None))?;
            Ok(Self(module))
        }

        pub(super) fn methods(&mut self) -> Result<Vec<String>, ExecuTorchError> {
            let mut names: Vec<String> = logged(|| self.0.method_names())?.into_iter().collect();
            names.sort();
            Ok(names)
        }

        pub(super) fn signature(&mut self, method: &str) -> Result<Signature, ExecuTorchError> {
            logged(|| {
                let meta = self.0.method_meta(method)?;
                let tensor = |tag: Tag, tensor: Result<TensorInfo<'_>, _>| {
                    Ok(if tag == Tag::Tensor { of(&tensor?) } else { other(format!("{tag:?}")) })
                };
                let given = |tag: Tag, tensor: Result<TensorInfo<'_>, _>| {
                    Ok(if tag == Tag::Tensor { planned(&tensor?) } else { other(format!("{tag:?}")) })
                };
                let inputs =
                    (0..meta.num_inputs()).map(|at| tensor(meta.input_tag(at)?, meta.input_tensor_meta(at)));
                let outputs = (0..meta.num_outputs())
                    .map(|at| given(meta.output_tag(at)?, meta.output_tensor_meta(at)));
                Ok(Signature {
                    inputs: inputs.collect::<Result<_, _>>()?,
                    outputs: outputs.collect::<Result<_, _>>()?,
                })
            })
        }

        pub(super) fn prepare(&mut self, method: &str) -> Result<(), ExecuTorchError> {
            logged(|| self.0.load_method(method, None, None))
        }

        pub(super) fn run<R>(
            &mut self,
            method: &str,
            inputs: &[Input<'_>],
            read: impl FnOnce(&[Output<'_>]) -> R,
        ) -> Result<R, ExecuTorchError> {
            logged(|| {
                let tensors = inputs.iter().map(Tensor::new).collect::<Result<Vec<_>, _>>()?;
                let values: Vec<EValue<'_>> = tensors.iter().map(Tensor::value).collect();
                let given = self.0.execute(method, &values)?;
                let outputs = given.iter().map(output).collect::<Result<Vec<_>, _>>()?;
                Ok(read(&outputs))
            })
        }
    }

    fn of(tensor: &TensorInfo<'_>) -> TensorType {
        let in_order = tensor.dim_order().iter().copied().eq(0..tensor.dim_order().len() as u8);
        let dtype = match tensor.scalar_type() {
            _ if !in_order => Dtype::Other(format!("{:?} with axes in another order", tensor.scalar_type())),
            ScalarType::Float => Dtype::F32,
            ScalarType::Long => Dtype::I64,
            ScalarType::Int => Dtype::I32,
            ScalarType::Bool => Dtype::Bool,
            other => Dtype::Other(format!("{other:?}")),
        };
        // A negative length is none, and no axis has none.
        let shape = tensor.sizes().iter().map(|&length| usize::try_from(length).unwrap_or(0));
        TensorType { dtype, shape: shape.collect() }
    }

    /// An output, which a run would write nowhere if the program had no memory for it.
    fn planned(tensor: &TensorInfo<'_>) -> TensorType {
        let TensorType { dtype, shape } = of(tensor);
        let is_planned = tensor.is_memory_planned();
        let dtype = if is_planned {
            dtype
        } else {
            Dtype::Other(format!("{dtype} without memory of the program's own, "))
        };
        TensorType { dtype, shape }
    }

    fn other(name: String) -> TensorType {
        TensorType { dtype: Dtype::Other(name), shape: Vec::new() }
    }

    enum Tensor<'a> {
        F32(TensorPtr<'a, View<f32>>),
        I64(TensorPtr<'a, View<i64>>),
        I32(TensorPtr<'a, View<i32>>),
        Bool(TensorPtr<'a, View<bool>>),
    }

    impl<'a> Tensor<'a> {
        fn new(input: &Input<'a>) -> Result<Self, executorch::Error> {
            Ok(match input.data {
                Data::F32(numbers) => Self::F32(view(input.shape, numbers)?),
                Data::I64(numbers) => Self::I64(view(input.shape, numbers)?),
                Data::I32(numbers) => Self::I32(view(input.shape, numbers)?),
                Data::Bool(numbers) => Self::Bool(view(input.shape, numbers)?),
            })
        }

        fn value(&self) -> EValue<'_> {
            match self {
                Self::F32(tensor) => tensor.into_evalue(),
                Self::I64(tensor) => tensor.into_evalue(),
                Self::I32(tensor) => tensor.into_evalue(),
                Self::Bool(tensor) => tensor.into_evalue(),
            }
        }
    }

    fn view<'a, S: Scalar>(
        shape: &[usize],
        numbers: &'a [S],
    ) -> Result<TensorPtr<'a, View<S>>, executorch::Error> {
        let sizes = shape.iter().map(|&length| i32::try_from(length));
        let sizes: Vec<i32> =
            sizes.collect::<Result<_, _>>().map_err(|_| executorch::Error::InvalidArgument)?;
        let count = shape.iter().try_fold(1usize, |count, &length| count.checked_mul(length));
        if count != Some(numbers.len()) {
            return Err(executorch::Error::InvalidArgument);
        }
        // SAFETY: the lengths are those of the slice, in row-major order.
        unsafe { TensorPtrBuilder::<View<S>>::from_slice(numbers).sizes(sizes) }.build()
    }

    fn output<'a>(value: &'a EValue<'_>) -> Result<Output<'a>, executorch::Error> {
        if value.tag() != Tag::Tensor {
            return Err(executorch::Error::InvalidType);
        }
        let tensor = value.as_tensor();
        if tensor.scalar_type() != ScalarType::Float {
            return Err(executorch::Error::InvalidType);
        }
        let (shape, count, start) = (tensor.sizes(), tensor.numel(), tensor.as_data_ptr_raw().cast::<f32>());
        // What a file says of where its outputs lie need not make sense.
        if (start.is_null() && count > 0) || !start.is_aligned() {
            return Err(executorch::Error::InvalidProgram);
        }
        // SAFETY: the pointer is aligned, and ExecuTorch has checked that so many numbers lie in the memory that the method
        // holds, or that its program does. Neither is written to before the next run, which needs `&mut` of the module, and
        // `value` borrows it.
        unsafe {
            let shape = std::slice::from_raw_parts(shape.as_ptr(), shape.len());
            let values = if count == 0 { &[] } else { std::slice::from_raw_parts(start, count) };
            Ok(Output { shape, values })
        }
    }
}
