"""Pictures that are easy to tell apart, and trees of them in the layouts of published data sets."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

COLORS = [(220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30), (30, 220, 220), (220, 30, 220)]
CLOTHING1M_COUNTS = {"noisy_train": 28, "clean_train": 14, "clean_val": 7, "clean_test": 7}


def write_picture(path: Path, label: int = 0, size: tuple[int, int] = (90, 70), **options: Any) -> Path:
    """Write an image of one color, give or take some noise, and return where; a class is a color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).integers(-25, 25, (size[1], size[0], 3))
    PIL.Image.fromarray((COLORS[label] + noise).astype(np.uint8)).save(path, **options)
    return path


def write_webvision(root: Path, *, classes: int = 6, size: tuple[int, int] = (90, 70)) -> Path:
    """Write the official layout: 50 classes in the lists, ``classes`` of them with four training images each."""
    info = root / "info"
    info.mkdir(parents=True)
    synsets = [f"n{1440764 + i:08}" for i in range(60)]
    (info / "synsets.txt").write_text("".join(f"{synset} thing {i}, also {i}\n" for i, synset in enumerate(synsets)))
    train, val = [], []
    for label in [*range(classes), 55]:  # class 55 is beyond the first 50
        for i in range(4):
            name = f"google/q{label:04}/{label}-{i}.jpg"
            write_picture(root / name, label % len(COLORS), size)
            train.append(f"{name} {label}\n")
        name = f"val{label:06}.jpg"
        write_picture(root / "val_images_256" / name, label % len(COLORS), size)
        val.append(f"{name} {label}\n")
    (info / "train_filelist_google.txt").write_text("".join(train))
    (info / "val_filelist.txt").write_text("".join(val))
    for label in range(50):
        folder = root / "imagenet" / "val" / synsets[label]
        folder.mkdir(parents=True)
        if label < classes:
            for i in range(2):
                write_picture(folder / f"ILSVRC2012_val_{label}{i}.JPEG", label % len(COLORS), size)
    return root


def write_clothing(root: Path, *, lists: str = ".", images: str = "images/", size: tuple[int, int] = (90, 70)) -> Path:
    """Write key lists, label files and images; the clean labels of the noisy images are not known."""
    (root / lists).mkdir(parents=True)
    labels: dict[str, list[str]] = {"noisy": [], "clean": []}
    for kind, count in CLOTHING1M_COUNTS.items():
        keys = [f"images/{i % 10}/{i:02}/{i},{kind}.jpg" for i in range(count)]
        (root / lists / f"{kind}_key_list.txt").write_text("\n".join(keys) + "\n")
        for i, key in enumerate(keys):
            write_picture(root / key.replace("images/", images), i % 14 % len(COLORS), size)
            labels[kind.partition("_")[0]].append(f"{key} {i % 14}\n")
    for kind, lines in labels.items():
        (root / lists / f"{kind}_label_kv.txt").write_text("".join(reversed(lines)))
    return root
