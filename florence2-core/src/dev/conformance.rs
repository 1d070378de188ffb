//! What every implementation of [`VisionSeq2Seq`] must keep, as laws that a backend's tests call.
//!
//! ```
//! use florence2_core::PixelValues;
//! use florence2_core::dev::conformance::{Fixture, check_all};
//! use florence2_core::dev::scripted::{Script, Scripted};
//!
//! let picture = |grey| PixelValues::new(6, 4, vec![grey; 3 * 6 * 4]);
//! let pixels = [picture(0.25)?, picture(0.5)?];
//! let fixture = Fixture {
//!     pixels: &pixels,
//!     prompts: &[&[0, 5, 2], &[0, 7, 8, 9, 2]],
//!     tokens: &[0, 11, 6, 4],
//!     tolerance: 1e-5,
//!     use_up_positions: true,
//! };
//! check_all(&mut Scripted::small(12, Script::default()), &fixture)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a request leaves behind belongs to its state, so that one network serves for all laws, one after the other.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{Debug, Display};

use crate::model::{Ask, PixelValues, VisionSeq2Seq};

/// What a network is tried with.
#[derive(Clone, Copy, Debug)]
pub struct Fixture<'a> {
    /// Pictures that differ, two or more.
    pub pixels: &'a [PixelValues],
    /// Prompts that differ in length, two or more.
    pub prompts: &'a [&'a [u32]],
    /// Tokens to feed after the start token: three or more, of which two differ.
    pub tokens: &'a [u32],
    /// How far apart two logits may be that should be equal. Questions that differ must move a logit by more.
    pub tolerance: f32,
    /// Whether to feed as many tokens as there are positions, which takes time.
    pub use_up_positions: bool,
}

/// A law that a network breaks, or a fixture that shows nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{law}: {what}")]
pub struct Violation {
    /// The name of the law.
    pub law: &'static str,
    /// What happened.
    pub what: String,
}

