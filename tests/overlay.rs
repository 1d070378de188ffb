//! Drawn answers: what must show, and what must not bring it down.

use florence2::overlay::{OverlayOptions, draw};
use florence2::{Answer, BoundingBox, Image, Labeled, Point, Polygon, Quad};

fn plain(width: u32, height: u32, rgb: [u8; 3]) -> Image {
    Image::from_rgb8(width, height, rgb.repeat(width as usize * height as usize)).expect("a picture")
}

fn pixel(image: &Image, x: u32, y: u32) -> [u8; 3] {
    image.as_rgb8().as_chunks::<3>().0[(y * image.width() + x) as usize]
}

fn bounding(x1: f32, y1: f32, x2: f32, y2: f32) -> BoundingBox {
    BoundingBox { x1, y1, x2, y2 }
}

/// Pixels that differ.
fn painted(a: &Image, b: &Image) -> Vec<(u32, u32)> {
    let pixels = a.as_rgb8().chunks(3).zip(b.as_rgb8().chunks(3)).enumerate();
    let width = a.width() as usize;
    let differ = pixels.filter(|(_, (a, b))| a != b);
    differ.map(|(at, _)| ((at % width) as u32, (at / width) as u32)).collect()
}

#[test]
fn a_line_shows_on_any_ground() {
    for ground in [[0; 3], [255; 3], [128; 3], [230, 30, 60], [20, 120, 220], [40, 170, 70]] {
        let image = plain(200, 160, ground);
        let answer = Answer::Boxes(vec![Labeled::new("cat", bounding(50.0, 60.0, 150.0, 120.0))]);
        let drawn = draw(&image, &answer, &OverlayOptions::default());
        let apart =
            |x, y| pixel(&drawn, x, y).iter().zip(ground).map(|(a, b)| u32::from(a.abs_diff(b))).sum::<u32>();
        // Somewhere across each of the four lines.
        assert!((45..55).any(|x| apart(x, 90) > 200), "{ground:?}");
        assert!((145..155).any(|x| apart(x, 90) > 200), "{ground:?}");
        assert!((115..125).any(|y| apart(100, y) > 200), "{ground:?}");
        assert_eq!(pixel(&drawn, 100, 90), ground, "inside");
        assert_eq!(pixel(&drawn, 10, 150), ground, "outside");
    }
}

#[test]
fn one_label_has_one_colour() {
    let image = plain(300, 300, [255; 3]);
    let rows = [("cat", 20.0), ("dog", 120.0), ("cat", 220.0)];
    let boxes = rows.map(|(label, x)| Labeled::new(label, bounding(x, 100.0, x + 60.0, 200.0)));
    let options = OverlayOptions { line_width: Some(4.0), ..OverlayOptions::default() };
    let drawn = draw(&image, &Answer::Boxes(boxes.into()), &options);
    assert_eq!(pixel(&drawn, 20, 150), pixel(&drawn, 220, 150));
    assert_ne!(pixel(&drawn, 20, 150), pixel(&drawn, 120, 150));
}

/// The label of a box at an edge is within the picture, and longer for a longer label, up to the picture's width.
#[test]
fn labels_stay_within() {
    let image = plain(200, 100, [255; 3]);
    let box_at_the_top = bounding(150.0, 0.0, 200.0, 100.0);
    let mut last = 0;
    for label in ["i", "a cat", "a cat and a dog and a longer name than there is room for"] {
        let answer = Answer::Boxes(vec![Labeled::new(label, box_at_the_top)]);
        let without = OverlayOptions { labels: false, ..OverlayOptions::default() };
        let drawn = draw(&image, &answer, &OverlayOptions::default());
        let plate = painted(&drawn, &draw(&image, &answer, &without));
        assert!(plate.len() > last + 20, "{label}: {}", plate.len());
        last = plate.len();
    }
}

#[test]
fn a_score_is_written() {
    let image = plain(200, 100, [255; 3]);
    let mut row = Labeled::new("cat", bounding(20.0, 40.0, 180.0, 90.0));
    let bare = draw(&image, &Answer::Boxes(vec![row.clone()]), &OverlayOptions::default());
    row.score = Some(0.93);
    let scored = draw(&image, &Answer::Boxes(vec![row.clone()]), &OverlayOptions::default());
    assert!(!painted(&bare, &scored).is_empty());
    let off = OverlayOptions { scores: false, ..OverlayOptions::default() };
    assert_eq!(draw(&image, &Answer::Boxes(vec![row]), &off), bare);
}

