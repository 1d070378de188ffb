//! `florence2 doctor`

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use florence2::candle::{Candle, LoadError, WeightsSummary, inspect};
use florence2::record::banned_phrases;
use florence2::{Error, Loc, Preprocessor, Tokenizer, VisionSeq2Seq};
use serde::Serialize;

use crate::args::{BackendArgs, DoctorArgs, PlainFormat};
use crate::checkpoint::Chosen;
use crate::{Failure, chain, checkpoint};

#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    backends: Vec<&'static str>,
    devices: Vec<&'static str>,
    libraries: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executorch: Option<ExecuTorchReport>,
    demo: bool,
    target: String,
    processor: Vec<&'static str>,
    threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Model<'a>>,
}

/// ExecuTorch's runtime, where the program is built with it.
#[derive(Serialize)]
#[cfg_attr(not(feature = "executorch"), expect(dead_code, reason = "there is none"))]
#[serde(untagged)]
enum ExecuTorchReport {
    There {
        version: &'static str,
        folder: String,
        libraries: Vec<String>,
        failed: Vec<String>,
        delegates: Vec<&'static str>,
    },
    Missing {
        error: String,
    },
}

#[derive(Serialize)]
struct Model<'a> {
    folder: String,
    files: Vec<File<'a>>,
    loads: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct File<'a> {
    file: &'a str,
    state: State,
    what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// Not needed, or not used.
    Unused,
    Missing,
    Wrong,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unused => "-",
            Self::Missing => "missing",
            Self::Wrong => "wrong",
        }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if let Some(model) = &args.model {
        checkpoint::check_folder(model)?;
    }
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        backends: backends(),
        devices: devices(),
        libraries: libraries(),
        executorch: executorch(),
        demo: cfg!(feature = "demo"),
        target: format!("{} {}", std::env::consts::ARCH, std::env::consts::OS),
        processor: processor(),
        threads: std::thread::available_parallelism().ok().map(Into::into),
        model: args.model.as_deref().map(|model| examine(model, &args.backend)).transpose()?,
    };
    let mut out = Vec::new();
    match args.format {
        PlainFormat::Json => serde_json::to_writer_pretty(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n")),
        PlainFormat::Text => write(&mut out, &report),
    }
    .map_err(Failure::Output)?;
    io::stdout().lock().write_all(&out).map_err(Failure::Output)?;
    match report.model {
        Some(Model { loads: false, folder, .. }) => Err(Failure::Run(format!("{folder} does not load"))),
        _ => Ok(()),
    }
}

fn backends() -> Vec<&'static str> {
    let mut backends = vec!["candle"];
    if cfg!(feature = "tract") {
        backends.push("tract");
    }
    if cfg!(feature = "executorch") {
        backends.push("executorch");
    }
    backends
}

#[cfg(feature = "executorch")]
fn executorch() -> Option<ExecuTorchReport> {
    use florence2::executorch::Runtime;
    Some(match Runtime::start() {
        Ok(Runtime { version, folder, libraries, failed, delegates, .. }) => ExecuTorchReport::There {
            version,
            folder: folder.display().to_string(),
            libraries,
            failed,
            delegates,
        },
        Err(error) => ExecuTorchReport::Missing { error: chain(&error) },
    })
}

#[cfg(not(feature = "executorch"))]
fn executorch() -> Option<ExecuTorchReport> {
    None
}

fn devices() -> Vec<&'static str> {
    let mut devices = vec!["cpu", "candle-cpu"];
    if cfg!(feature = "cuda") {
        devices.push("cuda");
    }
    if cfg!(feature = "metal") {
        devices.push("metal");
    }
    devices
}

/// For the products of the device candle-cpu.
fn libraries() -> Vec<&'static str> {
    let mut libraries = Vec::new();
    if cfg!(feature = "accelerate") {
        libraries.push("accelerate");
    }
    if cfg!(feature = "mkl") {
        libraries.push("mkl");
    }
    libraries
}

