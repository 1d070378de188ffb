"""Scenes for the demo checkpoint: drawn at random, with the true answer to each of the fifteen tasks.

A scene is a light canvas of any size with one to three coloured shapes and, mostly, a sign with a word or a code, each in
its own cell of a 3 x 3 grid. Answers are written as Florence-2 writes them.

A location is a bin, floor(1000 * coordinate / side), and stands for the coordinate (bin + 0.5) * side / 1000. Shapes are
drawn on the centres of bins, so that the picture and the answer agree by construction.

No answer repeats three tokens, because Florence-2 generates with no_repeat_ngram_size = 3. The sentences are worded for
it, and `sample` drops the few scenes that do.
"""

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (215, 35, 40),
    "green": (40, 160, 65),
    "blue": (45, 80, 215),
    "yellow": (240, 205, 25),
    "purple": (140, 55, 180),
    "orange": (245, 130, 25),
}
SHAPES = ("circle", "square", "triangle", "star")
BACKGROUNDS = {"white": (250, 250, 250), "gray": (212, 214, 216), "pink": (252, 222, 230)}
WORDS = ("OPEN", "EXIT", "STOP", "SALE", "CAFE", "TAXI", "ZOO", "KEY")
CODE_LETTERS = "ABFKRX"
CODE_DIGITS = "24579"
POSITIONS = (
    "top left",
    "top center",
    "top right",
    "middle left",
    "center",
    "middle right",
    "bottom left",
    "bottom center",
    "bottom right",
)
NUMBERS = {1: "one", 2: "two", 3: "three"}
CELL_CENTRES = (166, 500, 833)
# Half sides, in bins of the shorter side of the picture; on the longer one it is 3/4 of that. Width and height differ a
# little, so that the same bin does not stand for both and no three locations are repeated.
HALF = {"large": (136, 132), "small": (76, 72)}
SIGN_HALF = (150, 74)
ASPECTS = ((1, 1), (4, 3), (3, 4))

PROMPTS = {
    "<OCR>": "What is the text in the image?",
    "<OCR_WITH_REGION>": "What is the text in the image, with regions?",
    "<CAPTION>": "What does the image describe?",
    "<DETAILED_CAPTION>": "Describe in detail what is shown in the image.",
    "<MORE_DETAILED_CAPTION>": "Describe with a paragraph what is shown in the image.",
    "<OD>": "Locate the objects with category name in the image.",
    "<DENSE_REGION_CAPTION>": "Locate the objects in the image, with their descriptions.",
    "<REGION_PROPOSAL>": "Locate the region proposals in the image.",
    "<CAPTION_TO_PHRASE_GROUNDING>": "Locate the phrases in the caption: {input}",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "Locate {input} in the image with mask",
    "<REGION_TO_SEGMENTATION>": "What is the polygon mask of region {input}",
    "<OPEN_VOCABULARY_DETECTION>": "Locate {input} in the image.",
    "<REGION_TO_CATEGORY>": "What is the region {input}?",
    "<REGION_TO_DESCRIPTION>": "What does the region {input} describe?",
    "<REGION_TO_OCR>": "What text is in the region {input}?",
}
TASKS = tuple(PROMPTS)


