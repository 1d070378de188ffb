//! Quadrilaterals: `text<loc_x1><loc_y1>…<loc_x4><loc_y4>`.
//!
//! The references match `(.+?)` and eight locations. The lazy text begins behind the last match or the last
//! newline, which `.` does not cross, and ends at the first place where eight locations stand in a row; it has at
//! least one character, so a location at its very beginning is text. Fewer than eight locations are text, too.

use super::lexer::Token;
use super::run::Run;
use super::{Context, Machine, Sink};
use crate::answer::{Label, Labeled};
use crate::chars::strip;
use crate::geometry::Quad;
use crate::parse::Dialect;
use crate::score::Tally;

#[derive(Clone, Debug, Default)]
pub(crate) struct QuadMachine {
    /// The text, and the locations that may yet be text.
    run: Run,
    /// Where those locations begin, and the pieces before them.
    text_end: (usize, Tally),
    count: usize,
    pairs: [[u64; 2]; 4],
    tally: Tally,
}

impl Machine for QuadMachine {
    fn text<S: Sink>(&mut self, _: &Context<'_>, _: &mut S, text: &str, tally: &Tally) {
        self.count = 0;
        self.tally = Tally::default();
        match text.rfind('\n') {
            None => self.run.push(text, tally),
            Some(at) => {
                self.run.clear();
                if at + 1 < text.len() {
                    self.run.push(&text[at + 1..], tally);
                }
            }
        }
    }

    fn token<S: Sink>(&mut self, cx: &Context<'_>, sink: &mut S, token: Token, raw: &str, tally: &Tally) {
        let Token::Loc(bin) = token else { return self.text(cx, sink, raw, tally) };
        if self.run.is_empty() {
            self.run.push(raw, tally);
            return;
        }
        if self.count == 0 {
            self.text_end = (self.run.len(), *self.run.tally());
        }
        self.pairs[self.count / 2][self.count % 2] = bin;
        self.tally.join(tally);
        self.count += 1;
        if self.count < 8 {
            self.run.push(raw, tally);
            return;
        }
        let (end, pieces) = self.text_end;
        self.run.truncate(end, pieces);
        let text = self.run.as_str();
        let label = Label::from(match cx.options.dialect {
            Dialect::Microsoft => text,
            Dialect::Transformers => strip(text),
        });
        let mut corners = Quad::default();
        for (corner, point) in corners.0.iter_mut().zip(cx.points(&self.pairs)) {
            *corner = point;
        }
        sink.quad(Labeled {
            label_score: if label.is_empty() { None } else { self.run.tally().score() },
            label,
            shape: corners,
            score: self.tally.score(),
        });
        self.run.clear();
        self.count = 0;
        self.tally = Tally::default();
    }

    fn finish<S: Sink>(&mut self, _: &Context<'_>, _: &mut S) {}
}
