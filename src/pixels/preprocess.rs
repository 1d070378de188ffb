//! What `preprocessor_config.json` asks to be done to a picture.
//!
//! The keys are those of transformers' `CLIPImageProcessor`, which the checkpoints name, and so are the values of keys
//! that are missing. What is asked for and not done here is refused: a picture that was prepared in another way is not
//! what the network was trained on, and nothing in the answer would tell.

use serde_json::{Map, Value};
use thiserror::Error;

use super::{Image, PassOrder};
use crate::{FileError, ImageSize, PixelValues};

/// Makes of a picture what the network takes: resized, rescaled, normalised.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessor {
    size: Option<ImageSize>,
    rescale: Option<f64>,
    /// Mean and standard deviation of red, green and blue.
    normalize: Option<[[f32; 3]; 2]>,
    order: PassOrder,
}

impl Preprocessor {
    /// What all published checkpoints ask for: 768×768, bicubic, ImageNet's mean and deviation.
    pub const FLORENCE2: Self = Self {
        size: match ImageSize::from_width_height(768, 768) {
            Ok(size) => Some(size),
            Err(_) => None,
        },
        rescale: Some(1.0 / 255.0),
        normalize: Some([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]),
        order: PassOrder::Newest,
    };

    /// From the text of `preprocessor_config.json`.
    ///
    /// # Errors
    ///
    /// If it is not such a file, or asks for what is not done here: cropping, padding, another filter than bicubic, a
    /// size that depends on the picture.
    pub fn from_json(text: &str) -> Result<Self, PreprocessorError> {
        let keys: Map<String, Value> = florence2_files::parse(text.as_bytes())?;
        Config(keys).read()
    }

    /// With the passes of the resize in another order than the newest Pillow's.
    #[must_use]
    pub fn with_pass_order(self, order: PassOrder) -> Self {
        Self { order, ..self }
    }

    /// The size that pictures come out in; `None` if they keep their own.
    #[must_use]
    pub fn size(&self) -> Option<ImageSize> {
        self.size
    }

    /// The picture as the network takes it.
    #[must_use]
    pub fn pixel_values(&self, image: &Image) -> PixelValues {
        let resized =
            self.size.filter(|&size| size != image.size()).map(|size| image.resize(size, self.order));
        let image = resized.as_ref().unwrap_or(image);
        let (width, height) = (image.width() as usize, image.height() as usize);
        let tables = [0, 1, 2].map(|channel| self.table(channel));
        let mut values = vec![0.0; 3 * width * height];
        let pixels = image.as_rgb8().as_chunks::<3>().0;
        for (plane, (channel, table)) in
            values.chunks_exact_mut(width * height).zip(tables.iter().enumerate())
        {
            for (value, pixel) in plane.iter_mut().zip(pixels) {
                *value = table[usize::from(pixel[channel])];
            }
        }
        match PixelValues::new(width, height, values) {
            Ok(values) => values,
            Err(error) => unreachable!("three planes of a picture: {error}"),
        }
    }

    /// What each of the 256 values of a channel becomes, rounded where the reference rounds: the product once, from `f64`,
    /// then the difference and the quotient in `f32`.
    fn table(&self, channel: usize) -> [f32; 256] {
        std::array::from_fn(|value| {
            let value = value as f64;
            let value = (value * self.rescale.unwrap_or(1.0)) as f32;
            self.normalize.map_or(value, |[mean, deviation]| (value - mean[channel]) / deviation[channel])
        })
    }
}

/// [`FLORENCE2`](Self::FLORENCE2).
impl Default for Preprocessor {
    fn default() -> Self {
        Self::FLORENCE2
    }
}

/// The keys of the file.
struct Config(Map<String, Value>);

impl Config {
    fn read(&self) -> Result<Preprocessor, PreprocessorError> {
        for key in ["image_processor_type", "feature_extractor_type"] {
            if let Some(name) = self.get(key) {
                let name = name.as_str().ok_or(PreprocessorError::wrong(key, "a name"))?;
                // The endings tell how it is computed, not what.
                let plain = name.strip_suffix("Fast").or_else(|| name.strip_suffix("Pil")).unwrap_or(name);
                if !matches!(plain, "CLIPImageProcessor" | "CLIPFeatureExtractor") {
                    return Err(PreprocessorError::Processor(name.to_owned()));
                }
            }
        }
        self.refuse_unknown_steps()?;
        let size = self.flag("do_resize", true)?.then(|| self.target_size()).transpose()?;
        if self.flag("do_center_crop", true)? {
            // Where nothing is cut off, there is nothing that is not done.
            let crop = self.get("crop_size").map(|crop| self.sides("crop_size", crop)).transpose()?;
            if size.is_none() || crop != size {
                return Err(PreprocessorError::Crop);
            }
        }
        let rescale =
            self.flag("do_rescale", true)?.then(|| self.number("rescale_factor", 1.0 / 255.0)).transpose()?;
        let normalize = self.flag("do_normalize", true)?.then(|| {
            let mean = self.channels("image_mean", CLIP_MEAN)?;
            let deviation = self.channels("image_std", CLIP_DEVIATION)?;
            if deviation.contains(&0.0) {
                return Err(PreprocessorError::wrong("image_std", "three numbers other than 0"));
            }
            Ok([mean, deviation])
        });
        Ok(Preprocessor { size, rescale, normalize: normalize.transpose()?, order: PassOrder::default() })
    }

