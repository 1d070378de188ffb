//! A checkpoint's small files, and what may stand in the place of one.
//!
//! Shared by the backends of `florence2`, and made for them: the interface may change with every version.

#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use florence2_core::SpecialIds;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// What the file holds, if that is not more than so many bytes.
///
/// # Errors
///
/// If it cannot be read, or holds more: then no more than this is read.
pub fn read(path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    // Its length beforehand spares a long file the reading; a file without one ends where it is too long.
    let length = file.metadata()?.len();
    if length <= largest {
        file.take(largest.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    if length > largest || bytes.len() as u64 > largest {
        return Err(io::Error::other(format!("it has over {largest} bytes, too many for such a file")));
    }
    Ok(bytes)
}

/// As [`read`]; `None` if there is no such file.
///
/// # Errors
///
/// As [`read`], but for a file that is not there.
pub fn read_if_there(path: &Path, largest: u64) -> io::Result<Option<Vec<u8>>> {
    match read(path, largest) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Reads JSON, without the byte order mark that some editors put at the beginning.
///
/// # Errors
///
/// If it is none, or not the JSON that is expected.
pub fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, FileError> {
    let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
    match substitute(json) {
        Some(found) => Err(FileError::Substitute(found)),
        None => serde_json::from_slice(json).map_err(FileError::Json),
    }
}

/// What is left in a file's place where the file itself was not fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Substitute {
    /// A clone without Git LFS left its pointer to the file.
    LfsPointer,
    /// A download saved a page for people, such as one to log in.
    WebPage,
}

/// What it is, and what to do.
impl fmt::Display for Substitute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LfsPointer => "a pointer of Git LFS; `git lfs pull` fetches the file itself",
            Self::WebPage => {
                "a web page, as a download saves it that was refused or sent elsewhere; download the file again"
            }
        })
    }
}

/// What stands in the place of a file that begins with these bytes, eight at least, and should be JSON, weights, a graph or
/// a tokenizer's merges.
#[must_use]
pub fn substitute(start: &[u8]) -> Option<Substitute> {
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
    let seen = start.len().min(POINTER.len());
    if seen >= 8 && start[..seen] == POINTER[..seen] {
        return Some(Substitute::LfsPointer);
    }
    // None of them begins so; merges may have a single `<` on the left, with a space behind it.
    let text = start.trim_ascii_start();
    (text.starts_with(b"<") && !text.starts_with(b"< ")).then_some(Substitute::WebPage)
}

/// Why a file does not hold what its name says.
#[derive(Debug, Error)]
pub enum FileError {
    /// It is something else.
    #[error("it is {0}")]
    Substitute(Substitute),
    /// Not JSON, or not the JSON that is expected.
    #[error(transparent)]
    Json(serde_json::Error),
}

/// What `config.json` says of tokens and positions, in either layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextConfig {
    /// Those that are not named are as in all published checkpoints.
    pub special: SpecialIds,
    /// Positions of the text's encoder and decoder, if the file says so. Published files have 1024 for 4096.
    pub positions: Option<usize>,
}

impl TextConfig {
    /// Reads the text of the file.
    ///
    /// # Errors
    ///
    /// If it is not such a file.
    pub fn parse(config: &[u8]) -> Result<Self, FileError> {
        #[derive(Deserialize)]
        struct Config {
            text_config: Option<Text>,
            #[serde(flatten)]
            own: Text,
        }
        #[derive(Deserialize)]
        struct Text {
            max_position_embeddings: Option<usize>,
            bos_token_id: Option<u32>,
            pad_token_id: Option<u32>,
            eos_token_id: Option<u32>,
            decoder_start_token_id: Option<u32>,
        }
        let config: Config = parse(config)?;
        let text = config.text_config.as_ref().unwrap_or(&config.own);
        let id = |pick: fn(&Text) -> Option<u32>, default: u32| {
            pick(text).or(pick(&config.own)).unwrap_or(default)
        };
        let default = SpecialIds::FLORENCE2;
        let eos = id(|text| text.eos_token_id, default.eos);
        Ok(Self {
            special: SpecialIds {
                bos: id(|text| text.bos_token_id, default.bos),
                pad: id(|text| text.pad_token_id, default.pad),
                eos,
                decoder_start: id(|text| text.decoder_start_token_id, eos),
            },
            positions: text.max_position_embeddings,
        })
    }
}

