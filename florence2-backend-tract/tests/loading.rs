//! Folders that are not what they should be.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use common::Folder;
use florence2_backend_tract::{Tract, Variant, Variants};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/onnx")
}

/// A copy of the demo's parts, to be broken.
struct Parts(Folder);

impl Parts {
    fn new(name: &str) -> Self {
        Self(Folder::new(name).with_copies_of(&demo()))
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

    /// What loading says, without the folder's own name.
    fn error(&self, variants: Variants) -> String {
        let error = Tract { variants, ..Tract::default() }.load(self.folder()).unwrap_err();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        text.replace(&format!("{}", self.folder().display()), "DIR")
    }
}

const PARTS: [&str; 5] =
    ["vision_encoder", "embed_tokens", "encoder_model", "decoder_model", "decoder_with_past_model"];

#[test]
fn missing_parts_are_all_named() {
    let folder = Parts::new("missing_parts_are_all_named");
    for part in ["embed_tokens", "encoder_model", "decoder_with_past_model"] {
        fs::remove_file(folder.path(&format!("{part}_fp16.onnx"))).unwrap();
    }
    assert_eq!(
        folder.error(Variants::default()),
        "DIR lacks parts of the network: embed_tokens.onnx, or embed_tokens_fp16.onnx is needed; encoder_model.onnx, or \
         encoder_model_fp16.onnx is needed; decoder_model.onnx and decoder_with_past_model.onnx, or \
         decoder_model_fp16.onnx and decoder_with_past_model_fp16.onnx, or as one file decoder_model_merged.onnx is needed, \
         and there is decoder_model_fp16.onnx"
    );
    // Another form of the weights is only taken if it is asked for.
    assert_eq!(
        folder
            .error("vision_encoder=fp16,embed_tokens=q4,encoder_model=q4,decoder_model=q4".parse().unwrap()),
        "DIR lacks parts of the network: embed_tokens_q4.onnx is needed; encoder_model_q4.onnx is needed; \
         decoder_model_q4.onnx and decoder_with_past_model_q4.onnx, or as one file decoder_model_merged_q4.onnx is needed, \
         and there is decoder_model_fp16.onnx"
    );
}

#[test]
fn parts_may_lie_in_a_folder_of_their_own() {
    let folder = Parts::new("parts_may_lie_in_a_folder_of_their_own");
    fs::create_dir(folder.path("onnx")).unwrap();
    for part in PARTS {
        let name = format!("{part}_fp16.onnx");
        fs::rename(folder.path(&name), folder.path("onnx").join(&name)).unwrap();
    }
    let tract = Tract { variants: Variants::all(Variant::F16), ..Tract::default() };
    assert_eq!(tract.files(folder.folder()).unwrap().len(), 5);
    tract.load(folder.folder()).unwrap();
}

#[test]
fn names_of_variants_are_read() {
    for variant in Variant::ALL {
        assert_eq!(variant.to_string().parse(), Ok(variant));
        assert_eq!(variant.to_string().parse(), Ok(Variants::all(variant)));
    }
    let variants: Variants = "vision_encoder=fp16,decoder_model=bnb4".parse().unwrap();
    assert_eq!(variants.vision_encoder, Some(Variant::F16));
    assert_eq!(variants.decoder_model, Some(Variant::Bnb4));
    assert_eq!((variants.embed_tokens, variants.encoder_model), (None, None));
    assert_eq!(
        "f16".parse::<Variants>().unwrap_err().to_string(),
        "\"f16\" is none of fp32, fp16, quantized, int8, uint8, q4, q4f16 and bnb4"
    );
    assert_eq!(
        "decoder=fp16".parse::<Variants>().unwrap_err().to_string(),
        "\"decoder\" is none of vision_encoder, embed_tokens, encoder_model and decoder_model"
    );
}

#[test]
fn files_that_are_no_graphs_say_what_they_are() {
    for part in PARTS {
        let name = format!("{part}_fp16.onnx");
        let folder = Parts::new("files_that_are_no_graphs_say_what_they_are");
        let whole = folder.read(&name);
        for cut in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
            folder.write(&name, &whole[..cut]);
            let error = folder.error(Variants::default());
            assert!(error.starts_with(&format!("DIR/{name}: ")), "{error}");
            assert!(error.ends_with("the download may have been cut off"), "{cut}: {error}");
        }
        folder.write(&name, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
        let error = folder.error(Variants::default());
        assert!(
            error.ends_with("is a pointer of Git LFS; `git lfs pull` fetches the file itself"),
            "{error}"
        );
        folder.write(&name, "<!DOCTYPE html><html></html>");
        let error = folder.error(Variants::default());
        assert!(error.ends_with("is a web page, as a download saves it that was refused or sent elsewhere; download the file again"), "{error}");
    }
}

#[test]
fn parts_in_each_others_place_are_told() {
    let folder = Parts::new("parts_in_each_others_place_are_told");
    let decoder = folder.read("decoder_model_fp16.onnx");
    folder.write("decoder_with_past_model_fp16.onnx", &decoder);
    let error = folder.error(Variants::default());
    assert!(
        error.starts_with(
            "DIR/decoder_with_past_model_fp16.onnx is not the decoder_with_past_model of a Florence-2 export: it does not take \
             past_key_values.N.decoder.key and .value of 2 layers; it takes "
        ),
        "{error}"
    );
    folder.write("encoder_model_fp16.onnx", &decoder);
    let error = folder.error(Variants::default());
    assert!(
        error.starts_with(
            "DIR/encoder_model_fp16.onnx is not the encoder_model of a Florence-2 export: it does not give \
             last_hidden_state; it takes "
        ),
        "{error}"
    );
}

#[test]
fn configurations_are_read_or_refused() {
    let folder = Parts::new("configurations_are_read_or_refused");
    folder.write("config.json", "{\"text_config\": ");
    assert!(
        folder.error(Variants::default()).starts_with("DIR/config.json is not the JSON that is expected: ")
    );
    fs::remove_file(folder.path("config.json")).unwrap();
    assert!(folder.error(Variants::default()).starts_with("cannot read DIR/config.json: "));
    let folder = Parts::new("configurations_are_read_or_refused_2");
    folder.write("preprocessor_config.json", "{\"size\": {\"shortest_edge\": 192}}");
    assert_eq!(
        folder.error(Variants::default()),
        "DIR/preprocessor_config.json: size is {\"shortest_edge\":192}, but a width and a height are needed, or \
         `Tract::image_size`"
    );
}

#[test]
fn a_tensor_whose_shape_was_changed_is_an_error() {
    let folder = Parts::new("a_tensor_whose_shape_was_changed_is_an_error");
    let name = "decoder_with_past_model_fp16.onnx";
    let whole = folder.read(name);
    // The field `dims` (1) of a matrix of 128 x 128, and half as many rows in its place.
    let (dims, half) = ([0x08, 0x80, 0x01, 0x08, 0x80, 0x01], [0x08, 0xc0, 0x00, 0x08, 0x80, 0x01]);
    let at = whole.windows(6).position(|window| window == dims).unwrap();
    let mut broken = whole.clone();
    broken[at..at + 6].copy_from_slice(&half);
    folder.write(name, &broken);
    let error = folder.error(Variants::default());
    assert!(error.contains("bytes by its shape, and another number beside it"), "{error}");
}

#[test]
fn files_say_how_many_positions_there_are() {
    let folder = Parts::new("files_say_how_many_positions_there_are");
    let config = String::from_utf8(folder.read("config.json")).unwrap();
    folder.write(
        "config.json",
        config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 64"),
    );
    let model = Tract::default().load(folder.folder()).unwrap();
    assert_eq!(florence2_core::VisionSeq2Seq::spec(&model).max_positions, 512);
}

#[test]
fn flipped_bits_never_end_the_process() {
    let folder = Parts::new("flipped_bits_never_end_the_process");
    let mut random = 1u64;
    let mut refused = 0;
    for part in ["embed_tokens", "encoder_model", "decoder_with_past_model"] {
        let name = format!("{part}_fp16.onnx");
        let whole = folder.read(&name);
        for _ in 0..6 {
            let mut broken = whole.clone();
            for _ in 0..4 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Half of them in front, where a graph's nodes are.
                let place = (random >> 33) as usize % if random & 1 == 0 { 20_000 } else { whole.len() };
                broken[place % whole.len()] ^= 1 << (random >> 29 & 7);
            }
            folder.write(&name, &broken);
            refused += usize::from(Tract::default().load(folder.folder()).is_err());
        }
        folder.write(&name, &whole);
    }
    assert!(refused > 3, "{refused}");
    Tract::default().load(folder.folder()).unwrap();
}
