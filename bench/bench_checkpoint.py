"""Checkpoints as a share of a run's time, on frozen features and on small images with preact_resnet8; under 3 %."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frozen
from unflip import train
from unflip.training.checkpoint import Checkpoints

LIMIT = 0.03
IMAGES = 2000


class Timed:
    """Adds up what saving takes, everything in it."""

    def __init__(self) -> None:
        self.seconds, self.count, self.bytes = 0.0, 0, 0
        save = Checkpoints.save

        def timed(checkpoints: Checkpoints, *args: Any) -> None:
            started = time.perf_counter()
            save(checkpoints, *args)
            self.seconds += time.perf_counter() - started
            self.count += 1
            self.bytes = max(path.stat().st_size for path in checkpoints.folder.iterdir())

        Checkpoints.save = timed  # type: ignore[method-assign]
        self._save = save

    def stop(self) -> None:
        Checkpoints.save = self._save  # type: ignore[method-assign]


def measure(name: str, data: Path, out: Path, **options: Any) -> None:
    timed = Timed()
    started = time.perf_counter()
    run = train(data, out, device="cpu", threads=1, **options)
    seconds = time.perf_counter() - started
    timed.stop()
    share = timed.seconds / seconds
    verdict = "ok" if share < LIMIT else "TOO MUCH"
    print(
        f"{name}: {timed.count} checkpoints of up to {timed.bytes / 1e6:.1f} MB in {len(run.metrics)} epochs, "
        f"{timed.seconds:.2f} of {seconds:.1f} s, {share:.2%} (limit {LIMIT:.0%}) {verdict}"
    )


def write_images(path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = np.arange(IMAGES) % 10
    images = random.integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    np.savez(path, train=images.astype(np.float16) / 255, train_labels=labels)
    return path


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path, labels = frozen.features(into=folder)
        for method in ("standard", "unflip"):
            measure(f"frozen features, {method}", path, folder / method, labels=labels, method=method, epochs=15,
                    take=frozen.NUM_EXAMPLES)  # fmt: skip
        images = write_images(folder / "images.npz")
        measure("images, preact_resnet8, unflip", images, folder / "images", method="unflip", network="preact_resnet8",
                epochs=3)  # fmt: skip


if __name__ == "__main__":
    main()
