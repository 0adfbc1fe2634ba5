"""demo: compare methods on handwritten digits with label noise."""

from pathlib import Path

from unflip.api.corrupt import corrupt
from unflip.api.result import Result
from unflip.api.train import train
from unflip.files import OwnedFolder

_MARKER = "demo.json"
_FILES = ("labels.npy", "labels.json")
NOISE = "pmd1:0.35"
METHODS = ("standard", "gce", "sl", "lrt", "plc", "mddc", "cddc", "unflip")


def demo(out: str | Path, *, quiet: bool = True) -> dict[str, Result]:
    """Corrupt a third of the labels where digits resemble each other, and train each method on them.

    Writes the runs, which are returned by method.
    """
    folder = OwnedFolder(Path(out), _MARKER, METHODS)
    folder.check([*_FILES, *METHODS])
    folder.begin()
    labels, _ = map(folder.own, _FILES)
    corrupt("digits", NOISE, labels, force=True, device="cpu", threads=1, quiet=True)
    return {
        method: train(
            "digits", folder.own(method), labels=labels, method=method, preset="demo", force=True, device="cpu",
            threads=1, quiet=quiet,
        )
        for method in METHODS
    }  # fmt: skip
