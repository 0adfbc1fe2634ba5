"""Cross-fitted ensemble: 5,000 x 256 features within 3 s of one core, 1,000,000 x 512 in at most 2.5 GB.

The large data is made up: half-precision features of 100 classes on disk, three epochs, in a process of its own whose
peak of resident memory is taken (VmHWM: ru_maxrss would begin with the peak of the process that started it). It counts
pages of the mapped file, too: 0.95 GB of them.
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
import json, re, sys, time
from pathlib import Path
import unflip, unflip.engine.run
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**20
started, imported = time.process_time(), peak()
data, out, method = sys.argv[1:]
unflip.train(data, out, method=method, epochs=3, device="cpu", threads=1, settings={"data.mmap_threshold_mb": 0})
print(json.dumps({"seconds": time.process_time() - started, "gb": peak(), "imported": imported}))
"""


def make(
    count: int, width: int, classes: int, std: float = 4.0, noise_rate: float = 0.2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features of Gaussian classes, their labels with uniform noise, and the true ones.

    Centers have the standard deviation 1 in each feature, examples ``std`` about their center.
    """
    random = np.random.default_rng(0)
    labels = random.integers(classes, size=count)
    centers = random.standard_normal((classes, width)).astype(np.float16)
    features = np.empty((count, width), np.float16)
    for start in range(0, count, 50_000):
        some = labels[start : start + 50_000]
        features[start : start + len(some)] = centers[some] + std * random.standard_normal((len(some), width))
    wrong = random.random(count) < noise_rate
    return features, np.where(wrong, random.integers(classes, size=count), labels), labels


def write(folder: Path, count: int, width: int, classes: int, std: float = 4.0, noise_rate: float = 0.2) -> Path:
    """Write such data to a folder that :func:`measure` takes, and return it; true labels go beside it."""
    folder.mkdir()
    features, labels, clean = make(count, width, classes, std, noise_rate)
    np.save(folder / "train.npy", features)
    np.save(folder / "train_labels.npy", labels)
    np.save(folder.with_name("clean.npy"), clean)
    return folder


def measure(data: Path, out: Path, method: str) -> dict[str, float]:
    """Train in a process of its own; return its processor ``seconds``, its peak ``gb`` and that when ``imported``."""
    command = [sys.executable, "-c", SCRIPT, str(data), str(out), method]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    import torch

    from unflip import UnflipClassifier

    torch.set_num_threads(1)
    limits = Limits()
    features, labels, _ = make(*SMALL)
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        UnflipClassifier(random_state=0).fit(features.astype(np.float32), labels)
        seconds.append(time.process_time() - start)
    limits.at_most("seconds for 5,000 x 256", min(seconds), 3.0, "{:.2f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write(folder / "data", *LARGE)
        found = {method: measure(data, folder / method, method) for method in ("plc", "unflip")}
    for method, figures in found.items():
        print(f"1,000,000 x 512, {method}: {figures['seconds']:.0f} s of one core")
        limits.at_most(f"GB of {method} for 1,000,000 x 512", figures["gb"], 2.5, "{:.2f}")
    limits.at_most("its time by plc", found["unflip"]["seconds"] / found["plc"]["seconds"], 2.0, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
