//! Pictures against what Pillow and transformers make of them (`tools/golden_pixels.py`), and against damage.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use florence2::pixels::{Alpha, DecodeOptions, ExifOrientation, Image, ImageError, PassOrder, Preprocessor};
use florence2::{FileError, ImageSize, PreprocessorError};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pixels")
}

/// What is not read of what Pillow reads.
const NOT_READ: &str = "palette.tiff";

/// The lines of a file of testdata.
fn rows(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(testdata().join(name)).expect("testdata");
    text.lines().map(|line| serde_json::from_str(line).expect("testdata is JSON")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).expect("a number")
}

fn size(value: &Value) -> ImageSize {
    ImageSize::from_width_height(number(&value[0]), number(&value[1])).expect("a size")
}

/// The pictures of `tools/golden_pixels.py`.
fn picture(kind: &str, size: ImageSize, seed: u64) -> Image {
    let (width, height) = (u64::from(size.width()), u64::from(size.height()));
    let rgb = (0..width * height * 3)
        .map(|at| {
            let any = ((at + seed) * 2_654_435_761 % (1 << 32)) >> 13 & 255;
            let value = match kind {
                "noise" => any,
                "hard" => (any >> 7) * 255,
                "smooth" => {
                    let (pixel, channel) = (at / 3, at % 3);
                    let value = (pixel % width * (channel + 1) + pixel / width * (3 - channel) + seed) % 512;
                    value.min(511 - value)
                }
                other => panic!("no picture {other}"),
            };
            u8::try_from(value).expect("a byte")
        })
        .collect();
    Image::from_rgb8(size.width(), size.height(), rgb).expect("a picture")
}

#[test]
fn resize_is_pillows() {
    for row in rows("resize.jsonl") {
        let image =
            picture(row["kind"].as_str().expect("a kind"), size(&row["from"]), number(&row["seed"]).into());
        for (key, order) in [("newest", PassOrder::Newest), ("horizontal_first", PassOrder::HorizontalFirst)]
        {
            let resized = image.resize(size(&row["to"]), order);
            assert_eq!(sha256(resized.as_rgb8())[..16], *row[key].as_str().expect("a sum"), "{key} of {row}");
        }
    }
}

/// A table of orders is worth something only where they differ.
#[test]
fn the_orders_differ() {
    let differ = rows("resize.jsonl").iter().filter(|row| row["newest"] != row["horizontal_first"]).count();
    assert!(differ > 20, "{differ}");
}

