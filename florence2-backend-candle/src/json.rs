//! A checkpoint's JSON files.

use std::path::Path;

use florence2_files::FileError;
use serde::de::DeserializeOwned;

use crate::error::LoadError;

/// No such file has so many bytes: an index, the longest of them, has some hundred for each tensor.
const LARGEST: u64 = 16 << 20;

/// What the file holds; `None` if there is no such file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    florence2_files::read_if_there(path, LARGEST)
        .map_err(|source| LoadError::Io { path: path.to_owned(), source })
}

/// What the file holds.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    florence2_files::read(path, LARGEST).map_err(|source| LoadError::Io { path: path.to_owned(), source })
}

pub(crate) fn parse<T: DeserializeOwned>(path: &Path, json: &[u8]) -> Result<T, LoadError> {
    florence2_files::parse(json).map_err(|error| failed(path, error))
}

pub(crate) fn failed(path: &Path, error: FileError) -> LoadError {
    let file = path.to_owned();
    match error {
        FileError::Json(source) => LoadError::Json { file, source },
        FileError::Substitute(found) => LoadError::Substitute { file, found },
    }
}
