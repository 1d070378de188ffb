//! What is asked about each picture.

use florence2::{AnswerKind, BoundingBox, ImageSize, InputKind, LocGrid, Prompt, PromptError, Task};

use crate::args::RunArgs;
use crate::{Failure, tell};

/// One question, for every picture.
#[derive(Debug)]
pub(super) enum Question {
    /// The same of each picture.
    Prompt(Prompt),
    /// A region in pixels is another one in each picture.
    Region(Task, BoundingBox),
}

impl Question {
    /// For a picture of this size.
    pub(super) fn prompt(&self, size: ImageSize) -> Result<Prompt, String> {
        match self {
            Self::Prompt(prompt) => Ok(prompt.clone()),
            Self::Region(task, pixels) => {
                let region = LocGrid::from(size).region(*pixels).map_err(|error| error.to_string())?;
                Prompt::new(*task, region).map_err(|error| error.to_string())
            }
        }
    }

    pub(super) fn kind(&self) -> AnswerKind {
        match self {
            Self::Prompt(prompt) => prompt.answer_kind(),
            Self::Region(task, _) => task.answer_kind(),
        }
    }

    /// For people: the marker, with the input if that is written behind it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Prompt(prompt) => prompt.to_string(),
            Self::Region(task, _) => task.to_string(),
        }
    }

    /// For the names of files.
    pub(super) fn slug(&self) -> String {
        let task = match self {
            Self::Prompt(prompt) => prompt.task(),
            Self::Region(task, _) => Some(*task),
        };
        task.map_or("raw".to_owned(), |task| task.marker().trim_matches(['<', '>']).to_ascii_lowercase())
    }
}

/// All of them, or what is wrong with one.
pub(super) fn read(typed: &[String], args: &RunArgs) -> Result<Vec<Question>, Failure> {
    if typed.is_empty() {
        return Err(Failure::Request(
            "no task is given, such as '<OD>' or --task caption; florence2 tasks lists them".into(),
        ));
    }
    if let Some(kind) = args.kind {
        return Ok(typed.iter().map(|text| raw(text, kind.into())).collect());
    }
    let mut used = Used::default();
    let questions: Vec<Question> =
        typed.iter().map(|text| one(text, args, &mut used)).collect::<Result<_, _>>()?;
    let idle = |what: &str| Failure::Request(format!("{what} is given, and no task takes it"));
    if !used.text && args.input.is_some() {
        return Err(idle("--input"));
    }
    if !used.text && !args.categories.is_empty() {
        return Err(idle("--category"));
    }
    if !used.region && args.region.is_some() {
        return Err(idle("--region"));
    }
    Ok(questions)
}

/// Which of the options for inputs some task took.
#[derive(Default)]
struct Used {
    text: bool,
    region: bool,
}

fn raw(text: &str, kind: AnswerKind) -> Question {
    if let Some(task) = Task::ALL.into_iter().find(|task| text.contains(task.marker())) {
        tell(format_args!(
            "note: with --as, {task} is asked word for word and not as its sentence, {:?}",
            task.sentence()
        ));
    }
    Question::Prompt(Prompt::raw(text, kind))
}

fn one(text: &str, args: &RunArgs, used: &mut Used) -> Result<Question, Failure> {
    let request = |error: PromptError| {
        let hint = match &error {
            PromptError::UnknownTask(_) | PromptError::NoMarker(_) => " (--as KIND)",
            PromptError::NeedsText(_) => " (or --input TEXT)",
            PromptError::NeedsRegion(_) => " (or --region X1,Y1,X2,Y2 in pixels)",
            _ => "",
        };
        Failure::Request(format!("--task: {error}{hint}"))
    };
    let Ok(task) = text.parse::<Task>() else { return text.parse().map(Question::Prompt).map_err(request) };
    // The marker alone, or its name: the input is in the options.
    let prompt = match (task.input_kind(), args.input.as_deref(), args.region) {
        (InputKind::Text, Some(input), _) => {
            used.text = true;
            Prompt::new(task, input)
        }
        (InputKind::Text, None, _) if !args.categories.is_empty() => {
            used.text = true;
            Prompt::of_categories(task, &args.categories)
        }
        (InputKind::Region, _, Some(pixels)) => {
            used.region = true;
            return Ok(Question::Region(task, pixels));
        }
        (InputKind::Region, Some(input), None) => {
            used.text = true;
            Prompt::new(task, input)
        }
        _ => Prompt::new(task, ()),
    };
    prompt.map(Question::Prompt).map_err(request)
}