/// Width and height of the pictures in all published checkpoints.
pub const IMAGE_SIZE: (usize, usize) = (768, 768);

/// Width and height of the pictures, by the text of `preprocessor_config.json`; where it names none, those of all published
/// checkpoints.
///
/// # Errors
///
/// If it is not such a file, or the size is not that of a width and a height.
pub fn image_size(preprocessor: &[u8]) -> Result<(usize, usize), ImageSizeError> {
    #[derive(Deserialize)]
    struct Preprocessor {
        size: Option<Size>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Sides { width: usize, height: usize },
        List([usize; 2]),
        Other(Value),
    }
    match parse::<Preprocessor>(preprocessor)?.size {
        Some(Size::Sides { width, height } | Size::List([height, width])) => Ok((width, height)),
        Some(Size::Other(value)) => Err(ImageSizeError::NoSides(value.to_string())),
        None => Ok(IMAGE_SIZE),
    }
}

/// Why a file does not say how large pictures are.
#[derive(Debug, Error)]
pub enum ImageSizeError {
    /// It is not what its name says.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its size, as JSON, is something else.
    #[error("size is {0}, but a width and a height are needed")]
    NoSides(String),
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_files_place_is_told() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
        assert_eq!(substitute(pointer), Some(Substitute::LfsPointer));
        // As much of it as is read of a file of weights.
        assert_eq!(substitute(&pointer[..8]), Some(Substitute::LfsPointer));
        assert_eq!(substitute(b" \n<!DOCTYPE html>"), Some(Substitute::WebPage));
        for other in
            [&b"{}"[..], b"", b"version", b"versions of", b"< b\n", b"\x08\x07\x12\x07pytorch", b"PK\x03\x04"]
        {
            assert_eq!(substitute(other), None, "{other:?}");
        }
        let error = parse::<Value>(b"\xef\xbb\xbf<html>").unwrap_err().to_string();
        assert!(error.contains("web page"), "{error}");
        assert!(parse::<Value>(b"\xef\xbb\xbf{}").is_ok());
        assert!(matches!(parse::<Value>(b"{"), Err(FileError::Json(_))));
    }

    #[test]
    fn sizes_are_read_in_both_forms() {
        let size = |json: &str| image_size(json.as_bytes());
        assert_eq!(size(r#"{"size": {"width": 3, "height": 4}}"#).ok(), Some((3, 4)));
        assert_eq!(size(r#"{"size": [4, 3]}"#).ok(), Some((3, 4)));
        assert_eq!(size("{}").ok(), Some(IMAGE_SIZE));
        let error = size(r#"{"size": {"shortest_edge": 3}}"#).unwrap_err();
        assert!(
            matches!(&error, ImageSizeError::NoSides(json) if json == r#"{"shortest_edge":3}"#),
            "{error}"
        );
        assert!(matches!(size("[]"), Err(ImageSizeError::File(FileError::Json(_)))));
    }

    #[test]
    fn ids_are_read_in_both_layouts() {
        let read = |json: &str| TextConfig::parse(json.as_bytes()).unwrap();
        let known = TextConfig { special: SpecialIds::FLORENCE2, positions: None };
        assert_eq!(read("{}"), known);
        let special = SpecialIds { bos: 5, pad: 1, eos: 7, decoder_start: 7 };
        let found = TextConfig { special, positions: Some(1024) };
        // microsoft's has ids on the outside, too; what stands inside holds.
        assert_eq!(
            read(
                r#"{"bos_token_id": 5, "eos_token_id": 6,
                    "text_config": {"eos_token_id": 7, "max_position_embeddings": 1024}}"#
            ),
            found
        );
        assert!(matches!(TextConfig::parse(b"{\"pad_token_id\": []}"), Err(FileError::Json(_))));
    }

    #[test]
    fn long_files_are_not_read() {
        let file = std::env::temp_dir().join(format!("florence2-files-{}", std::process::id()));
        std::fs::write(&file, [7; 100]).unwrap();
        let (whole, long) = (read(&file, 100), read(&file, 99));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(whole.unwrap(), [7; 100]);
        assert!(long.unwrap_err().to_string().contains("over 99 bytes"));
        assert!(read_if_there(&file, 100).unwrap().is_none());
    }
}
