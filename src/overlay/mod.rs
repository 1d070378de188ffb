//! Answers drawn on pictures.
//!
//! Boxes, quadrilaterals and outlines are lines in their label's colour, cased in black or white so that they show on any
//! ground; labels stand on plates of that colour, and stay within the picture. A text goes on a strip below.
//!
//! ```
//! use florence2::overlay::{self, OverlayOptions};
//! use florence2::{Image, ParseOptions, Task, parse};
//!
//! let image = Image::from_rgb8(320, 240, vec![128; 320 * 240 * 3])?;
//! let text = "car<loc_54><loc_375><loc_906><loc_707>";
//! let answer = parse(Task::ObjectDetection, text, image.size(), &ParseOptions::default());
//! let drawn = overlay::draw(&image, &answer, &OverlayOptions::default());
//! assert_eq!(drawn.size(), image.size());
//! # Ok::<(), florence2::ImageError>(())
//! ```

mod text;

use std::collections::HashMap;

use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, Transform,
};

use crate::{Answer, BoundingBox, Image, Label, Labeled, Point};
use text::Font;

/// How an answer is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlayOptions {
    /// Write the labels. On by default.
    pub labels: bool,
    /// Write the scores, where the answer has any. On by default.
    pub scores: bool,
    /// Width of lines in pixels; by default it goes with the picture's size.
    pub line_width: Option<f32>,
    /// Size of text in pixels; by default it goes with the picture's size.
    pub font_size: Option<f32>,
}

impl Default for OverlayOptions {
    fn default() -> Self {
        Self { labels: true, scores: true, line_width: None, font_size: None }
    }
}

/// Colours that are told apart on pictures and from each other; one for each label, in the order in which they come.
const PALETTE: [[u8; 3]; 12] = [
    [230, 30, 60],
    [20, 120, 220],
    [40, 170, 70],
    [250, 150, 20],
    [150, 50, 200],
    [40, 210, 220],
    [250, 220, 40],
    [235, 70, 190],
    [0, 125, 120],
    [175, 235, 60],
    [150, 95, 40],
    [250, 175, 195],
];

/// Shapes and points that are drawn at most. The network writes at most 1024 tokens: more is no answer of its.
const MAX_SHAPES: usize = 2_000;
const MAX_POINTS: usize = 20_000;

/// Text that can still be read, in pixels.
const SMALLEST: f32 = 9.0;

/// Draws an answer on a picture. A text is written on a strip, which makes the picture higher.
///
/// Coordinates may be any: what is no number is left out, and what lies outside is cut off.
#[must_use]
pub fn draw(image: &Image, answer: &Answer, options: &OverlayOptions) -> Image {
    let style = Style::new(image, options);
    let mut drawing = Drawing::new(image, &style);
    match answer {
        Answer::Text(text) => return with_strip(image, text, &style),
        Answer::Boxes(rows) => {
            for row in rows.iter().take(MAX_SHAPES) {
                drawing.add(row, &[corners(row.shape)], false);
            }
        }
        Answer::Quads(rows) => {
            for row in rows.iter().take(MAX_SHAPES) {
                drawing.add(row, &[row.shape.0.to_vec()], false);
            }
        }
        Answer::Polygons(rows) => {
            for row in rows.iter().take(MAX_SHAPES) {
                let outlines: Vec<_> = row.shape.iter().map(|outline| outline.0.clone()).collect();
                drawing.add(row, &outlines, true);
            }
        }
    }
    let layers = drawing.layers(options);
    paint(image.width(), image.height(), image.as_rgb8().to_vec(), &layers)
}

fn corners(of: BoundingBox) -> Vec<Point> {
    let BoundingBox { x1, y1, x2, y2 } = of;
    [(x1, y1), (x2, y1), (x2, y2), (x1, y2)].map(|(x, y)| Point { x, y }).to_vec()
}

/// Sizes that go with the picture, in pixels.
struct Style {
    line: f32,
    font: f32,
}

