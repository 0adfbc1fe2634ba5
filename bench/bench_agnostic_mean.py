"""AgnosticMean of all classes against the direct recursion, class by class; two threads, pairs in one run."""

import statistics
import time

import torch
from torch import Tensor

from unflip.stats.agnostic_mean import class_agnostic_means

CASES = ((10, 4_500, 512, 1.5), (100, 450, 512, 2.0), (10, 4_500, 256, None), (100, 450, 256, None))
PAIRS = 7


def direct(x: Tensor) -> Tensor:
    """Algorithm 1 as one would write it down; torch.median takes the lower of two middle values."""
    median = x.median(dim=0).values
    n, d = x.shape
    if d == 1:
        return median
    trace = (x - x.mean(0)).square().sum() / n
    weights = torch.exp(-(x - median).square().sum(1) / trace)
    weights = weights / weights.sum()
    mean = weights @ x
    centred = x - mean
    covariance = (centred * weights[:, None]).T @ centred
    _, vectors = torch.linalg.eigh(covariance)
    rest, leading = vectors.split([d - d // 2, d // 2], dim=1)
    return leading @ direct(x @ leading) + rest @ (rest.T @ mean)


def main() -> None:
    torch.set_num_threads(2)
    for classes, members, d, target in CASES:
        draws = torch.Generator().manual_seed(0)
        features = torch.randn(classes * members, d, generator=draws)
        labels = torch.randperm(len(features), generator=draws) % classes
        pairs = []
        for _ in range(PAIRS + 1):
            start = time.perf_counter()
            expected = torch.stack([direct(features[labels == c]) for c in range(classes)])
            middle = time.perf_counter()
            found = class_agnostic_means(features, labels, classes)
            pairs.append((middle - start, time.perf_counter() - middle))
        apart = float((found - expected).norm(dim=1).mean()) / (d / members) ** 0.5
        theirs, ours = (min(column) for column in zip(*pairs[1:], strict=True))
        middling = statistics.median(a / b for a, b in pairs[1:])
        verdict = "" if target is None else f"  (target {target}: {'ok' if theirs / ours >= target else 'TOO SLOW'})"
        print(
            f"{classes:3} x {members:5,} x {d}: direct {theirs:.3f} s, ours {ours:.3f} s, "
            f"{theirs / ours:.2f} times as fast at best, {middling:.2f} in the middle of {PAIRS} pairs; "
            f"apart by {apart:.2f} standard errors{verdict}"
        )


if __name__ == "__main__":
    main()
