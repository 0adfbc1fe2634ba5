"""Runs of cddc and mddc against a run of plc: at most 1.5 and 2.2 times its `seconds`."""

import statistics
import tempfile
from pathlib import Path

import frozen
import unflip

ROUNDS = 3
LIMITS = {"cddc": 1.5, "mddc": 2.2}


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path, labels = frozen.features(into=Path(temporary))
        seconds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):  # in turns, so that all see the same machine
            for method in ("plc", *LIMITS):
                run = unflip.train(
                    path, Path(temporary) / method, labels=labels, take=frozen.NUM_EXAMPLES, method=method,
                    preset="features", select="last", force=True, device="cpu",
                )  # fmt: skip
                seconds.setdefault(method, []).append(run.result["seconds"])
    for method, limit in LIMITS.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[method], seconds["plc"], strict=True))
        print(
            f"{method} {min(seconds[method]):.1f} s, plc {min(seconds['plc']):.1f} s, ratio {ratio:.2f} (limit {limit})"
        )


if __name__ == "__main__":
    main()
