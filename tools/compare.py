"""Times the program beside PyTorch, ONNX Runtime and ExecuTorch: one checkpoint, picture and prompt, in turns, one table.

    cargo build --release -p florence2-cli --features tract,executorch
    python tools/compare.py MODEL [--threads 2] [--rounds 5] [--onnx DIR [--tract fp32]] [--executorch PROGRAMS]

MODEL is a folder in the transformers layout (`tools/random_checkpoint.py base MODEL` makes one of the real size). DIR holds
the parts of the hub's ONNX export (vision_encoder.onnx, ...), or is where `tools/export_onnx.py` writes them. PROGRAMS is
what `tools/export_executorch.py MODEL PROGRAMS --dtypes f32,int8` writes: ExecuTorch's own Python runtime and the program run
each of f32-cached, f32-window, int8-cached and int8-window whose files are there, or those that --pte names.

Every engine is a process of its own, and idle while another one is timed. A round times each engine once; the table has the
medians of the rounds, in parentheses those of the ratio within a round. Stages, from pixel values that are ready:

    vision      one picture through the vision tower and the projection
    prompt      the encoder over the image tokens and the prompt, and the keys and values of the cross-attention where an
                engine makes them apart from its first step
    step        one token, the median of the 19 steps after the first
    greedy      a caption of 20 tokens, all of the above, one beam
    beams       the same with three beams

Captions run with the checkpoints' rules (no 3-gram twice, <s> and </s> forced) and cannot end before the 20th token.
PyTorch's are transformers' `generate`. In Python, a decoder with a window is timed by the greedy search only, and its step by
the 5 after the first, since it costs as much at the first token as at the last; `florence2 bench` does all, which at the base
size takes a minute a round: --pte leaves it out.

All have --threads threads. ExecuTorch has a pool for each process, which its worker sets before it loads a program.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TASK, SENTENCE = "<CAPTION>", "What does the image describe?"
STAGES = {
    "vision_ms": "vision",
    "prompt_ms": "prompt",
    "step_ms": "step",
    "caption20_greedy_ms": "greedy",
    "caption20_beams3_ms": "beams",
}
TOKENS, NGRAM = 20, 3
BOS, PAD, EOS = 0, 1, 2


def timed(run):
    start = time.perf_counter()
    result = run()
    return (time.perf_counter() - start) * 1000, result


def question(model):
    """Pixel values [1, 3, side, side] and prompt ids, of a picture that needs no resizing."""
    import numpy as np
    from tokenizers import Tokenizer

    size = json.loads((model / "preprocessor_config.json").read_text())["size"]
    pixels = np.asarray(picture(size["width"], size["height"]), np.float32) / np.float32(255)
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    pixels = ((pixels - mean) / std).transpose(2, 0, 1)[None].copy()
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(SENTENCE, add_special_tokens=False).ids
    return pixels, [BOS, *ids, EOS]


def picture(width, height):
    """Stripes and ramps."""
    import numpy as np
    from PIL import Image

    y, x, c = np.ogrid[:height, :width, :3]
    grey = (x * (3 + c) + y * (7 - 2 * c)) // 4 + x // 32 * 37 + y // 32 * 91 + c * 53
    return Image.fromarray((grey % 256).astype(np.uint8))


class Torch:
    """transformers on PyTorch, eager."""

    def __init__(self, args, dtype):
        import torch
        import transformers

        torch.set_num_threads(args.threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        self.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.version = f"torch {torch.__version__}, transformers {transformers.__version__}"
        self.load_ms, self.model = timed(
            lambda: transformers.Florence2ForConditionalGeneration.from_pretrained(args.model, dtype=self.dtype).eval()
        )
        pixels, prompt = question(args.model)
        self.pixels = torch.from_numpy(pixels).to(self.dtype)
        self.prompt = torch.tensor([prompt])
        self.rules = transformers.GenerationConfig

    def vision(self):
        return self.model.get_image_features(self.pixels).pooler_output

    def encode(self, features):
        embeds = self.torch.cat([features, self.model.get_input_embeddings()(self.prompt)], 1)
        return self.model.model.language_model.encoder(inputs_embeds=embeds)

    def steps(self, encoded):
        cache, token, times = None, EOS, []
        for _ in range(TOKENS):

            def step():
                return self.model(
                    encoder_outputs=encoded, decoder_input_ids=self.torch.tensor([[token]]), cache=cache, use_cache=True
                )

            spent, out = timed(step)
            cache, token = out.cache, int(out.logits[0, -1].argmax())
            times.append(spent)
        # The first one fills the cross-attention's cache.
        return statistics.median(times[1:])

    def caption(self, beams):
        encoded = self.encode(self.vision())
        more = {"early_stopping": True} if beams > 1 else {}
        self.model.generation_config = self.rules(
            num_beams=beams, max_new_tokens=TOKENS, min_new_tokens=TOKENS - 1, no_repeat_ngram_size=NGRAM, bos_token_id=BOS,
            forced_bos_token_id=BOS, forced_eos_token_id=EOS, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=EOS,
            **more,
        )  # fmt: skip
        mask = self.torch.ones(encoded[0].shape[:2], dtype=self.torch.long)
        return self.model.generate(encoder_outputs=encoded, attention_mask=mask)[0, 1:].tolist()


class Searches:
    """Searches over `begin(encoded)`, which gives a state without tokens, and `step(state, origins, tokens)`, which makes
    row i what row origins[i] was, feeds it a token, and gives logits [rows, vocabulary]."""

    # Tokens of which `steps` takes the time.
    fed = TOKENS

    def steps(self, encoded):
        state, token, times = self.begin(encoded), EOS, []
        for _ in range(self.fed):
            spent, logits = timed(lambda: self.step(state, [0], [token]))
            token = int(logits[0].argmax())
            times.append(spent)
        return statistics.median(times[1:])

    def caption(self, beams):
        """A beam search in which nothing ends before the last token, which is forced: all beams run to it."""
        import numpy as np

        state = self.begin(self.encode(self.vision()))
        rows, sums, origins = [[EOS]], np.zeros(1), [0]
        for n in range(TOKENS):
            logits = self.step(state, origins, [row[-1] for row in rows]).astype(np.float64)
            scores = logits - logits.max(1, keepdims=True)
            scores -= np.log(np.exp(scores).sum(1, keepdims=True))
            scores[:, EOS] = -np.inf
            for row, score in zip(rows, scores):
                for at in range(len(row) - NGRAM + 1):
                    if row[at : at + NGRAM - 1] == row[len(row) - NGRAM + 1 :]:
                        score[row[at + NGRAM - 1]] = -np.inf
            if n in (0, TOKENS - 1):
                scores[:] = -np.inf
                scores[:, BOS if n == 0 else EOS] = 0
            total = (sums[:, None] + scores).ravel()
            # As many beams as there are possible tokens at the first steps.
            best = np.argsort(-total, kind="stable")[:beams]
            best = best[np.isfinite(total[best])]
            origins = (best // scores.shape[1]).tolist()
            rows = [rows[origin] + [int(token)] for origin, token in zip(origins, best % scores.shape[1])]
            sums = total[best]
        return rows[int(sums.argmax())][1:]


class Onnx(Searches):
    """The hub's parts on ONNX Runtime."""

    def __init__(self, args, dtype):
        import numpy as np
        import onnxruntime
        from onnx_parts import Parts, home

        self.np = np
        self.version = f"onnxruntime {onnxruntime.__version__}"
        self.load_ms, self.parts = timed(lambda: Parts(home(args.onnx), threads=args.threads))
        self.pixels, self.prompt = question(args.model)

    def vision(self):
        return self.parts.see(self.pixels)

    def encode(self, features):
        return self.parts.encode(self.np.concatenate([features, self.parts.embed([self.prompt])], 1))

    def begin(self, encoded):
        return {"encoded": encoded, "past": None}

    def step(self, state, origins, tokens):
        past = state["past"] and {name: value[origins] for name, value in state["past"].items()}
        encoded = self.np.repeat(state["encoded"], len(tokens), 0)
        logits, state["past"] = self.parts.step(encoded, past, tokens)
        return logits


