//! `florence2 run`

mod overlays;
mod pictures;
mod progress;
mod questions;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use florence2::overlay::{OverlayOptions, draw as draw_answer};
use florence2::people::{write_answer, write_text};
use florence2::record::OutputRecord;
use florence2::{
    Answer, AnswerKind, Error, Florence2, GenerationConfig, HfAnswer, Image, Instance, Output, Prompt,
    Sampling, Seen, VisionSeq2Seq,
};
use serde::Serialize;

use crate::args::{GenerationArgs, RunArgs, RunFormat};
use crate::{Failure, chain, checkpoint, lines, picture, tell};
use overlays::Overlays;
use pictures::Picture;
use progress::Progress;
use questions::Question;

pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let (tasks, named) = sort_out(args)?;
    if tasks.is_empty()
        && let Some(word) = named.iter().find(|word| !pictures::task_hint(word).is_empty())
    {
        let (word, hint) = (word.display(), pictures::task_hint(word));
        return Err(Failure::Request(format!("no task is given, and there is no picture {word}{hint}")));
    }
    let questions = questions::read(&tasks, args)?;
    let pictures = pictures::expand(&named)?;
    if args.tokens && !matches!(args.format, RunFormat::Json | RunFormat::Jsonl) {
        return Err(Failure::Request("--tokens are written in JSON: use --format json or jsonl".into()));
    }
    let overlays = match &args.overlay {
        Some(out) => Overlays::plan(out, &pictures, &questions)?,
        None => Overlays::default(),
    };
    let config = generation(&args.generation);
    if checkpoint::is_demo(&args.model) {
        tell(format_args!(
            "note: the demo was trained on drawings of coloured circles, squares, triangles and stars, and knows \
             nothing else"
        ));
    }
    checkpoint::load(&args.model, &args.backend, Work { args, config, pictures, questions, overlays })
}

/// What is asked of a checkpoint.
struct Work<'a> {
    args: &'a RunArgs,
    config: GenerationConfig,
    pictures: Vec<Picture>,
    questions: Vec<Question>,
    overlays: Overlays,
}

impl checkpoint::Use for Work<'_> {
    type Result = Result<(), Failure>;

    fn of<M: VisionSeq2Seq>(self, florence: Florence2<M>) -> Self::Result {
        let Self { args, config, pictures, questions, overlays } = self;
        let florence = florence.with_dialect(args.dialect.into()).with_spaced_locations(args.spaced);
        config.validate(florence.model().spec()).map_err(|error| Failure::Request(error.to_string()))?;
        for question in &questions {
            if let Question::Prompt(prompt) = question {
                florence.prompt_ids(prompt).map_err(|error| Failure::Request(chain(&error)))?;
            }
        }
        let many = pictures.len() * questions.len() > 1;
        let out = Out { format: args.format, many, records: 0 };
        Job { args, florence, config, pictures, questions, overlays, out }.run()
    }
}

/// What begins with `<` is a task, and the rest are pictures.
fn sort_out(args: &RunArgs) -> Result<(Vec<String>, Vec<PathBuf>), Failure> {
    let (mut tasks, mut pictures) = (args.tasks.clone(), Vec::new());
    for input in &args.inputs {
        match input.to_str() {
            Some("") => return Err(Failure::Request("a picture has an empty name".into())),
            Some(text) if text.starts_with('<') => tasks.push(text.to_owned()),
            _ => pictures.push(PathBuf::from(input)),
        }
    }
    Ok((tasks, pictures))
}

fn generation(args: &GenerationArgs) -> GenerationConfig {
    let sampling = args.sample.then_some(Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed,
    });
    let default = GenerationConfig::default();
    let one = args.greedy || args.sample;
    GenerationConfig {
        beams: args.beams.unwrap_or(if one { 1 } else { default.beams }),
        sequences: args.sequences,
        max_new_tokens: args.max_new_tokens,
        min_new_tokens: args.min_new_tokens,
        no_repeat_ngram: args.no_repeat_ngram,
        length_penalty: args.length_penalty,
        early_stopping: args.early_stopping.into(),
        sampling,
        ..default
    }
}

/// All pictures with all questions.
struct Job<'a, M> {
    args: &'a RunArgs,
    florence: Florence2<M>,
    config: GenerationConfig,
    pictures: Vec<Picture>,
    questions: Vec<Question>,
    overlays: Overlays,
    out: Out,
}

