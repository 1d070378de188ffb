//! `florence2 run` and `doctor`, with the demo checkpoint.
#![cfg(feature = "demo")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test says what went wrong by failing")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::Folder;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// In the root of the repository, so that paths are those of the README.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_florence2"));
    command.current_dir(root()).args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

/// Standard output and standard error of a run that must end so.
#[track_caller]
fn expect(args: &[&str], code: i32) -> (String, String) {
    let output = run(args);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    (out, err)
}

fn demo<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--model", "demo"], args].concat()
}

fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the references return for the demo's pictures.
fn golden() -> Vec<Value> {
    let text = fs::read_to_string(root().join("demo/golden.jsonl")).unwrap();
    records(&text).into_iter().filter(|line| line.get("ask").is_some()).collect()
}

const SCENE: &str = "demo/images/scene_1.png";

#[test]
fn the_first_command_of_the_readme_works() {
    let (out, err) = expect(&demo(&[SCENE, "<OD>"]), 0);
    let line = golden().into_iter().find(|line| line["ask"] == "scene_1.png <OD>").unwrap();
    let labels: Vec<&str> = line["microsoft"]["<OD>"]["labels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|label| label.as_str().unwrap())
        .collect();
    let found: Vec<&str> = out.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(found, labels);
    assert!(out.lines().all(|line| line.split('\t').count() == 3 && line.contains("\tscore ")), "{out}");
    assert!(err.contains("note: the demo was trained on drawings"), "{err}");
    let (caption, _) = expect(&demo(&[SCENE, "-t", "caption"]), 0);
    let line = golden().into_iter().find(|line| line["ask"] == "scene_1.png <CAPTION>").unwrap();
    assert_eq!(caption, format!("{}\n", line["microsoft"]["<CAPTION>"].as_str().unwrap()));
}

/// Every task of every picture, each picture seen once.
#[test]
fn the_references_dictionaries_are_written_for_every_task() {
    for at in 1..=6 {
        let picture = format!("demo/images/scene_{at}.png");
        let lines: Vec<Value> =
            golden().into_iter().filter(|line| line["picture"] == format!("scene_{at}.png")).collect();
        let tasks: Vec<String> = lines
            .iter()
            .map(|line| {
                format!("{}{}", line["task"].as_str().unwrap(), line["input"].as_str().unwrap_or_default())
            })
            .collect();
        for dialect in ["microsoft", "transformers"] {
            let mut args = demo(&[&picture, "--format", "hf", "--dialect", dialect, "-n", "128"]);
            args.extend(tasks.iter().map(String::as_str));
            let (out, _) = expect(&args, 0);
            let expected: Vec<Value> = lines.iter().map(|line| line[dialect].clone()).collect();
            assert_eq!(records(&out), expected, "{picture} {dialect}");
        }
    }
}

#[test]
fn a_record_has_all_that_it_took() {
    let args = demo(&[SCENE, "<OD>", "<OCR>", "--format", "jsonl", "--tokens", "--greedy", "--threads", "1"]);
    let (out, _) = expect(&args, 0);
    let found = records(&out);
    let stored = golden();
    for (record, ask) in found.iter().zip(["scene_1.png <OD>", "scene_1.png <OCR>"]) {
        let line = stored.iter().find(|line| line["ask"] == ask).unwrap();
        assert_eq!((&record["image"], &record["task"]), (&json!(SCENE), &line["task"]));
        assert_eq!((&record["prompt"], &record["text"]), (&line["task"], &line["text"]));
        assert_eq!((&record["finish"], &record["symptoms"]), (&json!("end_of_sequence"), &json!([])));
        assert_eq!(record["image_size"], json!({"width": 575, "height": 431}));
        let tokens = record["tokens"].as_array().unwrap();
        let ids: Vec<&Value> = tokens.iter().map(|token| &token["id"]).collect();
        assert_eq!(json!(ids), line["greedy"]["tokens"]);
        assert_eq!(record["timings"]["steps"], tokens.len());
        for time in ["vision", "prompt", "decode", "steps_per_second"] {
            assert!(record["timings"][time].as_f64().unwrap() > 0.0, "{record}");
        }
    }
    assert_eq!(found.len(), 2);
    // One picture, seen once.
    assert_eq!(found[0]["timings"]["vision"], found[1]["timings"]["vision"]);

    let (out, _) = expect(&demo(&[SCENE, "<OD>", "--format", "json", "--sequences", "3"]), 0);
    let list: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert_eq!((list.len(), list[0]["alternatives"].as_array().unwrap().len()), (1, 2));
    assert!(list[0].get("tokens").is_none());
}

#[test]
fn pictures_are_files_folders_and_patterns() {
    let all: Vec<String> = (1..=6).map(|at| format!("demo/images/scene_{at}.png")).collect();
    let args = |more: &[&'static str]| {
        demo(&[more, &["-t", "region_proposal", "--format", "jsonl", "-n", "3"]].concat())
    };
    for named in [
        &["demo/images"][..],
        &["demo/images/*.png"],
        &["demo/images/scene_[1-4].png", "demo/images/scene_5.png", "demo/images/scene_6.png"],
    ] {
        let (out, _) = expect(&args(named), 0);
        let images: Vec<Value> = records(&out).iter().map(|record| record["image"].clone()).collect();
        assert_eq!(json!(images), json!(all), "{named:?}");
    }
    // For people each answer has its heading.
    let (out, _) =
        expect(&demo(&["demo/images/scene_1.png", "demo/images/scene_2.png", "<CAPTION>", "<OCR>"]), 0);
    let headings: Vec<&str> = out.lines().filter(|line| line.starts_with("demo/")).collect();
    assert_eq!(
        headings,
        [
            "demo/images/scene_1.png <CAPTION>",
            "demo/images/scene_1.png <OCR>",
            "demo/images/scene_2.png <CAPTION>",
            "demo/images/scene_2.png <OCR>"
        ]
    );
}

#[test]
fn one_bad_picture_costs_only_itself() {
    let folder = Folder::new("bad_picture");
    let bad = folder.path("bad.png");
    fs::write(&bad, "no picture").unwrap();
    for format in ["text", "json", "jsonl", "hf"] {
        let (out, err) = expect(&demo(&[&bad, SCENE, "<OCR>", "--format", format]), 1);
        assert!(err.contains(&format!("error: {bad}: ")), "{err}");
        assert!(err.contains("error: 1 of 2 pictures failed"), "{err}");
        assert!(out.contains("TAXI"), "{out}");
        let failed = match format {
            "text" => continue,
            "json" => serde_json::from_str::<Vec<Value>>(&out).unwrap(),
            _ => records(&out),
        };
        assert_eq!((failed.len(), &failed[0]["image"]), (2, &json!(bad)), "{out}");
        assert!(failed[0]["error"].as_str().unwrap().len() > 10);
    }
    // A region that is not in the picture is known only when the picture is.
    let outside = demo(&[
        SCENE,
        "demo/images/scene_2.png",
        "-t",
        "region_to_ocr",
        "-t",
        "ocr",
        "--region",
        "500,10,570,200",
        "-f",
        "jsonl",
    ]);
    let (out, _) = expect(&outside, 1);
    let found = records(&out);
    assert!(found[0].get("answer").is_some() && found[1].get("answer").is_some(), "{out}");
    assert!(found[2]["error"].as_str().unwrap().contains("outside"), "{out}");
    assert_eq!(found[2]["prompt"], "<REGION_TO_OCR>");
    assert!(found[3].get("answer").is_some(), "{out}");
}

#[test]
fn a_missing_picture_costs_only_itself() {
    let folder = Folder::new("missing_picture");
    let missing = folder.path("nothere.png");
    for format in ["text", "json", "jsonl", "hf"] {
        let (out, err) = expect(&demo(&[SCENE, &missing, SCENE, "<OCR>", "--format", format]), 1);
        assert!(err.contains(&format!("error: cannot read {missing}: ")), "{err}");
        assert!(err.contains("error: 1 of 3 pictures failed"), "{err}");
        let found = match format {
            "text" => {
                assert_eq!(out.matches("TAXI").count(), 2, "{out}");
                continue;
            }
            "json" => serde_json::from_str::<Vec<Value>>(&out).unwrap(),
            _ => records(&out),
        };
        let errors: Vec<bool> = found.iter().map(|record| record.get("error").is_some()).collect();
        assert_eq!(errors, [false, true, false], "{out}");
        assert_eq!(found[1]["image"], *missing);
    }
    let empty = folder.path("*.jpg");
    let (_, err) = expect(&demo(&[SCENE, &empty, "<OCR>"]), 1);
    assert!(err.contains("nothing that the pattern matches"), "{err}");
    let (_, err) = expect(&demo(&[SCENE, "od", "<OCR>"]), 1);
    assert!(err.contains("as a task it is written -t od"), "{err}");
    expect(&demo(&[&missing, &empty, "<OCR>"]), 2);
}

#[test]
fn a_picture_that_is_too_large_names_the_option() {
    let (_, run) = expect(&demo(&[SCENE, "<OCR>", "--max-pixels", "1000"]), 1);
    let (_, bench) = expect(&["bench", "-m", "demo", "-i", SCENE, "--max-pixels", "1000"], 2);
    for err in [run, bench] {
        assert!(err.contains("575x431 pixels, and the limit is 1000"), "{err}");
        assert!(err.contains("--max-pixels") && !err.contains("max_pixels"), "{err}");
    }
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_device_that_is_not_built_in_is_a_bad_request() {
    for command in [&["run", "-m", "demo", SCENE, "<OCR>"][..], &["doctor", "-m", "demo"]] {
        let (_, err) = expect(&[command, &["--device", "cuda"]].concat(), 2);
        assert!(err.contains("built without cuda: build it with --features cuda"), "{err}");
    }
}

#[test]
fn every_broken_file_is_an_error_and_nothing_more() {
    let bad = root().join("../shared/assets/images/bad");
    if !bad.is_dir() {
        eprintln!("SKIPPED: {} is not there", bad.display());
        return;
    }
    let mut files: Vec<String> =
        fs::read_dir(bad).unwrap().map(|entry| entry.unwrap().path().to_str().unwrap().to_owned()).collect();
    files.sort();
    let mut args = demo(&["-t", "ocr", "-f", "jsonl", "-n", "2"]);
    args.extend(files.iter().map(String::as_str));
    args.push(SCENE);
    let (out, err) = expect(&args, 1);
    let found = records(&out);
    assert_eq!(found.len(), files.len() + 1);
    for (record, file) in found.iter().zip(&files) {
        assert!(record["error"].is_string() && record["image"] == **file, "{record}");
    }
    assert!(found[files.len()].get("answer").is_some());
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn a_bad_request_is_told_before_any_work() {
    let folder = Folder::new("bad_request");
    let empty = folder.path("empty");
    fs::create_dir(&empty).unwrap();
    let file = folder.path("file.png");
    fs::copy(root().join(SCENE), &file).unwrap();
    let nowhere = folder.path("no/such/folder.png");
    let pattern = folder.path("no/such/{name}.png");
    for (args, hint) in [
        (&["run", "--model", "demo", SCENE][..], "no task is given"),
        (&["run", "--model", "demo", "<OD>"], "no picture is named"),
        (&["run", SCENE, "<OD>"], "--model <DIR|demo>"),
        (&["run", "--model", "demo"], "<PICTURE|TASK>"),
        (
            &["run", "--model", "/no/such/model", SCENE, "<OD>"],
            "--model: cannot read /no/such/model: No such file",
        ),
        (&["run", "--model", SCENE, SCENE, "<OD>"], "is a file: a checkpoint is a folder"),
        (&["run", "--model", "demo", "/no/such.png", "<OD>"], "/no/such.png: No such file"),
        (&["run", "--model", "demo", "demo/*.jpg", "<OD>"], "nothing that the pattern matches"),
        (&["run", "--model", "demo", "", "<OD>"], "empty name"),
        (&["run", "--model", "demo", &empty, "<OD>"], "holds no pictures"),
        (&["run", "--model", "demo", SCENE, "<ODD>"], "<REGION_TO_OCR>"),
        (&["run", "--model", "demo", SCENE, "<VQA>what?"], "--as KIND"),
        (&["run", "--model", "demo", SCENE, "-t", "what?"], "--as KIND"),
        (&["run", "--model", "demo", SCENE, "<OPEN_VOCABULARY_DETECTION>"], "--input TEXT"),
        (&["run", "--model", "demo", SCENE, "<REGION_TO_OCR>"], "--region X1,Y1,X2,Y2"),
        (&["run", "--model", "demo", SCENE, "<OD>a car"], "takes no input"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--input", "x"], "no task takes it"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--category", "x"], "no task takes it"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--region", "1,2,3,4"], "no task takes it"),
        (&["run", "--model", "demo", SCENE, "<REGION_TO_OCR>", "--region", "1,2,3"], "X1,Y1,X2,Y2"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--tokens"], "--format json"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--device", "abacus"], "a device is cpu"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--threads", "0"], "1 or more"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--threads", "257"], "256 at most"),
        (&["run", "--model", "demo", SCENE, "<REGION_TO_OCR>", "-r", "nan,1,2,3"], "X1,Y1,X2,Y2"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--sample", "--temperature", "-1"], "temperature is -1"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--overlay", "x-{nam}.png"], "{nam} stands for nothing"),
        (&["run", "--model", "demo", SCENE, "ocr"], "-t ocr"),
        (&["run", "--model", "demo", "ocr", "<OD>"], "-t ocr"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--beams", "0"], "beams is 0"),
        (&["run", "--model", "demo", SCENE, "<OD>", "-n", "100000"], "100000 new tokens"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--sequences", "4"], "4 sequences"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--temperature", "2"], "--sample"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--sample", "--beams", "3"], "3 beams"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--sample", "--top-p", "2"], "top_p is 2"),
        (&["run", "--model", "demo", SCENE, "<CAPTION>", "--overlay", "x.png"], "no places to draw"),
        (&["run", "--model", "demo", SCENE, "<OD>", "--overlay", "x.jpg"], "ends in .png"),
        (
            &["run", "--model", "demo", SCENE, "<OD>", "--overlay", &nowhere],
            "no/such does not exist; make it",
        ),
        (
            &["run", "--model", "demo", SCENE, "<OD>", "--overlay", &pattern],
            "no/such does not exist; make it",
        ),
        // Before the checkpoint is looked for.
        (&["run", "--model", "/no/model", SCENE, "<OD>", "--overlay", &nowhere], "no/such does not exist"),
        (&["run", "--model", "demo", &file, "<OD>", "--overlay", &file], "is one of the pictures"),
        (
            &["run", "--model", "demo", SCENE, "<OD>", "-t", "region_proposal", "--overlay", "x.png"],
            "{name} and {task}",
        ),
        (
            &["run", "--model", "demo", "demo/images", "<OD>", "--overlay", "x-{task}.png"],
            "{name} and {task}",
        ),
        (&["doctor", "--model", "/no/such/model"], "/no/such/model: No such file"),
        (&["doctor", "--model", SCENE], "is a file: a checkpoint is a folder"),
        (&["bench", "--model", "/no/such/model", "-i", SCENE], "cannot read /no/such/model: No such file"),
        (&["bench", "--model", "demo/", "-i", SCENE], "did you mean demo/checkpoint?"),
        (&["run", "--model", "demo/", SCENE, "<OD>"], "did you mean demo/checkpoint?"),
        (&["run", "--model", "./demo", SCENE, "<OD>"], "did you mean ./demo/checkpoint?"),
    ] {
        let (out, err) = expect(args, 2);
        assert!(out.is_empty() && err.contains(hint), "{args:?}\n{out}\n{err}");
    }
    let long = format!("<OPEN_VOCABULARY_DETECTION>{}", "a star ".repeat(300));
    let (_, err) = expect(&demo(&[SCENE, &long]), 2);
    assert!(err.contains("ask in fewer words"), "{err}");
    assert!(!root().join("x.png").exists());
    assert_eq!(folder.files(), ["empty", "file.png"]);
}

