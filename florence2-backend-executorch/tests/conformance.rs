//! The laws of `florence2_core::dev::conformance`, on the demo's programs, in both forms.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::path::{Path, PathBuf};
use std::thread;

use florence2_backend_executorch::{ExecuTorch, ExecuTorchModel, Form};
use florence2_core::dev::conformance::{Fixture, Violation, check_all, check_apart, picture};
use florence2_core::{Ask, VisionSeq2Seq};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/executorch")
}

fn load(form: Form) -> ExecuTorchModel {
    let model = ExecuTorch { form: Some(form), ..ExecuTorch::default() }.load(&demo()).unwrap();
    assert_eq!(model.form(), form);
    model
}

fn fixture(check: impl FnOnce(&Fixture<'_>) -> Result<(), Violation>) {
    let fixture = Fixture {
        pixels: &[picture(0, 192, 192), picture(1, 192, 192)],
        prompts: &[&[0, 5, 6, 7, 8, 9, 2], &[0, 11, 2], &[0, 20, 21, 22, 2]],
        tokens: &[0, 17, 4, 90, 33],
        tolerance: 1e-4,
        use_up_positions: true,
    };
    if let Err(violation) = check(&fixture) {
        panic!("{violation}");
    }
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn a_decoder_with_a_cache_keeps_the_laws() {
    fixture(|fixture| check_all(&mut load(Form::Cached), fixture));
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn a_decoder_with_a_window_keeps_the_laws() {
    fixture(|fixture| check_all(&mut load(Form::Window), fixture));
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn images_and_states_of_another_network_are_refused() {
    fixture(|fixture| check_apart(&mut load(Form::Cached), &mut load(Form::Window), fixture));
}

/// More rows than a run takes, and steps beyond the first entries of the cache.
fn walk(model: &mut ExecuTorchModel) -> (Vec<f32>, Vec<f32>) {
    let images = model.encode_image(&[picture(0, 192, 192)]).unwrap();
    let ask = Ask { image: &images[0], prompt: &[0, 5, 6, 7, 2] };
    let mut state = model.encode_prompt(&[ask]).unwrap();
    model.select_rows(&mut state, &[0; 11]).unwrap();
    let mut logits = vec![0.0; 11 * model.spec().vocabulary_size];
    for token in 2..40 {
        let tokens: Vec<u32> = (0..11).map(|row| token + row % 3).collect();
        model.decode_step(&mut state, &tokens, &mut logits).unwrap();
    }
    (images[0].as_slice().to_vec(), logits)
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn networks_that_run_at_once_give_the_same() {
    for form in [Form::Cached, Form::Window] {
        at_once(form);
    }
}

fn at_once(form: Form) {
    let alone = walk(&mut load(form));
    let run = || {
        let mut model = load(form);
        move || {
            let first = walk(&mut model);
            assert!(walk(&mut model) == first, "the second time");
            first
        }
    };
    let runs: Vec<_> = (0..4).map(|_| run()).collect();
    let running: Vec<_> = runs.into_iter().map(thread::spawn).collect();
    for run in running {
        assert!(run.join().unwrap() == alone);
    }
}

#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn both_forms_and_any_number_of_rows_give_the_same_logits() {
    let (_, cached) = walk(&mut load(Form::Cached));
    let (_, window) = walk(&mut load(Form::Window));
    for (a, b) in cached.iter().zip(&window) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
    // Rows that were fed the same, in different runs.
    let vocabulary = cached.len() / 11;
    assert!(cached[..vocabulary] == cached[9 * vocabulary..][..vocabulary]);
}

/// A window computes all of a row anew, so that it cannot mix rows up.
#[test]
#[cfg_attr(
    not(feature = "runtime"),
    ignore = "needs the feature runtime, for which tools/get-executorch.sh is run first"
)]
fn rows_that_are_repeated_reordered_and_dropped_are_as_in_a_window() {
    // Its cached form runs three rows at once.
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tiny");
    let [mut cached, mut window] = [Form::Cached, Form::Window]
        .map(|form| ExecuTorch { form: Some(form), ..ExecuTorch::default() }.load(&tiny).unwrap());
    let prompts: [&[u32]; 2] = [&[0, 5, 6, 7, 2], &[0, 11, 2]];
    let begin = |model: &mut ExecuTorchModel| {
        let images = model.encode_image(&[picture(0, 136, 104), picture(1, 136, 104)]).unwrap();
        let asks = images.iter().zip(prompts).map(|(image, prompt)| Ask { image, prompt });
        model.encode_prompt(&asks.collect::<Vec<_>>()).unwrap()
    };
    let mut random = 1u32;
    let mut next = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) as usize % below
    };
    for walk in 0..6 {
        let (mut one, mut other) = (begin(&mut cached), begin(&mut window));
        // The cache grows at 32.
        for step in 0..40 {
            let rows: Vec<usize> = (0..1 + next(8)).map(|_| next(one.rows())).collect();
            cached.select_rows(&mut one, &rows).unwrap();
            window.select_rows(&mut other, &rows).unwrap();
            let tokens: Vec<u32> = rows.iter().map(|_| next(120) as u32).collect();
            let mut logits = [vec![0.0; rows.len() * 120], vec![0.0; rows.len() * 120]];
            cached.decode_step(&mut one, &tokens, &mut logits[0]).unwrap();
            window.decode_step(&mut other, &tokens, &mut logits[1]).unwrap();
            let close = logits[0].iter().zip(&logits[1]).all(|(a, b)| (a - b).abs() < 1e-4);
            assert!(close, "walk {walk}, step {step}, rows {rows:?}");
        }
    }
}
