//! How far it is, on a terminal, where the work is long.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work that is done sooner needs no bar.
const SOON: Duration = Duration::from_secs(1);
const WIDTH: usize = 24;

/// A line on standard error that is written over and over.
#[derive(Debug)]
pub(super) struct Progress {
    total: usize,
    done: usize,
    start: Instant,
    on: bool,
    shown: bool,
}

impl Progress {
    /// Of so many answers. Where standard error is no terminal nothing is ever shown.
    pub(super) fn new(total: usize) -> Self {
        let on = total > 1 && io::stderr().is_terminal();
        Self { total, done: 0, start: Instant::now(), on, shown: false }
    }

    pub(super) fn advance(&mut self, answers: usize) {
        self.done += answers;
    }

    /// Shows what is being worked on.
    pub(super) fn show(&mut self, name: &str) {
        if !self.on || self.start.elapsed() < SOON {
            return;
        }
        let line = line(self.done, self.total, self.start.elapsed(), name);
        let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
        let _ = io::stderr().lock().flush();
        self.shown = true;
    }

    /// Makes room for other lines.
    pub(super) fn clear(&mut self) {
        if self.shown {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
            self.shown = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(done: usize, total: usize, elapsed: Duration, name: &str) -> String {
    let filled = WIDTH * done / total.max(1);
    let bar: String = (0..WIDTH).map(|at| if at < filled { '#' } else { '.' }).collect();
    let left = match done {
        0 => String::new(),
        done => {
            let seconds = elapsed.as_secs_f64() / done as f64 * total.saturating_sub(done) as f64;
            format!(", {} left", clock(seconds))
        }
    };
    // No line may be so long that the terminal breaks it; a name cannot drive the terminal.
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let from = name.char_indices().rev().nth(27).map_or(0, |(at, _)| at);
    format!("[{bar}] {done}/{total}{left}  {}", &name[from..])
}

fn clock(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!("{} h {:02}", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_and_how_long_it_takes() {
        let ten = Duration::from_secs(10);
        assert_eq!(line(0, 4, ten, "a.png"), "[........................] 0/4  a.png");
        assert_eq!(line(1, 4, ten, "a.png"), "[######..................] 1/4, 30 s left  a.png");
        assert_eq!(line(1, 40, ten, "a.png"), "[........................] 1/40, 6:30 left  a.png");
        assert_eq!(line(4, 4, ten, "\x1b[31m.png"), "[########################] 4/4, 0 s left  [31m.png");
        let long = line(1, 2000, ten, &"x/".repeat(99));
        assert!(long.chars().count() < 80 && long.contains("5 h 33 left"), "{long}");
    }
}