class ExecuTorch(Searches):
    """Programs on ExecuTorch's own runtime."""

    def __init__(self, args, what):
        import torch
        from executorch_files import networks
        from executorch_parts import Cached, Parts, Window, padded, use_threads

        use_threads(args.threads)
        torch.set_grad_enabled(False)
        self.torch, self.decoders = torch, (Cached, Window)
        self.version = f"executorch {version('executorch')}"
        self.load_ms, self.parts = timed(lambda: Parts(args.executorch, networks(args.executorch)[what]))
        self.cached = "step" in self.parts.methods
        # Beams would be as many windows.
        self.beams, self.fed = self.cached, TOKENS if self.cached else 6
        pixels, prompt = question(args.model)
        self.pixels = torch.from_numpy(pixels)
        self.ids, self.mask = padded(prompt, self.parts.shapes("encoder")[1][1])

    def vision(self):
        return self.parts.run("vision", self.pixels)[0]

    def encode(self, features):
        (hidden,) = self.parts.run("encoder", features, self.ids, self.mask)
        return hidden, self.parts.run("cross", hidden) if self.cached else None

    def begin(self, encoded):
        hidden, cross = encoded
        cached, window = self.decoders
        if not self.cached:
            length = self.parts.shapes("decoder")[2][1]
            return window(lambda *given: self.parts.run("decoder", *given), hidden, self.mask, length)
        heads = self.parts.shapes("step")[3][1]
        return cached(lambda _: cross, lambda *given: self.parts.run("step", *given), hidden, self.mask, heads)

    def step(self, state, origins, tokens):
        if self.cached:
            state.select(origins)
        return state.step(self.torch.tensor(tokens)).numpy()