/// Whether a network keeps a law: what happened, if it does not.
pub type Law<M> = fn(&mut M, &Fixture<'_>) -> Result<(), String>;

/// All laws, by name.
pub fn laws<M: VisionSeq2Seq>() -> Vec<(&'static str, Law<M>)> {
    vec![
        ("the description is sound", description_is_sound),
        ("logits depend on picture, prompt and tokens", logits_depend_on_everything),
        ("pictures in a batch are as alone", pictures_in_a_batch_are_as_alone),
        ("a picture serves many prompts", a_picture_serves_many_prompts),
        ("asks in a batch are as alone", asks_in_a_batch_are_as_alone),
        ("selected rows are what they were", selected_rows_are_what_they_were),
        ("states do not disturb each other", states_do_not_disturb_each_other),
        ("a dropped state leaves nothing behind", a_dropped_state_leaves_nothing_behind),
        ("bad input is refused, and does no harm", bad_input_is_refused),
        ("every position can be used, and no more", every_position_can_be_used),
    ]
}

/// Tries every law.
///
/// # Errors
///
/// With the first law that is broken.
pub fn check_all<M: VisionSeq2Seq>(model: &mut M, fixture: &Fixture<'_>) -> Result<(), Violation> {
    for (law, check) in laws() {
        fixture_shows_something(fixture)
            .and_then(|()| check(model, fixture))
            .map_err(|what| Violation { law, what })?;
    }
    Ok(())
}

/// A picture to try a network with; `tools/random_checkpoint.py` computes it by the same rule.
///
/// # Panics
///
/// If a side is zero.
pub fn picture(number: usize, width: usize, height: usize) -> PixelValues {
    let mut values = Vec::with_capacity(3 * width * height);
    for c in 0..3 {
        for y in 0..height {
            for x in 0..width {
                let grey = (x * (3 + c) + y * (7 - 2 * c)) / 4
                    + (x / 32) * 37
                    + (y / 32) * 91
                    + c * 53
                    + number * 101;
                values.push((grey % 256) as f32 / 127.5 - 1.0);
            }
        }
    }
    PixelValues::new(width, height, values).expect("as many values as it has pixels")
}

/// That a network refuses what another one of its kind has made, and that what was refused comes to no harm.
///
/// # Errors
///
/// If it does not.
pub fn check_apart<M: VisionSeq2Seq>(
    model: &mut M,
    other: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), Violation> {
    let broken = |what: String| Violation { law: "networks are told apart", what };
    let failed = |error: M::Error| broken(format!("{error}"));
    let says = |error: Option<M::Error>, expected: &str| match error {
        Some(error) if format!("{error}") == expected => Ok(()),
        Some(error) => Err(broken(format!("{error:?} and not {expected:?}"))),
        None => Err(broken(format!("accepted, and not {expected:?}"))),
    };
    let images = other.encode_image(&fixture.pixels[..1]).map_err(failed)?;
    let asks = [Ask { image: &images[0], prompt: fixture.prompts[0] }];
    let refused = model.encode_prompt(&asks).err();
    says(refused, "ask 0's image was encoded by another network than this one")?;
    let mut state = other.encode_prompt(&asks).map_err(failed)?;
    let refused = model.select_rows(&mut state, &[0]).err();
    says(refused, "the state was made by another network than this one")?;
    let start = other.spec().special.decoder_start;
    let mut logits = vec![0.0; other.spec().vocabulary_size];
    other.decode_step(&mut state, &[start], &mut logits).map_err(failed)
}

fn fixture_shows_something(fixture: &Fixture<'_>) -> Result<(), String> {
    let Fixture { pixels, prompts, tokens, .. } = fixture;
    require(pixels.len() > 1 && pixels[0] != pixels[1], || {
        "the fixture needs two pictures that differ".into()
    })?;
    require(prompts.iter().any(|prompt| prompt.len() != prompts[0].len()), || {
        "the fixture needs prompts that differ in length".into()
    })?;
    require(tokens.len() > 2 && tokens.iter().any(|token| *token != tokens[0]), || {
        "the fixture needs three tokens or more, of which two differ".into()
    })
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn ran<T, E: Display>(what: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("{what} failed: {error}"))
}

fn encode<M: VisionSeq2Seq>(model: &mut M, pixels: &[PixelValues]) -> Result<Vec<M::Image>, String> {
    let images = ran("encode_image", model.encode_image(pixels))?;
    require(images.len() == pixels.len(), || {
        format!("{} images came of {} pictures", images.len(), pixels.len())
    })?;
    Ok(images)
}

/// One step: the logits of each row.
fn decode<M: VisionSeq2Seq>(
    model: &mut M,
    state: &mut M::State,
    tokens: &[u32],
) -> Result<Vec<Vec<f32>>, String> {
    let vocabulary = model.spec().vocabulary_size;
    // What is not written shows.
    let mut logits = vec![f32::NAN; tokens.len() * vocabulary];
    ran("decode_step", model.decode_step(state, tokens, &mut logits))?;
    if let Some(at) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(format!(
            "the logit of token {} in row {} is NaN or was not written",
            at % vocabulary,
            at / vocabulary
        ));
    }
    Ok(logits.chunks(vocabulary).map(<[f32]>::to_vec).collect())
}

/// The logits of one ask after the start token and `tokens`, step by step, in a state of its own.
fn alone<M: VisionSeq2Seq>(
    model: &mut M,
    ask: Ask<'_, M::Image>,
    tokens: &[u32],
) -> Result<Vec<Vec<f32>>, String> {
    let start = model.spec().special.decoder_start;
    let mut state = ran("encode_prompt", model.encode_prompt(&[ask]))?;
    let mut steps = Vec::new();
    for &token in [start].iter().chain(tokens) {
        steps.extend(decode(model, &mut state, &[token])?);
    }
    Ok(steps)
}

/// The greatest distance between two logits of a token.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let apart = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() };
    a.iter().zip(b).map(apart).fold(0.0, f32::max)
}

fn same(
    found: &[f32],
    expected: &[f32],
    fixture: &Fixture<'_>,
    what: impl FnOnce() -> String,
) -> Result<(), String> {
    let distance = distance(found, expected);
    require(distance <= fixture.tolerance, || {
        format!("{}: logits are up to {distance} apart, over the tolerance of {}", what(), fixture.tolerance)
    })
}

