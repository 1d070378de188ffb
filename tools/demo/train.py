"""Trains the demo checkpoint from nothing on drawn scenes. A CPU is enough: two cores take about 75 minutes.

    python tools/demo/tokenizer.py CHECKPOINT
    python tools/demo/train.py CHECKPOINT

Each step has fresh scenes, each with several tasks: a picture is encoded once for all of its prompts. The decoder is fed
`</s><s>answer` and must say `<s>answer</s>`.

A probe reads from the projected image tokens what each cell of the scene holds, and its loss is added, falling to nothing.
With captions alone the features became readable only after several hundred steps, and no whole answer was right before
that. It is not in the checkpoint.
"""

import argparse
import collections
import math
import random
import time

import scenes
import torch
import torch.nn.functional as F
from model import BOS, EOS, PAD, build, checkpoint_of, load_tokenizer, padded, pixels, save

# How often a task is drawn: more often where an answer speaks of the whole picture.
WEIGHTS = {
    "<OCR>": 1.0, "<OCR_WITH_REGION>": 1.0, "<CAPTION>": 1.0, "<DETAILED_CAPTION>": 1.0, "<MORE_DETAILED_CAPTION>": 1.3,
    "<OD>": 1.6, "<DENSE_REGION_CAPTION>": 1.6, "<REGION_PROPOSAL>": 1.4, "<CAPTION_TO_PHRASE_GROUNDING>": 1.2,
    "<REFERRING_EXPRESSION_SEGMENTATION>": 1.2, "<REGION_TO_SEGMENTATION>": 0.8, "<OPEN_VOCABULARY_DETECTION>": 1.0,
    "<REGION_TO_CATEGORY>": 0.8, "<REGION_TO_DESCRIPTION>": 1.0, "<REGION_TO_OCR>": 0.7,
}  # fmt: skip
IGNORED = -100
KINDS = ("none", *scenes.SHAPES, "sign")
COLOURS, BACKGROUNDS = list(scenes.COLOURS), list(scenes.BACKGROUNDS)
# What the probe reads of each cell, and the number of classes.
FIELDS = {
    "kind": len(KINDS), "colour": len(COLOURS), "size": 2, "word": len(scenes.WORDS), "letter": len(scenes.CODE_LETTERS),
    "digit": len(scenes.CODE_DIGITS), "aspect": 3, "background": len(BACKGROUNDS),
}  # fmt: skip


def cells(scene):
    """For each cell the class of each field, IGNORED where it has none."""
    background = BACKGROUNDS.index(scene.background)
    out = [dict.fromkeys(FIELDS, IGNORED) | {"kind": 0, "background": background} for _ in range(9)]
    for item in scene.items:
        cell = out[item.cell]
        cell["kind"] = KINDS.index(item.kind)
        if item.kind != "sign":
            cell["colour"] = COLOURS.index(item.colour)
            cell["size"] = ("large", "small").index(item.size)
            cell["aspect"] = 1 + (scene.width > scene.height) - (scene.width < scene.height)
        elif item.text in scenes.WORDS:
            cell["word"] = scenes.WORDS.index(item.text)
        else:
            cell["letter"] = scenes.CODE_LETTERS.index(item.text[0])
            cell["digit"] = scenes.CODE_DIGITS.index(item.text[1])
    return [list(cell.values()) for cell in out]


class Probe(torch.nn.Module):
    """One linear layer over the 2 x 2 image tokens of a cell."""

    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(4 * width, sum(FIELDS.values()))

    def forward(self, features, targets):
        """The loss, and how much of each field is right."""
        count, _, width = features.shape
        grid = features[:, 1:].reshape(count, 3, 2, 3, 2, width).permute(0, 1, 3, 2, 4, 5).reshape(count * 9, 4 * width)
        loss, right = 0.0, {}
        for n, (name, logits) in enumerate(zip(FIELDS, self.linear(grid).split(list(FIELDS.values()), 1))):
            wanted = targets[..., n].flatten()
            has = wanted != IGNORED
            if has.any():
                loss = loss + F.cross_entropy(logits[has], wanted[has])
                right[name] = (logits[has].argmax(1) == wanted[has]).float().mean().item()
        return loss, right