impl Style {
    fn new(image: &Image, options: &OverlayOptions) -> Self {
        let side = (f64::from(image.width()) * f64::from(image.height())).sqrt() as f32;
        let given = |size: Option<f32>| size.filter(|size| *size > 0.0).map(|size| size.min(side.max(1.0)));
        Self {
            line: given(options.line_width).unwrap_or((side / 280.0).clamp(1.5, 40.0)),
            font: given(options.font_size).unwrap_or((side / 44.0).clamp(11.0, 400.0)),
        }
    }
}

/// A thing to be painted.
struct Layer {
    path: Path,
    color: Color,
    /// `None`: filled.
    stroke: Option<f32>,
}

/// The shapes of an answer, clipped.
struct Drawing<'a> {
    style: &'a Style,
    width: f32,
    height: f32,
    shapes: Vec<Shape<'a>>,
    colors: HashMap<&'a str, usize>,
    points: usize,
}

struct Shape<'a> {
    outlines: Vec<Path>,
    bounds: BoundingBox,
    filled: bool,
    color: [u8; 3],
    label: &'a Label,
    score: Option<f32>,
}

impl<'a> Drawing<'a> {
    fn new(image: &Image, style: &'a Style) -> Self {
        let (width, height) = (image.width() as f32, image.height() as f32);
        Self { style, width, height, shapes: Vec::new(), colors: HashMap::new(), points: 0 }
    }

    fn add<T>(&mut self, row: &'a Labeled<T>, outlines: &[Vec<Point>], filled: bool) {
        // Without labels each shape has a colour of its own.
        let color = match row.label.as_str() {
            "" => self.shapes.len(),
            label => {
                let next = self.colors.len();
                *self.colors.entry(label).or_insert(next)
            }
        };
        let mut points: Vec<Vec<Point>> = Vec::new();
        for outline in outlines {
            let left = MAX_POINTS - self.points;
            let outline = self.clip(&outline[..outline.len().min(left)]);
            self.points += outline.len();
            points.push(outline);
        }
        let Some(bounds) = BoundingBox::around(&points.concat()) else { return };
        if bounds.x2 < 0.0 || bounds.y2 < 0.0 || bounds.x1 > self.width || bounds.y1 > self.height {
            return;
        }
        let outlines = points.iter().filter_map(|outline| self.outline(outline)).collect();
        let color = PALETTE[color % PALETTE.len()];
        self.shapes.push(Shape { outlines, bounds, filled, color, label: &row.label, score: row.score });
    }

    /// Numbers only, not far outside, and none that is where the one before it is. What touches the edge is drawn
    /// within it, so that it is seen.
    fn clip(&self, outline: &[Point]) -> Vec<Point> {
        let inset = self.style.line / 2.0;
        let hold = |at: f32, size: f32| {
            let near = at.clamp(-size, 2.0 * size);
            let within = inset.min(size / 2.0);
            // Half a bin is how near to the edge an answer can come.
            let edge = within.max(size / 1000.0);
            if (-edge..=size + edge).contains(&near) { near.clamp(within, size - within) } else { near }
        };
        let mut held: Vec<Point> = Vec::new();
        for point in outline.iter().filter(|point| !point.x.is_nan() && !point.y.is_nan()) {
            let point = Point { x: hold(point.x, self.width), y: hold(point.y, self.height) };
            if held.last().is_none_or(|last| (last.x - point.x).abs() + (last.y - point.y).abs() > 0.25) {
                held.push(point);
            }
        }
        held
    }

    fn outline(&self, outline: &[Point]) -> Option<Path> {
        let (first, others) = outline.split_first()?;
        if others.is_empty() {
            return PathBuilder::from_circle(first.x, first.y, self.style.line);
        }
        let mut path = PathBuilder::new();
        path.move_to(first.x, first.y);
        others.iter().for_each(|point| path.line_to(point.x, point.y));
        path.close();
        path.finish()
    }

