"""Similarity of pairs of examples: pictures, texts, or rows of numbers.

Pictures are compared by their pixels: whole, mirrored, and one as a part of the other.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.files import ImageFiles, ResizeCrop, cut_images, make_pool, open_images, sizes_of
from unflip.data.images import are_small
from unflip.progress import Track

MIN_IMAGE, MIN_TEXT, MIN_ROW = 0.96, 0.9, 0.99
"""Similarity from which two examples are near-duplicates; docs/results/duplicates.md has how they were chosen."""
SIDE = 64  # pixels of the squares as which pictures are compared
_COARSE = 16  # side at which a part is searched for
_PARTS = (15, 14, 13, 12, 11, 10)  # sides of parts, of 16: down to 40 % of the area
_PROMISING = 0.6  # correlation at the coarse side from which on a place is refined
_POINTS, _FEW_POINTS = 48, 24  # along a side in the final comparison; fewer for small pictures
_STEPS = (1 / 24, 1 / 48, 1 / 96, 1 / 192, 1 / 384)  # of a side, by which the edges of a part are moved
_ROUNDS = 2
_FINE, _SMOOTH = 3, 9  # sides of the two blurs whose difference is detail
_LOADED, _PAIRS = 4096, 256  # pairs in memory (at most 100 MB), and compared at once
_BETWEEN = re.compile(
    r"(?:[\s!\"&-*,./:;?@\[-`{-~\u00a1\u00ab\u00b7\u00bb\u00bf\u2010-\u205e\u3001-\u303f]|-(?!\d)|(?<=\w)-)+"
)
_NO_SIGNS = re.compile(r"[^\d#$%<=>+-]+")


def picture_similarity(parts: Sequence[Array | ImageFiles], track: Track) -> Callable[[Array], Array]:
    """Return a function from pairs (p, 2) of pictures, counted over all splits, to their similarity (p,).

    See :func:`image_similarity`.
    """
    starts, small = np.cumsum([0, *map(len, parts)]), are_small(parts[0])

    def scores(pairs: Array) -> Iterator[float]:
        for begin in range(0, len(pairs), _LOADED):
            rows, places = np.unique(pairs[begin : begin + _LOADED], return_inverse=True)
            cuts = np.searchsorted(rows, starts)
            spans = zip(parts, starts, cuts[:-1], cuts[1:], strict=False)  # `starts` has one more
            pixels = torch.cat([_squares(part, rows[a:b] - start) for part, start, a, b in spans if b > a])
            first, second = torch.from_numpy(places.reshape(-1, 2)).T
            for a, b in zip(first.split(_PAIRS), second.split(_PAIRS), strict=True):
                yield from image_similarity(pixels[a], pixels[b], small=small).tolist()

    return lambda pairs: np.fromiter(track(scores(pairs), "comparing pictures", len(pairs)), np.float64, len(pairs))


def _squares(images: Array | ImageFiles, rows: Array) -> Tensor:
    """Return pictures as bytes (m, 3, 64, 64), whatever their shape."""
    if isinstance(images, ImageFiles):
        with make_pool(None) as pool:
            opened, numbers = open_images(images, rows.tolist(), pool), rows.tolist()
            sizes = sizes_of(opened)
            boxes = torch.cat([torch.zeros_like(sizes), sizes]).T
            return cut_images(images, numbers, opened, boxes, ResizeCrop(SIDE, SIDE), pool)
    pixels = torch.from_numpy(images[rows]).float()
    pixels = F.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    return pixels.round().clamp(0, 255).byte().expand(-1, 3, -1, -1)


@torch.no_grad()
def image_similarity(first: Tensor, second: Tensor, *, small: bool = False) -> Tensor:
    """Return the similarity of pairs of pictures (p,), from 0 to 1 for equal ones.

    It is the normalized cross-correlation ``Σ (x - x̄) (y - ȳ) / sqrt(Σ (x - x̄)² Σ (y - ȳ)²)`` of their pixels, which is
    invariant to brightness and contrast, at its maximum over mirroring and over each picture being a part of the other,
    with at least 40 % of its area (template matching; Lewis 1995, Fast normalized cross-correlation). The result is the
    smaller of the correlation of the pixels and that of their detail, a difference of two blurs: photos of one object
    from two sides agree only in the former.

    Args:
        first: bytes (p, 3, 64, 64).
        second: bytes (p, 3, 64, 64).
        small: whether the originals were no larger than that, so that copies may have lost all fine detail.
    """
    first, second, points = first.float(), second.float(), _FEW_POINTS if small else _POINTS
    roles = [pair for other in (second, second.flip(3)) for pair in ((first, other), (other, first))]  # (whole, part)
    scores, boxes = zip(*(_place(_gray(whole), _gray(part)) for whole, part in roles), strict=True)
    best, chosen = torch.stack(scores).max(0)
    result = first.new_zeros(len(first))
    for role, (whole, part) in enumerate(roles):
        some = ((chosen == role) & (best > _PROMISING)).nonzero()[:, 0]
        if len(some):
            result[some] = _refine(whole[some], part[some], boxes[role][some], points)
    return result


def _gray(pixels: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(pixels.mean(1, keepdim=True), _COARSE)


def _place(whole: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    """Return where ``part`` fits best into ``whole``, both (p, 1, 16, 16): correlations (p,) and boxes (p, 4).

    A box is left, top, width and height, as fractions of the side.
    """
    best = _correlation(whole.flatten(1), part.flatten(1))
    boxes = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(len(whole), 1)
    for side in _PARTS:
        patches = F.unfold(whole, side)  # (p, side², places)
        template = F.interpolate(part, (side, side), mode="bilinear", antialias=True).flatten(1)
        score, where = _correlation(patches.mT, template[:, None]).max(1)
        across = _COARSE - side + 1
        size = torch.full_like(score, side)
        found = torch.stack([where % across, where.div(across, rounding_mode="floor"), size, size], 1) / _COARSE
        better = score > best
        best, boxes = torch.where(better, score, best), torch.where(better[:, None], found, boxes)
    return best, boxes


def _refine(whole: Tensor, part: Tensor, boxes: Tensor, points: int) -> Tensor:
    """Move the edges of boxes (p, 4) until the parts fit best; return the final correlation (p,)."""
    target = F.interpolate(part, (points, points), mode="bilinear", antialias=True)
    gray = target.mean(1).flatten(1)
    moves = torch.cat([torch.zeros(1, 4), torch.eye(4), -torch.eye(4)])
    moves[:, :2] -= moves[:, 2:] / 2  # a box grows on both sides
    gray_whole = whole.mean(1, keepdim=True)
    for step in _STEPS:
        for _ in range(_ROUNDS):
            tried = boxes[:, None] + step * moves  # (p, 9, 4)
            cut = torch.stack([_cut(gray_whole, tried[:, i], points)[:, 0] for i in range(len(moves))], 1)
            chosen = _correlation(cut.flatten(2), gray[:, None]).argmax(1)
            boxes = tried.gather(1, chosen[:, None, None].expand(-1, 1, 4))[:, 0]
    best = _cut(whole, boxes, points)
    of_detail = _correlation(_detail(best).flatten(1), _detail(target).flatten(1))
    return _correlation(best.flatten(1), target.flatten(1)).minimum(of_detail).clamp(min=0)


def _cut(whole: Tensor, boxes: Tensor, points: int) -> Tensor:
    """Resample parts of pictures (p, c, 64, 64) as (p, c, points, points)."""
    left, top, width, height = boxes.T
    zero = torch.zeros_like(left)
    move = torch.stack([width, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1], 1).view(-1, 2, 3)
    grid = F.affine_grid(move, [len(whole), 1, points, points], align_corners=False)
    return F.grid_sample(whole, grid, padding_mode="border", align_corners=False)


def _detail(pixels: Tensor) -> Tensor:
    gray = pixels.mean(1, keepdim=True)
    fine, smooth = (F.avg_pool2d(gray, side, 1, side // 2, count_include_pad=False) for side in (_FINE, _SMOOTH))
    return fine - smooth


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return the correlation along the last axis; 0 where one is constant."""
    first, second = first - first.mean(-1, keepdim=True), second - second.mean(-1, keepdim=True)
    norms = first.square().sum(-1) * second.square().sum(-1)
    return (first * second).sum(-1) / norms.clamp(min=1e-6).sqrt()


