"""Compared: how alike the two examples of each pair are, by what came: pictures, texts, or rows of numbers."""

import re
from collections.abc import Iterator, Sequence
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.decoding import cut_images, make_pool, open_images, sizes_of
from unflip.data.files import ImageFiles, ResizeCrop
from unflip.data.images import are_small
from unflip.issues.image_similarity import SIDE, similar_images
from unflip.progress import Track

# From which likeness on two pictures, texts or rows are nearly the same; docs/audit.md says how they were chosen.
LEAST_IMAGE, LEAST_TEXT, LEAST_ROW = 0.96, 0.9, 0.99
_PAIRS = 4096  # whose pictures are in memory at once: at most 100 MB
_BETWEEN = re.compile(
    r"(?:[\s!\"&-*,./:;?@\[-`{-~\u00a1\u00ab\u00b7\u00bb\u00bf\u2010-\u205e\u3001-\u303f]|-(?!\d)|(?<=\w)-)+"
)
_NO_SIGNS = re.compile(r"[^\d#$%<=>+-]+")


def compare_images(images: "Pictures", pairs: Array, track: Track) -> Array:
    """Return how well the pictures of pairs (p, 2) fit on each other (p,); see :func:`similar_images`."""

    def scores() -> Iterator[float]:
        for start in range(0, len(pairs), _PAIRS):
            rows, places = np.unique(pairs[start : start + _PAIRS], return_inverse=True)
            pixels = images.squares(rows)
            first, second = torch.from_numpy(places.reshape(-1, 2)).T
            for some in torch.arange(len(first)).split(256):
                yield from similar_images(pixels[first[some]], pixels[second[some]], small=images.small).tolist()

    return np.fromiter(track(scores(), "comparing pictures", len(pairs)), np.float64, len(pairs))


class Pictures:
    """The pictures of all parts of a data set, one part after the other."""

    def __init__(self, parts: Sequence[Array | ImageFiles]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, self._parts)])
        self.small = are_small(parts[0])

    def squares(self, rows: Array) -> Tensor:
        """Return pictures as bytes (m, 3, 64, 64), whatever their shape."""
        found = torch.empty(len(rows), 3, SIDE, SIDE, dtype=torch.uint8)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for part in np.unique(which):
            here = np.flatnonzero(which == part)
            found[torch.from_numpy(here)] = _squares(self._parts[part], rows[here] - self._starts[part])
        return found


def _squares(images: Array | ImageFiles, rows: Array) -> Tensor:
    if isinstance(images, ImageFiles):
        with make_pool(None) as pool:
            opened, numbers = open_images(images, rows.tolist(), pool), rows.tolist()
            sizes = sizes_of(opened)
            boxes = torch.cat([torch.zeros_like(sizes), sizes]).T
            return cut_images(images, numbers, opened, boxes, ResizeCrop(SIDE, SIDE), pool)
    pixels = torch.from_numpy(images[rows]).float()
    pixels = F.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    return pixels.round().clamp(0, 255).byte().expand(-1, 3, -1, -1)


def plain_text(text: str) -> str:
    """Return a text without case, punctuation and spaces, which people type differently; signs that count stay.

    >>> plain_text("Where's  my CARD?") == plain_text("wheres my card")
    True
    >>> plain_text("C# at -5 %")
    'c#at-5%'
    """
    plain = normalize("NFKC", text).casefold()
    return _BETWEEN.sub("", plain) or plain.strip()


def compare_texts(texts: Array, pairs: Array) -> Array:
    """Return how alike :func:`plain_text`s (n,) of pairs (p, 2) are (p,): 1 - edits / length of the longer.

    Edits are letters put in, left out, replaced or swapped with the next (optimal string alignment; Damerau 1964,
    Levenshtein 1966). Texts with other digits or signs, such as sums of money, are not alike: 0. Nor are, without
    a look at their letters, texts one of which has less than nine tenths of the other's length.
    """
    from rapidfuzz.distance import OSA
    from rapidfuzz.process import cpdist

    lengths = np.array([len(text) for text in texts], np.int64)[pairs]
    signs = np.unique([_NO_SIGNS.sub("", text) for text in texts], return_inverse=True)[1][pairs]
    close = lengths.min(1) >= LEAST_TEXT * lengths.max(1)
    asked = np.flatnonzero(close & (signs[:, 0] == signs[:, 1]))
    scores = np.zeros(len(pairs), np.float32)
    first, second = (texts[pairs[asked, side]] for side in (0, 1))
    scores[asked] = cpdist(first, second, scorer=OSA.normalized_similarity, dtype=np.float32)
    return scores


def compare_rows(first: Array, second: Array) -> Array:
    """Return how alike rows (p, d) in units of their columns' spread are (p,): 1 - the largest difference."""
    scores: Array = 1 - np.abs(first - second).max(1, initial=0)
    return scores
