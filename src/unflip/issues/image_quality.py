"""Image quality: nearly blank, blurry, very dark or bright, tiny, or very long images."""

import numpy as np

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues

_BLANK = 0.02  # standard deviation of the brightness, of 1
_BLURRY, _MIN_SPREAD = 3.5, 0.5  # standard deviations of the log sharpness below the median, and the least of them
_DARK, _BRIGHT = 0.06, 0.95  # mean brightness
_TINY = 16  # pixels of the shorter side
_SMALLER = 8  # times smaller than the median
_SHAPE = 4.0  # aspect ratio, relative to the median


def find_poor_images(audited: AuditInput) -> CheckResult:
    """Flag images whose brightness hardly varies, that are blurry, almost black or white, tiny, or very long.

    Blurry means a sharpness, the variance of the Laplacian relative to that of the brightness, that is 3.5 standard
    deviations below the median, in logarithms; the standard deviation is estimated by the lower decile / 1.282.
    Tiny means a shorter side below 16 pixels or below an eighth of the median, and in any case below half of it. Very
    long means an aspect ratio of more than four times the median. For a value x with lower limit t the score is
    t / (t + x), with an upper limit x / (t + x), so flagged images score above 0.5; an image gets its highest score.
    Statistics are recorded when images are embedded; features without them are skipped.
    """
    parts = [part for part in (audited.data.train, audited.data.val) if part is not None]
    stats = [part.image_stats for part in parts if part.image_stats is not None]
    if len(stats) < len(parts):
        return no_issues()
    brightness, contrast, sharpness, width, height = np.concatenate(stats).astype(float).T
    shorter, shape = np.minimum(width, height), np.maximum(width, height) / np.minimum(width, height).clip(min=1)
    median = float(np.median(shorter))
    tiny = min(max(_TINY, median / _SMALLER), median / 2)  # where all are tiny, none is flagged
    detail = np.log(sharpness.clip(min=1e-12))
    usual, lower = np.quantile(detail, [0.5, 0.1])
    blurry = float(np.exp(-_BLURRY * max((usual - lower) / 1.2816, _MIN_SPREAD)))
    detail = np.where((contrast < _BLANK) | (shorter < tiny), 1, np.exp(detail - usual))
    tests = [
        ("nearly blank: its brightness varies by {:.3f} of 1", contrast, _below(contrast, _BLANK)),
        ("blurry: {:.2%} of the typical fine detail", detail, _below(detail, blurry)),
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
    return limit / (limit + values.clip(min=0))
