"""The committee: 5,000 x 256 features within 3 s of one core, 1,000,000 x 512 in at most 2.5 GB.

The large data is made up: half-precision features of 100 classes on disk, three epochs, in a process of its own whose
peak of resident memory is taken. It counts pages of the mapped file, too.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from limits import Limits

ROUNDS = 3
SMALL = 5_000, 256, 10
LARGE = 1_000_000, 512, 100
SCRIPT = """
import json, resource, sys, time
import unflip
started = time.process_time()
unflip.train(sys.argv[1], sys.argv[2], method=sys.argv[3], epochs=3, device="cpu", threads=1)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"seconds": time.process_time() - started, "gb": peak}))
"""


def make(count: int, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features of Gaussian classes, and their labels, of which a fifth is wrong."""
    random = np.random.default_rng(0)
    labels = random.integers(classes, size=count)
    centres = random.standard_normal((classes, width)).astype(np.float16)
    features = np.empty((count, width), np.float16)
    for start in range(0, count, 50_000):
        some = labels[start : start + 50_000]
        features[start : start + len(some)] = centres[some] + 4 * random.standard_normal((len(some), width))
    wrong = random.random(count) < 0.2
    return features, np.where(wrong, random.integers(classes, size=count), labels)


def main() -> None:
    import torch

    from unflip import UnflipClassifier

    torch.set_num_threads(1)
    limits = Limits()
    features, labels = make(*SMALL)
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        UnflipClassifier(random_state=0).fit(features.astype(np.float32), labels)
        seconds.append(time.process_time() - start)
    limits.at_most("seconds for 5,000 x 256", min(seconds), 3.0, "{:.2f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        features, labels = make(*LARGE)
        (folder / "data").mkdir()
        np.save(folder / "data" / "train.npy", features)
        np.save(folder / "data" / "train_labels.npy", labels)
        del features, labels
        found = {}
        for method in ("plc", "unflip"):
            command = [sys.executable, "-c", SCRIPT, str(folder / "data"), str(folder / method), method]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[method] = json.loads(done.stdout)
            print(f"1,000,000 x 512, {method}: {found[method]['seconds']:.0f} s, {found[method]['gb']:.2f} GB")
    limits.at_most("GB for 1,000,000 x 512", found["unflip"]["gb"], 2.5, "{:.2f}")
    limits.at_most("its time by plc", found["unflip"]["seconds"] / found["plc"]["seconds"], 2.0, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