#[test]
fn a_name_on_the_hub_is_told_from_a_folder() {
    for (model, told) in [
        ("microsoft/Florence-2-base", true),
        ("https://huggingface.co/microsoft/Florence-2-base", true),
        ("./microsoft/Florence-2-base", false),
        ("/microsoft/Florence-2-base", false),
        ("models/microsoft/Florence-2-base", false),
        ("Florence-2-base", false),
    ] {
        for args in [
            &["run", "-m", model, SCENE, "<OD>"][..],
            &["bench", "-m", model, "-i", SCENE],
            &["doctor", "-m", model],
        ] {
            let (_, err) = expect(args, 2);
            assert!(err.contains(&format!("--model: cannot read {model}: ")), "{err}");
            for hint in [
                "models are not downloaded",
                "`hf download microsoft/Florence-2-base --local-dir Florence-2-base`",
                "`git clone https://huggingface.co/microsoft/Florence-2-base`",
            ] {
                assert_eq!(err.contains(hint), told, "{err}");
            }
        }
    }
}

#[test]
fn the_only_checkpoint_within_a_folder_is_named() {
    let folder = Folder::new("within");
    let model = folder.0.to_str().unwrap();
    let args = ["run", "-m", model, SCENE, "<OD>"];
    let with = |name: &str| {
        fs::create_dir_all(folder.0.join(name)).unwrap();
        fs::write(folder.path(&format!("{name}/config.json")), "{}").unwrap();
    };
    let (_, err) = expect(&args, 1);
    assert!(!err.contains("did you mean"), "{err}");
    with("one");
    let (_, err) = expect(&args, 2);
    assert!(err.contains(&format!("config.json in it; did you mean {model}/one?")), "{err}");
    // Of two, either may be meant.
    with("two");
    let (_, err) = expect(&args, 1);
    assert!(!err.contains("did you mean"), "{err}");
    with("checkpoint");
    let (_, err) = expect(&args, 2);
    assert!(err.contains(&format!("did you mean {model}/checkpoint?")), "{err}");
}

