//! What is a process's own: its threads, its libraries, its standard error; and files that may end it.
//!
//! Each runs in a child: this program again, with `child` alone, and in a variable what it is to do.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
#![expect(clippy::print_stdout, reason = "a child tells its parent")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::Folder;
use florence2_backend_executorch::{ExecuTorch, ExecuTorchModel, Form, LoadError, Runtime};
use florence2_core::dev::conformance::picture;
use florence2_core::{Ask, VisionSeq2Seq};

const JOB: &str = "FLORENCE2_TEST_JOB";
const FOLDER: &str = "FLORENCE2_TEST_FOLDER";

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/executorch")
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tiny")
}

fn with_job(job: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(JOB, job).env(FOLDER, folder);
    command
}

/// What a child says of its work, if it ends well.
fn said(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{status}\n{out}\n{err}");
    let lines = out.lines().filter_map(|line| Some(line.split_once("SAYS ")?.1));
    (lines.collect::<Vec<_>>().join("\n"), err)
}

fn whole(error: &LoadError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Goes through all parts of the network. The logits' bits, summed.
fn run(model: &mut ExecuTorchModel) -> u64 {
    let (width, height) = (model.spec().image_width, model.spec().image_height);
    let mut logits = vec![0.0; model.spec().vocabulary_size];
    let images = model.encode_image(&[picture(0, width, height)]).unwrap();
    let mut state = model.encode_prompt(&[Ask { image: &images[0], prompt: &[0, 5, 6, 2] }]).unwrap();
    let mut sum = 0u64;
    for token in [2, 0, 9] {
        model.decode_step(&mut state, &[token], &mut logits).unwrap();
        for value in &logits {
            sum = sum.wrapping_mul(31).wrapping_add(u64::from(value.to_bits()));
        }
    }
    sum
}

/// Writes what is logged where the parent reads it.
struct Loud;
impl log::Log for Loud {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("SAYS {} {}: {}", record.level(), record.target(), record.args());
    }

    fn flush(&self) {}
}