impl<M: VisionSeq2Seq> Job<'_, M> {
    fn run(mut self) -> Result<(), Failure> {
        let mut progress = Progress::new(self.pictures.len() * self.questions.len());
        self.out.begin()?;
        let mut failed = 0;
        for at in 0..self.pictures.len() {
            failed += usize::from(!self.picture(at, &mut progress)?);
        }
        progress.clear();
        self.out.end()?;
        match failed {
            0 => Ok(()),
            _ => Err(Failure::Run(format!(
                "{failed} of {} pictures failed; each has its error above",
                self.pictures.len()
            ))),
        }
    }

    /// Whether all went well with it. What went wrong has been told.
    fn picture(&mut self, at: usize, progress: &mut Progress) -> Result<bool, Failure> {
        let Picture { path, problem } = &self.pictures[at];
        let name = path.display().to_string();
        progress.show(&name);
        let opened = match problem {
            Some(problem) => Err(problem.clone()),
            None => picture::open(path, &self.args.picture),
        };
        let seen =
            opened.and_then(|image| Ok((self.florence.see(&image).map_err(|error| chain(&error))?, image)));
        let (seen, image) = match seen {
            Ok(seen) => seen,
            Err(message) => {
                progress.advance(self.questions.len());
                progress.clear();
                self.out.fail(&name, None, &message)?;
                return Ok(false);
            }
        };
        let mut well = true;
        for question in 0..self.questions.len() {
            progress.show(&name);
            let asked = self.questions[question].name();
            match self.ask(&seen, question, &name, progress) {
                Ok(output) => {
                    let drawn = match self.overlays.path(at, question) {
                        Some(path) => draw(&image, &output.answer, path),
                        None => Ok(()),
                    };
                    progress.clear();
                    if let Err(message) = drawn {
                        tell(format_args!("error: {name}: {message}"));
                        well = false;
                    }
                    self.notes(&name, &output);
                }
                Err(Unanswered::Output(error)) => return Err(Failure::Output(error)),
                Err(Unanswered::Failed(message)) => {
                    progress.clear();
                    self.out.fail(&name, Some(&asked), &message)?;
                    well = false;
                }
            }
            progress.advance(1);
        }
        Ok(well)
    }

    /// Asks, and writes the answer.
    fn ask(
        &mut self,
        seen: &Seen<M>,
        question: usize,
        name: &str,
        progress: &mut Progress,
    ) -> Result<Output, Unanswered> {
        let question = &self.questions[question];
        let prompt = question.prompt(seen.size()).map_err(Unanswered::Failed)?;
        let failed = |error: &Error| Unanswered::Failed(chain(error));
        if self.out.streams(&prompt, &self.config) {
            progress.clear();
            let mut out = io::stdout().lock();
            self.out.heading(&mut out, name, &question.name())?;
            let mut written = Ok(());
            let output = self.florence.ask_streaming(seen, &prompt, &self.config, |piece| {
                written = piece.instances.iter().try_for_each(|instance| match instance {
                    Instance::Text(text) => write_text(&mut out, text),
                    _ => Ok(()),
                });
                written = std::mem::replace(&mut written, Ok(())).and_then(|()| out.flush());
                if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            // Half a line may stand there.
            let newline = writeln!(out);
            written.and(newline)?;
            return output.map_err(|error| failed(&error));
        }
        let output = self.florence.ask(seen, &prompt, &self.config).map_err(|error| failed(&error))?;
        progress.clear();
        self.out.write(name, question, &output, self.args.tokens)?;
        Ok(output)
    }

    /// What the answer itself does not say.
    fn notes(&self, name: &str, output: &Output) {
        let about = if self.out.many { format!("{name}: {}: ", output.prompt) } else { String::new() };
        if self.args.format == RunFormat::Text && output.answer.is_empty() {
            match output.kind() {
                AnswerKind::Text => tell(format_args!("note: {about}the answer is empty")),
                kind => {
                    tell(format_args!("note: {about}the answer holds nothing that it is read for ({kind})"));
                }
            }
        }
        if output.finish == florence2::Finish::Length {
            tell(format_args!(
                "note: {about}the answer has reached its greatest length, {} tokens, and may be cut off",
                output.tokens.len()
            ));
        }
        for symptom in &output.symptoms {
            tell(format_args!("note: {about}{symptom}"));
        }
    }
}

fn draw(image: &Image, answer: &Answer, path: &Path) -> Result<(), String> {
    let drawn = draw_answer(image, answer, &OverlayOptions::default());
    drawn.write_png(path).map_err(|error| chain(&error))
}

/// Why there is no answer.
enum Unanswered {
    Failed(String),
    Output(io::Error),
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Standard output.
struct Out {
    format: RunFormat,
    /// Whether there is more than one answer.
    many: bool,
    records: usize,
}

/// What stands for an answer that there is not.
#[derive(Serialize)]
struct Failed<'a> {
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    error: &'a str,
}

impl Out {
    /// Whether an answer is written as it comes.
    fn streams(&self, prompt: &Prompt, config: &GenerationConfig) -> bool {
        let is_text = !prompt.answer_kind().has_locations();
        self.format == RunFormat::Text && is_text && config.sequences == 1 && io::stdout().is_terminal()
    }

    fn begin(&self) -> Result<(), Failure> {
        if self.format == RunFormat::Json { put(b"[") } else { Ok(()) }.map_err(Failure::Output)
    }

    fn end(&self) -> Result<(), Failure> {
        match self.format {
            RunFormat::Json if self.records > 0 => put(b"\n]\n"),
            RunFormat::Json => put(b"]\n"),
            RunFormat::Text | RunFormat::Jsonl | RunFormat::Hf => Ok(()),
        }
        .map_err(Failure::Output)
    }

    /// In text, what the answer below is to.
    fn heading(&mut self, out: &mut impl Write, name: &str, question: &str) -> io::Result<()> {
        if !self.many {
            return Ok(());
        }
        if self.records > 0 {
            writeln!(out)?;
        }
        self.records += 1;
        write_text(&mut *out, &format!("{name} {question}").replace(['\n', '\t'], " "))?;
        writeln!(out)
    }

    fn write(
        &mut self,
        name: &str,
        question: &Question,
        output: &Output,
        tokens: bool,
    ) -> Result<(), Unanswered> {
        // Written to memory first, which has a limit: so nothing is half written.
        let mut out = lines::Written::default();
        let too_long = |error: io::Error| Unanswered::Failed(error.to_string());
        match self.format {
            RunFormat::Text => {
                self.heading(&mut out, name, &question.name()).map_err(too_long)?;
                write_sequences(&mut out, output).map_err(too_long)?;
            }
            RunFormat::Json | RunFormat::Jsonl => {
                self.record(&mut out, &OutputRecord::new(name, output, tokens)).map_err(too_long)?;
            }
            RunFormat::Hf => {
                let answer = output.reference_answer();
                let key = key(&output.prompt);
                let dict = HfAnswer::with_key(&key, output.kind(), &answer, output.dialect);
                self.record(&mut out, &dict).map_err(too_long)?;
            }
        }
        put(out.as_bytes())?;
        Ok(())
    }

    fn record(&mut self, out: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
        if self.format == RunFormat::Json {
            out.write_all(if self.records > 0 { b",\n" } else { b"\n" })?;
        }
        serde_json::to_writer(&mut *out, record)?;
        self.records += 1;
        if self.format == RunFormat::Json { Ok(()) } else { out.write_all(b"\n") }
    }

    /// Tells of a failure, and leaves no gap in the output.
    fn fail(&mut self, name: &str, prompt: Option<&str>, message: &str) -> Result<(), Failure> {
        match prompt {
            Some(prompt) => tell(format_args!("error: {name}: {prompt}: {message}")),
            // A picture's error names its file.
            None if message.contains(name) => tell(format_args!("error: {message}")),
            None => tell(format_args!("error: {name}: {message}")),
        }
        if self.format == RunFormat::Text {
            return Ok(());
        }
        let mut out = Vec::new();
        self.record(&mut out, &Failed { image: name, prompt, error: message }).map_err(Failure::Output)?;
        put(&out).map_err(Failure::Output)
    }
}

/// At once, so that a reader has each answer when it is there.
fn put(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

fn write_sequences(out: &mut impl Write, output: &Output) -> io::Result<()> {
    if output.alternatives.is_empty() {
        return write_answer(out, &output.answer);
    }
    let others = output.alternatives.iter().map(|other| (&other.answer, other.score));
    for (at, (answer, score)) in std::iter::once((&output.answer, output.score)).chain(others).enumerate() {
        writeln!(out, "{}. score {score:.4}", at + 1)?;
        write_answer(&mut *out, answer)?;
    }
    Ok(())
}

/// What the reference's dictionary has the answer under: a raw prompt's own marker, or else all of it.
fn key(prompt: &Prompt) -> String {
    if let Some(task) = prompt.task() {
        return task.marker().to_owned();
    }
    let text = prompt.to_string();
    match text.find('>') {
        Some(end) if text.starts_with('<') => text[..=end].to_owned(),
        _ => text,
    }
}
