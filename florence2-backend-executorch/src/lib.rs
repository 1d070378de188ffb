//! Florence-2's network from [ExecuTorch](https://pytorch.org/executorch) programs: `.pte` files, run by ExecuTorch's own
//! runtime.
//!
//! [`ExecuTorch`] says how, and loads a folder; [`ExecuTorchModel`] is the network behind
//! [`VisionSeq2Seq`](florence2_core::VisionSeq2Seq).
//!
//! ```no_run
//! use florence2_backend_executorch::{ExecuTorch, Variant, Variants};
//! use florence2_core::VisionSeq2Seq;
//!
//! let executorch = ExecuTorch { variants: Variants::all(Variant::Int8), ..ExecuTorch::default() };
//! let model = executorch.load("Florence-2-base-ft-pte".as_ref())?;
//! println!("{} tokens", model.spec().vocabulary_size);
//! # Ok::<(), florence2_backend_executorch::LoadError>(())
//! ```
//!
//! # What it is built with
//!
//! The feature `runtime` links the shared libraries of ExecuTorch's wheel. `tools/get-executorch.sh` of the repository brings
//! them, and libclang, which the bindings are made with. Without the feature everything compiles, and loading says
//! [`LoadError::NotBuilt`]; [`BUILT`] tells.
//!
//! Who builds it from elsewhere sets two variables, as the repository's `.cargo/config.toml` does:
//!
//! | variable | |
//! |---|---|
//! | `EXECUTORCH_RS_LINK` | `0`: the bindings shall not look for static libraries |
//! | `FLORENCE2_EXECUTORCH_HOME` | a folder whose `lib/` holds `libexecutorch.so` and the others |
//!
//! A program needs the libraries when it runs, too. `cargo run` and `cargo test` find them; an installed program finds them where
//! its run path says, which its own build script sets (that of `florence2-cli` is an example: it depends on this crate directly,
//! and so is told their folder in `DEP_FLORENCE2_EXECUTORCH_LIB_DIR`), or by `LD_LIBRARY_PATH`. [`Runtime::folder`] is where they
//! were found. Those with kernels and delegates register themselves when they are opened, which happens with the first load: all
//! that are in that folder, so that another delegate is another file in it. Two libraries with the same kernels end the process.
//!
//! ExecuTorch's log and threads are the whole process's. Whoever runs it by other means, too, loads a network here first.
//!
//! # What it cannot do anything about
//!
//! A program is native code's input. Damaged files are refused by their checksum if the `manifest.json` beside them has it, and
//! otherwise by what ExecuTorch itself checks, which misses some: a wrong answer or a crash can come of them. Where memory runs
//! out within ExecuTorch, the process ends.

mod decoder;
mod error;
mod folder;
mod model;
mod parts;
mod program;
mod runtime;
#[cfg_attr(
    not(feature = "runtime"),
    expect(dead_code, reason = "there is nothing that it could be given to")
)]
mod tensor;

pub use error::{ExecuTorchError, LoadError, RunError};
pub use folder::{Form, Paths, UnknownPart, UnknownVariant, Variant, Variants};
pub use model::{ExecuTorch, ExecuTorchModel, Image, State};
pub use runtime::{BUILT, Runtime};