/// What the processor has that kernels may use.
fn processor() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! look {
            ($($name:tt)*) => { $( if std::arch::is_x86_feature_detected!($name) { found.push($name); } )* };
        }
        look!("sse4.2" "avx" "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512vnni" "avx512bf16");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! look {
            ($($name:tt)*) => { $( if std::arch::is_aarch64_feature_detected!($name) { found.push($name); } )* };
        }
        look!("neon" "fp16" "bf16" "dotprod" "i8mm" "sve");
    }
    found.shrink_to_fit();
    found
}

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "weights";
const PREPROCESSOR: &str = "preprocessor_config.json";

/// What is wrong with the tensors themselves, which only loading finds out.
fn tensor_fault(error: &Error) -> Option<String> {
    let Error::Load(source) = error else { return None };
    let error = source.downcast_ref::<LoadError>()?;
    let of_tensors = matches!(
        error,
        LoadError::Missing { .. }
            | LoadError::Unused { .. }
            | LoadError::Shape { .. }
            | LoadError::Dtype { .. }
            | LoadError::NotFinite { .. }
            | LoadError::NotTied { .. }
    );
    of_tensors.then(|| chain(error))
}

fn examine(model: &Path, args: &BackendArgs) -> Result<Model<'static>, Failure> {
    let chosen = Chosen::read(model, args)?;
    let model = chosen.folder(model);
    let (files, loaded) = match chosen {
        Chosen::Candle(candle) => examine_candle(model, candle),
        #[cfg(feature = "tract")]
        Chosen::Tract(tract) => examine_tract(model, tract),
        #[cfg(feature = "executorch")]
        Chosen::ExecuTorch(executorch) => examine_executorch(model, executorch),
    };
    let seconds = loaded.as_ref().ok().map(|time| (time.as_secs_f64() * 1e3).round() / 1e3);
    let error = loaded.err().map(|error| match checkpoint::meant(model) {
        Some(meant) => format!("{}; did you mean {}?", chain(&error), meant.display()),
        None => chain(&error),
    });
    Ok(Model { folder: model.display().to_string(), files, loads: error.is_none(), seconds, error })
}

/// What was found, and how long loading took.
type Examined = (Vec<File<'static>>, Result<Duration, Error>);

#[cfg(feature = "tract")]
fn examine_tract(model: &Path, tract: florence2::Tract) -> Examined {
    let mut rows = vec![if model.join(CONFIG).is_file() {
        File { file: CONFIG, state: State::Ok, what: "token ids and positions".to_owned() }
    } else {
        File { file: CONFIG, state: State::Missing, what: "token ids and positions are in it".to_owned() }
    }];
    match tract.files(model) {
        Ok(found) => {
            for file in found {
                let size = fs::metadata(&file).map_or(0, |metadata| metadata.len());
                let name = file.strip_prefix(model).unwrap_or(&file).display().to_string();
                rows.push(File {
                    file: "part",
                    state: State::Ok,
                    what: format!("{name}, {:.1} MB", size as f64 / 1e6),
                });
            }
        }
        Err(error) => rows.push(File { file: "part", state: State::Missing, what: chain(&error) }),
    }
    processor_files(model, &mut rows);
    let start = Instant::now();
    let loaded = florence2::Florence2::load(model, tract);
    if let Err(Error::Load(source)) = &loaded
        && let Some(error) = source.downcast_ref::<florence2::tract::LoadError>()
    {
        // The rows of the files that are to blame.
        for broken in error.files() {
            let name = broken.strip_prefix(model).unwrap_or(broken).display().to_string();
            let is_its = |row: &&mut File<'_>| {
                row.state == State::Ok
                    && (row.file == name || row.file == "part" && row.what.starts_with(&format!("{name}, ")))
            };
            if let Some(row) = rows.iter_mut().find(is_its) {
                (row.state, row.what) = (State::Wrong, chain(error));
            }
        }
    }
    (rows, loaded.map(|_| start.elapsed()))
}

