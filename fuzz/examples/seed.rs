//! Fills `corpus/` with the known answers and prompts: `cargo run --example seed`, in this folder.

use std::path::Path;
use std::{fs, io};

use florence2_core::dev::{TARGETS, hostile};
use florence2_core::{AnswerKind, Dialect, Task};
use serde_json::Value;

/// Longer ones slow the fuzzer down.
const LONGEST: usize = 4096;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = |file: &str| -> io::Result<Vec<Value>> {
        let text = fs::read_to_string(root.join("../florence2-core/testdata").join(file))?;
        text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
    };
    let mut answers = Vec::new();
    for line in ["answers.jsonl", "adversarial.jsonl"]
        .map(lines)
        .into_iter()
        .collect::<io::Result<Vec<_>>>()?
        .concat()
    {
        let (Some(task), Some(text)) = (line["task"].as_str(), line["text"].as_str()) else { continue };
        let kind = task.parse().map_or(AnswerKind::Text, Task::answer_kind);
        for dialect in [Dialect::Microsoft, Dialect::Transformers] {
            answers.push(hostile::Case::bytes_of(kind, dialect, text));
        }
    }
    let prompts: Vec<_> = lines("prompts.jsonl")?
        .iter()
        .filter_map(|line| line["prompt"].as_str())
        .map(hostile::bytes_of_prompt)
        .collect();
    for (target, _) in TARGETS {
        let folder = root.join("corpus").join(target);
        fs::create_dir_all(&folder)?;
        let seeds = if target == "prompt" { &prompts } else { &answers };
        for (at, seed) in seeds.iter().enumerate().filter(|(_, seed)| seed.len() <= LONGEST) {
            fs::write(folder.join(format!("seed-{at:04}")), seed)?;
        }
    }
    Ok(())
}