/// As a clone without Git LFS and a download without a login leave them.
#[test]
fn what_stands_in_the_place_of_a_file_is_named() {
    let checkpoint = root().join("demo/checkpoint");
    let files = ["config.json", "tokenizer.json", "preprocessor_config.json", "processor_config.json"];
    let folder = Folder::new("substitute")
        .with_copies(&checkpoint, &files)
        .with_copies(&checkpoint, &["model.safetensors"]);
    let model = folder.0.to_str().unwrap();
    for (content, hint) in [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            "is a pointer of Git LFS; `git lfs pull` fetches the file",
        ),
        ("<!doctype html><html></html>", "is a web page, "),
    ] {
        for file in files {
            fs::write(folder.path(file), content).unwrap();
            let (_, err) = expect(&["run", "-m", model, SCENE, "<OD>"], 1);
            assert!(err.contains(hint) && err.contains(&folder.path(file)), "{file}: {err}");
            let (out, _) = expect(&["doctor", "-m", model], 1);
            let row = out.lines().find(|line| line.starts_with("wrong") && line.contains(file)).unwrap();
            assert!(row.contains(hint), "{file}: {row}");
            fs::copy(checkpoint.join(file), folder.path(file)).unwrap();
        }
    }
    // A mark at the beginning is no harm.
    for file in files {
        let text = fs::read_to_string(folder.path(file)).unwrap();
        fs::write(folder.path(file), format!("\u{feff}{text}")).unwrap();
    }
    expect(&["doctor", "-m", model], 0);
}

