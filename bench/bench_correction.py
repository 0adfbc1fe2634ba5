"""Window mean and correction of 1,000,000 examples and 14 classes; under 0.4 s together."""

import time

import torch

from unflip.labels.correction import CorrectionOptions, Corrector
from unflip.labels.store import LabelStore

COUNT, CLASSES, LIMIT = 1_000_000, 14, 0.4


def main() -> None:
    random = torch.Generator().manual_seed(0)
    for rule in ("ratio", "margin"):
        corrector = Corrector(CorrectionOptions(rule=rule), torch.arange(COUNT))
        for _ in range(5):
            corrector.window.add((3 * torch.randn(COUNT, CLASSES, generator=random)).softmax(1))
        given = torch.randint(CLASSES, (COUNT,), generator=random)
        taken = []
        for epoch in range(1, 4):
            store = LabelStore(given, CLASSES)
            started = time.perf_counter()
            changed = corrector.correct(epoch, store)
            taken.append(time.perf_counter() - started)
        kind = corrector.window.kept[0].dtype
        print(f"{rule}: {min(taken):.3f} s (limit {LIMIT}), {changed} of {COUNT} labels changed, window in {kind}")


if __name__ == "__main__":
    main()