@dataclass
class Item:
    cell: int  # 0..8, in reading order
    kind: str  # a shape, or "sign"
    colour: str = ""
    size: str = ""
    text: str = ""
    half: tuple = (0, 0)  # half the width and height, in bins

    @property
    def box(self):
        cx, cy = CELL_CENTRES[self.cell % 3], CELL_CENTRES[self.cell // 3]
        hx, hy = self.half
        return (cx - hx, cy - hy, cx + hx, cy + hy)

    @property
    def polygon(self):
        """Corners in bins, clockwise from the top left, or the top."""
        x1, y1, x2, y2 = self.box
        cx, cy = (x1 + x2) // 2, (y1 + y2) // 2
        hx, hy = self.half
        if self.kind in ("square", "sign"):
            return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
        if self.kind == "triangle":
            return [(cx, y1), (x2, y2), (x1, y2)]
        if self.kind == "circle":
            dx, dy = round(hx * math.sqrt(0.5)), round(hy * math.sqrt(0.5))
            return [
                (cx, y1),
                (cx + dx, cy - dy),
                (x2, cy),
                (cx + dx, cy + dy),
                (cx, y2),
                (cx - dx, cy + dy),
                (x1, cy),
                (cx - dx, cy - dy),
            ]
        points = []  # of a star, stretched to its box
        for k in range(10):
            r = 1.0 if k % 2 == 0 else 0.45
            a = math.pi * k / 5
            px, py = r * math.sin(a), r * math.cos(a)
            px /= math.sin(2 * math.pi / 5)
            low = math.cos(4 * math.pi / 5)
            py = 2 * (py - low) / (1 - low) - 1
            points.append((round(cx + hx * px), round(cy - hy * py)))
        return points

    @property
    def name(self):
        return "sign" if self.kind == "sign" else f"{self.colour} {self.kind}"

    @property
    def description(self):
        return f"sign reading {self.text}" if self.kind == "sign" else f"{self.size} {self.name}"

    @property
    def position(self):
        return POSITIONS[self.cell]


@dataclass
class Scene:
    width: int
    height: int
    background: str
    items: list  # in reading order
    seed: int = 0  # of the small changes of colours and of the text's size

    @property
    def shapes(self):
        return [i for i in self.items if i.kind != "sign"]

    @property
    def signs(self):
        return [i for i in self.items if i.kind == "sign"]


def random_scene(rng):
    ax, ay = rng.choice(ASPECTS)
    unit = rng.uniform(240, 480) / min(ax, ay)
    width, height = round(unit * ax), round(unit * ay)
    width, height = min(width, 640), min(height, 640)
    short = min(ax, ay)
    cells = rng.sample(range(9), 4)
    count = rng.choices((1, 2, 3), (0.22, 0.40, 0.38))[0]
    names = rng.sample([(c, s) for c in COLOURS for s in SHAPES], count)
    items = []
    for (colour, shape), cell in zip(names, cells):
        size = rng.choice(("large", "small"))
        hx, hy = HALF[size]
        half = (round(hx * short / ax), round(hy * short / ay))
        items.append(Item(cell, shape, colour, size, half=half))
    if rng.random() < 0.8:
        text = rng.choice(WORDS) if rng.random() < 0.55 else rng.choice(CODE_LETTERS) + rng.choice(CODE_DIGITS)
        items.append(Item(cells[3], "sign", text=text, half=SIGN_HALF))
    items.sort(key=lambda i: i.cell)
    return Scene(width, height, rng.choice(list(BACKGROUNDS)), items, rng.randrange(1 << 30))


_FONTS = {}


def _font(size):
    """Pillow's own, so that no file is needed."""
    if size not in _FONTS:
        _FONTS[size] = ImageFont.load_default(size)
    return _FONTS[size]


def draw(scene):
    rng = random.Random(scene.seed)

    def jitter(rgb, by):
        return tuple(max(0, min(255, c + rng.randint(-by, by))) for c in rgb)

    def px(point):
        return ((point[0] + 0.5) * scene.width / 1000, (point[1] + 0.5) * scene.height / 1000)

    image = Image.new("RGB", (scene.width, scene.height), jitter(BACKGROUNDS[scene.background], 4))
    pen = ImageDraw.Draw(image)
    for item in scene.items:
        x1, y1, x2, y2 = item.box
        box = [px((x1, y1)), px((x2, y2))]
        if item.kind == "sign":
            line = max(2, round(min(scene.width, scene.height) / 90))
            pen.rectangle(box, fill=(255, 255, 255), outline=(30, 30, 30), width=line)
            w, h = box[1][0] - box[0][0], box[1][1] - box[0][1]
            # Nearly as large as the sign allows.
            probe = pen.textbbox((0, 0), item.text, font=_font(64))
            scale = min((w - 4 * line) * 0.92 / (probe[2] - probe[0]), (h - 2 * line) * 0.70 / (probe[3] - probe[1]))
            size = max(8, int(64 * scale * rng.uniform(0.94, 1.0)))
            left, top, right, bottom = pen.textbbox((0, 0), item.text, font=_font(size))
            cx, cy = (box[0][0] + box[1][0]) / 2, (box[0][1] + box[1][1]) / 2
            pen.text((cx - (left + right) / 2, cy - (top + bottom) / 2), item.text, font=_font(size), fill=(20, 20, 20))
            continue
        fill = jitter(COLOURS[item.colour], 10)
        if item.kind == "circle":
            pen.ellipse(box, fill=fill)
        else:
            pen.polygon([px(p) for p in item.polygon], fill=fill)
    return image


def locs(values):
    return "".join(f"<loc_{v}>" for v in values)


def box_locs(item):
    return locs(item.box)


def polygon_locs(item):
    return locs([v for p in item.polygon for v in p])


def quad_locs(item):
    x1, y1, x2, y2 = item.box
    return locs((x1, y1, x2, y1, x2, y2, x1, y2))


def join(parts):
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def upper_first(text):
    return text[0].upper() + text[1:]


def article(name):
    return ("an " if name[0] == "o" else "a ") + name


def caption_phrases(scene, task):
    """A caption, and the phrases in it that can be located with their items."""
    shapes, signs = scene.shapes, scene.signs
    n = len(shapes)
    if task == "<CAPTION>":
        phrases = [article(s.name) for s in shapes]
        phrases[0] = upper_first(phrases[0])
        text = join(phrases)
        out = list(zip(phrases, shapes))
        if signs:
            text += f" with a sign reading {signs[0].text}"
            out.append(("a sign", signs[0]))
        return text + ".", out
    if task == "<DETAILED_CAPTION>":
        phrases = [article(s.name) for s in shapes]
        count = f"{NUMBERS[n]} shape{'s' if n > 1 else ''}"
        text = f"The image shows {count} on a {scene.background} background: {join(phrases)}."
        out = list(zip(phrases, shapes))
        if signs:
            text += f" The sign in the {signs[0].position} reads {signs[0].text}."
            out.append(("The sign", signs[0]))
        return text, out
    there = "There is one shape" if n == 1 else f"There are {NUMBERS[n]} shapes"
    # Other words for each shape: no three are repeated.
    forms = [("A", "is at"), ("the", "sits in"), ("one", "lies toward")]
    phrases = [f"{d} {s.description}" for (d, _), s in zip(forms, shapes)]
    clauses = [f"{p} {v} the {s.position}" for (_, v), p, s in zip(forms, phrases, shapes)]
    text = f"{there} on a {scene.background} background. {join(clauses)}."
    out = list(zip(phrases, shapes))
    if signs:
        text += f" A sign near the {signs[0].position} reads {signs[0].text}."
        out.append(("A sign", signs[0]))
    return text, out


def grounding_pair(scene, level):
    text, phrases = caption_phrases(scene, level)
    return text, "".join(p + box_locs(i) for p, i in phrases)


def answer(scene, task, rng):
    """The input, or None, and the answer of a task; None where the scene has no case of it."""
    items, signs = scene.items, scene.signs
    if task in ("<CAPTION>", "<DETAILED_CAPTION>", "<MORE_DETAILED_CAPTION>"):
        return None, caption_phrases(scene, task)[0]
    if task == "<OCR>":
        return None, "".join(s.text for s in signs)
    if task == "<OCR_WITH_REGION>":
        return None, "".join(s.text + quad_locs(s) for s in signs)
    if task == "<OD>":
        return None, "".join(i.name + box_locs(i) for i in items)
    if task == "<DENSE_REGION_CAPTION>":
        return None, "".join(i.description + box_locs(i) for i in items)
    if task == "<REGION_PROPOSAL>":
        return None, "".join(box_locs(i) for i in items)
    if task == "<CAPTION_TO_PHRASE_GROUNDING>":
        r = rng.random()
        if r < 0.35:
            return grounding_pair(scene, "<CAPTION>")
        if r < 0.45:
            return grounding_pair(scene, "<DETAILED_CAPTION>")
        if r < 0.55:
            return grounding_pair(scene, "<MORE_DETAILED_CAPTION>")
        some = rng.sample(items, rng.randint(1, min(2, len(items))))
        phrases = [article(i.name) for i in some]
        phrases[0] = upper_first(phrases[0])
        return join(phrases) + ".", "".join(p + box_locs(i) for p, i in zip(phrases, some))
    if task == "<OPEN_VOCABULARY_DETECTION>":
        if rng.random() < 0.3:  # a bare category: one label, then the box of each
            kind = rng.choice(items).kind
            return kind, kind + "".join(box_locs(i) for i in items if i.kind == kind)
        item = rng.choice(items)
        return article(item.name), article(item.name) + box_locs(item)
    if task == "<REFERRING_EXPRESSION_SEGMENTATION>":
        item = rng.choice(items)
        return article(item.name), polygon_locs(item)
    if task == "<REGION_TO_OCR>":
        return (box_locs(signs[0]), signs[0].text) if signs else None
    item = rng.choice(items)
    region = box_locs(item)
    if task == "<REGION_TO_SEGMENTATION>":
        return region, polygon_locs(item)
    if task == "<REGION_TO_CATEGORY>":
        return region, item.kind + region
    if task == "<REGION_TO_DESCRIPTION>":
        return region, item.description + region
    raise ValueError(task)


def prompt(task, value=None):
    return PROMPTS[task] if value is None else PROMPTS[task].format(input=value)


def repeats_trigram(ids):
    seen = set()
    for i in range(len(ids) - 2):
        t = tuple(ids[i : i + 3])
        if t in seen:
            return True
        seen.add(t)
    return False


# The tasks whose answers have several phrases: only these can repeat three tokens.
LONG = (
    "<CAPTION>",
    "<DETAILED_CAPTION>",
    "<MORE_DETAILED_CAPTION>",
    "<OD>",
    "<DENSE_REGION_CAPTION>",
    "<REGION_PROPOSAL>",
)


def sample(rng, encode):
    """A random scene of which no answer repeats three tokens. `encode` makes ids of a text."""
    while True:
        scene = random_scene(rng)
        if not any(repeats_trigram(encode(answer(scene, t, rng)[1])) for t in LONG):
            return scene


def question(scene, task, rng, encode):
    """Like `answer`, drawn again until the answer repeats no three tokens."""
    pair = answer(scene, task, rng)
    while pair is not None and repeats_trigram(encode(pair[1])):
        pair = answer(scene, task, rng)
    return pair
