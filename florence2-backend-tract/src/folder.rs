//! A folder in the layout of the hub's ONNX exports.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use florence2_files::{FileError, ImageSizeError, TextConfig};

use crate::error::LoadError;

/// In which form the weights of a part are stored, as the end of its file's name says it.
///
/// All of them are computed in fp32: narrower weights are widened when they are loaded. So they save room on the disk, and
/// neither memory nor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// No suffix: fp32.
    F32,
    /// `_fp16`
    F16,
    /// `_quantized`: 8 bits, one scale for a matrix.
    Quantized,
    /// `_int8`: 8 bits, signed.
    Int8,
    /// `_uint8`: 8 bits, unsigned.
    Uint8,
    /// `_q4`: 4 bits, a scale for each block.
    Q4,
    /// `_q4f16`: 4 bits, the rest fp16.
    Q4F16,
    /// `_bnb4`: the 4-bit floats of bitsandbytes.
    Bnb4,
}

impl Variant {
    /// All that are published.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Quantized, Self::Int8, Self::Uint8, Self::Q4, Self::Q4F16, Self::Bnb4];

    /// What a file's name has before `.onnx`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::F16 => "_fp16",
            Self::Quantized => "_quantized",
            Self::Int8 => "_int8",
            Self::Uint8 => "_uint8",
            Self::Q4 => "_q4",
            Self::Q4F16 => "_q4f16",
            Self::Bnb4 => "_bnb4",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "fp32",
            other => &other.suffix()[1..],
        })
    }
}

/// A name that no [`Variant`] or part has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is {1}")]
pub struct UnknownVariant(String, &'static str);

impl FromStr for Variant {
    type Err = UnknownVariant;

    fn from_str(name: &str) -> Result<Self, UnknownVariant> {
        let found = Self::ALL.into_iter().find(|variant| variant.to_string() == name);
        found.ok_or_else(|| {
            UnknownVariant(name.to_owned(), "none of fp32, fp16, quantized, int8, uint8, q4, q4f16 and bnb4")
        })
    }
}

/// Which [`Variant`] of each part is taken. `None`: fp32 if it is there, or else fp16; narrower weights give other answers,
/// and are only taken if they are asked for.
///
/// As a text, one name for all parts, or `part=name` with commas between: `vision_encoder=fp16,decoder_model=q4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variants {
    /// Of `vision_encoder`.
    pub vision_encoder: Option<Variant>,
    /// Of `embed_tokens`.
    pub embed_tokens: Option<Variant>,
    /// Of `encoder_model`.
    pub encoder_model: Option<Variant>,
    /// Of `decoder_model` and `decoder_with_past_model`, or `decoder_model_merged`.
    pub decoder_model: Option<Variant>,
}

impl Variants {
    /// The same of all parts.
    pub fn all(variant: Variant) -> Self {
        let variant = Some(variant);
        Self {
            vision_encoder: variant,
            embed_tokens: variant,
            encoder_model: variant,
            decoder_model: variant,
        }
    }
}

impl FromStr for Variants {
    type Err = UnknownVariant;

    fn from_str(text: &str) -> Result<Self, UnknownVariant> {
        if !text.contains('=') {
            return text.parse().map(Self::all);
        }
        let mut variants = Self::default();
        for pair in text.split(',') {
            let (part, name) = pair.split_once('=').unwrap_or((pair, ""));
            let part = match part {
                "vision_encoder" => &mut variants.vision_encoder,
                "embed_tokens" => &mut variants.embed_tokens,
                "encoder_model" => &mut variants.encoder_model,
                "decoder_model" => &mut variants.decoder_model,
                _ => {
                    return Err(UnknownVariant(
                        part.to_owned(),
                        "none of vision_encoder, embed_tokens, encoder_model and decoder_model",
                    ));
                }
            };
            *part = Some(name.parse()?);
        }
        Ok(variants)
    }
}

/// The files of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) vision_encoder: PathBuf,
    pub(crate) embed_tokens: PathBuf,
    pub(crate) encoder_model: PathBuf,
    pub(crate) decoder: DecoderFiles,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecoderFiles {
    /// Of the first step, and of those behind it.
    Split {
        first: PathBuf,
        next: PathBuf,
    },
    Merged(PathBuf),
}

