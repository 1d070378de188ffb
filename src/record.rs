//! The JSON records of `florence2 parse --jsonl` and `florence2 prompt --jsonl`.
//!
//! A request is one JSON object: `{"task": "<OD>", "text": "…", "image_size": [640, 480]}`. What a request does
//! not need may be absent, and keys that are not known are ignored, so that a dataset's own records can be piped
//! through as they are.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::{
    Answer, AnswerKind, BoundingBox, Dialect, HfAnswer, ImageSize, LocGrid, ParseOptions, PixelRegionError,
    Prompt, PromptError, SizeError, Symptom, Task, UnknownTask, parse, parse_scored, symptoms,
};

/// What an answer answers: one of the fifteen tasks, or a marker of a fine-tune's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaskName {
    /// One of the fifteen.
    Known(Task),
    /// Another marker, as it was written.
    Other(String),
}

impl TaskName {
    /// Reads a task; any other `<marker>` is a fine-tune's.
    ///
    /// # Errors
    ///
    /// If it is none of the fifteen and not written as a marker either.
    pub fn read(text: &str) -> Result<Self, UnknownTask> {
        text.parse().map(Self::Known).or_else(|error| {
            let trimmed = text.trim();
            let name = trimmed.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
            let is_marker =
                name.is_some_and(|name| !name.trim().is_empty() && !name.contains(['<', '>', '\n']));
            if is_marker { Ok(Self::Other(trimmed.to_owned())) } else { Err(error) }
        })
    }

    /// The marker.
    #[must_use]
    pub fn marker(&self) -> &str {
        match self {
            Self::Known(task) => task.marker(),
            Self::Other(marker) => marker,
        }
    }
}

/// The extent of a picture as a record gives it: `[640, 480]`, `"640x480"` or `{"width": 640, "height": 480}`.
///
/// It need not be in whole pixels: the references take other sizes, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent(LocGrid);

impl Extent {
    /// Reads one of the three forms.
    ///
    /// # Errors
    ///
    /// If it is none of them, or not a size that a picture can have.
    pub fn read(value: &Value) -> Result<Self, RecordError> {
        let pair = match value {
            Value::String(text) => {
                return text.parse::<ImageSize>().map(Self::from).map_err(RecordError::Size);
            }
            Value::Array(pair) => pair.first().zip(pair.get(1)).filter(|_| pair.len() == 2),
            Value::Object(map) => map.get("width").zip(map.get("height")),
            _ => None,
        };
        let numbers = pair.and_then(|(width, height)| width.as_f64().zip(height.as_f64()));
        let (width, height) = numbers.ok_or(RecordError::SizeForm)?;
        if width == 0.0 || height == 0.0 {
            return Err(RecordError::Size(SizeError::Zero));
        }
        LocGrid::from_extent(width, height).map(Self).map_err(RecordError::Size)
    }
}

impl From<ImageSize> for Extent {
    fn from(size: ImageSize) -> Self {
        Self(size.into())
    }
}

impl From<Extent> for LocGrid {
    fn from(extent: Extent) -> Self {
        extent.0
    }
}

/// `{"width": 640, "height": 480}`, whole numbers without a point.
impl Serialize for Extent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<T> {
            width: T,
            height: T,
        }
        let (width, height) = (self.0.width(), self.0.height());
        // No extent is over `u32::MAX`.
        if width.fract() == 0.0 && height.fract() == 0.0 {
            Fields { width: width as u32, height: height as u32 }.serialize(serializer)
        } else {
            Fields { width, height }.serialize(serializer)
        }
    }
}

const ONE_PIXEL: ImageSize = match ImageSize::from_width_height(1, 1) {
    Ok(size) => size,
    Err(_) => panic!("one is not zero"),
};

/// What holds for every request that does not say otherwise.
#[derive(Clone, Debug, Default)]
pub struct Defaults<'a> {
    /// The task of a request without one.
    pub task: Option<TaskName>,
    /// The picture's size of a request without one.
    pub image_size: Option<Extent>,
    /// How answers are read whatever their task; `None`: as their task says.
    pub kind: Option<AnswerKind>,
    /// The dialect and the rest.
    pub options: ParseOptions<'a>,
}

