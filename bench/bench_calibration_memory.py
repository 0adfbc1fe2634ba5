"""Peak memory of calibrating 1,000,000 x 512 float16 features of 14 classes; at most 2.5 times the features."""

import subprocess
import sys
import time
from pathlib import Path

import torch

from limits import Limits
from unflip.methods.mddc import CovarianceCalibrator, CovarianceOptions, MeanCalibrator, MeanOptions

EXAMPLES, DIM, CLASSES = 1_000_000, 512, 14
LIMIT = 2.5  # peak memory by the size of the features, these included: at most
CALIBRATORS = {"mean": (MeanCalibrator, MeanOptions), "covariance": (CovarianceCalibrator, CovarianceOptions)}


def memory(kind: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def calibrate(name: str) -> None:
    torch.set_num_threads(2)
    draws = torch.Generator().manual_seed(0)
    calibrator, options = CALIBRATORS[name]
    small = torch.randn(200, 8, generator=draws)
    calibrator(options()).fit(small, torch.arange(200) % 2, 2).sample(2, draws)  # load what torch loads at first use
    before = memory("VmRSS")
    features = torch.empty(EXAMPLES, DIM, dtype=torch.float16)
    for part in features.split(10_000):
        part.copy_(torch.randn(part.shape, generator=draws))
    labels = torch.randint(CLASSES, (EXAMPLES,), generator=draws)
    size = features.numel() * features.element_size()
    start = time.perf_counter()
    gaussians = calibrator(options()).fit(features, labels, CLASSES)
    gaussians.sample(EXAMPLES // 10 // CLASSES, draws)
    seconds = time.perf_counter() - start
    peak = (memory("VmHWM") - before) / size
    print(f"{name}: {size / 2**30:.2f} GB of features, {seconds:.1f} s")
    limits = Limits()
    limits.at_most(f"{name}, peak memory by features", peak, LIMIT, "{:.2f}")
    limits.finish()


def main() -> None:
    # Each in its own process: a peak never goes down.
    codes = [subprocess.run([sys.executable, __file__, name], check=False).returncode for name in CALIBRATORS]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    calibrate(sys.argv[1]) if len(sys.argv) > 1 else main()
