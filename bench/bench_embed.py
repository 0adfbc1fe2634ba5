"""From photo files to features with EfficientNet-Lite0, against the plain loop of Pillow and PyTorch over them.

One thread, float32. The network alone at least 2.5 times as fast, the whole (without converting, checking files and
digests) at least 2.2 times. PyTorch has its norms folded and channels last, but the memory of a usual process: nearly
half of its time may be the system's, which gives it pages for activations and takes them back. So the network alone is
also compared, without a limit, where malloc keeps its memory: there PyTorch is far faster. Processor time, in turns on
the same photos: TrashNet's from photos/trashnet.tar in the folder that UNFLIP_DATA names, else made up.
"""

import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from frozen import folder
from limits import Limits
from unflip.compute import prefetched
from unflip.data.files import ImageFiles, ResizeCrop
from unflip.data.images import FileSource
from unflip.data.sources import Standardization
from unflip.nn.backbone import Backbone, Encode, compile_backbone, efficientnet_lite0

NETWORK_LIMIT, WHOLE_LIMIT = 2.5, 2.2  # PyTorch's time by ours: at least
PHOTOS, TURN, BATCH = 384, 64, 16  # photos, those of a turn, those of a batch
SIZE, RESIZE = 224, 256
KEEPING = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
"""With which glibc's malloc does not give memory back."""


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def find_photos(into: Path) -> list[Path]:
    data = folder()
    if data is not None:
        with tarfile.open(data / "photos" / "trashnet.tar") as archive:
            members = [member for member in archive.getmembers() if member.name.endswith(".jpg")]
            archive.extractall(into, members[:: len(members) // PHOTOS][:PHOTOS], filter="data")
        return sorted(into.rglob("*.jpg"))
    print("UNFLIP_DATA is not set: made-up photos of 500x375")
    random = np.random.default_rng(0)
    paths = [into / f"{number:03}.jpg" for number in range(PHOTOS)]
    for path in paths:
        small = Image.fromarray(random.integers(0, 256, (25, 33, 3), np.uint8))
        pixels = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) + random.normal(0, 8, (375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return paths


def plain_decode(paths: Sequence[Path], backbone: Backbone) -> Tensor:
    """Read photos as everybody does: the shorter side to RESIZE, the center of SIZE."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    batch = []
    for path in paths:
        with Image.open(path) as file:
            image = file.convert("RGB")
        scale = RESIZE / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
        pixels = np.array(image.crop((left, top, left + SIZE, top + SIZE)))
        batch.append(torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().sub_(mean).div_(std))
    return torch.stack(batch).contiguous(memory_format=torch.channels_last)


def plain_loop(paths: Sequence[Path], backbone: Backbone) -> None:
    for start in range(0, len(paths), BATCH):
        backbone.network(plain_decode(paths[start : start + BATCH], backbone))


def our_loop(source: FileSource, rows: range, encode: Encode | None) -> None:
    """Do what `unflip embed` does with each batch; without ``encode``, only read."""
    cut = torch.arange(rows.start, rows.stop).split(BATCH)
    for images in prefetched((partial(source.fetch, indices) for indices in cut), source.prefetch):
        if encode is not None:
            encode(images)


def compare_networks(images: Tensor, backbone: Backbone, encode: Encode) -> float:
    """Return PyTorch's time by ours."""
    pairs, system = [], 0.0
    for _ in range(11):
        before = os.times().system
        theirs = seconds(lambda: backbone.network(images))
        system += os.times().system - before
        pairs.append((theirs, seconds(lambda: encode(images))))
    share = system / sum(theirs for theirs, _ in pairs)
    theirs, ours = (BATCH / statistics.median(column) for column in zip(*pairs[1:], strict=True))
    print(f"network alone: PyTorch {theirs:.1f} images/s ({share:.0%} of its time the system's), OpenVINO {ours:.1f}")
    return statistics.median(a / b for a, b in pairs[1:])


def compare_loops(limits: Limits, paths: Sequence[Path], backbone: Backbone, encode: Encode) -> None:
    root = paths[0].parents[1]
    files = ImageFiles(root, np.array([str(path.relative_to(root)) for path in paths]), frame=ResizeCrop(SIZE, RESIZE))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    source = FileSource(files, Standardization(mean, std), workers=1)
    rounds = []
    for start in range(0, len(paths), TURN):
        rows = range(start, min(start + TURN, len(paths)))
        some = paths[rows.start : rows.stop]
        rounds.append(
            [
                seconds(work) / len(rows)
                for work in (
                    partial(plain_decode, some, backbone),
                    partial(our_loop, source, rows, None),
                    partial(plain_loop, some, backbone),
                    partial(our_loop, source, rows, encode),
                )
            ]
        )
    plain_read, our_read, plain, ours = (1 / statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"reading alone: plain {plain_read:.0f} images/s, ours {our_read:.0f}")
    print(f"the whole: plain {plain:.1f} images/s, ours {ours:.1f}")
    ratio = statistics.median(turn[2] / turn[3] for turn in rounds)
    limits.at_least("the plain loop by ours", ratio, WHOLE_LIMIT, "{:.2f}")


def load() -> tuple[Backbone, Encode]:
    backbone = efficientnet_lite0(None)
    network = cast("Any", backbone.network)  # torch declares no such argument, but takes it
    network.to(memory_format=torch.channels_last).requires_grad_(False)
    encode = compile_backbone(backbone.network, SIZE)
    if encode is backbone.network:
        raise SystemExit("openvino is not installed; try: pip install 'unflip[embed]'")
    return backbone, encode


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # a network that stays with PyTorch is no comparison
    backbone, encode = load()
    images = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    if "kept" in sys.argv:
        print(f"PyTorch's network by ours: {compare_networks(images, backbone, encode):.2f}")
        return
    print(f"converting the network: {seconds(lambda: compile_backbone(backbone.network, SIZE)):.1f} s")
    limits = Limits()
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos"
        photos.mkdir()
        paths = find_photos(photos)
        images = plain_decode(paths[:: len(paths) // BATCH][:BATCH], backbone)
        wanted = backbone.network(images)
        apart = float((encode(images) - wanted).abs().max())
        print(f"features differ by at most {apart:.1e}, the largest is {float(wanted.max()):.2f}")
        ratio = compare_networks(images, backbone, encode)
        limits.at_least("PyTorch's network by ours", ratio, NETWORK_LIMIT, "{:.2f}")
        compare_loops(limits, paths, backbone, encode)
    print("the same where malloc keeps its memory:", flush=True)
    subprocess.run([sys.executable, __file__, "kept"], env={**os.environ, **KEEPING}, check=True)
    limits.finish()


if __name__ == "__main__":
    main()
