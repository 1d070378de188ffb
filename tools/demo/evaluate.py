"""Prints how often the demo checkpoint is right on scenes that it has not seen, with transformers' `generate`.

    python tools/demo/evaluate.py demo/checkpoint [--scenes 150] [--beams 1] [--show 2]

An answer is exact when every token is the true one. IoU is the mean over boxes, paired in their order, a missing or a
surplus one counting 0, or over polygons.
"""

import argparse
import random
import re

import numpy as np
import scenes
import torch
from model import BOS, EOS, IMAGE_TOKENS, PAD, checkpoint_of, load, load_tokenizer, padded, pixels
from PIL import Image, ImageDraw

BOXES = [
    "<OD>",
    "<DENSE_REGION_CAPTION>",
    "<REGION_PROPOSAL>",
    "<CAPTION_TO_PHRASE_GROUNDING>",
    "<OPEN_VOCABULARY_DETECTION>",
]
POLYGONS = ["<REFERRING_EXPRESSION_SEGMENTATION>", "<REGION_TO_SEGMENTATION>"]
LOCATION = re.compile(r"<loc_(\d+)>")


def groups(text, size):
    bins = [int(number) for number in LOCATION.findall(text)]
    return [bins[n : n + size] for n in range(0, len(bins) - size + 1, size)]


def box_iou(a, b):
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / max(1, (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def boxes_iou(got, wanted):
    paired = [box_iou(*pair) for pair in zip(got, wanted)]
    return paired + [0.0] * (max(len(got), len(wanted)) - len(paired))


def mask(text):
    image = Image.new("1", (500, 500))
    points = [(x / 2, y / 2) for x, y in groups(text, 2)]
    if len(points) >= 3:
        ImageDraw.Draw(image).polygon(points, fill=1)
    return np.asarray(image)


def ious(task, got, wanted):
    if task in BOXES:
        return boxes_iou(groups(got, 4), groups(wanted, 4))
    if task == "<OCR_WITH_REGION>":
        return boxes_iou(*([[q[0], q[1], q[4], q[5]] for q in groups(text, 8)] for text in (got, wanted)))
    if task in POLYGONS:
        a, b = mask(got), mask(wanted)
        return [(a & b).sum() / max(1, (a | b).sum())]
    return []


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checkpoint_of(parser)
    parser.add_argument("--scenes", type=int, default=150)
    parser.add_argument("--seed", type=int, default=987654)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="wrong answers of each task that are printed")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer, encode = load_tokenizer(args.checkpoint)
    model, image_token = load(args.checkpoint), tokenizer.token_to_id("<image>")
    if args.beams == 1:
        model.generation_config.early_stopping = False
    rng = random.Random(args.seed)
    drawn = [scenes.sample(rng, encode) for _ in range(args.scenes)]
    values = torch.stack([pixels(scenes.draw(scene)) for scene in drawn])
    print("| task | n | exact | labels exact | mean IoU |\n|---|---|---|---|---|")
    rates = []
    for task in scenes.TASKS:
        cases = [(n, scenes.question(scene, task, rng, encode)) for n, scene in enumerate(drawn)]
        cases = [(n, pair) for n, pair in cases if pair is not None]
        exact, labels, overlap = [], [], []
        for at in range(0, len(cases), 50):
            part = cases[at : at + 50]
            prompts = [
                [image_token] * IMAGE_TOKENS + [BOS, *encode(scenes.prompt(task, pair[0])), EOS] for _, pair in part
            ]
            ids = padded(prompts, PAD)
            out = model.generate(
                input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=values[[n for n, _ in part]],
                num_beams=args.beams, max_new_tokens=100,
            )  # fmt: skip
            for (_, (given, wanted)), tokens in zip(part, out.tolist()):
                while tokens[-1] == PAD:
                    tokens.pop()
                got = tokenizer.decode([token for token in tokens if token > EOS], skip_special_tokens=False)
                exact.append(tokens == [EOS, BOS, *encode(wanted), EOS])
                labels.append(LOCATION.sub("|", got) == LOCATION.sub("|", wanted))
                overlap += ious(task, got, wanted)
                if not exact[-1] and len(exact) - sum(exact) <= args.show:
                    print(f"{given}\n    {wanted}\n    {got}")
        rates.append(np.mean(exact))
        iou = f"{np.mean(overlap):.3f}" if overlap else ""
        print(f"| `{task}` | {len(cases)} | {rates[-1]:.3f} | {np.mean(labels):.3f} | {iou} |", flush=True)
    print(f"\nMean of the tasks: {np.mean(rates):.4f}")


if __name__ == "__main__":
    main()
