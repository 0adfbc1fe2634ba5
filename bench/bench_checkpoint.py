"""Checkpoints as a share of a run's time, on frozen features and on small images with preact_resnet8; under 3 %."""

import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import frozen
from limits import Limits
from unflip import train
from unflip.engine.checkpoints import Checkpoints

LIMIT = 0.03  # share of a run's time that saving checkpoints takes: at most
IMAGES = 2000


class Timed:
    """Adds up what saving takes, everything in it."""

    def __init__(self) -> None:
        self.seconds, self.count, self.bytes = 0.0, 0, 0

    def watch(self) -> AbstractContextManager[object]:
        """Time every save while the context lasts."""
        save = Checkpoints.save

        def timed(checkpoints: Checkpoints, *args: Any) -> None:
            started = time.perf_counter()
            save(checkpoints, *args)
            self.seconds += time.perf_counter() - started
            self.count += 1
            self.bytes = max(path.stat().st_size for path in checkpoints.folder.iterdir())

        return mock.patch.object(Checkpoints, "save", timed)


def measure(limits: Limits, name: str, data: Path, out: Path, **options: Any) -> None:
    timed = Timed()
    with timed.watch():
        started = time.perf_counter()
        run = train(data, out, device="cpu", threads=1, **options)
        seconds = time.perf_counter() - started
    print(
        f"{name}: {timed.count} checkpoints of up to {timed.bytes / 1e6:.1f} MB in {len(run.metrics)} epochs, "
        f"{timed.seconds:.2f} of {seconds:.1f} s"
    )
    limits.at_most(f"{name}, share of checkpoints", timed.seconds / seconds, LIMIT, "{:.2%}")


def write_images(path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = np.arange(IMAGES) % 10
    images = random.integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    np.savez(path, train=images.astype(np.float16) / 255, train_labels=labels)
    return path


def main() -> None:
    torch.set_num_threads(1)
    limits = Limits()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path, labels = frozen.features(into=folder)
        for method in ("standard", "unflip"):
            measure(limits, f"frozen features, {method}", path, folder / method, labels=labels, method=method,
                    epochs=15, limit=frozen.NUM_EXAMPLES)  # fmt: skip
        images = write_images(folder / "images.npz")
        measure(limits, "images, preact_resnet8, unflip", images, folder / "images", method="unflip",
                network="preact_resnet8", epochs=3)  # fmt: skip
    limits.finish()


if __name__ == "__main__":
    main()
