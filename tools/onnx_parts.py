"""The parts of the hub's ONNX export of Florence-2: their names, and the network run from them on ONNX Runtime."""

import numpy as np

PARTS = ["vision_encoder", "embed_tokens", "encoder_model", "decoder_model", "decoder_with_past_model"]
MERGED = "decoder_model_merged"


def cache_names(prefix, layers, kinds=("decoder", "encoder")):
    """In the order in which the decoders take and give them."""
    return [f"{prefix}.{i}.{kind}.{value}" for i in range(layers) for kind in kinds for value in ("key", "value")]


def home(folder):
    """Where the parts of a folder lie: in its `onnx` if there is one, as on the hub, or beside its other files."""
    return folder / "onnx" if (folder / "onnx").is_dir() else folder


class Parts:
    """The parts in a folder; the decoder is the merged one if its name is in `names`."""

    def __init__(self, folder, suffix="", threads=0, names=PARTS):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.sessions = {
            name: onnxruntime.InferenceSession(
                folder / f"{name}{suffix}.onnx", options, providers=["CPUExecutionProvider"]
            )
            for name in names
        }
        self.inputs = {name: [value.name for value in part.get_inputs()] for name, part in self.sessions.items()}
        self.outputs = {name: [value.name for value in part.get_outputs()] for name, part in self.sessions.items()}

    def run(self, name, **inputs):
        found = {key: value for key, value in inputs.items() if key in self.inputs[name]}
        return dict(zip(self.outputs[name], self.sessions[name].run(None, found)))

    def see(self, pixels):
        return self.run("vision_encoder", pixel_values=pixels)["image_features"]

    def embed(self, ids):
        return self.run("embed_tokens", input_ids=np.array(ids, np.int64))["inputs_embeds"]

    def encode(self, embeds, mask=None):
        mask = np.ones(embeds.shape[:2], np.int64) if mask is None else mask
        return self.run("encoder_model", inputs_embeds=embeds, attention_mask=mask)["last_hidden_state"]

    def step(self, encoded, past, tokens, mask=None):
        """Logits after the last token, and the keys and values of the next step; `past` is None at the first."""
        inputs = {
            "encoder_attention_mask": np.ones(encoded.shape[:2], np.int64) if mask is None else mask,
            "encoder_hidden_states": encoded,
            "inputs_embeds": self.embed([[token] for token in tokens]),
        }
        if MERGED in self.sessions:
            inputs |= self.empty_past(len(tokens)) if past is None else past
            out = self.run(MERGED, use_cache_branch=np.array([past is not None]), **inputs)
            if past is not None:
                # Those of the encoder are empty then: the first step's hold.
                out = {name: value for name, value in out.items() if ".encoder." not in name}
        else:
            out = self.run("decoder_model" if past is None else "decoder_with_past_model", **inputs, **(past or {}))
        logits = out.pop("logits")[:, -1]
        return logits, (past or {}) | {name.replace("present", "past_key_values"): value for name, value in out.items()}

    def empty_past(self, rows):
        """What the merged decoder is given where it has no past: it must be given something."""
        return {
            value.name: np.zeros((rows, value.shape[1], 0, value.shape[3]), np.float32)
            for value in self.sessions[MERGED].get_inputs()
            if value.name.startswith("past_key_values.")
        }
