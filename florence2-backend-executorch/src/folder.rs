//! A folder of ExecuTorch programs: which file is which, and whether it is whole.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use florence2_files::{FileError, TextConfig};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::error::LoadError;

/// What a file's numbers are, as its name says it.
///
/// Pictures, ids and logits are the same in all of them: files of different variants go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// No suffix: fp32.
    F32,
    /// `_fp16`: weights and arithmetic.
    F16,
    /// `_int8`: weights of linear layers, with activations that are quantised as they come.
    Int8,
}

impl Variant {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// What a file's name has before `.pte`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::F16 => "_fp16",
            Self::Int8 => "_int8",
        }
    }

    fn of(stem: &str) -> Self {
        let is_one_of = |names: &[&str]| {
            stem.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| names.contains(&word))
        };
        if is_one_of(&["int8", "i8", "q8", "8w", "8da8w", "quantized"]) {
            Self::Int8
        } else if is_one_of(&["fp16", "f16", "float16", "half"]) {
            Self::F16
        } else {
            Self::F32
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
        found.ok_or_else(|| UnknownVariant(name.to_owned(), "none of fp32, fp16 and int8"))
    }
}

/// Which [`Variant`] of each part is taken. `None`: fp32 if it is there, or else fp16; int8 gives other answers, and is only
/// taken if it is asked for.
///
/// As a text, one name for all parts, or `part=name` with commas between: `vision=fp16,decoder=int8`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variants {
    /// Of the vision encoder.
    pub vision: Option<Variant>,
    /// Of the text's encoder.
    pub encoder: Option<Variant>,
    /// Of the decoder, in either form.
    pub decoder: Option<Variant>,
}

impl Variants {
    /// The same of all parts.
    pub fn all(variant: Variant) -> Self {
        let variant = Some(variant);
        Self { vision: variant, encoder: variant, decoder: variant }
    }

    pub(crate) fn of(&self, part: Part) -> Option<Variant> {
        match part {
            Part::Vision => self.vision,
            Part::Encoder => self.encoder,
            Part::Decoder => self.decoder,
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
                "vision" => &mut variants.vision,
                "encoder" => &mut variants.encoder,
                "decoder" => &mut variants.decoder,
                _ => {
                    return Err(UnknownVariant(part.to_owned(), "none of vision, encoder and decoder"));
                }
            };
            *part = Some(name.parse()?);
        }
        Ok(variants)
    }
}

/// Files whose names do not say what they are. `None`: the name says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// The vision encoder's.
    pub vision: Option<PathBuf>,
    /// The text encoder's.
    pub encoder: Option<PathBuf>,
    /// The decoder's, in either form.
    pub decoder: Option<PathBuf>,
}

impl Paths {
    pub(crate) fn of(&self, part: Part) -> Option<&Path> {
        match part {
            Part::Vision => self.vision.as_deref(),
            Part::Encoder => self.encoder.as_deref(),
            Part::Decoder => self.decoder.as_deref(),
        }
    }
}

/// A text that is none of [`Paths`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not PART=FILE, with vision, encoder or decoder for PART")]
pub struct UnknownPart(String);

/// From `part=file` with commas between: `vision=a.pte,decoder=b.pte`.
impl FromStr for Paths {
    type Err = UnknownPart;

    fn from_str(text: &str) -> Result<Self, UnknownPart> {
        let mut paths = Self::default();
        for pair in text.split(',') {
            let unknown = || UnknownPart(pair.to_owned());
            let (part, file) =
                pair.split_once('=').filter(|(_, file)| !file.is_empty()).ok_or_else(unknown)?;
            let part = match part {
                "vision" => &mut paths.vision,
                "encoder" => &mut paths.encoder,
                "decoder" => &mut paths.decoder,
                _ => return Err(unknown()),
            };
            *part = Some(file.into());
        }
        Ok(paths)
    }
}

/// How a decoder remembers what it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Not at all, as in the published files: all tokens go through it at every step, in a window that is always full. An
    /// answer is no longer than the window.
    Window,
    /// By keys and values: methods `cross` and `step`. Steps take a fraction of the window's time.
    Cached,
}