fn same_steps(
    found: &[Vec<f32>],
    expected: &[Vec<f32>],
    fixture: &Fixture<'_>,
    what: impl Fn() -> String,
) -> Result<(), String> {
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        same(found, expected, fixture, || format!("{}, step {step}", what()))?;
    }
    Ok(())
}

/// Every prompt with every picture.
fn questions<'a, I>(images: &'a [I], fixture: &Fixture<'a>) -> Vec<Ask<'a, I>> {
    images.iter().flat_map(|image| fixture.prompts.iter().map(move |prompt| Ask { image, prompt })).collect()
}

/// The token that row `row` is fed in a step: other ones in other rows.
fn token_of(fixture: &Fixture<'_>, row: usize, step: usize) -> u32 {
    fixture.tokens[(step + row) % fixture.tokens.len()]
}

/// Sizes are not zero, ids lie within the vocabulary, and there is room for a prompt and for a token.
fn description_is_sound<M: VisionSeq2Seq>(model: &mut M, _: &Fixture<'_>) -> Result<(), String> {
    let spec = model.spec();
    require(spec.image_width > 0 && spec.image_height > 0, || {
        format!("a picture has no side of zero: {spec:?}")
    })?;
    require(spec.max_prompt_tokens > 0 && spec.max_positions > 0, || {
        format!("there is room for a prompt and for a token: {spec:?}")
    })?;
    let ids = spec.special;
    for (name, id) in
        [("bos", ids.bos), ("pad", ids.pad), ("eos", ids.eos), ("decoder_start", ids.decoder_start)]
    {
        require((id as usize) < spec.vocabulary_size, || {
            format!("{name} is {id}, outside of a vocabulary of {}", spec.vocabulary_size)
        })?;
    }
    Ok(())
}

/// Another picture, another prompt or another token, the last one or one before, gives other logits.
///
/// Otherwise no other law would show anything.
fn logits_depend_on_everything<M: VisionSeq2Seq>(model: &mut M, fixture: &Fixture<'_>) -> Result<(), String> {
    let images = encode(model, &fixture.pixels[..2])?;
    let prompts = fixture.prompts;
    let other = prompts.iter().find(|prompt| prompt.len() != prompts[0].len()).copied().unwrap_or_default();
    let tokens = fixture.tokens;
    let changed = tokens.iter().copied().find(|token| *token != tokens[0]).unwrap_or(tokens[0]);
    let first_changed: Vec<u32> = [changed].iter().chain(&tokens[1..]).copied().collect();
    let last = |model: &mut M, image, prompt, tokens: &[u32]| {
        alone(model, Ask { image, prompt }, tokens).map(|mut steps| steps.pop().unwrap_or_default())
    };
    let base = last(model, &images[0], prompts[0], tokens)?;
    for (what, found) in [
        ("the picture", last(model, &images[1], prompts[0], tokens)?),
        ("the prompt", last(model, &images[0], other, tokens)?),
        ("the first token", last(model, &images[0], prompts[0], &first_changed)?),
    ] {
        require(distance(&found, &base) > fixture.tolerance, || format!("{what} changes no logit"))?;
    }
    let mut ends = Vec::new();
    for &token in &[tokens[0], changed] {
        ends.push(last(model, &images[0], prompts[0], &[tokens[1], token])?);
    }
    require(distance(&ends[0], &ends[1]) > fixture.tolerance, || "the last token changes no logit".into())
}

/// A picture is encoded the same in a batch and alone, and the images come in the order of the pictures.
fn pictures_in_a_batch_are_as_alone<M: VisionSeq2Seq>(
    model: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), String> {
    let none = encode(model, &[])?;
    require(none.is_empty(), || "no picture gives an image".into())?;
    let batch = encode(model, fixture.pixels)?;
    for (at, (image, pixels)) in batch.iter().zip(fixture.pixels).enumerate() {
        let prompt = fixture.prompts[0];
        let single = encode(model, core::slice::from_ref(pixels))?;
        let expected = alone(model, Ask { image: &single[0], prompt }, &fixture.tokens[..1])?;
        let found = alone(model, Ask { image, prompt }, &fixture.tokens[..1])?;
        same_steps(&found, &expected, fixture, || format!("picture {at} of {} and alone", batch.len()))?;
    }
    Ok(())
}

