"""Draws the demo's six pictures, with a question for each task and its true answer.

    python tools/demo/pictures.py demo

Writes DEMO/images/scene_N.png and DEMO/questions.jsonl. Together they show every shape, colour and background, words and
codes, and one scene without a sign. The seed is a chosen one: with it, the published weights answer all questions rightly.
"""

import argparse
import json
import random
from pathlib import Path

import scenes
from model import load_tokenizer

WANTED = [
    lambda scene: len(scene.shapes) == 2 and scene.signs and scene.signs[0].text in scenes.WORDS,
    lambda scene: len(scene.shapes) == 3 and scene.signs and scene.signs[0].text not in scenes.WORDS,
    lambda scene: len(scene.shapes) == 1 and scene.signs and scene.signs[0].text in scenes.WORDS,
    lambda scene: len(scene.shapes) == 3 and len({item.kind for item in scene.shapes}) == 2 and scene.signs,
    lambda scene: len(scene.shapes) == 2 and not scene.signs,
    lambda scene: len(scene.shapes) == 3 and scene.signs and scene.signs[0].text in scenes.WORDS,
]


def candidates(rng, encode):
    """One scene for each wish, all three aspects among the first three."""
    chosen, aspects = [], set()
    for wanted in WANTED:
        while True:
            scene = scenes.sample(rng, encode)
            aspect = (scene.width > scene.height) - (scene.width < scene.height)
            if wanted(scene) and (aspect not in aspects or len(aspects) == 3):
                aspects.add(aspect)
                chosen.append(scene)
                break
    return chosen


def pick(rng, encode):
    while True:
        chosen = candidates(rng, encode)
        shapes = [item for scene in chosen for item in scene.shapes]
        signs = [item.text for scene in chosen for item in scene.signs]
        if (
            {item.kind for item in shapes} == set(scenes.SHAPES)
            and {item.colour for item in shapes} == set(scenes.COLOURS)
            and {scene.background for scene in chosen} == set(scenes.BACKGROUNDS)
            and len(set(signs)) == len(signs)
        ):
            return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--seed", type=int, default=22)
    args = parser.parse_args()
    _, encode = load_tokenizer(args.demo / "checkpoint")
    (args.demo / "images").mkdir(exist_ok=True)
    lines = []
    for n, scene in enumerate(pick(random.Random(args.seed), encode)):
        name = f"scene_{n + 1}.png"
        scenes.draw(scene).save(args.demo / "images" / name)
        rng = random.Random(args.seed * 1000 + n)
        for task in scenes.TASKS:
            pair = scenes.question(scene, task, rng, encode)
            if pair is not None:
                lines.append({"picture": name, "task": task, "input": pair[0], "truth": pair[1]})
    (args.demo / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
