//! What can be typed.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use florence2::candle::{Device, Dtype};
use florence2::{AnswerKind, BoundingBox, Dialect, EarlyStopping, ImageSize};

/// Florence-2 on the command line: pictures and prompts in, structured answers out.
#[derive(Debug, Parser)]
#[command(name = "florence2", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Bench(BenchArgs),
    Doctor(DoctorArgs),
    Parse(ParseArgs),
    Prompt(PromptArgs),
    Tasks(TasksArgs),
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page to standard output
    Man {
        /// The command that the page is about; without it, the program
        command: Option<String>,
    },
}

/// Ask a checkpoint about pictures
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  florence2 run --model demo demo/images/scene_1.png '<OD>'
  florence2 run -m Florence-2-base-ft car.jpg -t caption -t ocr -f jsonl
  florence2 run -m Florence-2-base-ft photos/ '<OD>' --overlay drawn/
  florence2 run -m Florence-2-base-ft a.jpg '<OPEN_VOCABULARY_DETECTION>a car'
  florence2 run -m Florence-2-base-ft a.png -t region_to_ocr -r 34,160,597,371
  florence2 run -m my-fine-tune page.png --as text '<DocVQA>What is the date?'

A picture is seen once, whatever the number of tasks. One that cannot be read costs only itself: \
its error goes to standard error (with --format json, jsonl and hf also to its place in the \
output), and the exit status is 1 at the end.

With --overlay, OUT is a .png file, a folder (one that is there, or a path that ends in /), or a \
pattern for several answers with {name}, the picture's name, and {task} in it.

Exit status: 0 done; 1 failed, or some pictures did; 2 bad request.")]
pub(crate) struct RunArgs {
    /// Pictures: files, folders, and patterns such as 'photos/*.jpg'; what begins with '<' is a task
    #[arg(required = true, value_name = "PICTURE|TASK")]
    pub(crate) inputs: Vec<OsString>,

    /// The folder of a checkpoint, or demo for the tiny one in this program, which knows drawn shapes only; for tract and
    /// executorch that is the repository's demo/onnx and demo/executorch
    #[arg(short, long, value_name = "DIR|demo")]
    pub(crate) model: PathBuf,

    /// A task, such as '<OD>' or od, or a prompt, such as '<OPEN_VOCABULARY_DETECTION>a green car'; may be given
    /// several times, and comes before those among the pictures
    #[arg(short, long = "task", value_name = "TASK")]
    pub(crate) tasks: Vec<String>,

    /// The input of the tasks that take a text and have none
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,

    /// The name of a thing, in place of --input; may be given several times
    #[arg(short, long = "category", conflicts_with = "input", value_name = "NAME")]
    pub(crate) categories: Vec<String>,

    /// The region of the tasks that take one and have none, in pixels of each picture
    #[arg(short, long, value_name = "X1,Y1,X2,Y2", value_parser = pixel_region, allow_hyphen_values = true)]
    pub(crate) region: Option<BoundingBox>,

    /// Ask each task word for word, as fine-tunes need it, and read its answer as this kind
    #[arg(long = "as", value_name = "KIND", value_enum, conflicts_with_all = ["input", "categories", "region"])]
    pub(crate) kind: Option<KindArg>,

    /// Whose rules are followed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) dialect: DialectArg,

    /// Pass over white space between location tokens, in which the references find no shapes
    #[arg(long)]
    pub(crate) spaced: bool,

    #[command(flatten)]
    pub(crate) picture: PictureArgs,

    /// What is written
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) format: RunFormat,

    /// Write each token with its log-probability, in JSON
    #[arg(long)]
    pub(crate) tokens: bool,

    /// Draw each answer over its picture, into a .png file, a folder or a pattern
    #[arg(short, long, value_name = "OUT")]
    pub(crate) overlay: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) generation: GenerationArgs,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// How a picture's file is read.
