//! What can go wrong between a picture and an answer.

use std::io;
use std::path::PathBuf;

use florence2_core::{ConfigError, GenerateError, SearchError, SpecialToken};

use crate::record::BannedError;
use crate::{PreprocessorError, TokenizerError};

/// A backend's own error: each backend has another.
type BackendError = Box<dyn std::error::Error + Send + Sync>;

/// Why a checkpoint could not be loaded, or a picture not be asked about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A checkpoint is a folder.
    #[error("{} is a file: a checkpoint is a folder with config.json, weights, a tokenizer and preprocessor_config.json", .0.display())]
    NotAFolder(PathBuf),
    /// A file or a folder that is not there, or cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A folder without the file.
    #[error(
        "{} has no preprocessor_config.json, which says how pictures are prepared; a fine-tune has that of the checkpoint \
         that it began with",
        .0.display()
    )]
    NoPreprocessor(PathBuf),
    /// Pictures would have to be prepared in a way that is not done here.
    #[error("{} cannot be followed", path.display())]
    Preprocessor {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PreprocessorError,
    },
    /// The list of banned phrases cannot be read.
    #[error("{} cannot be followed", path.display())]
    ProcessorConfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: BannedError,
    },
    /// The network could not be loaded: the backend's error.
    #[error("cannot load the network")]
    Load(#[source] BackendError),
    /// The files do not belong together.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// Pictures are not resized, and one has a size that the network does not take.
    #[error(
        "the picture has {}x{} pixels, the network takes {}x{}, and preprocessor_config.json has \"do_resize\" off: \
         resize the picture, or set it to true",
        picture.0, picture.1, network.0, network.1
    )]
    PictureSize {
        /// Width and height of the picture.
        picture: (usize, usize),
        /// Width and height that the network takes.
        network: (usize, usize),
    },
    /// The network has no room for the prompt.
    #[error("the prompt has {tokens} tokens, and the network takes {room}: ask in fewer words")]
    PromptTooLong {
        /// Tokens of the prompt, its two ends included.
        tokens: usize,
        /// How many there may be.
        room: usize,
    },
    /// The prompt has a token that the network knows nothing of.
    #[error(
        "the prompt holds {token:?}, which has the id {id}, and the network knows {vocabulary} tokens only: the \
         tokenizer is another checkpoint's, or the token was added and never trained"
    )]
    UnknownToken {
        /// Its text.
        token: String,
        /// Its id.
        id: u32,
        /// How many the network has.
        vocabulary: usize,
    },
    /// The configuration of the generation cannot be followed.
    #[error(transparent)]
    Generation(#[from] ConfigError),
    /// The search cannot go on: logits that are no numbers, or rules that leave no token.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The network failed: the backend's error.
    #[error("the network failed")]
    Model(#[source] BackendError),
    /// A backend breaks its contract.
    #[error("the backend was given {given} and returned {returned}: this is a mistake in it")]
    WrongCount {
        /// Pictures, or questions.
        given: usize,
        /// What came back.
        returned: usize,
    },
}

impl<E: std::error::Error + Send + Sync + 'static> From<GenerateError<E>> for Error {
    fn from(error: GenerateError<E>) -> Self {
        match error {
            GenerateError::Config(error) => Self::Generation(error),
            GenerateError::Model(error) => Self::Model(Box::new(error)),
            GenerateError::Search(error) => Self::Search(error),
            // Whatever else may come to be.
            error => Self::Model(Box::new(error)),
        }
    }
}

/// How the files of a checkpoint do not belong together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Pictures of another size.
    #[error(
        "preprocessor_config.json prepares pictures of {}x{}, and the network takes {}x{}",
        preprocessor.0, preprocessor.1, network.0, network.1
    )]
    ImageSize {
        /// Width and height that the preprocessor has.
        preprocessor: (usize, usize),
        /// Width and height that the network takes.
        network: (usize, usize),
    },
    /// A special token with another id.
    #[error(
        "{token} is {tokenizer} to the tokenizer, and {network} to the network: they are of two checkpoints"
    )]
    SpecialId {
        /// The token.
        token: SpecialToken,
        /// Its id in the tokenizer.
        tokenizer: u32,
        /// Its id in the network's configuration.
        network: u32,
    },
    /// Tokens without a row.
    #[error(
        "the tokenizer's added tokens go up to the id {tokenizer}, and the network has {network} tokens only: they are \
         of two checkpoints"
    )]
    Vocabulary {
        /// The highest id of the 1024 added tokens.
        tokenizer: u32,
        /// Tokens that the network has.
        network: usize,
    },
}
