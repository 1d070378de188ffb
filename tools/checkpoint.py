"""Any checkpoint as PyTorch's model, and a question with its greedy answer: what the exporting tools have in common."""

import json
import shutil

import numpy as np
import random_checkpoint
import torch
from safetensors.torch import load_file
from transformers import BartConfig, Florence2Config, Florence2ForConditionalGeneration, Florence2VisionConfig
from transformers.modeling_outputs import BaseModelOutput

COPIED = [
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
]  # fmt: skip
BOS, PAD, EOS = 0, 1, 2
ANSWER, NGRAM = 50, 3
# Under this margin rounding alone may decide between two tokens.
MARGIN = 0.1


def say(*words):
    print(*words, flush=True)


def read_json(path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise SystemExit(f"{path} is missing: a checkpoint has config.json, preprocessor_config.json and weights")
    except ValueError as error:
        raise SystemExit(f"{path} is not JSON: {error}")


def first_of(names):
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def read_weights(folder):
    """Every tensor as it is stored."""
    for name, load in (
        ("model.safetensors", load_file),
        ("pytorch_model.bin", lambda path: torch.load(path, map_location="cpu", weights_only=True)),
    ):
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            files = [name]
        elif index.exists():
            files = sorted(set(read_json(index)["weight_map"].values()))
        else:
            continue
        weights = {}
        for file in files:
            if not (folder / file).exists():
                raise SystemExit(f"{folder / file} is missing: {index.name} names it")
            try:
                weights |= load(folder / file)
            except Exception as error:
                raise SystemExit(f"{folder / file} cannot be read: {error}")
        return weights
    raise SystemExit(
        f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin, nor an index of either"
    )


def translated(config):
    """From microsoft's config.json."""
    text, vision = config["text_config"], config["vision_config"]
    sources = vision.get("image_feature_source")
    if sources not in (None, ["spatial_avg_pool", "temporal_avg_pool"]):
        raise SystemExit(f"image_feature_source is {sources}; only spatial_avg_pool, temporal_avg_pool can be exported")
    known = BartConfig().to_dict()
    text = {key: value for key, value in text.items() if key in known} | {"model_type": "bart"}
    known = Florence2VisionConfig().to_dict()
    renamed = {
        "embed_dim": vision["dim_embed"],
        "max_position_embeddings": vision["image_pos_embed"]["max_pos_embeddings"],
        "max_temporal_embeddings": vision["visual_temporal_embedding"]["max_temporal_embeddings"],
        "model_type": "florence_vision",
    }
    vision = {key: value for key, value in vision.items() if key in known} | renamed
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    return dict(text_config=text, vision_config=vision, is_encoder_decoder=True, tie_word_embeddings=True, **special)


def in_layout(name, microsoft):
    return random_checkpoint.microsoft_name(name) if microsoft else name


def load(folder):
    """The model in f32 with eager attention, and the dtypes that it is stored in."""
    config = read_json(folder / "config.json")
    weights = read_weights(folder)
    stored = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values() if tensor.is_floating_point()}
    microsoft = "dim_embed" in config.get("vision_config", {})
    try:
        config = Florence2Config(**(translated(config) if microsoft else config))
    except KeyError as error:
        raise SystemExit(f"{folder / 'config.json'} lacks {error}")
    positions = weights.get(in_layout("model.language_model.encoder.embed_positions.weight", microsoft))
    if positions is not None:
        # Two rows are no positions. Files with more than their config.json says were published.
        config.text_config.max_position_embeddings = len(positions) - 2

    with torch.device("meta"):
        model = Florence2ForConditionalGeneration._from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    tied = ["model.language_model.shared.weight", *random_checkpoint.TIED]
    bias = weights.pop("language_model.final_logits_bias" if microsoft else "model.final_logits_bias", None)
    state, used, missing = {}, set(), []
    for name, wanted in model.state_dict().items():
        names = [in_layout(alias, microsoft) for alias in (tied if name in tied else [name])]
        found = [alias for alias in names if alias in weights]
        if not found:
            missing.append(names[0])
            continue
        used |= set(found)
        tensor = weights[found[0]]
        for alias in found[1:]:
            if not torch.equal(weights[alias], tensor):
                raise SystemExit(f"{found[0]} and {alias} differ, and are one tensor in Florence-2")
        if microsoft and names[0] == "image_projection":
            tensor = tensor.T.contiguous()
        if tensor.shape != wanted.shape:
            raise SystemExit(f"{found[0]} is {list(tensor.shape)}, and by config.json {list(wanted.shape)}")
        state[name] = tensor.float()
    if missing:
        raise SystemExit(f"{folder} lacks tensors: {first_of(missing)}")
    if unused := sorted(set(weights) - used):
        raise SystemExit(f"{folder} has tensors that are no part of Florence-2: {first_of(unused)}")
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    if bias is not None and bias.any():
        bias = bias.float()
        model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits + bias)
    return model, stored