/// What `resize` must give, written as it is defined: one value at a time.
fn slow_resize(image: &Image, to: ImageSize, vertical_first: bool) -> Vec<u8> {
    fn pass(
        source: &[[u8; 3]],
        from: usize,
        to: usize,
        at: impl Fn(usize, usize) -> usize,
        lines: usize,
    ) -> Vec<[u8; 3]> {
        let scale = from as f64 / to as f64;
        let stretch = f64::max(scale, 1.0);
        let kernel = |x: f64| match x.abs() {
            x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            _ => 0.0,
        };
        let mut target = Vec::new();
        for out in 0..to {
            let center = (out as f64 + 0.5) * scale;
            let first = (center - 2.0 * stretch + 0.5).max(0.0) as usize;
            let end = from.min((center + 2.0 * stretch + 0.5) as usize);
            let weights: Vec<f64> =
                (first..end).map(|x| kernel((x as f64 - center + 0.5) * (1.0 / stretch))).collect();
            let sum: f64 = weights.iter().sum();
            let fixed: Vec<i64> = weights
                .iter()
                .map(|w| (w / sum * 4_194_304.0 + if *w < 0.0 { -0.5 } else { 0.5 }) as i64)
                .collect();
            for line in 0..lines {
                target.push([0, 1, 2].map(|channel| {
                    let sum: i64 = (first..end)
                        .zip(&fixed)
                        .map(|(x, weight)| weight * i64::from(source[at(line, x)][channel]))
                        .sum();
                    // What a sum of 32 bits must hold, too.
                    assert!(i32::try_from(sum + (1 << 21)).is_ok());
                    ((sum + (1 << 21)) >> 22).clamp(0, 255) as u8
                }));
            }
        }
        target
    }
    let (width, height) = (image.width() as usize, image.height() as usize);
    let (to_width, to_height) = (to.width() as usize, to.height() as usize);
    let source = image.as_rgb8().as_chunks::<3>().0;
    let turn = |pixels: &[[u8; 3]], lines: usize| -> Vec<[u8; 3]> {
        (0..lines).flat_map(|line| pixels.iter().skip(line).step_by(lines).copied()).collect()
    };
    let rows = |source: &[[u8; 3]], lines: usize| match width == to_width {
        true => source.to_vec(),
        // A pass writes its outputs line by line of the other axis.
        false => turn(&pass(source, width, to_width, |line, x| line * width + x, lines), lines),
    };
    let columns = |source: &[[u8; 3]], stride: usize| match height == to_height {
        true => source.to_vec(),
        false => pass(source, height, to_height, |line, y| y * stride + line, stride),
    };
    let target = if vertical_first {
        rows(&columns(source, width), to_height)
    } else {
        columns(&rows(source, height), to_width)
    };
    target.concat()
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, cases: 200, ..Default::default() })]

    /// However the passes are cut into pieces and lanes, each value is what the definition says.
    #[test]
    fn lanes_do_not_matter(
        from in (1u32..70, 1u32..70), to in (1u32..70, 1u32..70), hard: bool, seed in 0u64..1 << 20,
    ) {
        let [from, to] = [from, to].map(|(w, h)| ImageSize::from_width_height(w, h).expect("not zero"));
        let image = picture(if hard { "hard" } else { "noise" }, from, seed);
        let plain = slow_resize(&image, to, false);
        proptest::prop_assert!(image.resize(to, PassOrder::HorizontalFirst).as_rgb8() == plain);
        let shrinks = |from: u32, to: u32| i64::from(from) - i64::from(to);
        let height = shrinks(from.height(), to.height());
        let vertical_first = height > 0 && height > 2 * shrinks(from.width(), to.width());
        let plain = slow_resize(&image, to, vertical_first);
        proptest::prop_assert!(image.resize(to, PassOrder::Newest).as_rgb8() == plain);
    }
}

/// One axis at a time at sizes that pictures have: the whole range of windows, the sums within 32 bits.
#[test]
fn long_lines() {
    let [long, short] = [20_011, 7].map(|side| ImageSize::from_width_height(side, 1).expect("not zero"));
    for (from, to) in [(long, short), (short, long)] {
        let image = picture("hard", from, 3);
        assert!(
            image.resize(to, PassOrder::Newest).as_rgb8() == slow_resize(&image, to, false),
            "{from} to {to}"
        );
    }
}

#[test]
fn pixel_values_are_the_references() {
    for row in rows("pixel_values.jsonl") {
        let preprocessor = Preprocessor::from_json(&row["config"].to_string()).expect("a config");
        let image = picture("smooth", ImageSize::from_width_height(300, 200).expect("not zero"), 7);
        let values = preprocessor.pixel_values(&image);
        assert_eq!(Value::from(vec![3, values.height(), values.width()]), row["shape"]);
        let bytes: Vec<u8> = values.values().iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), row["sha256"], "{}", row["config"]);
    }
}

/// Pillow's own doing with a stored orientation: none, but for TIFF, which it turns.
fn as_pillow(file: &str) -> DecodeOptions {
    let mut options = DecodeOptions::default();
    if !file.ends_with(".tiff") {
        options.orientation = ExifOrientation::Leave;
    }
    options
}

