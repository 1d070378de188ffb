//! From a picture to an answer, over networks that need no weights.
#![cfg(feature = "model")]
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod common;

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::Folder;
use florence2::dev::scripted::{Call, Script, Scripted};
use florence2::{
    Answer, AnswerKind, Ask, Backend, Dialect, Error, Finish, Florence2, GenerationConfig, HfAnswer, Image,
    ImageSize, Mismatch, ModelSpec, PixelValues, Preprocessor, Prompt, Sampling, Seen, SpecialIds, Task,
    Tokenizer, VisionSeq2Seq, parse_scored,
};
use serde_json::{Value, json};

fn demo(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/checkpoint").join(file)
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(&fs::read(demo("tokenizer.json")).unwrap()).unwrap()
}

fn preprocessor() -> Preprocessor {
    Preprocessor::from_json(&fs::read_to_string(demo("preprocessor_config.json")).unwrap()).unwrap()
}

fn spec() -> ModelSpec {
    ModelSpec {
        image_width: 192,
        image_height: 192,
        image_tokens: 37,
        vocabulary_size: 1558,
        max_prompt_tokens: 475,
        max_positions: 512,
        special: SpecialIds::FLORENCE2,
    }
}

fn size() -> ImageSize {
    ImageSize::from_width_height(1000, 500).unwrap()
}

fn picture() -> Image {
    Image::from_rgb8(1000, 500, vec![99; 1000 * 500 * 3]).unwrap()
}

fn scripted(script: Script) -> Florence2<Scripted> {
    Florence2::from_parts(Scripted::new(spec(), script), tokenizer(), preprocessor()).unwrap()
}

/// A network that says what it was taught, with the same probability for each token.
struct Parrot {
    spec: ModelSpec,
    says: Vec<u32>,
    prompts: Vec<Vec<u32>>,
}