#[test]
#[ignore = "what the other tests run as processes of their own"]
fn child() {
    // Without a job it was not started by one of them.
    let (Ok(job), Some(folder)) = (std::env::var(JOB), std::env::var_os(FOLDER)) else { return };
    let folder = PathBuf::from(folder);
    let load =
        |threads| ExecuTorch { threads: NonZeroUsize::new(threads), ..ExecuTorch::default() }.load(&folder);
    match job.as_str() {
        "log" => {
            log::set_logger(&Loud).unwrap();
            log::set_max_level(log::LevelFilter::Trace);
            println!("SAYS {}", whole(&load(0).unwrap_err()));
        }
        "load" => match load(0) {
            Ok(mut model) => println!("SAYS {}", run(&mut model)),
            Err(error) => println!("SAYS {}", whole(&error)),
        },
        "window" => {
            let executorch = ExecuTorch { form: Some(Form::Window), ..ExecuTorch::default() };
            match executorch.load(&folder) {
                Ok(mut model) => println!("SAYS {}", run(&mut model)),
                Err(error) => println!("SAYS refused {}", whole(&error)),
            }
        }
        threads => {
            let threads = threads.parse().unwrap();
            // What does not come to load anything settles nothing.
            let slip = ExecuTorch { threads: NonZeroUsize::new(7), ..ExecuTorch::default() };
            assert!(matches!(slip.load(Path::new("nowhere")), Err(LoadError::Io { .. })));
            let many = load(100_000).unwrap_err();
            assert_eq!(
                whole(&many),
                "ExecuTorch cannot be started: 100000 threads were asked for, and 256 are the most"
            );
            println!("SAYS {}", run(&mut load(threads).unwrap()));
            assert_eq!(Runtime::start().unwrap().threads, threads);
            println!("SAYS {}", load(threads + 1).unwrap_err());
            // Whoever does not mind takes what there is.
            load(0).unwrap();
        }
    }
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn threads_are_those_of_the_first_load_and_change_nothing() {
    let answers = [1, 2, 3].map(|threads: usize| {
        let (said, err) = said(&mut with_job(&threads.to_string(), &demo()));
        assert!(!err.contains(".cpp:"), "{err}");
        let (sum, refusal) = said.split_once('\n').unwrap();
        assert_eq!(
            refusal,
            format!(
                "{} threads were asked for, and ExecuTorch runs on {threads}: its threads are those of the whole process, \
                 and the first load says how many",
                threads + 1
            )
        );
        sum.to_owned()
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn the_log_goes_to_the_facade_and_into_the_error() {
    let folder = Folder::new("log").with_copies(&tiny(), &["vision.pte", "decoder.pte", "encoder.pte"]);
    let mut bytes = fs::read(folder.0.join("encoder.pte")).unwrap();
    bytes[6] = b'9';
    fs::write(folder.0.join("encoder.pte"), bytes).unwrap();
    let (said, err) = said(&mut with_job("log", &folder.0));
    assert!(!err.contains(".cpp:"), "{err}");
    let (log, error) = said.rsplit_once('\n').unwrap();
    assert!(log.lines().any(|line| line.starts_with("ERROR executorch: ")), "{said}");
    let (_, logged) = error.split_once(": InvalidProgram: ").unwrap();
    assert!(log.contains(logged.split("; ").next().unwrap()), "{said}");
}

/// Copies ExecuTorch's libraries but for one.
fn libraries(name: &str, without: &str) -> Folder {
    let folder = Folder::new(name);
    let all = Runtime::start().unwrap().folder;
    for entry in fs::read_dir(all).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().contains(without) {
            fs::copy(entry.path(), folder.0.join(entry.file_name())).unwrap();
        }
    }
    folder
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn a_library_that_is_missing_is_told() {
    let load = |libraries: &Folder| said(with_job("load", &demo()).env("LD_LIBRARY_PATH", &libraries.0)).0;
    let delegate = load(&libraries("no_delegate", "backend_xnnpack"));
    assert!(
        delegate.starts_with("ExecuTorch cannot load ") && delegate.contains("XnnpackBackend"),
        "{delegate}"
    );
    let kernels = load(&libraries("no_kernels", "kernels_optimized"));
    assert!(
        kernels.starts_with("ExecuTorch cannot be started: there is no libexecutorch_kernels_optimized in "),
        "{kernels}"
    );
    // Another one there is not needed, and is passed over.
    let folder = libraries("another", "nothing");
    fs::write(folder.0.join("libexecutorch_backend_other.so"), "no library").unwrap();
    assert_eq!(load(&folder), said(&mut with_job("load", &demo())).0);
}

/// Without a manifest ExecuTorch's own checks are all there is. They refuse much, miss some, and some may end the process, which
/// is why this is in children.
#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn damaged_programs_without_a_manifest_are_mostly_refused_or_run() {
    let files = ["vision.pte", "encoder.pte", "decoder.pte"];
    let folder = Folder::new("damaged").with_copies(&tiny(), &files);
    let whole = fs::read(folder.0.join("decoder.pte")).unwrap();
    let mut random = 1u64;
    let (mut refused, mut ended) = (0, 0);
    for _ in 0..24 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut broken = whole.clone();
        // Behind the head, where the graph is.
        broken[64 + (random >> 33) as usize % 20_000] ^= 1 << (random >> 29 & 7);
        fs::write(folder.0.join("decoder.pte"), broken).unwrap();
        let output = with_job("window", &folder.0).output().unwrap();
        refused += usize::from(String::from_utf8_lossy(&output.stdout).contains("SAYS refused "));
        ended += usize::from(!output.status.success());
    }
    assert!(refused > 2 && ended < 3, "{refused} refused, {ended} ended the process");
}
