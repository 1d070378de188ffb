"""Writes a checkpoint as ExecuTorch programs (.pte) for XNNPACK, and checks each of them.

    python tools/export_executorch.py CHECKPOINT OUT [--dtypes f32,int8] [--vision f16] [--forms window,cached] [--shared]

CHECKPOINT is a folder in microsoft's layout or in that of transformers, as `export_onnx.py` takes it. What is written:

    OUT/{vision,encoder,decoder,cached}{SUFFIX}.pte
    OUT/manifest.json    versions, limits, and for each file its sha256, bytes, role, dtype and methods with their shapes
    OUT/*                copies of config.json and of what there is of tokenizer and processor files

    file       method     inputs                                            outputs
    vision     forward    pixel_values [1, 3, height, width]                image_features [1, image, width]
    encoder    forward    image_features, input_ids [1, prompt],            hidden [1, image + prompt, width]
                          mask [1, prompt]
    decoder    forward    hidden, mask, decoder_input_ids [1, window]       logits [1, window, vocabulary]
    cached     cross      hidden                                            cross_key.*, cross_value.*
               step       tokens [rows, 1], position [1], mask,             logits [rows, vocabulary],
                          self_key.*, self_value.*, cross_key.*,            new_key.*, new_value.*
                          cross_value.*

vision, encoder and decoder are the published form; vision, encoder and cached are the form that is fast. A prompt shorter
than the window (--prompt, 32) is filled with <pad>, and mask has 1 for its tokens, 0 behind them. Ids, mask and position are
int64, all else f32, whatever the weights are in.

`step` takes one token in each of its rows, all of one question (its beams), and all at the same position, counted from zero.
The number of rows is free from 1 to --rows: rows read the same cross_key and cross_value, which are there once, so that a
beam costs no copy of them; another question is another call. * stands for a layer, in order; shapes are

    self_key.*, self_value.*    [rows, heads, past, size]     what is at `position` and behind counts for nothing, but must
                                                              be finite
    new_key.*, new_value.*      [rows, heads, 1, size]        to be put at `position` of the former
    cross_key.*                 [1, heads, size, image + prompt]
    cross_value.*               [1, heads, image + prompt, size]

`past` is free from 1 to --positions (as many as the checkpoint has, at most 1024), and at least `position`: a caller
allocates some entries and more when they are used up, and pays for what it has allocated. So an answer may be longer than
the window. Where a file has `cross` or `step`, inputs are not copied: the runtime reads them where they lie.

With --shared, the encoder, the decoder and the cached methods go into one file, text{SUFFIX}.pte, with the methods encoder,
decoder, cross and step (those of --forms). Their weights are in it once; only the embedding is there again as the last
product's weights.

    dtype    suffix    what it is
    f32                as PyTorch computes
    f16      _fp16     --vision only: weights and arithmetic in f16, inputs and outputs in f32
    int8     _int8     dynamic: weights of linear layers in 8 bits for each output channel, activations scaled as they come

The demo checkpoint in both forms, as it is in demo/executorch (its longest question has 36 tokens):

    python tools/export_executorch.py demo/checkpoint OUT --vision f16 --shared --positions 160 --prompt 40

Each part is run by ExecuTorch's runtime, and must agree with eager PyTorch in f32 to 1e-4 of the greatest value; `step` with
1, 2 and --rows rows, each of other tokens, and with an answer longer than the window. The other dtypes' correlation with
PyTorch is printed, and must be at least what CORRELATION says. At last a whole greedy answer (<s> forced, no 3-gram twice) is
found in each form: in f32 it must be PyTorch's, up to a token whose margin was under 0.1; for others it is printed how far it
is the same. The tool ends with 1 where something does not hold; the files are there all the same, to be looked at.
"""

import argparse
import hashlib
import json
import logging
import platform
import sys
import time
import warnings
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path