    fn layers(self, options: &OverlayOptions) -> Vec<Layer> {
        let line = self.style.line;
        let casing = line + 2.0 * (line * 0.4).max(1.0);
        let mut layers = Vec::new();
        for shape in &self.shapes {
            for path in &shape.outlines {
                let layer = |color, stroke| Layer { path: path.clone(), color, stroke };
                if shape.filled {
                    layers.push(layer(opaque(shape.color, 90), None));
                }
                layers.push(layer(opaque(contrast(shape.color), 200), Some(casing)));
                layers.push(layer(opaque(shape.color, 255), Some(line)));
            }
        }
        // Where labels are many, a smaller one may find room.
        let fonts =
            [1.0, 0.75].map(|part| Font::new((self.style.font * part).max(SMALLEST.min(self.style.font))));
        let mut taken: Vec<Rect> = Vec::new();
        for shape in &self.shapes {
            let plates = || fonts.iter().filter_map(|font| self.plate(shape, options, font, &taken));
            let Some(plate) = plates().find(|plate| plate.free).or_else(|| plates().next()) else { continue };
            let color = opaque(shape.color, 235);
            layers.push(Layer { path: PathBuilder::from_rect(plate.area), color, stroke: None });
            let color = opaque(contrast(shape.color), 255);
            layers.extend(plate.text.map(|path| Layer { path, color, stroke: None }));
            taken.push(plate.area);
        }
        layers
    }

    /// The label's plate: above the shape, else at one of the other corners, where it hides no other plate and lies in
    /// the picture. `None` where there is nothing to write, or no room for it.
    fn plate(
        &self,
        shape: &Shape<'_>,
        options: &OverlayOptions,
        font: &Font,
        taken: &[Rect],
    ) -> Option<Plate> {
        let pad = (font.size() * 0.25).round();
        let score = shape.score.filter(|_| options.scores).map(|score| format!("{score:.2}"));
        let label = if options.labels { shape.label.as_str() } else { "" };
        let room = self.width - 2.0 * pad;
        let text = match score {
            // The label is cut, the score is not.
            Some(score) if !label.is_empty() => {
                let score = format!(" {score}");
                format!("{}{score}", font.cut(label, room - font.width(&score)))
            }
            Some(score) => score,
            None => label.to_owned(),
        };
        let text = font.cut(text.trim(), room);
        let (width, height) = (font.width(&text) + 2.0 * pad, font.ascent() + font.descent() + pad);
        if text.is_empty() || height > self.height {
            return None;
        }
        let BoundingBox { x1, y1, x2, y2 } = shape.bounds;
        let half = self.style.line / 2.0;
        let (left, right) = (x1 - half, x2 + half - width);
        let (above, below) = (y1 - half - height, y2 + half);
        let (top, bottom) = (y1 - half, y2 + half - height);
        let corners = [
            (left, above),
            (left, top),
            (left, below),
            (right, above),
            (right, top),
            (right, bottom),
            (left, bottom),
        ];
        let places = || {
            corners.into_iter().filter_map(|(x, y)| {
                let x = x.clamp(0.0, (self.width - width).max(0.0)).round();
                let y = y.clamp(0.0, (self.height - height).max(0.0)).round();
                Rect::from_xywh(x, y, width, height)
            })
        };
        let free = places().find(|place| !taken.iter().any(|other| overlap(place, other)));
        let area = free.or_else(|| places().next())?;
        let path = font.outline(&text, area.left() + pad, area.top() + pad / 2.0 + font.ascent());
        Some(Plate { area, text: path, free: free.is_some() })
    }
}

/// A label's place, and its letters.
struct Plate {
    area: Rect,
    text: Option<Path>,
    /// Whether it hides no other.
    free: bool,
}

fn overlap(a: &Rect, b: &Rect) -> bool {
    a.left() < b.right() && b.left() < a.right() && a.top() < b.bottom() && b.top() < a.bottom()
}

fn opaque([r, g, b]: [u8; 3], alpha: u8) -> Color {
    Color::from_rgba8(r, g, b, alpha)
}

/// Black or white, whichever shows on the colour.
fn contrast(color: [u8; 3]) -> [u8; 3] {
    let [r, g, b] = color.map(u32::from);
    // The weights of the eye.
    if r * 299 + g * 587 + b * 114 > 140_000 { [0; 3] } else { [255; 3] }
}

