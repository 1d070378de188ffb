//! Text as outlines, from a font that the program brings along.

use tiny_skia::{Path, PathBuilder};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// See `README.md` beside it.
static FONT: &[u8] = include_bytes!("Roboto-Medium-subset.ttf");

/// The font at a size. A character that it lacks is drawn as a box.
pub(super) struct Font {
    face: Face<'static>,
    /// Pixels for one of the font's units.
    scale: f32,
}

impl Font {
    /// `size` is that of the em, in pixels.
    pub(super) fn new(size: f32) -> Self {
        let face = Face::parse(FONT, 0).expect("the font that is built in is whole");
        let scale = size / f32::from(face.units_per_em());
        Self { face, scale }
    }

    /// Of the em, in pixels.
    pub(super) fn size(&self) -> f32 {
        self.scale * f32::from(self.face.units_per_em())
    }

    /// From the baseline up.
    pub(super) fn ascent(&self) -> f32 {
        f32::from(self.face.ascender()) * self.scale
    }

    /// From the baseline down.
    pub(super) fn descent(&self) -> f32 {
        -f32::from(self.face.descender()) * self.scale
    }

    /// The glyph of a character, and how far the next one is.
    fn glyph(&self, c: char) -> (GlyphId, f32) {
        // A newline in a label, and what has no shape of its own.
        let c = if c.is_control() { ' ' } else { c };
        let glyph = self.face.glyph_index(c).unwrap_or_default();
        (glyph, f32::from(self.face.glyph_hor_advance(glyph).unwrap_or_default()) * self.scale)
    }

    pub(super) fn width(&self, text: &str) -> f32 {
        text.chars().map(|c| self.glyph(c).1).sum()
    }

    /// The text, or as much of it as fits with `…` after it; empty if not even that does. Reads no more than it needs.
    pub(super) fn cut(&self, text: &str, width: f32) -> String {
        const MORE: char = '…';
        let more = self.glyph(MORE).1;
        let (mut at, mut fits) = (0.0, 0);
        for (index, c) in text.char_indices() {
            at += self.glyph(c).1;
            if at > width {
                return if more > width {
                    String::new()
                } else {
                    format!("{}{MORE}", text[..fits].trim_end())
                };
            }
            if at + more <= width {
                fits = index + c.len_utf8();
            }
        }
        text.to_owned()
    }

    /// The text in lines of at most that width, broken at spaces where there are any; at most so many lines, the last
    /// one of which then ends in `…`.
    pub(super) fn wrap(&self, text: &str, width: f32, lines: usize) -> Vec<String> {
        let mut wrapped = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            if wrapped.len() + 1 == lines {
                let line = rest.lines().next().unwrap_or_default();
                let cut = self.cut(line, width);
                // What is on lines of its own below is left out, too.
                let more = cut == line && line.len() < rest.len();
                wrapped.push(if more { self.cut(&format!("{line} …"), width) } else { cut });
                break;
            }
            let (mut at, mut end, mut space) = (0.0, rest.len(), None);
            for (index, c) in rest.char_indices() {
                at += self.glyph(c).1;
                if c == '\n' || (at > width && index > 0 && !c.is_whitespace()) {
                    end = if c == '\n' { index } else { space.unwrap_or(index) };
                    break;
                }
                if c.is_whitespace() {
                    space = Some(index);
                }
            }
            let (line, after) = rest.split_at(end);
            wrapped.push(line.trim_end().to_owned());
            rest = after.trim_start();
        }
        wrapped
    }

    /// The outlines of a line of text that begins at `x` on the baseline `y`.
    pub(super) fn outline(&self, text: &str, x: f32, y: f32) -> Option<Path> {
        let mut pen = Pen { path: PathBuilder::new(), x, y, scale: self.scale };
        for c in text.chars() {
            let (glyph, advance) = self.glyph(c);
            self.face.outline_glyph(glyph, &mut pen);
            pen.x += advance;
        }
        pen.path.finish()
    }
}

/// Fonts count upwards, pictures downwards.
struct Pen {
    path: PathBuilder,
    x: f32,
    y: f32,
    scale: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
