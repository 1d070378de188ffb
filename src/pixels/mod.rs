//! From a picture's file to what the network takes.
//!
//! [`Image`] is an upright picture of 8-bit RGB; [`Preprocessor`] makes [`PixelValues`](crate::PixelValues) of it, as the
//! checkpoint's `preprocessor_config.json` says, in the reference's own arithmetic: the resize is Pillow's, bit for bit.
//!
//! ```
//! use florence2::pixels::{Image, Preprocessor};
//!
//! let grey = Image::from_rgb8(320, 240, vec![128; 320 * 240 * 3])?;
//! let pixels = Preprocessor::FLORENCE2.pixel_values(&grey);
//! assert_eq!((pixels.width(), pixels.height()), (768, 768));
//! # Ok::<(), florence2::pixels::ImageError>(())
//! ```

mod decode;
mod error;
mod preprocess;
mod resize;

use std::fmt;
use std::fs;
use std::path::Path;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

pub use decode::{Alpha, DecodeOptions, ExifOrientation};
pub use error::ImageError;
pub use preprocess::{Preprocessor, PreprocessorError};
pub use resize::PassOrder;

use crate::ImageSize;

/// A picture of 8-bit RGB, at least one pixel.
///
/// What is read from a file is upright, unless [`ExifOrientation::Leave`] was asked for; coordinates of answers are
/// those of this picture.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    size: ImageSize,
    rgb: Vec<u8>,
}

impl Image {
    /// Reads a picture from a file. The format is found in the content, whatever the file is called: JPEG, PNG, WebP, GIF
    /// (of the animated ones the first frame), BMP or TIFF.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not a whole picture, or is over the limits of [`DecodeOptions`]. The error names
    /// the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        Self::open_with(path, &DecodeOptions::default())
    }

    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: &DecodeOptions) -> Result<Self, ImageError> {
        decode::open(path.as_ref(), options)
    }

    /// As [`open`](Self::open), from the file's bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are not a whole picture, or over the limits of [`DecodeOptions`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        Self::decode_with(bytes, &DecodeOptions::default())
    }

    /// As [`decode`](Self::decode), with options.
    ///
    /// # Errors
    ///
    /// As for [`decode`](Self::decode).
    pub fn decode_with(bytes: &[u8], options: &DecodeOptions) -> Result<Self, ImageError> {
        decode::decode(bytes, options)
    }

    /// From `3 × width × height` bytes: red, green, blue, row after row.
    ///
    /// # Errors
    ///
    /// If a side is zero, or there are more or fewer bytes.
    pub fn from_rgb8(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self, ImageError> {
        let bytes = rgb.len();
        let expected = u128::from(width) * u128::from(height) * 3;
        match ImageSize::from_width_height(width, height) {
            Ok(size) if u128::try_from(bytes) == Ok(expected) => Ok(Self { size, rgb }),
            _ => Err(ImageError::Shape { width, height, bytes }),
        }
    }

    /// Pixels in a row.
    #[must_use]
    pub const fn width(&self) -> u32 {
        self.size.width()
    }

    /// Rows.
    #[must_use]
    pub const fn height(&self) -> u32 {
        self.size.height()
    }

    /// The size that answers about this picture are parsed with.
    #[must_use]
    pub const fn size(&self) -> ImageSize {
        self.size
    }

    /// Red, green, blue, row after row.
    #[must_use]
    pub fn as_rgb8(&self) -> &[u8] {
        &self.rgb
    }

    /// Red, green, blue, row after row.
    #[must_use]
    pub fn into_rgb8(self) -> Vec<u8> {
        self.rgb
    }

    /// The picture as a PNG.
    ///
    /// # Errors
    ///
    /// If a row or the whole is too large for the format.
    pub fn encode_png(&self) -> Result<Vec<u8>, ImageError> {
        let mut png = Vec::new();
        PngEncoder::new(&mut png)
            .write_image(&self.rgb, self.width(), self.height(), ExtendedColorType::Rgb8)
            .map_err(|error| ImageError::Encode(error.into()))?;
        Ok(png)
    }

    /// Writes the picture to a file as a PNG, whatever the file is called.
    ///
    /// # Errors
    ///
    /// As for [`encode_png`](Self::encode_png), and if the file cannot be written.
    pub fn write_png(&self, path: impl AsRef<Path>) -> Result<(), ImageError> {
        let path = path.as_ref();
        let png = self.encode_png()?;
        fs::write(path, png).map_err(|source| ImageError::Write { path: path.to_owned(), source })
    }

    /// The picture in another size, by Pillow's bicubic filter, bit for bit.
    ///
    /// Takes the time and memory of both pictures together, and of one between them that is as wide as one and as high
    /// as the other.
    #[must_use]
    pub fn resize(&self, size: ImageSize, order: PassOrder) -> Self {
        let sides = |size: ImageSize| (size.width() as usize, size.height() as usize);
        Self { size, rgb: resize::bicubic(&self.rgb, sides(self.size), sides(size), order) }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("size", &self.size).finish_non_exhaustive()
    }
}
