//! Generation: what the reference's `generate` returned, an implementation that is as simple as can be, and laws.
#![cfg(feature = "dev")]
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use florence2_core::dev::scripted::{Call, Script, Scripted, ScriptedImage};
use florence2_core::{
    Ask, ConfigError, EarlyStopping, Finish, GenerateError, Generated, GenerationConfig, ModelSpec, Progress,
    Sampling, Search, SearchError, SpecialIds, VisionSeq2Seq, generate,
};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::test_runner::TestRunner;
use serde_json::Value;

type Question = (ScriptedImage, Vec<u32>);

fn asks(questions: &[Question]) -> Vec<Ask<'_, ScriptedImage>> {
    questions.iter().map(|(image, prompt)| Ask { image, prompt }).collect()
}

/// Generates, and sees to it that what was settled is what came out.
fn run(model: &mut Scripted, questions: &[Question], config: &GenerationConfig) -> Vec<Vec<Generated>> {
    let mut settled = BTreeMap::<_, (Vec<u32>, Vec<f32>)>::new();
    let answers = generate(model, &asks(questions), config, &mut |progress| {
        let (tokens, log_probs) = settled.entry((progress.ask, progress.sequence)).or_default();
        tokens.extend(progress.tokens);
        log_probs.extend(progress.log_probs);
        ControlFlow::Continue(())
    });
    let answers = answers.unwrap_or_else(|error| panic!("{error:?}\n{config:?}"));
    let streams = if config.sampling.is_some() { config.sequences } else { 1 };
    for (at, answer) in answers.iter().enumerate() {
        for (sequence, generated) in answer.iter().enumerate().take(streams) {
            let (tokens, log_probs) = &settled[&(at, sequence)];
            assert_eq!((tokens, log_probs), (&generated.tokens, &generated.log_probs), "{config:?}");
        }
    }
    assert_eq!(settled.len(), questions.len() * streams);
    answers
}

fn close(a: f32, b: f32) -> bool {
    a == b || (a - b).abs() <= 1e-5 * b.abs().max(1.0)
}

mod golden {
    use super::*;

