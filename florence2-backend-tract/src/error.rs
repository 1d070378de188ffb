//! What can go wrong.

use std::fmt;
use std::path::{Path, PathBuf};

use florence2_core::RequestError;

/// tract's own error.
pub(crate) type Source = tract_onnx::prelude::TractError;

/// What tract says, with its causes.
#[derive(Debug)]
pub struct TractError(pub(crate) Source);

impl fmt::Display for TractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for TractError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.chain().nth(1)
    }
}

/// Why a network could not be loaded.
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
    /// Something else stands in the place of a file.
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
    /// `config.json` or `preprocessor_config.json` has something that makes no sense, or cannot be done.
    #[error("{}: {problem}", file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Parts of the network are not there.
    #[error("{} lacks parts of the network: {}", folder.display(), problems.join("; "))]
    Parts {
        /// The folder.
        folder: PathBuf,
        /// One for each part: which files would do, and which are there instead.
        problems: Vec<String>,
    },
    /// A file is no ONNX graph, or not a whole one.
    #[error("{}: {problem}", file.display())]
    Onnx {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A graph has other inputs or outputs than its part of the network has.
    #[error(
        "{} is not the {part} of a Florence-2 export: it {problem}; it takes {} and gives {}",
        file.display(), List(inputs), List(outputs)
    )]
    Names {
        /// The file.
        file: PathBuf,
        /// The part that it should be.
        part: &'static str,
        /// What is wrong.
        problem: String,
        /// The inputs that it has.
        inputs: Vec<String>,
        /// The outputs that it has.
        outputs: Vec<String>,
    },
    /// Operators that tract does not have.
    #[error("tract cannot run {}: take another form of the weights, or export them again", files.iter().map(|(file, operators)| format!(
        "{}, which needs {}", file.display(), operators.join(", ")
    )).collect::<Vec<_>>().join("; "))]
    Operators {
        /// The files, each with the operators.
        files: Vec<(PathBuf, Vec<String>)>,
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
    /// tract could not make a plan of a graph.
    #[error("tract cannot prepare {}", file.display())]
    Tract {
        /// The file.
        file: PathBuf,
        /// What tract says.
        #[source]
        source: TractError,
    },
}

impl LoadError {
    /// The files that are to blame.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::Io { path: file, .. }
            | Self::Substitute { file, .. }
            | Self::Json { file, .. }
            | Self::Config { file, .. }
            | Self::Onnx { file, .. }
            | Self::Names { file, .. }
            | Self::Tract { file, .. } => vec![file],
            Self::Operators { files } => files.iter().map(|(file, _)| file.as_path()).collect(),
            Self::Parts { .. } | Self::Threads { .. } => Vec::new(),
        }
    }
}

struct List<'a>(&'a [String]);
impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
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
    /// tract failed.
    #[error("tract cannot run the {part}")]
    Tract {
        /// The part of the network.
        part: &'static str,
        /// What tract says.
        #[source]
        source: TractError,
    },
}
