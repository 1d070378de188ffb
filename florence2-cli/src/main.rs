//! The program `florence2`.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod checkpoint;
mod doctor;
mod lines;
mod page;
mod parse;
mod picture;
mod prompt;
mod run;
mod tasks;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use florence2::people::write_text;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Clap prints `--help` where it belongs and exits 0 for it; its errors are bad requests.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match args.command {
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Parse(args) => parse::run(&args),
        Command::Prompt(args) => prompt::run(&args),
        Command::Tasks(args) => tasks::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { command } => man(command.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let (Failure::Request(message) | Failure::Run(message)) = &failure else {
                tell(format_args!("error: cannot write the output: {failure}"));
                return ExitCode::FAILURE;
            };
            tell(format_args!("error: {message}"));
            ExitCode::from(if matches!(failure, Failure::Request(_)) { 2 } else { 1 })
        }
    }
}

/// Why the program stops short.
#[derive(Debug)]
enum Failure {
    /// A bad request: exit status 2.
    Request(String),
    /// It could not be carried out, or not wholly: exit status 1.
    Run(String),
    /// Standard output failed; a closed pipe is no failure.
    Output(io::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request(message) | Self::Run(message) => f.write_str(message),
            Self::Output(error) => error.fmt(f),
        }
    }
}

/// An error with all its causes, each once: some errors say their cause themselves.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string().trim_end().to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        let why = why.trim_end();
        if !why.is_empty() && !text.contains(why) {
            text.push_str(": ");
            text.push_str(why);
        }
        cause = error.source();
    }
    text
}

/// A line on standard error, whose own failure leaves nobody to tell. What it quotes, such as the name of a file, cannot
/// drive the terminal.
fn tell(message: std::fmt::Arguments<'_>) {
    let mut out = io::stderr().lock();
    let _ = write_text(&mut out, &message.to_string());
    let _ = writeln!(out);
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "florence2", &mut script);
    io::stdout().lock().write_all(&script).map_err(Failure::Output)
}

fn man(command: Option<&str>) -> Result<(), Failure> {
    let mut whole = Args::command();
    whole.build();
    let page = match command {
        None => whole,
        Some(name) => whole
            .find_subcommand(name)
            .ok_or_else(|| {
                Failure::Request(format!("there is no command {name:?}; florence2 --help lists them"))
            })?
            .clone(),
    };
    io::stdout().lock().write_all(&page::render(page).map_err(Failure::Output)?).map_err(Failure::Output)
}
