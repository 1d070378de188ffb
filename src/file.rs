//! A checkpoint's small files, and what else may stand under a file's name.

use serde::Deserialize;
use thiserror::Error;

/// No such file has so many bytes: tokenizers, the longest of them, have up to 4 million.
#[cfg(feature = "tokenizer")]
const LARGEST: u64 = 64 << 20;

/// What the file holds; `None` if there is no such file.
#[cfg(feature = "tokenizer")]
pub(crate) fn read_if_there(path: &std::path::Path) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::{Error, ErrorKind, Read};

    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    // Its length beforehand spares a long file the reading; a file without one ends where it is too long.
    let length = file.metadata()?.len();
    if length <= LARGEST {
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    }
    if length > LARGEST || bytes.len() as u64 > LARGEST {
        return Err(Error::other(format!("it has over {LARGEST} bytes, too many for such a file")));
    }
    Ok(Some(bytes))
}

/// Without the byte order mark that some editors put at the beginning.
pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, FileError> {
    let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
    no_substitute(json)?;
    serde_json::from_slice(json).map_err(FileError::Json)
}

/// That a file's text is not what is left in its place where the file itself was not fetched.
pub(crate) fn no_substitute(text: &[u8]) -> Result<(), FileError> {
    if text.starts_with(b"version https://git-lfs.github.com/spec/") {
        return Err(FileError::LfsPointer);
    }
    // No JSON begins so, and no list of merges, whose first is of two single characters.
    let text = text.trim_ascii_start();
    if text.starts_with(b"<") && !text.starts_with(b"< ") {
        return Err(FileError::WebPage);
    }
    Ok(())
}

/// Why a file does not hold what its name says.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// A clone without Git LFS left its pointer to the file.
    #[error("it is a pointer of Git LFS; `git lfs pull` fetches the file itself")]
    LfsPointer,
    /// A download saved a page for people, such as one to log in.
    #[error(
        "it is a web page, as a download saves it that was refused or sent elsewhere; download the file again"
    )]
    WebPage,
    /// Not JSON, or not the JSON that is expected.
    #[error(transparent)]
    Json(serde_json::Error),
}
