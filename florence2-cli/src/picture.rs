//! A picture's file.

use std::path::Path;

use florence2::pixels::ExifOrientation;
use florence2::{DecodeOptions, Image, ImageError};

use crate::args::PictureArgs;
use crate::chain;

/// The picture, or why there is none, in the program's own terms.
pub(crate) fn open(path: &Path, args: &PictureArgs) -> Result<Image, String> {
    let mut options = DecodeOptions { max_pixels: args.max_pixels, ..DecodeOptions::default() };
    if args.ignore_orientation {
        options.orientation = ExifOrientation::Leave;
    }
    Image::open_with(path, &options).map_err(|error| unread(&error))
}

fn unread(error: &ImageError) -> String {
    let ImageError::InFile { path, source } = error else { return chain(error) };
    let path = path.display();
    match **source {
        ImageError::TooManyPixels { width, height, limit } => format!(
            "{path}: the picture is {width}x{height} pixels, and the limit is {limit} in all; make it smaller, or \
             raise --max-pixels if it can be trusted"
        ),
        ImageError::TooManyBytes { limit } => {
            format!("{path}: the file has over {limit} bytes, which is the limit; make it smaller")
        }
        _ => chain(error),
    }
}