#[test]
fn formats_are_read_as_pillow_reads_them() {
    for row in rows("formats.jsonl") {
        let file = row["file"].as_str().expect("a name");
        let path = testdata().join("formats").join(file);
        let image = match Image::open_with(&path, &as_pillow(file)) {
            Err(ImageError::InFile { source, .. }) if file == NOT_READ => {
                assert!(matches!(*source, ImageError::UnsupportedKind { format: "TIFF", .. }), "{source:?}");
                continue;
            }
            image => image.unwrap_or_else(|error| panic!("{file}: {error:?}")),
        };
        assert_eq!(image.size(), size(&row["size"]), "{file}");
        if file.ends_with(".jpg") {
            let pillow = Image::open(path.with_file_name(format!("{file}.pillow.png"))).expect("testdata");
            let subsampled = !["baseline_444.jpg", "grey.jpg", "cmyk.jpg"].contains(&file);
            // Colours that are stored for two or four pixels together are spread out by either decoder's own filter;
            // ours takes for the last column what lies beyond the picture.
            let (greatest, columns) = if subsampled { (8, 1) } else { (2, 0) };
            let (row, mut sum) = (3 * image.width() as usize, 0);
            for (ours, pillow) in image.as_rgb8().chunks(row).zip(pillow.as_rgb8().chunks(row)) {
                let [ours, pillow] = [ours, pillow].map(|row| &row[..row.len() - 3 * columns]);
                let differences = || ours.iter().zip(pillow).map(|(a, b)| a.abs_diff(*b));
                assert!(differences().all(|difference| difference <= greatest), "{file}");
                sum += differences().map(u32::from).sum::<u32>();
            }
            assert!(f64::from(sum) / (image.as_rgb8().len() as f64) < 0.5, "{file}");
        } else if file.starts_with("grey16") {
            // Unlike Pillow, which makes them white.
            let grey = Image::open(testdata().join("formats/grey.png")).expect("testdata");
            let (width, rows) = (grey.width() as usize * 3, image.width() as usize * 3);
            for (row, expected) in image.as_rgb8().chunks(rows).zip(grey.as_rgb8().chunks(width)) {
                assert_eq!(*row, expected[..rows], "{file}");
            }
        } else {
            assert_eq!(sha256(image.as_rgb8()), row["sha256"], "{file}");
        }
    }
}

#[test]
fn orientations_are_turned_upright() {
    for orientation in 1..=8 {
        let path = testdata().join(format!("formats/orientation_{orientation}.jpg"));
        let stored = DecodeOptions { orientation: ExifOrientation::Leave, ..DecodeOptions::default() };
        let [upright, stored] = [DecodeOptions::default(), stored]
            .map(|options| Image::open_with(&path, &options).expect("testdata"));
        let (width, height) = (stored.width(), stored.height());
        let turned = orientation >= 5;
        assert_eq!(
            (upright.width(), upright.height()),
            if turned { (height, width) } else { (width, height) }
        );
        // Where the first row and the first column of what is stored lie in the picture, as EXIF has it.
        let (right, bottom) = (upright.width() - 1, upright.height() - 1);
        let corner = match orientation {
            1 | 5 => (0, 0),
            2 | 6 => (right, 0),
            3 | 7 => (right, bottom),
            _ => (0, bottom),
        };
        let beside = match orientation {
            1 | 4 => (1, corner.1),
            2 | 3 => (right - 1, corner.1),
            5 | 6 => (corner.0, 1),
            _ => (corner.0, bottom - 1),
        };
        let pixel = |image: &Image, (x, y): (u32, u32)| {
            image.as_rgb8().as_chunks::<3>().0[(y * image.width() + x) as usize]
        };
        assert_eq!(pixel(&upright, corner), pixel(&stored, (0, 0)), "{orientation}");
        assert_eq!(pixel(&upright, beside), pixel(&stored, (1, 0)), "{orientation}");
    }
    for file in ["orientation_6.png", "orientation_6.webp", "orientation_6.tiff"] {
        let image = Image::open(testdata().join("formats").join(file)).expect("testdata");
        assert!(image.height() > image.width(), "{file}");
    }
}

#[test]
fn alpha_lies_over_a_colour_if_asked() {
    let path = testdata().join("formats/rgba.png");
    let stored = Image::open(&path).expect("testdata");
    let on = |ground| {
        let options = DecodeOptions { alpha: Alpha::Over(ground), ..DecodeOptions::default() };
        Image::open_with(&path, &options).expect("testdata")
    };
    let (white, black) = (on([255; 3]), on([0; 3]));
    assert!(white.as_rgb8() != stored.as_rgb8());
    for ((white, black), stored) in white.as_rgb8().iter().zip(black.as_rgb8()).zip(stored.as_rgb8()) {
        assert!(black <= stored && stored <= white);
    }
}