/// The picture with the text on a strip below, which is at most as high as the picture is, or three lines.
fn with_strip(image: &Image, text: &str, style: &Style) -> Image {
    const GROUND: u8 = 250;
    const EMS: f32 = 8.0;
    let (width, height) = (image.width(), image.height());
    let size = style.font.min(width as f32 / EMS);
    let mut rgb = image.as_rgb8().to_vec();
    let font = Font::new(size);
    let pad = (size * 0.5).round();
    let line = (font.ascent() + font.descent()) * 1.1;
    let most = ((height as f32 / line) as usize).max(3);
    let lines = if size < SMALLEST { Vec::new() } else { font.wrap(text, width as f32 - 2.0 * pad, most) };
    let strip = if lines.is_empty() { 0 } else { (lines.len() as f32 * line + 2.0 * pad).ceil() as u32 };
    let Some(total) = height.checked_add(strip) else { return image.clone() };
    rgb.resize(rgb.len() + 3 * width as usize * strip as usize, GROUND);
    let ink = opaque([20; 3], 255);
    let layers: Vec<Layer> = lines
        .iter()
        .enumerate()
        .filter_map(|(at, text)| {
            let y = height as f32 + pad + at as f32 * line + font.ascent();
            Some(Layer { path: font.outline(text, pad, y.round())?, color: ink, stroke: None })
        })
        .collect();
    paint(width, total, rgb, &layers)
}

/// Pixels of a tile's side: what is painted at a time, so that any size can be.
const TILE: u32 = 2048;

fn paint(width: u32, height: u32, mut rgb: Vec<u8>, layers: &[Layer]) -> Image {
    for y in (0..height).step_by(TILE as usize) {
        for x in (0..width).step_by(TILE as usize) {
            let (columns, rows) = (TILE.min(width - x), TILE.min(height - y));
            let area = Rect::from_xywh(x as f32, y as f32, columns as f32, rows as f32);
            let touches = |layer: &&Layer| {
                let reach = layer.stroke.unwrap_or_default();
                let bounds = layer.path.bounds().outset(reach, reach);
                bounds.zip(area).is_none_or(|(bounds, area)| overlap(&bounds, &area))
            };
            let layers: Vec<&Layer> = layers.iter().filter(touches).collect();
            if !layers.is_empty() {
                paint_tile(&mut rgb, width as usize, [x, y, columns, rows], &layers);
            }
        }
    }
    Image::from_rgb8(width, height, rgb).expect("the size that the pixels were made for")
}

fn paint_tile(rgb: &mut [u8], width: usize, [x, y, columns, rows]: [u32; 4], layers: &[&Layer]) {
    let mut tile = Pixmap::new(columns, rows).expect("a tile is small, and no side is zero");
    let row = |at: usize| {
        let begin = 3 * ((y as usize + at) * width + x as usize);
        begin..begin + 3 * columns as usize
    };
    for (at, pixels) in tile.data_mut().chunks_exact_mut(4 * columns as usize).enumerate() {
        for (rgba, rgb) in pixels.chunks_exact_mut(4).zip(rgb[row(at)].chunks_exact(3)) {
            rgba.copy_from_slice(&[rgb[0], rgb[1], rgb[2], 255]);
        }
    }
    let place = Transform::from_translate(-(x as f32), -(y as f32));
    for layer in layers {
        let mut paint = Paint { anti_alias: true, ..Paint::default() };
        paint.set_color(layer.color);
        match layer.stroke {
            Some(width) => {
                let stroke = Stroke {
                    width,
                    line_join: LineJoin::Round,
                    line_cap: LineCap::Round,
                    ..Stroke::default()
                };
                tile.stroke_path(&layer.path, &paint, &stroke, place, None);
            }
            None => tile.fill_path(&layer.path, &paint, FillRule::Winding, place, None),
        }
    }
    for (at, pixels) in tile.data().chunks_exact(4 * columns as usize).enumerate() {
        for (rgba, rgb) in pixels.chunks_exact(4).zip(rgb[row(at)].chunks_exact_mut(3)) {
            rgb.copy_from_slice(&rgba[..3]);
        }
    }
}
