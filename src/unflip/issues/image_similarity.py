"""Are two pictures one? Compares them by their pixels: whole, mirrored, and one as a part of the other."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 64  # pixels of the squares as which pictures are compared
_COARSE = 16  # side at which a part is searched for
_PARTS = (15, 14, 13, 12, 11, 10)  # sides of parts, of 16: down to 40 % of the area
_PROMISING = 0.6  # correlation at the coarse side from which on a place is refined
_POINTS, _FEW_POINTS = 48, 24  # along a side, at which pictures are compared in the end; fewer if they are small
_STEPS = (1 / 24, 1 / 48, 1 / 96, 1 / 192, 1 / 384)  # of a side, by which the edges of a part are moved
_ROUNDS = 2
_FINE, _SMOOTH = 3, 9  # sides of the two blurs whose difference is detail
_PAIRS = 256  # compared at once


@torch.no_grad()
def similar_images(first: Tensor, second: Tensor, *, small: bool = False) -> Tensor:
    """Return how well pairs of pictures fit on each other (p,), from 0 to 1 for equal ones.

    It is the normalized cross-correlation ``Σ (x - x̄) (y - ȳ) / sqrt(Σ (x - x̄)² Σ (y - ȳ)²)`` of their pixels, which no
    change of brightness or contrast lowers, where it is highest: over both pictures mirrored or not, and each whole or
    a part of the other of at least 40 % of its area (template matching; Lewis 1995, Fast normalized cross-correlation).
    The smaller counts of that of the pixels and that of their detail, the difference of two blurs: photos of one object
    from two sides agree in the former only.

    Args:
        first: bytes (p, 3, 64, 64).
        second: likewise.
        small: whether they were no larger than that, so that a copy may have lost all fine detail.
    """
    points = _FEW_POINTS if small else _POINTS
    found = [
        _compare(a.float(), b.float(), points) for a, b in zip(first.split(_PAIRS), second.split(_PAIRS), strict=True)
    ]
    return torch.cat(found) if found else torch.empty(0)


def _compare(first: Tensor, second: Tensor, points: int) -> Tensor:
    roles = list(_roles(first, second))
    scores, boxes = zip(*(_place(_gray(whole), _gray(part)) for whole, part in roles), strict=True)
    best, chosen = torch.stack(scores).max(0)
    result = first.new_zeros(len(first))
    for role, (whole, part) in enumerate(roles):
        some = ((chosen == role) & (best > _PROMISING)).nonzero()[:, 0]
        if len(some):
            result[some] = _refine(whole[some], part[some], boxes[role][some], points)
    return result


def _roles(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield which picture is whole and which may be a part of it, mirrored or not."""
    for other in (second, second.flip(3)):
        yield first, other
        yield other, first


def _gray(pixels: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(pixels.mean(1, keepdim=True), _COARSE)


def _place(whole: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    """Return where ``part`` fits best into ``global``, both (p, 1, 16, 16): correlations (p,) and boxes (p, 4).

    A box is left, top, width and height, as shares of the side.
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
    """Move the edges of boxes (p, 4) until the parts fit best; return how well they do (p,)."""
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
    return torch.minimum(
        _correlation(best.flatten(1), target.flatten(1)),
        _correlation(_detail(best).flatten(1), _detail(target).flatten(1)),
    ).clamp(min=0)


def _cut(whole: Tensor, boxes: Tensor, points: int) -> Tensor:
    """Return parts of pictures (p, c, 64, 64) as so many points (p, c, points, points)."""
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
    """Return the correlation along the last axis; 0 where one does not vary."""
    first, second = first - first.mean(-1, keepdim=True), second - second.mean(-1, keepdim=True)
    norms = first.square().sum(-1) * second.square().sum(-1)
    return (first * second).sum(-1) / norms.clamp(min=1e-6).sqrt()
