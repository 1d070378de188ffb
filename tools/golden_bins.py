"""Prints the checksums that the bins' tests compare with: torch's results for every size 1..4096 and every bin.

A checksum is the sum of value * (2 * position + 1), modulo 2**64.
"""

import numpy as np
import torch

BINS = 1000


def checksum(rows):
    total, position = np.uint64(0), 0
    with np.errstate(over="ignore"):
        for row in rows:
            weights = 2 * np.arange(position, position + len(row), dtype=np.uint64) + np.uint64(1)
            total += (row.astype(np.uint64) * weights).sum(dtype=np.uint64)
            position += len(row)
    return f"{int(total):#018x}"


def main():
    bins = torch.arange(BINS)
    microsoft, transformers, edges = [], [], []
    for size in range(1, 4097):
        per_bin = size / BINS
        pixels = (bins + 0.5) * per_bin
        assert pixels.dtype == torch.float32
        microsoft.append(pixels.numpy().view(np.uint32))
        transformers.append(pixels.int().numpy())
        # The edges between bins are where a rounding shows.
        edge = bins.to(torch.float32) * per_bin
        edges.append((edge / per_bin).floor().clamp(0, BINS - 1).int().numpy())
    print("dequantize, microsoft (bits of the f32):", checksum(microsoft))
    print("dequantize, transformers:               ", checksum(transformers))
    print("quantize the edges:                     ", checksum(edges))


if __name__ == "__main__":
    main()
