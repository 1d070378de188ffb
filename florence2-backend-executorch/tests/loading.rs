//! Folders that are not what they should be.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use common::Folder;
use florence2_backend_executorch::{BUILT, ExecuTorch, Form, LoadError, Paths, Runtime, Variant, Variants};
use florence2_core::dev::conformance::picture;
use florence2_core::{Ask, VisionSeq2Seq};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tiny")
}

/// Copies of the tiny programs, to be broken.
struct Programs(Folder);

impl Programs {
    fn new(name: &str, files: &[&str]) -> Self {
        Self(Folder::new(name).with_copies(&tiny(), files))
    }

    /// Those in the form that is published.
    fn published(name: &str) -> Self {
        Self::new(name, &["vision.pte", "encoder.pte", "decoder.pte", "config.json"])
    }

    fn folder(&self) -> &Path {
        &self.0.0
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder().join(file)
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap()
    }

    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).unwrap();
    }

    fn rename(&self, old: &str, new: &str) {
        fs::rename(self.path(old), self.path(new)).unwrap();
    }

    /// What loading says, without the folder's own name.
    fn error(&self, executorch: &ExecuTorch) -> String {
        let error = executorch.load(self.folder()).unwrap_err();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        text.replace(&format!("{}", self.folder().display()), "DIR")
    }
}

fn plain() -> ExecuTorch {
    ExecuTorch::default()
}

