//! `florence2 parse`

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use florence2::people::write_answer;
use florence2::record::{AnswerRecord, Defaults, Extent, RecordError, TaskName, banned_phrases};
use florence2::{BannedPhrases, ParseOptions, Task};

use crate::args::{AnswerFormat, ParseArgs};
use crate::{Failure, lines, tell};

pub(crate) fn run(args: &ParseArgs) -> Result<(), Failure> {
    let own = args.banned.as_deref().map(read_banned).transpose()?;
    let banned = match &own {
        Some(list) => BannedPhrases::Only(list),
        None if args.no_banned => BannedPhrases::None,
        None => BannedPhrases::Florence2,
    };
    let options =
        ParseOptions::default().dialect(args.dialect.into()).banned(banned).spaced_locations(args.spaced);
    let defaults = Defaults {
        task: args.task.as_deref().map(|task| read_task(task, args)).transpose()?,
        image_size: args.size.map(Extent::from),
        kind: args.kind.map(Into::into),
        options,
    };
    if args.jsonl { many(args, &defaults) } else { one(args, &defaults) }
}

/// A task that was typed: one that is none of the fifteen is a slip, unless it is said how to read its answer.
fn read_task(text: &str, args: &ParseArgs) -> Result<TaskName, Failure> {
    let (typed, hint) = match args.kind {
        Some(_) => (TaskName::read(text), "a fine-tune's own is written as its marker, such as <VQA>"),
        None => (text.parse::<Task>().map(TaskName::Known), "for a fine-tune's own add --as KIND"),
    };
    typed.map_err(|error| Failure::Request(format!("--task: {error}; {hint}")))
}

fn one(args: &ParseArgs, defaults: &Defaults<'_>) -> Result<(), Failure> {
    let Some(task) = defaults.task.clone() else {
        return Err(Failure::Request(
            "--task is needed, such as --task '<OD>'; florence2 tasks lists them".into(),
        ));
    };
    let kind = defaults.answer_kind(&task);
    if kind.has_locations() && defaults.image_size.is_none() {
        return Err(Failure::Request(format!(
            "the answer to {} is in places of the picture: its size is needed, such as --size 640x480",
            task.marker()
        )));
    }
    let text = match args.text.as_deref() {
        Some(text) if text != "-" => text.to_owned(),
        _ => lines::whole_input()?,
    };
    let record = AnswerRecord::read(task, &text, None, defaults)
        .map_err(|error| Failure::Request(error.to_string()))?;
    // Written to memory first, which has a limit: so nothing is half written.
    let mut out = lines::Written::default();
    match args.format.unwrap_or(AnswerFormat::Text) {
        AnswerFormat::Text => write_answer(&mut out, &record.answer),
        AnswerFormat::Json => write_json(&mut out, &record).and_then(|()| out.write_all(b"\n")),
        AnswerFormat::Hf => write_json(&mut out, &record.hf()).and_then(|()| out.write_all(b"\n")),
    }
    .map_err(|error| Failure::Run(error.to_string()))?;
    io::stdout().lock().write_all(out.as_bytes()).map_err(Failure::Output)?;
    if record.answer.is_empty() {
        tell(format_args!(
            "note: the answer holds nothing that {} is read for ({kind})",
            record.task.marker()
        ));
    }
    for symptom in &record.symptoms {
        tell(format_args!("note: {symptom}"));
    }
    Ok(())
}

fn many(args: &ParseArgs, defaults: &Defaults<'_>) -> Result<(), Failure> {
    let format = args.format.unwrap_or(AnswerFormat::Json);
    if format == AnswerFormat::Text {
        return Err(Failure::Request("--jsonl writes JSON: use --format json or --format hf".into()));
    }
    let mut others = Others::default();
    let mut odd = 0_u64;
    let result = lines::each_line(|number, line, out| {
        let record = AnswerRecord::from_json(line, defaults).map_err(|error| match error {
            RecordError::NoSize(_) => format!("{error} (\"image_size\": [width, height])"),
            error => error.to_string(),
        })?;
        if let (TaskName::Other(marker), None) = (&record.task, defaults.kind) {
            others.tell(number, marker);
        }
        odd += u64::from(!record.symptoms.is_empty());
        let written =
            if format == AnswerFormat::Hf { write_json(out, &record.hf()) } else { write_json(out, &record) };
        written.map_err(|error| error.to_string())
    });
    if odd > 0 && format == AnswerFormat::Hf {
        tell(format_args!("note: {odd} answers look wrong; --format json says how under \"symptoms\""));
    }
    result
}

/// Tells once of each marker that is none of the fifteen, and of no more than a few.
#[derive(Default)]
struct Others(HashSet<String>);

impl Others {
    fn tell(&mut self, line: u64, marker: &str) {
        if self.0.len() < 16 && self.0.insert(marker.to_owned()) {
            tell(format_args!(
                "note: line {line}: {marker:?} is none of the fifteen tasks; its answers are read as text, as the \
                 references do (--as KIND reads them otherwise)"
            ));
        }
    }
}

fn write_json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    // The error of the writer comes back as it was.
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

fn read_banned(path: &Path) -> Result<BTreeSet<String>, Failure> {
    let wrong =
        |what: &dyn std::fmt::Display| Failure::Request(format!("--banned {}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    banned_phrases(&text).map_err(|error| wrong(&error))
}
