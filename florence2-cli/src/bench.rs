//! `florence2 bench`

use std::io::{self, Write};
use std::time::{Duration, Instant};

use florence2::{Florence2, GenerationConfig, Image, Output, Prompt, VisionSeq2Seq};
use serde::Serialize;

use crate::args::{BenchArgs, PlainFormat};
use crate::{Failure, chain, checkpoint, picture};

/// What a caption of exactly so many tokens needs: the end is barred before the last, where it is forced.
fn caption(beams: usize, tokens: usize) -> GenerationConfig {
    GenerationConfig {
        beams,
        max_new_tokens: Some(tokens),
        min_new_tokens: tokens - 1,
        ..GenerationConfig::default()
    }
}

#[derive(Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    dtype: String,
    threads: usize,
    new_tokens: usize,
    rounds: usize,
    stages: Stages,
    load_ms: f64,
    /// Absent where the system does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_rss_bytes: Option<u64>,
    tokens: Tokens,
}

/// Medians, in milliseconds.
#[derive(Serialize)]
struct Stages {
    vision_ms: f64,
    prompt_ms: f64,
    step_ms: f64,
    caption20_greedy_ms: f64,
    caption20_beams3_ms: f64,
}

#[derive(Serialize)]
struct Tokens {
    greedy: Vec<u32>,
    beams3: Vec<u32>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.rounds == 0 {
        return Err(Failure::Request("--rounds 0 measures nothing".into()));
    }
    let prompt: Prompt =
        args.task.parse().map_err(|error| Failure::Request(format!("--task: {}", chain(&error))))?;
    let image = picture::open(&args.image, &args.picture)
        .map_err(|message| Failure::Request(format!("--image: {message}")))?;
    let start = Instant::now();
    let measured =
        checkpoint::load(&args.model, &args.backend, Rounds { count: args.rounds, image, prompt, start });
    let (load, rounds) = measured?;
    let median = |stage: fn(&Round) -> Duration| {
        let mut times: Vec<Duration> = rounds.iter().map(stage).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    let stages = Stages {
        vision_ms: median(|round| round.greedy.timings.vision),
        prompt_ms: median(|round| round.greedy.timings.prompt),
        step_ms: median(|round| {
            let timings = &round.greedy.timings;
            timings.decode / u32::try_from(timings.steps).unwrap_or(1).max(1)
        }),
        caption20_greedy_ms: median(|round| round.greedy.timings.total()),
        caption20_beams3_ms: median(|round| round.beams.timings.total()),
    };
    let ids = |output: &Output| output.tokens.iter().map(|token| token.id).collect();
    let report = Report {
        backend: args.backend.backend.name(),
        device: args.backend.device.to_string(),
        dtype: checkpoint::Chosen::read(&args.model, &args.backend)?.weights(&args.model),
        threads: args
            .backend
            .threads
            .or_else(|| std::thread::available_parallelism().ok())
            .map_or(1, usize::from),
        new_tokens: TOKENS,
        rounds: args.rounds,
        stages,
        load_ms: load.as_secs_f64() * 1e3,
        peak_rss_bytes: peak_memory(),
        tokens: Tokens { greedy: ids(&rounds[0].greedy), beams3: ids(&rounds[0].beams) },
    };
    let out = &mut io::stdout().lock();
    match args.format {
        PlainFormat::Json => {
            serde_json::to_writer(&mut *out, &report).map_err(|error| Failure::Output(error.into()))?;
            writeln!(out)
        }
        PlainFormat::Text => write(out, &report),
    }
    .map_err(Failure::Output)
}

/// How often a picture is seen and asked about.
struct Rounds {
    count: usize,
    image: Image,
    prompt: Prompt,
    /// When loading began.
    start: Instant,
}

impl checkpoint::Use for Rounds {
    type Result = Result<(Duration, Vec<Round>), Failure>;

    fn of<M: VisionSeq2Seq>(self, mut florence: Florence2<M>) -> Self::Result {
        let load = self.start.elapsed();
        let spec = florence.model().spec();
        caption(3, TOKENS).validate(spec).map_err(|error| Failure::Request(error.to_string()))?;
        // The first time, memory is new and caches are cold.
        measure(&mut florence, &self.image, &self.prompt)?;
        let rounds = (0..self.count).map(|_| measure(&mut florence, &self.image, &self.prompt));
        Ok((load, rounds.collect::<Result<_, _>>()?))
    }
}

/// New tokens of a caption.
const TOKENS: usize = 20;

/// What one round took.
struct Round {
    greedy: Output,
    beams: Output,
}

fn measure<M: VisionSeq2Seq>(
    florence: &mut Florence2<M>,
    image: &Image,
    prompt: &Prompt,
) -> Result<Round, Failure> {
    let failed = |error: florence2::Error| Failure::Run(chain(&error));
    let seen = florence.see(image).map_err(failed)?;
    let greedy = florence.ask(&seen, prompt, &caption(1, TOKENS)).map_err(failed)?;
    let beams = florence.ask(&seen, prompt, &caption(3, TOKENS)).map_err(failed)?;
    Ok(Round { greedy, beams })
}

fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Report { backend, device, dtype, threads, rounds, stages, load_ms, .. } = report;
    writeln!(out, "{backend} on {device}, {dtype}, {threads} threads; medians of {rounds} rounds, batch 1")?;
    for (name, time) in [
        ("load", *load_ms),
        ("picture", stages.vision_ms),
        ("prompt", stages.prompt_ms),
        ("step", stages.step_ms),
        ("caption of 20 tokens, greedy", stages.caption20_greedy_ms),
        ("caption of 20 tokens, 3 beams", stages.caption20_beams3_ms),
    ] {
        writeln!(out, "{name:<30} {time:>9.1} ms")?;
    }
    if let Some(bytes) = report.peak_rss_bytes {
        writeln!(out, "{:<30} {:>9.1} MB", "peak memory", bytes as f64 / 1e6)?;
    }
    Ok(())
}

/// The most memory that was resident, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
