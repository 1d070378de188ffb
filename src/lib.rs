//! Florence-2 in Rust.
//!
//! Florence-2 is Microsoft's small vision-language model: one set of weights captions, detects, reads text, grounds
//! phrases and segments. A marker such as `<OD>` chooses the task, and the answer comes back as text with location
//! tokens. This crate is the whole of it for an application; [`florence2_core`], which it re-exports, is the part
//! that needs no network and no `std`.
//!
//! As of this version it reads answers and writes prompts; running the network is in the works.
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
//! [`record`] reads and writes the JSON of `florence2 parse --jsonl`, and [`people`] what the program prints for
//! people, so that a service of one's own can speak the same.

#![forbid(unsafe_code)]

pub mod people;
pub mod record;

pub use florence2_core::*;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
