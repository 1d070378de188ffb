"""Times each ExecuTorch program beside eager PyTorch in f32 on the same inputs, and says how far their outputs agree: a table.

    python tools/executorch_table.py CHECKPOINT PROGRAMS [--threads 2] [--rounds 5]

CHECKPOINT is a folder in either layout, PROGRAMS what `export_executorch.py` wrote of it. There is a line for each part whose
file is there, in each dtype:

    vision     one picture
    encoder    the image tokens and a prompt's window
    decoder    a whole window, as it is run for each token
    cross      the keys and values of the cross-attention, once for each question
    step       one token in one row, at position 10, with a cache of 32 entries

PyTorch runs the modules that were exported. Part by part, a round times PyTorch and each dtype's program once, with a pause
before each of them, since threads that have nothing to do look for work for a while. What is short is run again until 0.2 s
have passed, and its median taken. The table has the medians of the rounds, after one that warms up, and of the ratio to
PyTorch within a round. The difference is the greatest of all outputs, as a share of the greatest value; the correlation is
the least of all outputs. Outputs are copied out of ExecuTorch, in its time.
"""

import argparse
import logging
import os
import platform
import statistics
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import checkpoint
import torch
from checkpoint import load, say
from executorch_files import FILES, SUFFIXES, located
from executorch_parts import Cached, Parts, differences, input_shapes, opened, own_name, use_threads
from export_executorch import MAX_POSITIONS, Exports

POSITION = 10
PAUSE, LEAST = 0.1, 0.2


def find(folder):
    """For each part that has any, the dtypes and their files."""
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder")
    found = {}
    for method in FILES:
        for dtype in SUFFIXES:
            if (file := located(folder, method, dtype)) and own_name(opened(folder / file), method):
                found.setdefault(method, {})[dtype] = file
    if not found:
        names = ", ".join(sorted({f"{name}.pte" for name in FILES.values()}))
        raise SystemExit(f"{folder} has none of {names}, nor others that tools/export_executorch.py writes")
    return found


def limits(folder, found, most):
    """Prompt, window, positions and rows of the programs; the exporter's own where there is none to ask."""

    def lengths(method, *axes):
        if method not in found:
            return None
        shapes = input_shapes(opened(folder / next(iter(found[method].values()))), method)
        return [shapes[number][axis] for number, axis in axes]

    (prompt,) = lengths("encoder", (1, 1)) or lengths("decoder", (1, 1)) or lengths("step", (2, 1)) or [32]
    (window,) = lengths("decoder", (2, 1)) or [min(128, most)]
    rows, positions = lengths("step", (0, 0), (3, 2)) or [1, min(most, MAX_POSITIONS)]
    return prompt, window, positions, rows


def must_fit(exports, method, path):
    """A program takes what the checkpoint's module takes, if it was made of it."""
    names, got = exports.names[method][0], input_shapes(opened(path), method)
    wanted = [list(value.shape) for value in exports.examples[method]]
    for name, shape in zip(names, wanted):
        for axis, (_, most) in exports.axes(name).items() if method == "step" else ():
            shape[axis] = most
    if len(got) != len(wanted):
        raise SystemExit(f"{path} is of another checkpoint: {method} has {len(got)} inputs, and here {len(wanted)}")
    for name, its, here in zip(names, got, wanted):
        if its != here:
            raise SystemExit(f"{path} is of another checkpoint: {method}'s {name} is {its}, and here {here}")


def one_step(exports, question):
    """What `step` is given at POSITION, by PyTorch's own steps before it."""
    hidden, mask, _ = exports.examples["decoder"]
    given = []

    def step(*inputs):
        given[:] = inputs
        return exports.modules["step"](*inputs)

    cached = Cached(exports.modules["cross"], step, hidden, mask, exports.heads)
    for token in [checkpoint.EOS, *question.prompts[0] * POSITION][: POSITION + 1]:
        cached.step(torch.tensor([token]))
    return tuple(given)


def spent(run):
    time.sleep(PAUSE)
    times = []
    while not times or sum(times) < LEAST:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def table(exports, method, inputs, files, folder, rounds):
    """The lines of a part."""
    module = exports.modules[method]
    wanted = module(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    engines, agree = {"PyTorch f32": lambda: module(*inputs)}, {}
    for dtype, file in files.items():
        parts = Parts(folder, {method: file})
        got = parts.run(method, *inputs)
        agree[dtype] = differences(got, wanted)
        engines[dtype] = lambda parts=parts: parts.run(method, *inputs)
    times = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, run in engines.items():
            ms = spent(run)
            # The first one warms up.
            if number > 0:
                times[name].append(ms)
    torch_times = times["PyTorch f32"]
    for name, own in times.items():
        cells = [method, name, "", "", f"{statistics.median(own):.2f}", "1.00", "", ""]
        if name in files:
            path = folder / files[name]
            worst, least = agree[name]
            ratio = statistics.median(a / b for a, b in zip(own, torch_times))
            cells[2:4] = path.name, f"{path.stat().st_size / 1e6:.1f}"
            cells[5:] = f"{ratio:.2f}", f"{least:.7f}", f"{worst:.1e}"
        say("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name, value in (("threads", args.threads), ("rounds", args.rounds)):
        if value < 1:
            raise SystemExit(f"--{name} is {value}; it is at least 1")
    if not args.checkpoint.is_dir():
        raise SystemExit(f"{args.checkpoint} is no folder")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    use_threads(args.threads)

    found = find(args.programs)
    model, _ = load(args.checkpoint)
    model.requires_grad_(False)
    text, vision = model.config.text_config, model.config.vision_config
    most = text.max_position_embeddings
    prompt, window, positions, rows = limits(args.programs, found, most)
    question = checkpoint.Question(model, args.checkpoint)
    longest = max(map(len, question.prompts))
    if max(prompt, window, positions) > most:
        raise SystemExit(
            f"{args.programs} is of another checkpoint: its prompt, window and answer have {prompt}, {window} and "
            f"{positions} tokens, and here are {most} positions"
        )
    if prompt < longest or positions <= POSITION:
        raise SystemExit(
            f"{args.programs} is too small to be timed: a prompt of {prompt} tokens, where {longest} are asked, or "
            f"{positions} positions, where a step is at {POSITION}"
        )
    exports = Exports(model, question, prompt, window, positions, rows)
    for method, files in found.items():
        for file in files.values():
            must_fit(exports, method, args.programs / file)
    height, width = question.pixels.shape[2:]
    say(
        f"{platform.machine()}, {os.cpu_count()} cores, {args.threads} threads; medians of {args.rounds} rounds in turns."
    )
    say(
        f"Picture {width}x{height}, vision {vision.embed_dim}, text {text.d_model} x {text.encoder_layers} + "
        f"{text.decoder_layers} layers, {text.vocab_size} rows; prompt {prompt}, window {window}; batch 1."
    )
    packages = [f"{name} {version(name)}" for name in ("torch", "executorch", "transformers")]
    say(f"Python {platform.python_version()}; {', '.join(packages)}.\n")
    say("| part | dtype | file | MB | ms | ratio | correlation | difference |")
    say("|---" * 8 + "|")
    for method, files in found.items():
        inputs = one_step(exports, question) if method == "step" else exports.examples[method]
        table(exports, method, inputs, files, args.programs, args.rounds)


if __name__ == "__main__":
    main()
