//! What the program prints for people: one line for each box, quadrilateral or segmented thing.

use std::io::{self, Write};

use crate::{Answer, Label, Labeled, Point, Polygon};

/// Writes an answer: a text as it is, else a line for each instance: its label, a tab, its coordinates in pixels.
///
/// Control characters, and those that turn the direction of text, are written as escapes, so that an answer cannot
/// drive the terminal; a text keeps its newlines and tabs.
///
/// The label of every shape is written out: give an answer from strangers a writer with a limit.
///
/// # Errors
///
/// If the writer fails.
pub fn write_answer(mut out: impl Write, answer: &Answer) -> io::Result<()> {
    match answer {
        Answer::Text(text) => {
            write_text(&mut out, text)?;
            writeln!(out)
        }
        Answer::Boxes(rows) => rows.iter().try_for_each(|row| {
            write_label(&mut out, &row.label)?;
            let [x1, y1, x2, y2] = row.shape.to_array();
            write!(out, "\t{x1:.2} {y1:.2} {x2:.2} {y2:.2}")?;
            end_row(&mut out, row)
        }),
        Answer::Quads(rows) => rows.iter().try_for_each(|row| {
            write_label(&mut out, &row.label)?;
            write!(out, "\t")?;
            write_points(&mut out, &row.shape.0)?;
            end_row(&mut out, row)
        }),
        Answer::Polygons(rows) => rows.iter().try_for_each(|row| {
            write_label(&mut out, &row.label)?;
            write!(out, "\t")?;
            for (at, Polygon(points)) in row.shape.iter().enumerate() {
                if at > 0 {
                    write!(out, " | ")?;
                }
                write_points(&mut out, points)?;
            }
            end_row(&mut out, row)
        }),
    }
}

/// Writes a text, or a piece of one, as [`write_answer`] does, without a newline at the end.
///
/// # Errors
///
/// If the writer fails.
pub fn write_text(mut out: impl Write, text: &str) -> io::Result<()> {
    write_plain(&mut out, text, |c| c == '\n' || c == '\t')
}

fn write_label(out: &mut impl Write, label: &Label) -> io::Result<()> {
    write_plain(out, label, |_| false)
}

fn write_plain(out: &mut impl Write, text: &str, keep: impl Fn(char) -> bool) -> io::Result<()> {
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| drives_terminal(c) && !keep(c)) {
        let (plain, from) = rest.split_at(at);
        let mut after = from.chars();
        let control = after.next().map_or_else(String::new, |c| c.escape_default().to_string());
        write!(out, "{plain}{control}")?;
        rest = after.as_str();
    }
    write!(out, "{rest}")
}

/// Controls, line separators, and the marks and overrides of direction.
fn drives_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn write_points(out: &mut impl Write, points: &[Point]) -> io::Result<()> {
    for (at, point) in points.iter().enumerate() {
        write!(out, "{}{:.2} {:.2}", if at > 0 { " " } else { "" }, point.x, point.y)?;
    }
    Ok(())
}

fn end_row<T>(out: &mut impl Write, row: &Labeled<T>) -> io::Result<()> {
    match row.score {
        Some(score) => writeln!(out, "\tscore {score:.3}"),
        None => writeln!(out),
    }
}