    fn lines() -> Vec<Value> {
        let lines = include_str!("../testdata/generation.jsonl").lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn number(value: &Value) -> f32 {
        value.as_f64().map_or(f32::NEG_INFINITY, |number| number as f32)
    }

    fn count(value: &Value) -> usize {
        value.as_u64().unwrap() as usize
    }

    fn ids(value: &Value) -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| count(id) as u32).collect()
    }

    fn config(line: &Value) -> GenerationConfig {
        GenerationConfig {
            max_new_tokens: Some(count(&line["max_new_tokens"])),
            min_new_tokens: count(&line["min_new_tokens"]),
            beams: count(&line["beams"]),
            sequences: count(&line["sequences"]),
            sampling: None,
            no_repeat_ngram: count(&line["no_repeat_ngram"]),
            force_bos: line["force_bos"].as_bool().unwrap(),
            force_eos: line["force_eos"].as_bool().unwrap(),
            length_penalty: number(&line["length_penalty"]),
            early_stopping: match &line["early_stopping"] {
                Value::Bool(true) => EarlyStopping::WhenEnough,
                Value::Bool(false) => EarlyStopping::Heuristic,
                never => {
                    assert_eq!(never, "never");
                    EarlyStopping::WhenCertain
                }
            },
        }
    }

    #[test]
    fn batches_are_generated_as_the_reference_does() {
        let (mut cases, mut sequences) = (0, 0);
        for line in lines().iter().filter(|line| line.get("answers").is_some()) {
            let script = Script {
                seed: line["script"]["seed"].as_u64().unwrap(),
                memory: line["script"]["memory"].as_u64().map_or(usize::MAX, |memory| memory as usize),
                flatness: count(&line["script"]["flatness"]) as u32,
                eos_bias: line["script"]["eos_bias"].as_i64().unwrap() as i8,
                holes: count(&line["script"]["holes"]) as u8,
            };
            let questions: Vec<Question> = line["asks"]
                .as_array()
                .unwrap()
                .iter()
                .map(|ask| (ScriptedImage(ask["image"].as_u64().unwrap()), ids(&ask["prompt"])))
                .collect();
            let config = config(&line["config"]);
            let mut model = Scripted::small(count(&line["vocabulary"]), script);
            let expected = line["answers"].as_array().unwrap();
            assert_eq!(questions.len(), expected.len(), "{line}");
            // The reference pads where every token is banned before anything is finished; we say so.
            let dead = |answer: &Value| answer.as_array().unwrap().is_empty();
            let answers = if expected.iter().any(dead) {
                let ignore = &mut |_: Progress<'_>| ControlFlow::Continue(());
                match generate(&mut model, &asks(&questions), &config, ignore) {
                    Err(GenerateError::Search(SearchError::NoTokenLeft { ask, .. })) => {
                        assert!(dead(&expected[ask]), "{ask}\n{line}");
                    }
                    other => panic!("{other:?}\n{line}"),
                }
                continue;
            } else {
                run(&mut model, &questions, &config)
            };
            for (answer, expected) in answers.iter().zip(expected) {
                let expected = expected.as_array().unwrap();
                assert_eq!(answer.len(), expected.len(), "{line}\n{answer:?}");
                for (found, expected) in answer.iter().zip(expected) {
                    assert_eq!(found.tokens, ids(&expected["tokens"]), "{line}\n{found:?}");
                    let log_probs = expected["log_probs"].as_array().unwrap();
                    assert_eq!(found.log_probs.len(), log_probs.len(), "{line}");
                    for (&found, expected) in found.log_probs.iter().zip(log_probs) {
                        assert!(close(found, number(expected)), "{found} {expected}\n{line}");
                    }
                    if let Some(score) = expected.get("score") {
                        assert!(close(found.score, number(score)), "{} {score}\n{line}", found.score);
                    }
                    sequences += 1;
                }
            }
            cases += 1;
        }
        assert!(cases >= 500 && sequences > 1000, "{cases} {sequences}");
    }

    #[test]
    fn distributions_are_those_of_the_reference() {
        let mut cases = 0;
        for line in lines().iter().filter(|line| line.get("scores").is_some()) {
            let scores: Vec<f32> = line["scores"].as_array().unwrap().iter().map(number).collect();
            let sampling = Sampling {
                temperature: number(&line["temperature"]),
                top_k: count(&line["top_k"]),
                top_p: number(&line["top_p"]),
                seed: 0,
            };
            let found = sampling.probabilities(&scores).unwrap();
            let expected: Vec<f32> = line["probabilities"].as_array().unwrap().iter().map(number).collect();
            for (token, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    (found == 0.0) == (expected == 0.0) && (found - expected).abs() <= 1e-6,
                    "{token}: {found} {expected}\n{line}"
                );
            }
            assert_eq!(found.len(), expected.len());
            cases += 1;
        }
        assert!(cases >= 100, "{cases}");
    }
}

/// Written from the description of the reference's search, with whole sequences, sorts and `f64`.
mod naive {
    use super::*;

    #[derive(Clone, Debug)]
    struct Beam {
        /// The start token first.
        tokens: Vec<u32>,
        log_probs: Vec<f64>,
        score: f64,
    }

    impl Beam {
        fn with(&self, token: u32, log_prob: f64) -> Self {
            let mut next = self.clone();
            next.tokens.push(token);
            next.log_probs.push(log_prob);
            next.score += log_prob;
            next
        }
    }