/// What the network is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Vision,
    Encoder,
    Decoder,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vision => "vision encoder",
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
        }
    }

    /// The files that are looked for, each with a suffix.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Vision => &["vision"],
            Self::Encoder => &["encoder", "text"],
            Self::Decoder => &["cached", "decoder", "text"],
        }
    }
}

/// What a file's name says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One part, by its method `forward`, or a decoder by whatever methods it has.
    One(Part),
    /// Its methods say it.
    ByMethods,
}

impl Role {
    fn of(stem: &str) -> Self {
        let has = |name: &str| stem.contains(name);
        match (has("vision"), has("encoder"), has("decoder")) {
            (true, _, false) => Self::One(Part::Vision),
            (false, true, false) => Self::One(Part::Encoder),
            (false, false, true) => Self::One(Part::Decoder),
            _ => Self::ByMethods,
        }
    }
}

/// A file that may have a part.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) role: Role,
}

impl Candidate {
    /// Whether it is one of ours by its name, or is said to be. Others in the folder may be anything.
    pub(crate) fn is_ours(&self) -> bool {
        let stem = stem(&self.path);
        self.role != Role::ByMethods || ["cached", "text"].iter().any(|name| stem.contains(name))
    }
}

/// The programs of a folder.
pub(crate) struct Programs {
    pub(crate) folder: PathBuf,
    found: Vec<(PathBuf, Role, Variant)>,
}

impl Programs {
    /// Those in `folder/executorch`, or in the folder itself.
    pub(crate) fn find(folder: &Path) -> Result<Self, LoadError> {
        let inner = folder.join("executorch");
        let folder = if inner.is_dir() { inner } else { folder.to_owned() };
        let failed = |source| LoadError::Io { path: folder.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let is_program = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pte"));
            if is_program && path.is_file() {
                let stem = stem(&path);
                found.push((path, Role::of(&stem), Variant::of(&stem)));
            }
        }
        // Folders have no order of their own.
        found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        Ok(Self { folder, found })
    }

    /// The files that may have a part, for each variant that will do, the best first; or why that cannot be told.
    pub(crate) fn candidates(
        &self,
        part: Part,
        variants: &Variants,
        paths: &Paths,
    ) -> Vec<Result<Vec<Candidate>, String>> {
        if let Some(path) = paths.of(part) {
            // As a path, it is what it is; by its name, it lies in the folder.
            let path = self.folder.join(path);
            return vec![Ok(vec![Candidate { path, role: Role::One(part) }])];
        }
        let of = |&variant: &Variant| {
            let with = |wanted: Role| {
                let fits =
                    move |(_, role, own): &&(PathBuf, Role, Variant)| *role == wanted && *own == variant;
                let candidate = |(path, role, _): &(PathBuf, Role, Variant)| Candidate {
                    path: path.clone(),
                    role: *role,
                };
                self.found.iter().filter(fits).map(candidate).collect::<Vec<_>>()
            };
            let (named, others) = (with(Role::One(part)), with(Role::ByMethods));
            if let [one, other, ..] = named.as_slice() {
                return Err(ambiguous(part, &one.path, &other.path));
            }
            // A form with a cache is in a file of its own, beside the published decoder, and better.
            Ok(if part == Part::Decoder { [others, named].concat() } else { [named, others].concat() })
        };
        wanted(variants.of(part)).iter().map(of).collect()
    }

    /// The variant of the first file that may have a part, by its name.
    pub(crate) fn variant(&self, part: Part, variants: &Variants, paths: &Paths) -> Option<Variant> {
        let candidates = self.candidates(part, variants, paths);
        let first = candidates.into_iter().flatten().flatten().next()?;
        Some(Variant::of(&stem(&first.path)))
    }

    /// The names of all programs.
    pub(crate) fn names(&self) -> Vec<String> {
        self.found.iter().map(|(path, ..)| name(path)).collect()
    }

