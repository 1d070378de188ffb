//! The tokenizers that checkpoints have, and those that they should not have.
#![cfg(feature = "tokenizer")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test says what went wrong by failing")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::Folder;
use florence2::{AddedToken, Loc, TokenLayout, Tokenizer, TokenizerError};
use serde_json::{Value, json};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The checkpoints' own tokenizers are too large to be here.
fn shared() -> Option<PathBuf> {
    let folder = root().join("../shared/assets/tokenizer");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("SKIPPED: {} is not there", folder.display());
    None
}

fn demo_json() -> Vec<u8> {
    fs::read(root().join("demo/checkpoint/tokenizer.json")).unwrap()
}

fn demo() -> Tokenizer {
    Tokenizer::from_json(&demo_json()).unwrap()
}

fn lines(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join(path)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The demo's tokenizer as `vocab.json`, `merges.txt` and `added_tokens.json`.
fn demo_as_files() -> (String, String, String) {
    let json: Value = serde_json::from_slice(&demo_json()).unwrap();
    let added: serde_json::Map<String, Value> = json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| (token["content"].as_str().unwrap().to_owned(), token["id"].clone()))
        .collect();
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    (
        json["model"]["vocab"].to_string(),
        format!("#version: 0.2\n{}\n", merges.join("\n")),
        Value::Object(added).to_string(),
    )
}

/// `check(tokenizer, its name)` for the demo's, read from either form.
fn with_both_forms(check: impl Fn(&Tokenizer, &str)) {
    check(&demo(), "tokenizer.json");
    let (vocab, merges, added) = demo_as_files();
    let files = Folder::new("both_forms")
        .with("vocab.json", vocab)
        .with("merges.txt", merges.replace('\n', "\r\n"))
        .with("added_tokens.json", added);
    check(&Tokenizer::from_folder(&files.0).unwrap(), "vocab.json and merges.txt");
}

#[test]
fn texts_and_ids_are_those_of_the_reference_both_ways() {
    with_both_forms(|tokenizer, form| {
        for line in lines("tests/data/demo_tokens.jsonl") {
            let text = line["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids(&line["ids"]), "{form}: {text:?}");
            assert_eq!(tokenizer.decode(&ids(&line["ids"])), line["decoded"], "{form}: {text:?}");
        }
    });
}

#[test]
fn the_published_tokenizers_agree_with_the_reference_both_ways() {
    let Some(folder) = shared() else { return };
    let golden: Value =
        serde_json::from_slice(&fs::read(folder.join("golden_tokenization.json")).unwrap()).unwrap();
    let files = Folder::new("published_files")
        .with_copies(&folder.join("native-rebuilt"), &["vocab.json", "merges.txt"]);
    let folders = [
        folder.join("microsoft"),
        folder.join("native-rebuilt"),
        folder.join("onnx-community"),
        // Without the added tokens, as microsoft's.
        files.0.clone(),
    ];
    for folder in folders {
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        assert_eq!(tokenizer.layout(), TokenLayout::FLORENCE2, "{}", folder.display());
        let mut cases = 0;
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected = ids(&case["ids"]);
            assert_eq!(tokenizer.decode(&expected), case["decode_keep"], "{}: {text:?}", folder.display());
            let plain = ids(&case["ids_no_special"]);
            assert_eq!(tokenizer.pieces(&plain).concat(), tokenizer.decode(&plain), "{text:?}");
            let expected = match text {
                // Ends that are there already are not doubled: complaint b023.
                "<s>inner</s>" => plain,
                // A token of transformers' own.
                "<image>" if folder.ends_with("native-rebuilt") => vec![0, 51_289, 2],
                _ => expected,
            };
            assert_eq!(tokenizer.encode(text).unwrap(), expected, "{}: {text:?}", folder.display());
            cases += 1;
        }
        assert!(cases >= 70);
    }
}

