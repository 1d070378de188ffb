use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no picture.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path is a folder, a pipe or a device.
    #[error("{} is not a file; give the path of a picture", path.display())]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// What went wrong with the picture of a file.
    #[error("{}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: Box<ImageError>,
    },
    /// No bytes.
    #[error("the file is empty")]
    Empty,
    /// More bytes than are allowed.
    #[error(
        "the file has over {limit} bytes, which is the limit; raise `max_file_bytes` if it can be trusted"
    )]
    TooManyBytes {
        /// What is allowed.
        limit: u64,
    },
    /// More pixels than are allowed.
    #[error(
        "the picture is {width}x{height} pixels, and the limit is {limit} in all; make it smaller, or raise \
         `max_pixels` if it can be trusted"
    )]
    TooManyPixels {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
        /// What is allowed.
        limit: u64,
    },
    /// Not a picture, or one of a format that is not read.
    #[error("not a picture in a format that is read: JPEG, PNG, WebP, GIF, BMP or TIFF")]
    UnknownFormat,
    /// A picture of a format that is not read.
    #[error("{format} is not read; convert the picture to JPEG, PNG, WebP, GIF, BMP or TIFF")]
    UnsupportedFormat {
        /// The format's name.
        format: String,
    },
    /// A picture of a format that is read, in a variant that is not, such as a TIFF with a palette.
    #[error("this kind of {format} is not read; convert the picture to PNG")]
    UnsupportedKind {
        /// The format's name.
        format: &'static str,
        /// What the decoder says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file begins as such a picture, and is cut off or damaged.
    #[error("the {format} is broken")]
    Decode {
        /// The format's name.
        format: &'static str,
        /// What the decoder says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file ends before the picture does.
    #[error("the {format} is cut off: the file ends before the picture does")]
    CutOff {
        /// The format's name.
        format: &'static str,
    },
    /// A size that has a zero in it, or does not go with the number of bytes.
    #[error("{width}x{height} pixels of three bytes, no side zero, do not make {bytes} bytes")]
    Shape {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Bytes that were given.
        bytes: usize,
    },
    /// The picture could not be turned into a PNG.
    #[error("cannot write a PNG")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
}
