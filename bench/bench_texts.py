"""WordLlama's texts per second, against the bare loop: tokenize all texts, take the mean of each one's vectors.

Both in one run, in processor time, the best of some rounds. BANKING77 where UNFLIP_DATA has it, else made-up texts.
"""

import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from limits import Limits
from unflip.encoders.text import WordLlama

LIMIT = 1.2  # times the bare loop's processor time: at most
TEXTS, ROUNDS = 13_000, 5


def texts() -> list[str]:
    folder = Path(os.environ.get("UNFLIP_DATA", ".")) / "text" / "banking77"
    if (folder / "train.csv").is_file():
        found = []
        for name in ("train.csv", "test.csv"):
            with (folder / name).open(encoding="utf-8", newline="") as file:
                found += [row["text"] for row in csv.DictReader(file)]
        return found
    print("no text/banking77 in UNFLIP_DATA: made-up texts")
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    words = ["".join(rng.choice(letters, length)) for length in rng.integers(2, 9, 5000)]
    often = 1 / np.arange(1, len(words) + 1)
    return [" ".join(rng.choice(words, rng.integers(4, 20), p=often / often.sum())) for _ in range(TEXTS)]


def unwrap(texts: list[str], tokenizer: Any, vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    tokens = tokenizer.encode_batch(texts, add_special_tokens=False)
    return np.stack([vectors[one.ids].mean(0) for one in tokens])


def seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        used = time.process_time()
        work()
        best = min(best, time.process_time() - used)
    return best


def main() -> None:
    data = texts()
    encoder = WordLlama.fit(data)
    tokenizer, vectors = encoder._tokenizer, encoder._vectors.astype(np.float32)
    ours = seconds(lambda: encoder.encode(data))
    theirs = seconds(lambda: unwrap(data, tokenizer, vectors))
    print(f"{len(data):,} texts: {len(data) / ours:,.0f} texts/s, bare loop {len(data) / theirs:,.0f} texts/s")
    limits = Limits()
    limits.at_most("processor time, times the bare loop's", ours / theirs, LIMIT)
    limits.finish()


if __name__ == "__main__":
    main()