    fn scores(model: &Scripted, question: &Question, tokens: &[u32], config: &GenerationConfig) -> Vec<f64> {
        let ids = model.spec().special;
        let logits = model.logits(question.0, &question.1, tokens);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let mut scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) - total.ln()).collect();
        let made = tokens.len() - 1;
        let n = config.no_repeat_ngram;
        if n > 0 {
            for (token, score) in scores.iter_mut().enumerate() {
                let with: Vec<u32> = tokens.iter().copied().chain([token as u32]).collect();
                if with.len() > n
                    && with[..with.len() - 1].windows(n).any(|old| old == &with[with.len() - n..])
                {
                    *score = f64::NEG_INFINITY;
                }
            }
        }
        if made < config.min_new_tokens {
            scores[ids.eos as usize] = f64::NEG_INFINITY;
        }
        let forced = [
            (config.force_bos && made == 0, ids.bos),
            (config.force_eos && made + 1 == config.max_new_tokens.unwrap(), ids.eos),
        ];
        for (_, id) in forced.iter().filter(|(holds, _)| *holds) {
            scores.fill(f64::NEG_INFINITY);
            scores[*id as usize] = 0.0;
        }
        scores
    }

    /// Logits are no closer than an `f32` can tell, so that there is always an answer.
    fn greedy(model: &Scripted, question: &Question, config: &GenerationConfig) -> Beam {
        let ids = model.spec().special;
        let mut beam = Beam { tokens: vec![ids.decoder_start], log_probs: Vec::new(), score: 0.0 };
        for _ in 0..config.max_new_tokens.unwrap() {
            let scores = scores(model, question, &beam.tokens, config);
            let best = (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
            beam = beam.with(best as u32, scores[best]);
            if best as u32 == ids.eos {
                break;
            }
        }
        beam
    }

    /// Whether numbers, the greatest first, lie so far apart that `f32` has them in the same order.
    fn apart(scores: impl IntoIterator<Item = f64>) -> bool {
        let scores: Vec<f64> = scores.into_iter().collect();
        scores.windows(2).all(|pair| pair[0] - pair[1] > 1e-5 * pair[0].abs().max(1.0))
    }

    /// `None` where the outcome hangs on beams that are not live, or on what `f32` rounds.
    fn beams(model: &Scripted, question: &Question, config: &GenerationConfig) -> Option<Vec<(f64, Beam)>> {
        let ids = model.spec().special;
        let (n, limit) = (config.beams, config.max_new_tokens.unwrap());
        let penalty = f64::from(config.length_penalty);
        let mut running = vec![Beam { tokens: vec![ids.decoder_start], log_probs: Vec::new(), score: 0.0 }];
        let mut finished: Vec<(f64, Beam)> = Vec::new();
        for made in 1..=limit {
            let mut candidates: Vec<Beam> = running
                .iter()
                .flat_map(|beam| {
                    let scores = scores(model, question, &beam.tokens, config);
                    let live = scores.into_iter().enumerate().filter(|(_, score)| score.is_finite());
                    live.map(|(token, score)| beam.with(token as u32, score)).collect::<Vec<_>>()
                })
                .collect();
            candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
            if !apart(candidates.iter().map(|beam| beam.score).take(2 * n + 1)) {
                return None;
            }
            candidates.truncate(2 * n);
            let ends = |beam: &Beam| beam.tokens.last() == Some(&ids.eos) || made == limit;
            for beam in candidates.iter().take(n).filter(|beam| ends(beam)) {
                finished.push((beam.score / (made as f64).powf(penalty), beam.clone()));
            }
            finished.sort_by(|a, b| b.0.total_cmp(&a.0));
            if !apart(finished.iter().map(|(score, _)| *score)) {
                return None;
            }
            finished.truncate(n);
            running = candidates.into_iter().filter(|beam| !ends(beam)).take(n).collect();
            let forced = made == 1 && config.force_bos;
            if running.len() < n && !forced && made < limit {
                return None;
            }
            let length = match config.early_stopping {
                EarlyStopping::WhenCertain if penalty > 0.0 => limit,
                _ => made,
            } as f64;
            let full = finished.len() == n;
            let hopeless = full
                && running.first().is_none_or(|best| best.score / length.powf(penalty) <= finished[n - 1].0);
            if let (true, Some(best)) = (full, running.first()) {
                let close = best.score / length.powf(penalty) - finished[n - 1].0;
                if close.abs() < 1e-5 {
                    return None;
                }
            }
            if hopeless || (full && config.early_stopping == EarlyStopping::WhenEnough) {
                break;
            }
        }
        (finished.len() >= config.sequences).then(|| finished.into_iter().take(config.sequences).collect())
    }

    /// Compares; says whether it could.
    pub(super) fn agrees(
        model: &Scripted,
        question: &Question,
        config: &GenerationConfig,
        found: &[Generated],
    ) -> bool {
        let limit = config.max_new_tokens.unwrap();
        let penalty = f64::from(config.length_penalty);
        let expected = if config.beams == 1 {
            let beam = greedy(model, question, config);
            let score = beam.score / ((beam.tokens.len() - 1) as f64).powf(penalty);
            vec![(score, beam)]
        } else {
            match beams(model, question, config) {
                Some(expected) => expected,
                None => return false,
            }
        };
        assert_eq!(found.len(), expected.len(), "{config:?}\n{found:?}\n{expected:?}");
        for (found, (score, beam)) in found.iter().zip(expected) {
            assert_eq!(found.tokens, beam.tokens[1..], "{config:?}\n{question:?}");
            assert!(close(found.score, score as f32), "{} {score} {config:?}", found.score);
            assert_eq!(found.log_probs.len(), beam.log_probs.len());
            for (&found, expected) in found.log_probs.iter().zip(beam.log_probs) {
                assert!(close(found, expected as f32), "{found} {expected} {config:?}");
            }
            let ended = found.tokens.last() == Some(&model.spec().special.eos);
            let forced = config.force_eos && found.tokens.len() == limit;
            let finish = if ended && !forced { Finish::EndOfSequence } else { Finish::Length };
            assert_eq!(found.finish, finish, "{config:?}");
        }
        true
    }
}