/// However much of a file is missing, there is no picture, or all of it is there.
#[test]
fn a_part_is_never_taken_for_the_whole() {
    for row in rows("formats.jsonl").iter().filter(|row| row["file"] != NOT_READ) {
        let file = row["file"].as_str().expect("a name");
        let bytes = fs::read(testdata().join("formats").join(file)).expect("testdata");
        let whole = Image::decode(&bytes).expect("a picture");
        for end in (0..bytes.len()).step_by(5).chain(bytes.len().saturating_sub(12)..bytes.len()) {
            if let Ok(part) = Image::decode(&bytes[..end]) {
                assert!(part == whole, "{file}: {end} of {} bytes", bytes.len());
            }
        }
    }
}

/// Whatever is in a file, there is an answer, and no panic.
#[test]
fn damage_is_survived() {
    for row in rows("formats.jsonl").iter().filter(|row| row["file"] != NOT_READ) {
        let file = row["file"].as_str().expect("a name");
        let bytes = fs::read(testdata().join("formats").join(file)).expect("testdata");
        for at in (0..bytes.len()).step_by(3) {
            for value in [0x00, 0xff, bytes[at] ^ 0x81] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let options = DecodeOptions { max_pixels: 1 << 16, ..DecodeOptions::default() };
                let _ = Image::decode_with(&damaged, &options);
            }
        }
    }
}

#[test]
fn limits_hold_before_anything_is_decoded() {
    let png = fs::read(testdata().join("formats/rgb.png")).expect("testdata");
    let limited = |max_pixels, max_file_bytes| {
        Image::decode_with(&png, &DecodeOptions { max_pixels, max_file_bytes, ..DecodeOptions::default() })
    };
    assert!(limited(44 * 28, png.len() as u64).is_ok());
    assert!(matches!(
        limited(44 * 28 - 1, 1 << 20),
        Err(ImageError::TooManyPixels { width: 44, height: 28, .. })
    ));
    assert!(matches!(limited(1 << 20, png.len() as u64 - 1), Err(ImageError::TooManyBytes { .. })));
}

#[test]
fn what_is_no_picture_is_told() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(matches!(Image::open(here), Err(ImageError::NotAFile { .. })));
    assert!(matches!(Image::open(here.join("no such file")), Err(ImageError::Read { .. })));
    let error = Image::open(here.join("Cargo.toml")).expect_err("no picture");
    assert!(
        matches!(&error, ImageError::InFile { source, .. } if matches!(**source, ImageError::UnknownFormat))
    );
    assert!(error.to_string().ends_with("Cargo.toml"));
    assert!(matches!(Image::decode(b""), Err(ImageError::Empty)));
    let heic = Image::decode(b"\0\0\0\x18ftypheic\0\0\0\0").expect_err("not read");
    assert!(heic.to_string().starts_with("HEIC is not read"), "{heic}");
    for (width, height, bytes) in [(0, 1, 0), (1, 0, 0), (2, 2, 11), (2, 2, 13), (u32::MAX, u32::MAX, 3)] {
        let shape = Image::from_rgb8(width, height, vec![0; bytes]);
        assert!(matches!(shape, Err(ImageError::Shape { .. })), "{width}x{height}");
    }
}

#[cfg(unix)]
#[test]
fn devices_are_not_opened() {
    assert!(matches!(Image::open("/dev/zero"), Err(ImageError::NotAFile { .. })));
}

#[test]
fn a_png_comes_back() {
    let image = picture("noise", ImageSize::from_width_height(31, 17).expect("not zero"), 5);
    assert_eq!(Image::decode(&image.encode_png().expect("a PNG")).expect("a picture"), image);
}