    /// What a part would need.
    pub(crate) fn missing(
        &self,
        part: Part,
        variants: &Variants,
        paths: &Paths,
        form: Option<Form>,
        methods: &[String],
    ) -> String {
        let needed = match (part, form) {
            (Part::Vision, _) => "forward or vision",
            (Part::Encoder, _) => "forward or encoder",
            (Part::Decoder, Some(Form::Window)) => "forward or decoder",
            (Part::Decoder, Some(Form::Cached)) => "cross and step",
            (Part::Decoder, None) => "cross and step, or forward or decoder",
        };
        let part_name = part.name();
        if let Some(path) = paths.of(part) {
            let (path, methods) = (path.display(), methods.join(", "));
            return format!("{path} has the methods {methods}, and as the {part_name} it needs {needed}");
        }
        let files = wanted(variants.of(part)).iter().flat_map(|variant| {
            part.files().iter().map(move |file| format!("{file}{}.pte", variant.suffix()))
        });
        let files = files.collect::<Vec<_>>().join(" or ");
        format!("the {part_name} is needed, {files}, with {needed} among its methods")
    }
}

pub(crate) fn ambiguous(part: Part, one: &Path, other: &Path) -> String {
    format!(
        "{} and {} may both be the {}: say which it is, or move one away",
        name(one),
        name(other),
        part.name()
    )
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn wanted(variant: Option<Variant>) -> &'static [Variant] {
    match variant {
        None => &Variant::ALL[..2],
        Some(Variant::F32) => &Variant::ALL[..1],
        Some(Variant::F16) => &Variant::ALL[1..2],
        Some(Variant::Int8) => &Variant::ALL[2..],
    }
}

/// What `manifest.json` says of a file.
#[derive(Deserialize)]
struct Entry {
    file: String,
    bytes: u64,
    sha256: String,
}

impl Entry {
    /// That of the manifest beside a file, if there is one and the file is in it.
    fn of(path: &Path) -> Result<Option<Self>, LoadError> {
        #[derive(Deserialize)]
        struct Manifest {
            // Without it, it is something else's manifest.
            #[serde(default)]
            files: Vec<Entry>,
        }
        // What it was called when it was exported, whatever it is reached by.
        let path = path.canonicalize().map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        let manifest = path.with_file_name("manifest.json");
        let text = florence2_files::read_if_there(&manifest, LARGEST);
        let Some(text) = text.map_err(|source| LoadError::Io { path: manifest.clone(), source })? else {
            return Ok(None);
        };
        let found: Manifest =
            florence2_files::parse(&text).map_err(|error| unread(manifest.clone(), error))?;
        let has_others = !found.files.is_empty();
        let entry =
            found.files.into_iter().find(|entry| path.file_name().is_some_and(|name| name == &*entry.file));
        if entry.is_none() && has_others {
            log::warn!("{} does not have {}, whose checksum is not checked", manifest.display(), name(&path));
        }
        Ok(entry)
    }
}

/// Checks that a file is whole, as far as can be told: by the manifest, or else by what it says of itself.
pub(crate) fn check(path: &Path) -> Result<(), LoadError> {
    let failed = |source| LoadError::Io { path: path.to_owned(), source };
    let damaged = |problem| LoadError::Damaged { file: path.to_owned(), problem };
    let mut file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut start = Vec::new();
    file.by_ref().take(HEADER as u64).read_to_end(&mut start).map_err(failed)?;
    if start.get(4..6).is_none_or(|magic| magic != b"ET") {
        // Only now: a program may well begin with what a web page begins with.
        return Err(match florence2_files::substitute(&start) {
            Some(found) => LoadError::Substitute { file: path.to_owned(), found },
            None => {
                damaged("it is no ExecuTorch program, which has ET in its fifth and sixth byte".to_owned())
            }
        });
    }
    if let Some(whole) = length_by_header(&start).filter(|&whole| length < whole) {
        return Err(damaged(format!(
            "it has {length} bytes of the {whole} that its head says: copy or download it again"
        )));
    }
    let Some(Entry { bytes, sha256, .. }) = Entry::of(path)? else { return Ok(()) };
    let expected = || format!("{bytes} bytes with the sha256 {sha256}");
    if length != bytes {
        return Err(damaged(format!(
            "it has {length} bytes, and manifest.json has {}: they are of two exports, or it was damaged",
            expected()
        )));
    }
    let mut hash = Sha256::new();
    hash.update(&start);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if !found.eq_ignore_ascii_case(&sha256) {
        return Err(damaged(format!(
            "its sha256 is {found}, and manifest.json has {}: they are of two exports, or it was damaged",
            expected()
        )));
    }
    Ok(())
}

/// Bytes of the head that is read.
const HEADER: usize = 40;