/// An image that was encoded once answers every prompt as one that is encoded for each.
fn a_picture_serves_many_prompts<M: VisionSeq2Seq>(
    model: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), String> {
    let pixels = &fixture.pixels[..1];
    let once = encode(model, pixels)?;
    for round in 0..2 {
        for (at, prompt) in fixture.prompts.iter().enumerate() {
            let fresh = encode(model, pixels)?;
            let expected = alone(model, Ask { image: &fresh[0], prompt }, fixture.tokens)?;
            let found = alone(model, Ask { image: &once[0], prompt }, fixture.tokens)?;
            same_steps(&found, &expected, fixture, || format!("prompt {at}, round {round}"))?;
        }
    }
    Ok(())
}

/// An ask has the same logits in a batch of other pictures, other prompts, longer ones too, and other tokens, as alone.
fn asks_in_a_batch_are_as_alone<M: VisionSeq2Seq>(
    model: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), String> {
    let images = encode(model, fixture.pixels)?;
    let mut asks = questions(&images, fixture);
    for order in ["as given", "reversed"] {
        let start = model.spec().special.decoder_start;
        let mut state = ran("encode_prompt", model.encode_prompt(&asks))?;
        let mut steps = vec![decode(model, &mut state, &vec![start; asks.len()])?];
        for step in 0..fixture.tokens.len() {
            let tokens: Vec<u32> = (0..asks.len()).map(|row| token_of(fixture, row, step)).collect();
            steps.push(decode(model, &mut state, &tokens)?);
        }
        for (row, &ask) in asks.iter().enumerate() {
            let tokens: Vec<u32> =
                (0..fixture.tokens.len()).map(|step| token_of(fixture, row, step)).collect();
            let expected = alone(model, ask, &tokens)?;
            let found: Vec<Vec<f32>> = steps.iter().map(|rows| rows[row].clone()).collect();
            same_steps(&found, &expected, fixture, || {
                format!("row {row} of {}, a prompt of {}, {order}", asks.len(), ask.prompt.len())
            })?;
        }
        asks.reverse();
    }
    Ok(())
}