#[test]
fn inputs_are_typed_behind_the_marker_or_as_options() {
    let ask = |args: &[&str]| {
        let (out, _) = expect(&demo(&[&[SCENE, "-f", "jsonl", "-n", "16"], args].concat()), 0);
        let prompts: Vec<String> =
            records(&out).iter().map(|record| record["prompt"].as_str().unwrap().to_owned()).collect();
        prompts
    };
    let vocabulary = "<OPEN_VOCABULARY_DETECTION>a green star";
    assert_eq!(ask(&[vocabulary]), [vocabulary]);
    assert_eq!(ask(&["-t", "open_vocabulary_detection", "-i", "a green star"]), [vocabulary]);
    assert_eq!(
        ask(&["-t", "<OPEN_VOCABULARY_DETECTION>", "-c", "star", "-c", "circle", "<OD>"]),
        ["<OPEN_VOCABULARY_DETECTION>star<and>circle", "<OD>"]
    );
    // In pixels of the picture, which has 575x431.
    let region = "<REGION_TO_CATEGORY><loc_100><loc_201><loc_300><loc_401>";
    assert_eq!(ask(&["-t", "region_to_category", "-r", "57.8,87,173,173"]), [region]);
    assert_eq!(ask(&["-t", "region_to_category", "-i", "<loc_100><loc_201><loc_300><loc_401>"]), [region]);
    assert_eq!(ask(&[region]), [region]);
}

