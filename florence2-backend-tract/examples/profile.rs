//! What the operators of each part take: `cargo run --release -p florence2-backend-tract --example profile FOLDER [THREADS]`
#![expect(clippy::print_stdout, reason = "it is run for its figures")]

use std::collections::BTreeMap;
use std::error::Error;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use florence2_backend_tract::{Cost, Tract, TractModel};
use florence2_core::{Ask, PixelValues, VisionSeq2Seq};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().ok_or("usage: profile FOLDER [THREADS]")?;
    let threads: Option<NonZeroUsize> = match arguments.next() {
        Some(threads) => Some(threads.to_str().ok_or("threads are a number")?.parse()?),
        None => None,
    };
    let before = Instant::now();
    let mut model = Tract { threads, ..Tract::default() }.load(folder.as_ref())?;
    println!("load: {:.1} ms", ms(before.elapsed()));
    let (width, height) = (model.spec().image_width, model.spec().image_height);
    let grey = |index: usize| (index % 251) as f32 / 100.0 - 1.25;
    let pixels = [PixelValues::new(width, height, (0..3 * width * height).map(grey).collect())?];
    let mut logits = vec![0.0; model.spec().vocabulary_size];
    let mut run = |model: &mut TractModel| {
        let before = Instant::now();
        let image = model.encode_image(&pixels)?.remove(0);
        let seen = before.elapsed();
        let prompt: Vec<u32> = [0].into_iter().chain(10..18).chain([2]).collect();
        let mut state = model.encode_prompt(&[Ask { image: &image, prompt: &prompt }])?;
        let encoded = before.elapsed();
        model.decode_step(&mut state, &[2], &mut logits)?;
        Ok::<_, Box<dyn Error>>([seen, encoded - seen, before.elapsed() - encoded])
    };
    // The first warms up.
    run(&mut model)?;
    let [vision, prompt, step] = run(&mut model)?;
    println!("vision {:.1} ms, prompt {:.1} ms, first step {:.1} ms", ms(vision), ms(prompt), ms(step));
    let (result, costs) = model.profile(run);
    result?;
    print(&costs);
    Ok(())
}

fn print(costs: &[Cost]) {
    let mut parts: BTreeMap<&str, BTreeMap<&str, (Duration, usize)>> = BTreeMap::new();
    for cost in costs {
        let (time, count) = parts.entry(cost.part).or_default().entry(&cost.operator).or_default();
        *time += cost.time;
        *count += 1;
    }
    for (part, operators) in parts {
        let all: Duration = operators.values().map(|(time, _)| *time).sum();
        println!("\n{part}: {:.1} ms", ms(all));
        let mut operators: Vec<_> = operators.into_iter().collect();
        operators.sort_by_key(|&(_, (time, _))| std::cmp::Reverse(time));
        for (operator, (time, count)) in operators {
            let share = 100.0 * time.as_secs_f64() / all.as_secs_f64();
            println!("{:10.2} ms {share:5.1} % {count:5} {operator}", ms(time));
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