#[derive(Debug, ClapArgs)]
pub(crate) struct PictureArgs {
    /// Pixels of a picture at most, as its file says; a larger one is refused before it is decoded
    #[arg(long, value_name = "N", default_value_t = florence2::DecodeOptions::default().max_pixels)]
    pub(crate) max_pixels: u64,

    /// Leave a photo as its file has it, instead of turning it upright as its EXIF orientation says
    #[arg(long)]
    pub(crate) ignore_orientation: bool,
}

/// How an answer is searched for.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Generation")]
pub(crate) struct GenerationArgs {
    /// Beams of the search; 1 is greedy [default: 3; with --sample, 1]
    #[arg(short, long, value_name = "N")]
    pub(crate) beams: Option<usize>,

    /// The most probable token at each step: --beams 1
    #[arg(short, long, conflicts_with_all = ["beams", "sample"])]
    pub(crate) greedy: bool,

    /// Sequences that are returned: the best of the beams, or so many samples
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) sequences: usize,

    /// New tokens at most [default: 1024, or what the network has room for]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,

    /// New tokens at least
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_new_tokens: usize,

    /// No run of so many tokens occurs twice; 0 for no such rule, as answers in JSON need it
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) no_repeat_ngram: usize,

    /// Beams are ranked by their log-probability / length ^ this
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) length_penalty: f32,

    /// When a search with beams ends: with as many finished beams as beams (true), when the best running one does not
    /// beat the worst finished one (false), or when it never can (never)
    #[arg(long, value_enum, default_value_t)]
    pub(crate) early_stopping: EarlyStoppingArg,

    /// Draw tokens by their probability
    #[arg(long)]
    pub(crate) sample: bool,

    /// Under 1 sharpens the probabilities, over 1 flattens them
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "sample", allow_negative_numbers = true)]
    pub(crate) temperature: f32,

    /// Draw only from so many of the most probable tokens; 0 for all
    #[arg(long, value_name = "N", default_value_t = 50, requires = "sample")]
    pub(crate) top_k: usize,

    /// Draw only from the most probable tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, requires = "sample", allow_negative_numbers = true)]
    pub(crate) top_p: f32,

    /// The same seed draws the same answers
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sample")]
    pub(crate) seed: u64,
}

/// What the network runs on.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Network")]
pub(crate) struct BackendArgs {
    /// What runs it: candle, from safetensors or PyTorch weights, tract, from an ONNX export, or executorch, from .pte
    /// programs
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: BackendArg,

    /// candle: the type of the weights in memory; f16 and bf16 take half of what f32 does [default: f32]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<DtypeArg>,

    /// tract and executorch: which files are taken, as fp16, q4 or vision_encoder=fp16,decoder_model=q4; executorch's parts
    /// are vision, encoder and decoder [default: fp32, or fp16 where that is not there]
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Option<String>,

    /// executorch: files whose names do not say what they are, as vision=a.pte,encoder=b.pte,decoder=c.pte
    #[arg(long, value_name = "PART=FILE")]
    pub(crate) pte: Option<String>,

    /// executorch: map the files instead of reading them; less memory, but a file must not be written to in its place while the
    /// program runs
    #[arg(long)]
    pub(crate) mmap: bool,

    /// candle: cpu, or cuda, cuda:1, metal, where the program was built with them
    #[arg(long, value_parser = device, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) device: Device,

    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<NonZeroUsize>,
}

impl BackendArgs {
    /// What of it was typed, for a command that is to do the same.
    pub(crate) fn typed(&self) -> String {
        let mut text = String::new();
        if self.backend != BackendArg::default() {
            text.push_str(&format!(" --backend {}", self.backend.name()));
        }
        if let Some(dtype) = self.dtype {
            text.push_str(&format!(" --dtype {}", Dtype::from(dtype)));
        }
        if let Some(variant) = &self.variant {
            text.push_str(&format!(" --variant {variant}"));
        }
        if let Some(pte) = &self.pte {
            text.push_str(&format!(" --pte {pte}"));
        }
        if self.mmap {
            text.push_str(" --mmap");
        }
        if self.device != Device::default() {
            text.push_str(&format!(" --device {}", self.device));
        }
        text
    }
}

