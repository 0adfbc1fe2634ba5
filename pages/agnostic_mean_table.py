"""Print the tables of docs/results/robust-mean.md: errors of robust means on contaminated Gaussians.

N(mu, I) with mu = (1, -1, 1, -1, ...), across the direction of the clusters, and n = 4,500; the error is the distance
from mu, averaged over seeds 0, 1, ...
MinCovDet is skipped in 512 dimensions, where one fit takes many minutes, unless --mcd-512 is given.
"""

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a second thread makes MinCovDet slower

import torch
from sklearn.covariance import MinCovDet
from torch import Tensor

from unflip.stats.robust_mean import agnostic_mean

N, FRACTIONS = 4_500, (0.1, 0.2)
SEEDS = {16: 5, 128: 1, 512: 1}  # by dimension; in many dimensions errors hardly differ from seed to seed
KINDS = ("far cluster", "near cluster", "hidden cluster", "heavy tail")


def contaminated(d: int, fraction: float, kind: str, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(N, d, generator=rng)
    wrong = x[: round(fraction * N)]
    if kind == "far cluster":
        wrong += 3
    elif kind == "near cluster":
        wrong += 3 / d**0.5  # 3 away in all, along the diagonal
    elif kind == "hidden cluster":
        wrong += 1 / d**0.5
    elif kind == "heavy tail":
        wrong /= torch.randn(len(wrong), 1, generator=rng).abs()  # Cauchy's, about mu
    return x + center(d)


def center(d: int) -> Tensor:
    return 1 - 2.0 * (torch.arange(d) % 2)


def mcd(x: Tensor) -> Tensor:
    return torch.from_numpy(MinCovDet(random_state=0).fit(x.double().numpy()).location_).float()


def geometric_median(x: Tensor) -> Tensor:
    """The point with the smallest sum of distances, by Weiszfeld's iteration."""
    found = x.quantile(0.5, dim=0)
    for _ in range(100):
        weights = 1 / (x - found).norm(dim=1, keepdim=True).clamp(min=1e-6)
        found = (weights * x).sum(0) / weights.sum()
    return found


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "sample mean": lambda x: x.mean(0),
    "median": lambda x: x.quantile(0.5, dim=0),
    "geometric median": geometric_median,
    "AgnosticMean": agnostic_mean,
    "as printed": lambda x: agnostic_mean(x, normalize="count", complement="plain"),
    "MinCovDet": mcd,
}


def error(estimate: Callable[[Tensor], Tensor], d: int, fraction: float, kind: str, seeds: int) -> float:
    distances = [estimate(contaminated(d, fraction, kind, seed)) - center(d) for seed in range(seeds)]
    return sum(float(distance.norm()) for distance in distances) / seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mcd-512", action="store_true", help="hours")
    all_mcd = parser.parse_args().mcd_512
    names = list(ESTIMATORS)
    print(f"| contamination | d | {' | '.join(names)} |")
    print(f"| --- | ---: |{' ---: |' * len(names)}")
    cases = [("none", 0.0), *((kind, fraction) for kind in KINDS for fraction in FRACTIONS)]
    for kind, fraction in cases:
        for d, seeds in SEEDS.items():
            able = [name for name in names if name != "MinCovDet" or d < 512 or all_mcd]
            cells = {name: error(ESTIMATORS[name], d, fraction, kind, seeds) for name in able}
            best = min(cells.values())
            shown = {name: f"**{cell:.3f}**" if cell == best else f"{cell:.3f}" for name, cell in cells.items()}
            row = " | ".join(shown.get(name, "") for name in names)
            print(f"| {kind}{f' {fraction:.0%}' if fraction else ''} | {d} | {row} |", flush=True)

    print("\n| weights divided by | mean on W | origin at 0 | origin at 10 mu |\n| --- | --- | ---: | ---: |")
    for normalize in ("sum", "count"):
        for complement in ("weighted", "plain"):
            errors = []
            for shift in (0.0, -10 * center(512)):
                x = contaminated(512, 0.1, "far cluster", 0) + shift
                found = agnostic_mean(x, normalize=normalize, complement=complement) - shift
                errors.append(f"{float((found - center(512)).norm()):.3f}")
            print(f"| {normalize} | {complement} | {' | '.join(errors)} |")


if __name__ == "__main__":
    main()