def batch(rng, encode, pictures, tasks):
    """Pixel values, rows (picture, task, prompt ids, answer ids), and the cells of the pictures."""
    values, rows, targets = [], [], []
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for n in range(pictures):
        scene = scenes.sample(rng, encode)
        values.append(pixels(scenes.draw(scene)))
        targets.append(cells(scene))
        chosen = set()
        while len(chosen) < tasks:
            task = rng.choices(names, weights)[0]
            pair = scenes.answer(scene, task, rng) if task not in chosen else None
            if pair is None or scenes.repeats_trigram(encode(pair[1])):
                continue
            chosen.add(task)
            rows.append((n, task, [BOS, *encode(scenes.prompt(task, pair[0])), EOS], [BOS, *encode(pair[1]), EOS]))
    return torch.stack(values), rows, torch.tensor(targets)


def decode(model, features, rows):
    """The decoder's states at each token of the rows, and the tokens that it must say."""
    language = model.model.language_model
    prompt = padded([row[2] for row in rows], PAD)
    labels = padded([row[3] for row in rows], IGNORED)
    start = torch.full((len(rows), 1), EOS)
    fed = torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, PAD)], 1)
    embeds = torch.cat([features[[row[0] for row in rows]], language.shared(prompt)], 1)
    mask = torch.cat([torch.ones(len(rows), features.shape[1], dtype=torch.long), (prompt != PAD).long()], 1)
    encoded = language.encoder(inputs_embeds=embeds, attention_mask=mask)[0]
    out = language.decoder(input_ids=fed, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False)
    return out[0], labels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checkpoint_of(parser)
    parser.add_argument("--steps", type=int, default=4700)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1.2e-3, help="the greatest learning rate; it falls as a cosine")
    parser.add_argument("--pictures", type=int, default=8, help="of a step")
    parser.add_argument("--tasks", type=int, default=6, help="of a picture")
    parser.add_argument("--probe", type=float, default=0.3, help="weight of the probe's loss at the first step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=int, default=50, help="steps between two lines of figures")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed + 1)
    tokenizer, encode = load_tokenizer(args.checkpoint)
    model = build(tokenizer.get_vocab_size(), tokenizer.token_to_id("<image>")).train()
    probe = Probe(model.config.text_config.d_model)
    print(f"{sum(weight.numel() for weight in model.parameters())} parameters")
    groups = [
        {"params": [weight for weight in model.parameters() if weight.ndim >= 2], "weight_decay": 0.01},
        {"params": [weight for weight in model.parameters() if weight.ndim < 2], "weight_decay": 0.0},
        {"params": probe.parameters(), "weight_decay": 0.01},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98))
    start, losses = time.time(), []
    right, read = collections.defaultdict(list), collections.defaultdict(list)
    for step in range(1, args.steps + 1):
        done = step / args.steps
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1, step / args.warmup) * 0.5 * (1 + math.cos(math.pi * done))
        values, rows, targets = batch(rng, encode, args.pictures, args.tasks)
        optimizer.zero_grad(set_to_none=True)
        features = model.get_image_features(values).pooler_output
        # Short and long answers apart, to spare padding: each half goes back to the features, both together from there.
        leaf = features.detach().requires_grad_()
        rows.sort(key=lambda row: len(row[3]))
        tokens, total = sum(len(row[3]) for row in rows), 0.0
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            states, labels = decode(model, leaf, part)
            has = labels != IGNORED
            logits = model.lm_head(states[has])
            loss = F.cross_entropy(logits, labels[has], reduction="sum") / tokens
            loss.backward()
            total += loss.item()
            hit = torch.ones_like(has)
            hit[has] = logits.argmax(1) == labels[has]
            for row, whole in zip(part, hit.all(1).tolist()):
                right[row[1]].append(whole)
        loss, fields = probe(features, targets)
        torch.autograd.backward([features, loss], [leaf.grad, torch.tensor(args.probe * (1 - done))])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
        for name, value in fields.items():
            read[name].append(value)
        if step % args.report == 0 or step == args.steps:
            print(f"step {step}, {(time.time() - start) / 60:.1f} min, loss {sum(losses) / len(losses):.4f}")
            print(
                "   right when fed the truth:", " ".join(f"{t} {sum(v) / len(v):.2f}" for t, v in sorted(right.items()))
            )
            print("   read by the probe:", " ".join(f"{n} {sum(v) / len(v):.2f}" for n, v in read.items()), flush=True)
            losses.clear(), right.clear(), read.clear()
        if step % 500 == 0:
            save(model, args.checkpoint)
    save(model, args.checkpoint)


if __name__ == "__main__":
    main()