impl Defaults<'_> {
    /// How the answer to a task is read: one of a fine-tune's own as text, as the references do.
    #[must_use]
    pub fn answer_kind(&self, task: &TaskName) -> AnswerKind {
        match (self.kind, task) {
            (Some(kind), _) => kind,
            (None, TaskName::Known(task)) => task.answer_kind(),
            (None, TaskName::Other(_)) => AnswerKind::Text,
        }
    }
}

/// A request to read an answer.
#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
struct RawRequest {
    id: Option<Box<RawValue>>,
    task: Option<String>,
    text: Option<String>,
    /// A log-probability that is `null` is -∞, which JSON cannot say.
    pieces: Option<Vec<(String, Option<f32>)>>,
    image_size: Option<Value>,
}

/// Reads a JSON object; a derived implementation takes a bare list of the values, too.
fn object<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, RecordError> {
    if line.trim_start().starts_with('{') {
        Ok(serde_json::from_str(line)?)
    } else {
        Err(RecordError::NotAnObject)
    }
}

/// The `"id"` of a request, also of one that cannot be met, as long as it is a JSON object.
#[must_use]
pub fn id_of(line: &str) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: Option<Box<RawValue>>,
    }
    object::<OnlyId>(line).ok()?.id
}

/// An answer that was read, with all that it took: what `--format json` writes.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AnswerRecord {
    /// The request's own `"id"`, handed through letter for letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Box<RawValue>>,
    /// The task's marker.
    #[serde(serialize_with = "marker")]
    pub task: TaskName,
    /// How the answer was read.
    pub kind: AnswerKind,
    /// Whose rules were followed.
    pub dialect: Dialect,
    /// The picture's size, if it was given; the shapes are in its pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<Extent>,
    /// The answer.
    pub answer: Answer,
    /// What looks wrong in it; usually nothing.
    pub symptoms: Vec<Symptom>,
}

fn marker<S: serde::Serializer>(task: &TaskName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(task.marker())
}

impl AnswerRecord {
    /// Reads an answer.
    ///
    /// # Errors
    ///
    /// If the answer needs the picture's size and there is none.
    pub fn read(
        task: TaskName,
        text: &str,
        image_size: Option<Extent>,
        defaults: &Defaults<'_>,
    ) -> Result<Self, RecordError> {
        Self::read_with(task, image_size, defaults, text, |kind, grid, options| {
            parse(kind, text, grid, options)
        })
    }

