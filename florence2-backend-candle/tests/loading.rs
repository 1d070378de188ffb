//! Checkpoints as people have them, whole and broken.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use common::{Expected, distance, load, tiny};
use florence2_backend_candle::{Candle, CandleModel, Device, Dtype, Layout, LoadError, inspect};
use serde_json::{Value, json};

/// A copy of a tiny checkpoint that can be broken.
struct Checkpoint {
    folder: PathBuf,
    layout: &'static str,
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Checkpoint {
    fn new(layout: &'static str, name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("florence2-loading-{}-{name}-{layout}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "preprocessor_config.json", "model.safetensors"] {
            fs::copy(tiny(layout).join(file), folder.join(file)).unwrap();
        }
        Self { folder, layout }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    fn tensors(&self) -> HashMap<String, Tensor> {
        candle_core::safetensors::load(self.path("model.safetensors"), &candle_core::Device::Cpu).unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<String, Tensor>)) -> &Self {
        let mut tensors = self.tensors();
        change(&mut tensors);
        self.save(&tensors, "model.safetensors");
        self
    }

    fn save(&self, tensors: &HashMap<String, Tensor>, file: &str) {
        // Not over the file that tensors may still be read from.
        let fresh = self.path("fresh");
        candle_core::safetensors::save(tensors, &fresh).unwrap();
        fs::rename(fresh, self.path(file)).unwrap();
    }

    fn config(&self, change: impl FnOnce(&mut Value)) -> &Self {
        let path = self.path("config.json");
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(path, config.to_string()).unwrap();
        self
    }

    fn load(&self) -> Result<CandleModel, LoadError> {
        Candle::default().load(&self.folder)
    }

    #[track_caller]
    fn works(&self) {
        let distance = distance(&mut self.load().unwrap(), &Expected::read(&tiny(self.layout)));
        assert!(
            distance.features < 1e-5 && distance.logits < 1e-4,
            "{} {}",
            distance.features,
            distance.logits
        );
    }

    /// The message, on both devices, with its sources.
    #[track_caller]
    fn fails(&self) -> String {
        let messages = [Device::Cpu, Device::CandleCpu].map(|device| {
            let error = Candle { device, ..Candle::default() }.load(&self.folder).expect_err("it is broken");
            let mut message = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(error) = source {
                message += &format!(": {error}");
                source = error.source();
            }
            message
                .replace(&format!("{}/", self.folder.display()), "")
                .replace(&*self.folder.to_string_lossy(), ".")
        });
        assert_eq!(messages[0], messages[1]);
        let [message, _] = messages;
        message
    }
}

fn shared(layout: &str) -> &'static str {
    if layout == "microsoft" {
        "language_model.model.shared.weight"
    } else {
        "model.language_model.shared.weight"
    }
}

fn tied(layout: &str) -> [&'static str; 4] {
    if layout == "microsoft" {
        [
            "language_model.model.shared.weight",
            "language_model.model.encoder.embed_tokens.weight",
            "language_model.model.decoder.embed_tokens.weight",
            "language_model.lm_head.weight",
        ]
    } else {
        [
            "model.language_model.shared.weight",
            "model.language_model.encoder.embed_tokens.weight",
            "model.language_model.decoder.embed_tokens.weight",
            "lm_head.weight",
        ]
    }
}

#[test]
fn tied_tensors_in_any_combination() {
    for layout in ["transformers", "microsoft"] {
        for combination in 1..16 {
            let checkpoint = Checkpoint::new(layout, &format!("tied-{combination}"));
            checkpoint.change(|tensors| {
                let stored = tied(layout).iter().find_map(|name| tensors.remove(*name)).unwrap();
                for (bit, name) in tied(layout).into_iter().enumerate() {
                    tensors.remove(name);
                    if combination & 1 << bit != 0 {
                        tensors.insert(name.to_owned(), stored.clone());
                    }
                }
            });
            if [1, 2, 4, 8, 15].contains(&combination) {
                checkpoint.works();
            } else {
                checkpoint.load().unwrap();
            }
        }
    }
}

