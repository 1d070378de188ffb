//! What can be typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use florence2::{AnswerKind, BoundingBox, Dialect, ImageSize};

/// Florence-2 on the command line: prompts in, structured answers out.
#[derive(Debug, Parser)]
#[command(name = "florence2", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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

/// Read an answer of the model: text with location tokens in, boxes, quadrilaterals, polygons or text out
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  florence2 parse --task '<OD>' --size 640x480 'car<loc_54><loc_375><loc_906><loc_707>'
  florence2 parse --jsonl --format hf < answers.jsonl

A JSONL request is
  {\"task\": \"<OD>\", \"text\": \"…\", \"image_size\": [640, 480]}
With \"pieces\": [[\"car\", -0.1], …] (texts with log-probabilities; null is -Infinity) instead of
\"text\" there are scores; \"id\" is handed through by --format json; other keys are ignored.
Each request gives one line, in order; a bad one gives {\"error\": …, \"line\": N}, and the exit
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
  florence2 prompt --task region_to_category --region 34,160,597,371 --size 640x480
  florence2 prompt --task open_vocabulary_detection --category car --category 'yellow wall'

A JSONL request is {\"prompt\": \"<OD>\"}, {\"raw\": \"…\"} (asked word for word), or \"task\" with one
of \"input\", \"categories\" (a list) and \"region\" ([x1, y1, x2, y2] in pixels, with
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
        Ok(&[x1, y1, x2, y2]) => Ok(BoundingBox { x1, y1, x2, y2 }),
        _ => Err(FORM),
    }
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
