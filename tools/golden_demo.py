"""Writes demo/golden.jsonl: what transformers makes of the demo's pictures, from pixels to parsed answers.

    python tools/golden_demo.py [--demo DIR]

The weights are those of DIR/checkpoint, computed with in f32; pictures go through Pillow. Lines, by their first key:

    made_by     versions of what wrote the file
    pixels      a picture: its size, checksums of the resized bytes (red, green, blue, pixel after pixel; a checksum is
                the sum of value * (2 * position + 1), modulo 2**64) as Pillow has them and with the horizontal pass first,
                and some pixel values, [plane, row, column, value]
    ask         a question (`picture task`): prompt ids; `greedy` and `beams` (three): the new tokens, the log-probability of
                each after the rules, their score; `margin`, the smallest gap of the best two scores of a greedy step that
                no rule decides; the text, the parsed answer in both dialects, and whether it is the true one
    search      a question under other rules: what is not the default of the product is in `rules`, by the names of
                transformers; `sequences` are the best of the beams. `raw` is the prompt where no task made it
    batch       questions that were asked together, with padding: each answer must be that of the question alone
    numbers     of one question: image features, encoder output (mean, deviation, some values as [row, column, value]),
                and the ten greatest logits of the first steps
"""

import argparse
import json
from pathlib import Path

import numpy as np
import PIL
import reference
import torch
import transformers
from PIL import Image
from transformers import AutoTokenizer, Florence2ForConditionalGeneration, Florence2Processor, GenerationConfig
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

ROOT = Path(__file__).resolve().parent.parent
RULES = dict(
    max_new_tokens=128, no_repeat_ngram_size=3, forced_bos_token_id=0, forced_eos_token_id=2, bos_token_id=0,
    pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, early_stopping=True, length_penalty=1.0, num_beams=3,
)  # fmt: skip
PAD = 1
# (picture, task or raw prompt, input, rules). The raw prompts are of no task, so that the network is in doubt.
SEARCHES = [
    ("scene_2.png", "<CAPTION>", None, dict(num_beams=5, num_return_sequences=3)),
    ("scene_2.png", "<OD>", None, dict(num_beams=5, num_return_sequences=5)),
    ("scene_1.png", "<DETAILED_CAPTION>", None, dict(max_new_tokens=5)),
    ("scene_1.png", "<DETAILED_CAPTION>", None, dict(max_new_tokens=5, num_beams=1)),
    ("scene_1.png", "<DETAILED_CAPTION>", None, dict(max_new_tokens=5, forced_eos_token_id=None)),
    ("scene_1.png", "<OCR>", None, dict(max_new_tokens=1, num_beams=1)),
    ("scene_1.png", "<OCR>", None, dict(max_new_tokens=1)),
    ("scene_3.png", "<OCR>", None, dict(min_new_tokens=9, num_beams=1)),
    ("scene_3.png", "<OCR>", None, dict(min_new_tokens=9)),
    ("scene_4.png", "<OD>", None, dict(no_repeat_ngram_size=0)),
    ("scene_4.png", "<OD>", None, dict(no_repeat_ngram_size=0, num_beams=1)),
    ("scene_4.png", "<OD>", None, dict(no_repeat_ngram_size=1, num_beams=1)),
    ("scene_4.png", "<OD>", None, dict(no_repeat_ngram_size=2)),
    ("scene_6.png", "<CAPTION>", None, dict(forced_bos_token_id=None, forced_eos_token_id=None)),
    ("scene_6.png", "<MORE_DETAILED_CAPTION>", None, dict(early_stopping=False)),
    ("scene_6.png", "<MORE_DETAILED_CAPTION>", None, dict(early_stopping="never", num_return_sequences=3)),
    ("scene_2.png", "What is the red shape near the text?", None, dict(num_return_sequences=3)),
    ("scene_2.png", "What is the red shape near the text?", None, dict(early_stopping=False, num_return_sequences=3)),
    ("scene_2.png", "What is the red shape near the text?", None, dict(early_stopping="never", num_return_sequences=3)),
    ("scene_2.png", "What is the red shape near the text?", None, dict(length_penalty=0.0, early_stopping=False)),
    ("scene_2.png", "What is the red shape near the text?", None, dict(length_penalty=2.0, early_stopping="never")),
    ("scene_2.png", "What is the red shape near the text?", None, dict(length_penalty=-1.0, early_stopping="never")),
    ("scene_5.png", "Locate the sign and describe it.", None, dict(num_beams=4, num_return_sequences=4)),
    ("scene_5.png", "Locate the sign and describe it.", None, dict(num_beams=4, early_stopping=False)),
    ("scene_5.png", "Locate the sign and describe it.", None, dict(num_beams=4, length_penalty=0.5)),
    ("scene_5.png", "<REGION_TO_OCR>", "<loc_10><loc_20><loc_500><loc_600>", dict(num_beams=2, num_return_sequences=2)),
    ("scene_5.png", "<OPEN_VOCABULARY_DETECTION>", "a purple dragon", dict(num_beams=3, early_stopping="never")),
]  # fmt: skip
BATCHES = [
    [
        ("scene_1.png", "<CAPTION>"), ("scene_2.png", "<OD>"), ("scene_3.png", "<CAPTION_TO_PHRASE_GROUNDING>"),
        ("scene_5.png", "<OCR>"),
    ],
    [("scene_4.png", "<MORE_DETAILED_CAPTION>"), ("scene_4.png", "<REGION_TO_CATEGORY>")],
]  # fmt: skip
NUMBERS = ("scene_2.png", "<CAPTION_TO_PHRASE_GROUNDING>")


