"""Writes a checkpoint of seeded random weights in either layout, and what transformers computes with it.

    python tools/random_checkpoint.py base OUT [--layout microsoft] [--dtype f16] [--sharded] [--bin]
    python tools/random_checkpoint.py tiny florence2-backend-candle/testdata/tiny/transformers --dtype f16
    python tools/random_checkpoint.py tiny florence2-backend-candle/testdata/tiny/microsoft --dtype f16 --layout microsoft

`base` and `large` have the real sizes, so that a backend can be checked where no weights are at hand; `tiny` is
committed. OUT/expected.safetensors holds, computed in f32 from the weights as they are stored:

    prompt.N                    ids of a prompt, <s> and </s> included (N = 0, 1; they differ in length)
    image_features.N            [image tokens, width]   of picture(N)
    encoder.N                   [image tokens + prompt, width]   prompt N asked of picture N
    forced                      12 ids that the decoder is fed, the start token first
    logits.N                    [12, vocabulary]   the logits after each of them
    greedy.N.tokens             tokens of a greedy search as florence2's default has it (<s> forced, no 3-gram twice)
    greedy.N.log_probs          their log-probabilities, after these rules
    greedy.N.margins            the gap between the best two scores; infinite where a rule left only one token

The two prompts are also run as one padded and masked batch, which must give the same; the tool fails otherwise.

Window attention: a map that the windows do not fill is padded with zeros on the right and at the bottom after the norm,
and no mask hides the padding: it takes part with the bias of `qkv` as its query, key and value, in both layouts' code.
`tiny` is padded so in every stage but microsoft's last. Its picture is not square in the transformers layout; microsoft's
code takes square ones only. Its microsoft layout has a `final_logits_bias` that is not zero, which is in its logits.

The same seed gives the same weights with the same version of torch.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import Florence2Config, Florence2ForConditionalGeneration, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BOS, PAD, EOS = 0, 1, 2
# name: vision channels, heads, groups, depths, window; text width, layers, heads, feed-forward, positions;
# vocabulary (ids in use, rows in each layout), rows of the vision positions, tokens of the greedy search
SIZES = {
    "tiny": dict(
        channels=[8, 16, 24, 40], heads=[1, 2, 2, 5], groups=[1, 2, 3, 4], depths=[1, 1, 2, 1], window=4,
        width=32, layers=2, text_heads=4, ffn=64, positions=64, vocabulary=119, rows=(120, 120),
        image_positions=(8, 4), sides={"transformers": (136, 104), "microsoft": (104, 104)}, greedy=20,
    ),
    "base": dict(
        channels=[128, 256, 512, 1024], heads=[4, 8, 16, 32], groups=[4, 8, 16, 32], depths=[1, 1, 9, 1], window=12,
        width=768, layers=6, text_heads=12, ffn=3072, positions=1024, vocabulary=51289, rows=(51328, 51289),
        image_positions=(50, 100), sides={"transformers": (768, 768), "microsoft": (768, 768)}, greedy=50,
    ),
    "large": dict(
        channels=[256, 512, 1024, 2048], heads=[8, 16, 32, 64], groups=[8, 16, 32, 64], depths=[1, 1, 9, 1], window=12,
        width=1024, layers=12, text_heads=16, ffn=4096, positions=4096, vocabulary=51289, rows=(51328, 51289),
        image_positions=(50, 100), sides={"transformers": (768, 768), "microsoft": (768, 768)}, greedy=50,
    ),
}  # fmt: skip
PATCHES = dict(
    patch_size=[7, 3, 3, 3], patch_stride=[4, 2, 2, 2], patch_padding=[3, 1, 1, 1], patch_prenorm=[False, True, True, True]
)  # fmt: skip
TEXT = dict(
    activation_function="gelu", dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, scale_embedding=False,
    bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=EOS, is_encoder_decoder=True,
)  # fmt: skip

# From a transformers name to microsoft's.
BLOCK = r"^model\.vision_tower\.(blocks\.\d+\.\d+\.(spatial|channel)_block)\."
RENAMES = [
    (r"^model\.vision_tower\.convs\.(\d+)\.conv\.", r"vision_tower.convs.\1.proj."),
    (r"^model\.vision_tower\.convs\.(\d+)\.norm\.", r"vision_tower.convs.\1.norm."),
    (BLOCK + r"conv([12])\.", r"vision_tower.\1.conv\3.fn.dw."),
    (BLOCK.replace("spatial|channel", "spatial") + r"norm1\.", r"vision_tower.\1.window_attn.norm."),
    (BLOCK.replace("spatial|channel", "channel") + r"norm1\.", r"vision_tower.\1.channel_attn.norm."),
    (BLOCK + r"(window|channel)_attn\.", r"vision_tower.\1.\3_attn.fn."),
    (BLOCK + r"norm2\.", r"vision_tower.\1.ffn.norm."),
    (BLOCK + r"ffn\.(fc[12])\.", r"vision_tower.\1.ffn.fn.net.\3."),
    (r"^model\.multi_modal_projector\.image_projection\.weight$", r"image_projection"),
    (r"^model\.multi_modal_projector\.image_proj_norm\.", r"image_proj_norm."),
    (r"^model\.multi_modal_projector\.image_position_embed\.", r"image_pos_embed."),
    (r"^model\.multi_modal_projector\.visual_temporal_embed\.", r"visual_temporal_embed."),
    (r"^model\.language_model\.", r"language_model.model."),
    (r"^lm_head\.", r"language_model.lm_head."),
]
TIED = [
    "model.language_model.encoder.embed_tokens.weight",
    "model.language_model.decoder.embed_tokens.weight",
    "lm_head.weight",
]


def config(size, layout):
    s = SIZES[size]
    vision = dict(
        embed_dim=s["channels"], num_heads=s["heads"], num_groups=s["groups"], depths=s["depths"], window_size=s["window"],
        mlp_ratio=4.0, qkv_bias=True, projection_dim=s["width"], drop_path_rate=0.1,
        max_position_embeddings=s["image_positions"][0], max_temporal_embeddings=s["image_positions"][1], **PATCHES,
    )  # fmt: skip
    text = dict(
        model_type="bart", d_model=s["width"], encoder_layers=s["layers"], decoder_layers=s["layers"],
        encoder_attention_heads=s["text_heads"], decoder_attention_heads=s["text_heads"], encoder_ffn_dim=s["ffn"],
        decoder_ffn_dim=s["ffn"], max_position_embeddings=s["positions"],
        vocab_size=s["rows"][layout == "microsoft"], **TEXT,
    )  # fmt: skip
    return Florence2Config(
        vision_config=vision, text_config=text, image_token_id=s["vocabulary"], is_encoder_decoder=True,
        bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS, tie_word_embeddings=True,
    )  # fmt: skip


def fill(model, seed):
    """Random weights that keep the activations' spread, so that a wrong layer shows.

    The library's own initialisation (a standard deviation of 0.02) leaves every layer near to the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            fan_in = weight[0].numel()
            if name.endswith("bias"):
                noise *= 0.05
            elif weight.dim() == 1:  # a norm's
                noise = 1 + 0.1 * noise
            elif "language_model" in name and "embed" in name or "shared" in name:
                # The logits' spread is this times the square root of the width.
                noise *= 5 / fan_in**0.5
            elif "position_embed" in name:
                noise *= 0.5
            elif weight.dim() == 4 and weight.shape[1] == 1:  # depthwise, beside a residual: 44 of them in a row
                noise *= 0.3 / fan_in**0.5
            elif "channel_attn.qkv" in name:
                # Its products are sums over all tokens, which are alike: sharper ones would only magnify rounding.
                noise *= 0.5 / fan_in**0.5
            elif "q_proj" in name or "k_proj" in name:  # sharp enough to choose
                noise *= 1.5 / fan_in**0.5
            elif "decoder" in name and "out_proj" in name:
                # What is attended to is much the same at each step; louder, and every token would lead to the same one.
                noise *= min(0.5, 3 / model.config.text_config.decoder_layers) / fan_in**0.5
            elif "language_model" in name and "fc2" in name:
                # Louder than the residual, since with a tied head a token asks for itself again, and blind to the
                # mean of the activation, which is the same for every token.
                noise = 3 * (noise - noise.mean(1, keepdim=True)) / fan_in**0.5
            else:
                noise /= fan_in**0.5
            weight.copy_(noise)
    model.tie_weights()