    fn read_with(
        task: TaskName,
        image_size: Option<Extent>,
        defaults: &Defaults<'_>,
        text: &str,
        read: impl FnOnce(AnswerKind, LocGrid, &ParseOptions<'_>) -> Answer,
    ) -> Result<Self, RecordError> {
        let kind = defaults.answer_kind(&task);
        let image_size = image_size.or(defaults.image_size);
        let grid = match image_size {
            Some(extent) => extent.into(),
            None if kind.has_locations() => return Err(RecordError::NoSize(task.marker().to_owned())),
            None => ONE_PIXEL.into(),
        };
        let answer = read(kind, grid, &defaults.options);
        let symptoms = symptoms(kind, text, &defaults.options);
        Ok(Self { id: None, task, kind, dialect: defaults.options.dialect, image_size, answer, symptoms })
    }

    /// Reads the request in one JSON object: its answer stands under `"text"`, or, with log-probabilities for
    /// scores, under `"pieces"` as `[["car", -0.1], …]`.
    ///
    /// ```
    /// use florence2::record::{AnswerRecord, Defaults};
    ///
    /// let line = r#"{"task": "<OD>", "text": "car<loc_1><loc_2><loc_3><loc_4>", "image_size": [1000, 1000]}"#;
    /// let record = AnswerRecord::from_json(line, &Defaults::default())?;
    /// let dict = serde_json::to_string(&record.hf()).unwrap();
    /// assert_eq!(dict, r#"{"<OD>":{"bboxes":[[1.5,2.5,3.5,4.5]],"labels":["car"]}}"#);
    /// # Ok::<(), florence2::record::RecordError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not such an object, or its task or size is no good.
    pub fn from_json(line: &str, defaults: &Defaults<'_>) -> Result<Self, RecordError> {
        let raw: RawRequest = object(line)?;
        let task = match (&raw.task, &defaults.task) {
            (Some(task), _) => TaskName::read(task)?,
            (None, Some(task)) => task.clone(),
            (None, None) => return Err(RecordError::Missing("task")),
        };
        let kind = defaults.answer_kind(&task);
        let image_size = match raw.image_size {
            Some(value) => match Extent::read(&value) {
                Ok(extent) => Some(extent),
                // A text has no places, so that its size does not matter.
                Err(_) if !kind.has_locations() => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        let mut record = match (raw.text, raw.pieces) {
            (Some(text), None) => Self::read(task, &text, image_size, defaults)?,
            (None, Some(pieces)) => {
                let pieces = log_probs(pieces)?;
                let text: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
                Self::read_with(task, image_size, defaults, &text, |kind, grid, options| {
                    parse_scored(kind, &pieces, grid, options)
                })?
            }
            (Some(_), Some(_)) => return Err(RecordError::TwoTexts),
            (None, None) => return Err(RecordError::Missing("text")),
        };
        record.id = raw.id;
        Ok(record)
    }

    /// The reference's own dictionary: what `--format hf` writes.
    #[must_use]
    pub fn hf(&self) -> HfAnswer<'_> {
        HfAnswer::with_key(self.task.marker(), self.kind, &self.answer, self.dialect)
    }
}

fn log_probs(pieces: Vec<(String, Option<f32>)>) -> Result<Vec<(String, f32)>, RecordError> {
    let checked = pieces.into_iter().enumerate().map(|(at, (text, log_prob))| match log_prob {
        None => Ok((text, f32::NEG_INFINITY)),
        // Rounding may leave the logarithm of 1 a little above 0.
        Some(log_prob) if log_prob <= 1e-3 => Ok((text, log_prob)),
        Some(log_prob) => Err(RecordError::LogProb { at, log_prob }),
    });
    checked.collect()
}

#[derive(Deserialize)]
struct RawPrompt {
    id: Option<Box<RawValue>>,
    prompt: Option<String>,
    raw: Option<String>,
    task: Option<String>,
    input: Option<String>,
    categories: Option<Vec<String>>,
    region: Option<[f32; 4]>,
    image_size: Option<Value>,
}

/// A prompt with the sentence that it stands for: what `florence2 prompt --format json` writes.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PromptRecord {
    /// The request's own `"id"`, handed through letter for letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Box<RawValue>>,
    /// The task's marker and its input.
    pub prompt: String,
    /// The task; `null` for a raw prompt.
    pub task: Option<Task>,
    /// The input, empty if there is none.
    pub input: String,
    /// How its answer is read.
    pub kind: AnswerKind,
    /// Whose rules were followed.
    pub dialect: Dialect,
    /// What the model is asked.
    pub sentence: String,
}

impl PromptRecord {
    /// Of a prompt.
    #[must_use]
    pub fn new(prompt: &Prompt, dialect: Dialect) -> Self {
        Self {
            id: None,
            prompt: prompt.to_string(),
            task: prompt.task(),
            input: if prompt.task().is_some() { prompt.input().to_owned() } else { String::new() },
            kind: prompt.answer_kind(),
            dialect,
            sentence: prompt.sentence(dialect),
        }
    }