#[test]
fn a_raw_prompt_is_asked_word_for_word() {
    let (out, err) =
        expect(&demo(&[SCENE, "--as", "quads", "<VQA>What is this?", "<OD>", "-f", "jsonl", "-n", "4"]), 0);
    let found = records(&out);
    assert_eq!((&found[0]["prompt"], &found[0]["task"]), (&json!("<VQA>What is this?"), &Value::Null));
    assert_eq!(found[0]["kind"], "quads");
    assert!(err.contains("with --as, <OD> is asked word for word"), "{err}");
    let (out, _) = expect(&demo(&[SCENE, "--as", "text", "<VQA>What is this?", "-f", "hf", "-n", "4"]), 0);
    assert!(records(&out)[0]["<VQA>"].is_string(), "{out}");
}

#[test]
fn an_answer_that_is_cut_off_says_so() {
    let (_, err) = expect(&demo(&[SCENE, "<MORE_DETAILED_CAPTION>", "-n", "5"]), 0);
    assert!(err.contains("greatest length, 5 tokens"), "{err}");
    let (out, _) = expect(&demo(&[SCENE, "<MORE_DETAILED_CAPTION>", "-n", "5", "-f", "jsonl"]), 0);
    assert_eq!(records(&out)[0]["finish"], "length");
}

#[test]
fn samples_are_drawn_by_their_seed() {
    let draw = |seed: &str| {
        let args = [
            SCENE,
            "<DETAILED_CAPTION>",
            "--sample",
            "--temperature",
            "3",
            "--top-k",
            "0",
            "--seed",
            seed,
            "-n",
            "12",
        ];
        expect(&demo(&args), 0).0
    };
    assert_eq!(draw("7"), draw("7"));
    assert_ne!(draw("7"), draw("8"));
}

#[test]
fn half_precision_gives_the_same_boxes() {
    let boxes = |dtype: &str| expect(&demo(&[SCENE, "<OD>", "-f", "hf", "--dtype", dtype]), 0).0;
    assert_eq!(boxes("f16"), boxes("f32"));
}

#[test]
fn overlays_are_drawn_beside_the_answers() {
    let folder = Folder::new("overlays");
    let file = folder.path("one.png");
    expect(&demo(&[SCENE, "<OD>", "<CAPTION>", "--overlay", &file]), 0);
    assert!(fs::read(&file).unwrap().starts_with(b"\x89PNG"));
    let into = folder.path("new/");
    expect(
        &demo(&["demo/images/scene_[12].png", "<OD>", "<OCR>", "<REGION_PROPOSAL>", "--overlay", &into]),
        0,
    );
    assert_eq!(
        Folder::files(&Folder(folder.0.join("new"))),
        ["scene_1.od.png", "scene_1.region_proposal.png", "scene_2.od.png", "scene_2.region_proposal.png"]
    );
    let shared = Folder::new("overlays_shared");
    let (png, other) = (shared.path("a.png"), shared.path("A.x.png"));
    fs::copy(root().join(SCENE), &png).unwrap();
    fs::copy(root().join(SCENE), shared.path("a.jpg")).unwrap();
    fs::copy(root().join(SCENE), &other).unwrap();
    let into = shared.path("out/");
    expect(&demo(&[&png, &shared.path("a.jpg"), &other, "<OD>", "--overlay", &into]), 0);
    assert_eq!(Folder::files(&Folder(shared.0.join("out"))), ["A.x.od.png", "a-1.od.png", "a-2.od.png"]);
    let pattern = folder.path("{task}-of-{name}.png");
    let twice =
        ["<OPEN_VOCABULARY_DETECTION>star", "<OPEN_VOCABULARY_DETECTION>circle", "--overlay", &pattern];
    expect(&demo(&[&[SCENE][..], &twice].concat()), 0);
    assert_eq!(
        folder.files(),
        [
            "one.png",
            "open_vocabulary_detection-1-of-scene_1.png",
            "open_vocabulary_detection-2-of-scene_1.png"
        ]
    );
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let args = demo(&["demo/images", "-t", "od", "-t", "caption", "-f", "jsonl"]);
    let mut child = program(&args).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(records(&first)[0]["task"], "<OD>");
    assert!(output.status.success());
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.lines().all(|line| line.starts_with("note: ")), "{err}");
}

/// On a terminal a caption is written as it comes; what stands there in the end is the same.
#[test]
fn a_terminal_gets_the_same_text() {
    let binary = env!("CARGO_BIN_EXE_florence2");
    let ask = format!(
        "{binary} run -m demo {SCENE} demo/images/scene_2.png '<CAPTION>' '<OD>' --greedy 2>/dev/null"
    );
    let script = Command::new("script")
        .args(["-q", "-e", "-c", &ask, "/dev/null"])
        .current_dir(root())
        .stdin(Stdio::null())
        .output();
    let Ok(terminal) = script else {
        eprintln!("SKIPPED: there is no program `script` to make a terminal");
        return;
    };
    let (plain, _) = expect(&demo(&[SCENE, "demo/images/scene_2.png", "<CAPTION>", "<OD>", "--greedy"]), 0);
    assert_eq!(String::from_utf8(terminal.stdout).unwrap().replace("\r\n", "\n"), plain);
}