/// Prompts and answers of the real checkpoints, as the transformers library's own tests have them.
#[test]
fn published_ids_are_those_of_their_texts() {
    let Some(folder) = shared() else { return };
    let published: Value =
        serde_json::from_slice(&fs::read(folder.join("../hf_test_groundtruth.json")).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.join("microsoft")).unwrap();
    let list = |case: &Value, one: &str, many: &str| -> Vec<Value> {
        case.get(many).and_then(Value::as_array).cloned().unwrap_or_else(|| vec![case[one].clone()])
    };
    let (mut asked, mut answered) = (0, 0);
    for case in published.as_array().unwrap() {
        let rows = case["text_ids_after_577_image_tokens"].as_array().unwrap();
        for (prompt, row) in list(case, "prompt", "prompts").iter().zip(rows) {
            let prompt: florence2::Prompt = prompt.as_str().unwrap().parse().unwrap();
            let found = tokenizer.encode(&prompt.sentence(florence2::Dialect::Transformers)).unwrap();
            let mut expected = ids(row);
            expected.retain(|&id| id != 1);
            assert_eq!(found, expected, "{prompt}");
            asked += 1;
        }
        let texts = list(case, "EXPECTED_GENERATED_TEXT", "EXPECTED_GENERATED_TEXTS");
        for (text, row) in texts.iter().zip(case["EXPECTED_PREDICTION_IDS"].as_array().unwrap()) {
            let (text, mut row) = (text.as_str().unwrap(), ids(row));
            row.retain(|&id| id != 1);
            let decoded = tokenizer.decode(&row);
            // Captions are published without their special tokens.
            assert_eq!(
                decoded.replace("</s>", "").replace("<s>", ""),
                text.replace("</s>", "").replace("<s>", "").replace("<pad>", "")
            );
            assert_eq!(tokenizer.pieces(&row).concat(), decoded);
            answered += 1;
        }
    }
    assert!(asked >= 12 && answered >= 12, "{asked} {answered}");
}

#[test]
fn the_added_tokens_are_found_wherever_they_are() {
    with_both_forms(|tokenizer, form| {
        let layout = tokenizer.layout();
        assert_eq!(layout.id(Loc::new(0).unwrap()), 537, "{form}");
        assert_eq!(tokenizer.highest_id(), 1557, "{form}");
        for token in AddedToken::all() {
            let id = layout.added_id(token);
            assert_eq!(tokenizer.encode(&token.to_string()).unwrap(), [0, id, 2], "{form}");
            assert_eq!(tokenizer.decode(&[id]), token.to_string(), "{form}");
        }
    });
}

/// Complaint b028: the space in front of an added token is a token of its own.
#[test]
fn a_space_in_front_of_an_added_token_is_kept() {
    with_both_forms(|tokenizer, form| {
        let ids = tokenizer.encode("region <loc_3>?").unwrap();
        let loc = tokenizer.layout().id(Loc::new(3).unwrap());
        let at = ids.iter().position(|&id| id == loc).unwrap();
        assert_eq!(tokenizer.decode(&ids[at - 1..=at]), " <loc_3>", "{form}");
        assert_eq!(tokenizer.decode(&ids), "<s>region <loc_3>?</s>", "{form}");
    });
}

/// Complaint b038: the tokenizer's class was derived from the model's config, and could not be.
#[test]
fn the_tokenizer_needs_no_config() {
    let folder = Folder::new("no_config").with("tokenizer.json", demo_json());
    assert_eq!(Tokenizer::from_folder(&folder.0).unwrap().layout(), demo().layout());
    let broken = Folder::new("broken_config")
        .with("tokenizer.json", demo_json())
        .with("config.json", "{")
        .with("tokenizer_config.json", r#"{"tokenizer_class": "FrobnicationTokenizer"}"#);
    assert_eq!(Tokenizer::from_folder(&broken.0).unwrap().layout(), demo().layout());
}

/// Complaint b039: `additional_special_tokens` was read where there was none.
#[test]
fn no_list_of_additional_special_tokens_is_needed() {
    let folder =
        Folder::new("no_list").with("tokenizer.json", demo_json()).with("special_tokens_map.json", "{}");
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.encode("<loc_7>").unwrap(), [0, 544, 2]);
}