def worker(args):
    """Says once what it is, then answers each line of its input with one round."""
    engine, dtype = args.worker.split(":")
    engine = {"pytorch": Torch, "onnxruntime": Onnx, "executorch": ExecuTorch}[engine](args, dtype)
    print(json.dumps({"version": engine.version, "load_ms": engine.load_ms}), flush=True)
    for _ in sys.stdin:
        stages, tokens = {}, {}
        stages["vision_ms"], features = timed(engine.vision)
        stages["prompt_ms"], encoded = timed(lambda: engine.encode(features))
        stages["step_ms"] = engine.steps(encoded)
        stages["caption20_greedy_ms"], tokens["greedy"] = timed(lambda: engine.caption(1))
        if getattr(engine, "beams", True):
            stages["caption20_beams3_ms"], tokens["beams3"] = timed(lambda: engine.caption(3))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"stages": stages, "tokens": tokens, "peak_rss_bytes": peak}), flush=True)


class Python:
    def __init__(self, args, engine, dtype):
        self.name = f"{engine} {dtype}"
        command = [
            sys.executable,
            __file__,
            str(args.model),
            "--worker",
            f"{engine}:{dtype}",
            "--threads",
            str(args.threads),
        ]
        if args.onnx:
            command += ["--onnx", str(args.onnx)]
        if args.executorch:
            command += ["--executorch", str(args.executorch)]
        # Shown only if it ends early: libraries warn of much.
        self.errors = tempfile.TemporaryFile("w+")
        environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )
        self.facts = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"{self.name} ended:\n{self.errors.read()}")
        return json.loads(line)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.facts | self.answer()


