"""The references' post-processors, as functions from (task, text, image size) to their dictionary."""

import importlib.util
import json
import re
import sys
import types
from pathlib import Path

import torch
from transformers.models.florence2.processing_florence2 import Florence2PostProcessor, Florence2Processor

KINDS = [
    "ocr",
    "phrase_grounding",
    "pure_text",
    "description_with_bboxes",
    "description_with_polygons",
    "polygons",
    "bboxes",
    "description_with_bboxes_or_polygons",
]
TASKS = {
    "<OCR>": "pure_text",
    "<OCR_WITH_REGION>": "ocr",
    "<CAPTION>": "pure_text",
    "<DETAILED_CAPTION>": "pure_text",
    "<MORE_DETAILED_CAPTION>": "pure_text",
    "<OD>": "description_with_bboxes",
    "<DENSE_REGION_CAPTION>": "description_with_bboxes",
    "<CAPTION_TO_PHRASE_GROUNDING>": "phrase_grounding",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "polygons",
    "<REGION_TO_SEGMENTATION>": "polygons",
    "<OPEN_VOCABULARY_DETECTION>": "description_with_bboxes_or_polygons",
    "<REGION_TO_CATEGORY>": "pure_text",
    "<REGION_TO_DESCRIPTION>": "pure_text",
    "<REGION_TO_OCR>": "pure_text",
    "<REGION_PROPOSAL>": "bboxes",
}


def transformers(banned):
    """The transformers library's, without a tokenizer: it is only asked for its special tokens."""
    config = {kind: {} for kind in KINDS}
    config["phrase_grounding"] = {"banned_grounding_tokens": banned}
    tokenizer = types.SimpleNamespace(all_special_tokens=[])
    processor = object.__new__(Florence2Processor)
    processor.tasks_answer_post_processing_type = TASKS
    processor.post_processor = Florence2PostProcessor(config=config, tokenizer=tokenizer)
    return lambda task, text, size: processor.post_process_generation(text=text, task=task, image_size=tuple(size))


def microsoft(path):
    """That of the `processing_florence2.py` which ships with a checkpoint."""
    spec = importlib.util.spec_from_file_location("processing_florence2", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    processor = object.__new__(module.Florence2Processor)
    processor.tasks_answer_post_processing_type = TASKS
    processor.post_processor = module.Florence2PostProcesser(tokenizer=None)
    return lambda task, text, size: processor.post_process_generation(text, task=task, image_size=tuple(size))


def banned():
    """The phrases that grounding passes over, from the core's own table."""
    source = (Path(__file__).parent.parent / "florence2-core/src/banned.rs").read_text()
    return json.loads("[" + source.split("[&str; 72] = [")[1].split("];")[0].rstrip().rstrip(",") + "]")


class _MicrosoftLike(Florence2PostProcessor):
    def dequantize(self, locations, size):
        per_bin = torch.tensor([side / bins for side, bins in zip(size, self.quantize_bins)])
        return (locations + 0.5) * per_bin.repeat(locations.shape[-1] // 2)

    def parse_ocr_from_text_and_spans(self, text, pattern, image_size, area_threshold=0.0):
        out = []
        for label, *bins in re.findall(r"(.+?)" + r"<loc_(\d+)>" * 8, text.replace("<s>", "")):
            quad = self.dequantize(torch.tensor([int(number) for number in bins]).view(4, 2), image_size)
            out.append({"quad_box": quad.flatten().tolist(), "text": label})
        return out


def microsoft_like():
    """The transformers library's, changed in what microsoft's does otherwise to well-formed answers.

    For where no `processing_florence2.py` is at hand. It must return what that file returned for each of the stored real
    answers.
    """
    config = {kind: {} for kind in KINDS}
    config["phrase_grounding"] = {"banned_grounding_tokens": banned()}
    processor = object.__new__(Florence2Processor)
    processor.tasks_answer_post_processing_type = TASKS
    processor.post_processor = _MicrosoftLike(config=config, tokenizer=types.SimpleNamespace(all_special_tokens=[]))

    def post_process(task, text, size):
        if TASKS.get(task, "pure_text") == "pure_text":
            return {task: text.replace("<s>", "").replace("</s>", "")}
        return processor.post_process_generation(text=text, task=task, image_size=tuple(size))

    answers = Path(__file__).parent.parent / "florence2-core/testdata/answers.jsonl"
    for line in map(json.loads, answers.read_text().splitlines()):
        got = post_process(line["task"], line["text"], line["image_size"])
        if got != line["microsoft"]:
            raise AssertionError(f"{line['id']}: microsoft's returned {line['microsoft']}, this {got}")
    return post_process