class Part(torch.nn.Module):
    """A function of tensors, as a module."""

    def __init__(self, model, run):
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *inputs):
        return self.run(*inputs)


class Question:
    """Two pictures and prompts, and PyTorch's greedy answer to the first."""

    def __init__(self, model, folder):
        settings = read_json(folder / "preprocessor_config.json")
        try:
            width, height = settings["size"]["width"], settings["size"]["height"]
        except (KeyError, TypeError):
            raise SystemExit(f"{folder / 'preprocessor_config.json'} needs a size of a width and a height")
        vocabulary = model.config.text_config.vocab_size
        generator = torch.Generator().manual_seed(1)
        self.prompts = [
            [BOS, *torch.randint(4, vocabulary, (length,), generator=generator).tolist(), EOS] for length in (8, 5)
        ]
        if (folder / "tokenizer.json").exists():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.prompts[0] = [
                BOS, *tokenizer.encode("What does the image describe?", add_special_tokens=False).ids, EOS
            ]  # fmt: skip
        self.pixels = torch.stack([random_checkpoint.picture(number, width, height) for number in range(2)])
        self.model = model

    def greedy(self, step):
        """Tokens of a greedy search and their margins; `step` takes a token and gives the logits after it."""
        tokens, margins = [EOS], []
        for number in range(min(ANSWER, self.model.config.text_config.max_position_embeddings)):
            scores = np.array(step(tokens[-1]), np.float64)
            for at in range(len(tokens) - NGRAM + 1):
                if tokens[at : at + NGRAM - 1] == tokens[len(tokens) - NGRAM + 1 :]:
                    scores[tokens[at + NGRAM - 1]] = -np.inf
            best = np.sort(scores)[-2:]
            margins.append(np.inf if number == 0 else best[1] - best[0])
            tokens.append(BOS if number == 0 else int(scores.argmax()))
            if tokens[-1] == EOS:
                break
        return tokens[1:], margins

    def answer(self):
        """PyTorch's, by the model itself and not by the functions that are exported."""
        model = self.model
        features = model.get_image_features(self.pixels[:1]).pooler_output
        embeds = torch.cat([features, model.get_input_embeddings()(torch.tensor(self.prompts[:1]))], 1)
        encoded = BaseModelOutput(model.model.language_model.encoder(inputs_embeds=embeds).last_hidden_state)
        cache = None

        def step(token):
            nonlocal cache
            out = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = out.cache
            return out.logits[0, -1].numpy()

        return self.greedy(step)


def chosen(value, known, what):
    values = [item for item in value.split(",") if item]
    if wrong := [item for item in values if item not in known]:
        raise SystemExit(f"{wrong[0]!r} is no {what}; there are {', '.join(known)}")
    return list(dict.fromkeys(values))


def copy_settings(source, target):
    """The files beside the weights, as far as there are any."""
    if source.resolve() == target.resolve():
        return
    for name in COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
