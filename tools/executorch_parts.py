"""The ExecuTorch programs that `export_executorch.py` writes: their names, and the network run from them."""

import torch
from executorch.runtime import Runtime, Verification

SUFFIXES = {"f32": "", "f16": "_fp16", "int8": "_int8"}
# The file with all that comes after the picture, in both forms.
TEXT = "text"
# A cache is made longer by as many entries at a time, so that it is seldom copied.
BLOCK = 32
PAD = 1


class Parts:
    """Programs in a folder. `files` says for each method (vision, encoder, decoder, cross, step) which file has it."""

    def __init__(self, folder, files):
        programs = {
            file: Runtime.get().load_program(folder / file, verification=Verification.InternalConsistency)
            for file in set(files.values())
        }
        self.methods = {}
        for method, file in files.items():
            # A file with one part has it as `forward`.
            found = programs[file].method_names
            self.methods[method] = programs[file].load_method("forward" if found == {"forward"} else method)
        self.programs = programs

    def run(self, method, *inputs):
        # The next run writes over what a method gave.
        return [value.clone() for value in self.methods[method].execute(inputs)]

    def encode(self, pixels, ids, mask):
        (features,) = self.run("vision", pixels)
        return self.run("encoder", features, ids, mask)[0]


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