#[test]
fn what_a_config_asks_and_is_not_done_is_refused() {
    let config = |change: &str| {
        format!(
            "{{\"do_center_crop\": false, \"size\": {{\"height\": 8, \"width\": 8}}, {change} \"resample\": 3}}"
        )
    };
    // The last of two equal keys counts.
    let reads: &[&str] = &[
        "",
        "\"do_pad\": false,",
        "\"do_pad\": null,",
        "\"do_convert_rgb\": null,",
        "\"do_center_crop\": true, \"crop_size\": {\"height\": 8, \"width\": 8},",
        "\"do_center_crop\": true, \"crop_size\": 8,",
        "\"size\": [8, 8],",
        "\"image_processor_type\": \"CLIPImageProcessorFast\",",
        "\"image_mean\": 0.5,",
        "\"do_resize\": false, \"size\": {\"shortest_edge\": 8},",
    ];
    for change in reads {
        assert!(Preprocessor::from_json(&config(change)).is_ok(), "{change}");
    }
    let refused: &[(&str, &str)] = &[
        ("\"do_center_crop\": true,", "do_center_crop"),
        ("\"do_center_crop\": null,", "do_center_crop"),
        ("\"do_center_crop\": true, \"crop_size\": {\"height\": 8, \"width\": 7},", "do_center_crop"),
        ("\"do_center_crop\": 1,", "\"do_center_crop\" should be true or false"),
        ("\"do_pad\": true,", "\"do_pad\": true"),
        ("\"do_flip_channel_order\": true,", "do_flip_channel_order"),
        ("\"size\": null,", "\"size\" is missing"),
        ("\"size\": 224,", "proportions"),
        ("\"size\": {\"shortest_edge\": 224},", "proportions"),
        ("\"size\": {\"height\": 8},", "\"size\" should be"),
        ("\"size\": {\"height\": 8, \"width\": 0},", "\"size\" should be"),
        ("\"size\": {\"height\": 8, \"width\": 8.5},", "\"size\" should be"),
        ("\"rescale_factor\": \"1/255\",", "\"rescale_factor\" should be a number"),
        ("\"image_mean\": [0.5, 0.5],", "\"image_mean\" should be"),
        ("\"image_std\": [0.5, 0.0, 0.5],", "\"image_std\" should be"),
        ("\"image_processor_type\": \"SiglipImageProcessor\",", "SiglipImageProcessor"),
    ];
    for (change, expected) in refused {
        let error = Preprocessor::from_json(&config(change)).expect_err(change);
        assert!(error.to_string().contains(expected), "{change}: {error}");
    }
    let bilinear = config("").replace("\"resample\": 3", "\"resample\": 2");
    let error = Preprocessor::from_json(&bilinear).expect_err("another filter");
    assert_eq!(error.to_string(), "\"resample\" is 2 (bilinear), and only 3 (bicubic) is done");
    assert!(matches!(Preprocessor::from_json("[]"), Err(PreprocessorError::Json(FileError::Json(_)))));
    for (text, found) in [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            "a pointer of Git LFS; `git lfs pull`",
        ),
        ("\n<html><body>", "a web page, "),
    ] {
        let Err(PreprocessorError::Json(error)) = Preprocessor::from_json(text) else {
            panic!("{text} is no JSON");
        };
        assert!(error.to_string().contains(found), "{error}");
    }
    let marked = format!("\u{feff}{}", config(""));
    let read = |text: &str| Preprocessor::from_json(text).expect("a configuration");
    assert_eq!(read(&marked), read(&config("")));
}