/// Complaint b040: a prompt was joined of strings, one of which was `None`.
#[test]
fn the_ends_of_a_prompt_are_found_by_their_text_or_named() {
    let folder = Folder::new("null_bos")
        .with("tokenizer.json", demo_json())
        .with("tokenizer_config.json", r#"{"bos_token": null, "eos_token": null}"#);
    let ids = Tokenizer::from_folder(&folder.0).unwrap().encode("a").unwrap();
    assert_eq!((ids[0], ids[ids.len() - 1]), (0, 2));
    for token in ["<s>", "</s>", "<pad>"] {
        let error = edited(|json| {
            json["added_tokens"].as_array_mut().unwrap().retain(|added| added["content"] != token);
            json["model"]["vocab"].as_object_mut().unwrap().remove(token);
        })
        .unwrap_err();
        assert!(error.to_string().contains(&format!("has no {token}:")), "{error}");
    }
}

/// The demo's `tokenizer.json` with a change.
fn edited(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let mut json: Value = serde_json::from_slice(&demo_json()).unwrap();
    change(&mut json);
    Tokenizer::from_json(json.to_string().as_bytes())
}

fn without_added(json: &mut Value, keep: impl Fn(usize) -> bool) {
    let names: Vec<String> = AddedToken::all().map(|token| token.to_string()).collect();
    json["added_tokens"].as_array_mut().unwrap().retain(|added| {
        let name = added["content"].as_str().unwrap();
        names.iter().position(|other| other == name).is_none_or(&keep)
    });
}

#[test]
fn the_added_tokens_are_added_once_or_not_at_all() {
    let added = edited(|json| {
        without_added(json, |_| false);
        // `<image>` is after them.
        json["added_tokens"].as_array_mut().unwrap().pop();
    })
    .unwrap();
    assert_eq!(added.layout(), demo().layout());
    assert_eq!(added.highest_id(), 1556);
    // A fine-tune's own token goes first where the file has it, and the others keep their row.
    let own = json!({"id": 533, "content": "<vqa>", "special": true});
    let own = edited(|json| {
        without_added(json, |_| false);
        let list = json["added_tokens"].as_array_mut().unwrap();
        list.pop();
        list.push(own);
    })
    .unwrap();
    assert_eq!(own.layout().id(Loc::new(0).unwrap()), 538);
    assert_eq!(own.encode("<vqa>").unwrap(), [0, 533, 2]);
    assert_eq!(own.decode(&[533, 538]), "<vqa><loc_0>");
    // Some of them are a mistake, wherever they are missing.
    for missing in [0, 500, 1023] {
        let error = edited(|json| without_added(json, |at| at != missing)).unwrap_err();
        assert!(matches!(error, TokenizerError::PartlyAdded { found: 1023, .. }), "{error}");
    }
    let error = edited(|json| {
        for added in json["added_tokens"].as_array_mut().unwrap() {
            match added["content"].as_str().unwrap() {
                "<loc_500>" => added["id"] = json!(1038),
                "<loc_501>" => added["id"] = json!(1037),
                _ => {}
            }
        }
    })
    .unwrap_err();
    assert!(matches!(error, TokenizerError::Layout(_)), "{error}");
}

#[test]
fn an_added_token_keeps_the_id_of_the_file() {
    let gap = edited(|json| {
        let list = json["added_tokens"].as_array_mut().unwrap();
        list.push(json!({"id": 1600, "content": "<vqa>", "special": true}));
    })
    .unwrap();
    assert_eq!(gap.encode("<vqa>").unwrap(), [0, 1600, 2]);
    assert_eq!((gap.decode(&[1600]), gap.decode(&[1599])), ("<vqa>".into(), String::new()));
}

#[test]
fn what_is_no_tokenizer_is_an_error_that_says_what_is_wrong() {
    fn merges(json: &mut Value) -> &mut Vec<Value> {
        json["model"]["merges"].as_array_mut().unwrap()
    }
    type Change = fn(&mut Value);
    let cases: &[(&str, Change)] = &[
        ("missing field `model`", |json| *json = json!({})),
        ("expected struct TokenizerJson", |json| *json = json!([])),
        ("a Unigram model", |json| json["model"] = json!({"type": "Unigram", "vocab": [["a", 0.5]]})),
        ("missing field `merges`", |json| drop(json["model"].as_object_mut().unwrap().remove("merges"))),
        ("invalid value", |json| json["model"]["vocab"]["a"] = json!(-1)),
        ("invalid value", |json| json["model"]["vocab"]["a"] = json!(u64::MAX)),
        ("4294967295 is too high", |json| json["model"]["vocab"]["a"] = json!(u32::MAX)),
        ("4294967295 is too high", |json| {
            json["added_tokens"].as_array_mut().unwrap().push(json!({"id": u32::MAX, "content": "<own>"}));
        }),
        ("two ids, 1557 and 3", |json| {
            json["added_tokens"].as_array_mut().unwrap().push(json!({"id": 3, "content": "<image>"}));
        }),
        ("both have the id 3", |json| json["model"]["vocab"]["a"] = json!(3)),
        ("no token for the byte 0x20", |json| {
            drop(json["model"]["vocab"].as_object_mut().unwrap().remove("Ġ"));
        }),
        // The engine panics at such a merge.
        ("merge 273 makes", |json| {
            let longest =
                json["model"]["vocab"].as_object().unwrap().keys().max_by_key(|key| key.len()).cloned();
            merges(json).push(json!([longest, longest]));
        }),
        ("merge 273 makes", |json| merges(json).push(json!("Ġt ĠĠĠ"))),
        ("a merge", |json| merges(json).push(json!("a b c"))),
        ("a merge", |json| merges(json).push(json!(["a"]))),
        ("a merge", |json| merges(json).push(json!(["a", "b", "c"]))),
        ("a merge", |json| merges(json).push(json!(7))),
        ("a prefix within words", |json| json["model"]["continuing_subword_prefix"] = json!("##########")),
        ("a suffix at the end", |json| json["model"]["end_of_word_suffix"] = json!("</w>")),
        ("a normaliser, Lowercase", |json| json["normalizer"] = json!({"type": "Lowercase"})),
        ("the pre-tokenizer Split", |json| json["pre_tokenizer"] = json!({"type": "Split", "pattern": "("})),
        ("no pre-tokenizer", |json| json["pre_tokenizer"] = json!(null)),
        ("does not cut at words", |json| json["pre_tokenizer"]["use_regex"] = json!(false)),
        ("the decoder WordPiece", |json| json["decoder"] = json!({"type": "WordPiece"})),
        ("no decoder", |json| json["decoder"] = json!(null)),
    ];
    for (hint, change) in cases {
        let error = edited(change).err().unwrap_or_else(|| panic!("{hint}: no error"));
        let error = chain(&error);
        assert!(error.contains(hint), "{hint}: {error}");
    }
}

#[test]
fn files_that_are_damaged_are_errors() {
    let whole = demo_json();
    // Cut anywhere, it is no JSON.
    for cut in [0, 1, 2, 100, whole.len() / 2, whole.len() - 2] {
        assert!(matches!(Tokenizer::from_json(&whole[..cut]), Err(TokenizerError::Json { .. })), "{cut}");
    }
    let surrogate = String::from_utf8(whole.clone()).unwrap().replacen("\"a\":", "\"\\ud800\":", 1);
    assert!(matches!(Tokenizer::from_json(surrogate.as_bytes()), Err(TokenizerError::Json { .. })));
    let deep = [b"{\"model\":".as_slice(), "[".repeat(1 << 20).as_bytes()].concat();
    assert!(matches!(Tokenizer::from_json(&deep), Err(TokenizerError::Json { .. })));
    let mark = [b"\xef\xbb\xbf", whole.as_slice()].concat();
    assert_eq!(Tokenizer::from_json(&mark).unwrap().layout(), demo().layout());

    let (vocab, merges, added) = demo_as_files();
    for (vocab, merges, added, hint) in [
        ("{}", merges.as_str(), added.as_str(), "no token for the byte 0x00"),
        ("[]", &merges, &added, "vocab.json"),
        (&vocab, "a\n", &added, "merges.txt, line 1"),
        (&vocab, "\u{120} t\n\u{120} t x\n", &added, "merges.txt, line 2"),
        (&vocab, &merges, "[]", "added_tokens.json"),
        (&vocab, &merges, r#"{"<loc_0>": 537}"#, "has 1 of Florence-2's 1024"),
    ] {
        let error =
            Tokenizer::from_vocab_and_merges(vocab.as_bytes(), merges.as_bytes(), Some(added.as_bytes()));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(hint), "{hint}: {error}");
    }
    let error = Tokenizer::from_vocab_and_merges(vocab.as_bytes(), b"\xff\xff\n", None).unwrap_err();
    assert!(matches!(error, TokenizerError::MergeLine { line: 1 }), "{error}");
}

#[test]
fn what_stands_in_the_place_of_a_file_is_named() {
    let (vocab, merges, added) = demo_as_files();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1355863\n";
    let page = "<!DOCTYPE html>\n<html></html>\n";
    for (content, hint) in [(pointer, "`git lfs pull` fetches the file"), (page, "download the file again")] {
        for file in ["tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json"] {
            let mut folder = Folder::new("substitute");
            if file != "tokenizer.json" {
                folder = folder
                    .with("vocab.json", &vocab)
                    .with("merges.txt", &merges)
                    .with("added_tokens.json", &added);
            }
            let folder = folder.with(file, content);
            let error = chain(&Tokenizer::from_folder(&folder.0).unwrap_err());
            // The folder, too: there may be several.
            let path = folder.0.join(file);
            assert!(
                error.starts_with(&format!("{} is not a tokenizer's: it is a ", path.display())),
                "{error}"
            );
            assert!(error.contains(hint), "{error}");
        }
    }
    // A first merge may begin with that character.
    let odd = format!("#version: 0.2\n< s\n{}", merges.split_once('\n').unwrap().1);
    for merges in [odd.as_str(), odd.split_once('\n').unwrap().1] {
        let error = Tokenizer::from_vocab_and_merges(vocab.as_bytes(), merges.as_bytes(), None).unwrap_err();
        assert!(matches!(error, TokenizerError::Merge { at: 1, .. }), "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let empty = Folder::new("empty");
    let error = Tokenizer::from_folder(&empty.0).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is needed"), "{error}");
    let half = Folder::new("half").with("vocab.json", "{}");
    let error = Tokenizer::from_folder(&half.0).unwrap_err().to_string();
    assert!(error.contains("there is no merges.txt"), "{error}");
    let folder = Folder::new("folder");
    fs::create_dir(folder.0.join("tokenizer.json")).unwrap();
    assert!(matches!(Tokenizer::from_folder(&folder.0), Err(TokenizerError::Read { .. })));
    let huge = Folder::new("huge");
    fs::File::create(huge.0.join("tokenizer.json")).unwrap().set_len(1 << 40).unwrap();
    let error = chain(&Tokenizer::from_folder(&huge.0).unwrap_err());
    assert!(error.contains("too many"), "{error}");
}

/// A generator that needs no crate: what it gives matters less than that it is the same in every run.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 7);
        Some(x ^ (x << 17))
    })
}

