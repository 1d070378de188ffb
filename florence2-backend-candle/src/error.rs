//! What can go wrong.

use std::fmt;
use std::path::{Path, PathBuf};

use florence2_core::RequestError;

use crate::weights::Layout;

/// Why a checkpoint could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The folder has no weights.
    #[error(
        "{} holds no weights: model.safetensors, model.safetensors.index.json with its shards, or pytorch_model.bin is needed",
        folder.display()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// Something else stands in the place of a JSON file.
    #[error("{} is {found}", file.display())]
    Substitute {
        /// The file.
        file: PathBuf,
        /// What is there, and how to get the file.
        found: florence2_files::Substitute,
    },
    /// A JSON file is broken.
    #[error("{} is not the JSON that is expected", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// `config.json` asks for something that this network does not do, or makes no sense.
    #[error("{}: {key} is {value}, but {need}", file.display())]
    Config {
        /// The file; without a folder where the configuration is not at fault by itself, or came from memory.
        file: PathBuf,
        /// The key, with dots.
        key: String,
        /// What it says.
        value: String,
        /// What is needed.
        need: String,
    },
    /// `preprocessor_config.json` has a size that does not say what the network is to take.
    #[error(
        "{}: size is {value}, but a width and a height are needed, or `Candle::image_size`", file.display()
    )]
    Preprocessor {
        /// The file.
        file: PathBuf,
        /// What it says.
        value: String,
    },
    /// A file of weights is broken.
    #[error("{} is not a whole file of weights: {problem}", file.display())]
    Weights {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The index of a sharded checkpoint and its files do not agree.
    #[error("{}: {problem}", file.display())]
    Index {
        /// The index.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The names are neither layout's.
    #[error(
        "the weights are not Florence-2's, or are in a layout that is not known: neither `vision_tower.…` (microsoft) nor \
         `model.vision_tower.…` (transformers) is among the {tensors} tensors, which begin with {first}"
    )]
    UnknownLayout {
        /// How many tensors there are.
        tensors: usize,
        /// The first name.
        first: String,
    },
    /// A tensor that the network needs is not there.
    #[error(
        "the weights ({layout} layout) lack the tensor {name}: they are another network's than config.json's, or incomplete"
    )]
    Missing {
        /// Its name, in the layout of the file.
        name: String,
        /// The layout that was recognised.
        layout: Layout,
    },
    /// Tensors that the network has no use for: another network's, or another configuration's.
    #[error("the weights ({layout} layout) hold {} that config.json has no place for: {}", Count(names.len()), List(names))]
    Unused {
        /// Their names, in the layout of the file.
        names: Vec<String>,
        /// The layout that was recognised.
        layout: Layout,
    },
    /// A tensor of another shape than `config.json` says.
    #[error(
        "the tensor {name} ({layout} layout) has the shape {found:?}, and {expected:?} is expected from config.json"
    )]
    Shape {
        /// Its name, in the layout of the file.
        name: String,
        /// The layout that was recognised.
        layout: Layout,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration asks for.
        expected: Vec<usize>,
    },
    /// A tensor of a type that is not read.
    #[error("the tensor {name} is stored as {dtype}; f32, f16 and bf16 are read")]
    Dtype {
        /// Its name, in the layout of the file.
        name: String,
        /// How it is stored.
        dtype: String,
    },
    /// A tensor holds numbers that are none.
    #[error(
        "the tensor {name} holds infinite numbers or NaN, as happens when a training diverges or a conversion overflows"
    )]
    NotFinite {
        /// Its name, in the layout of the file.
        name: String,
    },
    /// A tensor holds a number that the asked-for type cannot hold.
    #[error(
        "the tensor {name} holds numbers beyond {largest}, which this type of weights cannot hold: load them as f32"
    )]
    OutOfRange {
        /// Its name, in the layout of the file.
        name: String,
        /// The type's largest number.
        largest: f32,
    },
    /// Two tensors of a file are the same one of the network.
    #[error("the tensors {first} and {second} are the same one under two names")]
    Twice {
        /// One name.
        first: String,
        /// The other name.
        second: String,
    },
    /// The file holds no tensor.
    #[error("the weights hold no tensor")]
    NoTensors,
    /// Tensors that must be one and the same are not.
    #[error(
        "the tensors {first} and {second} should be the same, since Florence-2's embeddings are tied, but they differ"
    )]
    NotTied {
        /// One name.
        first: String,
        /// The other name.
        second: String,
    },
    /// The device is not there, or was not compiled in.
    #[error("the device {device} cannot be used")]
    Device {
        /// The device that was asked for.
        device: String,
        /// What candle says.
        #[source]
        source: candle_core::Error,
    },
    /// The device has no arithmetic of that type.
    #[error("{device} has no products in {dtype}; take f32 or f16, or the device cpu")]
    DeviceDtype {
        /// The device that was asked for.
        device: String,
        /// The type that was asked for.
        dtype: String,
    },
    /// The threads could not be started.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// Why.
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    /// candle could not put the weights on the device.
    #[error("cannot put the weights on the device")]
    Candle(#[source] candle_core::Error),
}

impl LoadError {
    /// What is wrong with a configuration, with the path that it was read from.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Config { key, value, need, .. } => Self::Config { file: path.to_owned(), key, value, need },
            other => other,
        }
    }
}

struct Count(usize);
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensor{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

struct List<'a>(&'a [String]);
impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        for (index, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{name}", if index > 0 { ", " } else { "" })?;
        }
        if self.0.len() > SHOWN {
            write!(f, " and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Why the network could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It was asked for what cannot be.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// candle or its device failed.
    #[error("the device failed")]
    Candle(#[from] candle_core::Error),
}
