//! Florence-2 without the network.
//!
//! Florence-2 is Microsoft's small vision-language model. One set of weights captions, detects, reads text,
//! grounds phrases and segments; a marker such as `<OD>` chooses the task, and the answer comes back as text with
//! location tokens. This crate owns what lies around the network, and needs no weights:
//!
//! - [`Task`], [`Prompt`]: the fifteen tasks, and the sentence that each is asked as;
//! - [`Loc`], [`AddedToken`], [`TokenLayout`]: the tokens that Florence-2 adds to BART's vocabulary, and their ids;
//! - [`LocGrid`]: the thousand bins of each axis, with the references' own rounding;
//! - [`parse()`], [`parse_scored`], [`AnswerStream`]: from an answer's text to boxes, quadrilaterals, polygons or text;
//! - [`VisionSeq2Seq`], [`generate()`]: what a network must offer, and how it is asked;
//! - [`target_text`]: the way back, for training data; [`symptoms`]: what looks wrong in an answer.
//!
//! ```
//! use florence2_core::{ImageSize, ParseOptions, Task, parse};
//!
//! let size = ImageSize::from_width_height(640, 480)?;
//! let answer = parse(Task::ObjectDetection, "car<loc_54><loc_375><loc_906><loc_707>", size, &ParseOptions::default());
//! for car in answer.as_boxes().unwrap_or_default() {
//!     println!("{} at {:?}", car.label, car.shape.to_array());
//! }
//! # Ok::<(), florence2_core::SizeError>(())
//! ```
//!
//! # Which reference
//!
//! Two implementations are in use, the code that ships with microsoft's checkpoints and the transformers library,
//! and they do not agree. Each is a [`Dialect`] here, followed to the bit, quirks included. `testdata/` holds
//! what they return, and the `dev` feature runs their regular expressions beside the parsers.
//!
//! # Crate features
//!
//! - `serde`: `Serialize` and `Deserialize` for answers and all that is in them, [`Task`], [`AnswerKind`], [`Dialect`],
//!   [`ImageSize`] and [`Symptom`]; and `HfAnswer`, the references' dictionary.
//! - `dev`: what this project's own tests share (needs `std`); no stability is promised.
//!
//! The crate is `no_std` with `alloc`, on targets whose pointers are atomic (labels are shared), and has no unsafe code.

#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::std_instead_of_core, clippy::std_instead_of_alloc, clippy::alloc_instead_of_core)]

extern crate alloc;
#[cfg(any(test, feature = "dev"))]
extern crate std;

mod answer;
mod banned;
mod chars;
#[cfg(feature = "dev")]
pub mod dev;
mod generate;
mod geometry;
mod grid;
#[cfg(feature = "serde")]
mod hf;
mod model;
mod parse;
mod prompt;
mod scan;
mod score;
mod stream;
mod symptoms;
mod target;
mod task;
mod token;

pub use answer::{Answer, Instance, Label, Labeled};
pub use banned::{BANNED_PHRASES, BannedPhrases};
pub use generate::{
    ConfigError, EarlyStopping, Finish, GenerateError, Generated, GenerationConfig, Progress, Sampling,
    Search, SearchError, Step, generate,
};
pub use geometry::{BoundingBox, ImageSize, Point, Polygon, Quad, SizeError};
pub use grid::{LocGrid, PixelRegionError};
#[cfg(feature = "serde")]
pub use hf::HfAnswer;
pub use model::{Ask, ModelSpec, PixelValues, PixelValuesError, RequestError, SpecialIds, VisionSeq2Seq};
pub use parse::{Dialect, ParseOptions, parse, parse_scored};
pub use prompt::{Prompt, PromptError, Region, RegionError, TaskInput};
pub use stream::AnswerStream;
pub use symptoms::{Symptom, symptoms};
pub use target::{TargetError, target_text};
pub use task::{AnswerKind, InputKind, Task, UnknownKind, UnknownTask};
pub use token::{
    AddedToken, LayoutError, Loc, NotALoc, NotAnAddedToken, Segment, SpecialToken, TokenLayout, segments,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
