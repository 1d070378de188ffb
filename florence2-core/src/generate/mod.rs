//! Generation: from logits to tokens.

mod config;

pub use config::{EarlyStopping, Finish, Generated, GenerationConfig, Progress, Sampling};