#[cfg(feature = "executorch")]
fn examine_executorch(model: &Path, executorch: florence2::ExecuTorch) -> Examined {
    use florence2::executorch::{Form, LoadError};
    let mut rows = vec![if model.join(CONFIG).is_file() {
        File { file: CONFIG, state: State::Ok, what: "token ids".to_owned() }
    } else {
        let what = "not there, and not needed: the ids of all published checkpoints hold";
        File { file: CONFIG, state: State::Unused, what: what.to_owned() }
    }];
    let start = Instant::now();
    let loaded = florence2::Florence2::load(model, executorch);
    let time = start.elapsed();
    let mut parts = Vec::new();
    match &loaded {
        Ok(florence) => {
            let network = florence.model();
            for file in network.files() {
                let size = fs::metadata(&file).map_or(0, |metadata| metadata.len());
                let name = file.strip_prefix(model).unwrap_or(&file).display().to_string();
                let what = format!("{name}, {:.1} MB", size as f64 / 1e6);
                parts.push(File { file: "program", state: State::Ok, what });
            }
            let spec = network.spec();
            let form = match network.form() {
                Form::Window => "a window, all of which is computed at every step",
                Form::Cached => "a cache",
            };
            let what = format!(
                "with {form}; prompts of up to {} tokens, answers of up to {}",
                spec.max_prompt_tokens, spec.max_positions
            );
            parts.push(File { file: "decoder", state: State::Ok, what });
        }
        Err(Error::Load(source)) => {
            if let Some(error) = source.downcast_ref::<LoadError>() {
                let (file, state) = match error {
                    LoadError::Parts { .. } => ("program", State::Missing),
                    LoadError::NotBuilt | LoadError::Runtime { .. } | LoadError::Threads { .. } => {
                        ("runtime", State::Wrong)
                    }
                    _ => ("program", State::Wrong),
                };
                match error.file().and_then(Path::file_name) {
                    Some(name) if name == CONFIG => {
                        (rows[0].state, rows[0].what) = (State::Wrong, chain(error));
                    }
                    _ => parts.push(File { file, state, what: chain(error) }),
                }
            }
        }
        // What is wrong is told in the rows below.
        Err(_) => {}
    }
    rows.extend(parts);
    processor_files(model, &mut rows);
    (rows, loaded.map(|_| time))
}

fn examine_candle(model: &Path, candle: Candle) -> Examined {
    let mut files = if checkpoint::is_demo(model) { Vec::new() } else { files(model) };
    let start = Instant::now();
    let loaded = checkpoint::load_candle(model, candle);
    let time = start.elapsed();
    match &loaded {
        Ok(florence) if files.is_empty() => {
            let spec = florence.model().spec();
            files.push(File {
                file: "demo",
                state: State::Ok,
                what: format!(
                    "{}; pictures of {}x{}, {} tokens",
                    weights(florence.model().weights()),
                    spec.image_width,
                    spec.image_height,
                    spec.vocabulary_size
                ),
            });
        }
        Ok(_) => {}
        Err(error) => {
            let weights = files.iter_mut().find(|file| file.file == WEIGHTS && file.state == State::Ok);
            if let Some((file, fault)) = weights.zip(tensor_fault(error)) {
                (file.state, file.what) = (State::Wrong, fault);
            }
        }
    }
    (files, loaded.map(|_| time))
}

/// What the weights are, in a line.
fn weights(found: &WeightsSummary) -> String {
    let names: Vec<String> = found
        .files
        .iter()
        .map(|file| file.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    format!(
        "{}: {} layout, {} tensors, {:.1} million numbers, {}",
        if names.is_empty() { "in this program".to_owned() } else { names.join(", ") },
        found.layout,
        found.tensors,
        found.parameters as f64 / 1e6,
        found.dtypes.join(" and ")
    )
}

/// The files of a checkpoint with weights.
fn files(folder: &Path) -> Vec<File<'static>> {
    let mut files = Vec::new();
    let mut row = |file, state, what: String| files.push(File { file, state, what });
    let there = |file: &str| folder.join(file).exists();

    let found = inspect(folder);
    match &found.vocabulary_size {
        Ok(tokens) => row(CONFIG, State::Ok, format!("{tokens} tokens")),
        Err(error) => row(CONFIG, state_of(there(CONFIG)), chain(error)),
    }
    match &found.weights {
        Ok(found) => row(WEIGHTS, State::Ok, weights(found)),
        Err(error) => row(WEIGHTS, state_of(!matches!(error, LoadError::NoWeights { .. })), chain(error)),
    }
    processor_files(folder, &mut files);
    if let (Err(error), Some(row)) =
        (&found.image_size, files.iter_mut().find(|row| row.file == PREPROCESSOR))
        && row.state == State::Ok
    {
        (row.state, row.what) = (State::Wrong, chain(error));
    }
    files
}