#[test]
fn a_stream_gives_what_the_whole_gives() {
    let tokenizer = demo();
    // The single bytes are what makes a stream hard: of them characters are cut, and made that are none.
    let bytes: Vec<u32> = tokenizer.encode("é漢🦀ÿ").unwrap();
    for seed in 1..200 {
        let mut random = numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let ids: Vec<u32> = (0..60)
            .map(|_| match random.next().unwrap() % 3 {
                0 => (random.next().unwrap() % 1700) as u32,
                1 => 4 + (random.next().unwrap() % 256) as u32,
                _ => bytes[(random.next().unwrap() % bytes.len() as u64) as usize],
            })
            .collect();
        assert_eq!(tokenizer.pieces(&ids).concat(), tokenizer.decode(&ids), "{ids:?}");
    }
    // No part of a character is shown.
    let ids = tokenizer.encode("a🦀").unwrap();
    let pieces = tokenizer.pieces(&ids);
    assert_eq!(pieces, ["<s>", "a", "", "", "", "🦀", "</s>"]);
    let mut cut = tokenizer.decoder();
    assert_eq!(cut.push(ids[2]), "");
    assert_eq!(cut.finish(), "\u{fffd}");
}

#[test]
fn long_texts_and_odd_ones_come_back_as_they_were() {
    const LONG: usize = 50_000;
    let tokenizer = demo();
    let mut texts = vec![
        "\0\u{1}\u{7f}\u{85}\u{a0}\u{ad}\u{200b}\u{fffd}\u{10ffff}\u{e000}".to_owned(),
        "\u{301}\u{301}e\u{301}".to_owned(),
        "<<<<s><loc_<loc_1>".to_owned(),
    ];
    for part in ["a", " ", "\n", "A1 ", "<loc_5>", "é", "🦀", "<", "'s", "\u{301}", " a"] {
        texts.push(part.repeat(LONG / part.len()));
        // Behind white space that goes on, the pre-tokenizer's expression looks ahead.
        texts.push(format!("{}x", part.repeat(LONG / part.len())));
    }
    for text in texts {
        let ids = tokenizer.encode(&text).unwrap();
        let decoded = tokenizer.decode(&ids);
        assert_eq!(decoded.len(), text.len() + 7);
        assert!(decoded.strip_prefix("<s>").unwrap().strip_suffix("</s>").unwrap() == text, "{text:.20}");
    }
}
