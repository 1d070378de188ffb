//! Florence-2's network from its ONNX export, on tract: pure Rust, no native library.
#![forbid(unsafe_code)]

mod error;
mod folder;
mod graph;
mod model;
mod plan;
mod unpack;

pub use error::{LoadError, RunError, TractError};
pub use folder::{UnknownVariant, Variant, Variants};
pub use model::{Image, State, Tract, TractModel};