#[test]
fn tied_tensors_that_differ_are_refused() {
    let checkpoint = Checkpoint::new("transformers", "untied");
    checkpoint.change(|tensors| {
        let other = (tensors[shared("transformers")].to_dtype(DType::F32).unwrap() * 2.0).unwrap();
        tensors.insert("lm_head.weight".to_owned(), other);
    });
    assert_eq!(
        checkpoint.fails(),
        "the tensors model.language_model.shared.weight and lm_head.weight should be the same, since Florence-2's \
         embeddings are tied, but they differ"
    );
}

#[test]
fn every_type_on_disk() {
    for layout in ["transformers", "microsoft"] {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let checkpoint = Checkpoint::new(layout, dtype.as_str());
            checkpoint.change(|tensors| {
                for tensor in tensors.values_mut() {
                    *tensor = tensor.to_dtype(dtype).unwrap();
                }
            });
            match dtype {
                DType::F32 => checkpoint.works(),
                DType::BF16 => drop(checkpoint.load().unwrap()),
                _ => assert!(checkpoint.fails().contains("is stored as f64; f32, f16 and bf16 are read")),
            }
        }
    }
}

#[test]
fn shards_with_an_index() {
    for layout in ["transformers", "microsoft"] {
        let checkpoint = Checkpoint::new(layout, "shards");
        let (mut first, mut second) = (HashMap::new(), HashMap::new());
        let mut map = serde_json::Map::new();
        for (index, (name, tensor)) in checkpoint.tensors().into_iter().enumerate() {
            let (shard, file) =
                if index % 2 == 0 { (&mut first, "a.safetensors") } else { (&mut second, "b.safetensors") };
            map.insert(name.clone(), json!(file));
            shard.insert(name, tensor);
        }
        checkpoint.save(&first, "a.safetensors");
        checkpoint.save(&second, "b.safetensors");
        fs::remove_file(checkpoint.path("model.safetensors")).unwrap();
        let index = |map: &serde_json::Map<String, Value>| {
            let text = json!({"metadata": {}, "weight_map": map}).to_string();
            fs::write(checkpoint.path("model.safetensors.index.json"), text).unwrap();
        };
        index(&map);
        checkpoint.works();
        assert_eq!(inspect(&checkpoint.folder).weights.unwrap().files.len(), 2);

        let mut more = map.clone();
        more.insert("another".to_owned(), json!("a.safetensors"));
        index(&more);
        let message = "model.safetensors.index.json: a.safetensors does not hold the tensor another";
        assert_eq!(checkpoint.fails(), message);

        more.insert("another".to_owned(), json!("../a.safetensors"));
        index(&more);
        let message =
            "model.safetensors.index.json: \"../a.safetensors\" is not the name of a file in this folder";
        assert_eq!(checkpoint.fails(), message);

        index(&map);
        fs::remove_file(checkpoint.path("b.safetensors")).unwrap();
        assert_eq!(checkpoint.fails(), "model.safetensors.index.json: the shard b.safetensors is missing");
    }
}

#[test]
fn a_pickle() {
    // `tools/random_checkpoint.py --bin` wrote it.
    let checkpoint = Checkpoint::new("microsoft", "pickle");
    fs::remove_file(checkpoint.path("model.safetensors")).unwrap();
    let pickle = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tiny/pytorch_model.bin");
    fs::copy(&pickle, checkpoint.path("pytorch_model.bin")).unwrap();
    checkpoint.works();

    let bytes = fs::read(&pickle).unwrap();
    for length in [0, 10, bytes.len() / 2, bytes.len() - 1] {
        fs::write(checkpoint.path("pytorch_model.bin"), &bytes[..length]).unwrap();
        let message = checkpoint.fails();
        assert!(message.starts_with("pytorch_model.bin is not a whole file of weights: "), "{message}");
    }
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 463221266\n";
    fs::write(checkpoint.path("pytorch_model.bin"), pointer).unwrap();
    assert_eq!(
        checkpoint.fails(),
        "pytorch_model.bin is not a whole file of weights: it is a pointer of Git LFS; `git lfs pull` fetches the file itself"
    );
    // A function that is not torch's, in place of one of the same length. It is named, and not called.
    let name = b"torch._utils\n_rebuild_tensor_v2\n";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let mut hostile = bytes.clone();
    hostile[at..][..name.len()].copy_from_slice(b"subprocess__\ncheck_output______\n");
    fs::write(checkpoint.path("pytorch_model.bin"), hostile).unwrap();
    assert!(checkpoint.fails().contains("its pickle uses \"subprocess__.check_output______\""));
}

