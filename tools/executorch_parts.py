"""The network, run from the ExecuTorch programs that `export_executorch.py` writes."""

import numpy as np
import torch
from executorch.extension.pybindings import portable_lib
from executorch.runtime import Runtime, Verification

# A cache is made longer by as many entries at a time, so that it is seldom copied.
BLOCK = 32
PAD = 1


def use_threads(count):
    """For PyTorch and for ExecuTorch, each of which has its own; before any program is loaded."""
    torch.set_num_threads(count)
    portable_lib._unsafe_reset_threadpool(count)
    if (got := portable_lib._threadpool_get_thread_count()) != count:
        raise SystemExit(f"ExecuTorch has {got} threads, and does not take {count}")


def opened(path):
    try:
        return Runtime.get().load_program(path, verification=Verification.InternalConsistency)
    except RuntimeError as error:
        raise SystemExit(f"{path} is no program that ExecuTorch reads: {error}")


def own_name(program, method):
    """What a file calls a method, or None: a file with one part has it as `forward`."""
    return next((name for name in ("forward", method) if name in program.method_names), None)


def input_shapes(program, method):
    """Free axes are as long as they can be."""
    about = program.metadata(own_name(program, method))
    return [list(about.input_tensor_meta(i).sizes()) for i in range(about.num_inputs())]


class Parts:
    """Programs in a folder. `files` says for each method (vision, encoder, decoder, cross, step) which file has it."""

    def __init__(self, folder, files):
        self.files, self.programs = files, {file: opened(folder / file) for file in set(files.values())}
        self.methods = {}
        for method, file in files.items():
            program = self.programs[file]
            if (name := own_name(program, method)) is None:
                raise SystemExit(f"{folder / file} has no {method}, only {', '.join(sorted(program.method_names))}")
            self.methods[method] = program.load_method(name)

    def run(self, method, *inputs):
        # Copies, which the next run leaves alone.
        return self.methods[method].execute(inputs)

    def shapes(self, method):
        return input_shapes(self.programs[self.files[method]], method)

    def encode(self, pixels, ids, mask):
        (features,) = self.run("vision", pixels)
        return self.run("encoder", features, ids, mask)[0]


def differences(got, wanted):
    """Of all outputs, the greatest difference as a share of the greatest value, and the least correlation."""
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, wanted))
    return worst, min(float(np.corrcoef(a.flatten(), b.flatten())[0, 1]) for a, b in zip(got, wanted))


def padded(prompt, length):
    """A prompt's ids and mask, [1, length] each."""
    ids = torch.tensor([prompt + [PAD] * (length - len(prompt))])
    return ids, (torch.arange(length) < len(prompt)).long()[None]


class Window:
    """A decoder of a fixed window, fed with one token at a time. `run` takes what the program takes."""

    def __init__(self, run, hidden, mask, window):
        self.run, self.hidden, self.mask, self.at = run, hidden, mask, 0
        self.ids = torch.full((1, window), PAD)

    def step(self, tokens):
        """[1] to logits [1, vocabulary]."""
        self.ids[0, self.at] = tokens[0]
        self.at += 1
        return self.run(self.hidden, self.mask, self.ids)[0][:, self.at - 1]


class Cached:
    """A decoder whose keys and values are given to it and kept here. `cross` and `step` take what the methods take."""

    def __init__(self, cross, step, hidden, mask, heads):
        self.run, self.mask, self.at = step, mask, 0
        self.cross, self.own, self.heads = list(cross(hidden)), None, heads

    def select(self, rows):
        """Makes row i what row rows[i] was."""
        if self.own is not None and rows != list(range(len(self.own[0]))):
            self.own = [values[rows] for values in self.own]

    def step(self, tokens):
        """[rows] to logits [rows, vocabulary]."""
        if self.own is None:
            size = self.cross[0].shape[2]
            self.own = [torch.zeros(len(tokens), self.heads, BLOCK, size) for _ in self.cross]
        if self.at == self.own[0].shape[2]:
            more = self.own[0].new_zeros(*self.own[0].shape[:2], BLOCK, self.own[0].shape[3])
            self.own = [torch.cat([values, more], 2) for values in self.own]
        logits, *new = self.run(
            tokens[:, None].contiguous(), torch.tensor([self.at]), self.mask, *self.own, *self.cross
        )
        for values, value in zip(self.own, new):
            values[:, :, self.at] = value[:, :, 0]
        self.at += 1
        return logits
