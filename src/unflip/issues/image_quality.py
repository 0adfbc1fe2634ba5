"""Odd images: blank, very dark or bright, tiny, or of an odd shape; by what was noted when they were read."""

import numpy as np

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues

_BLANK = 0.02  # standard deviation of the brightness, of 1
_DARK, _BRIGHT = 0.06, 0.95  # mean brightness
_TINY = 16  # pixels of the shorter side
_SMALLER = 8  # times smaller than images usually are
_SHAPE = 4.0  # longer by shorter side, beside what is usual here


def find_image_quality(audited: AuditInput) -> CheckResult:
    """Flag images whose brightness hardly varies, that are almost black or white, tiny, or very long.

    Tiny is a shorter side of fewer than 16 pixels, or of less than an eighth of the median, and in any case less than
    half of it; an odd shape is one that is four times as long as the median image. Of each x that should stay above a
    limit t the score is t / (t + x), of each that should stay below x / (t + x), so that flagged images have more than
    0.5; an image has the highest of its scores. Features that were made without these notes are left
    out: embed the images again.
    """
    sets = [part for part in (audited.data.train, audited.data.val) if part is not None]
    noted = [part.image_stats for part in sets if part.image_stats is not None]
    if len(noted) < len(sets):
        return no_issues()
    brightness, contrast, width, height = np.concatenate(noted).astype(float).T
    shorter, shape = np.minimum(width, height), np.maximum(width, height) / np.minimum(width, height).clip(min=1)
    usual = float(np.median(shorter))
    tiny = min(max(_TINY, usual / _SMALLER), usual / 2)  # where all are tiny, none is odd
    looks = [
        ("nearly blank: its brightness varies by {:.3f} of 1", contrast, _below(contrast, _BLANK)),
        ("very dark: a mean brightness of {:.2f} of 1", brightness, _below(brightness, _DARK)),
        ("very bright: a mean brightness of {:.2f} of 1", brightness, _below(1 - brightness, 1 - _BRIGHT)),
        ("tiny: its shorter side has {:.0f} pixels", shorter, _below(shorter, tiny)),
        ("odd shape: {:.1f} times as long as wide", shape, 1 - _below(shape, _SHAPE * float(np.median(shape)))),
    ]
    scores = np.stack([score for _, _, score in looks])
    worst = scores.argmax(0)

    def reason(at: int) -> str:
        words, values, _ = looks[int(worst[at])]
        return words.format(values[at])

    highest = scores.max(0)
    return CheckResult(np.arange(len(highest)), highest, highest > 0.5, reason)


def _below(values: Array, limit: float) -> Array:
    """Return limit / (limit + x) (n,): above one half where x is below the limit."""
    scores: Array = limit / (limit + values.clip(min=0))
    return scores
