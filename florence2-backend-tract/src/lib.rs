//! Florence-2's network from its ONNX export, on [tract](https://github.com/sonos/tract): pure Rust, no native library.
//!
//! [`Tract`] says how, and loads a folder in the layout of the hub's exports; [`TractModel`] is the network behind
//! [`VisionSeq2Seq`](florence2_core::VisionSeq2Seq).
//!
//! ```no_run
//! use florence2_backend_tract::{Tract, Variant, Variants};
//! use florence2_core::VisionSeq2Seq;
//!
//! let tract = Tract { variants: Variants::all(Variant::Q4), ..Tract::default() };
//! let model = tract.load("Florence-2-base-ft-ONNX".as_ref())?;
//! println!("{} tokens", model.spec().vocabulary_size);
//! # Ok::<(), florence2_backend_tract::LoadError>(())
//! ```
//!
//! Every published form of the weights ([`Variant`]) is widened to fp32 when it is loaded, and computed so.

#![forbid(unsafe_code)]

mod decoder;
mod error;
mod folder;
mod fuse;
mod graph;
mod model;
mod parts;
mod plan;
mod unpack;
mod wire;

pub use error::{LoadError, RunError, TractError};
pub use folder::{UnknownVariant, Variant, Variants};
pub use model::{Image, State, Tract, TractModel};
pub use plan::Cost;
