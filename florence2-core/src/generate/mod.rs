//! Generation: from logits to tokens.
//!
//! [`Search`] decides, and runs nothing: logits go in, and tokens to feed come out. [`generate`] is the loop around it
//! that runs the network.

mod config;
mod logits;
mod repeats;
mod sampling;
mod search;

use alloc::vec::Vec;
use core::ops::ControlFlow;

pub use config::{ConfigError, EarlyStopping, Finish, Generated, GenerationConfig, Progress, Sampling};
pub use search::{Search, SearchError, Step};

use crate::model::{Ask, VisionSeq2Seq};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError<E: core::error::Error + 'static> {
    /// The network cannot be asked so.
    #[error("the generation settings cannot be followed")]
    Config(#[from] ConfigError),
    /// The network failed.
    #[error("the network failed")]
    Model(#[source] E),
    /// What the network gave is no answer.
    #[error("the network's answer cannot be read")]
    Search(#[from] SearchError),
}

/// Asks the network a batch of questions: the sequences of each ask, the best first, samples in order.
///
/// An ask's answer does not depend on what else is in the batch, but for what the network itself rounds otherwise.
///
/// `observe` is called after each step, for each ask that was running in it (for each of its samples, if it is
/// sampled), with the tokens that became certain, even if none did. Tokens are never taken back; all that it is given for
/// a sequence, joined, is the result. If it returns [`ControlFlow::Break`], what is still running is
/// [cancelled](Finish::Cancelled), and comes back with what it has.
///
/// No ask has no answer; that is no error.
///
/// # Errors
///
/// If the settings cannot be followed, which is found before the network runs; if the network fails; if its logits are
/// no numbers.
pub fn generate<M: VisionSeq2Seq>(
    model: &mut M,
    asks: &[Ask<'_, M::Image>],
    config: &GenerationConfig,
    observe: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Vec<Vec<Generated>>, GenerateError<M::Error>> {
    let vocabulary = model.spec().vocabulary_size;
    let mut search = Search::new(model.spec(), asks.len(), config)?;
    if asks.is_empty() {
        return Ok(Vec::new());
    }
    let mut state = model.encode_prompt(asks).map_err(GenerateError::Model)?;
    let mut logits = Vec::new();
    while let Some(step) = search.step() {
        if let Some(rows) = step.select {
            model.select_rows(&mut state, rows).map_err(GenerateError::Model)?;
        }
        logits.resize(step.tokens.len() * vocabulary, 0.0);
        model.decode_step(&mut state, step.tokens, &mut logits).map_err(GenerateError::Model)?;
        search.advance(&mut logits)?;
        if search.progress().any(|progress| observe(progress).is_break()) {
            break;
        }
    }
    Ok(search.finish())
}
