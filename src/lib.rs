//! Florence-2.
pub use florence2_core as core;