class Program:
    """Ours: a process for each round, which warms up by itself.

    It prints one object: backend, dtype, threads, stages (the names of STAGES, in ms), load_ms, peak_rss_bytes, and the
    captions' tokens ({"greedy": [...], "beams3": [...]}), to be compared.
    """

    def __init__(self, args, backend, form):
        self.name = f"florence2 {backend} {form}"
        network = {
            "candle": ["--model", args.model, "--dtype", form],
            "tract": ["--backend", "tract", "--model", args.onnx, "--variant", form],
            "executorch": ["--backend", "executorch", "--model", args.executorch],
        }[backend]
        if backend == "executorch":
            files = args.networks[form]
            network += ["--variant", {"f32": "fp32", "int8": "int8"}[form.split("-")[0]]]
            if "decoder" in files:
                network += ["--pte", f"decoder={files['decoder']}"]
        self.command = [
            args.program, "bench", *network, "--image", args.picture, "--task", TASK,
            "--threads", str(args.threads), "--rounds", "1", "--format", "json",
        ]  # fmt: skip
        version = subprocess.run([args.program, "--version"], capture_output=True, text=True, check=True)
        self.facts = {"version": version.stdout.strip()}

    def round(self):
        out = subprocess.run(self.command, stdout=subprocess.PIPE, text=True, check=True)
        return self.facts | json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pytorch", default="f32,bf16", help="dtypes, or nothing")
    parser.add_argument(
        "--onnx", type=Path, help="the folder of the ONNX parts, in which they are written if they are missing"
    )
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/florence2")
    parser.add_argument("--dtypes", default="f32,bf16,f16", help="of the program's candle; nothing leaves it out")
    parser.add_argument(
        "--tract", default="", help="variants of the ONNX parts for the program's tract, such as fp32,fp16"
    )
    parser.add_argument("--executorch", type=Path, help="the folder of the ExecuTorch programs")
    parser.add_argument(
        "--pte", help="of those, dtypes and forms, such as f32-cached,int8-cached [default: all there are]"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)

    engines = [("pytorch", dtype) for dtype in filter(None, args.pytorch.split(","))]
    if args.onnx:
        from onnx_parts import home

        if not (home(args.onnx) / "vision_encoder.onnx").exists():
            # In a process of its own: its memory must be free again.
            exporter = [sys.executable, ROOT / "tools/export_onnx.py", args.model, args.onnx]
            exporter += [] if (args.onnx / "onnx").is_dir() else ["--flat"]
            subprocess.run(exporter, check=True, stdout=sys.stderr)
        engines.append(("onnxruntime", "f32"))
    if args.pte is not None and not args.executorch:
        parser.error("--pte needs --executorch")
    args.networks = found_networks(args) if args.executorch else {}
    engines += [("executorch", what) for what in args.networks]
    size = json.loads((args.model / "preprocessor_config.json").read_text())["size"]
    ours = [("candle", dtype) for dtype in filter(None, args.dtypes.split(","))]
    ours += [("tract", variant) for variant in filter(None, args.tract.split(","))]
    ours += [("executorch", what) for what in args.networks]
    if args.tract and not args.onnx:
        parser.error("--tract needs --onnx")
    if ours and not args.program.exists():
        without = "" if args.tract or args.executorch else ", or --dtypes '' without it"
        build = "cargo build --release -p florence2-cli --features tract,executorch"
        raise SystemExit(f"{args.program} is missing: {build}{without}")
    runners = [Python(args, *engine) for engine in engines]
    if ours:
        folder = tempfile.TemporaryDirectory()
        args.picture = Path(folder.name) / "picture.png"
        picture(size["width"], size["height"]).save(args.picture)
        runners += [Program(args, *network) for network in ours]

    rounds = {runner.name: [] for runner in runners}
    for number in range(args.rounds + 1):
        for runner in runners:
            # The first one warms up.
            answer = runner.round()
            if number > 0:
                rounds[runner.name].append(answer)
        print(f"round {number} of {args.rounds}", file=sys.stderr)

    config = json.loads((args.model / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {args.threads} threads; medians of {args.rounds} rounds in turns."
    )
    print(f"Picture {size['width']}x{size['height']}, vision {vision['embed_dim']}, text {text['d_model']} x", end=" ")
    print(f"{text['encoder_layers']} + {text['decoder_layers']} layers, {text['vocab_size']} rows; batch 1.")
    versions = dict.fromkeys(answers[0]["version"] for answers in rounds.values())
    print(f"Python {platform.python_version()}; " + "; ".join(versions) + ".\n")
    print("| ms (ratio to the first) | " + " | ".join(STAGES.values()) + " | peak MB | load | tokens |")
    print("|---|" + "---|" * (len(STAGES) + 3))
    first = next(iter(rounds.values()))
    for name, answers in rounds.items():
        cells = []
        for stage in STAGES:
            times = [(a["stages"].get(stage), b["stages"].get(stage)) for a, b in zip(answers, first)]
            if times[0][0] is None:
                cells.append("")
                continue
            cell = f"{statistics.median(time for time, _ in times):.1f}"
            if times[0][1] is not None:
                # A round's own ratio: the machine's speed drifts between rounds.
                cell += f" ({statistics.median(time / other for time, other in times):.2f})"
            cells.append(cell)
        cells.append(f"{max(answer['peak_rss_bytes'] for answer in answers) / 1e6:.0f}")
        cells.append(f"{statistics.median(answer['load_ms'] for answer in answers):.0f}")
        cells.append(agreement(answers[-1].get("tokens"), first[-1]["tokens"]))
        print(f"| {name} | " + " | ".join(cells) + " |")


def found_networks(args):
    """The ExecuTorch programs that are to be timed: for each dtype and form, the files of its methods."""
    from executorch_files import networks

    folder = args.executorch
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder")
    found = networks(folder)
    if not found:
        raise SystemExit(
            f"{folder} has no whole network in f32 or int8: tools/export_executorch.py {args.model} {folder}"
        )
    # The program takes all from one folder.
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        if not (folder / name).exists():
            raise SystemExit(f"{folder} has no {name}: tools/export_executorch.py copies it, if the checkpoint has it")
    named = found if args.pte is None else list(filter(None, args.pte.split(",")))
    if wrong := [what for what in named if what not in found]:
        raise SystemExit(f"--pte: {folder} has no {wrong[0]}; it has {', '.join(found)}")
    return {what: found[what] for what in named}


def agreement(tokens, expected):
    """Of each search, whether it found the first engine's tokens, or how many before the first other one."""
    if not tokens:
        return "not told"
    told = []
    for name, wanted in expected.items():
        if name not in tokens:
            continue
        same = next((n for n, (a, b) in enumerate(zip(tokens[name], wanted)) if a != b), TOKENS)
        told.append("same" if tokens[name] == wanted else f"{name}: first {same}")
    return "same" if set(told) == {"same"} else ", ".join(told)


if __name__ == "__main__":
    main()
