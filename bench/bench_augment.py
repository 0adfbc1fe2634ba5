"""Flip, padded crop and normalization of 32x32 images: images per second in batches of 128, against one at a time.

Processor time is what the work needs; the clock also shows who else is on the machine.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from limits import Limits
from unflip.data.images import ImageSource, byte_normalization

LIMIT = 60_000  # images per second by the clock, with two threads on two cores: at least
BATCH, BATCHES, ROUNDS = 128, 10, 60
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def one_at_a_time(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What a data set with a transform for each image does."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    done = []
    for image in images:
        top, left, flip = (int(torch.randint(0, most, (1,), generator=generator)) for most in (9, 9, 2))
        cut = F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        done.append(((cut.flip(2) if flip else cut) / 255 - mean) / std)
    return torch.stack(done)


def speed(make: Callable[[torch.Tensor], torch.Tensor], indices: torch.Tensor, rounds: int) -> tuple[float, float]:
    """Images per second of processor time, and by the clock in the best round: the one that was left alone."""
    clock = processor = float("inf")
    for _ in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        for batch in indices.split(BATCH):
            make(batch)
        clock = min(clock, time.perf_counter() - started)
        processor = min(processor, time.process_time() - used)
    return len(indices) / processor, len(indices) / clock


def main() -> None:
    images = np.random.default_rng(0).integers(0, 256, (10_000, 3, 32, 32), dtype=np.uint8)
    source, generator = ImageSource(images, byte_normalization(MEAN, STD)), torch.Generator()
    indices = torch.randint(0, len(images), (BATCH * BATCHES,))
    tensor = torch.from_numpy(images)
    limits = Limits()
    for threads in (2, 1):
        torch.set_num_threads(threads)
        ours, by_clock = speed(lambda batch: source.view(batch, generator), indices, ROUNDS)
        print(f"threads {threads}: {by_clock:,.0f} images/s by the clock")
        if threads == 2:
            limits.at_least("images/s by the clock, two threads", by_clock, LIMIT, "{:,.0f}")
    naive, _ = speed(lambda batch: one_at_a_time(tensor[batch], generator), indices[:BATCH], ROUNDS // 4)
    print(f"one core's time: {ours:,.0f} images/s; one image at a time {naive:,.0f}, ratio {ours / naive:.0f}")
    limits.finish()


if __name__ == "__main__":
    main()