#[test]
fn missing_unused_and_misshapen_tensors_are_named() {
    for layout in ["transformers", "microsoft"] {
        let checkpoint = Checkpoint::new(layout, "missing");
        let names: Vec<String> = checkpoint.tensors().into_keys().collect();
        let of_each_kind =
            |name: &&String| name.contains("image_proj") || name.contains(".0.") || name.contains("shared");
        for name in names.iter().filter(of_each_kind) {
            let checkpoint = Checkpoint::new(layout, "missing");
            checkpoint.change(|tensors| drop(tensors.remove(name)));
            let expected = format!("the weights ({layout} layout) lack the tensor {name}: ");
            assert!(checkpoint.fails().starts_with(&expected), "{}", checkpoint.fails());
        }

        let checkpoint = Checkpoint::new(layout, "unused");
        checkpoint.change(|tensors| {
            let tensor = Tensor::zeros(3, DType::F32, &candle_core::Device::Cpu).unwrap();
            let prefix = if layout == "microsoft" { "" } else { "model." };
            tensors.insert(format!("{prefix}vision_tower.head.weight"), tensor);
        });
        assert!(checkpoint.fails().ends_with("vision_tower.head.weight"), "{}", checkpoint.fails());

        let checkpoint = Checkpoint::new(layout, "shape");
        checkpoint.config(|config| config["text_config"]["vocab_size"] = json!(121));
        let message = format!(
            "the tensor {} ({layout} layout) has the shape [120, 32], and [121, 32] is expected from config.json",
            shared(layout)
        );
        assert_eq!(checkpoint.fails(), message);
    }
}

#[test]
fn of_several_mistakes_always_the_same_is_told() {
    let checkpoint = Checkpoint::new("transformers", "two");
    checkpoint.change(|tensors| {
        for layer in 0..2 {
            tensors.remove(&format!("model.language_model.decoder.layers.{layer}.fc1.bias"));
        }
    });
    for _ in 0..8 {
        assert!(checkpoint.fails().contains("layers.0.fc1.bias"), "{}", checkpoint.fails());
    }
}

#[test]
fn one_tensor_under_two_names_is_refused() {
    let checkpoint = Checkpoint::new("microsoft", "twice");
    checkpoint.change(|tensors| {
        let projection = tensors["image_projection"].t().unwrap().contiguous().unwrap();
        tensors.insert("model.multi_modal_projector.image_projection.weight".to_owned(), projection);
    });
    assert_eq!(
        checkpoint.fails(),
        "the tensors image_projection and model.multi_modal_projector.image_projection.weight are the same one under two \
         names"
    );
}

#[test]
fn numbers_beyond_16_bits_are_refused_in_them() {
    let checkpoint = Checkpoint::new("transformers", "beyond");
    let name = "model.language_model.encoder.layers.1.fc1.weight";
    checkpoint.change(|tensors| {
        let values = (tensors[name].to_dtype(DType::F32).unwrap() * 1e6).unwrap();
        tensors.insert(name.to_owned(), values);
    });
    checkpoint.load().unwrap();
    for device in [Device::Cpu, Device::CandleCpu] {
        let candle = Candle { device, dtype: Dtype::F16, ..Candle::default() };
        let message = candle.load(&checkpoint.folder).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "the tensor {name} holds numbers beyond 65504, which this type of weights cannot hold: load them as f32"
            )
        );
    }
}

