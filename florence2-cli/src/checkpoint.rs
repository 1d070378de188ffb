//! The checkpoint that is meant.

use std::fs;
use std::path::{Path, PathBuf};

use florence2::candle::{Candle, CandleModel, Device};
#[cfg(feature = "executorch")]
use florence2::executorch::{self, ExecuTorch, Paths};
#[cfg(feature = "tract")]
use florence2::tract::{Tract, Variant, Variants};
use florence2::{Florence2, VisionSeq2Seq};

use crate::args::{BackendArg, BackendArgs};
use crate::{Failure, chain};

#[cfg(feature = "tract")]
const DEMO_ONNX: &str = "demo/onnx";
#[cfg(feature = "executorch")]
const DEMO_EXECUTORCH: &str = "demo/executorch";

#[cfg(any(feature = "tract", feature = "executorch"))]
fn is_there(folder: &str) -> bool {
    Path::new(folder).join("config.json").is_file()
}

/// Whether it is the one in this program. A folder of that name is `./demo`.
pub(crate) fn is_demo(model: &Path) -> bool {
    cfg!(feature = "demo") && model.as_os_str() == "demo"
}

/// What runs the network, as it was asked for.
pub(crate) enum Chosen {
    Candle(Candle),
    #[cfg(feature = "tract")]
    Tract(Tract),
    #[cfg(feature = "executorch")]
    ExecuTorch(ExecuTorch),
}

impl Chosen {
    /// Refuses options of another backend, and a checkpoint that it cannot have.
    #[cfg_attr(
        not(any(feature = "tract", feature = "executorch")),
        expect(unused_variables, reason = "candle has any checkpoint")
    )]
    pub(crate) fn read(model: &Path, args: &BackendArgs) -> Result<Self, Failure> {
        let other = |option: &str, of: &str| {
            Err(Failure::Request(format!(
                "{option} is an option of the backend {of}: add --backend {of}, or leave it out"
            )))
        };
        match args.backend {
            BackendArg::Candle if args.variant.is_some() => other("--variant", "tract or executorch"),
            BackendArg::Candle | BackendArg::Tract if args.pte.is_some() => other("--pte", "executorch"),
            BackendArg::Candle | BackendArg::Tract if args.mmap => other("--mmap", "executorch"),
            BackendArg::Candle => Ok(Self::Candle(Candle {
                device: args.device,
                dtype: args.dtype.unwrap_or_default().into(),
                threads: args.threads,
                ..Candle::default()
            })),
            BackendArg::Tract | BackendArg::ExecuTorch if args.dtype.is_some() => other("--dtype", "candle"),
            BackendArg::Tract | BackendArg::ExecuTorch if args.device != Device::default() => {
                other("--device", "candle")
            }
            #[cfg(feature = "tract")]
            BackendArg::Tract if is_demo(model) && !is_there(DEMO_ONNX) => Err(Failure::Request(
                "--model demo: the demo in this program has no ONNX parts; the repository's folder demo/onnx has them"
                    .to_owned(),
            )),
            #[cfg(feature = "tract")]
            BackendArg::Tract => {
                let variants = args.variant.as_deref().map(str::parse::<Variants>).transpose();
                let variants = variants.map_err(|error| Failure::Request(format!("--variant: {error}")))?;
                let variants = variants.unwrap_or_default();
                Ok(Self::Tract(Tract { variants, threads: args.threads, ..Tract::default() }))
            }
            #[cfg(feature = "executorch")]
            BackendArg::ExecuTorch if is_demo(model) && !is_there(DEMO_EXECUTORCH) => Err(Failure::Request(
                "--model demo: the demo in this program has no .pte files; the repository's folder demo/executorch has them"
                    .to_owned(),
            )),
            #[cfg(feature = "executorch")]
            BackendArg::ExecuTorch => {
                let variants = args.variant.as_deref().map(str::parse::<executorch::Variants>).transpose();
                let variants = variants.map_err(|error| Failure::Request(format!("--variant: {error}")))?;
                let paths = args.pte.as_deref().map(str::parse::<Paths>).transpose();
                let paths = paths.map_err(|error| Failure::Request(format!("--pte: {error}")))?;
                Ok(Self::ExecuTorch(ExecuTorch {
                    variants: variants.unwrap_or_default(),
                    paths: paths.unwrap_or_default(),
                    map: args.mmap,
                    threads: args.threads,
                    ..ExecuTorch::default()
                }))
            }
            #[cfg(not(feature = "executorch"))]
            BackendArg::ExecuTorch => Err(Failure::Request(
                "this program was built without executorch: run tools/get-executorch.sh in the repository and build it with \
                 --features executorch, or use --backend candle"
                    .to_owned(),
            )),
            #[cfg(not(feature = "tract"))]
            BackendArg::Tract => Err(Failure::Request(
                "this program was built without tract: build it with --features tract, or use --backend candle".to_owned(),
            )),
        }
    }

    /// The folder of a checkpoint. The demo's weights are in this program; its exports are in the repository, and are meant by
    /// its name where that is the working directory.
    pub(crate) fn folder<'a>(&self, model: &'a Path) -> &'a Path {
        match self {
            #[cfg(feature = "tract")]
            Self::Tract(_) if is_demo(model) => Path::new(DEMO_ONNX),
            #[cfg(feature = "executorch")]
            Self::ExecuTorch(_) if is_demo(model) => Path::new(DEMO_EXECUTORCH),
            _ => model,
        }
    }

    /// In which form the weights of a checkpoint are, in a word or two.
    pub(crate) fn weights(&self, model: &Path) -> String {
        match self {
            Self::Candle(candle) => {
                let _ = model;
                candle.dtype.to_string()
            }
            #[cfg(feature = "tract")]
            Self::Tract(tract) => {
                let mut names: Vec<String> = Vec::new();
                for file in tract.files(self.folder(model)).unwrap_or_default() {
                    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                    // fp32, which has no suffix, is the first.
                    let variant =
                        Variant::ALL.into_iter().rev().find(|variant| stem.ends_with(variant.suffix()));
                    names.extend(variant.map(|variant| variant.to_string()));
                }
                joined(names)
            }
            #[cfg(feature = "executorch")]
            Self::ExecuTorch(executorch) => {
                let found = executorch.resolve(self.folder(model)).unwrap_or_default();
                let found = [found.vision, found.encoder, found.decoder].into_iter().flatten();
                joined(found.map(|variant| variant.to_string()).collect())
            }
        }
    }
}

