//! `florence2 man`: a command's page.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The page as clap's crate makes it, but for the text that `--help` has at its end: there, all of it would be filled as one
/// section, examples and all, so that no command could be copied.
pub(crate) fn render(mut command: Command) -> io::Result<Vec<u8>> {
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    command = command.after_long_help(None);
    let mut text = Vec::new();
    Man::new(command).render(&mut text)?;
    if !help.is_empty() {
        sections(&help).to_writer(&mut text)?;
    }
    Ok(text)
}

/// A section for each of the text's parts, in which what is indented keeps its lines.
fn sections(help: &str) -> Roff {
    let mut roff = Roff::new();
    let mut last = "";
    for part in help.split("\n\n").map(str::trim_end).filter(|part| !part.is_empty()) {
        let (heading, text) = [("EXAMPLES", "Examples:\n"), ("EXIT STATUS", "Exit status: ")]
            .into_iter()
            .find_map(|(heading, begin)| Some((heading, part.strip_prefix(begin)?)))
            .unwrap_or(("NOTES", part));
        match heading == last {
            true => roff.control("PP", []),
            false => roff.control("SH", [heading]),
        };
        last = heading;
        let mut kept = false;
        for line in text.lines() {
            let keep = line.starts_with(' ');
            if keep != kept {
                roff.control(if keep { "nf" } else { "fi" }, []);
                kept = keep;
            }
            roff.text([roman(line.trim_start())]);
        }
        if kept {
            roff.control("fi", []);
        }
    }
    roff
}
