"""Trains the demo's tokenizer: byte-level BPE of BART's kind on the demo's own sentences, then Florence-2's added tokens.

    python tools/demo/tokenizer.py CHECKPOINT

Ids: <s> 0, <pad> 1, </s> 2, <unk> 3, the BPE vocabulary, <mask>, the 1024 added tokens in the published order, <image>.
"""

import argparse
import json
import random
from pathlib import Path

import scenes
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ADDED = [
    *["<od>", "</od>", "<ocr>", "</ocr>"],
    *[f"<loc_{n}>" for n in range(1000)],
    *[
        "<cap>",
        "</cap>",
        "<ncap>",
        "</ncap>",
        "<dcap>",
        "</dcap>",
        "<grounding>",
        "</grounding>",
        "<seg>",
        "</seg>",
        "<sep>",
    ],
    *[
        "<region_cap>",
        "</region_cap>",
        "<region_to_desciption>",
        "</region_to_desciption>",
        "<proposal>",
        "</proposal>",
    ],
    *["<poly>", "</poly>", "<and>"],
]


def corpus(count, seed):
    """Prompts and answers without locations. Codes are left out, so that they are spelt letter by letter."""
    rng = random.Random(seed)
    for _ in range(count):
        scene = scenes.random_scene(rng)
        for sign in scene.signs:
            if sign.text not in scenes.WORDS:
                sign.text = rng.choice(scenes.WORDS)
        for task in scenes.TASKS:
            pair = scenes.answer(scene, task, rng)
            if pair is None:
                continue
            for text in (scenes.prompt(task, pair[0]), pair[1]):
                for piece in text.replace("<", "\n<").replace(">", ">\n").split("\n"):
                    if piece and not piece.startswith("<loc_"):
                        yield piece


def build(seed):
    """The contents of tokenizer.json."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=720,  # more than there are merges to find
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(3000, seed), trainer)
    data = json.loads(bpe.to_str())
    vocabulary = data["model"]["vocab"]
    mask = len(vocabulary)
    vocabulary["<mask>"] = mask

    def added(id, content, normalized, lstrip=False):
        flags = {"single_word": False, "lstrip": lstrip, "rstrip": False, "normalized": normalized, "special": True}
        return {"id": id, "content": content, **flags}

    tokens = [added(id, content, True) for id, content in enumerate(("<s>", "<pad>", "</s>", "<unk>"))]
    tokens.append(added(mask, "<mask>", True, lstrip=True))
    tokens += [added(mask + 1 + n, content, False) for n, content in enumerate([*ADDED, "<image>"])]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    ends = {"sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    return data | {
        "added_tokens": tokens,
        "normalizer": None,
        "truncation": None,
        "padding": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": {"type": "RobertaProcessing", **ends},
        "decoder": {**byte_level, "add_prefix_space": True},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.checkpoint.mkdir(parents=True, exist_ok=True)
    (args.checkpoint / "tokenizer.json").write_text(json.dumps(build(args.seed), ensure_ascii=False))
    config = {
        "add_prefix_space": False, "additional_special_tokens": ADDED, "bos_token": "<s>", "cls_token": "<s>",
        "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
        "clean_up_tokenization_spaces": False, "errors": "replace", "extra_special_tokens": {"image_token": "<image>"},
        "image_token": "<image>", "model_max_length": 512, "tokenizer_class": "BartTokenizer", "trim_offsets": True,
    }  # fmt: skip
    (args.checkpoint / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False) + "\n")
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} tokens, <loc_0> is {tokenizer.token_to_id('<loc_0>')}")


if __name__ == "__main__":
    main()