/// Each name once.
#[cfg(any(feature = "tract", feature = "executorch"))]
fn joined(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    names.join(" and ")
}

/// What is done with a checkpoint, whatever runs it.
pub(crate) trait Use {
    type Result;
    fn of<M: VisionSeq2Seq>(self, florence: Florence2<M>) -> Self::Result;
}

/// Loads it. A slip in its name is a bad request; what is wrong inside of its folder is not.
pub(crate) fn load<T>(
    model: &Path,
    args: &BackendArgs,
    then: impl Use<Result = Result<T, Failure>>,
) -> Result<T, Failure> {
    let chosen = Chosen::read(model, args)?;
    let model = chosen.folder(model);
    check_folder(model)?;
    if let Some(meant) = meant(model) {
        let (model, meant) = (model.display(), meant.display());
        return Err(Failure::Request(format!(
            "--model {model}: there is no config.json in it; did you mean {meant}?"
        )));
    }
    let failed = |error: florence2::Error| {
        let (model, options) = (model.display(), args.typed());
        Failure::Run(format!("{}; florence2 doctor --model {model}{options} says more", chain(&error)))
    };
    match chosen {
        Chosen::Candle(candle) => then.of(load_candle(model, candle).map_err(failed)?),
        #[cfg(feature = "tract")]
        Chosen::Tract(tract) => then.of(Florence2::load(model, tract).map_err(failed)?),
        #[cfg(feature = "executorch")]
        Chosen::ExecuTorch(executorch) => then.of(Florence2::load(model, executorch).map_err(failed)?),
    }
}

/// That there is a folder of this name, if it is not the demo's.
pub(crate) fn check_folder(model: &Path) -> Result<(), Failure> {
    if is_demo(model) {
        return Ok(());
    }
    let name = model.display();
    match fs::metadata(model) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Failure::Request(format!(
            "--model: {name} is a file: a checkpoint is a folder with config.json, weights, a tokenizer and \
             preprocessor_config.json"
        ))),
        Err(error) => Err(Failure::Request(format!("--model: cannot read {name}: {error}{}", hint(model)))),
    }
}

/// For what names a checkpoint, and no folder; else empty.
fn hint(model: &Path) -> String {
    match model.to_str() {
        Some("demo") => "; this program was built without its demo".to_owned(),
        Some(text) => hub_name(text).map_or_else(String::new, |(owner, name)| {
            format!(
                "; models are not downloaded: `hf download {owner}/{name} --local-dir {name}`, or with Git LFS \
                 `git clone https://huggingface.co/{owner}/{name}`, makes the folder {name}"
            )
        }),
        None => String::new(),
    }
}

/// Owner and name, as models have them on Hugging Face's hub.
fn hub_name(text: &str) -> Option<(&str, &str)> {
    let path = text.strip_prefix("https://huggingface.co/").unwrap_or(text);
    let (owner, name) = path.trim_end_matches('/').split_once('/')?;
    let whole = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
    };
    (whole(owner) && whole(name)).then_some((owner, name))
}

/// The checkpoint within a folder that is none: its folder `checkpoint`, or the only one that holds a `config.json`.
pub(crate) fn meant(model: &Path) -> Option<PathBuf> {
    let holds = |folder: &Path| folder.join("config.json").is_file();
    if is_demo(model) || holds(model) {
        return None;
    }
    let usual = model.join("checkpoint");
    if holds(&usual) {
        return Some(usual);
    }
    let mut found = fs::read_dir(model).ok()?.flatten().map(|entry| entry.path()).filter(|path| holds(path));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

pub(crate) fn load_candle(model: &Path, candle: Candle) -> Result<Florence2<CandleModel>, florence2::Error> {
    #[cfg(feature = "demo")]
    if is_demo(model) {
        return Florence2::demo(candle);
    }
    Florence2::load(model, candle)
}
