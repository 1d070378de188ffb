"""Prints the best of many times that Pillow takes to resize, in milliseconds: beside `cargo bench --bench pixels`."""

import time

import numpy as np
import PIL
from PIL import Image

for source, target in [((1920, 1080), (768, 768)), ((1080, 1920), (768, 768)), ((600, 400), (768, 768))]:
    values = (np.arange(source[0] * source[1] * 3, dtype=np.uint64) * 2654435761 % 2**32 >> 13).astype(np.uint8)
    image = Image.fromarray(values.reshape(source[1], source[0], 3))
    best = float("inf")
    for _ in range(60):
        begin = time.perf_counter()
        image.resize(target, Image.Resampling.BICUBIC)
        best = min(best, time.perf_counter() - begin)
    print(f"Pillow {PIL.__version__}: {source} to {target}: {best * 1e3:.2f} ms")