#[test]
fn the_doctor_says_what_is_there_and_what_is_not() {
    let (out, err) = expect(&["doctor"], 0);
    assert!(out.contains(env!("CARGO_PKG_VERSION")) && out.contains("candle") && err.is_empty(), "{out}");
    let (out, _) = expect(&["doctor", "--model", "demo/checkpoint"], 0);
    for hint in ["192x192", "1558 tokens", "<loc_0> is 537", "0 banned phrases", "not used", "loads, in"] {
        assert!(out.contains(hint), "{hint}\n{out}");
    }
    let (out, _) = expect(&["doctor", "--model", "demo", "--format", "json"], 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["model"]["loads"], &report["demo"]), (&json!(true), &json!(true)));

    // What the same weights are as a folder, and what that has in other rows.
    let rows = |model: &str| {
        let (out, _) = expect(&["doctor", "--model", model, "--format", "json"], 0);
        serde_json::from_str::<Value>(&out).unwrap()["model"]["files"].as_array().unwrap().clone()
    };
    let folder = rows("demo/checkpoint");
    let weights = folder.iter().find(|file| file["file"] == "weights").unwrap()["what"].as_str().unwrap();
    let weights = weights.replace("model.safetensors", "in this program");
    assert!(weights.contains("layout, ") && weights.contains(" tensors, "), "{weights}");
    let built_in = rows("demo");
    assert_eq!(built_in[0]["what"], format!("{weights}; pictures of 192x192, 1558 tokens"));
    // With a slash it is a folder, and the one of that name has another within that holds a config.json.
    let (out, _) = expect(&["doctor", "-m", "demo/"], 1);
    assert!(out.contains("missing") && out.contains("does not load"), "{out}");
    assert!(out.contains("; did you mean demo/checkpoint?"), "{out}");

    let folder = Folder::new("doctor");
    let checkpoint = root().join("demo/checkpoint");
    let (out, err) = expect(&["doctor", "--model", folder.0.to_str().unwrap()], 1);
    for file in ["config.json", "tokenizer.json", "vocab.json", "preprocessor_config.json"] {
        assert!(out.contains(file), "{file}\n{out}");
    }
    assert!(out.contains("does not load") && err.contains("does not load"), "{out}\n{err}");
    let needed = ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"];
    let folder = folder.with_copies(&checkpoint, &needed);
    expect(&["doctor", "-m", folder.0.to_str().unwrap()], 0);
    for (file, content) in [
        ("preprocessor_config.json", "{}"),
        ("tokenizer.json", "{\"model\": 7}"),
        ("config.json", "[]"),
        ("model.safetensors", "x"),
    ] {
        fs::write(folder.path(file), content).unwrap();
        let (out, _) = expect(&["doctor", "-m", folder.0.to_str().unwrap(), "-f", "json"], 1);
        let report: Value = serde_json::from_str(&out).unwrap();
        let files = report["model"]["files"].as_array().unwrap();
        let wrong: Vec<&Value> =
            files.iter().filter(|file| file["state"] == "wrong").map(|file| &file["file"]).collect();
        let line = if file == "model.safetensors" { "weights" } else { file };
        // The others are judged all the same.
        assert_eq!(wrong, [line], "{out}");
        assert_eq!(files.iter().filter(|file| file["state"] == "ok").count(), 3, "{out}");
        assert!(report["model"]["error"].as_str().unwrap().len() > 10, "{file}: {out}");
        // And what runs says the same.
        let model = folder.0.to_str().unwrap();
        let (_, err) = expect(&["run", "-m", model, SCENE, "<OD>"], 1);
        assert!(err.contains("florence2 doctor") && !err.contains("panicked"), "{file}: {err}");
        fs::copy(checkpoint.join(file), folder.path(file)).unwrap();
    }
}

#[test]
fn help_completions_and_manual_know_the_commands() {
    let (help, _) = expect(&["--help"], 0);
    let (bash, _) = expect(&["completions", "bash"], 0);
    for command in ["run", "doctor", "parse", "prompt", "tasks"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        assert!(
            bash.contains(&format!("florence2__{command}")) || bash.contains(&format!("__subcmd__{command}")),
            "{command}"
        );
        let (page, _) = expect(&["man", command], 0);
        assert!(page.contains(".SH \"EXIT STATUS\"\n0 done; 1 ") || command == "tasks", "{page}");
    }
    let (run, _) = expect(&["run", "--help"], 0);
    for option in
        ["--overlay", "--beams", "--no-repeat-ngram", "--dtype", "--ignore-orientation", "Exit status"]
    {
        assert!(run.contains(option), "{option}");
    }
    assert!(run.lines().all(|line| line.chars().count() <= 100), "{run}");
}

const COMMANDS: [&str; 6] = ["run", "bench", "doctor", "parse", "prompt", "tasks"];

/// The examples of a command, as `--help` has them in a terminal of so many columns.
fn help(command: &str, columns: &str) -> (String, Vec<String>) {
    let output = program(&[command, "--help"]).env("COLUMNS", columns).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let examples = help.lines().filter(|line| line.starts_with("  florence2 "));
    (help.clone(), examples.map(str::to_owned).collect())
}

#[test]
fn help_breaks_lines_where_they_are_full() {
    for (columns, width) in [("80", 80), ("100", 100)] {
        for command in COMMANDS {
            let (help, _) = help(command, columns);
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2).filter(|pair| !pair.iter().any(|line| line.starts_with(' '))) {
                let Some(word) = pair[1].split(' ').next().filter(|word| !word.is_empty()) else { continue };
                let longer = pair[0].chars().count() + 1 + word.chars().count();
                assert!(pair[0].is_empty() || longer > width, "{command} at {width}: {pair:?}");
                assert!(pair[0].chars().count() <= width, "{command} at {width}: {pair:?}");
            }
        }
    }
}

