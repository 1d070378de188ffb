//! Florence-2 in Rust.
//!
//! Florence-2 is Microsoft's small vision-language model: one set of weights captions, detects, reads text, grounds
//! phrases and segments. A marker such as `<OD>` chooses the task, and the answer comes back as text with location
//! tokens. This crate is the whole of it for an application; [`florence2_core`], which it re-exports, is the part
//! that needs no network and no `std`.
//!
//! From a picture to an answer, with a checkpoint's folder ([`Florence2`]):
//!
#![cfg_attr(feature = "candle", doc = "```no_run")]
#![cfg_attr(not(feature = "candle"), doc = "```ignore")]
//! use florence2::{Candle, Florence2, GenerationConfig, Image};
//!
//! let mut florence = Florence2::load("Florence-2-base-ft", Candle::default())?;
//! let car = florence.see(&Image::open("car.jpg")?)?;
//! let output = florence.ask(&car, &"<OD>".parse()?, &GenerationConfig::default())?;
//! for found in output.answer.as_boxes().unwrap_or_default() {
//!     println!("{} at {:?}", found.label, found.shape.to_array());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! From an answer that another system produced to boxes, without any weights:
//!
//! ```
//! use florence2::{ImageSize, ParseOptions, Task, parse};
//!
//! let size = ImageSize::from_width_height(640, 480)?;
//! let answer = parse(Task::ObjectDetection, "car<loc_54><loc_375><loc_906><loc_707>", size, &ParseOptions::default());
//! let car = &answer.as_boxes().unwrap()[0];
//! assert_eq!(car.label, "car");
//! assert_eq!(car.shape.to_array(), [34.88, 180.23999, 580.16, 339.6]);
//! # Ok::<(), florence2::SizeError>(())
//! ```
//!
//! [`record`] reads and writes the JSON of the program, and [`people`] what it prints for people, so that a service of
//! one's own can speak the same.
//!
//! # Crate features
//!
//! Each only adds; a value, not a feature, says what is used. Without any, this is the core with its records.
//!
//! - `candle` (default): the backend `Candle`, from safetensors or PyTorch weights; implies `model`.
//! - `cuda`, `metal`, `accelerate`, `mkl`: devices and libraries of that backend.
//! - `executorch`: the backend `ExecuTorch`, from `.pte` programs; implies `model`. It links ExecuTorch's runtime, which
//!   `tools/get-executorch.sh` of the repository brings.
//! - `tract`: the backend `Tract`, from the ONNX export; implies `model`.
//! - `model`: `Florence2` over any network behind [`VisionSeq2Seq`]; implies `image` and `tokenizer`.
//! - `demo`: a tiny checkpoint in the program, `Florence2::demo`; implies `model`.
//! - `image`: pictures from files, and prepared for the network.
//! - `overlay`: answers drawn over pictures; implies `image`.
//! - `tokenizer`: the checkpoints' own tokenizer.

#![forbid(unsafe_code)]

#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "model")]
mod florence;
#[cfg(feature = "overlay")]
pub mod overlay;
pub mod people;
#[cfg(feature = "image")]
pub mod pixels;
pub mod record;
#[cfg(feature = "tokenizer")]
mod tokenizer;

pub use florence2_files::{FileError, Substitute};

/// No file beside the weights has so many bytes: tokenizers, the longest of them, have up to 4 million.
#[cfg(feature = "tokenizer")]
const LARGEST_FILE: u64 = 64 << 20;

#[cfg(feature = "model")]
pub use florence::{
    Backend, BackendFromBytes, Error, Florence2, Mismatch, Output, OutputToken, Piece, Seen, Sequence,
    Timings,
};
#[cfg(feature = "candle")]
pub use florence2_backend_candle::{self as candle, Candle, CandleModel};
#[cfg(feature = "executorch")]
pub use florence2_backend_executorch::{self as executorch, ExecuTorch, ExecuTorchModel};
#[cfg(feature = "tract")]
pub use florence2_backend_tract::{self as tract, Tract, TractModel};
pub use florence2_core::*;
#[cfg(feature = "image")]
pub use pixels::{DecodeOptions, Image, ImageError, Preprocessor, PreprocessorError};
#[cfg(feature = "tokenizer")]
pub use tokenizer::{TokenDecoder, Tokenizer, TokenizerError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