def plain_text(text: str) -> str:
    """Return a text without case, punctuation and spaces; meaningful signs stay.

    >>> plain_text("Where's  my CARD?") == plain_text("wheres my card")
    True
    >>> plain_text("C# at -5 %")
    'c#at-5%'
    """
    plain = normalize("NFKC", text).casefold()
    return _BETWEEN.sub("", plain) or plain.strip()


def text_similarity(texts: Array, pairs: Array) -> Array:
    """Return the similarity (p,) of pairs (p, 2) of :func:`plain_text`s (n,): 1 - edits / length of the longer.

    Edits are insertions, deletions, replacements and swaps of adjacent letters (optimal string alignment; Damerau 1964,
    Levenshtein 1966). It is 0 for texts with different digits or signs, such as amounts of money, and for texts whose
    lengths differ by more than a tenth.
    """
    from rapidfuzz.distance import OSA
    from rapidfuzz.process import cpdist

    lengths = np.array([len(text) for text in texts], np.int64)[pairs]
    signs = np.unique([_NO_SIGNS.sub("", text) for text in texts], return_inverse=True)[1][pairs]
    close = lengths.min(1) >= MIN_TEXT * lengths.max(1)
    rows = np.flatnonzero(close & (signs[:, 0] == signs[:, 1]))
    scores = np.zeros(len(pairs), np.float32)
    first, second = (texts[pairs[rows, side]] for side in (0, 1))
    scores[rows] = cpdist(first, second, scorer=OSA.normalized_similarity, dtype=np.float32)
    return scores
