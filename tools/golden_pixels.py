"""Writes testdata/pixels/: what Pillow decodes and resizes, and what transformers makes of it.

    python tools/golden_pixels.py            with Pillow 13 and transformers: writes the files
    python tools/golden_pixels.py --check    with Pillow 11 or earlier: that its resize is `horizontal_first`

The pictures are drawn by the formulas below, which the tests know, too.
"""

import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageDraw

OUT = Path(__file__).parent.parent / "testdata" / "pixels"
BICUBIC = Image.Resampling.BICUBIC


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def picture(kind, width, height, seed):
    """`noise`: every byte is any; `hard`: black or white, which makes the passes overshoot; `smooth`: slopes."""
    at = np.arange(width * height * 3, dtype=np.uint64)
    if kind == "smooth":
        pixel, channel = at // 3, at % 3
        value = (pixel % width * (channel + 1) + pixel // width * (3 - channel) + seed) % 512
        value = np.minimum(value, 511 - value)
    else:
        value = ((at + seed) * 2654435761 % 2**32) >> 13 & 255
        if kind == "hard":
            value = (value >> 7) * 255
    return value.astype(np.uint8).reshape(height, width, 3)


def sizes():
    yield from [((w, h), (768, 768)) for w, h in [(1, 1), (2, 1500), (1500, 2), (768, 768), (768, 500), (500, 768), (640, 480)]]
    yield from [((w, h), (768, 768)) for w, h in [(1920, 1080), (1080, 1920), (770, 772), (770, 773), (769, 771), (120, 80)]]
    yield from [((1, 1), (5, 7)), ((5, 7), (1, 1)), ((3, 3), (64, 1)), ((1, 3000), (40, 3)), ((3000, 1), (3, 40))]
    yield from [((400, 5), (3, 200)), ((64, 33), (64, 17)), ((33, 64), (17, 64)), ((15, 100), (14, 97))]
    draw = random.Random(2)
    for _ in range(150):
        limit = draw.choice([8, 40, 200])
        yield tuple(tuple(draw.randint(1, limit) for _ in "wh") for _ in range(2))
    for _ in range(50):
        # Where the order of the passes turns.
        width, height, less = draw.randint(1, 60), draw.randint(1, 60), draw.randint(1, 30)
        yield (width + less, height + 2 * less + draw.randint(-1, 2)), (width, height)


def resize_rows():
    for at, (source, target) in enumerate(sizes()):
        kind = ["noise", "hard", "smooth"][at % 3]
        image = Image.fromarray(picture(kind, *source, at))
        yield {
            "kind": kind,
            "seed": at,
            "from": source,
            "to": target,
            "newest": sha256(np.asarray(image.resize(target, BICUBIC)))[:16],
            "horizontal_first": sha256(
                np.asarray(image.resize((target[0], source[1]), BICUBIC).resize(target, BICUBIC))
            )[:16],
        }


def scene():
    """A drawn scene: slopes, an edge, colours."""
    image = Image.fromarray(picture("smooth", 44, 28, 40))
    draw = ImageDraw.Draw(image)
    draw.ellipse((4, 3, 20, 20), (220, 40, 30), (20, 20, 60))
    draw.rectangle((24, 8, 40, 24), (30, 160, 240))
    draw.line((0, 27, 43, 0), (250, 250, 20), 2)
    return image


def formats(folder):
    """Name, whether decoders must agree to the bit, and what writes it."""
    rgb = scene()
    small = rgb.resize((16, 12), BICUBIC)
    alpha = rgb.copy()
    alpha.putalpha(Image.fromarray(picture("smooth", 44, 28, 0)[:, :, 1]))
    grey = rgb.convert("L")
    palette = rgb.quantize(16)
    deep = np.asarray(grey).astype(np.uint16) * 257
    frames = [rgb.rotate(angle) for angle in (90, 180)]
    lossy = {"quality": 80}
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "rgb.png", rgb, {}
    yield "interlaced.png", rgb, {}
    yield "rgba.png", alpha, {}
    yield "grey.png", grey, {}
    yield "grey_alpha.png", alpha.convert("LA"), {}
    yield "grey16.png", Image.fromarray(deep), {}
    yield "bilevel.png", rgb.convert("1"), {}
    yield "palette.png", palette, {}
    yield "palette_transparent.png", palette, {"transparency": 3}
    yield "orientation_6.png", rgb, {"exif": exif}
    yield "rgb.bmp", rgb, {}
    yield "palette.bmp", palette, {}
    yield "grey.bmp", grey, {}
    yield "bilevel.bmp", rgb.convert("1"), {}
    yield "rgba.bmp", alpha, {}
    yield "static.gif", palette, {}
    yield "transparent.gif", palette, {"transparency": 3}
    yield "animated.gif", rgb, {"save_all": True, "append_images": frames}
    for compression in ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"]:
        yield f"{compression}.tiff", small, {"compression": compression}
    yield "grey.tiff", small.convert("L"), {}
    yield "rgba.tiff", alpha.resize((16, 12)), {}
    yield "grey16.tiff", Image.fromarray(deep[:12, :16].copy()), {}
    yield "bilevel.tiff", small.convert("1"), {}
    yield "palette.tiff", palette.resize((16, 12)), {}
    yield "orientation_6.tiff", small, {"exif": exif}
    yield "cmyk.tiff", small.convert("CMYK"), {}
    yield "lossless.webp", rgb, {"lossless": True}
    yield "lossless_alpha.webp", alpha, {"lossless": True, "exact": True}
    yield "lossy.webp", rgb, lossy
    yield "animated.webp", rgb, {"save_all": True, "append_images": frames, "lossless": True}
    yield "orientation_6.webp", rgb, {"exif": exif, "lossless": True}
    for name, subsampling in [("444", 0), ("422", 1), ("420", 2)]:
        yield f"baseline_{name}.jpg", rgb, {**lossy, "subsampling": subsampling}
    yield "progressive.jpg", rgb, {**lossy, "progressive": True}
    yield "restarts.jpg", rgb, {**lossy, "restart_marker_blocks": 2}
    yield "grey.jpg", grey, lossy
    yield "cmyk.jpg", rgb.convert("CMYK"), lossy
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        yield f"orientation_{orientation}.jpg", rgb, {**lossy, "exif": exif}


def write_formats():
    folder = OUT / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    for name, image, options in formats(folder):
        file = folder / name
        image.save(file, **options)
        if name == "interlaced.png":
            file.write_bytes(interlace(np.asarray(image)))
        with Image.open(file) as stored:
            row = {"file": name, "mode": stored.mode}
            rgb = stored.convert("RGB")
        row["size"] = rgb.size
        row["sha256"] = sha256(np.asarray(rgb))
        if name.endswith(".jpg"):
            # Decoders may differ by rounding: the pixels themselves.
            rgb.save(folder / f"{name}.pillow.png")
        yield row


def interlace(rgb):
    """A PNG in Adam7, which Pillow reads and doesn't write."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    data = b"".join(b"\0" + row.tobytes() for x, y, dx, dy in passes for row in rgb[y::dy, x::dx])
    header = struct.pack(">IIBBBBB", rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def pixel_value_rows():
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    imagenet = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    square = {"size": {"height": 768, "width": 768}}
    oblong = {"size": {"height": 96, "width": 160}}
    configs = [
        {**imagenet, **square, "do_center_crop": False},
        {**imagenet, **oblong, "do_center_crop": False},
        {**oblong, "do_center_crop": False, "do_rescale": False},
        {**oblong, "do_center_crop": False, "do_normalize": False},
        {**oblong, "do_center_crop": False, "rescale_factor": 0.01},
        {"do_resize": False, "do_center_crop": False},
    ]
    for config in configs:
        config = {"image_processor_type": "CLIPImageProcessor", "resample": 3, **config}
        options = {key: value for key, value in config.items() if key != "image_processor_type"}
        processor = CLIPImageProcessorPil(**options)
        image = Image.fromarray(picture("smooth", 300, 200, 7))
        values = np.asarray(processor(image, return_tensors="np")["pixel_values"][0], dtype=np.float32)
        yield {"config": config, "shape": values.shape, "sha256": sha256(values)}


def write(name, rows):
    lines = [json.dumps(row) for row in rows]
    (OUT / name).write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(lines)} rows, Pillow {PIL.__version__}")


if "--check" in sys.argv:
    rows = [json.loads(line) for line in (OUT / "resize.jsonl").read_text().splitlines()]
    for row in rows:
        image = Image.fromarray(picture(row["kind"], *row["from"], row["seed"]))
        got = sha256(np.asarray(image.resize(tuple(row["to"]), BICUBIC)))[:16]
        assert got == row["horizontal_first"], row
    print(f"{len(rows)} rows, as Pillow {PIL.__version__} has them")
else:
    OUT.mkdir(parents=True, exist_ok=True)
    write("resize.jsonl", resize_rows())
    write("formats.jsonl", write_formats())
    write("pixel_values.jsonl", pixel_value_rows())