/// Measure each stage of an answer on this machine
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
A picture is seen, and captions of exactly twenty tokens are written, greedily and with three \
beams: the end is barred before the twentieth token, and forced there. A step is the time to decode \
a caption by its steps, search and all. One round goes before, and is not counted.

Exit status: 0 done; 1 failed; 2 bad request.")]
pub(crate) struct BenchArgs {
    /// The folder of a checkpoint, or demo
    #[arg(short, long, value_name = "DIR|demo")]
    pub(crate) model: PathBuf,

    /// The picture
    #[arg(short, long, value_name = "FILE")]
    pub(crate) image: PathBuf,

    #[command(flatten)]
    pub(crate) picture: PictureArgs,

    /// The prompt
    #[arg(short, long, default_value = "<CAPTION>")]
    pub(crate) task: String,

    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: usize,

    /// What is written
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) format: PlainFormat,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// Say what this program was built with, and whether a checkpoint loads
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
With --model, each file that a checkpoint has or should have is listed with what it holds, or what \
is wrong with it; then the checkpoint is loaded as florence2 run does it.

Exit status: 0 done; 1 the checkpoint does not load; 2 bad request.")]
pub(crate) struct DoctorArgs {
    /// The folder of a checkpoint, or demo
    #[arg(short, long, value_name = "DIR|demo")]
    pub(crate) model: Option<PathBuf>,

    /// What is written
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) format: PlainFormat,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// Read an answer of the model: text with location tokens in, boxes, quadrilaterals, polygons or text out
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  florence2 parse -t '<OD>' -s 640x480 'car<loc_54><loc_375><loc_906><loc_707>'
  florence2 parse --jsonl --format hf < answers.jsonl