impl Parrot {
    fn saying(text: &str) -> Florence2<Self> {
        // The tokenizer's ends are those that the network is forced to write.
        let says = tokenizer().encode(text).unwrap();
        let parrot = Self { spec: spec(), says, prompts: Vec::new() };
        Florence2::from_parts(parrot, tokenizer(), preprocessor()).unwrap()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the parrot is out of its cage")]
struct ParrotError;

impl VisionSeq2Seq for Parrot {
    type Image = ();
    type State = usize;
    type Error = ParrotError;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn encode_image(&mut self, pixels: &[PixelValues]) -> Result<Vec<()>, ParrotError> {
        Ok(vec![(); pixels.len()])
    }

    fn encode_prompt(&mut self, asks: &[Ask<'_, ()>]) -> Result<usize, ParrotError> {
        self.prompts.extend(asks.iter().map(|ask| ask.prompt.to_vec()));
        Ok(0)
    }

    fn decode_step(
        &mut self,
        state: &mut usize,
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<(), ParrotError> {
        let next = *self.says.get(*state).ok_or(ParrotError)?;
        *state += 1;
        for row in logits.chunks_exact_mut(logits.len() / tokens.len()) {
            row.fill(0.0);
            row[next as usize] = 12.0;
        }
        Ok(())
    }

    fn select_rows(&mut self, _: &mut usize, _: &[usize]) -> Result<(), ParrotError> {
        Ok(())
    }
}

fn prompt(text: &str) -> Prompt {
    text.parse().unwrap()
}

/// One prompt for each task.
fn prompts() -> Vec<Prompt> {
    Task::ALL
        .into_iter()
        .map(|task| match task.input_kind() {
            florence2::InputKind::Nothing => Prompt::new(task, ()),
            florence2::InputKind::Text => Prompt::new(task, "a red circle"),
            florence2::InputKind::Region => Prompt::new(task, "<loc_1><loc_2><loc_300><loc_400>"),
        })
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn an_answer_is_what_the_network_says_in_pixels_and_with_scores() {
    let mut florence =
        Parrot::saying("star<loc_0><loc_10><loc_20><loc_30>circle<loc_1><loc_2><loc_3><loc_4>");
    let seen = florence.see(&picture()).unwrap();
    assert_eq!(seen.size(), size());
    let output = florence.ask(&seen, &prompt("<OD>"), &GenerationConfig::greedy()).unwrap();
    assert_eq!(
        output.text,
        "</s><s>star<loc_0><loc_10><loc_20><loc_30>circle<loc_1><loc_2><loc_3><loc_4></s>"
    );
    let boxes = output.answer.as_boxes().unwrap();
    let found: Vec<_> = boxes.iter().map(|found| (found.label.as_str(), found.shape.to_array())).collect();
    assert_eq!(found, [("star", [0.5, 5.25, 20.5, 15.25]), ("circle", [1.5, 1.25, 3.5, 2.25])]);
    // The probability of a logit of 12 among 1557 of 0.
    let probability = 12_f32.exp() / (12_f32.exp() + 1557.0);
    for found in boxes {
        assert!((found.score.unwrap() - probability).abs() < 1e-4, "{found:?}");
        assert!((found.label_score.unwrap() - probability).abs() < 1e-4, "{found:?}");
    }
    assert_eq!((output.finish, output.symptoms.as_slice()), (Finish::EndOfSequence, &[][..]));
    assert_eq!(output.tokens.first().map(|token| (token.id, token.text.as_str())), Some((0, "<s>")));
    assert_eq!(output.tokens.last().map(|token| (token.id, token.text.as_str())), Some((2, "</s>")));
    let joined: String = output.tokens.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(format!("</s>{joined}"), output.text);
    let mean = output.tokens.iter().map(|token| token.log_prob).sum::<f32>() / output.tokens.len() as f32;
    assert!((output.score - mean).abs() < 1e-5, "{} {mean}", output.score);
    assert_eq!(output.timings.steps, output.tokens.len());
    assert!(output.timings.steps_per_second() > 0.0 && output.timings.total() >= output.timings.vision);
}

#[test]
fn the_network_is_asked_the_sentence_of_the_prompt() {
    for (text, dialect, asked) in [
        ("<CAPTION>", Dialect::Microsoft, "What does the image describe?"),
        ("<OPEN_VOCABULARY_DETECTION> a star ", Dialect::Microsoft, "Locate  a star  in the image."),
        ("<OPEN_VOCABULARY_DETECTION> a star ", Dialect::Transformers, "Locate a star in the image."),
        (
            "<REGION_TO_OCR><loc_1><loc_2><loc_3><loc_4>",
            Dialect::Microsoft,
            "What text is in the region <loc_1><loc_2><loc_3><loc_4>?",
        ),
    ] {
        let mut florence = Parrot::saying("x").with_dialect(dialect);
        let seen = florence.see(&picture()).unwrap();
        florence.ask(&seen, &prompt(text), &GenerationConfig::greedy()).unwrap();
        assert_eq!(florence.model().prompts, [tokenizer().encode(asked).unwrap()], "{text}");
    }
}

/// Complaints b002 and b083: the first label began with `</s>`.
#[test]
fn the_start_token_is_no_part_of_a_label_but_in_the_references_own_form() {
    let mut florence = Parrot::saying(
        "TAXI<loc_0><loc_0><loc_9><loc_0><loc_9><loc_9><loc_0><loc_9>A1<loc_0><loc_0><loc_8><loc_0><loc_8><loc_8><loc_0><loc_8>",
    );
    let seen = florence.see(&picture()).unwrap();
    let config = GenerationConfig { no_repeat_ngram: 0, ..GenerationConfig::greedy() };
    let output = florence.ask(&seen, &prompt("<OCR_WITH_REGION>"), &config).unwrap();
    let labels = |answer: &Answer| -> Vec<String> {
        answer.as_quads().unwrap().iter().map(|quad| quad.label.to_string()).collect()
    };
    assert_eq!(labels(&output.answer), ["TAXI", "A1"]);
    assert_eq!(labels(&output.reference_answer()), ["</s>TAXI", "A1"]);
    let mut florence = florence.with_dialect(Dialect::Transformers);
    let output = florence.ask(&seen, &prompt("<OCR_WITH_REGION>"), &config).unwrap();
    assert_eq!(labels(&output.reference_answer()), ["TAXI", "A1"]);
}

#[test]
fn a_raw_prompt_is_asked_word_for_word_and_read_as_its_kind() {
    let mut florence = Parrot::saying("star<loc_0><loc_10><loc_20><loc_30>");
    let seen = florence.see(&picture()).unwrap();
    for (kind, len) in [(AnswerKind::LabeledBoxes, 1), (AnswerKind::Quads, 0)] {
        let raw = Prompt::raw("<VQA>where is it?", kind);
        let output = florence.ask(&seen, &raw, &GenerationConfig::greedy()).unwrap();
        assert_eq!((output.kind(), output.answer.len()), (kind, len));
    }
    assert_eq!(florence.model().prompts[0], tokenizer().encode("<VQA>where is it?").unwrap());
}

#[test]
fn what_transformers_leaves_out_is_in_the_processors_configuration() {
    let text =
        "the sky<loc_1><loc_2><loc_3><loc_4>it<loc_1><loc_2><loc_3><loc_5>a star<loc_1><loc_2><loc_3><loc_6>";
    let ask = prompt("<CAPTION_TO_PHRASE_GROUNDING>a star");
    let config = GenerationConfig { no_repeat_ngram: 0, ..GenerationConfig::greedy() };
    let sky = || Some(BTreeSet::from(["the sky".to_owned()]));
    for (dialect, banned, expected) in [
        (Dialect::Microsoft, sky(), vec!["the sky", "a star"]),
        (Dialect::Transformers, None, vec!["the sky", "a star"]),
        (Dialect::Transformers, sky(), vec!["it", "a star"]),
        (Dialect::Transformers, Some(BTreeSet::new()), vec!["the sky", "it", "a star"]),
    ] {
        let mut florence = Parrot::saying(text).with_dialect(dialect).with_banned(banned);
        let seen = florence.see(&picture()).unwrap();
        let output = florence.ask(&seen, &ask, &config).unwrap();
        for answer in [&output.answer, &output.reference_answer()] {
            let labels: Vec<_> =
                answer.as_boxes().unwrap().iter().map(|found| found.label.as_str()).collect();
            assert_eq!(labels, expected, "{dialect:?}");
        }
    }
}

#[test]
fn a_picture_is_seen_once_for_all_its_prompts() {
    let mut florence = scripted(Script::default());
    let config = GenerationConfig { max_new_tokens: Some(4), ..GenerationConfig::default() };
    let seen = florence.see(&picture()).unwrap();
    for prompt in prompts() {
        florence.ask(&seen, &prompt, &config).unwrap();
    }
    let calls = &florence.model().calls;
    assert_eq!(calls.iter().filter(|call| matches!(call, Call::EncodeImage(_))).count(), 1);
    assert_eq!(calls.iter().filter(|call| matches!(call, Call::EncodePrompt(1))).count(), 15);
}

#[test]
fn a_batch_answers_as_each_alone() {
    let mut florence = scripted(Script { eos_bias: 4, ..Script::default() });
    let white = Image::from_rgb8(1000, 500, vec![255; 1000 * 500 * 3]).unwrap();
    let seen = florence.see_all([&picture(), &white]).unwrap();
    let prompts = prompts();
    let asks: Vec<(&Seen<Scripted>, &Prompt)> =
        prompts.iter().enumerate().map(|(at, prompt)| (&seen[at % 2], prompt)).collect();
    for config in [GenerationConfig::greedy(), GenerationConfig::default()] {
        let config = GenerationConfig { max_new_tokens: Some(12), ..config };
        let together = florence.ask_many(&asks, &config).unwrap();
        assert_eq!(together.len(), 15);
        for ((seen, prompt), batched) in asks.iter().zip(&together) {
            let alone = florence.ask(seen, prompt, &config).unwrap();
            assert_eq!(
                (&alone.text, &alone.answer, alone.finish),
                (&batched.text, &batched.answer, batched.finish)
            );
            assert_eq!((&alone.tokens, &batched.prompt), (&batched.tokens, *prompt));
            assert_eq!((alone.timings.batch, batched.timings.batch), (1, 15));
        }
        // The two pictures do not get the same answers.
        let swapped = florence.ask(&seen[1], &prompts[0], &config).unwrap();
        assert_ne!(swapped.text, together[0].text);
    }
    assert!(florence.ask_many(&[], &GenerationConfig::default()).unwrap().is_empty());
    assert!(florence.see_all([]).unwrap().is_empty());
}

/// The network writes tokens at random, which makes hostile answers of every kind.
#[test]
fn a_stream_joins_to_the_answer() {
    let mut pieces_of_text = 0;
    for seed in 0..6 {
        for dialect in [Dialect::Microsoft, Dialect::Transformers] {
            let script = Script { seed, eos_bias: -4, ..Script::default() };
            let mut florence = scripted(script).with_dialect(dialect);
            let seen = florence.see(&picture()).unwrap();
            for prompt in prompts() {
                let sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, seed };
                for config in [
                    GenerationConfig::greedy(),
                    GenerationConfig::default(),
                    GenerationConfig { sampling: Some(sampling), sequences: 2, ..GenerationConfig::greedy() },
                ] {
                    let config = GenerationConfig { max_new_tokens: Some(40), no_repeat_ngram: 0, ..config };
                    let mut text = String::from("</s>");
                    let mut answer = Answer::empty(prompt.answer_kind());
                    let output = florence
                        .ask_streaming(&seen, &prompt, &config, |piece| {
                            text.push_str(&piece.text);
                            answer.extend(piece.instances);
                            pieces_of_text += 1;
                            ControlFlow::Continue(())
                        })
                        .unwrap();
                    assert_eq!(text, output.text, "{prompt} {config:?}");
                    // Open vocabulary detection that finds nothing does not know of what kind.
                    if !(answer.is_empty() && output.answer.is_empty()) {
                        assert_eq!(answer, output.answer, "{prompt} {config:?}");
                    }
                    let whole = florence.ask(&seen, &prompt, &config).unwrap();
                    assert_eq!((whole.text, whole.answer), (output.text, output.answer));
                }
            }
        }
    }
    assert!(pieces_of_text > 10_000, "{pieces_of_text}");
}

#[test]
fn an_answer_can_be_broken_off() {
    let mut florence =
        Parrot::saying("a red star<loc_1><loc_2><loc_3><loc_4>a blue circle<loc_5><loc_6><loc_7><loc_8>");
    let seen = florence.see(&picture()).unwrap();
    let (mut text, mut found) = (String::from("</s>"), 0);
    let output = florence.ask_streaming(&seen, &prompt("<OD>"), &GenerationConfig::greedy(), |piece| {
        text.push_str(&piece.text);
        found += piece.instances.len();
        if found == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let output = output.unwrap();
    assert_eq!(output.finish, Finish::Cancelled);
    assert_eq!(
        (output.text.as_str(), text.as_str()),
        ("</s><s>a red star<loc_1><loc_2><loc_3><loc_4>", output.text.as_str())
    );
    assert_eq!(output.answer.len(), 1);
    let mut steps = 0;
    let outputs = florence.ask_observed(&[(&seen, &prompt("<OD>"))], &GenerationConfig::greedy(), |_| {
        steps += 1;
        if steps == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(outputs.unwrap()[0].tokens.len(), 3);
}

#[test]
fn several_sequences_come_back_in_order() {
    let mut florence = scripted(Script { seed: 3, eos_bias: 4, ..Script::default() });
    let seen = florence.see(&picture()).unwrap();
    let config =
        GenerationConfig { beams: 4, sequences: 4, max_new_tokens: Some(10), ..GenerationConfig::default() };
    let output = florence.ask(&seen, &prompt("<CAPTION>"), &config).unwrap();
    assert_eq!(output.alternatives.len(), 3);
    let mut scores = vec![output.score];
    for other in &output.alternatives {
        scores.push(other.score);
        assert_ne!(other.text, output.text);
        let scored: Vec<(&str, f32)> =
            other.tokens.iter().map(|token| (token.text.as_str(), token.log_prob)).collect();
        assert_eq!(other.answer, parse_scored(AnswerKind::Text, &scored, size(), &florence.parse_options()));
    }
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

#[test]
fn an_answer_that_was_cut_says_so() {
    let mut florence = Parrot::saying("a large red star");
    let seen = florence.see(&picture()).unwrap();
    let config = GenerationConfig { max_new_tokens: Some(3), ..GenerationConfig::greedy() };
    let output = florence.ask(&seen, &prompt("<CAPTION>"), &config).unwrap();
    assert_eq!((output.finish, output.tokens.len()), (Finish::Length, 3));
}

#[test]
fn a_bad_question_is_told_before_the_network_runs() {
    let mut florence = scripted(Script::default());
    let seen = florence.see(&picture()).unwrap();
    let greedy = GenerationConfig::greedy();
    let long = Prompt::new(Task::CaptionToPhraseGrounding, "star ".repeat(600).as_str()).unwrap();
    match florence.ask(&seen, &long, &greedy).unwrap_err() {
        Error::PromptTooLong { tokens, room } => assert!(tokens > 600 && room == 512 - 37, "{tokens} {room}"),
        error => panic!("{error:?}"),
    }
    let both = [(&seen, &prompt("<OD>")), (&seen, &long)];
    assert!(matches!(florence.ask_many(&both, &greedy), Err(Error::PromptTooLong { .. })));
    let none = GenerationConfig { beams: 0, ..GenerationConfig::default() };
    assert!(matches!(florence.ask(&seen, &prompt("<OD>"), &none), Err(Error::Generation(_))));
    assert_eq!(florence.model().calls, [Call::EncodeImage(1)]);

    // The tokenizer knows <image>, which is after the added tokens, and this network does not.
    let smaller = ModelSpec { vocabulary_size: 1557, ..spec() };
    let parrot = Parrot { spec: smaller, says: vec![0, 2], prompts: Vec::new() };
    let mut florence = Florence2::from_parts(parrot, tokenizer(), preprocessor()).unwrap();
    let seen = florence.see(&picture()).unwrap();
    let error = florence.ask(&seen, &Prompt::raw("<image>", AnswerKind::Text), &greedy).unwrap_err();
    assert!(matches!(error, Error::UnknownToken { id: 1557, vocabulary: 1557, .. }), "{error:?}");
    assert!(florence.model().prompts.is_empty());
}

#[test]
fn a_failure_of_the_network_keeps_its_cause() {
    let parrot = Parrot { spec: spec(), says: vec![0], prompts: Vec::new() };
    let mut florence = Florence2::from_parts(parrot, tokenizer(), preprocessor()).unwrap();
    let seen = florence.see(&picture()).unwrap();
    let error = florence.ask(&seen, &prompt("<OD>"), &GenerationConfig::greedy()).unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error:?}");
    assert!(error.source().unwrap().downcast_ref::<ParrotError>().is_some(), "{error:?}");
}

#[test]
fn parts_of_two_checkpoints_are_told_apart() {
    let with = |spec: ModelSpec| {
        Florence2::from_parts(Scripted::new(spec, Script::default()), tokenizer(), preprocessor())
    };
    let special = SpecialIds { eos: 3, ..SpecialIds::FLORENCE2 };
    for (spec, hint) in [
        (
            ModelSpec { image_width: 768, image_height: 768, ..spec() },
            "192x192, and the network takes 768x768",
        ),
        (ModelSpec { special, ..spec() }, "</s> is 2 to the tokenizer, and 3"),
        (ModelSpec { vocabulary_size: 1556, ..spec() }, "up to the id 1556"),
    ] {
        let error = with(spec).unwrap_err();
        assert!(matches!(error, Error::Mismatch(_)), "{error:?}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert!(with(spec()).is_ok());
    assert!(matches!(Mismatch::Vocabulary { tokenizer: 1, network: 1 }.into(), Error::Mismatch(_)));
}

/// Makes a scripted network of any folder that has a file `network`.
struct FromFile;

impl Backend for FromFile {
    type Model = Scripted;
    type Error = std::io::Error;

    fn load(&self, folder: &Path) -> Result<Scripted, Self::Error> {
        fs::read(folder.join("network"))?;
        Ok(Scripted::new(spec(), Script::default()))
    }
}

#[cfg(feature = "demo")]
impl florence2::BackendFromBytes for FromFile {
    fn load_bytes(
        &self,
        config: &str,
        safetensors: &[u8],
        size: (usize, usize),
    ) -> Result<Scripted, Self::Error> {
        let config: Value = serde_json::from_str(config)?;
        assert_eq!((&config["text_config"]["vocab_size"], size), (&json!(1558), (192, 192)));
        assert!(safetensors.len() > 1_000_000);
        Ok(Scripted::new(spec(), Script::default()))
    }
}

#[cfg(feature = "demo")]
#[test]
fn the_demo_is_in_the_program() {
    let florence = Florence2::demo(FromFile).unwrap();
    assert_eq!(florence.tokenizer().highest_id(), 1557);
}

/// The demo's files, with what stands for a network.
fn checkpoint(name: &str) -> Folder {
    let files = ["tokenizer.json", "preprocessor_config.json", "processor_config.json"];
    Folder::new(name).with_copies(&demo(""), &files).with("network", "")
}

fn load(folder: &Folder) -> Result<Florence2<Scripted>, Error> {
    Florence2::load(&folder.0, FromFile)
}

#[test]
fn a_folder_is_loaded_or_says_what_it_lacks() {
    let folder = checkpoint("whole");
    load(&folder).unwrap();
    // microsoft's layout has no such file.
    fs::remove_file(folder.0.join("processor_config.json")).unwrap();
    load(&folder).unwrap();

    let check = |file: &str, content: Option<&str>, expected: fn(&Error) -> bool| {
        let folder = checkpoint("broken");
        match content {
            Some(content) => fs::write(folder.0.join(file), content).unwrap(),
            None => fs::remove_file(folder.0.join(file)).unwrap(),
        }
        let error = load(&folder).unwrap_err();
        assert!(expected(&error), "{file}: {error:?}");
    };
    check("tokenizer.json", None, |error| matches!(error, Error::Tokenizer(_)));
    check("tokenizer.json", Some("{"), |error| matches!(error, Error::Tokenizer(_)));
    check("preprocessor_config.json", None, |error| matches!(error, Error::NoPreprocessor(_)));
    check("preprocessor_config.json", Some("{"), |error| matches!(error, Error::Preprocessor { .. }));
    check("processor_config.json", Some("{"), |error| matches!(error, Error::ProcessorConfig { .. }));
    check("processor_config.json", Some("{}"), |error| matches!(error, Error::ProcessorConfig { .. }));
    check("network", None, |error| {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
        matches!(error, Error::Load(_)) && cause.is_some()
    });

    let nowhere = Florence2::load("/no/such/folder", FromFile).unwrap_err();
    assert!(matches!(nowhere, Error::Read { .. }), "{nowhere:?}");
    let file = Florence2::load(demo("config.json"), FromFile).unwrap_err();
    assert!(matches!(file, Error::NotAFolder(_)), "{file:?}");
}

#[test]
fn the_processors_list_is_read_from_the_folder() {
    let folder = checkpoint("banned");
    let config = json!({"post_processor_config": {"phrase_grounding": {"banned_grounding_tokens": ["sky"]}}});
    fs::write(folder.0.join("processor_config.json"), config.to_string()).unwrap();
    let florence = load(&folder).unwrap().with_dialect(Dialect::Transformers);
    assert!(florence.parse_options().banned.contains("sky"));
    assert!(!florence.parse_options().banned.contains("it"));
    let florence = florence.with_dialect(Dialect::Microsoft);
    assert!(!florence.parse_options().banned.contains("sky"));
    assert!(florence.parse_options().banned.contains("it"));
}

#[test]
fn an_output_has_the_references_dictionary() {
    let mut florence =
        Parrot::saying("star<loc_0><loc_10><loc_20><loc_30>").with_dialect(Dialect::Transformers);
    let seen = florence.see(&picture()).unwrap();
    let output = florence.ask(&seen, &prompt("<OD>"), &GenerationConfig::greedy()).unwrap();
    let answer = output.reference_answer();
    let dict = HfAnswer::new(Task::ObjectDetection, &answer, output.dialect);
    let expected = json!({"<OD>": {"bboxes": [[0, 5, 20, 15]], "labels": ["star"]}});
    assert_eq!(serde_json::to_value(dict).unwrap(), expected);
}

/// A service keeps a checkpoint behind a lock, and answers cross threads.
const fn crosses_threads<T: Send + Sync + 'static>() {}
const _: () = crosses_threads::<Florence2<Scripted>>();
const _: () = crosses_threads::<florence2::Output>();
const _: () = crosses_threads::<Error>();