#[test]
fn numbers_that_are_none_are_refused() {
    let checkpoint = Checkpoint::new("transformers", "nan");
    let name = "model.language_model.encoder.layers.1.fc1.bias";
    checkpoint.change(|tensors| {
        let mut values: Vec<f32> = tensors[name].to_dtype(DType::F32).unwrap().to_vec1().unwrap();
        values[3] = f32::NAN;
        tensors.insert(name.to_owned(), Tensor::new(values, &candle_core::Device::Cpu).unwrap());
    });
    assert!(checkpoint.fails().starts_with(&format!("the tensor {name} holds infinite numbers or NaN")));
}

#[test]
fn broken_files_are_errors() {
    let checkpoint = Checkpoint::new("transformers", "broken");
    let path = checkpoint.path("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for length in [0, 7, 8, 100, 5000, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        let message = checkpoint.fails();
        assert!(
            message.starts_with("model.safetensors is not a whole file of weights: "),
            "{length}: {message}"
        );
    }
    // A header that says it is enormous, and one that is no JSON.
    let mut huge = bytes.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&path, &huge).unwrap();
    assert!(checkpoint.fails().contains("its header should have 18446744073709551615 bytes"));
    let mut garbled = bytes.clone();
    garbled[20] = 0xff;
    fs::write(&path, &garbled).unwrap();
    checkpoint.fails();
    // A Git LFS pointer, which is what a clone without LFS leaves.
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 463221266\n").unwrap();
    assert!(checkpoint.fails().contains("Git LFS"), "{}", checkpoint.fails());
    fs::remove_file(&path).unwrap();
    assert_eq!(
        checkpoint.fails(),
        ". holds no weights: model.safetensors, model.safetensors.index.json with its shards, or pytorch_model.bin is needed"
    );
    fs::create_dir(&path).unwrap();
    checkpoint.fails();
}

#[test]
fn configurations_that_are_not_done_are_refused() {
    type Case = (&'static str, fn(&mut Value), &'static str);
    let cases: [Case; 16] = [
        (
            "large window",
            |c| c["vision_config"]["window_size"] = json!(65),
            "vision_config.window_size is 65, but a number from 1 to 64",
        ),
        ("deep", |c| c["vision_config"]["depths"][2] = json!(300), "vision_config.depths[2] is 300"),
        (
            "layers",
            |c| c["text_config"]["decoder_layers"] = json!(100_000),
            "text_config.decoder_layers is 100000",
        ),
        ("model_type", |c| c["model_type"] = json!("llava"), "config.json: model_type is llava"),
        (
            "activation",
            |c| c["text_config"]["activation_function"] = json!("relu"),
            "text_config.activation_function is relu, but only gelu is supported",
        ),
        ("heads", |c| c["text_config"]["encoder_attention_heads"] = json!(5), "it must divide the width, 32"),
        ("no heads", |c| c["vision_config"]["num_heads"][0] = json!(0), "vision_config.num_heads[0] is 0"),
        ("stages", |c| c["vision_config"]["depths"] = json!([1]), "the length of vision_config.depths is 1"),
        ("no stage", |c| c["vision_config"]["embed_dim"] = json!([]), "vision_config.embed_dim"),
        ("huge", |c| c["text_config"]["d_model"] = json!(1u64 << 40), "text_config.d_model is 1099511627776"),
        (
            "width",
            |c| c["vision_config"]["projection_dim"] = json!(64),
            "image tokens need the text's width, 32",
        ),
        ("window", |c| c["vision_config"]["window_size"] = json!(0), "vision_config.window_size is 0"),
        (
            "stride",
            |c| c["vision_config"]["patch_stride"][1] = json!(0),
            "vision_config.patch_stride[1] is 0",
        ),
        (
            "padding",
            |c| c["vision_config"]["patch_padding"][1] = json!(9),
            "vision_config.patch_padding[1] is 9",
        ),
        ("eos", |c| c["text_config"]["eos_token_id"] = json!(500), "text_config.eos_token_id is 500"),
        ("untied", |c| c["tie_word_embeddings"] = json!(false), "tie_word_embeddings is false"),
    ];
    for (name, change, expected) in cases {
        let checkpoint = Checkpoint::new("transformers", &format!("config-{name}"));
        let message = checkpoint.config(change).fails();
        assert!(message.contains(expected), "{name}: {message}");
    }
    let checkpoint = Checkpoint::new("transformers", "config-text");
    fs::write(checkpoint.path("config.json"), "{").unwrap();
    assert!(checkpoint.fails().starts_with("config.json is not the JSON that is expected: EOF"));
    fs::remove_file(checkpoint.path("config.json")).unwrap();
    assert!(checkpoint.fails().starts_with("cannot read config.json: No such file"));
}