A JSONL request is
  {\"task\": \"<OD>\", \"text\": \"…\", \"image_size\": [640, 480]}
With \"pieces\": [[\"car\", -0.1], …] (texts with log-probabilities; null is -Infinity) instead of \
\"text\" there are scores; \"id\" is handed through by --format json; other keys are ignored. \
Each request gives one line, in order; a bad one gives {\"error\": …, \"line\": N}, and the exit \
status is 1 at the end. Empty lines are passed over. No line may be longer than 64 MiB.

Exit status: 0 done; 1 failed, or some lines were bad; 2 bad request.")]
pub(crate) struct ParseArgs {
    /// The answer as the model's tokenizer decodes it, special tokens kept; without it, or as '-', read from
    /// standard input
    #[arg(conflicts_with = "jsonl")]
    pub(crate) text: Option<String>,

    /// The task that was asked, such as '<OD>' or od; with --jsonl, that of requests without one
    #[arg(short, long)]
    pub(crate) task: Option<String>,

    /// The original picture's size in pixels; not needed for answers in text
    #[arg(short, long, value_name = "WIDTHxHEIGHT")]
    pub(crate) size: Option<ImageSize>,

    /// Read requests from standard input, one JSON object a line, and write one a line
    #[arg(long)]
    pub(crate) jsonl: bool,

    /// Whose rules are followed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) dialect: DialectArg,

    /// What is written: hf is the reference's own dictionary [default: text; with --jsonl, json]
    #[arg(short, long, value_enum)]
    pub(crate) format: Option<AnswerFormat>,

    /// Read answers as this kind, whatever their task: for tasks of a fine-tune's own
    #[arg(long = "as", value_name = "KIND", value_enum)]
    pub(crate) kind: Option<KindArg>,

    /// Pass over white space between location tokens, in which the references find no shapes
    #[arg(long)]
    pub(crate) spaced: bool,

    /// Phrases that grounding leaves out instead of Florence-2's 72: a JSON list, or a processor_config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) banned: Option<PathBuf>,

    /// Leave no phrase out
    #[arg(long, conflicts_with = "banned")]
    pub(crate) no_banned: bool,
}

/// Write the sentence that a prompt stands for, as the model is asked
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  florence2 prompt '<CAPTION_TO_PHRASE_GROUNDING>a green car'
  florence2 prompt -t region_to_category -r 34,160,597,371 -s 640x480
  florence2 prompt -t open_vocabulary_detection -c car -c 'yellow wall'

A JSONL request is {\"prompt\": \"<OD>\"}, {\"raw\": \"…\"} (asked word for word), or \"task\" with one \
of \"input\", \"categories\" (a list) and \"region\" ([x1, y1, x2, y2] in pixels, with \
\"image_size\").

Exit status: 0 done; 1 failed, or some lines were bad; 2 bad request.")]
pub(crate) struct PromptArgs {
    /// A marker and its input, such as '<CAPTION_TO_PHRASE_GROUNDING>a green car'
    #[arg(
        required_unless_present_any = ["task", "jsonl"],
        conflicts_with_all = ["task", "jsonl", "input", "categories", "region", "size"]
    )]
    pub(crate) prompt: Option<String>,

    /// The task, with the input in an option of its own
    #[arg(short, long, conflicts_with_all = ["jsonl", "raw"])]
    pub(crate) task: Option<String>,

    /// A text, or four location tokens
    #[arg(
        short,
        long,
        requires = "task",
        conflicts_with = "jsonl",
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    pub(crate) input: Option<String>,

    /// The name of a thing; may be given several times
    #[arg(short, long = "category", requires = "task", conflicts_with_all = ["input", "jsonl"], value_name = "NAME")]
    pub(crate) categories: Vec<String>,

    /// A region in pixels
    #[arg(
        short,
        long,
        value_name = "X1,Y1,X2,Y2",
        value_parser = pixel_region,
        allow_hyphen_values = true,
        requires_all = ["task", "size"],
        conflicts_with_all = ["input", "categories", "jsonl"]
    )]
    pub(crate) region: Option<BoundingBox>,

    /// The picture's size in pixels, for --region
    #[arg(short, long, requires = "region", conflicts_with = "jsonl", value_name = "WIDTHxHEIGHT")]
    pub(crate) size: Option<ImageSize>,

    /// Ask the prompt word for word, markers and all, as fine-tunes need it
    #[arg(long, conflicts_with = "jsonl")]
    pub(crate) raw: bool,

    /// Read requests from standard input, one JSON object a line, and write one a line
    #[arg(long)]
    pub(crate) jsonl: bool,

    /// Whose rules are followed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) dialect: DialectArg,

    /// What is written [default: text; with --jsonl, json]
    #[arg(short, long, value_enum)]
    pub(crate) format: Option<PlainFormat>,
}

/// List the fifteen tasks: what each takes, what it answers, and what the model is asked
#[derive(Debug, ClapArgs)]
pub(crate) struct TasksArgs {
    /// What is written
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) format: PlainFormat,
}

fn pixel_region(text: &str) -> Result<BoundingBox, &'static str> {
    const FORM: &str = "a region is four numbers of pixels, X1,Y1,X2,Y2, such as 34,160,597,371";
    let numbers: Result<Vec<f32>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    match numbers.as_deref() {
        Ok(&[x1, y1, x2, y2]) if [x1, y1, x2, y2].iter().all(|number| number.is_finite()) => {
            Ok(BoundingBox { x1, y1, x2, y2 })
        }
        _ => Err(FORM),
    }
}

fn threads(text: &str) -> Result<NonZeroUsize, &'static str> {
    /// Beyond any processor that this is for, and each takes memory.
    const MOST: usize = 256;
    match text.parse::<usize>().map(NonZeroUsize::new) {
        Ok(Some(threads)) if threads.get() <= MOST => Ok(threads),
        Ok(Some(_)) => Err("threads are 256 at most"),
        Ok(None) => Err("threads are 1 or more"),
        Err(_) => Err("threads are a whole number, 1 or more"),
    }
}

