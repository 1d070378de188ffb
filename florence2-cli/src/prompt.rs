//! `florence2 prompt`

use std::io::{self, Write};

use florence2::record::PromptRecord;
use florence2::{AnswerKind, LocGrid, Prompt, PromptError, Task};

use crate::args::{PlainFormat, PromptArgs};
use crate::{Failure, lines};

pub(crate) fn run(args: &PromptArgs) -> Result<(), Failure> {
    if args.jsonl {
        if args.format == Some(PlainFormat::Text) {
            return Err(Failure::Request("--jsonl writes JSON: use --format json".into()));
        }
        return lines::each_line(|_, line, out| {
            let record =
                PromptRecord::from_json(line, args.dialect.into()).map_err(|error| error.to_string())?;
            serde_json::to_writer(out, &record).map_err(|error| error.to_string())
        });
    }
    let prompt = match (&args.prompt, &args.task) {
        (Some(text), _) if args.raw => Prompt::raw(text, AnswerKind::Text),
        (Some(text), _) => text.parse().map_err(|error| match error {
            PromptError::UnknownTask(_) | PromptError::NoMarker(_) => {
                Failure::Request(format!("{error} (--raw)"))
            }
            error => request(error),
        })?,
        (None, Some(task)) => with_input(task.parse().map_err(request)?, args)?,
        (None, None) => return Err(Failure::Request("a prompt or --task is needed".into())),
    };
    let record = PromptRecord::new(&prompt, args.dialect.into());
    let mut out = match args.format.unwrap_or_default() {
        PlainFormat::Text => record.sentence.into_bytes(),
        PlainFormat::Json => serde_json::to_vec(&record).map_err(|error| Failure::Output(error.into()))?,
    };
    out.push(b'\n');
    io::stdout().lock().write_all(&out).map_err(Failure::Output)
}

fn with_input(task: Task, args: &PromptArgs) -> Result<Prompt, Failure> {
    if let (Some(pixels), Some(size)) = (args.region, args.size) {
        let region = LocGrid::from(size).region(pixels).map_err(request)?;
        return Prompt::new(task, region).map_err(request);
    }
    if !args.categories.is_empty() {
        return Prompt::of_categories(task, &args.categories).map_err(request);
    }
    match args.input.as_deref() {
        Some(input) => Prompt::new(task, input),
        None => Prompt::new(task, ()),
    }
    .map_err(request)
}

fn request(error: impl std::error::Error) -> Failure {
    Failure::Request(error.to_string())
}