/// Settings that can be followed, of a small vocabulary, for up to four asks.
fn cases() -> impl Strategy<Value = (Script, usize, Vec<Question>, GenerationConfig)> {
    let script = (any::<u64>(), prop_oneof![Just(usize::MAX), 1usize..4], 0u32..5, -3i8..5)
        .prop_map(|(seed, memory, flatness, eos_bias)| Script { seed, memory, flatness, eos_bias, holes: 0 });
    let question = (any::<u64>().prop_map(ScriptedImage), vec(0u32..10, 1..5));
    let early = prop_oneof![
        Just(EarlyStopping::WhenEnough),
        Just(EarlyStopping::Heuristic),
        Just(EarlyStopping::WhenCertain)
    ];
    let penalty = prop_oneof![Just(1.0f32), Just(0.0), -1.5f32..2.0];
    let config =
        (1usize..6, 0usize..5, 1usize..16, 0usize..16, 0usize..5, any::<[bool; 2]>(), penalty, early)
            .prop_map(
                |(beams, spare, max, min, no_repeat_ngram, [force_bos, force_eos], length_penalty, early)| {
                    GenerationConfig {
                        // There must be tokens left that did not occur.
                        max_new_tokens: Some(if no_repeat_ngram == 1 { max.min(8) } else { max }),
                        min_new_tokens: if min > max.min(8) { 0 } else { min },
                        beams,
                        sequences: beams.saturating_sub(spare).max(1),
                        sampling: None,
                        no_repeat_ngram,
                        force_bos,
                        force_eos,
                        length_penalty,
                        early_stopping: early,
                    }
                },
            );
    (script, 10usize..50, vec(question, 1..5), config)
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() })
}