/// Whichever rows are selected, repeated, reordered or dropped, and whenever, each goes on as if it had been alone.
fn selected_rows_are_what_they_were<M: VisionSeq2Seq>(
    model: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), String> {
    let images = encode(model, &fixture.pixels[..2])?;
    let prompts = fixture.prompts;
    let other = prompts.iter().find(|prompt| prompt.len() != prompts[0].len()).copied().unwrap_or_default();
    let asks = [
        Ask { image: &images[0], prompt: prompts[0] },
        Ask { image: &images[1], prompt: other },
        Ask { image: &images[1], prompt: prompts[0] },
    ];
    // What a beam search does: expand, reorder within each ask, take one beam twice, drop an ask. And what it does not.
    let plans: [&[&[usize]]; 6] = [
        &[&[0, 1, 2], &[0, 0, 1, 1, 2, 2], &[1, 0, 2, 2, 5, 4], &[0, 1, 4, 5], &[3, 3, 0]],
        &[&[2, 1, 0], &[1, 2, 0], &[2, 0, 1]],
        &[&[1], &[0, 0, 0], &[2, 1, 0], &[1]],
        &[&[0, 1, 2], &[2], &[0, 0]],
        &[&[2, 2, 2, 2, 2, 2, 2, 0], &[7, 0, 3], &[0, 1, 2]],
        &[&[0, 1, 2], &[0, 1], &[1, 0], &[0]],
    ];
    for (at, plan) in plans.into_iter().enumerate() {
        for select_first in [false, true] {
            let start = model.spec().special.decoder_start;
            let mut state = ran("encode_prompt", model.encode_prompt(&asks))?;
            // Each row: which ask it is, and the tokens after the start token.
            let mut rows: Vec<(usize, Vec<u32>)> = (0..asks.len()).map(|ask| (ask, Vec::new())).collect();
            if !select_first {
                decode(model, &mut state, &vec![start; rows.len()])?;
            }
            for (step, &selected) in plan.iter().enumerate() {
                ran("select_rows", model.select_rows(&mut state, selected))?;
                rows = selected.iter().map(|&row| rows[row].clone()).collect();
                let starts = select_first && step == 0;
                let tokens: Vec<u32> = (0..rows.len())
                    .map(|row| if starts { start } else { token_of(fixture, row, step) })
                    .collect();
                let found = decode(model, &mut state, &tokens)?;
                for (row, (ask, history)) in rows.iter_mut().enumerate() {
                    if !starts {
                        history.push(tokens[row]);
                    }
                    let steps = alone(model, asks[*ask], history)?;
                    let expected = &steps[steps.len() - 1];
                    same(&found[row], expected, fixture, || {
                        format!("plan {at}, step {step}, after {selected:?}: row {row} and the same alone")
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// Two requests that take turns have the logits that each has alone.
fn states_do_not_disturb_each_other<M: VisionSeq2Seq>(
    model: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), String> {
    let start = model.spec().special.decoder_start;
    let images = encode(model, &fixture.pixels[..2])?;
    let asks = [0, 1].map(|at| Ask { image: &images[at], prompt: fixture.prompts[at] });
    let tokens = [0, 1].map(|row| (0..3).map(|step| token_of(fixture, row, step)).collect::<Vec<u32>>());
    let expected = [alone(model, asks[0], &tokens[0])?, alone(model, asks[1], &tokens[1])?];
    let mut first = ran("encode_prompt", model.encode_prompt(&asks[..1]))?;
    let mut found = [decode(model, &mut first, &[start])?, Vec::new()];
    let mut second = ran("encode_prompt", model.encode_prompt(&asks[1..]))?;
    found[1] = decode(model, &mut second, &[start])?;
    for step in 0..3 {
        found[0].extend(decode(model, &mut first, &tokens[0][step..=step])?);
        // Selecting in the one must not touch the other.
        ran("select_rows", model.select_rows(&mut second, &[0, 0]))?;
        ran("select_rows", model.select_rows(&mut second, &[1]))?;
        found[1].extend(decode(model, &mut second, &tokens[1][step..=step])?);
    }
    for at in 0..2 {
        same_steps(&found[at], &expected[at], fixture, || format!("request {at} of two, and alone"))?;
    }
    Ok(())
}

/// After a request was dropped, at its end or in the middle, the next one is as the first was.
fn a_dropped_state_leaves_nothing_behind<M: VisionSeq2Seq>(
    model: &mut M,
    fixture: &Fixture<'_>,
) -> Result<(), String> {
    let images = encode(model, &fixture.pixels[..2])?;
    let ask = Ask { image: &images[0], prompt: fixture.prompts[0] };
    let expected = alone(model, ask, fixture.tokens)?;
    for length in 0..fixture.tokens.len() {
        alone(model, Ask { image: &images[1], prompt: fixture.prompts[1] }, &fixture.tokens[..length])?;
        drop(ran("encode_prompt", model.encode_prompt(&questions(&images, fixture)))?);
        let found = alone(model, ask, fixture.tokens)?;
        same_steps(&found, &expected, fixture, || format!("after a request of {length} tokens"))?;
    }
    Ok(())
}

/// What the trait calls an error is one, and a new request is answered as before.
fn bad_input_is_refused<M: VisionSeq2Seq>(model: &mut M, fixture: &Fixture<'_>) -> Result<(), String> {
    let spec = model.spec().clone();
    let vocabulary = spec.vocabulary_size;
    let start = spec.special.decoder_start;
    let images = encode(model, &fixture.pixels[..1])?;
    let (image, prompt) = (&images[0], fixture.prompts[0]);
    let ask = Ask { image, prompt };
    let expected = alone(model, ask, fixture.tokens)?;
    let unharmed = |model: &mut M, after: &str| {
        let found = alone(model, ask, fixture.tokens).map_err(|what| format!("after {after}: {what}"))?;
        same_steps(&found, &expected, fixture, || format!("a new request after {after}"))
    };

    let (width, height) = (spec.image_width, spec.image_height);
    for (width, height) in [(width + 1, height), (width, height + 1), (1, 1), (2 * width, 2 * height)] {
        if (width, height) == (spec.image_width, spec.image_height) {
            continue;
        }
        let what = format!("a picture of {width}x{height}");
        let pixels = PixelValues::new(width, height, vec![0.0; 3 * width * height]);
        let pixels = pixels.map_err(|error| format!("{error}"))?;
        refused(&what, model.encode_image(core::slice::from_ref(&pixels)).map(|_| ()))?;
        refused(&what, model.encode_image(&[fixture.pixels[0].clone(), pixels]).map(|_| ()))?;
        unharmed(model, &what)?;
    }

    let outside = vocabulary as u32;
    let with_outside: Vec<u32> = prompt.iter().copied().chain([outside]).collect();
    let longest: Vec<u32> = prompt.iter().copied().cycle().take(spec.max_prompt_tokens).collect();
    alone(model, Ask { image, prompt: &longest }, &[])
        .map_err(|what| format!("a prompt of {} ids, which fits: {what}", longest.len()))?;
    let too_long: Vec<u32> = longest.iter().copied().chain([prompt[0]]).collect();
    let prompts: [(&str, &[u32]); 4] = [
        ("an empty prompt", &[]),
        ("a prompt that is too long", &too_long),
        ("a prompt with an id outside of the vocabulary", &with_outside),
        ("a prompt with the id u32::MAX", &[u32::MAX]),
    ];
    refused("no ask", model.encode_prompt(&[]).map(|_| ()))?;
    unharmed(model, "no ask")?;
    for (what, prompt) in prompts {
        let bad = Ask { image, prompt };
        refused(what, model.encode_prompt(&[bad]).map(|_| ()))?;
        refused(what, model.encode_prompt(&[ask, bad]).map(|_| ()))?;
        unharmed(model, what)?;
    }

    // In a state of two rows, before its first step and after it.
    let steps: [(&str, &[u32], usize); 6] = [
        ("too few tokens", &[start], 2 * vocabulary),
        ("too many tokens", &[start; 3], 2 * vocabulary),
        ("too few logits", &[start; 2], 2 * vocabulary - 1),
        ("too many logits", &[start; 2], 3 * vocabulary),
        ("a token outside of the vocabulary", &[start, outside], 2 * vocabulary),
        ("the token u32::MAX", &[u32::MAX, start], 2 * vocabulary),
    ];
    let selections: [(&str, &[usize]); 3] = [
        ("a selection of no row", &[]),
        ("a selection of a row that there is not", &[0, 2]),
        ("a selection of row usize::MAX", &[usize::MAX]),
    ];
    for begun in [false, true] {
        let state = |model: &mut M| {
            let mut state = ran("encode_prompt", model.encode_prompt(&[ask, ask]))?;
            if begun {
                decode(model, &mut state, &[start; 2])?;
            }
            Ok::<_, String>(state)
        };
        for (what, tokens, logits) in steps {
            let mut state = state(model)?;
            refused(what, model.decode_step(&mut state, tokens, &mut vec![0.0; logits]))?;
            unharmed(model, what)?;
        }
        for (what, rows) in selections {
            let mut state = state(model)?;
            refused(what, model.select_rows(&mut state, rows))?;
            unharmed(model, what)?;
        }
    }
    Ok(())
}

fn refused<E: Debug>(what: &str, result: Result<(), E>) -> Result<(), String> {
    require(result.is_err(), || format!("{what} was taken"))
}

/// So many tokens as the network has positions can be fed, and one more is an error.
fn every_position_can_be_used<M: VisionSeq2Seq>(model: &mut M, fixture: &Fixture<'_>) -> Result<(), String> {
    if !fixture.use_up_positions {
        return Ok(());
    }
    let positions = model.spec().max_positions;
    let start = model.spec().special.decoder_start;
    let images = encode(model, &fixture.pixels[..1])?;
    let mut state =
        ran("encode_prompt", model.encode_prompt(&[Ask { image: &images[0], prompt: fixture.prompts[0] }]))?;
    for position in 0..positions {
        let token = if position == 0 { start } else { token_of(fixture, 0, position) };
        decode(model, &mut state, &[token])
            .map_err(|what| format!("position {position} of {positions}: {what}"))?;
    }
    let mut logits = vec![0.0; model.spec().vocabulary_size];
    refused(
        "a token after the last position",
        model.decode_step(&mut state, &fixture.tokens[..1], &mut logits),
    )
}