    /// Reads the request in one JSON object: `{"prompt": "<OD>"}`; `{"raw": "…"}`, which is asked word for word; or
    /// `"task"` with one of `"input"`, `"categories"` (a list), and `"region"` (`[x1, y1, x2, y2]` in pixels, with
    /// `"image_size"`).
    ///
    /// # Errors
    ///
    /// If it is not such an object, or not a prompt.
    pub fn from_json(line: &str, dialect: Dialect) -> Result<Self, RecordError> {
        let request: RawPrompt = object(line)?;
        let RawPrompt { id, prompt, raw, task, input, categories, region, image_size } = request;
        let inputs = u8::from(input.is_some()) + u8::from(categories.is_some()) + u8::from(region.is_some());
        let prompt = match (prompt, raw, task) {
            (Some(text), None, None) if inputs == 0 => text.parse()?,
            (None, Some(text), None) if inputs == 0 => Prompt::raw(text, AnswerKind::Text),
            (None, None, Some(task)) if inputs <= 1 => {
                let task: Task = task.parse()?;
                if let Some([x1, y1, x2, y2]) = region {
                    let size = image_size.ok_or(RecordError::Missing("image_size"))?;
                    let grid = LocGrid::from(Extent::read(&size)?);
                    Prompt::new(task, grid.region(BoundingBox { x1, y1, x2, y2 })?)?
                } else if let Some(categories) = categories {
                    Prompt::of_categories(task, categories)?
                } else if let Some(input) = input {
                    Prompt::new(task, input.as_str())?
                } else {
                    Prompt::new(task, ())?
                }
            }
            (None, None, None) => return Err(RecordError::Missing("prompt")),
            _ => return Err(RecordError::TwoInputs),
        };
        Ok(Self { id, ..Self::new(&prompt, dialect) })
    }
}

/// The answer to a question about a picture, with all that it took: what `florence2 run --format json` writes.
#[cfg(feature = "model")]
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct OutputRecord<'a> {
    /// The picture, as it was named.
    pub image: &'a str,
    /// What was asked: the task's marker and its input, or the raw prompt.
    pub prompt: String,
    /// The task; `null` for a raw prompt.
    pub task: Option<Task>,
    /// How the answer was read.
    pub kind: AnswerKind,
    /// Whose rules were followed.
    pub dialect: Dialect,
    /// The picture's size; the shapes are in its pixels.
    pub image_size: Extent,
    /// The answer.
    #[serde(flatten)]
    pub best: SequenceRecord<'a>,
    /// The other sequences, where more than one was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<SequenceRecord<'a>>,
    /// How long it took.
    pub timings: TimingsRecord,
}

/// One sequence of an [`OutputRecord`].
#[cfg(feature = "model")]
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SequenceRecord<'a> {
    /// The answer.
    pub answer: &'a Answer,
    /// What looks wrong in it; usually nothing.
    pub symptoms: &'a [Symptom],
    /// Its text, special tokens kept.
    pub text: &'a str,
    /// The mean log-probability of its tokens, if the length penalty is 1.
    pub score: f32,
    /// Why it ended: `end_of_sequence`, `length` (it may be cut off) or `cancelled`.
    pub finish: &'static str,
    /// Its tokens with their log-probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<&'a [crate::OutputToken]>,
}

/// Times in seconds.
#[cfg(feature = "model")]
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct TimingsRecord {
    /// To see the picture, which is done once for all that it is asked.
    pub vision: f64,
    /// To encode the prompt.
    pub prompt: f64,
    /// To decode the answer.
    pub decode: f64,
    /// Steps of the decoder.
    pub steps: usize,
    /// Steps in a second.
    pub steps_per_second: f64,
}

#[cfg(feature = "model")]
impl<'a> OutputRecord<'a> {
    /// Of an output, its tokens included or not.
    #[must_use]
    pub fn new(image: &'a str, output: &'a crate::Output, tokens: bool) -> Self {
        let finish = |finish| match finish {
            crate::Finish::EndOfSequence => "end_of_sequence",
            crate::Finish::Length => "length",
            crate::Finish::Cancelled => "cancelled",
        };
        let alternatives = output.alternatives.iter().map(|sequence| SequenceRecord {
            answer: &sequence.answer,
            symptoms: &sequence.symptoms,
            text: &sequence.text,
            score: sequence.score,
            finish: finish(sequence.finish),
            tokens: tokens.then_some(sequence.tokens.as_slice()),
        });
        // Microseconds are as exact as a clock of such work is.
        let seconds = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e6;
        let timings = &output.timings;
        Self {
            image,
            prompt: output.prompt.to_string(),
            task: output.prompt.task(),
            kind: output.kind(),
            dialect: output.dialect,
            image_size: output.image_size.into(),
            best: SequenceRecord {
                answer: &output.answer,
                symptoms: &output.symptoms,
                text: &output.text,
                score: output.score,
                finish: finish(output.finish),
                tokens: tokens.then_some(output.tokens.as_slice()),
            },
            alternatives: alternatives.collect(),
            timings: TimingsRecord {
                vision: seconds(timings.vision),
                prompt: seconds(timings.prompt),
                decode: seconds(timings.decode),
                steps: timings.steps,
                steps_per_second: (timings.steps_per_second() * 10.0).round() / 10.0,
            },
        }
    }
}

