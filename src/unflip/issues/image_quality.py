"""Image quality: nearly blank, very dark or bright, tiny, or very long images."""

import numpy as np

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues

_BLANK = 0.02  # standard deviation of the brightness, of 1
_DARK, _BRIGHT = 0.06, 0.95  # mean brightness
_TINY = 16  # pixels of the shorter side
_SMALLER = 8  # times smaller than the median
_SHAPE = 4.0  # aspect ratio, relative to the median


def find_poor_images(audited: AuditInput) -> CheckResult:
    """Flag images whose brightness hardly varies, that are almost black or white, tiny, or very long.

    Tiny means a shorter side below 16 pixels or below an eighth of the median, and in any case below half of it. Very
    long means an aspect ratio of more than four times the median. For a value x with lower limit t the score is
    t / (t + x), with an upper limit x / (t + x), so flagged images score above 0.5; an image gets its highest score.
    Statistics are recorded when images are embedded; features without them are skipped.
    """
    parts = [part for part in (audited.data.train, audited.data.val) if part is not None]
    stats = [part.image_stats for part in parts if part.image_stats is not None]
    if len(stats) < len(parts):
        return no_issues()
    brightness, contrast, width, height = np.concatenate(stats).astype(float).T
    shorter, shape = np.minimum(width, height), np.maximum(width, height) / np.minimum(width, height).clip(min=1)
    median = float(np.median(shorter))
    tiny = min(max(_TINY, median / _SMALLER), median / 2)  # where all are tiny, none is flagged
    tests = [
        ("nearly blank: its brightness varies by {:.3f} of 1", contrast, _below(contrast, _BLANK)),
        ("very dark: a mean brightness of {:.2f} of 1", brightness, _below(brightness, _DARK)),
        ("very bright: a mean brightness of {:.2f} of 1", brightness, _below(1 - brightness, 1 - _BRIGHT)),
        ("tiny: its shorter side has {:.0f} pixels", shorter, _below(shorter, tiny)),
        ("odd shape: {:.1f} times as long as wide", shape, 1 - _below(shape, _SHAPE * float(np.median(shape)))),
    ]
    scores = np.stack([score for _, _, score in tests])
    worst, highest = scores.argmax(0), scores.max(0)

    def reason(at: int) -> str:
        text, values, _ = tests[int(worst[at])]
        return text.format(values[at])

    return CheckResult(np.arange(len(highest)), highest, highest > 0.5, reason)


def _below(values: Array, limit: float) -> Array:
    """Return limit / (limit + x) (n,): above one half where x is below the limit."""
    scores: Array = limit / (limit + values.clip(min=0))
    return scores
