"""Clothing1M and WebVision 1.0: write the table of images, labels and splits that `unflip train --data` reads.

    python examples/web_images.py clothing1m FOLDER               # writes FOLDER/clothing1m.parquet
    python examples/web_images.py clothing1m FOLDER --clean-val   # writes FOLDER/clothing1m-clean-val.parquet
    python examples/web_images.py webvision FOLDER                # writes FOLDER/webvision.parquet

Clothing1M (Xiao et al. 2015) trains on its noisy million, and is tested on its clean test list; with `--clean-val` its
clean validation list is the split `clean-val`. The lists may also be in ``annotations/``, and the folders ``0`` to
``9`` of images in FOLDER itself. WebVision-mini (Li et al. 2017) has the first 50 classes of the Google images
(`--classes 1000`: all of them). Its own validation images are the split `test`; those of ILSVRC12, if FOLDER has them
in ``imagenet/val``, a folder for each synset, are `test-imagenet`.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from unflip.data.labels import declare_classes

CLOTHES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker",
    "Jacket", "Down Coat", "Suit", "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip
Row = tuple[str, int, str]
"""The path of an image, relative to FOLDER; its class number; its split."""


def clothing1m(root: Path, *, clean_val: bool = False) -> Path:
    """Write the table of Clothing1M, and return it."""
    rows = [*_clothes(root, "noisy", "train", "train"), *_clothes(root, "clean", "test", "test")]
    if clean_val:
        rows += _clothes(root, "clean", "val", "clean-val")
    return _write(root / f"clothing1m{'-clean-val' if clean_val else ''}.parquet", rows, CLOTHES)


def _clothes(root: Path, kind: str, part: str, split: str) -> Iterator[Row]:
    lists = root / "annotations" if (root / "annotations").is_dir() else root
    known = dict(_read_labeled(lists / f"{kind}_label_kv.txt"))
    outer = "" if (root / "images").is_dir() else "images/"  # the archives hold the folders 0 to 9 without it
    for key in _read(lists / f"{kind}_{part}_key_list.txt"):
        if key not in known:
            raise SystemExit(f"{kind}_{part}_key_list.txt: {key} has no label in {kind}_label_kv.txt")
        yield key.removeprefix(outer), known[key], split


def webvision(root: Path, *, classes: int = 50) -> Path:
    """Write the table of WebVision-mini, and return it."""
    synsets, _, words = zip(*(line.partition(" ") for line in _read(root / "info/synsets.txt")[:classes]), strict=True)
    names = tuple(word.partition(",")[0].strip() for word in words)
    val = "val_images_256" if (root / "val_images_256").is_dir() else "val_images"
    rows: list[Row] = []
    for listed, folder, split in (("train_filelist_google", "google", "train"), ("val_filelist", val, "test")):
        for name, label in _read_labeled(root / f"info/{listed}.txt"):
            if label < classes:  # the official list already includes google/
                rows.append((name if name.startswith(f"{folder}/") else f"{folder}/{name}", label, split))
    for label, synset in enumerate(synsets):
        images = sorted((root / "imagenet/val" / synset).glob("*.JPEG"))
        rows += [(str(image.relative_to(root)), label, "test-imagenet") for image in images]
    return _write(root / "webvision.parquet", rows, names if len({*names}) == len(names) else synsets)


def _read(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]


def _read_labeled(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the path and the class number of each line ``path number``."""
    for row, line in enumerate(_read(path)):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal():
            raise SystemExit(f"{path}, row {row}: '{line}' is not a path, a space and a class number")
        yield name.strip(), int(label)


def _write(path: Path, rows: Sequence[Row], classes: Sequence[str]) -> Path:
    table = pa.table(dict(zip(("path", "label", "split"), zip(*rows, strict=True), strict=True)))
    pa.parquet.write_table(declare_classes(table, ["label"], classes), path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["clothing1m", "webvision"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clean-val", action="store_true")
    parser.add_argument("--classes", type=int, default=50)
    chosen = parser.parse_args()
    if chosen.data == "clothing1m":
        print(clothing1m(chosen.folder, clean_val=chosen.clean_val))
    else:
        print(webvision(chosen.folder, classes=chosen.classes))


if __name__ == "__main__":
    main()