    /// `null` is written for what is left to its default.
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn flag(&self, key: &'static str, default: bool) -> Result<bool, PreprocessorError> {
        self.get(key).map_or(Ok(default), |value| {
            value.as_bool().ok_or(PreprocessorError::wrong(key, "true or false"))
        })
    }

    fn number(&self, key: &'static str, default: f64) -> Result<f64, PreprocessorError> {
        self.get(key)
            .map_or(Ok(default), |value| value.as_f64().ok_or(PreprocessorError::wrong(key, "a number")))
    }

    /// One number for each channel, or one for all.
    fn channels(&self, key: &'static str, default: [f64; 3]) -> Result<[f32; 3], PreprocessorError> {
        let wrong = PreprocessorError::wrong(key, "three numbers, for red, green and blue");
        let channels = match self.get(key) {
            None => default,
            Some(Value::Array(values)) => {
                let values: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
                values.and_then(|values| values.try_into().ok()).ok_or(wrong)?
            }
            Some(value) => [value.as_f64().ok_or(wrong)?; 3],
        };
        Ok(channels.map(|value| value as f32))
    }

    fn target_size(&self) -> Result<ImageSize, PreprocessorError> {
        let resample = self.get("resample").map_or(Some(BICUBIC), Value::as_u64);
        if resample != Some(BICUBIC) {
            return Err(PreprocessorError::Resample(filter_name(&self.0["resample"])));
        }
        let size = self.get("size").ok_or(PreprocessorError::Missing("size"))?;
        self.sides("size", size)
    }

    fn sides(&self, key: &'static str, value: &Value) -> Result<ImageSize, PreprocessorError> {
        let wrong =
            || PreprocessorError::wrong(key, "{\"height\": …, \"width\": …}, whole numbers of pixels over 0");
        let side = |value: &Value| value.as_u64().and_then(|side| u32::try_from(side).ok());
        let (height, width) = match value {
            // Two numbers are height and width. One is a shorter side to the reference; as a crop, a square.
            Value::Array(sides) if sides.len() == 2 => (side(&sides[0]), side(&sides[1])),
            Value::Number(_) if key == "crop_size" => (side(value), side(value)),
            Value::Number(_) => return Err(PreprocessorError::Proportional(format!("\"size\": {value}"))),
            Value::Object(sides) => match (sides.get("height"), sides.get("width")) {
                (Some(height), Some(width)) if sides.len() == 2 => (side(height), side(width)),
                _ if sides.keys().any(|key| PROPORTIONAL.contains(&key.as_str())) => {
                    return Err(PreprocessorError::Proportional(format!("\"{key}\": {value}")));
                }
                _ => return Err(wrong()),
            },
            _ => return Err(wrong()),
        };
        let (height, width) = height.zip(width).ok_or_else(wrong)?;
        ImageSize::from_height_width(height, width).map_err(|_| wrong())
    }

    /// A step of a newer processor that is switched on.
    fn refuse_unknown_steps(&self) -> Result<(), PreprocessorError> {
        const DONE: [&str; 5] =
            ["do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"];
        match self.0.iter().find(|(key, value)| {
            key.starts_with("do_")
                && !DONE.contains(&key.as_str())
                && !matches!(value, Value::Null | Value::Bool(false))
        }) {
            Some((key, value)) => Err(PreprocessorError::Step(format!("\"{key}\": {value}"))),
            None => Ok(()),
        }
    }
}

const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_DEVIATION: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];

/// Keys of a size that keeps the picture's proportions.
const PROPORTIONAL: [&str; 4] = ["shortest_edge", "longest_edge", "max_height", "max_width"];

/// Pillow's number.
const BICUBIC: u64 = 3;

/// Pillow's filters by their numbers.
fn filter_name(resample: &Value) -> String {
    const NAMES: [&str; 6] = ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"];
    let name = resample.as_u64().and_then(|number| NAMES.get(usize::try_from(number).ok()?));
    name.map_or_else(|| resample.to_string(), |name| format!("{resample} ({name})"))
}

/// Why a `preprocessor_config.json` cannot be followed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PreprocessorError {
    /// Not JSON, or not an object.
    #[error("not a preprocessor_config.json")]
    Json(#[from] FileError),
    /// A key has a value that it cannot have.
    #[error("\"{key}\" should be {expected}")]
    Wrong {
        /// The key.
        key: &'static str,
        /// What its values are.
        expected: &'static str,
    },
    /// A key without a default that could be followed.
    #[error(
        "\"{0}\" is missing; the published checkpoints have \"{0}\": {{\"height\": 768, \"width\": 768}}"
    )]
    Missing(&'static str),
    /// A class of another name.
    #[error(
        "the image processor is {0}, and only CLIPImageProcessor, which Florence-2 was trained with, is followed"
    )]
    Processor(String),
    /// A filter other than bicubic.
    #[error("\"resample\" is {0}, and only 3 (bicubic) is done")]
    Resample(String),
    /// A size that depends on the picture.
    #[error(
        "{0} keeps the picture's proportions, and Florence-2 takes one size: give \"height\" and \"width\""
    )]
    Proportional(String),
    /// A crop that would cut something off.
    #[error(
        "\"do_center_crop\" is on (as it is where the key is missing), and cropping is not done; set it to false, or \
         \"crop_size\" to \"size\""
    )]
    Crop,
    /// A step that is not known.
    #[error("{0} is a step that is not done")]
    Step(String),
}

impl PreprocessorError {
    fn wrong(key: &'static str, expected: &'static str) -> Self {
        Self::Wrong { key, expected }
    }
}