/// The phrases that grounding leaves out, from a JSON list (`["sky"]`) or a `processor_config.json`, in which no list
/// means none, as transformers has it.
///
/// # Errors
///
/// If it is not JSON, or neither of the two.
pub fn banned_phrases(json: &str) -> Result<BTreeSet<String>, BannedError> {
    let json: Value = florence2_files::parse(json.as_bytes())?;
    let list = match &json {
        Value::Array(list) => Some(list),
        Value::Object(map) if map.contains_key("post_processor_config") => {
            let found = &json["post_processor_config"]["phrase_grounding"]["banned_grounding_tokens"];
            if found.is_null() {
                return Ok(BTreeSet::new());
            }
            found.as_array()
        }
        _ => None,
    };
    let phrases =
        list.and_then(|list| list.iter().map(|phrase| phrase.as_str().map(str::to_owned)).collect());
    phrases.ok_or(BannedError::Form)
}

/// Why there is no list of banned phrases.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BannedError {
    /// Not JSON.
    #[error(transparent)]
    Json(#[from] crate::FileError),
    /// Neither a list nor a processor's configuration.
    #[error(
        "neither a JSON list of phrases, such as [\"sky\"], nor a processor_config.json, which has one under \
         post_processor_config.phrase_grounding.banned_grounding_tokens"
    )]
    Form,
}

/// Why a request cannot be met.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Not JSON, or a key with a value of another type.
    #[error("not a request in JSON: {0}")]
    Json(String),
    /// JSON, but not an object.
    #[error(
        "a request is one JSON object, such as {{\"task\": \"<OD>\", \"text\": \"…\", \"image_size\": [640, 480]}}"
    )]
    NotAnObject,
    /// What cannot be a log-probability.
    #[error(
        "\"pieces\"[{at}] has the log-probability {log_prob}: it is at most 0, and null where it is -Infinity"
    )]
    LogProb {
        /// The place of the piece, from 0.
        at: usize,
        /// Its log-probability.
        log_prob: f32,
    },
    /// A key that is needed.
    #[error("\"{0}\" is missing")]
    Missing(&'static str),
    /// Both forms of the answer.
    #[error("\"text\" and \"pieces\" are two forms of one answer: give one of them")]
    TwoTexts,
    /// Several forms of one prompt.
    #[error(
        "give one of \"prompt\", \"raw\" and \"task\", and with \"task\" one of \"input\", \"categories\" and \"region\""
    )]
    TwoInputs,
    /// The task is not one.
    #[error(transparent)]
    Task(#[from] UnknownTask),
    /// The prompt cannot be asked.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The region is not in the picture.
    #[error(transparent)]
    Region(#[from] PixelRegionError),
    /// Not written as a size.
    #[error("\"image_size\" is [width, height], \"WIDTHxHEIGHT\" or {{\"width\": …, \"height\": …}}")]
    SizeForm,
    /// Not a size that a picture can have.
    #[error("\"image_size\": {0}")]
    Size(SizeError),
    /// The answer has places, and the picture's size is not known.
    #[error("the answer to {0} is in places of the picture: its size is needed")]
    NoSize(String),
}

impl From<serde_json::Error> for RecordError {
    fn from(error: serde_json::Error) -> Self {
        // A request is one line, whose number the caller knows: only the column tells something.
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        Self::Json(format!("{what} at column {}", error.column()))
    }
}
