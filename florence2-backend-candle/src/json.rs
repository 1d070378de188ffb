//! A checkpoint's JSON files, and what else may stand under a file's name.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::LoadError;

/// No such file has so many bytes: an index, the longest of them, has some hundred for each tensor.
const LARGEST: u64 = 16 << 20;

/// What the file holds; `None` if there is no such file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    match read(path) {
        Err(LoadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// What the file holds.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        let problem = format!("it has over {LARGEST} bytes, too many for such a file");
        return Err(failed(io::Error::other(problem)));
    }
    Ok(bytes)
}

/// Without the byte order mark that some editors put at the beginning.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, json: &[u8]) -> Result<T, LoadError> {
    let json = json.strip_prefix(BYTE_ORDER_MARK).unwrap_or(json);
    if let Some(found) = substitute(json) {
        return Err(LoadError::Substitute { file: path.to_owned(), found });
    }
    serde_json::from_slice(json).map_err(|source| LoadError::Json { file: path.to_owned(), source })
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How the pointer begins that a clone without Git LFS leaves in place of a file.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// What stands in place of a file of JSON or of weights that begins with these bytes, eight at least, and what to do.
pub(crate) fn substitute(start: &[u8]) -> Option<&'static str> {
    let seen = start.len().min(LFS_POINTER.len());
    if seen >= 8 && start[..seen] == LFS_POINTER[..seen] {
        return Some("a pointer of Git LFS; `git lfs pull` fetches the file itself");
    }
    // Neither JSON nor weights begin so.
    if start.trim_ascii_start().starts_with(b"<") {
        return Some(
            "a web page, as a download saves it that was refused or sent elsewhere; download the file again",
        );
    }
    None
}