#[test]
fn a_build_says_what_is_in_it() {
    let required = std::env::var_os("FLORENCE2_REQUIRE_EXECUTORCH").is_some();
    assert!(
        BUILT || !required,
        "FLORENCE2_REQUIRE_EXECUTORCH is set, and this was built without the feature runtime"
    );
    match (Runtime::start(), BUILT) {
        (Ok(runtime), true) => {
            assert_eq!(runtime.version, "1.5.1");
            assert_eq!((runtime.delegates, runtime.failed), (vec!["XnnpackBackend"], vec![]));
            assert!(runtime.folder.join("libexecutorch.so").is_file());
        }
        (Err(error @ LoadError::NotBuilt), false) => {
            assert!(matches!(plain().load(&tiny()), Err(LoadError::NotBuilt)));
            assert!(error.to_string().contains("run tools/get-executorch.sh"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn published_files_are_found_by_their_names() {
    let folder = Programs::published("published_files_are_found_by_their_names");
    let names = |files: &[&str]| files.iter().map(|file| folder.path(file)).collect::<Vec<_>>();
    let model = plain().load(folder.folder()).unwrap();
    assert_eq!(model.form(), Form::Window);
    assert_eq!(model.files(), names(&["vision.pte", "encoder.pte", "decoder.pte"]));
    let spec = model.spec();
    assert_eq!((spec.image_width, spec.image_height, spec.image_tokens), (136, 104, 21));
    assert_eq!((spec.vocabulary_size, spec.max_prompt_tokens, spec.max_positions), (120, 32, 64));

    folder.rename("vision.pte", "Florence2_Vision_Encoder_fp32.pte");
    folder.rename("encoder.pte", "florence2-encoder-xnnpack.pte");
    plain().load(folder.folder()).unwrap();
    // With its own decoder beside it, the form that is faster.
    fs::copy(tiny().join("cached.pte"), folder.path("florence2_decoder_cached.pte")).unwrap();
    let error = folder.error(&plain());
    assert!(
        error.contains(
            "decoder.pte and florence2_decoder_cached.pte may both be the decoder: say which it is"
        ),
        "{error}"
    );
    folder.rename("florence2_decoder_cached.pte", "kv.pte");
    assert_eq!(plain().load(folder.folder()).unwrap().form(), Form::Cached);
    fs::copy(folder.path("kv.pte"), folder.path("other.pte")).unwrap();
    let error = folder.error(&plain());
    assert!(error.contains("kv.pte and other.pte may both be the decoder: say which it is"), "{error}");
    fs::remove_file(folder.path("other.pte")).unwrap();
    // What else is there does not matter, whatever it is; nor do two of a variant that is not taken.
    folder.write("another.pte", "version https://git-lfs.github.com/spec/v1\noid");
    for other in ["vision_fp16.pte", "vision_encoder_fp16.pte"] {
        fs::copy(tiny().join("vision.pte"), folder.path(other)).unwrap();
    }
    assert_eq!(plain().load(folder.folder()).unwrap().form(), Form::Cached);
    for other in ["another.pte", "vision_fp16.pte", "vision_encoder_fp16.pte"] {
        fs::remove_file(folder.path(other)).unwrap();
    }
    let window = ExecuTorch { form: Some(Form::Window), ..plain() };
    assert_eq!(window.load(folder.folder()).unwrap().form(), Form::Window);

    // Other names, given; and a folder of their own.
    fs::create_dir(folder.path("executorch")).unwrap();
    folder.rename("Florence2_Vision_Encoder_fp32.pte", "executorch/a.pte");
    folder.rename("florence2-encoder-xnnpack.pte", "executorch/b.pte");
    folder.rename("decoder.pte", "executorch/c.pte");
    let error = folder.error(&plain());
    assert_eq!(
        error,
        "DIR/executorch lacks parts of the network: the vision encoder is needed, vision.pte or vision_fp16.pte, with \
         forward or vision among its methods; the encoder is needed, encoder.pte or text.pte or encoder_fp16.pte or \
         text_fp16.pte, with forward or encoder among its methods; the decoder is needed, cached.pte or decoder.pte or \
         text.pte or cached_fp16.pte or decoder_fp16.pte or text_fp16.pte, with cross and step, or forward or decoder \
         among its methods; there is a.pte, b.pte, c.pte"
    );
    let paths: Paths = "vision=a.pte,encoder=b.pte,decoder=c.pte".parse().unwrap();
    let given = ExecuTorch { paths, ..plain() };
    assert_eq!(given.load(folder.folder()).unwrap().form(), Form::Window);
    let error = folder.error(&ExecuTorch { form: Some(Form::Cached), ..given });
    assert_eq!(
        error,
        "DIR/executorch lacks parts of the network: c.pte has the methods forward, and as the decoder it needs cross and \
         step; there is a.pte, b.pte, c.pte"
    );
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn int8_is_taken_when_it_is_asked_for() {
    let files = ["vision.pte", "encoder_int8.pte", "decoder_int8.pte", "cached_int8.pte", "config.json"];
    let folder = Programs::new("int8_is_taken_when_it_is_asked_for", &files);
    let error = folder.error(&plain());
    assert!(error.contains("the encoder is needed, encoder.pte or text.pte"), "{error}");
    assert!(
        error.ends_with("there is cached_int8.pte, decoder_int8.pte, encoder_int8.pte, vision.pte"),
        "{error}"
    );
    let variants: Variants = "encoder=int8,decoder=int8".parse().unwrap();
    let executorch = ExecuTorch { variants, ..plain() };
    let found = executorch.resolve(folder.folder()).unwrap();
    assert_eq!(found, Variants { vision: Some(Variant::F32), ..variants });
    assert_eq!(executorch.load(folder.folder()).unwrap().form(), Form::Cached);
    assert!(
        folder
            .error(&ExecuTorch { variants: Variants::all(Variant::Int8), ..plain() })
            .contains("vision_int8.pte")
    );
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn methods_that_are_something_else_say_what_they_are() {
    let folder = Programs::published("methods_that_are_something_else_say_what_they_are");
    let paths = |text: &str| ExecuTorch { paths: text.parse().unwrap(), ..plain() };
    assert_eq!(
        folder.error(&paths("vision=encoder.pte")),
        "DIR/encoder.pte: forward is not the vision encoder of Florence-2: its inputs are 3 and its outputs 1, and 1 and \
         1 are expected; it takes f32[1, 21, 32], i64[1, 32], i64[1, 32] and gives f32[1, 53, 32]"
    );
    assert_eq!(
        folder.error(&paths("encoder=decoder.pte")),
        "DIR/decoder.pte: forward is not the encoder of Florence-2: its first input, image tokens, is f32[1, 53, 32], and \
         f32[1, 21, 32] is expected; it takes f32[1, 53, 32], i64[1, 32], i64[1, 64] and gives f32[1, 64, 120]"
    );
    assert_eq!(
        folder.error(&paths("decoder=encoder.pte")),
        "DIR/encoder.pte: forward is not the decoder of Florence-2: its first input, hidden states, is f32[1, 21, 32], and \
         f32[1, 53, 32] is expected; it takes f32[1, 21, 32], i64[1, 32], i64[1, 32] and gives f32[1, 53, 32]"
    );
    let odd = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/odd/unplanned.pte");
    let error = folder.error(&paths(&format!("vision={}", odd.display())));
    assert!(
        error.contains(
            "forward is not the vision encoder of Florence-2: its output is f32 without memory of the program's own, \
             [1, 8, 32], and f32[1, any, any] is expected"
        ),
        "{error}"
    );
    // Of another checkpoint.
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/executorch");
    fs::copy(demo.join("text.pte"), folder.path("text.pte")).unwrap();
    fs::remove_file(folder.path("decoder.pte")).unwrap();
    let error = folder.error(&plain());
    assert!(
        error.starts_with(
            "DIR/text.pte: cross is not the decoder of Florence-2: its input is f32[1, 77, 128], and f32[1, 53, 32] is \
             expected; it takes "
        ),
        "{error}"
    );
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn files_that_are_no_programs_say_what_they_are() {
    let folder = Programs::published("files_that_are_no_programs_say_what_they_are");
    let whole = folder.read("encoder.pte");
    for (bytes, error) in [
        (&b""[..], "DIR/encoder.pte: it is no ExecuTorch program, which has ET in its fifth and sixth byte"),
        (
            b"PK\x03\x04 weights",
            "DIR/encoder.pte: it is no ExecuTorch program, which has ET in its fifth and sixth byte",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "DIR/encoder.pte is a pointer of Git LFS; `git lfs pull` fetches the file itself",
        ),
        (
            b"<!DOCTYPE html>",
            "DIR/encoder.pte is a web page, as a download saves it that was refused or sent elsewhere; download the file \
             again",
        ),
    ] {
        folder.write("encoder.pte", bytes);
        assert_eq!(folder.error(&plain()), error);
    }
    for length in [8, 16, 39, 40, 41, 64, 1000, 20_000, whole.len() / 2, whole.len() - 1] {
        folder.write("encoder.pte", &whole[..length]);
        let error = folder.error(&plain());
        if length >= 40 {
            let (length, whole) = (length, whole.len());
            assert_eq!(
                error,
                format!(
                    "DIR/encoder.pte: it has {length} bytes of the {whole} that its head says: copy or download it again"
                )
            );
        } else {
            assert!(error.starts_with("ExecuTorch cannot load DIR/encoder.pte: Invalid"), "{error}");
        }
    }
    // The head has another version of the format than this ExecuTorch reads; it says so, and its log is part of the error.
    let mut other = whole.clone();
    other[6] = b'9';
    folder.write("encoder.pte", &other);
    let error = folder.error(&plain());
    assert!(error.starts_with("ExecuTorch cannot load DIR/encoder.pte: InvalidProgram: "), "{error}");

    fs::remove_file(folder.path("encoder.pte")).unwrap();
    fs::create_dir(folder.path("encoder.pte")).unwrap();
    assert!(folder.error(&plain()).contains("the encoder is needed"));
    let paths = "encoder=encoder.pte".parse().unwrap();
    assert!(folder.error(&ExecuTorch { paths, ..plain() }).starts_with("cannot read DIR/encoder.pte: "));
    let paths = "encoder=other.pte".parse().unwrap();
    assert!(folder.error(&ExecuTorch { paths, ..plain() }).starts_with("cannot read DIR/other.pte: "));
    let nowhere = plain().load(&folder.path("nowhere")).unwrap_err();
    assert!(matches!(nowhere, LoadError::Io { .. }), "{nowhere}");
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn a_manifest_tells_a_damaged_file() {
    let folder = Programs::published("a_manifest_tells_a_damaged_file");
    fs::copy(tiny().join("manifest.json"), folder.path("manifest.json")).unwrap();
    plain().load(folder.folder()).unwrap();
    let whole = folder.read("decoder.pte");
    let mut random = 1u64;
    for _ in 0..100 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut broken = whole.clone();
        broken[(random >> 33) as usize % whole.len()] ^= 1 << (random >> 29 & 7);
        folder.write("decoder.pte", &broken);
        let error = folder.error(&plain());
        // In the first bytes it may be no program, or be longer than it is.
        assert!(error.starts_with("DIR/decoder.pte: it"), "{error}");
    }
    folder.write("decoder.pte", [&whole[..], b"\0"].concat());
    let error = folder.error(&plain());
    assert!(error.contains(&format!(
        "it has {} bytes, and manifest.json has {} bytes",
        whole.len() + 1,
        whole.len()
    )));
    let mut broken = whole.clone();
    broken[whole.len() - 1] ^= 1;
    folder.write("decoder.pte", &broken);
    assert!(folder.error(&plain()).starts_with("DIR/decoder.pte: its sha256 is "));
    // However it is reached.
    let paths =
        Paths { decoder: Some(fs::canonicalize(folder.path("decoder.pte")).unwrap()), ..Paths::default() };
    let up = "decoder=../a_manifest_tells_a_damaged_file/decoder.pte".replace("../a", "../loading_a");
    for paths in [paths, up.parse().unwrap()] {
        let error = folder.error(&ExecuTorch { paths, ..plain() });
        assert!(error.contains("decoder.pte: its sha256 is "), "{error}");
    }
    folder.write("decoder.pte", &whole);
    plain().load(folder.folder()).unwrap();

    folder.write("manifest.json", "{\"files\": 3}");
    assert!(folder.error(&plain()).starts_with("DIR/manifest.json is not the JSON that is expected: "));
    // Of something else; and one without these files.
    for other in ["{\"name\": \"an app\"}", "{\"files\": []}"] {
        folder.write("manifest.json", other);
        plain().load(folder.folder()).unwrap();
    }
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn ids_are_those_of_the_configuration_if_there_is_one() {
    let folder = Programs::published("ids_are_those_of_the_configuration_if_there_is_one");
    folder.write("config.json", "{\"text_config\": {\"eos_token_id\": 7}}");
    let special = plain().load(folder.folder()).unwrap().spec().special;
    assert_eq!((special.bos, special.eos, special.decoder_start), (0, 7, 7));
    fs::remove_file(folder.path("config.json")).unwrap();
    assert_eq!(plain().load(folder.folder()).unwrap().spec().special, florence2_core::SpecialIds::FLORENCE2);
    folder.write("config.json", "{\"pad_token_id\": 120}");
    assert_eq!(
        folder.error(&plain()),
        "DIR/config.json: pad_token_id is 120, and the programs know 120 tokens"
    );
    folder.write("config.json", "{");
    assert!(folder.error(&plain()).starts_with("DIR/config.json is not the JSON that is expected: "));
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn files_may_be_replaced_under_a_running_network() {
    let files = ["vision.pte", "encoder.pte", "decoder.pte", "cached.pte", "config.json"];
    let folder = Programs::new("files_may_be_replaced_under_a_running_network", &files);
    for (form, map) in
        [(Form::Window, false), (Form::Cached, false), (Form::Window, true), (Form::Cached, true)]
    {
        let mut model = ExecuTorch { form: Some(form), map, ..plain() }.load(folder.folder()).unwrap();
        let mut run = || {
            let images = model.encode_image(&[picture(0, 136, 104)]).unwrap();
            let mut state = model.encode_prompt(&[Ask { image: &images[0], prompt: &[0, 5, 6, 2] }]).unwrap();
            let mut logits = vec![0.0; 120];
            let mut all = Vec::new();
            for token in [2, 0, 9, 30] {
                model.decode_step(&mut state, &[token], &mut logits).unwrap();
                all.extend_from_slice(&logits);
            }
            all
        };
        let before = run();
        for file in &files {
            if map {
                folder.write("other", "another");
                folder.rename("other", file);
            } else {
                fs::File::create(folder.path(file)).unwrap();
            }
        }
        assert!(run() == before, "{form:?}");
        for file in &files {
            fs::copy(tiny().join(file), folder.path(file)).unwrap();
        }
    }
}
