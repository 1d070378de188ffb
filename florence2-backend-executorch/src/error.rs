//! What can go wrong.

use std::fmt;
use std::path::{Path, PathBuf};

use florence2_core::RequestError;

use crate::tensor::Signature;

/// What ExecuTorch says: the name of its error, and what it logged on the way there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuTorchError {
    pub(crate) status: String,
    pub(crate) log: Vec<String>,
}

impl ExecuTorchError {
    /// The name of ExecuTorch's error, such as `InvalidProgram` or `MemoryAllocationFailed`.
    #[must_use]
    pub fn status(&self) -> &str {
        &self.status
    }

    /// What it logged as errors within the call, line by line.
    #[must_use]
    pub fn log(&self) -> &[String] {
        &self.log
    }
}

impl fmt::Display for ExecuTorchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.status)?;
        for (index, line) in self.log.iter().enumerate() {
            write!(f, "{}{line}", if index == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for ExecuTorchError {}

/// Why a network could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no ExecuTorch in this program.
    #[error(
        "this program was built without ExecuTorch: run tools/get-executorch.sh in the repository, and build with the \
         feature `runtime` of florence2-backend-executorch (`executorch` of florence2 and of florence2-cli)"
    )]
    NotBuilt,
    /// ExecuTorch's libraries could not be opened.
    #[error("ExecuTorch cannot be started: {problem}")]
    Runtime {
        /// What is wrong.
        problem: String,
    },
    /// The process has another number of threads already.
    #[error(
        "{asked} threads were asked for, and ExecuTorch runs on {running}: its threads are those of the whole process, and \
         the first load says how many"
    )]
    Threads {
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        running: usize,
    },
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
    /// `config.json` has something that makes no sense beside the programs.
    #[error("{}: {problem}", file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Parts of the network are not there.
    #[error(
        "{} lacks parts of the network: {}; {}", folder.display(), problems.join("; "),
        if found.is_empty() { "no .pte is there".to_owned() } else { format!("there is {}", found.join(", ")) }
    )]
    Parts {
        /// The folder.
        folder: PathBuf,
        /// One for each part: what is needed.
        problems: Vec<String>,
        /// The names of the programs that are there.
        found: Vec<String>,
    },
    /// A file is not the one that was exported.
    #[error("{}: {problem}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A method has other inputs or outputs than its part of the network has, or does not fit the others.
    #[error("{}: {method} is not the {part} of Florence-2: {problem}; it {signature}", file.display())]
    Signature {
        /// The file.
        file: PathBuf,
        /// The method.
        method: String,
        /// The part that it should be.
        part: &'static str,
        /// What is wrong.
        problem: String,
        /// What it takes and gives.
        signature: String,
    },
    /// ExecuTorch refused a file.
    #[error("ExecuTorch cannot load {}", file.display())]
    ExecuTorch {
        /// The file.
        file: PathBuf,
        /// What ExecuTorch says.
        #[source]
        source: ExecuTorchError,
    },
}

impl LoadError {
    /// The file that is to blame.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Io { path: file, .. }
            | Self::Substitute { file, .. }
            | Self::Json { file, .. }
            | Self::Config { file, .. }
            | Self::Damaged { file, .. }
            | Self::Signature { file, .. }
            | Self::ExecuTorch { file, .. } => Some(file),
            Self::NotBuilt | Self::Runtime { .. } | Self::Threads { .. } | Self::Parts { .. } => None,
        }
    }

    pub(crate) fn signature(
        file: &Path,
        method: &str,
        part: &'static str,
        signature: &Signature,
        problem: String,
    ) -> Self {
        let (file, method) = (file.to_owned(), method.to_owned());
        Self::Signature { file, method, part, problem, signature: signature.to_string() }
    }
}

/// Why the network could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It was asked for what cannot be.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// ExecuTorch failed.
    #[error("ExecuTorch cannot run the {part}")]
    ExecuTorch {
        /// The part of the network.
        part: &'static str,
        /// What ExecuTorch says.
        #[source]
        source: ExecuTorchError,
    },
    /// A method gave something else than it says.
    #[error("the {part} gave {found}, and {expected} is expected")]
    Output {
        /// The part of the network.
        part: &'static str,
        /// What it gave.
        found: String,
        /// What it says.
        expected: String,
    },
}
