"""Writes a checkpoint as the ONNX parts that the hub has, and checks each of them.

    python tools/export_onnx.py CHECKPOINT OUT [--dtypes f32,f16,quantized] [--merged]

CHECKPOINT is a folder in microsoft's layout or in that of transformers: config.json, preprocessor_config.json, and weights of
any dtype in safetensors (sharded or not) or pytorch_model.bin. What is written:

    OUT/onnx/{PART}{SUFFIX}.onnx    with --flat beside the files below
    OUT/*                           copies of config.json and of what there is of tokenizer and processor files

    part                        inputs                                              outputs
    vision_encoder              pixel_values                                        image_features
    embed_tokens                input_ids                                           inputs_embeds
    encoder_model               attention_mask, inputs_embeds                       last_hidden_state
    decoder_model               encoder_attention_mask, encoder_hidden_states,      logits, present.*
                                inputs_embeds
    decoder_with_past_model     encoder_attention_mask, inputs_embeds,              logits, present.*.decoder.*
                                past_key_values.*
    decoder_model_merged        encoder_attention_mask, encoder_hidden_states,      logits, present.*
    (with --merged)             inputs_embeds, past_key_values.*, use_cache_branch

Keys and values are named {past_key_values,present}.LAYER.{decoder,encoder}.{key,value}, in this order of their parts. The batch and
the lengths are free; the picture's size is that of preprocessor_config.json. The merged decoder is one `If`, made as
`optimum` does: with use_cache_branch true its present.*.encoder.* are empty, and the first step's hold.

    dtype       suffix        what it is
    f32                       as PyTorch exports it
    f16         _fp16         weights and arithmetic in f16, inputs and outputs in f32, as the hub's are
    int8        _int8         dynamic: weights in signed 8 bits, activations in unsigned 8 bits, scaled as they come
    uint8       _uint8        dynamic, weights in unsigned 8 bits
    quantized   _quantized    as uint8 in the vision encoder, as int8 in the others: the hub's rule, since older versions of
                              ONNX Runtime have no convolution with signed weights
    q4          _q4           weights of products in 4 bits, symmetric blocks of 32 (MatMulNBits)
    q4f16       _q4f16        the same, the rest as in f16
    bnb4        _bnb4         weights of products in NF4, blocks of 64 (MatMulBnb4)

With --f16-storage the _fp16 parts store in f16 what f16 holds exactly, and widen it before it is used: arithmetic is that of f32,
and nothing is lost of a checkpoint that is stored in f16. Others are refused.

What is committed was written by

    python tools/export_onnx.py demo/checkpoint demo/onnx --flat --dtypes f16 --f16-storage
    TINY="florence2-backend-candle/testdata/tiny/microsoft florence2-backend-tract/testdata/tiny"
    python tools/export_onnx.py $TINY --dtypes int8 --parts embed_tokens,encoder_model,decoder_model,decoder_with_past_model
    python tools/export_onnx.py $TINY --dtypes q4,bnb4 --parts decoder_model,decoder_with_past_model
    python tools/export_onnx.py $TINY --dtypes f16 --parts '' --merged

The same versions write the same bytes.

Each part is run by ONNX Runtime on two pictures with prompts of different lengths, padded and masked, and with lengths other than
those it was exported with. In f32 it must agree with eager PyTorch to 1e-4 of the greatest value; the other dtypes' correlation
with PyTorch is printed, and must be at least what CORRELATION says. At last a whole greedy answer (<s> forced, no 3-gram twice) is
found by the parts: in f32 it must be PyTorch's, up to a token whose margin was under 0.1; for others it is printed how
far it is the same. The tool ends with 1 where something does not hold; the files are there all the same, to be looked at.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import warnings
from copy import deepcopy
from pathlib import Path

import checkpoint
import numpy as np
import onnx
import torch
from checkpoint import BOS, EOS, MARGIN, PAD, Part, chosen, copy_settings, load, say
from onnx import TensorProto, helper, numpy_helper
from onnx_parts import MERGED, PARTS, Parts, cache_names
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotInRuntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

SUFFIXES = {
    "f32": "", "f16": "_fp16", "int8": "_int8", "uint8": "_uint8", "quantized": "_quantized", "q4": "_q4",
    "q4f16": "_q4f16", "bnb4": "_bnb4",
}  # fmt: skip
RELATIVE = 1e-4
THREADS = torch.get_num_threads()
# Seen on the demo and on random weights of two sizes: f16 1.00000, 8 bits 0.995 and more, 4 bits 0.93 and more.
CORRELATION = {"f16": 0.9999, "int8": 0.98, "uint8": 0.98, "quantized": 0.98, "q4": 0.9, "q4f16": 0.9, "bnb4": 0.9}


def functions(model):
    """For each part what it computes."""
    language, layers = model.model.language_model, model.config.text_config.decoder_layers

    def entries(cache, kinds):
        caches = {"decoder": cache.self_attention_cache, "encoder": cache.cross_attention_cache}
        return [
            value
            for i in range(layers)
            for kind in kinds
            for value in (caches[kind].layers[i].keys, caches[kind].layers[i].values)
        ]

    def decode(mask, hidden, embeds, cache, kinds):
        out = language.decoder(
            inputs_embeds=embeds, encoder_hidden_states=hidden, encoder_attention_mask=mask, cache=cache, use_cache=True
        )
        return (model.lm_head(out.last_hidden_state), *entries(cache, kinds))

    def first(mask, hidden, embeds):
        return decode(mask, hidden, embeds, EncoderDecoderCache(DynamicCache(), DynamicCache()), ["decoder", "encoder"])

    def later(mask, embeds, *past):
        own, cross = DynamicCache(), DynamicCache()
        cache = EncoderDecoderCache(own, cross)
        for i in range(layers):
            own.update(past[4 * i], past[4 * i + 1], i)
            cross.update(past[4 * i + 2], past[4 * i + 3], i)
            cache.is_updated[i] = True
        # Only its length is asked for, once the keys are there.
        hidden = past[2].transpose(1, 2).flatten(2)
        return decode(mask, hidden, embeds, cache, ["decoder"])

    return {
        "vision_encoder": lambda pixels: (model.get_image_features(pixels).pooler_output,),
        "embed_tokens": lambda ids: (model.get_input_embeddings()(ids),),
        "encoder_model": lambda mask, embeds: (
            language.encoder(attention_mask=mask, inputs_embeds=embeds).last_hidden_state,
        ),
        "decoder_model": first,
        "decoder_with_past_model": later,
    }


def signatures(layers):
    """For each part its inputs and outputs in order: name to the names of its free axes."""
    batch, tokens = {0: "batch_size"}, {0: "batch_size", 1: "decoder_sequence_length"}
    prompt = {0: "batch_size", 1: "encoder_sequence_length"}

    def cache(prefix, kinds, own):
        lengths = {"decoder": own, "encoder": "encoder_sequence_length"}
        return {name: {0: "batch_size", 2: lengths[name.split(".")[2]]} for name in cache_names(prefix, layers, kinds)}

    both, past = ("decoder", "encoder"), "past_decoder_sequence_length"
    text = {0: "batch_size", 1: "sequence_length"}
    return {
        "vision_encoder": ({"pixel_values": batch}, {"image_features": batch}),
        "embed_tokens": ({"input_ids": text}, {"inputs_embeds": text}),
        "encoder_model": ({"attention_mask": prompt, "inputs_embeds": prompt}, {"last_hidden_state": prompt}),
        "decoder_model": (
            {"encoder_attention_mask": prompt, "encoder_hidden_states": prompt, "inputs_embeds": tokens},
            {"logits": tokens, **cache("present", both, "decoder_sequence_length")},
        ),
        "decoder_with_past_model": (
            {"encoder_attention_mask": prompt, "inputs_embeds": batch, **cache("past_key_values", both, past)},
            {"logits": batch, **cache("present", ("decoder",), f"{past} + 1")},
        ),
    }


class Question(checkpoint.Question):
    """What the parts are exported and checked with, computed by PyTorch: for each part inputs and outputs."""

    def __init__(self, model, folder):
        super().__init__(model, folder)
        self.run = functions(model)
        self.exporting = self.walk([0], model, tokens=1)
        self.checking = self.walk([0, 1], model, tokens=3)

    def walk(self, rows, model, tokens):
        """The inputs of each part, through the whole network."""
        pixels, prompts = self.pixels[rows], [self.prompts[row] for row in rows]
        longest = max(map(len, prompts))
        ids = torch.tensor([prompt + [PAD] * (longest - len(prompt)) for prompt in prompts])
        (features,) = self.run["vision_encoder"](pixels)
        (embeds,) = self.run["embed_tokens"](ids)
        embeds = torch.cat([features, embeds], 1)
        mask = torch.cat([torch.ones(features.shape[:2]).long(), (ids != PAD).long()], 1)
        (hidden,) = self.run["encoder_model"](mask, embeds)
        start = model.get_input_embeddings()(torch.tensor([[EOS, BOS, *self.prompts[0][1:]][:tokens]] * len(rows)))
        first = (mask, hidden, start)
        past = self.run["decoder_model"](*first)[1:]
        token = model.get_input_embeddings()(torch.tensor([[prompt[1]] for prompt in prompts]))
        return {
            "vision_encoder": (pixels,),
            "embed_tokens": (ids,),
            "encoder_model": (mask, embeds),
            "decoder_model": first,
            "decoder_with_past_model": (mask, token, *past),
        }

    def answer_of(self, parts):
        embeds = np.concatenate([parts.see(self.pixels[:1].numpy()), parts.embed(self.prompts[:1])], 1)
        encoded, past = parts.encode(embeds), None

        def step(token):
            nonlocal past
            logits, past = parts.step(encoded, past, [token])
            return logits[0]

        return self.greedy(step)[0]


def write_f32(question, signature, folder, opset):
    for name in PARTS:
        say(f"{name}: exporting")
        inputs, outputs = signature[name]
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                Part(question.model, question.run[name]).eval(), question.exporting[name], folder / f"{name}.onnx",
                input_names=list(inputs), output_names=list(outputs), dynamic_axes=inputs | outputs,
                opset_version=opset, do_constant_folding=True, dynamo=False,
            )  # fmt: skip


def write(dtype, part, source, target, f16_storage):
    """`source`, which is in f32, in another dtype."""
    if dtype in ("int8", "uint8", "quantized"):
        signed = dtype == "int8"
        if dtype == "quantized":
            signed = all(node.op_type != "Conv" for node in onnx.load(source, load_external_data=False).graph.node)
        quantize_dynamic(
            source, target, weight_type=QuantType.QInt8 if signed else QuantType.QUInt8, per_channel=False,
            reduce_range=False, extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )  # fmt: skip
        return
    model = onnx.load(source)
    if dtype == "f16" and f16_storage:
        store_in_f16(model, part)
    if dtype in ("q4", "q4f16"):
        quantizer = MatMulNBitsQuantizer(model, bits=4, block_size=32, is_symmetric=True)
        quantizer.process()
        model = quantizer.model.model
    if dtype == "bnb4":
        quantizer = MatMulBnb4Quantizer(model, MatMulBnb4Quantizer.NF4, 64)
        quantizer.process()
        model = quantizer.model.model
    if dtype == "q4f16" or dtype == "f16" and not f16_storage:
        with warnings.catch_warnings(action="ignore"):
            model = convert_float_to_float16(model, keep_io_types=True)
        sort_nodes(model.graph)
    onnx.save(model, target)


def sort_nodes(graph):
    """Every node behind those whose results it takes: the conversion appends its casts."""
    made = {output: node for node in graph.node for output in node.output}
    order, placed = [], set()
    for node in graph.node:
        stack = [node]
        while stack:
            node = stack[-1]
            before = [made[name] for name in node.input if name in made and id(made[name]) not in placed]
            if before:
                stack += before
                continue
            stack.pop()
            if id(node) not in placed:
                placed.add(id(node))
                order.append(deepcopy(node))
    del graph.node[:]
    graph.node.extend(order)


def store_in_f16(model, part):
    """Weights in f16, each with a Cast to f32 before all other nodes."""
    graph, casts, narrow, wide = model.graph, [], 0, 0
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        value = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            half = value.astype(np.float16)
        if np.array_equal(half.astype(np.float32), value):
            narrow += value.size
            name = f"{tensor.name}_f16"
            casts.append(helper.make_node("Cast", [name], [tensor.name], f"{name}_widened", to=TensorProto.FLOAT))
            tensor.CopyFrom(numpy_helper.from_array(half, name))
        else:
            wide += value.size
    if wide > 0.05 * narrow:
        raise SystemExit(f"{part}: f16 does not hold {wide} of {narrow + wide} weights; leave --f16-storage out")
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def merge(first, later, target):
    """The two decoders in one file.

    Tensors of both are there once, outside of the branches; a scalar, or a list of whole numbers, stays in its branch.
    """
    shared, hoisted = {}, []

    def branch(path, prefix):
        graph = onnx.load(path).graph
        names = {output: prefix + output for node in graph.node for output in node.output}
        own = []
        for tensor in graph.initializer:
            name, tensor = tensor.name, deepcopy(tensor)
            if not tensor.dims or len(tensor.dims) == 1 and tensor.data_type in (TensorProto.INT32, TensorProto.INT64):
                tensor.name = names[name] = prefix + name
                own.append(tensor)
                continue
            tensor.name = ""
            key = tensor.SerializeToString(deterministic=True)
            if key not in shared:
                tensor.name = shared[key] = prefix + name
                hoisted.append(tensor)
            names[name] = shared[key]
        for node in graph.node:
            node.name = prefix + node.name
            for values in (node.input, node.output):
                values[:] = [names.get(value, value) for value in values]
        return graph, [prefix + value.name for value in graph.output], own

    def outputs(graph, prefix):
        for value in graph.output:
            value = deepcopy(value)
            value.name = prefix + value.name
            yield value

    first_model = onnx.load(first)
    graph, _, own = branch(first, "no_past_")
    names = [value.name for value in graph.output]
    without = helper.make_graph(graph.node, "no_past", [], list(outputs(graph, "no_past_")), own)
    inputs = {value.name: value for value in graph.input}
    types = {value.name: value.type.tensor_type for value in graph.output}

    graph, _, own = branch(later, "with_past_")
    inputs |= {value.name: value for value in graph.input if value.name not in inputs}
    given = {value.name.removeprefix("with_past_"): value for value in outputs(graph, "with_past_")}
    nodes, values = list(graph.node), []
    for name in names:
        if name not in given:
            dims = types[name].shape.dim
            shape = [0, dims[1].dim_value, 1, dims[3].dim_value]
            dtype = helper.tensor_dtype_to_np_dtype(types[name].elem_type)
            given[name] = helper.make_tensor_value_info(f"with_past_{name}", types[name].elem_type, shape)
            nodes.append(
                helper.make_node(
                    "Constant", [], [f"with_past_{name}"], f"with_past_empty_{name}",
                    value=numpy_helper.from_array(np.zeros(shape, dtype)),
                )
            )  # fmt: skip
        values.append(given[name])
    with_past = helper.make_graph(nodes, "with_past", [], values, own)

    # The two branches' shapes differ, so that only the number of axes and what is fixed in both holds.
    results = []
    for name in names:
        shape = [dim.dim_value or f"{name}_axis_{axis}" for axis, dim in enumerate(types[name].shape.dim)]
        results.append(helper.make_tensor_value_info(name, types[name].elem_type, shape))
    node = helper.make_node(
        "If", ["use_cache_branch"], names, "optimum::if", then_branch=with_past, else_branch=without
    )
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "merged", [*inputs.values(), flag], results, hoisted)
    merged = helper.make_model(graph, opset_imports=first_model.opset_import, ir_version=first_model.ir_version)
    onnx.save(merged, target)


def relative(got, wanted):
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


class Checks:
    """Collects what does not hold."""

    def __init__(self, question, signature):
        self.question, self.signature, self.failed = question, signature, []
        self.expected = {
            name: [value.numpy() for value in question.run[name](*question.checking[name])] for name in PARTS
        }

    def fail(self, what):
        say(f"FAILED: {what}")
        self.failed.append(what)

    def part(self, name, dtype, path):
        """Runs one part; false where ONNX Runtime cannot."""
        inputs, outputs = self.signature[name]
        try:
            parts = Parts(path.parent, SUFFIXES[dtype], THREADS, [name])
        except NotInRuntime as error:
            say(f"{path.name}: ONNX Runtime cannot run it: {str(error).split(' : ')[-1]}")
            return False
        if (parts.inputs[name], parts.outputs[name]) != (list(inputs), list(outputs)):
            self.fail(f"{path.name} has the inputs {parts.inputs[name]} and the outputs {parts.outputs[name]}")
            return True
        given = dict(zip(inputs, (value.numpy() for value in self.question.checking[name])))
        got = list(parts.run(name, **given).values())
        wanted = self.expected[name]
        size = f"{path.name}: {path.stat().st_size / 1e6:.2f} MB"
        if any(a.shape != b.shape or not np.isfinite(a).all() for a, b in zip(got, wanted)):
            self.fail(f"{path.name} gives shapes {[a.shape for a in got]} or values that are not finite")
        elif dtype == "f32":
            worst = max(map(relative, got, wanted))
            say(f"{size}, differs from PyTorch by {worst:.1e} of the greatest value")
            if not worst < RELATIVE:
                self.fail(f"{path.name} differs from PyTorch by {worst:.1e} of the greatest value")
        else:
            values = [float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) for a, b in zip(got, wanted)]
            say(f"{size}, correlation with PyTorch {values[0]:.5f}, the least of its outputs' {min(values):.5f}")
            if not min(values) >= CORRELATION[dtype]:
                self.fail(f"{path.name} has a correlation of {min(values):.5f} under {CORRELATION[dtype]}")
        return True

    def merged(self, dtype, folder):
        """Both branches must be what the two decoders are."""
        path = folder / f"{MERGED}{SUFFIXES[dtype]}.onnx"
        parts = Parts(folder, SUFFIXES[dtype], THREADS, [MERGED, "decoder_model", "decoder_with_past_model"])
        size = f"{path.name}: {path.stat().st_size / 1e6:.2f} MB"
        first, later = (
            dict(zip(self.signature[name][0], (value.numpy() for value in self.question.checking[name])))
            for name in ("decoder_model", "decoder_with_past_model")
        )
        worst = 0.0
        for name, given, flag in (
            ("decoder_model", first | parts.empty_past(2), False),
            ("decoder_with_past_model", later | {"encoder_hidden_states": first["encoder_hidden_states"]}, True),
        ):
            wanted = parts.run(name, **given)
            got = parts.run(MERGED, use_cache_branch=np.array([flag]), **given)
            if list(got) != list(self.signature["decoder_model"][1]):
                return self.fail(f"{path.name} has the outputs {list(got)}")
            if any(got[key].shape[0] for key in set(got) - set(wanted)):
                return self.fail(f"{path.name} gives keys or values that it should leave out")
            worst = max(worst, *(relative(got[key], value) for key, value in wanted.items()))
        say(f"{size}, differs from the two decoders by {worst:.1e} of the greatest value")
        # In f16 the runtime fuses other nodes in a branch, and rounds at other places.
        if not worst < (RELATIVE if dtype == "f32" else 1e-2):
            self.fail(f"{path.name} differs from the two decoders by {worst:.1e} of the greatest value")

    def answer(self, dtype, folder, names, expected, margins):
        got = self.question.answer_of(Parts(folder, SUFFIXES[dtype], THREADS, names))
        same = next((n for n, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        what = "the merged decoder" if MERGED in names else "two decoders"
        if got == expected:
            return say(f"{dtype}, {what}: the greedy answer's {len(expected)} tokens are PyTorch's")
        margin = margins[same] if same < len(margins) else 0.0
        say(
            f"{dtype}, {what}: the greedy answer is PyTorch's up to token {same} of {len(expected)}, margin {margin:.3f}"
        )
        if dtype == "f32" and margin >= MARGIN:
            self.fail(f"the greedy answer differs from PyTorch's at token {same}, with a margin of {margin:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtypes", default="f32", help=f"of {', '.join(SUFFIXES)}")
    parser.add_argument("--parts", default=",".join(PARTS), help="those that are written; all are exported and checked")
    parser.add_argument("--merged", action="store_true", help=f"{MERGED} too")
    parser.add_argument("--f16-storage", action="store_true", help="f16 weights, f32 arithmetic")
    parser.add_argument("--flat", action="store_true", help="the parts into OUT itself")
    parser.add_argument("--opset", type=int, default=17, help="14 has layer norms in pieces, as older exports do")
    args = parser.parse_args()
    dtypes, parts = chosen(args.dtypes, list(SUFFIXES), "dtype"), chosen(args.parts, PARTS, "part")
    if not 14 <= args.opset <= 17:
        raise SystemExit(f"opset {args.opset} cannot be exported; there are 14 to 17")
    if not args.checkpoint.is_dir():
        raise SystemExit(f"{args.checkpoint} is no folder")
    logging.disable(logging.WARNING)
    torch.set_grad_enabled(False)

    model, stored = load(args.checkpoint)
    say(
        f"{args.checkpoint}: {sum(tensor.numel() for tensor in model.parameters())} weights, stored in {sorted(stored)}"
    )
    question = Question(model, args.checkpoint)
    signature = signatures(model.config.text_config.decoder_layers)
    target = args.out if args.flat else args.out / "onnx"
    target.mkdir(parents=True, exist_ok=True)
    # Beside what will be written, so that to move a file there is to rename it.
    with tempfile.TemporaryDirectory(dir=target) as work:
        work = Path(work)
        write_f32(question, signature, work, args.opset)
        checks = Checks(question, signature)
        expected, margins = question.answer()
        for dtype in ["f32", *(dtype for dtype in dtypes if dtype != "f32")]:
            runs = True
            for name in PARTS:
                path = work / f"{name}{SUFFIXES[dtype]}.onnx"
                if dtype != "f32":
                    write(dtype, name, work / f"{name}.onnx", path, args.f16_storage)
                runs &= checks.part(name, dtype, path)
            if runs:
                checks.answer(dtype, work, PARTS, expected, margins)
            written = list(parts) if dtype in dtypes else []
            if args.merged and dtype in dtypes:
                decoders = [work / f"{name}{SUFFIXES[dtype]}.onnx" for name in PARTS[3:]]
                merge(*decoders, work / f"{MERGED}{SUFFIXES[dtype]}.onnx")
                checks.merged(dtype, work)
                if runs:
                    checks.answer(dtype, work, [*PARTS[:3], MERGED], expected, margins)
                written.append(MERGED)
            for name in written:
                file = f"{name}{SUFFIXES[dtype]}.onnx"
                # What is in f32 is still needed.
                (shutil.copyfile if dtype == "f32" else shutil.move)(work / file, target / file)
    copy_settings(args.checkpoint, args.out)
    if checks.failed:
        sys.exit(f"{len(checks.failed)} of the checks failed:\n" + "\n".join(checks.failed))
    say(f"written to {target}")


if __name__ == "__main__":
    main()