#[test]
fn a_naive_search_finds_the_same() {
    let (compared, skipped) = (Cell::new(0), Cell::new(0));
    runner(600)
        .run(&cases(), |(script, vocabulary, questions, config)| {
            let mut model = Scripted::small(vocabulary, script);
            let answers = run(&mut model, &questions, &config);
            for (question, answer) in questions.iter().zip(&answers) {
                let count =
                    if naive::agrees(&model, question, &config, answer) { &compared } else { &skipped };
                count.set(count.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    assert!(compared.get() > 2 * skipped.get(), "{} {}", compared.get(), skipped.get());
}

#[test]
fn a_batch_is_its_asks_one_by_one() {
    let seeds = (any::<u64>(), any::<bool>(), 1usize..5);
    runner(300)
        .run(&(cases(), seeds), |((script, vocabulary, questions, mut config), (seed, sample, sequences))| {
            if sample {
                config.beams = 1;
                config.sequences = sequences;
                config.no_repeat_ngram = config.no_repeat_ngram.min(3);
                config.sampling = Some(Sampling { temperature: 1.5, top_k: 12, top_p: 0.95, seed });
                if config.no_repeat_ngram == 1 {
                    config.no_repeat_ngram = 2;
                }
            }
            let mut model = Scripted::small(vocabulary, script);
            let batch = run(&mut model, &questions, &config);
            for (question, answer) in questions.iter().zip(batch) {
                let single = run(&mut model, core::slice::from_ref(question), &config);
                assert_eq!(single, [answer], "{config:?}");
            }
            Ok(())
        })
        .unwrap();
}

/// Each step asks for no more than it needs.
#[test]
fn rows_are_computed_once() {
    let mut model = Scripted::small(40, Script { eos_bias: -3, ..Script::default() });
    let questions = [(ScriptedImage(1), vec![5, 6]), (ScriptedImage(2), vec![7])];
    let config = GenerationConfig { max_new_tokens: Some(6), ..GenerationConfig::default() };
    run(&mut model, &questions, &config);
    let rows = |call: &Call| match call {
        Call::DecodeStep(tokens) => Some(tokens.len()),
        _ => None,
    };
    let steps: Vec<usize> = model.calls.iter().filter_map(rows).collect();
    // The start and the forced `<s>` are one row for each ask, and a forced `</s>` needs none.
    assert_eq!(steps, [2, 2, 6, 6, 6]);
    let before = |steps: usize| {
        let decoded = model.calls.iter().enumerate().filter(|(_, call)| rows(call).is_some());
        &model.calls[decoded.map(|(at, _)| at).nth(steps).unwrap() - 1]
    };
    assert_eq!(before(0), &Call::EncodePrompt(2));
    // Nothing moved between the first two.
    assert!(matches!(before(1), Call::DecodeStep(_)));
    assert!(matches!(before(2), Call::SelectRows(rows) if rows[..] == [0, 0, 0, 1, 1, 1]));

    // Greedy rows stay where they are until one is done.
    let mut model = Scripted::small(40, Script { eos_bias: 4, flatness: 1, seed: 3, ..Script::default() });
    let questions: Vec<Question> = (0..8).map(|image| (ScriptedImage(image), vec![5])).collect();
    let config = GenerationConfig { max_new_tokens: Some(30), ..GenerationConfig::greedy() };
    let answers = run(&mut model, &questions, &config);
    let lengths: Vec<usize> = answers.iter().map(|answer| answer[0].tokens.len()).collect();
    let steps: Vec<usize> = model.calls.iter().filter_map(rows).collect();
    let running = |step: usize| lengths.iter().filter(|&&length| length > step && step < 29).count();
    assert_eq!(steps, (0..steps.len()).map(running).collect::<Vec<_>>());
    let selections = model.calls.iter().filter(|call| matches!(call, Call::SelectRows(_))).count();
    let mut ends = lengths.clone();
    ends.sort_unstable();
    ends.dedup();
    assert!(ends.len() > 2, "{lengths:?}");
    assert_eq!(selections, ends.len() - 1, "{lengths:?}");
}

#[test]
fn a_break_cancels_what_runs_and_keeps_what_is_settled() {
    let laws = (cases(), 0usize..20, any::<bool>());
    let cancelled = Cell::new(0);
    runner(400)
        .run(&laws, |((script, vocabulary, questions, config), calls, sample)| {
            let config = if sample {
                let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 5 };
                GenerationConfig { beams: 1, no_repeat_ngram: 0, sampling: Some(sampling), ..config }
            } else {
                config
            };
            let mut model = Scripted::small(vocabulary, script);
            let mut left = calls;
            let mut settled = BTreeMap::<_, Vec<u32>>::new();
            let whole = run(&mut model, &questions, &config);
            let answers = generate(&mut model, &asks(&questions), &config, &mut |progress| {
                settled.entry((progress.ask, progress.sequence)).or_default().extend(progress.tokens);
                if left == 0 {
                    return ControlFlow::Break(());
                }
                left -= 1;
                ControlFlow::Continue(())
            })
            .unwrap();
            for (at, (answer, whole)) in answers.iter().zip(&whole).enumerate() {
                assert!(!answer.is_empty() && answer.len() <= config.sequences);
                for generated in answer {
                    assert_eq!(generated.tokens.len(), generated.log_probs.len());
                    cancelled.set(cancelled.get() + usize::from(generated.finish == Finish::Cancelled));
                }
                assert!(sample || answer.is_sorted_by(|a, b| a.score >= b.score), "{config:?}\n{answer:?}");
                let streams = if sample { config.sequences } else { 1 };
                for sequence in 0..streams {
                    let Some(settled) = settled.get(&(at, sequence)) else { continue };
                    assert!(answer[sequence].tokens.starts_with(settled), "{config:?}");
                    assert!(whole[sequence].tokens.starts_with(settled), "{config:?}");
                    if config.beams == 1 {
                        assert!(whole[sequence].tokens.starts_with(&answer[sequence].tokens), "{config:?}");
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(cancelled.get() > 200, "{}", cancelled.get());
}

/// A beam search tells tokens before its end, or streaming would be none.
#[test]
fn beams_settle_on_the_way() {
    let mut early = 0;
    for seed in 0..50 {
        let mut model = Scripted::small(40, Script { seed, eos_bias: -8, ..Script::default() });
        let (image, prompt) = (ScriptedImage(seed), [5]);
        let config = GenerationConfig { max_new_tokens: Some(30), ..GenerationConfig::default() };
        let (mut settled, mut steps) = (Vec::new(), 0);
        generate(&mut model, &[Ask { image: &image, prompt: &prompt }], &config, &mut |progress| {
            steps += 1;
            settled.push(progress.tokens.len());
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(settled.len(), steps);
        early += settled[..settled.len() - 1].iter().sum::<usize>();
    }
    assert!(early > 50 * 10, "{early}");
}

#[test]
fn samples_follow_the_distribution() {
    let mut model = Scripted::small(12, Script { flatness: 2, ..Script::default() });
    let (image, prompt) = (ScriptedImage(9), [4]);
    let ask = Ask { image: &image, prompt: &prompt };
    let (batches, draws) = (20, 20_000);
    let config = |seed| GenerationConfig {
        beams: 1,
        sequences: draws / batches,
        max_new_tokens: Some(1),
        force_bos: false,
        force_eos: false,
        sampling: Some(Sampling { temperature: 0.7, top_k: 9, top_p: 0.95, seed }),
        ..GenerationConfig::default()
    };
    let ignore = &mut |_: Progress<'_>| ControlFlow::Continue(());
    let drawn = generate(&mut model, &[ask], &config(1), ignore).unwrap().remove(0);
    // The start token is banned neither by n-grams nor otherwise, so that this is the whole rule.
    let logits = model.logits(image, &prompt, &[2]);
    let expected = config(1).sampling.unwrap().probabilities(&logits).unwrap();
    assert!(expected.contains(&0.0) && expected.iter().filter(|&&p| p > 0.0).count() > 3);
    let mut counts = vec![0u32; expected.len()];
    for seed in 1..=batches as u64 {
        for sample in generate(&mut model, &[ask], &config(seed), ignore).unwrap().remove(0) {
            counts[sample.tokens[0] as usize] += 1;
        }
    }
    for (&count, &p) in counts.iter().zip(&expected) {
        let deviation = (draws as f32 * p * (1.0 - p)).sqrt();
        assert!((count as f32 - draws as f32 * p).abs() <= 4.5 * deviation, "{counts:?} {expected:?}");
    }
    let again = generate(&mut model, &[ask], &config(1), ignore).unwrap().remove(0);
    assert_eq!(drawn, again);
    let other = generate(&mut model, &[ask], &config(2), ignore).unwrap().remove(0);
    assert_ne!(drawn, other);
    // How many are drawn does not change the first ones.
    let fewer = GenerationConfig { sequences: 10, ..config(1) };
    assert_eq!(generate(&mut model, &[ask], &fewer, ignore).unwrap()[0], drawn[..10]);
}

/// The stream of numbers is part of what a seed promises.
#[test]
fn a_seed_draws_the_same_in_every_version() {
    let mut model = Scripted::small(50, Script { flatness: 3, eos_bias: -2, ..Script::default() });
    let (image, prompt) = (ScriptedImage(3), [4]);
    let config = GenerationConfig {
        beams: 1,
        sequences: 2,
        max_new_tokens: Some(8),
        sampling: Some(Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 42 }),
        ..GenerationConfig::default()
    };
    let drawn = generate(&mut model, &[Ask { image: &image, prompt: &prompt }], &config, &mut |_| {
        ControlFlow::Continue(())
    });
    let tokens: Vec<Vec<u32>> = drawn.unwrap().remove(0).into_iter().map(|sample| sample.tokens).collect();
    assert_eq!(tokens, [SAMPLE_0, SAMPLE_1]);
}
const SAMPLE_0: [u32; 8] = [0, 24, 9, 19, 37, 23, 18, 2];
const SAMPLE_1: [u32; 8] = [0, 41, 46, 31, 35, 7, 46, 2];

#[test]
fn a_search_that_failed_has_ended() {
    let model = Scripted::small(20, Script::default());
    let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
    for config in [
        GenerationConfig { beams: 1, sequences: 5, sampling: Some(sampling), ..GenerationConfig::default() },
        GenerationConfig { beams: 5, ..GenerationConfig::default() },
    ] {
        let mut search = Search::new(model.spec(), 2, &config).unwrap();
        let mut step = 0;
        let error = loop {
            let rows = search.step().unwrap().tokens.len();
            // All but one row is sound in the last step.
            let mut logits: Vec<f32> = (0..rows * 20).map(|at| (at * 7 % 20) as f32).collect();
            if step == 3 {
                logits[(rows - 1) * 20..].fill(f32::NAN);
            }
            if let Err(error) = search.advance(&mut logits) {
                break error;
            }
            step += 1;
        };
        assert!(matches!(error, SearchError::NotALogit { .. }), "{error}");
        assert!(search.step().is_none());
        assert_eq!(search.progress().count(), 0);
        assert!(search.finish().iter().flatten().all(|sequence| sequence.finish != Finish::Cancelled));
    }
}

#[test]
fn settings_that_cannot_be_followed_are_told_before_the_network_runs() {
    let default = GenerationConfig::default;
    let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
    let sampled = |sampling| GenerationConfig { beams: 1, sampling: Some(sampling), ..default() };
    let mut refused = vec![
        (GenerationConfig { beams: 0, ..default() }, ConfigError::NoBeams),
        (GenerationConfig { sequences: 0, ..default() }, ConfigError::NoSequences),
        (
            GenerationConfig { sequences: 4, ..default() },
            ConfigError::TooManySequences { sequences: 4, beams: 3 },
        ),
        (
            GenerationConfig { sampling: Some(sampling), ..default() },
            ConfigError::SamplingWithBeams { beams: 3 },
        ),
        (
            GenerationConfig { beams: 11, ..default() },
            ConfigError::TooManyBeams { beams: 11, vocabulary: 20 },
        ),
        (
            GenerationConfig { beams: usize::MAX, ..default() },
            ConfigError::TooManyRows { name: "beams", count: usize::MAX },
        ),
        (
            GenerationConfig { sequences: 1025, ..sampled(sampling) },
            ConfigError::TooManyRows { name: "sequences", count: 1025 },
        ),
        (GenerationConfig { max_new_tokens: Some(0), ..default() }, ConfigError::NoNewTokens),
        (
            GenerationConfig { max_new_tokens: Some(65), ..default() },
            ConfigError::TooManyNewTokens { max_new_tokens: 65, positions: 64 },
        ),
        (
            GenerationConfig { min_new_tokens: 65, ..default() },
            ConfigError::MinOverMax { min_new_tokens: 65, max_new_tokens: 64 },
        ),
    ];
    for temperature in [0.0, -1.0, f32::INFINITY] {
        refused.push((sampled(Sampling { temperature, ..sampling }), ConfigError::Temperature(temperature)));
    }
    for top_p in [0.0, -0.5, 1.1] {
        refused.push((sampled(Sampling { top_p, ..sampling }), ConfigError::TopP(top_p)));
    }
    for length_penalty in [f32::INFINITY, f32::NEG_INFINITY, 30.0, -30.0] {
        let error = ConfigError::LengthPenalty { length_penalty, max_new_tokens: 64 };
        refused.push((GenerationConfig { length_penalty, ..default() }, error));
    }
    let mut model = Scripted::small(20, Script::default());
    let (image, prompt) = (ScriptedImage(0), [4]);
    for (config, expected) in &refused {
        let asks = [Ask { image: &image, prompt: &prompt }];
        match generate(&mut model, &asks, config, &mut |_| ControlFlow::Continue(())) {
            Err(GenerateError::Config(error)) => assert_eq!(error, *expected),
            other => panic!("{config:?}: {other:?}"),
        }
        assert_eq!(config.validate(model.spec()), Err(expected.clone()));
        assert!(generate(&mut model, &[], config, &mut |_| ControlFlow::Continue(())).is_err());
    }
    for config in [
        sampled(Sampling { temperature: f32::NAN, ..sampling }),
        sampled(Sampling { top_p: f32::NAN, ..sampling }),
        GenerationConfig { length_penalty: f32::NAN, ..default() },
    ] {
        assert!(config.validate(model.spec()).is_err(), "{config:?}");
    }
    assert!(model.calls.is_empty());

    for (name, special) in [
        ("bos", SpecialIds { bos: 20, ..SpecialIds::FLORENCE2 }),
        ("pad", SpecialIds { pad: u32::MAX, ..SpecialIds::FLORENCE2 }),
        ("eos", SpecialIds { eos: 20, ..SpecialIds::FLORENCE2 }),
        ("decoder_start", SpecialIds { decoder_start: 21, ..SpecialIds::FLORENCE2 }),
    ] {
        let spec = ModelSpec { special, ..model.spec().clone() };
        let error = default().validate(&spec).unwrap_err();
        assert!(matches!(error, ConfigError::SpecialId { name: found, .. } if found == name), "{error}");
    }
    assert!(generate(&mut model, &[], &default(), &mut |_| ControlFlow::Continue(())).unwrap().is_empty());
    let spec = |max_positions| ModelSpec { max_positions, ..model.spec().clone() };
    assert_eq!(
        [64, 1024, 4096].map(|positions| default().max_new_tokens(&spec(positions))),
        [64, 1024, 1024]
    );
    assert_eq!(default().validate(&spec(0)), Err(ConfigError::NoNewTokens));
}

#[test]
fn what_is_no_logit_is_told_with_its_place() {
    let spec = Scripted::small(40, Script::default()).spec().clone();
    let config = GenerationConfig { force_bos: false, ..GenerationConfig::default() };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut search = Search::new(&spec, 2, &config).unwrap();
        let rows = search.step().unwrap().tokens.len();
        search.advance(&mut vec![0.0; rows * 40]).unwrap();
        let rows = search.step().unwrap().tokens.len();
        let mut logits = vec![0.0; rows * 40];
        logits[4 * 40 + 17] = bad;
        let error = search.advance(&mut logits).unwrap_err();
        assert!(
            matches!(error, SearchError::NotALogit { ask: 1, step: 1, token: 17, logit } if logit.to_bits() == bad.to_bits()),
            "{error}"
        );
    }
    // Minus infinity is a logit, but not for all tokens.
    let mut search = Search::new(&spec, 1, &config).unwrap();
    let error = search.advance(&mut [f32::NEG_INFINITY; 40]).unwrap_err();
    assert!(matches!(error, SearchError::NotALogit { ask: 0, step: 0, .. }), "{error}");
    let mut search = Search::new(&spec, 1, &GenerationConfig { beams: 1, ..config.clone() }).unwrap();
    let mut logits = [f32::NEG_INFINITY; 40];
    logits[30] = 1.0;
    search.advance(&mut logits).unwrap();
    assert_eq!(search.progress().next().unwrap().tokens, [30]);
    assert_eq!(search.progress().next().unwrap().log_probs, [0.0]);

    let error = search.advance(&mut [0.0; 41]).unwrap_err();
    assert_eq!(error, SearchError::LogitsLength { expected: 40, found: 41 });
}

/// Three tokens, each of which may occur once, the start token among them.
#[test]
fn a_search_whose_tokens_are_all_banned_ends_as_the_reference_does() {
    let config = GenerationConfig {
        no_repeat_ngram: 1,
        force_bos: false,
        force_eos: false,
        max_new_tokens: Some(5),
        ..GenerationConfig::greedy()
    };
    let mut model = Scripted::small(3, Script::default());
    let questions = [(ScriptedImage(1), vec![1])];
    let greedy = run(&mut model, &questions, &config).remove(0).remove(0);
    // The first of tokens that all have minus infinity, which `argmax` takes.
    assert_eq!(greedy.tokens[2..], [0, 0, 0]);
    assert_eq!(greedy.log_probs[2..], [f32::NEG_INFINITY; 3]);

    let ignore = &mut |_: Progress<'_>| ControlFlow::Continue(());
    let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
    let sampled = GenerationConfig { sampling: Some(sampling), ..config.clone() };
    let error = generate(&mut model, &asks(&questions), &sampled, ignore).unwrap_err();
    assert!(
        matches!(error, GenerateError::Search(SearchError::NoTokenLeft { ask: 0, step: 2 })),
        "{error:?}"
    );
    let mut model = Scripted::small(4, Script::default());
    let beams = GenerationConfig { beams: 2, ..config };
    let error = generate(&mut model, &asks(&questions), &beams, ignore).unwrap_err();
    assert!(
        matches!(error, GenerateError::Search(SearchError::NoTokenLeft { ask: 0, step: 3 })),
        "{error:?}"
    );
}
