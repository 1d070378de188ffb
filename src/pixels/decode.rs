//! From a file's bytes to RGB.
//!
//! Everything that a file says about itself is checked against the limits before a pixel is decoded. A picture that is
//! not whole is an error: half a picture has half an answer.

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;

use image::codecs::{
    bmp::BmpDecoder, gif::GifDecoder, png::PngDecoder, tiff::TiffDecoder, webp::WebPDecoder,
};
use image::metadata::Orientation;
use image::{DynamicImage, ImageBuffer, ImageDecoder, ImageFormat, Limits, RgbImage};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::{Image, ImageError};

/// How a picture is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// What is done with the EXIF orientation. Turned upright by default.
    pub orientation: ExifOrientation,
    /// What is done with transparency. By default what the references do.
    pub alpha: Alpha,
    /// Pixels at most, as the file's header says. By default 178,956,970, which is 512 MiB of RGB and what Pillow takes
    /// for an attack beyond.
    pub max_pixels: u64,
    /// Bytes of a file at most. 1 GiB by default.
    pub max_file_bytes: u64,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            orientation: ExifOrientation::Apply,
            alpha: Alpha::Drop,
            max_pixels: (512 << 20) / 3,
            max_file_bytes: 1 << 30,
        }
    }
}

/// What is done with the EXIF orientation, by which cameras say how a picture was held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExifOrientation {
    /// The picture is turned upright, as every viewer does, and answers are in its coordinates.
    #[default]
    Apply,
    /// The picture stays as it is stored, as the references take it: people lie on their side.
    Leave,
}

/// What is done with transparency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// It is left out, as the references do (Pillow's `convert("RGB")`): what is transparent shows the colour that is
    /// stored there, which often is black.
    #[default]
    Drop,
    /// The picture lies over a colour: red, green, blue.
    Over([u8; 3]),
}

/// Memory that a decoder may take beside the pixels: for tables, profiles and a strip or two.
const SPARE_BYTES: u64 = 64 << 20;