impl Files {
    /// Finds the parts in `folder/onnx`, or in the folder itself.
    pub(crate) fn find(folder: &Path, variants: &Variants) -> Result<Self, LoadError> {
        let inner = folder.join("onnx");
        let place = if inner.is_dir() { inner } else { folder.to_owned() };
        let path = |part: &str, variant: Variant| {
            Some(place.join(format!("{part}{}.onnx", variant.suffix()))).filter(|path| path.is_file())
        };
        let mut problems = Vec::new();
        let mut one = |part: &'static str, wanted: Option<Variant>| {
            let found = candidates(wanted).iter().find_map(|&variant| path(part, variant));
            if found.is_none() {
                problems.push(missing(&place, &[part], wanted));
            }
            found.unwrap_or_default()
        };
        let vision_encoder = one("vision_encoder", variants.vision_encoder);
        let embed_tokens = one("embed_tokens", variants.embed_tokens);
        let encoder_model = one("encoder_model", variants.encoder_model);
        let wanted = variants.decoder_model;
        let decoder = candidates(wanted).iter().find_map(|&variant| {
            let split = path("decoder_model", variant).zip(path("decoder_with_past_model", variant));
            let split = split.map(|(first, next)| DecoderFiles::Split { first, next });
            split.or_else(|| path("decoder_model_merged", variant).map(DecoderFiles::Merged))
        });
        if decoder.is_none() {
            let parts = ["decoder_model", "decoder_with_past_model", "decoder_model_merged"];
            problems.push(missing(&place, &parts, wanted));
        }
        match decoder {
            Some(decoder) if problems.is_empty() => {
                Ok(Self { vision_encoder, embed_tokens, encoder_model, decoder })
            }
            _ => Err(LoadError::Parts { folder: place, problems }),
        }
    }

    pub(crate) fn all(&self) -> Vec<&Path> {
        let mut files: Vec<&Path> = vec![&self.vision_encoder, &self.embed_tokens, &self.encoder_model];
        match &self.decoder {
            DecoderFiles::Split { first, next } => files.extend([first.as_path(), next]),
            DecoderFiles::Merged(file) => files.push(file),
        }
        files
    }
}

fn candidates(wanted: Option<Variant>) -> &'static [Variant] {
    match wanted {
        None => &Variant::ALL[..2],
        Some(wanted) => {
            let at = Variant::ALL.iter().position(|&variant| variant == wanted).unwrap_or_default();
            &Variant::ALL[at..=at]
        }
    }
}

/// Which files a part would need, and which there are.
fn missing(place: &Path, parts: &[&str], wanted: Option<Variant>) -> String {
    let name = |part: &str, variant: Variant| format!("{part}{}.onnx", variant.suffix());
    let forms = candidates(wanted).iter().map(|&variant| match parts {
        [part] => name(part, variant),
        _ => format!("{} and {}", name(parts[0], variant), name(parts[1], variant)),
    });
    let needed = forms.collect::<Vec<_>>().join(", or ");
    let needed = match parts {
        [_] => needed,
        _ => format!("{needed}, or as one file {}", name(parts[2], candidates(wanted)[0])),
    };
    let all = parts.iter().flat_map(|part| Variant::ALL.map(|variant| name(part, variant)));
    let there: Vec<_> = all.filter(|name| place.join(name).is_file()).collect();
    if there.is_empty() {
        format!("{needed} is needed")
    } else {
        format!("{needed} is needed, and there is {}", there.join(", "))
    }
}

/// What `config.json` says that no graph does.
pub(crate) fn text_config(folder: &Path) -> Result<TextConfig, LoadError> {
    let file = folder.join("config.json");
    match florence2_files::read(&file, LARGEST) {
        Ok(text) => TextConfig::parse(&text).map_err(|error| unread(file, error)),
        Err(source) => Err(LoadError::Io { path: file, source }),
    }
}

/// Width and height of the pictures.
pub(crate) fn image_size(folder: &Path) -> Result<(usize, usize), LoadError> {
    let file = folder.join("preprocessor_config.json");
    let text = florence2_files::read_if_there(&file, LARGEST);
    match text.map_err(|source| LoadError::Io { path: file.clone(), source })? {
        None => Ok(florence2_files::IMAGE_SIZE),
        Some(text) => florence2_files::image_size(&text).map_err(|error| match error {
            ImageSizeError::File(error) => unread(file, error),
            ImageSizeError::NoSides(_) => {
                LoadError::Config { file, problem: format!("{error}, or `Tract::image_size`") }
            }
        }),
    }
}

/// No such file has so many bytes.
const LARGEST: u64 = 16 << 20;

fn unread(file: PathBuf, error: FileError) -> LoadError {
    match error {
        FileError::Json(source) => LoadError::Json { file, source },
        FileError::Substitute(found) => LoadError::Substitute { file, found },
    }
}