#[test]
fn polygons_are_tinted() {
    let image = plain(200, 200, [0; 3]);
    let corners = [(50.0, 50.0), (150.0, 60.0), (100.0, 150.0)].map(|(x, y)| Point { x, y });
    let drawn = draw(
        &image,
        &Answer::Polygons(vec![Labeled::new("", vec![Polygon(corners.to_vec())])]),
        &OverlayOptions::default(),
    );
    let [red, ..] = pixel(&drawn, 100, 90);
    assert!((40..200).contains(&red), "{red}");
    assert_eq!(pixel(&drawn, 20, 180), [0; 3]);
}

#[test]
fn a_text_goes_below() {
    let image = plain(300, 200, [7; 3]);
    let of = |text: &str| draw(&image, &Answer::Text(text.to_owned()), &OverlayOptions::default());
    let short = of("a cat");
    let long = of(&"a cat sits on a mat, ".repeat(10));
    assert!(200 < short.height() && short.height() < long.height());
    assert_eq!(short.as_rgb8()[..200 * 300 * 3], *image.as_rgb8());
    assert_eq!(of(""), image);
    assert_eq!(of(" \n"), image);
    // However long, the strip is no higher than the picture.
    let endless = of(&"word ".repeat(200_000));
    assert!(endless.height() <= 420, "{}", endless.height());
    assert!(of(&"x".repeat(100_000)).height() <= 420);
    assert!(of(&"\n".repeat(1000)).height() <= 420);
}

/// Coordinates, counts and labels that no checkpoint writes.
#[test]
fn hostile_answers() {
    let images = [plain(1, 1, [9; 3]), plain(3, 500, [9; 3]), plain(500, 3, [9; 3]), plain(2100, 40, [9; 3])];
    let wild = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, i32::MIN as f32, -0.0, 5.0];
    let labels = ["", "a\u{202e}\n\t\0b", "中文 кот ñ é ☃ 🦀", &"long ".repeat(50_000)];
    for image in &images {
        let mut rows = Vec::new();
        for (at, x1) in wild.into_iter().enumerate() {
            for (by, y2) in wild.into_iter().enumerate() {
                let shape = bounding(x1, wild[(at + by) % 8], wild[(at * 3 + by) % 8], y2);
                let mut row = Labeled::new(labels[(at + by) % 4], shape);
                row.score = Some(y2);
                rows.push(row);
            }
        }
        let quads = rows.iter().map(|row| {
            let BoundingBox { x1, y1, x2, y2 } = row.shape;
            let points = [(x1, y2), (y1, x1), (x2, x2), (y2, y1)].map(|(x, y)| Point { x, y });
            Labeled::new(row.label.clone(), Quad(points))
        });
        let polygons = rows.iter().enumerate().map(|(at, row)| {
            let outline: Vec<Point> = (0..at).map(|n| Point { x: wild[n % 8], y: wild[n / 8 % 8] }).collect();
            Labeled::new(row.label.clone(), vec![Polygon(outline), Polygon(Vec::new())])
        });
        let options =
            OverlayOptions { line_width: Some(f32::NAN), font_size: Some(1e30), ..OverlayOptions::default() };
        for options in [&options, &OverlayOptions::default()] {
            for answer in [
                Answer::Quads(quads.clone().collect()),
                Answer::Polygons(polygons.clone().collect()),
                Answer::Boxes(rows.clone()),
                Answer::Boxes(Vec::new()),
            ] {
                assert_eq!(draw(image, &answer, options).size(), image.size());
            }
        }
    }
    let image = plain(64, 64, [9; 3]);
    let many = vec![Labeled::new("x", bounding(0.0, 0.0, 64.0, 64.0)); 100_000];
    let _ = draw(&image, &Answer::Boxes(many), &OverlayOptions::default());
    let zigzag = (0..500_000).map(|n| Point { x: (n % 2 * 64) as f32, y: (n % 3 * 32) as f32 }).collect();
    let _ = draw(
        &image,
        &Answer::Polygons(vec![Labeled::new("", vec![Polygon(zigzag)])]),
        &OverlayOptions::default(),
    );
}

/// A picture larger than a tile is drawn as a whole: no seam, and nothing lost.
#[test]
fn tiles_do_not_show() {
    let image = plain(2500, 60, [0; 3]);
    let answer = Answer::Boxes(vec![Labeled::new("", bounding(1900.0, 20.0, 2300.0, 40.0))]);
    let options = OverlayOptions { line_width: Some(4.0), ..OverlayOptions::default() };
    let drawn = draw(&image, &answer, &options);
    for x in 1910..2290 {
        assert_eq!(pixel(&drawn, x, 20), pixel(&drawn, 1910, 20), "{x}");
    }
    assert_ne!(pixel(&drawn, 1910, 20), [0; 3]);
}