#[test]
fn examples_can_be_copied() {
    for command in COMMANDS {
        let (_, examples) = help(command, "80");
        assert_eq!(help(command, "100").1, examples, "{command}");
        assert_eq!(examples.is_empty(), ["bench", "doctor", "tasks"].contains(&command), "{command}");
        // Of those of the manual page, lines are not filled.
        let (page, _) = expect(&["man", command], 0);
        let kept = page.split("\n.nf\n").skip(1).map(|part| part.split("\n.fi\n").next().unwrap());
        let kept: Vec<String> =
            kept.flat_map(str::lines).map(|line| line.replace("\\-", "-").replace("\\*(Aq", "'")).collect();
        for example in examples {
            assert!(kept.contains(&example.trim_start().to_owned()), "{example}\n{page}");
        }
    }
}

#[test]
fn options_of_another_backend_are_refused() {
    for (args, message) in [
        (
            &["--variant", "fp16"][..],
            "error: --variant is an option of the backend tract or executorch: add --backend tract or executorch, or leave it \
             out\n",
        ),
        (
            &["--backend", "tract", "--dtype", "f16"],
            "error: --dtype is an option of the backend candle: add --backend candle, or leave it out\n",
        ),
        (
            &["--backend", "executorch", "--device", "candle-cpu"],
            "error: --device is an option of the backend candle: add --backend candle, or leave it out\n",
        ),
        (
            &["--backend", "tract", "--pte", "vision=a.pte"],
            "error: --pte is an option of the backend executorch: add --backend executorch, or leave it out\n",
        ),
    ] {
        let (out, err) = expect(&[&["run", "--model", "demo/onnx", SCENE, "<OD>"], args].concat(), 2);
        assert_eq!((out.as_str(), err.as_str()), ("", message));
    }
}

#[cfg(not(feature = "tract"))]
#[test]
fn a_backend_that_was_not_built_in_is_told() {
    let (_, err) = expect(&["run", "--backend", "tract", "--model", "demo/onnx", SCENE, "<OD>"], 2);
    assert_eq!(
        err,
        "error: this program was built without tract: build it with --features tract, or use --backend candle\n"
    );
}

/// A backend that needs an export of the demo finds it in the repository, and says where it is when it is elsewhere.
#[cfg(any(feature = "tract", feature = "executorch"))]
fn the_demo_is_the_repositorys(backend: &str) {
    let args = ["run", "--backend", backend, "--model", "demo", SCENE, "<CAPTION>"];
    assert_eq!(expect(&args, 0).0, expect(&demo(&[SCENE, "<CAPTION>"]), 0).0);
    expect(&["doctor", "--backend", backend, "--model", "demo"], 0);
    let picture = root().join(SCENE);
    let args = ["run", "--backend", backend, "--model", "demo", picture.to_str().unwrap(), "<CAPTION>"];
    let elsewhere = program(&args).current_dir(root().join("demo")).output().unwrap();
    let err = String::from_utf8(elsewhere.stderr).unwrap();
    assert_eq!(elsewhere.status.code(), Some(2), "{err}");
    assert!(err.contains("the repository's folder demo/"), "{err}");
}

#[cfg(not(feature = "executorch"))]
#[test]
fn executorch_that_was_not_built_in_is_told() {
    let (_, err) =
        expect(&["run", "--backend", "executorch", "--model", "demo/executorch", SCENE, "<OD>"], 2);
    assert_eq!(
        err,
        "error: this program was built without executorch: run tools/get-executorch.sh in the repository and build it with \
         --features executorch, or use --backend candle\n"
    );
}

