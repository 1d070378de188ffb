//! `florence2 tasks`

use std::io::{self, Write};

use florence2::{AnswerKind, InputKind, Task};
use serde::Serialize;

use crate::Failure;
use crate::args::{PlainFormat, TasksArgs};

#[derive(Serialize)]
struct Row {
    task: Task,
    input: &'static str,
    kind: AnswerKind,
    sentence: &'static str,
}

pub(crate) fn run(args: &TasksArgs) -> Result<(), Failure> {
    let rows = Task::ALL.map(|task| Row {
        task,
        input: match task.input_kind() {
            InputKind::Nothing => "nothing",
            InputKind::Text => "text",
            InputKind::Region => "region",
        },
        kind: task.answer_kind(),
        sentence: task.sentence(),
    });
    let mut out = Vec::new();
    match args.format {
        PlainFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &rows).map_err(|error| Failure::Output(error.into()))?;
            out.push(b'\n');
        }
        PlainFormat::Text => {
            let mut line = |task: &str, input: &str, answer: &str, sentence: &str| {
                writeln!(out, "{task:<37} {input:<8} {answer:<18} {sentence}").map_err(Failure::Output)
            };
            line("task", "takes", "answers in", "asks")?;
            for row in &rows {
                line(row.task.marker(), row.input, row.kind.name(), row.sentence)?;
            }
        }
    }
    io::stdout().lock().write_all(&out).map_err(Failure::Output)
}
