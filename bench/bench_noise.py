"""Noise for 1,000,000 examples and 14 classes, given the posteriors, on one core; at most 2 s."""

import time

import torch

from limits import Limits
from unflip.noise.corrupt import corrupt
from unflip.noise.recipe import parse

EXAMPLES, CLASSES = 1_000_000, 14
LIMIT = 2.0  # seconds for each recipe: at most
RECIPES = ("pmd1:0.35", "pmd2:0.7", "pmd3:0.35", "sym:0.3", "pmd1:0.35 + sym:0.3")


def main() -> None:
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    posterior = (8 * torch.randn(EXAMPLES, CLASSES, generator=draws)).softmax(dim=1)
    clean = torch.multinomial(posterior, 1, generator=draws).squeeze(1)
    print(f"{EXAMPLES:,} examples, {CLASSES} classes, one core")
    limits = Limits()
    for recipe in RECIPES:
        start = time.perf_counter()
        noisy = corrupt(parse(recipe), clean, num_classes=CLASSES, seed=0, posterior=posterior)
        seconds = time.perf_counter() - start
        rate = noisy.provenance["noise_rate"]
        print(f"{recipe}: noise rate {rate:.4f}")
        limits.at_most(f"{recipe}, seconds", seconds, LIMIT, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
