"""Times the references' Python post-processors beside the program, on the same answers, in one run.

    cargo build --release -p florence2-cli
    python tools/time_references.py [--microsoft PATH/TO/processing_florence2.py]

Python is timed in process, the best of several runs. The program's time is that of a whole `florence2 parse --jsonl`
over many copies, divided by their number: reading and writing JSON is in it. Both use one thread.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import reference
import torch

ROOT = Path(__file__).resolve().parent.parent


def cases():
    lines = [json.loads(line) for line in (ROOT / "florence2-core/testdata/answers.jsonl").read_text().splitlines()]
    real = [line for line in lines if line["task"] in reference.TASKS]
    yield "all real answers", [(line["task"], line["text"], line["image_size"]) for line in real]
    loc = "".join(f"<loc_{n}>" for n in (1, 2, 3, 4))
    labels = "".join(f"obj{n}{loc}" for n in range(1000))
    for name, task in [
        ("1000 labels", "<OD>"),
        ("1000 labels, grounding", "<CAPTION_TO_PHRASE_GROUNDING>"),
        ("1000 labels, OCR route", "<OCR_WITH_REGION>"),
    ]:
        yield name, [(task, labels, [640, 480])]
    yield "1000 lines of text", [("<OCR_WITH_REGION>", "".join(f"line {n}{loc}{loc}" for n in range(1000)), [640, 480])]
    outline = "".join(f"<loc_{n}>" for n in range(24))
    yield "1000 polygons", [("<OPEN_VOCABULARY_DETECTION>", f"thing<poly>{outline}</poly>" * 1000, [640, 480])]
    yield "5000 <", [("<OD>", "<" * 5000, [640, 480])]


def best(run, at_most=2.0):
    times = []
    while not times or (sum(times) < at_most and len(times) < 20):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def program(answers, dialect):
    lines = [json.dumps({"task": task, "text": text, "image_size": size}) for task, text, size in answers]
    copies = max(1, 30_000_000 // sum(map(len, lines)))
    data = ("\n".join(lines * copies) + "\n").encode()
    command = [ROOT / "target/release/florence2", "parse", "--jsonl", "--format", "hf", "--dialect", dialect]

    def run():
        subprocess.run(command, input=data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    return best(run) / copies


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microsoft", help="the processing_florence2.py of a checkpoint, to be timed too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    references = {"transformers": reference.transformers(reference.banned())}
    if args.microsoft:
        references["microsoft"] = reference.microsoft(args.microsoft)
    print(f"{'answers':<26} {'dialect':<13} {'bytes':>9} {'python ms':>11} {'program ms':>11} {'ratio':>9}")
    for name, answers in cases():
        size = sum(len(text.encode()) for _, text, _ in answers)
        for dialect, post_process in references.items():
            python = best(lambda: [post_process(*answer) for answer in answers])
            ours = program(answers, dialect)
            print(f"{name:<26} {dialect:<13} {size:>9} {python * 1e3:>11.3f} {ours * 1e3:>11.4f} {python / ours:>9.0f}")


if __name__ == "__main__":
    main()