/// How long a file is that has this head: the program, and behind it the segments. Heads that do not say it are older.
fn length_by_header(start: &[u8]) -> Option<u64> {
    let number = |at: usize| Some(u64::from_le_bytes(start.get(at..at + 8)?.try_into().ok()?));
    if start.get(8..12)? != b"eh00" {
        return None;
    }
    let header = u32::from_le_bytes(start.get(12..16)?.try_into().ok()?);
    let (program, segments) = (number(16)?, number(24)?);
    let behind = if header >= 32 { number(32)? } else { 0 };
    Some(segments.saturating_add(behind).max(program))
}

/// What `config.json` says that no program does. Without that file the ids are those of all published checkpoints: `.pte` files
/// are passed on alone.
pub(crate) fn text_config(folder: &Path) -> Result<TextConfig, LoadError> {
    let path = folder.join("config.json");
    let text = florence2_files::read_if_there(&path, LARGEST);
    let text = text.map_err(|source| LoadError::Io { path: path.clone(), source })?;
    TextConfig::parse(text.as_deref().unwrap_or(b"{}")).map_err(|error| unread(path, error))
}

/// No such file has so many bytes.
const LARGEST: u64 = 16 << 20;

fn unread(file: PathBuf, error: FileError) -> LoadError {
    match error {
        FileError::Json(source) => LoadError::Json { file, source },
        FileError::Substitute(found) => LoadError::Substitute { file, found },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_part_a_file_is() {
        let vision = Role::One(Part::Vision);
        for (stem, role, variant) in [
            ("vision", vision, Variant::F32),
            ("vision_encoder_fp16", vision, Variant::F16),
            ("florence2-vision-int8", vision, Variant::Int8),
            ("florence2_vision_fp32", vision, Variant::F32),
            ("encoder", Role::One(Part::Encoder), Variant::F32),
            ("text_encoder.int8", Role::One(Part::Encoder), Variant::Int8),
            ("decoder_8da8w", Role::One(Part::Decoder), Variant::Int8),
            ("florence2_decoder_xnnpack_fp32", Role::One(Part::Decoder), Variant::F32),
            ("cached_int8", Role::ByMethods, Variant::Int8),
            ("text", Role::ByMethods, Variant::F32),
            ("encoder_decoder", Role::ByMethods, Variant::F32),
        ] {
            assert_eq!((Role::of(stem), Variant::of(stem)), (role, variant), "{stem}");
        }
    }

    #[test]
    fn variants_are_read() {
        assert_eq!("int8".parse(), Ok(Variants::all(Variant::Int8)));
        let mixed = Variants { vision: Some(Variant::F16), decoder: Some(Variant::Int8), encoder: None };
        assert_eq!("vision=fp16,decoder=int8".parse(), Ok(mixed));
        for (text, error) in [
            ("q4", "\"q4\" is none of fp32, fp16 and int8"),
            ("vision=", "\"\" is none of fp32, fp16 and int8"),
            ("text=fp32", "\"text\" is none of vision, encoder and decoder"),
            ("vision=fp32,int8", "\"int8\" is none of vision, encoder and decoder"),
        ] {
            assert_eq!(text.parse::<Variants>().map_err(|error| error.to_string()), Err(error.to_owned()));
        }
    }

    #[test]
    fn paths_are_read() {
        let paths = Paths { vision: Some("a.pte".into()), decoder: Some("b=c.pte".into()), encoder: None };
        assert_eq!("vision=a.pte,decoder=b=c.pte".parse(), Ok(paths));
        for text in ["a.pte", "vision=", "", "text=a.pte", "vision=a.pte,"] {
            assert!(text.parse::<Paths>().is_err(), "{text}");
        }
    }

    #[test]
    fn heads_say_how_long_a_file_is() {
        let mut head = b"\x3c\0\0\0ET12eh00\x20\0\0\0".to_vec();
        for number in [70u64, 80, 1000] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        assert_eq!(length_by_header(&head), Some(1080));
        // Without segments, and by the older head that does not say how long they are.
        head[32..].fill(0);
        assert_eq!(length_by_header(&head), Some(80));
        head[12] = 24;
        head[24] = 0;
        assert_eq!(length_by_header(&head[..32]), Some(70));
        assert_eq!(length_by_header(&head[..31]), None);
        head[8] = b'x';
        assert_eq!(length_by_header(&head), None);
    }
}
