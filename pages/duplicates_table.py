"""Are near-duplicates found? Copies are made on purpose, and looked for.

    UNFLIP_DATA=FOLDER python pages/duplicates_table.py docs/results/duplicates.jsonl --page docs/audit.md

FOLDER holds trashnet/ (TrashNet, one folder per class), cifar-10-batches-bin/ and banking77/train.csv. To 2,000 photos of
TrashNet, 5,000 images of CIFAR-10 or all 10,003 questions of BANKING77 come 100 copies of each kind, of examples drawn
at random: pictures saved as JPEG of quality 50, of half the size, mirrored, cropped to 80 % of each side, brighter or
darker by 30 %; texts in other case, without punctuation, with a typo in every 20 letters, with more spaces. CIFAR-10's
copies are scaled back to 32 pixels. Both ways see the same features: `unflip` as `unflip clean` does, and cleanlab's
Datalab with its defaults (`near_duplicate`).

A line of the file is one data set, seed and way: `recall`, by kind the share of the copies found with their original,
`pairs`, pairs found in all, `made`, those of a copy with its original or another copy of that, `others`, all else: data
sets hold duplicates of their own; `exact`, how many of these are equal, `precision`, the share of `made` among pairs
that hold a copy, and `ranking`, the average precision with which examples are ordered by score, those that have a copy
or are one before all others. Runs that are in the file are not run again.
"""

import os
import re
from io import BytesIO
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

SETS = {"trashnet": 2000, "cifar10": 5000, "banking77": None}
WAYS = ("unflip", "datalab")
SEEDS = (0, 1, 2)
COPIES = 100
PICTURE_KINDS = ("JPEG 50", "half size", "mirrored", "cropped", "brightness")
TEXT_KINDS = ("case", "punctuation", "typos", "spaces")


def change_picture(image: Any, kind: str, random: np.random.Generator) -> Any:
    """Return a copy of a picture."""
    from PIL import Image, ImageEnhance, ImageOps

    width, height = image.size
    if kind == "JPEG 50":
        content = BytesIO()
        image.save(content, "JPEG", quality=50)
        return Image.open(BytesIO(content.getvalue())).convert("RGB")
    if kind == "half size":
        return image.resize((width // 2, height // 2), Image.Resampling.BICUBIC)
    if kind == "mirrored":
        return ImageOps.mirror(image)
    if kind == "cropped":
        wide, tall = round(0.8 * width), round(0.8 * height)
        left, top = int(random.integers(width - wide + 1)), int(random.integers(height - tall + 1))
        return image.crop((left, top, left + wide, top + tall))
    return ImageEnhance.Brightness(image).enhance(float(random.choice([0.7, 1.3])))


def change_text(text: str, kind: str, random: np.random.Generator) -> str:
    """Return a copy of a text."""
    if kind == "case":
        return text.upper() if random.random() < 0.5 else text.lower()
    if kind == "punctuation":
        return re.sub(r"[^\w\s]", "", text) + str(random.choice(["", "!", "..."]))
    if kind == "spaces":
        return re.sub(r" ", lambda _: " " * int(random.integers(1, 4)), text) + " "
    letters = list(text)
    for _ in range(max(1, len(letters) // 20)):
        place = int(random.integers(max(1, len(letters) - 1)))
        what = random.integers(3)
        if what == 0:
            letters[place : place + 2] = letters[place : place + 2][::-1]
        elif what == 1:
            del letters[place]
        else:
            letters.insert(place, letters[place])
    return "".join(letters)
