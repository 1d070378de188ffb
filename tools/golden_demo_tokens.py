#!/usr/bin/env python3
"""What the `tokenizers` library makes of texts with the demo checkpoint's tokenizer: tests/data/demo_tokens.jsonl.

    python tools/golden_demo_tokens.py > tests/data/demo_tokens.jsonl

Needs `tokenizers`.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent


def main():
    tokenizer = Tokenizer.from_file(str(ROOT / "demo/checkpoint/tokenizer.json"))
    lines = (ROOT / "florence2-core/testdata/tokenization.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    texts += [
        "a large red circle<loc_16><loc_92><loc_316><loc_240>a small blue star<poly><loc_1><loc_2><sep></poly>",
        "<grounding>A white page.</grounding><and>TAXI",
        "<loc_1000><loc_01><loc_-1>",
    ]
    for text in texts:
        # Ends that the text has already are not doubled: complaint b023.
        if text.startswith("<s>") or text.endswith("</s>"):
            continue
        ids = tokenizer.encode(text).ids
        print(json.dumps({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}))


if __name__ == "__main__":
    main()