pub(super) fn open(path: &Path, options: &DecodeOptions) -> Result<Image, ImageError> {
    let read = |source| ImageError::Read { path: path.to_owned(), source };
    // Asked before it is opened: to open a pipe would wait for someone to write.
    if !fs::metadata(path).map_err(read)?.is_file() {
        return Err(ImageError::NotAFile { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    let limit = options.max_file_bytes.saturating_add(1);
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(read)?;
    decode(&bytes, options)
        .map_err(|source| ImageError::InFile { path: path.to_owned(), source: Box::new(source) })
}

pub(super) fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Image, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if bytes.len() as u64 > options.max_file_bytes {
        return Err(ImageError::TooManyBytes { limit: options.max_file_bytes });
    }
    let (rgb, orientation) = match format(bytes)? {
        ImageFormat::Jpeg => jpeg(bytes, options)?,
        ImageFormat::Png => {
            let limits = Limits::no_limits();
            with("PNG", PngDecoder::with_limits(Cursor::new(bytes), limits), options)?
        }
        ImageFormat::WebP => with("WebP", WebPDecoder::new(Cursor::new(bytes)), options)?,
        ImageFormat::Gif => with("GIF", GifDecoder::new(Cursor::new(bytes)), options)?,
        ImageFormat::Bmp => with("BMP", BmpDecoder::new(Cursor::new(bytes)), options)?,
        ImageFormat::Tiff => with("TIFF", TiffDecoder::new(Cursor::new(bytes)), options)?,
        other => return Err(ImageError::UnsupportedFormat { format: format!("{other:?}") }),
    };
    let mut upright = DynamicImage::ImageRgb8(rgb);
    if options.orientation == ExifOrientation::Apply {
        upright.apply_orientation(orientation);
    }
    let (width, height) = (upright.width(), upright.height());
    Image::from_rgb8(width, height, upright.into_rgb8().into_raw())
}

fn format(bytes: &[u8]) -> Result<ImageFormat, ImageError> {
    // The brand of an ISO media file, which phones write; `image` knows of it only AVIF.
    if let Some([_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', b'e' | b'i', b'i' | b'f' | b'v', _]) =
        bytes.first_chunk::<12>()
    {
        return Err(ImageError::UnsupportedFormat { format: "HEIC".to_owned() });
    }
    image::guess_format(bytes).map_err(|_| ImageError::UnknownFormat)
}

fn check_size(width: u32, height: u32, options: &DecodeOptions) -> Result<(), ImageError> {
    let limit = options.max_pixels;
    if u64::from(width) * u64::from(height) > limit {
        return Err(ImageError::TooManyPixels { width, height, limit });
    }
    Ok(())
}

/// Reads what `image` decodes.
fn with<D: ImageDecoder>(
    format: &'static str,
    decoder: Result<D, image::ImageError>,
    options: &DecodeOptions,
) -> Result<(RgbImage, Orientation), ImageError> {
    let broken = |error: image::ImageError| match error {
        image::ImageError::Unsupported(error) => ImageError::UnsupportedKind { format, source: error.into() },
        error => ImageError::Decode { format, source: error.into() },
    };
    let mut decoder = decoder.map_err(broken)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, options)?;
    // Once for what the decoder keeps, once for what it gives.
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(decoder.total_bytes().saturating_mul(2).saturating_add(SPARE_BYTES));
    decoder.set_limits(limits).map_err(broken)?;
    let orientation = decoder.orientation().map_err(broken)?;
    let pixels = DynamicImage::from_decoder(decoder).map_err(broken)?;
    Ok((to_rgb(pixels, options.alpha), orientation))
}

/// As Pillow converts: alpha is left out, and of 16 bits the upper 8 are taken.
///
/// Unlike Pillow, also of grey ones, where it makes everything over 255 of 65535 white.
fn to_rgb(pixels: DynamicImage, alpha: Alpha) -> RgbImage {
    let over = |value: u8, alpha: u8, ground: u8| {
        let [value, alpha, ground] = [value, alpha, ground].map(u32::from);
        // Rounded to the nearest; what is opaque stays as it is.
        u8::try_from((value * alpha + ground * (255 - alpha) + 127) / 255).unwrap_or(u8::MAX)
    };
    let blend = |rgb: [u8; 3], opacity: u8| match alpha {
        Alpha::Drop => rgb,
        Alpha::Over(ground) => [0, 1, 2].map(|at| over(rgb[at], opacity, ground[at])),
    };
    let upper = |value: u16| value.to_be_bytes()[0];
    match pixels {
        DynamicImage::ImageRgb8(pixels) => pixels,
        DynamicImage::ImageLuma8(pixels) => map(&pixels, |[v]| [v; 3]),
        DynamicImage::ImageLumaA8(pixels) => map(&pixels, |[v, a]| blend([v; 3], a)),
        DynamicImage::ImageRgba8(pixels) => map(&pixels, |[r, g, b, a]| blend([r, g, b], a)),
        DynamicImage::ImageLuma16(pixels) => map(&pixels, |[v]| [upper(v); 3]),
        DynamicImage::ImageLumaA16(pixels) => map(&pixels, |[v, a]| blend([upper(v); 3], upper(a))),
        DynamicImage::ImageRgb16(pixels) => map(&pixels, |rgb| rgb.map(upper)),
        DynamicImage::ImageRgba16(pixels) => {
            map(&pixels, |[r, g, b, a]| blend([r, g, b].map(upper), upper(a)))
        }
        // TIFF may hold numbers with a point, 0 to 1.
        other => other.into_rgb8(),
    }
}

fn map<P, const N: usize>(
    pixels: &ImageBuffer<P, Vec<P::Subpixel>>,
    rgb: impl Fn([P::Subpixel; N]) -> [u8; 3],
) -> RgbImage
where
    P: image::Pixel,
{
    let (width, height) = pixels.dimensions();
    let bytes = pixels.as_raw().as_chunks::<N>().0.iter().flat_map(|&pixel| rgb(pixel)).collect();
    RgbImage::from_raw(width, height, bytes).expect("three bytes a pixel")
}

/// `zune-jpeg` itself, since through `image` it forgives what is missing.
fn jpeg(bytes: &[u8], options: &DecodeOptions) -> Result<(RgbImage, Orientation), ImageError> {
    let format = "JPEG";
    let broken = |error: DecodeErrors| match error {
        DecodeErrors::Unsupported(_) => ImageError::UnsupportedKind { format, source: error.into() },
        error => ImageError::Decode { format, source: error.into() },
    };
    let settings = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), settings);
    decoder.decode_headers().map_err(broken)?;
    let sides = decoder
        .dimensions()
        .and_then(|(width, height)| Some((width.try_into().ok()?, height.try_into().ok()?)));
    let (width, height) = sides.unwrap_or_default();
    check_size(width, height, options)?;
    if !ends(bytes) {
        return Err(ImageError::CutOff { format });
    }
    let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
    let rgb = decoder.decode().map_err(broken)?;
    let bytes = rgb.len();
    let rgb = RgbImage::from_raw(width, height, rgb).ok_or(ImageError::Shape { width, height, bytes })?;
    Ok((rgb, orientation.unwrap_or(Orientation::NoTransforms)))
}

/// Whether a JPEG has its end, which the decoder does not look for.
fn ends(bytes: &[u8]) -> bool {
    const START: u8 = 0xd8;
    const END: u8 = 0xd9;
    let mut rest = bytes;
    // A marker is 0xff and a byte that is neither 0x00, which makes 0xff a value of a scan, nor another 0xff.
    while let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0xff)) {
        let marker = rest[at + 1];
        rest = &rest[at + 2..];
        match marker {
            END => return true,
            // They have no length: the start, restarts within a scan, and one for private use.
            START | 0xd0..=0xd7 | 0x01 => {}
            _ => {
                let Some(length) = rest.first_chunk().map(|&length| u16::from_be_bytes(length)) else {
                    return false;
                };
                let Some(after) = rest.get(usize::from(length)..) else { return false };
                rest = after;
            }
        }
    }
    false
}
