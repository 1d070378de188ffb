//! The network, stage by stage, by backend and dtype: on the demo, or on the checkpoint that `FLORENCE2_CHECKPOINT` names,
//! the ONNX parts that `FLORENCE2_ONNX` names and the ExecuTorch programs that `FLORENCE2_PTE` names, where any is given.
//!
//! For real sizes `florence2 bench` is quicker; `tools/compare.py` runs it beside PyTorch and ONNX Runtime.

use std::cell::RefCell;
use std::ffi::OsString;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use florence2::candle::{Candle, Dtype};
use florence2::tract::Tract;
use florence2::{Ask, GenerationConfig, PixelValues, VisionSeq2Seq, generate};

fn network(c: &mut Criterion) {
    let named = |variable: &str| std::env::var_os(variable).filter(|folder| !folder.is_empty());
    let (checkpoint, onnx, pte) =
        (named("FLORENCE2_CHECKPOINT"), named("FLORENCE2_ONNX"), named("FLORENCE2_PTE"));
    let demo = |part: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("demo").join(part);
    // Figures of the demo beside those of another size would only mislead.
    let is_demo = checkpoint.is_none() && onnx.is_none() && pte.is_none();
    let folder = |named: Option<OsString>, part: &str| {
        named.map(PathBuf::from).or_else(|| is_demo.then(|| demo(part)))
    };
    if let Some(folder) = folder(checkpoint, "checkpoint") {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let mut model =
                Candle { dtype, ..Candle::default() }.load(&folder).expect("the checkpoint loads");
            stages(c, &format!("candle {dtype}"), &mut model);
        }
    }
    if let Some(folder) = folder(onnx, "onnx") {
        // All variants are computed alike.
        stages(c, "tract", &mut Tract::default().load(&folder).expect("the parts load"));
    }
    #[cfg(feature = "executorch")]
    if let Some(folder) = folder(pte, "executorch") {
        use florence2::executorch::{ExecuTorch, Form, Variants};
        // The demo has one variant of each part.
        let variants: &[&str] = if is_demo { &["fp32 with vision in fp16"] } else { &["fp32", "int8"] };
        for variant in variants {
            let own = if is_demo { Variants::default() } else { variant.parse().expect("a variant") };
            for form in [Form::Cached, Form::Window] {
                let executorch = ExecuTorch { variants: own, form: Some(form), ..ExecuTorch::default() };
                let mut model = executorch.load(&folder).expect("the programs load");
                stages(c, &format!("executorch {variant}, {form:?}"), &mut model);
            }
        }
    }
    #[cfg(not(feature = "executorch"))]
    let _ = pte;
}

fn stages<M: VisionSeq2Seq>(c: &mut Criterion, name: &str, model: &mut M)
where
    M::Error: std::fmt::Debug,
{
    let (width, height) = (model.spec().image_width, model.spec().image_height);
    let grey = |index: usize| (index % 251) as f32 / 100.0 - 1.25;
    let pixels =
        PixelValues::new(width, height, (0..3 * width * height).map(grey).collect()).expect("its size");
    let image = model.encode_image(std::slice::from_ref(&pixels)).expect("a picture").remove(0);
    let ask = [Ask { image: &image, prompt: &[0, 10, 11, 12, 13, 14, 15, 16, 2] }];
    let mut group = c.benchmark_group(format!("network/{name}"));
    group.sample_size(10);
    group.bench_function("vision", |b| {
        b.iter(|| model.encode_image(black_box(std::slice::from_ref(&pixels))));
    });
    group.bench_function("prompt", |b| b.iter(|| model.encode_prompt(black_box(&ask))));
    for rows in [1, 3] {
        let mut logits = vec![0.0; rows * model.spec().vocabulary_size];
        let tokens = vec![2; rows];
        // Twenty steps on a fresh state, which is not measured.
        group.bench_function(format!("20 steps, {rows} rows"), |b| {
            let fresh = |model: &mut M| {
                let mut state = model.encode_prompt(&ask).expect("a prompt");
                model.select_rows(&mut state, &vec![0; rows]).expect("its row");
                state
            };
            let model = RefCell::new(&mut *model);
            b.iter_batched(
                || fresh(&mut model.borrow_mut()),
                |mut state| {
                    for _ in 0..20 {
                        let result = model.borrow_mut().decode_step(&mut state, &tokens, &mut logits);
                        result.expect("a step");
                    }
                    state
                },
                BatchSize::PerIteration,
            );
        });
    }
    for beams in [1, 3] {
        let config = GenerationConfig {
            beams,
            max_new_tokens: Some(20),
            min_new_tokens: 19,
            ..GenerationConfig::default()
        };
        group.bench_function(format!("caption of 20 tokens, {beams} beams"), |b| {
            b.iter(|| {
                let image = model.encode_image(std::slice::from_ref(&pixels)).expect("a picture").remove(0);
                let ask = [Ask { image: &image, prompt: ask[0].prompt }];
                generate(model, &ask, &config, &mut |_| ControlFlow::Continue(()))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, network);
criterion_main!(benches);
