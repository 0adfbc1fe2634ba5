"""Runs of cddc, mddc and unflip against plc, each with the preset `features`: how many times as long they take.

On 10 classes and on 100, since fitting a Gaussian has its price by class: with 100, mddc mostly computes eigenvectors.
Time is that of the processor, on one thread, so that other work on the machine counts little.
"""

import statistics
import tempfile
import time
from pathlib import Path

import frozen
import unflip
from limits import Limits

ROUNDS = 3
METHODS = ("plc", "cddc", "mddc", "unflip")
LIMITS = {
    "cifar10": {"cddc": 1.2, "mddc": 1.5, "unflip": 2.0},
    "cifar100": {"cddc": 1.4, "mddc": 2.2, "unflip": 2.0},
}
"""How many times as long as plc a method may take: at most."""


def main() -> None:
    limits = Limits()
    for name, allowed in LIMITS.items():
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        with tempfile.TemporaryDirectory() as temporary:
            path, labels = frozen.features(name, into=Path(temporary))
            for _ in range(ROUNDS):  # in turns, so that all see the same machine
                for method in METHODS:
                    start = time.process_time()
                    unflip.train(
                        path, Path(temporary) / method, labels=labels, limit=frozen.NUM_EXAMPLES, method=method,
                        preset="features", select="last", force=True, device="cpu",
                        threads=1,
                    )  # fmt: skip
                    seconds[method].append(time.process_time() - start)
        for method, limit in allowed.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[method], seconds["plc"], strict=True))
            print(f"{name}: {method} {min(seconds[method]):.1f} s, plc {min(seconds['plc']):.1f} s")
            limits.at_most(f"{name}, {method} by plc", ratio, limit, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
