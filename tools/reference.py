"""The references' post-processors, as functions from (task, text, image size) to their dictionary."""

import importlib.util
import sys
import types

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
