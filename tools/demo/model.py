"""The demo's network, and what training and evaluation share."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BartConfig, Florence2Config, Florence2ForConditionalGeneration, GenerationConfig
from transformers.models.florence2.configuration_florence2 import Florence2VisionConfig

BOS, PAD, EOS = 0, 1, 2
SIDE = 192
IMAGE_TOKENS = (SIDE // 32) ** 2 + 1
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
GENERATION = {
    "bos_token_id": BOS, "decoder_start_token_id": EOS, "early_stopping": True, "eos_token_id": EOS,
    "forced_bos_token_id": BOS, "forced_eos_token_id": EOS, "no_repeat_ngram_size": 3, "num_beams": 3, "pad_token_id": PAD,
}  # fmt: skip
PREPROCESSOR = {
    "crop_size": {"height": SIDE, "width": SIDE}, "do_center_crop": False, "do_convert_rgb": None, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": MEAN, "image_processor_type": "CLIPImageProcessor",
    "image_seq_length": IMAGE_TOKENS, "image_std": STD, "processor_class": "Florence2Processor", "resample": 3,
    "rescale_factor": 1 / 255, "size": {"height": SIDE, "width": SIDE},
}  # fmt: skip
KINDS = [
    "bboxes", "description_with_bboxes", "description_with_bboxes_or_polygons", "description_with_polygons", "polygons",
    "pure_text",
]  # fmt: skip
PROCESSOR = {
    "num_additional_image_tokens": 0,
    "post_processor_config": {kind: {} for kind in KINDS}
    | {
        "ocr": {"PATTERN": "(.+?)" + r"<loc_(\d+)>" * 8, "AREA_THRESHOLD": 0.0},
        "phrase_grounding": {"banned_grounding_tokens": []},
    },
    "processor_class": "Florence2Processor",
}


def load_tokenizer(checkpoint):
    """The tokenizer, and a function from a text to its ids without <s> and </s>."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    known = {}

    def encode(text):
        if text not in known:
            if len(known) > 400_000:
                known.clear()
            known[text] = tokenizer.encode(text, add_special_tokens=False).ids
        return known[text]

    return tokenizer, encode


def build(vocabulary, image_token):
    width = 128
    vision = Florence2VisionConfig(
        embed_dim=[32, 64, 96, 128], num_heads=[2, 4, 6, 8], num_groups=[2, 4, 6, 8], depths=[1, 1, 2, 1], window_size=6,
        mlp_ratio=2.0, drop_path_rate=0.0, projection_dim=width, max_temporal_embeddings=100, max_position_embeddings=50,
        initializer_range=0.05,
    )  # fmt: skip
    ids = dict(bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=EOS)
    text = BartConfig(
        vocab_size=vocabulary, d_model=width, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=2 * width, decoder_ffn_dim=2 * width, max_position_embeddings=512,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, scale_embedding=False, init_std=0.05,
        activation_function="gelu", is_encoder_decoder=True, tie_word_embeddings=True, **ids,
    )  # fmt: skip
    config = Florence2Config(vision_config=vision, text_config=text, image_token_id=image_token, **ids)
    model = Florence2ForConditionalGeneration(config)
    with torch.no_grad():
        # Positions must show beside the features from the first step on.
        projector, language = model.model.multi_modal_projector, model.model.language_model
        projector.image_position_embed.row_embeddings.weight.normal_(0, 0.5)
        projector.image_position_embed.column_embeddings.weight.normal_(0, 0.5)
        projector.image_proj_norm.weight.fill_(0.4)
        language.encoder.embed_positions.weight.normal_(0, 0.1)
        language.decoder.embed_positions.weight.normal_(0, 0.05)
    return model


def save(model, checkpoint):
    """Everything but the tokenizer, in f16."""
    model.save_pretrained(checkpoint)
    weights = checkpoint / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "float16"
    files = {
        "config": config,
        "generation_config": GENERATION,
        "preprocessor_config": PREPROCESSOR,
        "processor_config": PROCESSOR,
    }
    for name, value in files.items():
        (checkpoint / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")


def load(checkpoint):
    """The stored weights, to be computed with in f32."""
    model = Florence2ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(**GENERATION)
    return model


def pixels(image):
    """Pixel values [3, SIDE, SIDE], as the image processor has them."""
    values = np.asarray(image.resize((SIDE, SIDE), Image.BICUBIC), np.float32) / 255
    values = (values - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return torch.from_numpy(values.transpose(2, 0, 1).copy())


def padded(sequences, value):
    longest = max(map(len, sequences))
    return torch.tensor([sequence + [value] * (longest - len(sequence)) for sequence in sequences])


def checkpoint_of(parser):
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=2)