def picture(number, width, height):
    """Pixel values [3, height, width] that any language can make: whole numbers, then two operations in f32."""
    c = torch.arange(3).view(3, 1, 1)
    y = torch.arange(height).view(1, height, 1)
    x = torch.arange(width).view(1, 1, width)
    grey = (x * (3 + c) + y * (7 - 2 * c)) // 4 + (x // 32) * 37 + (y // 32) * 91 + c * 53 + number * 101
    return (grey % 256).float() / 127.5 - 1


def prompts(vocabulary):
    generator = torch.Generator().manual_seed(1)
    for length in (10, 7):
        ids = torch.randint(4, vocabulary, (length - 2,), generator=generator).tolist()
        yield [BOS, *ids, EOS]


@torch.no_grad()
def expected(model, size, layout):
    """What transformers computes."""
    s = SIZES[size]
    asks = list(prompts(s["vocabulary"]))
    pixels = torch.stack([picture(number, *s["sides"][layout]) for number in range(len(asks))])
    features = model.get_image_features(pixels).pooler_output
    embed = model.get_input_embeddings()
    generator = torch.Generator().manual_seed(2)
    forced = [EOS, BOS, *torch.randint(4, s["vocabulary"], (10,), generator=generator).tolist()]
    out = {"forced": torch.tensor(forced)}
    rule = GenerationConfig(
        num_beams=1, do_sample=False, max_new_tokens=s["greedy"], no_repeat_ngram_size=3, forced_bos_token_id=BOS,
        forced_eos_token_id=EOS, decoder_start_token_id=EOS, bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS,
    )  # fmt: skip
    model.generation_config = rule
    for n, prompt in enumerate(asks):
        image = features[n : n + 1]
        alone = model.get_image_features(pixels[n : n + 1]).pooler_output
        torch.testing.assert_close(alone, image, rtol=1e-4, atol=1e-5)
        inputs = torch.cat([alone, embed(torch.tensor([prompt]))], 1)
        hidden = model.model.language_model.encoder(inputs_embeds=inputs).last_hidden_state
        logits = decode(model, hidden, None, [forced])
        given = dict(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            attention_mask=torch.ones(hidden.shape[:2]).long(),
        )
        search = model.generate(**given, output_scores=True, return_dict_in_generate=True)
        tokens = search.sequences[0, 1:]
        scores = torch.stack([score[0] for score in search.scores]).float()
        # A search's scores are those after the rules; of greedy searches they are logits, not log-probabilities.
        plain = decode(model, hidden, None, [[EOS, *tokens[:-1].tolist()]])[0].log_softmax(-1)
        log_probs = plain.gather(1, tokens[:, None])[:, 0]
        best = scores.topk(2).values
        margins = best[:, 0] - best[:, 1]
        log_probs[margins.isinf()] = 0.0
        out |= {
            f"prompt.{n}": torch.tensor(prompt),
            f"image_features.{n}": alone[0],
            f"encoder.{n}": hidden[0],
            f"logits.{n}": logits[0],
            f"greedy.{n}.tokens": tokens,
            f"greedy.{n}.log_probs": log_probs,
            f"greedy.{n}.margins": margins,
        }
    # The same as one batch.
    longest = max(map(len, asks))
    ids = torch.tensor([ask + [PAD] * (longest - len(ask)) for ask in asks])
    mask = torch.cat([torch.ones(features.shape[:2]).long(), (ids != PAD).long()], 1)
    hidden = model.model.language_model.encoder(
        inputs_embeds=torch.cat([features, embed(ids)], 1), attention_mask=mask
    ).last_hidden_state
    logits = decode(model, hidden, mask, [forced] * len(asks))
    for n in range(len(asks)):
        torch.testing.assert_close(hidden[n, mask[n] == 1], out[f"encoder.{n}"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(logits[n], out[f"logits.{n}"], rtol=1e-3, atol=1e-3)
    return {name: tensor.contiguous() for name, tensor in out.items()}


def decode(model, hidden, mask, ids):
    return model.lm_head(
        model.model.language_model.decoder(
            input_ids=torch.tensor(ids), encoder_hidden_states=hidden, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
    )


def microsoft_name(name):
    """Of a tensor's name in the transformers layout."""
    for pattern, replacement in RENAMES:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    raise ValueError(f"no rule for {name}")


def microsoft_state(state, bias):
    out = {"language_model.final_logits_bias": bias}
    for name, tensor in state.items():
        renamed = microsoft_name(name)
        out[renamed] = tensor.T.contiguous() if renamed == "image_projection" else tensor
    return out


def microsoft_config(config, dtype):
    """The keys and the order of the published `config.json`."""
    text, vision = config.text_config, config.vision_config
    same = [
        "vocab_size", "activation_dropout", "activation_function", "attention_dropout", "bos_token_id", "classifier_dropout",
        "d_model", "decoder_attention_heads", "decoder_ffn_dim", "decoder_layerdrop", "decoder_layers",
        "decoder_start_token_id", "dropout", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layerdrop",
        "encoder_layers", "eos_token_id", "init_std", "is_encoder_decoder", "max_position_embeddings", "pad_token_id",
        "scale_embedding",
    ]  # fmt: skip
    return {
        "architectures": ["Florence2ForConditionalGeneration"],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "ignore_index": -100,
        "model_type": "florence2",
        "pad_token_id": PAD,
        "projection_dim": vision.projection_dim,
        "text_config": {key: getattr(text, key) for key in same}
        | {
            "add_bias_logits": False,
            "add_final_layer_norm": False,
            "early_stopping": True,
            "forced_bos_token_id": BOS,
            "forced_eos_token_id": EOS,
            "no_repeat_ngram_size": 3,
            "normalize_before": False,
            "num_beams": 3,
            "num_hidden_layers": text.encoder_layers,
        },
        "vision_config": {
            "model_type": "davit",
            "drop_path_rate": vision.drop_path_rate,
            **PATCHES,
            "enable_checkpoint": False,
            "dim_embed": vision.embed_dim,
            "num_heads": vision.num_heads,
            "num_groups": vision.num_groups,
            "depths": vision.depths,
            "window_size": vision.window_size,
            "projection_dim": vision.projection_dim,
            "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": vision.max_temporal_embeddings},
            "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": vision.max_position_embeddings},
            "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
        },
        "vocab_size": text.vocab_size,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "is_encoder_decoder": True,
    }


def preprocessor_config(width, height, tokens, layout):
    size = {"height": height, "width": width}
    out = {
        "do_convert_rgb": None, "do_normalize": True, "do_rescale": True, "do_resize": True, "do_center_crop": False,
        "image_processor_type": "CLIPImageProcessor", "image_seq_length": tokens, "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225], "processor_class": "Florence2Processor", "resample": 3, "size": size,
        "crop_size": size,
    }  # fmt: skip
    # Microsoft's file leaves it to the library.
    return out if layout == "microsoft" else out | {"rescale_factor": 1 / 255}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_weights(out, state, sharded):
    if not sharded:
        save_file(state, out / "model.safetensors", metadata={"format": "pt"})
        return
    # Four shards of about the same size, cut in the order of the names as the hub's are.
    total = sum(tensor.nbytes for tensor in state.values())
    shards, filled = [{}], 0
    for name in sorted(state):
        if filled >= total * len(shards) / 4:
            shards.append({})
        shards[-1][name] = state[name]
        filled += state[name].nbytes
    names = [f"model-{n + 1:05}-of-{len(shards):05}.safetensors" for n in range(len(shards))]
    for name, shard in zip(names, shards):
        save_file(shard, out / name, metadata={"format": "pt"})
    places = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
    write_json(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layout", choices=["transformers", "microsoft"], default="transformers")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="of the weights; they are computed with in f32")
    parser.add_argument("--sharded", action="store_true", help="four shards and an index")
    parser.add_argument(
        "--bin", action="store_true", help="pytorch_model.bin, with each tied tensor under all of its names"
    )
    parser.add_argument("--tokenizer", type=Path, help="a folder whose files are copied too")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dtype = DTYPES[args.dtype]
    args.out.mkdir(parents=True, exist_ok=True)

    with torch.device("meta"):
        model = Florence2ForConditionalGeneration(config(args.size, args.layout))
    model = model.to_empty(device="cpu").eval()
    fill(model, args.seed)
    temporal = model.model.multi_modal_projector.visual_temporal_embed
    sine, cosine = temporal.get_sinusoid_embeddings(temporal.max_seq_len, temporal.embed_dim)
    temporal.pos_idx_to_embed[:, 0::2], temporal.pos_idx_to_embed[:, 1::2] = sine, cosine
    model.to(dtype)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if not args.bin:
        state = {name: tensor for name, tensor in state.items() if name not in TIED}
    bias = torch.zeros(1, model.config.text_config.vocab_size)
    if args.size == "tiny":
        bias = torch.randn(bias.shape, generator=torch.Generator().manual_seed(args.seed + 3))
    bias = bias.to(dtype)
    if args.layout == "microsoft":
        state = microsoft_state(state, bias)
        write_json(args.out / "config.json", microsoft_config(model.config, dtype))
    else:
        model.config.architectures = ["Florence2ForConditionalGeneration"]
        model.config.dtype = dtype
        model.config.save_pretrained(args.out)
    if args.bin:
        torch.save(state, args.out / "pytorch_model.bin")
    else:
        write_weights(args.out, state, args.sharded)
    del state

    model.float()
    if args.layout == "microsoft":
        model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits + bias.float())
    results = expected(model, args.size, args.layout)
    # One entry: the file would not be the same each time with more.
    made_by = f"transformers {transformers.__version__}, torch {torch.__version__}, seed {args.seed}"
    save_file(results, args.out / "expected.safetensors", metadata={"made_by": made_by})
    width, height = SIZES[args.size]["sides"][args.layout]
    tokens = results["image_features.0"].shape[0]
    write_json(args.out / "preprocessor_config.json", preprocessor_config(width, height, tokens, args.layout))
    if args.tokenizer:
        for file in args.tokenizer.iterdir():
            shutil.copyfile(file, args.out / file.name)
    for n in (0, 1):
        for name in ("image_features", "encoder", "logits"):
            value = results[f"{name}.{n}"]
            print(f"{name}.{n}", list(value.shape), f"deviation {value.std():.3f}")
        tokens, margins = results[f"greedy.{n}.tokens"], results[f"greedy.{n}.margins"]
        print(f"greedy.{n}: {len(tokens)} tokens, {len(set(tokens.tolist()))} of them different;", end=" ")
        print(f"{(margins < 0.1).sum()} margins under 0.1, the smallest {margins.min():.4f}")
        print("  ", tokens.tolist())


if __name__ == "__main__":
    main()