import checkpoint
import torch
from checkpoint import MARGIN, chosen, copy_settings, load, say
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.devtools.backend_debug import get_delegation_info
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch_files import FILES, FORMS, SUFFIXES, TEXT
from executorch_parts import Cached, Parts, Window, differences, padded
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

DTYPES = ["f32", "int8"]
RELATIVE = 1e-4
CORRELATION = {"f16": 0.999, "int8": 0.95}
MAX_POSITIONS = 1024
# Behind the window's last.
BEYOND = 8
PACKAGES = ["executorch", "torch", "torchao", "transformers"]


class Vision(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.tower, self.projector = model.model.vision_tower, model.model.multi_modal_projector

    def forward(self, pixels):
        return self.projector(self.tower(pixels).last_hidden_state)


class InHalf(torch.nn.Module):
    """A module computed in f16 between casts."""

    def __init__(self, module):
        super().__init__()
        self.module = module.half()

    def forward(self, *inputs):
        return self.module(*(value.half() for value in inputs)).float()


class Language(torch.nn.Module):
    def __init__(self, model, image):
        super().__init__()
        self.encoder, self.decoder = model.model.language_model.encoder, model.model.language_model.decoder
        self.embed, self.head, self.image = model.get_input_embeddings(), model.lm_head, image

    def whole_mask(self, mask):
        return torch.cat([torch.ones(1, self.image, dtype=mask.dtype), mask], 1)


class Encoder(Language):
    def forward(self, features, ids, mask):
        embeds = torch.cat([features, self.embed(ids)], 1)
        return self.encoder(inputs_embeds=embeds, attention_mask=self.whole_mask(mask)).last_hidden_state


class Decoder(Language):
    def forward(self, hidden, mask, ids):
        out = self.decoder(
            input_ids=ids, encoder_hidden_states=hidden, encoder_attention_mask=self.whole_mask(mask), use_cache=False
        )
        return self.head(out.last_hidden_state)


class Cross(Language):
    def forward(self, hidden):
        attentions = [layer.encoder_attn for layer in self.decoder.layers]

        def split(values, attention):
            return values.view(1, -1, attention.num_heads, attention.head_dim)

        keys = [split(attention.k_proj(hidden), attention).permute(0, 2, 3, 1) for attention in attentions]
        values = [split(attention.v_proj(hidden), attention).permute(0, 2, 1, 3) for attention in attentions]
        return tuple(value.contiguous() for value in keys + values)


class Step(Language):
    def __init__(self, model, image, positions):
        super().__init__(model, image)
        self.register_buffer("places", torch.arange(positions), persistent=False)

    def forward(self, tokens, position, mask, *cache):
        decoder, layers = self.decoder, len(self.decoder.layers)
        own_keys, own_values, cross_keys, cross_values = (cache[i * layers : (i + 1) * layers] for i in range(4))
        # Far enough down that the exponential is zero, and finite, since XNNPACK's softmax makes NaN of infinities.
        far = torch.tensor(-1e9)
        unread = torch.where(self.places[: own_keys[0].shape[2]] < position, torch.tensor(0.0), far)
        own_bias = torch.cat([unread, torch.zeros(1)]).view(1, 1, 1, -1)
        cross_bias = torch.cat([torch.zeros(1, self.image), (1 - mask.float()) * far], 1).view(1, 1, 1, -1)
        # Two rows of the table are no positions.
        places = torch.nn.functional.embedding(position + 2, decoder.embed_positions.weight)
        state = decoder.layernorm_embedding(decoder.embed_tokens(tokens) + places)
        new_keys, new_values = [], []
        for i, layer in enumerate(decoder.layers):
            attention = layer.self_attn
            heads, size = attention.num_heads, attention.head_dim

            # One token a row, so that heads are split without an exchange of axes.
            def split(values):
                return values.view(-1, heads, 1, size)

            keys, values = split(attention.k_proj(state)), split(attention.v_proj(state))
            new_keys.append(keys)
            new_values.append(values)
            query = split(attention.q_proj(state)) * size**-0.5
            scores = query @ torch.cat([own_keys[i], keys], 2).transpose(2, 3) + own_bias
            read = scores.softmax(-1) @ torch.cat([own_values[i], values], 2)
            state = layer.self_attn_layer_norm(state + attention.out_proj(read.view(-1, 1, heads * size)))

            # Rows as if they were the tokens of one sequence: the keys are the same for all.
            attention = layer.encoder_attn
            query = attention.q_proj(state).view(1, -1, heads, size).transpose(1, 2) * size**-0.5
            read = (query @ cross_keys[i] + cross_bias).softmax(-1) @ cross_values[i]
            read = read.transpose(1, 2).reshape(-1, 1, heads * size)
            state = layer.encoder_attn_layer_norm(state + attention.out_proj(read))

            state = layer.final_layer_norm(state + layer.fc2(layer.activation_fn(layer.fc1(state))))
        return (self.head(state).squeeze(1), *new_keys, *new_values)


class Linears(XNNPACKQuantizer):
    """8 bits in linear layers, scaled as the values come."""

    def __init__(self):
        super().__init__()
        config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
        self.set_operator_type(torch.ops.aten.linear.default, config)

    def transform_for_annotation(self, model):
        # That of the library makes a float of the decoder's `arange + 2`, with which no row can be looked up.
        return model


class Exports:
    """Modules, example inputs and free axes of each method."""

    def __init__(self, model, question, prompt, window, positions, rows):
        self.model, self.prompt, self.window, self.positions, self.rows = model, prompt, window, positions, rows
        text = model.config.text_config
        self.layers, self.heads = text.decoder_layers, text.decoder_attention_heads
        self.size = text.d_model // self.heads
        pixels = question.pixels[:1]
        features = Vision(model)(pixels)
        self.image = features.shape[1]
        encoder = model.model.language_model.encoder
        if self.image + prompt > text.max_position_embeddings:
            raise SystemExit(
                f"{self.image} image tokens and a prompt of {prompt} are more than the encoder's "
                f"{text.max_position_embeddings} positions; give a smaller --prompt"
            )
        # What no program can reach is not written.
        cut_positions(encoder, self.image + prompt)
        cut_positions(model.model.language_model.decoder, max(positions, window))
        self.modules = {
            "vision": Vision(model), "encoder": Encoder(model, self.image), "decoder": Decoder(model, self.image),
            "cross": Cross(model, self.image), "step": Step(model, self.image, positions),
        }  # fmt: skip
        ids, mask = padded(question.prompts[0], prompt)
        hidden = self.modules["encoder"](features, ids, mask)
        vocabulary = text.vocab_size
        generator = torch.Generator().manual_seed(2)
        examples = min(rows, 3)
        own = torch.randn(examples, self.heads, min(positions, 7), self.size, generator=generator)
        # No tensor twice: the exporter would take two inputs for one.
        own = [own.clone() for _ in range(2 * self.layers)]
        tokens = torch.randint(4, vocabulary, (examples, 1), generator=generator)
        self.examples = {
            "vision": (pixels,),
            "encoder": (features, ids, mask),
            "decoder": (hidden, mask, torch.randint(4, vocabulary, (1, window), generator=generator)),
            "cross": (hidden,),
            "step": (tokens, torch.tensor([min(positions - 1, 4)]), mask, *own, *self.modules["cross"](hidden)),
        }
        self.names = {
            "vision": (["pixel_values"], ["image_features"]),
            "encoder": (["image_features", "input_ids", "mask"], ["hidden"]),
            "decoder": (["hidden", "mask", "decoder_input_ids"], ["logits"]),
            "cross": (["hidden"], self.of_layers("cross")),
            "step": (
                ["tokens", "position", "mask", *self.of_layers("self"), *self.of_layers("cross")],
                ["logits", *self.of_layers("new")],
            ),
        }

    def of_layers(self, prefix):
        return [f"{prefix}_{kind}.{i}" for kind in ("key", "value") for i in range(self.layers)]

    def axes(self, name):
        """The free axes of an input or output of `step`: axis to name and greatest length."""
        axes = {}
        if name.startswith(("tokens", "logits", "self_", "new_")) and self.rows > 1:
            axes[0] = ("rows", self.rows)
        if name.startswith("self_") and self.positions > 1:
            axes[2] = ("past", self.positions)
        return axes

    def program(self, method, dtype):
        module, inputs = self.modules[method].eval(), self.examples[method]
        free = None
        if method == "step":
            dims = {}
            shapes = [
                {
                    axis: dims.setdefault(name, torch.export.Dim(name, min=1, max=most))
                    for axis, (name, most) in a.items()
                }
                for a in map(self.axes, self.names[method][0])
            ]
            free = (*shapes[:3], tuple(shapes[3:]))
        if dtype == "f16":
            module = InHalf(deepcopy(module))
        program = torch.export.export(module, inputs, dynamic_shapes=free, strict=False)
        if dtype == "int8":
            prepared = prepare_pt2e(program.module(), Linears())
            prepared(*inputs)
            # It takes a flat list.
            free = free and (*free[:3], *free[3])
            program = torch.export.export(convert_pt2e(prepared), inputs, dynamic_shapes=free, strict=False)
        return program

    def write(self, methods, dtype, path):
        """The methods, of which a single one is named `forward`, as one file."""
        start = time.perf_counter()
        programs = {}
        for method in methods:
            say(f"{path.name}: exporting {method}")
            programs["forward" if len(methods) == 1 else method] = self.program(method, dtype)
        say(f"{path.name}: lowering")
        partitioners = [XnnpackPartitioner()]
        if dtype == "int8":
            # Without the first, the others' partitions would depend on each other in a circle.
            partitioners.insert(0, XnnpackDynamicallyQuantizedPartitioner())
        edge = to_edge_transform_and_lower(programs, partitioner={name: partitioners for name in programs})
        planning = MemoryPlanningPass(alloc_graph_input=not {"cross", "step"} & set(methods))
        with path.open("wb") as file:
            edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).write_to_file(file)
        for name in programs:
            info = get_delegation_info(edge.exported_program(name).graph_module)
            nodes = info.num_delegated_nodes, info.num_delegated_nodes + info.num_non_delegated_nodes
            say(f"{path.name}: {name}: {nodes[0]} of {nodes[1]} operations are XNNPACK's")
        say(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {time.perf_counter() - start:.0f} s")

    def described(self, method):
        """For the manifest: names, dtypes and shapes."""
        inputs = self.examples[method]
        outputs = self.modules[method](*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        described = {}
        for key, names, values in zip(("inputs", "outputs"), self.names[method], (inputs, outputs)):
            described[key] = []
            for name, value in zip(names, values, strict=True):
                axes = {axis: free for axis, (free, _) in self.axes(name).items()} if method == "step" else {}
                shape = [axes.get(axis, length) for axis, length in enumerate(value.shape)]
                dtype = str(value.dtype).removeprefix("torch.")
                described[key].append({"name": name, "dtype": dtype, "shape": shape})
        return described


def cut_positions(half, positions):
    table = half.embed_positions
    table.weight = torch.nn.Parameter(table.weight[: positions + 2].clone(), requires_grad=False)
    table.num_embeddings = len(table.weight)


class Checks:
    """Collects what does not hold."""

    def __init__(self, exports, question):
        self.exports, self.question, self.failed = exports, question, []
        modules = exports.modules
        # Another picture and prompt than those of the export.
        ids, mask = padded(question.prompts[1], exports.prompt)
        features = modules["vision"](question.pixels[1:])
        hidden = modules["encoder"](features, ids, mask)
        generator = torch.Generator().manual_seed(3)
        vocabulary = exports.model.config.text_config.vocab_size
        window = torch.randint(4, vocabulary, (1, exports.window), generator=generator)
        self.given = {
            "vision": (question.pixels[1:],),
            "encoder": (features, ids, mask),
            "decoder": (hidden, mask, window),
            "cross": (hidden,),
        }
        self.wanted = {name: modules[name](*given) for name, given in self.given.items()}
        # Rows, and how many tokens they are fed.
        longest = min(exports.positions, exports.window + BEYOND)
        walks = {1: longest, min(2, exports.rows): min(longest, 6), exports.rows: min(longest, 6)}
        self.walks = [
            torch.randint(4, vocabulary, (rows, length), generator=generator) for rows, length in walks.items()
        ]
        self.expected, self.margins = question.answer()

    def fail(self, what):
        say(f"FAILED: {what}")
        self.failed.append(what)

    def judge(self, what, dtype, got, wanted):
        if any(a.shape != b.shape or not a.isfinite().all() for a, b in zip(got, wanted, strict=True)):
            return self.fail(f"{what} gives shapes {[list(a.shape) for a in got]} or values that are not finite")
        worst, least = differences(got, wanted)
        say(f"{what}: differs from PyTorch by {worst:.1e} of the greatest value, correlation {least:.7f}")
        if dtype == "f32" and not worst < RELATIVE:
            self.fail(f"{what} differs from PyTorch by {worst:.1e} of the greatest value")
        if dtype != "f32" and not least >= CORRELATION[dtype]:
            self.fail(f"{what} has a correlation of {least:.5f}, under {CORRELATION[dtype]}")

    def part(self, method, dtype, folder, files):
        file = files[method]
        if method != "step":
            got = Parts(folder, {method: file}).run(method, *self.given[method])
            wanted = self.wanted[method]
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            return self.judge(f"{file} {method}", dtype, got, wanted)
        parts = Parts(folder, {"step": file})
        hidden, mask, _ = self.given["decoder"]
        for tokens in self.walks:
            # Only `step` is what is checked here: keys and values are PyTorch's.
            cross = self.exports.modules["cross"]
            cached = Cached(cross, lambda *given: parts.run("step", *given), hidden, mask, self.exports.heads)
            got = torch.stack([cached.step(column) for column in tokens.T], 1)
            rows, length = tokens.shape
            # The library's decoder, over all tokens at once.
            module = self.exports.modules["decoder"]
            wanted = torch.cat([module(hidden, mask, row[None]) for row in tokens])
            self.judge(f"{file} step, {rows} rows of {length} tokens", dtype, [got], [wanted])

    def answer(self, form, dtype, vision, folder, files):
        exports, question = self.exports, self.question
        parts = Parts(folder, {method: files[method] for method in FORMS[form]})
        ids, mask = padded(question.prompts[0], exports.prompt)
        hidden = parts.encode(question.pixels[:1], ids, mask)

        def run(method):
            return lambda *given: parts.run(method, *given)

        if form == "window":
            decoder = Window(run("decoder"), hidden, mask, exports.window)
        else:
            decoder = Cached(run("cross"), run("step"), hidden, mask, exports.heads)
        got, _ = question.greedy(lambda token: decoder.step(torch.tensor([token]))[0].numpy())
        expected, margins = self.expected, self.margins
        mixed = "" if vision == dtype else f" with vision in {vision}"
        what = f"{dtype}{mixed}, {form} form: the greedy answer"
        if got == expected:
            return say(f"{what}'s {len(expected)} tokens are PyTorch's")
        same = next((n for n, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        margin = margins[same] if same < len(margins) else 0.0
        say(f"{what} is PyTorch's up to token {same} of {len(expected)}, margin {margin:.3f}")
        if dtype == vision == "f32" and margin >= MARGIN:
            self.fail(f"{what} differs from PyTorch's at token {same}, with a margin of {margin:.3f}")


def planned(dtype, vision, forms, shared):
    """File name to its dtype and methods."""
    files = {}
    for method in dict.fromkeys(method for form in forms for method in FORMS[form]):
        own = vision if method == "vision" else dtype
        name = TEXT if shared and method != "vision" else FILES[method]
        files.setdefault(f"{name}{SUFFIXES[own]}.pte", (own, []))[1].append(method)
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtypes", default="f32", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--vision", choices=list(SUFFIXES), help="the vision encoder in this dtype instead")
    parser.add_argument("--forms", default=",".join(FORMS), help=f"of {', '.join(FORMS)}")
    parser.add_argument("--shared", action="store_true", help="all but the vision encoder in one file")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt's window")
    parser.add_argument("--window", type=int, default=128, help="tokens of the decoder's window")
    parser.add_argument("--positions", type=int, help="the longest answer of the cached form")
    parser.add_argument("--rows", type=int, default=8, help="the most beams of the cached form")
    args = parser.parse_args()
    dtypes, forms = chosen(args.dtypes, DTYPES, "dtype"), chosen(args.forms, list(FORMS), "form")
    if not forms or not dtypes:
        raise SystemExit("there is nothing to write: --dtypes and --forms need at least one each")
    if not args.checkpoint.is_dir():
        raise SystemExit(f"{args.checkpoint} is no folder")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)

    model, stored = load(args.checkpoint)
    model.requires_grad_(False)
    say(
        f"{args.checkpoint}: {sum(tensor.numel() for tensor in model.parameters())} weights, stored in {sorted(stored)}"
    )
    most = model.config.text_config.max_position_embeddings
    positions = min(most, MAX_POSITIONS) if args.positions is None else args.positions
    window = min(args.window, most)
    if window < args.window:
        say(f"the checkpoint has {most} positions, so that the window is no longer")
    for name, value, least, limit in (
        ("prompt", args.prompt, 1, most), ("window", window, 2, most), ("positions", positions, 2, most),
        ("rows", args.rows, 1, 64),
    ):  # fmt: skip
        if not least <= value <= limit:
            raise SystemExit(f"--{name} is {value}; it can be {least} to {limit}")
    question = checkpoint.Question(model, args.checkpoint)
    if args.prompt < max(map(len, question.prompts)):
        raise SystemExit(
            f"--prompt is {args.prompt}; the prompts that programs are checked with have "
            f"{max(map(len, question.prompts))} tokens"
        )
    exports = Exports(model, question, args.prompt, window, positions, args.rows)
    checks = Checks(exports, question)
    args.out.mkdir(parents=True, exist_ok=True)
    manifest = {
        "made_by": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "limits": {
            "image_tokens": exports.image, "prompt": args.prompt, "window": window, "positions": positions,
            "rows": args.rows,
        },
        "files": [],
    }  # fmt: skip
    written = set()
    for dtype in dtypes:
        vision = args.vision or dtype
        files = planned(dtype, vision, forms, args.shared)
        where = {method: file for file, (_, methods) in files.items() for method in methods}
        for file, (own, methods) in files.items():
            if file in written:
                continue
            written.add(file)
            exports.write(methods, own, args.out / file)
            for method in methods:
                checks.part(method, own, args.out, where)
            content = (args.out / file).read_bytes()
            manifest["files"].append({
                "file": file, "role": file.removesuffix(f"{SUFFIXES[own]}.pte"), "dtype": own,
                "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(),
                "methods": {
                    "forward" if len(methods) == 1 else method: exports.described(method) for method in methods
                },
            })  # fmt: skip
        for form in forms:
            checks.answer(form, dtype, vision, args.out, where)
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    copy_settings(args.checkpoint, args.out)
    if checks.failed:
        sys.exit(f"{len(checks.failed)} of the checks failed:\n" + "\n".join(checks.failed))
    say(f"written to {args.out}")


if __name__ == "__main__":
    main()