fn device(text: &str) -> Result<Device, &'static str> {
    const FORM: &str = "a device is cpu, cuda or metal; cuda:1 is the second of its kind";
    let (kind, index) = match text.split_once(':') {
        Some((kind, index)) => (kind, Some(index.parse().map_err(|_| FORM)?)),
        None => (text, None),
    };
    match (kind, index) {
        ("cpu", None) => Ok(Device::Cpu),
        ("candle-cpu", None) => Ok(Device::CandleCpu),
        ("cuda", _) if !cfg!(feature = "cuda") => {
            Err("this program was built without cuda: build it with --features cuda, or use --device cpu")
        }
        ("metal", _) if !cfg!(feature = "metal") => {
            Err("this program was built without metal: build it with --features metal, or use --device cpu")
        }
        ("cuda", index) => Ok(Device::Cuda(index.unwrap_or_default())),
        ("metal", index) => Ok(Device::Metal(index.unwrap_or_default())),
        _ => Err(FORM),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    /// Safetensors or PyTorch weights
    #[default]
    Candle,
    /// An ONNX export
    Tract,
    /// ExecuTorch programs
    #[value(name = "executorch")]
    ExecuTorch,
}

impl BackendArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Candle => "candle",
            Self::Tract => "tract",
            Self::ExecuTorch => "executorch",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeArg {
    /// 32 bits
    #[default]
    F32,
    /// 16 bits with the range of f32
    Bf16,
    /// 16 bits, as most checkpoints are stored
    F16,
}

impl From<DtypeArg> for Dtype {
    fn from(arg: DtypeArg) -> Self {
        match arg {
            DtypeArg::F32 => Self::F32,
            DtypeArg::Bf16 => Self::Bf16,
            DtypeArg::F16 => Self::F16,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EarlyStoppingArg {
    /// With as many finished beams as beams
    #[default]
    True,
    /// When the best running beam does not beat the worst finished one
    False,
    /// When no running beam ever can
    Never,
}

impl From<EarlyStoppingArg> for EarlyStopping {
    fn from(arg: EarlyStoppingArg) -> Self {
        match arg {
            EarlyStoppingArg::True => Self::WhenEnough,
            EarlyStoppingArg::False => Self::Heuristic,
            EarlyStoppingArg::Never => Self::WhenCertain,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunFormat {
    /// Lines for people
    #[default]
    Text,
    /// One list of records, each an answer with all that it took
    Json,
    /// A record a line, each as soon as it is there
    Jsonl,
    /// The reference's own dictionary, one a line
    Hf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DialectArg {
    /// The code that ships with microsoft's checkpoints
    #[default]
    Microsoft,
    /// The transformers library
    Transformers,
}

impl From<DialectArg> for Dialect {
    fn from(arg: DialectArg) -> Self {
        match arg {
            DialectArg::Microsoft => Self::Microsoft,
            DialectArg::Transformers => Self::Transformers,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AnswerFormat {
    /// Lines for people
    Text,
    /// The answer with all that it took
    Json,
    /// The reference's own dictionary
    Hf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlainFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum KindArg {
    /// Text as it is
    Text,
    /// Labels, each with its boxes
    LabeledBoxes,
    /// Boxes without labels
    Boxes,
    /// Phrases, each with its boxes, without the banned ones
    GroundedPhrases,
    /// Lines of text, each with a quadrilateral
    Quads,
    /// Labels, each with its polygons
    LabeledPolygons,
    /// Polygons without labels
    Polygons,
    /// Labels with polygons if there is a <poly>, else with boxes
    BoxesOrPolygons,
}

impl From<KindArg> for AnswerKind {
    fn from(arg: KindArg) -> Self {
        match arg {
            KindArg::Text => Self::Text,
            KindArg::LabeledBoxes => Self::LabeledBoxes,
            KindArg::Boxes => Self::Boxes,
            KindArg::GroundedPhrases => Self::GroundedPhrases,
            KindArg::Quads => Self::Quads,
            KindArg::LabeledPolygons => Self::LabeledPolygons,
            KindArg::Polygons => Self::Polygons,
            KindArg::BoxesOrPolygons => Self::BoxesOrPolygons,
        }
    }
}
