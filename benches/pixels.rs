//! Pictures, on one thread: `cargo bench --bench pixels --features overlay`.
//!
//! `fast_image_resize` stands beside the resize: the fastest crate, whose values are not Pillow's. For Pillow's own time
//! run `tools/time_pillow.py` on the same machine.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use fast_image_resize::images::{Image as FirImage, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use florence2::overlay::{self, OverlayOptions};
use florence2::pixels::{Image, PassOrder, Preprocessor};
use florence2::{Answer, BoundingBox, ImageSize, Labeled};

fn noise(width: u32, height: u32) -> Image {
    let rgb = (0..width * height * 3).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    Image::from_rgb8(width, height, rgb).expect("a picture")
}

fn resize(c: &mut Criterion) {
    let to = ImageSize::from_width_height(768, 768).expect("not zero");
    for (width, height) in [(1920, 1080), (1080, 1920), (4000, 3000), (600, 400)] {
        let mut group = c.benchmark_group(format!("resize/{width}x{height}"));
        let image = noise(width, height);
        group.bench_function("exact", |b| b.iter(|| image.resize(black_box(to), PassOrder::Newest)));
        group.bench_function("fast_image_resize", |b| {
            let source = ImageRef::new(width, height, image.as_rgb8(), PixelType::U8x3).expect("a picture");
            let options = ResizeOptions::new()
                .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
                .use_alpha(false);
            b.iter(|| {
                let mut target = FirImage::new(768, 768, PixelType::U8x3);
                Resizer::new().resize(black_box(&source), &mut target, &options).expect("one type");
                target
            });
        });
    }
}

fn whole(c: &mut Criterion) {
    let image = noise(1920, 1080);
    c.bench_function("pixel_values/1920x1080", |b| {
        b.iter(|| Preprocessor::FLORENCE2.pixel_values(black_box(&image)));
    });
    let rows = (0..20).map(|at| {
        let (x1, y1) = (at as f32 * 80.0, at as f32 * 40.0);
        Labeled::new(format!("object {at}"), BoundingBox { x1, y1, x2: x1 + 300.0, y2: y1 + 200.0 })
    });
    let answer = Answer::Boxes(rows.collect());
    c.bench_function("overlay/1920x1080", |b| {
        b.iter(|| overlay::draw(black_box(&image), &answer, &OverlayOptions::default()));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    targets = resize, whole
}
criterion_main!(benches);