#[test]
fn picture_sizes_that_do_not_work_are_refused() {
    let load = |size| Candle { image_size: Some(size), ..Candle::default() }.load(&tiny("transformers"));
    for size in [(0, 104), (104, 0), (usize::MAX, 104), (8193, 104)] {
        assert!(load(size).unwrap_err().to_string().contains("a side of the picture is "));
    }
    assert!(load((3, 3)).is_ok());
    let error = load((800, 104)).unwrap_err().to_string();
    assert!(error.contains("needs more than 8 positions"), "{error}");
}

#[test]
fn a_folder_is_inspected() {
    let found = inspect(&tiny("microsoft"));
    let weights = found.weights.unwrap();
    assert_eq!((weights.layout, &weights.dtypes[..]), (Layout::Microsoft, &["f16".to_owned()][..]));
    assert_eq!(found.image_size.unwrap(), (104, 104));
    assert_eq!(found.vocabulary_size.unwrap(), 120);
    let weights = inspect(&tiny("transformers")).weights.unwrap();
    assert_eq!(weights.layout, Layout::Transformers);
    // A network from memory knows the same, but for the files.
    let read = |file: &str| fs::read(tiny("transformers").join(file)).unwrap();
    let config = String::from_utf8(read("config.json")).unwrap();
    let candle = Candle { image_size: Some((104, 104)), ..Candle::default() };
    let model = candle.load_bytes(&config, read("model.safetensors")).unwrap();
    assert!(model.weights().files.is_empty() && model.weights().tensors > 100);
    assert_eq!(model.weights().tensors, weights.tensors);
    assert_eq!(model.weights().parameters, weights.parameters);
    assert_eq!(load(&tiny("transformers"), Device::Cpu, Dtype::F32).weights(), &weights);
}