def rounded(values, digits=5):
    return [round(float(value), digits) for value in values]


class Demo:
    def __init__(self, folder):
        self.images = folder / "images"
        checkpoint = folder / "checkpoint"
        settings = json.loads((checkpoint / "preprocessor_config.json").read_text())
        self.side = (settings["size"]["width"], settings["size"]["height"])
        self.pixels = CLIPImageProcessorPil(
            **{key: value for key, value in settings.items() if key not in ("image_processor_type", "processor_class")}
        )
        post = json.loads((checkpoint / "processor_config.json").read_text())["post_processor_config"]
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.processor = Florence2Processor(self.pixels, tokenizer, post_processor_config=post)
        self.model = Florence2ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.microsoft = reference.microsoft_like()

    def image(self, name):
        return Image.open(self.images / name).convert("RGB")

    def inputs(self, asks):
        """Of (picture, task or raw prompt, input)."""
        texts = [task + (value or "") for _, task, value in asks]
        images = [[self.image(picture)] for picture, _, _ in asks]
        return self.processor(text=texts, images=images, padding=True, return_tensors="pt")

    def prompt_ids(self, inputs, row=0):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row] == 1].tolist()
        return [token for token in ids if token != self.processor.image_token_id]

    @torch.no_grad()
    def generate(self, inputs, **changes):
        """For each sequence its tokens, log-probabilities and score; and, of a greedy search, each row's margins."""
        rules = RULES | changes
        if rules["num_beams"] == 1:
            del rules["early_stopping"], rules["length_penalty"]
        self.model.generation_config = GenerationConfig(**rules)
        out = self.model.generate(**inputs, output_scores=True, output_logits=True, return_dict_in_generate=True)
        sequences, margins = [], []
        if rules["num_beams"] == 1:
            # Here the scores are logits, after the rules. A log-probability is taken before them, but for a forced token.
            processed = torch.stack(out.scores, 1)
            forced = processed.isfinite().sum(-1) == 1
            tokens = out.sequences[:, 1:]
            log_probs = torch.stack(out.logits, 1).log_softmax(-1).gather(2, tokens[..., None])[..., 0]
            log_probs = log_probs.masked_fill(forced, 0.0)
            best = processed.topk(2).values
            gaps = (best[..., 0] - best[..., 1]).masked_fill(forced, float("inf"))
        else:
            tokens = out.sequences[:, 1:]
            log_probs = self.model.compute_transition_scores(
                out.sequences, out.scores, out.beam_indices, normalize_logits=False
            )
        for row in range(len(tokens)):
            ids = tokens[row].tolist()
            while ids[-1] == PAD:
                ids.pop()
            own = log_probs[row, : len(ids)]
            score = own.sum().item() / len(ids) ** rules.get("length_penalty", 1.0)
            if rules["num_beams"] > 1:
                assert abs(score - out.sequences_scores[row].item()) < 1e-4 * max(1, abs(score)), (
                    score,
                    out.sequences_scores,
                )
                score = out.sequences_scores[row].item()
            else:
                margins.append(gaps[row, : len(ids)])
            sequences.append({"tokens": ids, "log_probs": rounded(own), "score": round(score, 5)})
        return sequences, margins

    def text(self, sequence):
        # As `batch_decode(generated_ids, skip_special_tokens=False)` has it: the start token is in it.
        return self.processor.batch_decode(
            [[RULES["decoder_start_token_id"], *sequence["tokens"]]], skip_special_tokens=False
        )[0]


def checksum(pixels):
    values = np.asarray(pixels).ravel().astype(np.uint64)
    with np.errstate(over="ignore"):
        return (
            f"{int((values * (2 * np.arange(len(values), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64)):#018x}"
        )