#[cfg(feature = "executorch")]
#[test]
fn executorch_programs_give_the_stored_answer_and_are_examined() {
    let line = golden().into_iter().find(|line| line["ask"] == "scene_1.png <OD>").unwrap();
    let executorch = ["--backend", "executorch", "--model", "demo/executorch"];
    let run = |more: &[&str], code| expect(&[&["run", SCENE, "<OD>"][..], &executorch, more].concat(), code);
    let (out, err) = run(&["--format", "hf", "--greedy"], 0);
    assert_eq!((records(&out), err.as_str()), (vec![line["microsoft"].clone()], ""));

    let (out, _) = expect(&[&["doctor", "--format", "json"][..], &executorch].concat(), 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(report["backends"].as_array().unwrap().contains(&json!("executorch")));
    assert_eq!(report["executorch"]["version"], "1.5.1");
    assert_eq!(report["executorch"]["delegates"], json!(["XnnpackBackend"]));
    assert_eq!(report["model"]["loads"], true);
    let files = report["model"]["files"].as_array().unwrap();
    assert_eq!(files.iter().filter(|file| file["file"] == "program" && file["state"] == "ok").count(), 2);
    let (out, _) = expect(&[&["doctor"][..], &executorch].concat(), 0);
    assert!(out.contains("\nexecutorch 1.5.1; delegates: XnnpackBackend; "), "{out}");
    assert!(out.contains("with a cache; prompts of up to 40 tokens, answers of up to 160"), "{out}");

    the_demo_is_the_repositorys("executorch");
    let (_, err) = run(&["--variant", "q4"], 2);
    assert_eq!(err, "error: --variant: \"q4\" is none of fp32, fp16 and int8\n");
    let (_, err) = run(&["--pte", "text.pte"], 2);
    assert_eq!(
        err,
        "error: --pte: \"text.pte\" is not PART=FILE, with vision, encoder or decoder for PART\n"
    );
    let (_, err) = run(&["--max-new-tokens", "161"], 2);
    assert!(err.contains("161 new tokens do not fit into the 160 positions"), "{err}");
    let (_, err) = run(&["--variant", "int8"], 1);
    assert!(err.contains("the vision encoder is needed, vision_int8.pte, with "), "{err}");
    assert!(
        err.contains(
            "florence2 doctor --model demo/executorch --backend executorch --variant int8 says more"
        ),
        "{err}"
    );
    let (out, _) = expect(&[&["doctor", "--variant", "int8"][..], &executorch].concat(), 1);
    assert!(out.contains("missing  program"), "{out}");
    let (_, err) = run(&["--pte", "vision=text.pte"], 1);
    assert!(err.contains("text.pte has the methods cross, decoder, encoder, step"), "{err}");

    // The file that is to blame is marked in its row.
    let programs = root().join("demo/executorch");
    let folder = Folder::new("doctor-pte").with_copies_of(&programs);
    let model = folder.0.to_str().unwrap();
    for (file, content, row) in [
        ("config.json", "{", "config.json"),
        ("preprocessor_config.json", r#"{"size": 3}"#, "preprocessor_config.json"),
        ("text.pte", "<html>", "program"),
        ("vision_fp16.pte", "version https://git-lfs.github.com/spec/v1\n", "program"),
        ("manifest.json", "{", "program"),
    ] {
        fs::write(folder.path(file), content).unwrap();
        let (out, _) = expect(&["doctor", "--backend", "executorch", "-m", model, "-f", "json"], 1);
        let report: Value = serde_json::from_str(&out).unwrap();
        let files = report["model"]["files"].as_array().unwrap().iter();
        let wrong: Vec<&Value> =
            files.filter(|row| row["state"] == "wrong" || row["state"] == "missing").collect();
        assert_eq!(wrong.len(), 1, "{file}: {out}");
        assert_eq!(wrong[0]["file"], row, "{out}");
        assert!(row != "program" || wrong[0]["what"].as_str().unwrap().contains(file), "{out}");
        fs::copy(programs.join(file), folder.path(file)).unwrap();
    }
    expect(&["doctor", "--backend", "executorch", "-m", model], 0);
}

#[cfg(feature = "tract")]
#[test]
fn onnx_parts_give_the_stored_answer_and_are_examined() {
    let line = golden().into_iter().find(|line| line["ask"] == "scene_1.png <OD>").unwrap();
    let tract = ["--backend", "tract", "--model", "demo/onnx"];
    let args = [&["run", SCENE, "<OD>", "--format", "hf", "--greedy"][..], &tract].concat();
    let (out, _) = expect(&args, 0);
    assert_eq!(records(&out), [line["microsoft"].clone()]);

    let (out, _) = expect(&[&["doctor", "--format", "json"][..], &tract].concat(), 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(report["backends"].as_array().unwrap().contains(&json!("tract")));
    assert_eq!(report["model"]["loads"], true);
    let files = report["model"]["files"].as_array().unwrap();
    assert_eq!(files.iter().filter(|file| file["file"] == "part" && file["state"] == "ok").count(), 5);

    the_demo_is_the_repositorys("tract");
    let (_, err) = expect(&[&["run", SCENE, "<OD>", "--variant", "f16"][..], &tract].concat(), 2);
    assert!(err.contains("--variant: \"f16\" is none of fp32, fp16, quantized"), "{err}");
    let (_, err) = expect(&[&["run", SCENE, "<OD>", "--variant", "q4"][..], &tract].concat(), 1);
    assert!(err.contains("vision_encoder_q4.onnx is needed"), "{err}");
    assert!(
        err.contains("florence2 doctor --model demo/onnx --backend tract --variant q4 says more"),
        "{err}"
    );
    let (out, _) = expect(&[&["doctor", "--variant", "q4"][..], &tract].concat(), 1);
    assert!(out.contains("missing  part"), "{out}");

    // Each file that is to blame is marked in its row.
    let parts = root().join("demo/onnx");
    let folder = Folder::new("doctor-onnx").with_copies_of(&parts);
    let model = folder.0.to_str().unwrap();
    for (file, content, row) in [
        ("config.json", Some("{"), "config.json"),
        ("config.json", None, "config.json"),
        ("preprocessor_config.json", Some(r#"{"size": 3}"#), "preprocessor_config.json"),
        ("encoder_model_fp16.onnx", Some("<html>"), "part"),
        ("vision_encoder_fp16.onnx", Some("version https://git-lfs.github.com/spec/v1\n"), "part"),
    ] {
        match content {
            Some(content) => fs::write(folder.path(file), content).unwrap(),
            None => fs::remove_file(folder.path(file)).unwrap(),
        }
        let (out, _) = expect(&["doctor", "--backend", "tract", "-m", model, "-f", "json"], 1);
        let report: Value = serde_json::from_str(&out).unwrap();
        let files = report["model"]["files"].as_array().unwrap().iter();
        let wrong: Vec<&Value> =
            files.filter(|row| row["state"] == "wrong" || row["state"] == "missing").collect();
        assert_eq!(wrong.len(), 1, "{file}: {out}");
        assert_eq!(wrong[0]["file"], row, "{out}");
        assert!(row != "part" || wrong[0]["what"].as_str().unwrap().contains(file), "{out}");
        fs::copy(parts.join(file), folder.path(file)).unwrap();
    }
    expect(&["doctor", "--backend", "tract", "-m", model], 0);
}