/// One file that is broken does not hide what the others hold.
#[test]
fn each_file_is_inspected_by_itself() {
    let outcome = |checkpoint: &Checkpoint| {
        let found = inspect(&checkpoint.folder);
        [found.vocabulary_size.is_ok(), found.weights.is_ok(), found.image_size.is_ok()]
    };
    for (at, file) in ["config.json", "model.safetensors", "preprocessor_config.json"].into_iter().enumerate()
    {
        let checkpoint = Checkpoint::new("transformers", "inspected");
        assert_eq!(outcome(&checkpoint), [true; 3]);
        fs::write(checkpoint.path(file), "{").unwrap();
        let mut expected = [true; 3];
        expected[at] = false;
        assert_eq!(outcome(&checkpoint), expected, "{file}");
    }
    let checkpoint = Checkpoint::new("transformers", "inspected");
    fs::write(checkpoint.path("preprocessor_config.json"), r#"{"size": [800, 104]}"#).unwrap();
    assert_eq!(outcome(&checkpoint), [true, true, false]);
}

const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 463221266\n";
const WEB_PAGE: &str = "\r\n<!DOCTYPE html>\n<html><body>Please log in</body></html>";

#[test]
fn what_stands_in_the_place_of_a_file_is_named() {
    let pointer = "a pointer of Git LFS; `git lfs pull` fetches the file itself";
    let page =
        "a web page, as a download saves it that was refused or sent elsewhere; download the file again";
    let weights = "is not a whole file of weights: it";
    for (file, how) in [
        ("config.json", ""),
        ("preprocessor_config.json", ""),
        ("model.safetensors.index.json", ""),
        ("pytorch_model.bin.index.json", ""),
        ("model.safetensors", weights),
        ("pytorch_model.bin", weights),
    ] {
        for (content, what) in [(LFS_POINTER, pointer), (WEB_PAGE, page), (WEB_PAGE.trim(), page)] {
            let checkpoint = Checkpoint::new("transformers", "substitute");
            if !checkpoint.path(file).exists() {
                fs::remove_file(checkpoint.path("model.safetensors")).unwrap();
            }
            fs::write(checkpoint.path(file), content).unwrap();
            let expected = format!("{file} {how} is {what}").replace("  ", " ");
            assert_eq!(checkpoint.fails(), expected);
        }
    }
}

#[test]
fn errors_of_a_file_name_its_folder_too() {
    for (file, content) in [
        ("config.json", "{"),
        ("config.json", LFS_POINTER),
        ("config.json", r#"{"model_type": "llava"}"#),
        ("config.json", r#"{"model_type": 7}"#),
        ("preprocessor_config.json", "["),
        ("preprocessor_config.json", r#"{"size": 768}"#),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", r#"{"weight_map": {}}"#),
        ("model.safetensors.index.json", r#"{"weight_map": {"a": "b.safetensors"}}"#),
    ] {
        let checkpoint = Checkpoint::new("transformers", "path");
        if file.contains("index") {
            fs::remove_file(checkpoint.path("model.safetensors")).unwrap();
        }
        fs::write(checkpoint.path(file), content).unwrap();
        let message = checkpoint.load().unwrap_err().to_string();
        let path = checkpoint.path(file).display().to_string();
        assert!(message.starts_with(&path), "{content}: {message}");
    }
    // An index that its shards do not agree with.
    let checkpoint = Checkpoint::new("transformers", "path");
    fs::rename(checkpoint.path("model.safetensors"), checkpoint.path("a.safetensors")).unwrap();
    let index = checkpoint.path("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"odd": "a.safetensors"}}"#).unwrap();
    let message = checkpoint.load().unwrap_err().to_string();
    assert_eq!(message, format!("{}: a.safetensors does not hold the tensor odd", index.display()));
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let checkpoint = Checkpoint::new("microsoft", "mark");
    let mark = |file: &str| {
        let text = fs::read_to_string(checkpoint.path(file)).unwrap();
        fs::write(checkpoint.path(file), format!("\u{feff}{text}")).unwrap();
    };
    mark("config.json");
    mark("preprocessor_config.json");
    checkpoint.works();
    fs::rename(checkpoint.path("model.safetensors"), checkpoint.path("a.safetensors")).unwrap();
    let tensors = candle_core::safetensors::load(checkpoint.path("a.safetensors"), &candle_core::Device::Cpu);
    let names = tensors.unwrap().into_keys().map(|name| (name, json!("a.safetensors")));
    let map: serde_json::Map<String, Value> = names.collect();
    let index = json!({"weight_map": map}).to_string();
    fs::write(checkpoint.path("model.safetensors.index.json"), index).unwrap();
    mark("model.safetensors.index.json");
    checkpoint.works();
}

#[test]
fn a_file_of_json_is_not_read_beyond_all_proportion() {
    let checkpoint = Checkpoint::new("transformers", "long");
    fs::write(checkpoint.path("config.json"), " ".repeat((16 << 20) + 1)).unwrap();
    assert!(checkpoint.fails().contains("over 16777216 bytes"), "{}", checkpoint.fails());
}