fn state_of(found: bool) -> State {
    if found { State::Wrong } else { State::Missing }
}

/// The files that say how pictures and words are prepared, whatever runs the network.
fn processor_files(folder: &Path, files: &mut Vec<File<'static>>) {
    let mut row = |file, state, what: String| files.push(File { file, state, what });
    let there = |file: &str| folder.join(file).exists();
    let file = if there("tokenizer.json") { "tokenizer.json" } else { "vocab.json" };
    match Tokenizer::from_folder(folder) {
        Ok(tokenizer) => {
            let loc = Loc::new(0).map_or(0, |loc| tokenizer.layout().id(loc));
            row(file, State::Ok, format!("{} tokens, <loc_0> is {loc}", tokenizer.highest_id() + 1));
        }
        Err(error) => row(file, state_of(there(file)), chain(&error)),
    }

    let file = PREPROCESSOR;
    match fs::read_to_string(folder.join(file)) {
        Ok(json) => match Preprocessor::from_json(&json) {
            Ok(found) => {
                let size = found.size().map(|size| format!("{}x{}", size.width(), size.height()));
                row(
                    file,
                    State::Ok,
                    size.map_or("no resize".to_owned(), |size| format!("pictures of {size}")),
                );
            }
            Err(error) => row(file, State::Wrong, chain(&error)),
        },
        Err(error) => row(file, state_of(there(file)), error.to_string()),
    }

    let file = "processor_config.json";
    match fs::read_to_string(folder.join(file)) {
        Ok(json) => match banned_phrases(&json) {
            Ok(list) => {
                row(file, State::Ok, format!("{} banned phrases, for --dialect transformers", list.len()));
            }
            Err(error) => row(file, State::Wrong, chain(&error)),
        },
        Err(_) if !there(file) => {
            row(
                file,
                State::Unused,
                "not there, and not needed: Florence-2's banned phrases hold".to_owned(),
            );
        }
        Err(error) => row(file, State::Wrong, error.to_string()),
    }
    if there("generation_config.json") {
        let what = "there, and not used: the options of florence2 run say how to generate";
        row("generation_config.json", State::Unused, what.to_owned());
    }
}

fn write(out: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    writeln!(out, "florence2 {} for {}", report.version, report.target)?;
    writeln!(out, "backends   {}", report.backends.join(", "))?;
    writeln!(out, "devices    {}", report.devices.join(", "))?;
    if !report.libraries.is_empty() {
        writeln!(out, "libraries  {}", report.libraries.join(", "))?;
    }
    match &report.executorch {
        None => {}
        Some(ExecuTorchReport::Missing { error }) => writeln!(out, "executorch {error}")?,
        Some(ExecuTorchReport::There { version, folder, libraries, failed, delegates }) => {
            let (libraries, delegates) = (libraries.join(", "), delegates.join(", "));
            writeln!(out, "executorch {version}; delegates: {delegates}; {libraries} in {folder}")?;
            for problem in failed {
                writeln!(out, "executorch {problem}")?;
            }
        }
    }
    writeln!(out, "demo       {}", if report.demo { "built in" } else { "not built in" })?;
    let threads = report.threads.map_or_else(|| "unknown".to_owned(), |threads| threads.to_string());
    writeln!(out, "processor  {threads} threads; {}", report.processor.join(" "))?;
    let Some(model) = &report.model else { return Ok(()) };
    writeln!(out, "\n{}", model.folder)?;
    for file in &model.files {
        writeln!(out, "{:<7}  {:<24}  {}", file.state.word(), file.file, file.what)?;
    }
    match (&model.error, model.seconds) {
        (Some(error), _) => writeln!(out, "does not load: {error}"),
        (None, seconds) => writeln!(out, "loads, in {:.2} s", seconds.unwrap_or_default()),
    }
}
