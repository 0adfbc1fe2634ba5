"""Runs of cddc, mddc and unflip against plc: at most 1.5, 2.2 and 2.0 times its time, each with the preset `features`.

On 10 classes and on 100, since fitting a Gaussian has its price by class. Time is that of the processor, on one thread,
so that other work on the machine counts little.
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
LIMITS = {("cddc", "plc"): 1.5, ("mddc", "plc"): 2.2, ("unflip", "plc"): 2.0}
"""How many times as long as the second the first may take: at most."""


def main() -> None:
    limits = Limits()
    for name in ("cifar10", "cifar100"):
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        with tempfile.TemporaryDirectory() as temporary:
            path, labels = frozen.features(name, into=Path(temporary))
            for _ in range(ROUNDS):  # in turns, so that all see the same machine
                for method in METHODS:
                    start = time.process_time()
                    unflip.train(
                        path, Path(temporary) / method, labels=labels, take=frozen.NUM_EXAMPLES, method=method,
                        preset="features", select="last", force=True, device="cpu",
                        threads=1,
                    )  # fmt: skip
                    seconds[method].append(time.process_time() - start)
        for (method, other), limit in LIMITS.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[method], seconds[other], strict=True))
            print(f"{name}: {method} {min(seconds[method]):.1f} s, {other} {min(seconds[other]):.1f} s")
            limits.at_most(f"{name}, {method} by {other}", ratio, limit, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
