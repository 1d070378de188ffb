//! The demo checkpoint from a picture's file to an answer, beside what transformers makes of it.
#![cfg(all(feature = "candle", feature = "demo"))]
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};

use florence2::{
    Answer, AnswerKind, Candle, CandleModel, Dialect, EarlyStopping, Finish, Florence2, GenerationConfig,
    HfAnswer, Image, Output, OutputToken, Prompt, Seen, Task, VisionSeq2Seq,
};
use serde_json::Value;

fn demo(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo").join(file)
}

/// The checkpoint, with the pictures that it has seen.
struct Demo {
    florence: Florence2<CandleModel>,
    seen: HashMap<String, Seen<CandleModel>>,
}

/// One for all tests: they wait for each other, and see each picture once.
fn shared() -> MutexGuard<'static, Demo> {
    static DEMO: OnceLock<Mutex<Demo>> = OnceLock::new();
    let demo = DEMO.get_or_init(|| {
        let mut florence = Florence2::demo(Candle::default()).unwrap();
        let seen = see_all(&mut florence);
        Mutex::new(Demo { florence, seen })
    });
    // A test that failed leaves nothing half done in it.
    demo.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn golden(key: &str) -> Vec<Value> {
    let text = fs::read_to_string(demo("golden.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.filter(|line| line.get(key).is_some()).collect();
    assert!(!lines.is_empty(), "{key}");
    lines
}

/// The rules that all of the stored answers share.
fn config() -> GenerationConfig {
    GenerationConfig { max_new_tokens: Some(128), ..GenerationConfig::default() }
}

fn prompt(line: &Value) -> Prompt {
    if let Some(raw) = line["raw"].as_str() {
        return Prompt::raw(raw, AnswerKind::Text);
    }
    let task: Task = line["task"].as_str().unwrap().parse().unwrap();
    match line["input"].as_str() {
        Some(input) => Prompt::new(task, input).unwrap(),
        None => Prompt::new(task, ()).unwrap(),
    }
}

/// How far numbers may be from those that PyTorch computed in f32. The stored values have five digits after the point.
const F32: f32 = 1e-3;

fn assert_close(found: f32, expected: &Value, tolerance: f32, what: &str) {
    let expected = expected.as_f64().unwrap() as f32;
    assert!(
        (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
        "{what}: {found}, not {expected}"
    );
}

fn assert_sequence(tokens: &[OutputToken], score: f32, expected: &Value, tolerance: f32, what: &str) {
    let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    assert_eq!(ids, serde_json::from_value::<Vec<u32>>(expected["tokens"].clone()).unwrap(), "{what}");
    for (token, log_prob) in tokens.iter().zip(expected["log_probs"].as_array().unwrap()) {
        assert_close(token.log_prob, log_prob, tolerance, what);
    }
    assert_close(score, &expected["score"], tolerance, what);
}

/// Asks all that is stored, greedily and with beams. Tokens and texts are the same; log-probabilities and scores are as near as
/// that. How many answers there were.
fn check_answers<M: VisionSeq2Seq>(
    florence: &mut Florence2<M>,
    seen: &HashMap<String, Seen<M>>,
    tolerance: f32,
) -> usize {
    let mut compared = 0;
    for line in golden("ask") {
        let (what, prompt) = (line["ask"].as_str().unwrap(), prompt(&line));
        let seen = &seen[line["picture"].as_str().unwrap()];
        assert_eq!(serde_json::json!([seen.size().width(), seen.size().height()]), line["size"]);
        let ids = florence.prompt_ids(&prompt).unwrap();
        assert_eq!(serde_json::json!(ids), line["prompt_ids"], "{what}");
        for (key, config) in [("greedy", GenerationConfig { beams: 1, ..config() }), ("beams", config())] {
            let output = florence.ask(seen, &prompt, &config).unwrap();
            assert_sequence(&output.tokens, output.score, &line[key], tolerance, &format!("{what}, {key}"));
            assert_eq!(output.text, line["text"], "{what}, {key}");
            assert_eq!((output.finish, output.symptoms.len()), (Finish::EndOfSequence, 0), "{what}");
            compared += 1;
        }
    }
    compared
}

/// Shows it the pictures.
fn see_all<M: VisionSeq2Seq>(florence: &mut Florence2<M>) -> HashMap<String, Seen<M>> {
    let names = (1..=6).map(|at| format!("scene_{at}.png"));
    let see = |name: String| {
        let image = Image::open(demo("images").join(&name)).unwrap();
        let seen = florence.see(&image).unwrap();
        (name, seen)
    };
    names.map(see).collect()
}

#[test]
fn every_stored_answer_is_given_again() {
    let mut demo = shared();
    let Demo { florence, seen } = &mut *demo;
    assert_eq!(check_answers(florence, seen, F32), 178);
}

#[cfg(feature = "tract")]
#[test]
fn every_stored_answer_is_given_again_from_onnx_parts() {
    let mut florence = Florence2::load(demo("onnx"), florence2::Tract::default()).unwrap();
    let seen = see_all(&mut florence);
    assert_eq!(check_answers(&mut florence, &seen, F32), 178);
}

#[cfg(feature = "executorch")]
#[test]
fn every_stored_answer_is_given_again_from_executorch_programs() {
    use florence2::executorch::Form;
    for form in [Form::Cached, Form::Window] {
        let executorch = florence2::ExecuTorch { form: Some(form), ..florence2::ExecuTorch::default() };
        let mut florence = Florence2::load(demo("executorch"), executorch).unwrap();
        let seen = see_all(&mut florence);
        // The vision encoder computes in f16.
        assert_eq!(check_answers(&mut florence, &seen, 1e-2), 178, "{form:?}");
    }
}

/// Each suffix that is published: how many of the stored answers it gives, and with what margins it misses the others.
#[cfg(feature = "tract")]
#[test]
#[ignore = "needs FLORENCE2_DEMO_ONNX=FOLDER, which tools/export_onnx.py writes of demo/checkpoint in all dtypes"]
#[expect(clippy::print_stdout, reason = "it is run for its figures")]
fn every_variant_gives_the_stored_answers() {
    use florence2::tract::{Variant, Variants};
    let folder = std::env::var_os("FLORENCE2_DEMO_ONNX").expect("FLORENCE2_DEMO_ONNX names a folder");
    for variant in Variant::ALL {
        let tract = florence2::Tract { variants: Variants::all(variant), ..florence2::Tract::default() };
        let mut florence = Florence2::load(&folder, tract).unwrap();
        let seen = see_all(&mut florence);
        let (mut equal, mut all) = (0, 0);
        for line in golden("ask") {
            let (what, prompt) = (line["ask"].as_str().unwrap(), prompt(&line));
            let seen = &seen[line["picture"].as_str().unwrap()];
            let [greedy, beams] = [1, config().beams]
                .map(|beams| florence.ask(seen, &prompt, &GenerationConfig { beams, ..config() }).unwrap());
            let same = |output: &Output, key: &str| {
                let ids: Vec<u32> = output.tokens.iter().map(|token| token.id).collect();
                serde_json::json!(ids) == line[key]["tokens"]
            };
            // The margin rule: where two tokens were nearly as probable, another one may come of rounded weights.
            let is_close = line["margin"].as_f64().unwrap() < 1.0;
            if !same(&greedy, "greedy") {
                println!("{variant}: {what}, greedy: smallest margin {}", line["margin"]);
                assert!(is_close, "{variant}: {what}");
            }
            if !same(&beams, "beams") {
                println!("{variant}: {what}, beams: score {}, greedily {}", beams.score, greedy.score);
                // A search ends with as many finished beams as there are beams, and may do so before the best is
                // finished: which of the improbable ones finish first is a matter of their order, not of a margin.
                assert!(is_close || beams.score < greedy.score, "{variant}: {what}");
            }
            equal += usize::from(same(&greedy, "greedy")) + usize::from(same(&beams, "beams"));
            all += 2;
        }
        println!("{variant}: {equal} of {all} answers");
        assert!(all - equal <= 2, "{variant}: {equal} of {all}");
    }
}

#[test]
fn the_dictionaries_are_those_of_both_references() {
    for (key, dialect) in [("microsoft", Dialect::Microsoft), ("transformers", Dialect::Transformers)] {
        let mut florence = Florence2::demo(Candle::default()).unwrap().with_dialect(dialect);
        let mut seen = HashMap::new();
        for line in golden("ask") {
            let (what, picture) = (line["ask"].as_str().unwrap(), line["picture"].as_str().unwrap());
            let seen = seen.entry(picture.to_owned()).or_insert_with(|| {
                florence.see(&Image::open(demo("images").join(picture)).unwrap()).unwrap()
            });
            let output =
                florence.ask(seen, &prompt(&line), &GenerationConfig { beams: 1, ..config() }).unwrap();
            let answer = output.reference_answer();
            let task = output.prompt.task().unwrap();
            let dict = serde_json::to_string(&HfAnswer::new(task, &answer, dialect)).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&dict).unwrap(), line[key], "{what}");
            assert_eq!(output.answer.len(), answer.len(), "{what}");
            for found in output.answer.as_boxes().unwrap_or_default() {
                assert!(found.score.is_some_and(|score| score > 0.5 && score <= 1.0), "{what}: {found:?}");
            }
        }
    }
}

#[test]
fn every_stored_search_ends_the_same() {
    let mut demo = shared();
    let Demo { florence, seen } = &mut *demo;
    for line in golden("search") {
        let what = format!("{} {}", line["search"], line["rules"]);
        let mut config = config();
        for (rule, value) in line["rules"].as_object().unwrap() {
            let number = || usize::try_from(value.as_u64().unwrap()).unwrap();
            match rule.as_str() {
                "num_beams" => config.beams = number(),
                "num_return_sequences" => config.sequences = number(),
                "max_new_tokens" => config.max_new_tokens = Some(number()),
                "min_new_tokens" => config.min_new_tokens = number(),
                "no_repeat_ngram_size" => config.no_repeat_ngram = number(),
                "length_penalty" => config.length_penalty = value.as_f64().unwrap() as f32,
                "forced_bos_token_id" => config.force_bos = !value.is_null(),
                "forced_eos_token_id" => config.force_eos = !value.is_null(),
                "early_stopping" => {
                    config.early_stopping = match value {
                        Value::Bool(true) => EarlyStopping::WhenEnough,
                        Value::Bool(false) => EarlyStopping::Heuristic,
                        _ => EarlyStopping::WhenCertain,
                    };
                }
                other => panic!("{other}"),
            }
        }
        let seen = &seen[line["picture"].as_str().unwrap()];
        let output = florence.ask(seen, &prompt(&line), &config).unwrap();
        let Output { text, tokens, score, alternatives, .. } = &output;
        let others = alternatives.iter().map(|other| (&other.text, &other.tokens, other.score));
        let found: Vec<_> = std::iter::once((text, tokens, *score)).chain(others).collect();
        let sequences = line["sequences"].as_array().unwrap();
        assert_eq!(found.len(), sequences.len(), "{what}");
        for (at, (text, tokens, score)) in found.into_iter().enumerate() {
            assert_sequence(tokens, score, &sequences[at], F32, &format!("{what}, {at}"));
            assert_eq!(*text, line["texts"][at], "{what}, {at}");
        }
    }
}

#[test]
fn a_batch_gives_what_each_question_gives_alone() {
    let mut demo = shared();
    let Demo { florence, seen } = &mut *demo;
    let stored = golden("ask");
    for batch in golden("batch") {
        let lines: Vec<&Value> = batch["batch"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ask| stored.iter().find(|line| line["ask"] == *ask).unwrap())
            .collect();
        let prompts: Vec<Prompt> = lines.iter().map(|line| prompt(line)).collect();
        let asks: Vec<(&Seen<CandleModel>, &Prompt)> = lines
            .iter()
            .zip(&prompts)
            .map(|(line, prompt)| (&seen[line["picture"].as_str().unwrap()], prompt))
            .collect();
        for (key, config) in [("greedy", GenerationConfig { beams: 1, ..config() }), ("beams", config())] {
            let outputs = florence.ask_many(&asks, &config).unwrap();
            for (output, line) in outputs.iter().zip(&lines) {
                let what = line["ask"].as_str().unwrap();
                assert_sequence(&output.tokens, output.score, &line[key], F32, &format!("{what}, {key}"));
            }
        }
    }
}

#[test]
fn a_stream_joins_to_the_stored_answer() {
    let mut demo = shared();
    let Demo { florence, seen } = &mut *demo;
    for line in golden("ask") {
        let (what, prompt) = (line["ask"].as_str().unwrap(), prompt(&line));
        let seen = &seen[line["picture"].as_str().unwrap()];
        let (mut answer, mut text) = (Answer::empty(prompt.answer_kind()), "</s>".to_owned());
        let output = florence.ask_streaming(seen, &prompt, &config(), |piece| {
            text.push_str(&piece.text);
            answer.extend(piece.instances);
            ControlFlow::Continue(())
        });
        assert_eq!(
            (&text, &answer),
            (&line["text"].as_str().unwrap().to_owned(), &output.unwrap().answer),
            "{what}"
        );
    }
}

#[test]
fn the_folder_gives_what_the_built_in_one_gives() {
    let folder = demo("checkpoint");
    let mut loaded = Florence2::load(&folder, Candle::default()).unwrap();
    let image = Image::open(demo("images/scene_1.png")).unwrap();
    let seen = loaded.see(&image).unwrap();
    let line = golden("ask").swap_remove(5);
    let output = loaded.ask(&seen, &prompt(&line), &config()).unwrap();
    assert_eq!(output.text, line["text"]);
    // Another network's picture is refused, not mixed up.
    let mut other = Florence2::load(&folder, Candle::default()).unwrap();
    assert!(other.ask(&seen, &prompt(&line), &config()).is_err());
}