def pixel_line(demo, name):
    image = demo.image(name)
    width, height = demo.side
    whole = image.resize((width, height), Image.BICUBIC)
    horizontal = image.resize((width, image.height), Image.BICUBIC).resize((width, height), Image.BICUBIC)
    values = demo.pixels(image, return_tensors="pt")["pixel_values"][0]
    steps = [2 * k + 1 for k in range(8)]
    places = [
        (plane, height * steps[k] // 16, width * steps[(3 * k + plane) % 8] // 16)
        for plane in range(3)
        for k in range(8)
    ]
    return {
        "pixels": name,
        "size": list(image.size),
        "resized": checksum(whole),
        "horizontal_first": checksum(horizontal),
        "values": [[*place, round(float(values[place]), 6)] for place in places],
    }


def ask_line(demo, question):
    picture, task, value = question["picture"], question["task"], question["input"]
    inputs = demo.inputs([(picture, task, value)])
    greedy, margins = demo.generate(inputs, num_beams=1)
    beams, _ = demo.generate(inputs)
    text = demo.text(beams[0])
    size = demo.image(picture).size
    free = margins[0][margins[0].isfinite()]
    true_text = f"</s><s>{question['truth']}</s>"
    return {
        "ask": f"{picture} {task}",
        "picture": picture,
        "size": list(size),
        "task": task,
        "input": value,
        "prompt_ids": demo.prompt_ids(inputs),
        "greedy": greedy[0],
        "margin": round(float(free.min()), 4),
        "beams": beams[0],
        "text": text,
        "microsoft": demo.microsoft(task, text, size),
        "transformers": demo.processor.post_process_generation(text=text, task=task, image_size=size),
        "true": text == true_text,
    }


def search_line(demo, picture, task, value, rules):
    inputs = demo.inputs([(picture, task, value)])
    sequences, margins = demo.generate(inputs, **rules)
    line = {"search": f"{picture} {task}", "picture": picture}
    line |= {"task": task, "input": value} if task.startswith("<") else {"raw": task}
    line |= {
        "prompt_ids": demo.prompt_ids(inputs),
        "rules": rules,
        "sequences": sequences,
        "texts": [demo.text(s) for s in sequences],
    }
    if margins:
        free = margins[0][margins[0].isfinite()]
        line["margin"] = round(float(free.min()), 4) if len(free) else None
    return line


def batch_line(demo, asks, lines):
    alone = [
        next(line for line in lines if (line.get("picture"), line.get("task")) == ask and "ask" in line) for ask in asks
    ]
    inputs = demo.inputs([(line["picture"], line["task"], line["input"]) for line in alone])
    for name, beams in (("greedy", 1), ("beams", 3)):
        together, _ = demo.generate(inputs, num_beams=beams)
        for line, sequence in zip(alone, together):
            assert line[name]["tokens"] == sequence["tokens"], (name, line["ask"])
            np.testing.assert_allclose(line[name]["log_probs"], sequence["log_probs"], atol=2e-4)
    return {"batch": [line["ask"] for line in alone]}


@torch.no_grad()
def numbers_line(demo, ask, lines):
    line = next(line for line in lines if (line.get("picture"), line.get("task")) == ask and "ask" in line)
    inputs = demo.inputs([(line["picture"], line["task"], line["input"])])
    features = demo.model.get_image_features(inputs["pixel_values"]).pooler_output[0]
    tokens = line["greedy"]["tokens"]
    fed = [RULES["decoder_start_token_id"], *tokens[:7]]
    out = demo.model(**inputs, decoder_input_ids=torch.tensor([fed]))
    encoded = out.encoder_last_hidden_state[0]

    def described(tensor):
        rows, columns = tensor.shape
        places = [(row * (rows - 1) // 5, column * (columns - 1) // 3) for row in range(6) for column in range(4)]
        return {
            "shape": [rows, columns],
            "mean": round(float(tensor.mean()), 6),
            "deviation": round(float(tensor.std(correction=0)), 6),
            "values": [[*place, round(float(tensor[place]), 6)] for place in places],
        }

    logits = []
    for step in out.logits[0]:
        best = step.topk(10)
        logits.append([[token, round(value, 5)] for token, value in zip(best.indices.tolist(), best.values.tolist())])
    return {
        "numbers": line["ask"],
        "image_features": described(features),
        "encoder": described(encoded),
        "fed": fed,
        "logits": logits,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=ROOT / "demo")
    args = parser.parse_args()
    torch.set_num_threads(1)
    demo = Demo(args.demo)
    questions = [json.loads(line) for line in (args.demo / "questions.jsonl").read_text().splitlines()]
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "pillow": PIL.__version__}
    lines = [{"made_by": versions, "rules": RULES}]
    lines += [pixel_line(demo, name) for name in sorted({question["picture"] for question in questions})]
    lines += [ask_line(demo, question) for question in questions]
    asked = [line for line in lines if "ask" in line]
    lines += [search_line(demo, *search) for search in SEARCHES]
    lines += [batch_line(demo, batch, asked) for batch in BATCHES]
    lines.append(numbers_line(demo, NUMBERS, asked))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (args.demo / "golden.jsonl").write_text(text)
    print(f"{len(asked)} answers, {sum(line['true'] for line in asked)} of them true,", end=" ")
    print(
        f"{sum(line['greedy']['tokens'] == line['beams']['tokens'] for line in asked)} the same greedy and with beams"
    )
    print("smallest margin:", *min((line["margin"], line["ask"]) for line in asked))
    for line in lines:
        if "search" in line:
            print(line["search"], line["rules"], line.get("margin"))
            for sequence, answer in zip(line["sequences"], line["texts"]):
                print("   ", sequence["score"], answer)


if __name__ == "__main__":
    main()
