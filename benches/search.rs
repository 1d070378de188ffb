//! What a step of generation costs beside the network: `cargo bench --bench search`. Throughput is in rows, on one thread.
//!
//! Logits are those of a scripted network with as large a vocabulary as the published checkpoints'. Only
//! [`Search::advance`] is timed. `plain` is a row's log-softmax with the standard library's `exp` and the best six by
//! `select_nth_unstable`, which is what one would write.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use florence2_core::dev::scripted::{Script, Scripted, ScriptedImage};
use florence2_core::{GenerationConfig, ModelSpec, Sampling, Search, SpecialIds};

const SPEC: ModelSpec = ModelSpec {
    image_width: 768,
    image_height: 768,
    image_tokens: 577,
    vocabulary_size: 51_289,
    max_prompt_tokens: 447,
    max_positions: 1024,
    special: SpecialIds::FLORENCE2,
};

/// Rows of logits, to be dealt out in turns.
fn tables() -> Vec<Vec<f32>> {
    // Without an end in sight.
    let script = Script { eos_bias: -8, ..Script::default() };
    let model = Scripted::new(SPEC, script);
    (0..32).map(|image| model.logits(ScriptedImage(image), &[0, 2], &[2])).collect()
}

fn search(c: &mut Criterion) {
    let tables = tables();
    let mut group = c.benchmark_group("search");
    let sampling = |top_k, top_p| GenerationConfig {
        sampling: Some(Sampling { temperature: 0.8, top_k, top_p, seed: 1 }),
        ..GenerationConfig::greedy()
    };
    let cases = [
        ("greedy", 1, GenerationConfig::greedy()),
        ("3 beams", 1, GenerationConfig::default()),
        ("3 beams, 8 asks", 8, GenerationConfig::default()),
        ("10 beams", 1, GenerationConfig { beams: 10, ..GenerationConfig::default() }),
        ("sampling", 1, sampling(0, 1.0)),
        ("sampling, top_k 50", 1, sampling(50, 1.0)),
        ("sampling, top_p 0.9", 1, sampling(0, 0.9)),
    ];
    for (name, asks, config) in cases {
        let rows = asks * config.beams;
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(name, |b| {
            b.iter_custom(|steps| {
                let start = || Search::new(&SPEC, asks, &config).expect("it can be followed");
                let mut search = start();
                let mut logits = Vec::new();
                let (mut time, mut left, mut dealt, mut taken) = (Duration::ZERO, steps, 0, 0);
                while left > 0 {
                    let Some(step) = search.step() else {
                        (search, taken) = (start(), 0);
                        continue;
                    };
                    // The first steps have one row for each ask, and a token that is forced.
                    let whole = taken > 0 && step.tokens.len() == rows;
                    taken += 1;
                    logits.clear();
                    for _ in step.tokens {
                        logits.extend_from_slice(&tables[dealt % tables.len()]);
                        dealt += 1;
                    }
                    let begin = Instant::now();
                    search.advance(black_box(&mut logits)).expect("they are logits");
                    if whole {
                        time += begin.elapsed();
                        left -= 1;
                    }
                }
                time
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("plain", |b| {
        let mut dealt = 0;
        let mut best: Vec<(f32, usize)> = Vec::new();
        b.iter(|| {
            let row = black_box(&tables[dealt % tables.len()]);
            dealt += 1;
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let log_sum = row.iter().map(|&logit| (logit - max).exp()).sum::<f32>().ln();
            best.clear();
            best.extend(row.iter().zip(0..).map(|(&logit, token)| (logit - max - log_sum, token)));
            best.select_nth_unstable_by(6, |a, b| b.0.total_cmp(&a.0));
            black_box(&best);
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    targets = search
}
criterion_main!(benches);