/// The files of the design's own collection; `None`, and a line that says so, where it is not there.
fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/assets");
    if !folder.is_dir() {
        // Not by a macro, whose output tests capture.
        let _ = writeln!(io::stderr(), "SKIPPED: {} is not there", folder.display());
        return None;
    }
    Some(folder)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn shared_pictures() {
    let Some(folder) = shared().map(|folder| folder.join("images")) else { return };
    let manifest = json(&folder.join("manifest.json"));
    let files = manifest.as_object().expect("an object");
    assert!(files.len() > 60, "{}", files.len());
    for (file, row) in files {
        let image = Image::open_with(folder.join(file), &as_pillow(file));
        if file.starts_with("bad/") {
            let error = image.expect_err(file);
            assert!(error.to_string().contains(file), "{error}");
            continue;
        }
        let image = image.unwrap_or_else(|error| panic!("{file}: {error:?}"));
        assert_eq!(image.size(), size(&row["size"]), "{file}");
        if file == "formats/gray16.png" {
            // Unlike Pillow, which makes it white.
            continue;
        }
        if let Some(sum) = row["pillow_convert_rgb_sha256"].as_str() {
            assert_eq!(sha256(image.as_rgb8()), sum, "{file}");
        }
        for (channel, mean) in row["pillow_convert_rgb_mean"].as_array().expect("means").iter().enumerate() {
            let values = image.as_rgb8().iter().skip(channel).step_by(3);
            let pixels = f64::from(image.width()) * f64::from(image.height());
            let ours = values.map(|&value| f64::from(value)).sum::<f64>() / pixels;
            let most = if file.ends_with(".jpg") { 0.5 } else { 0.001 };
            assert!((ours - mean.as_f64().expect("a mean")).abs() < most, "{file}: {ours} and {mean}");
        }
    }
}

#[test]
fn shared_resizes() {
    let Some(folder) = shared().map(|folder| folder.join("images")) else { return };
    let coffee = Image::open(folder.join("photos/coffee_120x80.png")).expect("a picture");
    for (width, height) in [(200, 100), (33, 70), (48, 48)] {
        let file = format!("resize/coffee_120x80_to_{width}x{height}_pillow_bicubic.png");
        let expected = Image::open(folder.join(&file)).expect("a picture");
        assert_eq!(coffee.resize(expected.size(), PassOrder::Newest), expected, "{file}");
    }
}

#[test]
fn shared_pixel_values() {
    let Some(folder) = shared().map(|folder| folder.join("images")) else { return };
    let golden = json(&folder.join("preprocess_golden.json"));
    for (file, row) in golden["images"].as_object().expect("an object") {
        let image = Image::open_with(folder.join(file), &as_pillow(file)).expect("a picture");
        let side = ImageSize::from_width_height(768, 768).expect("not zero");
        let resized = image.resize(side, PassOrder::Newest);
        let values = Preprocessor::FLORENCE2.pixel_values(&image);
        // What decoders round differently stays after the resize.
        let (grey_levels, mean) = if file.ends_with(".jpg") { (5, 2e-3) } else { (0, 1e-6) };
        let at = row["grid_index"].as_array().expect("an index");
        let grid = row["resized_uint8_grid"].as_array().expect("a grid");
        for (y, line) in at.iter().zip(grid) {
            for (x, pixel) in at.iter().zip(line.as_array().expect("a row")) {
                let place = (number(y) * 768 + number(x)) as usize * 3;
                for (ours, expected) in
                    resized.as_rgb8()[place..].iter().zip(pixel.as_array().expect("a pixel"))
                {
                    let difference = u32::from(*ours).abs_diff(number(expected));
                    assert!(difference <= grey_levels, "{file} at {x}, {y}: {ours} and {expected}");
                }
            }
        }
        for (plane, expected) in values.values().chunks(768 * 768).zip(row["mean"].as_array().expect("means"))
        {
            let ours = plane.iter().copied().map(f64::from).sum::<f64>() / f64::from(768 * 768);
            let expected = expected.as_f64().expect("a mean");
            assert!((ours - expected).abs() <= mean, "{file}: {ours} and {expected}");
        }
    }
}

#[test]
fn shared_configs() {
    let Some(folder) = shared() else { return };
    let published = ["original", "native-rebuilt"].iter().flat_map(|layout| {
        ["base", "base-ft", "large", "large-ft"].map(|name| format!("configs/{layout}/{name}"))
    });
    for name in published {
        let text = fs::read_to_string(folder.join(&name).join("preprocessor_config.json")).expect("a config");
        assert_eq!(Preprocessor::from_json(&text).expect(&name), Preprocessor::FLORENCE2, "{name}");
    }
    let demo = fs::read_to_string(folder.join("../demo/checkpoint-fp16/preprocessor_config.json"))
        .expect("a config");
    let demo = Preprocessor::from_json(&demo).expect("the demo's");
    assert_eq!(demo.size(), ImageSize::from_width_height(192, 192).ok());
}
