//! Requests one a line: constant memory, however long the input; a bad line costs only itself.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Write};

use florence2::record::id_of;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{Failure, tell};

/// The longest line, and the longest answer on standard input. Real answers have a few thousand bytes.
pub(crate) const LONGEST: usize = 64 << 20;

/// The longest line that is written. A label stands once in an answer and once for each of its boxes in the JSON, so
/// that an answer of a megabyte can be made to fill a disk.
pub(crate) const LARGEST: usize = 64 << 20;

/// An error says what is wrong in its first words, though it may quote a whole line after them.
const LONGEST_ERROR: usize = 1000;

/// A longer id is not repeated beside an error.
const LONGEST_ID: usize = 4096;

fn cut(message: &str) -> Cow<'_, str> {
    match message.char_indices().nth(LONGEST_ERROR) {
        None => message.into(),
        Some((at, _)) => format!("{}…", &message[..at]).into(),
    }
}

/// A buffer that refuses to grow beyond [`LARGEST`].
#[derive(Default)]
pub(crate) struct Written(Vec<u8>);

impl Written {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST {
            let size = LARGEST >> 20;
            return Err(io::Error::other(format!("the result is longer than {size} MiB")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Serialize)]
struct BadLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Box<RawValue>>,
    error: &'a str,
    line: u64,
}

/// Calls `answer` for every line, which writes one line or says what is wrong with the request.
///
/// Output is held back only while more input is at hand, so that a live producer gets each answer at once.
pub(crate) fn each_line(
    mut answer: impl FnMut(u64, &str, &mut Written) -> Result<(), String>,
) -> Result<(), Failure> {
    if waits_for_typing() {
        tell(format_args!(
            "reading requests from standard input, one JSON object a line; end them with Ctrl-D"
        ));
    }
    let mut input = BufReader::with_capacity(1 << 16, io::stdin().lock());
    let mut output = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let (mut line, mut written) = (Vec::new(), Written::default());
    let (mut number, mut requests, mut bad) = (0, 0, 0);
    loop {
        let read = match read_line(&mut input, &mut line) {
            Ok(read) => read,
            Err(error) => {
                output.flush().map_err(Failure::Output)?;
                return Err(Failure::Run(format!("cannot read standard input after line {number}: {error}")));
            }
        };
        let text = std::str::from_utf8(without_mark(&line, number == 0));
        let result = match read {
            Line::End => break,
            Line::TooLong => Err(format!("the line is longer than {} MiB", LONGEST >> 20)),
            Line::Whole => match text {
                Ok(text) if text.trim().is_empty() => {
                    number += 1;
                    continue;
                }
                Ok(text) => answer(number + 1, text, &mut written),
                Err(error) => Err(format!("not UTF-8: {error}")),
            },
        };
        number += 1;
        requests += 1;
        if let Err(message) = result {
            bad += 1;
            written.0.clear();
            let id = text.ok().and_then(id_of).filter(|id| id.get().len() <= LONGEST_ID);
            let bad_line = BadLine { id, error: &cut(&message), line: number };
            // Past the limit of results, which an error cannot reach: it must not be lost.
            serde_json::to_writer(&mut written.0, &bad_line)
                .map_err(|error| Failure::Output(error.into()))?;
        }
        written.0.push(b'\n');
        output.write_all(&written.0).map_err(Failure::Output)?;
        written.0.clear();
        if input.buffer().is_empty() {
            output.flush().map_err(Failure::Output)?;
        }
        // One huge line does not hold its memory while the next is waited for.
        line.clear();
        line.shrink_to(1 << 20);
        written.0.shrink_to(1 << 20);
    }
    output.flush().map_err(Failure::Output)?;
    match bad {
        0 => Ok(()),
        _ => Err(Failure::Run(format!(
            "{bad} of {requests} requests were bad; each has its \"error\" in the output"
        ))),
    }
}

/// Without the byte order mark that some editors put at the beginning of a file.
fn without_mark(line: &[u8], is_first: bool) -> &[u8] {
    if is_first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line }
}

/// Whether a person would be waiting for input that does not come.
fn waits_for_typing() -> bool {
    io::stdin().is_terminal()
}

enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads up to a newline; of a line over the limit nothing is kept, and its rest is passed over.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    if input.by_ref().take(LONGEST as u64 + 1).read_until(b'\n', line)? == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') || line.len() <= LONGEST {
        return Ok(Line::Whole);
    }
    line.clear();
    input.skip_until(b'\n')?;
    Ok(Line::TooLong)
}

/// All of standard input, without the newline that a shell puts at its end.
pub(crate) fn whole_input() -> Result<String, Failure> {
    if waits_for_typing() {
        tell(format_args!("reading the answer from standard input; end it with Ctrl-D"));
    }
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(LONGEST as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::Run(format!("cannot read standard input: {error}")))?;
    if bytes.len() > LONGEST {
        return Err(Failure::Request(format!(
            "the answer on standard input is longer than {} MiB; many answers are read with --jsonl",
            LONGEST >> 20
        )));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|error| Failure::Request(format!("standard input is not UTF-8: {}", error.utf8_error())))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
