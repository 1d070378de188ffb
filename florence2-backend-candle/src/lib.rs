//! Florence-2's network from the weights that people have, behind [`VisionSeq2Seq`].
//!
//! [`Candle`] loads a checkpoint: `config.json` and safetensors, sharded or not, or `pytorch_model.bin`, with the names
//! of microsoft's files or those of the transformers library. It runs
//!
//! - on the processor ([`Device::Cpu`]), with kernels written for this network and compiled for each instruction set:
//!   channels-last, weights packed once, prompts of a batch never padded;
//! - on CUDA and Metal, with [candle](candle_core)'s operators, behind the features `cuda` and `metal`.
//!
//! ```no_run
//! use florence2_backend_candle::Candle;
//! use florence2_core::{Ask, GenerationConfig, PixelValues, VisionSeq2Seq};
//!
//! let mut model = Candle::default().load("Florence-2-base-ft".as_ref())?;
//! let pixels = PixelValues::new(768, 768, vec![0.0; 3 * 768 * 768])?;
//! let images = model.encode_image(&[pixels])?;
//! let asks = [Ask { image: &images[0], prompt: &[0, 2264, 473, 5, 2274, 6190, 116, 2] }];
//! let mut state = model.encode_prompt(&asks)?;
//! # let _ = state;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Crate features
//!
//! - `cuda`: NVIDIA GPUs. Needs the CUDA toolkit to build.
//! - `metal`: Apple GPUs.
//! - `mkl`, `accelerate`: Intel's and Apple's libraries for the products of [`Device::CandleCpu`].

#![forbid(unsafe_code)]

mod config;
mod cpu;
mod device;
mod error;
mod json;
mod model;
mod pickle;
mod weights;

pub use error::{LoadError, RunError};
pub use florence2_core;
pub use florence2_core::VisionSeq2Seq;
pub use model::{Candle, CandleModel, Device, Dtype, Image, Inspection, State, inspect};
pub use weights::{Layout, WeightsSummary};
