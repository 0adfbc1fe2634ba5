"""Data in steps: load (loaders), label (labeling.py), corrupt (corrupt.py), split (split.py); see dataset.py."""

from unflip.registry import Entry, Registry

_LOADERS = "unflip.data.loaders"
datasets = Registry(
    "data set",
    Entry("texts", ".txt files: one folder per class, or train/CLASS, val/, test/", f"{_LOADERS}.class_folders:texts"),
    Entry("images", "images: one folder per class, or train/CLASS, val/, test/", f"{_LOADERS}.class_folders:images"),
    Entry("manifest", "images in a .csv or .parquet table: path,label[,split]", f"{_LOADERS}.table:manifest"),
    Entry("table", "a .csv, .parquet or .jsonl table with a column of labels", f"{_LOADERS}.table:table"),
    Entry(
        "arrays",
        "features: an .npz, an .npy, or a folder of .npy files",
        f"{_LOADERS}.arrays:arrays",
        suffixes=(".npz", ".npy"),
    ),
    Entry("cifar10", "CIFAR-10: the folder of its official files, binary or Python", f"{_LOADERS}.cifar:CIFAR10"),
    Entry("cifar100", "CIFAR-100: the folder of its official files, binary or Python", f"{_LOADERS}.cifar:CIFAR100"),
    Entry("webvision", "WebVision 1.0's folder: 50 classes of its Google images", f"{_LOADERS}.webvision:webvision"),
    Entry("clothing1m", "Clothing1M's folder of key lists, labels and images", f"{_LOADERS}.clothing1m:clothing1m"),
    Entry("digits", "1,797 handwritten digits, built in, with clean labels", f"{_LOADERS}.digits:digits"),
)
"""Loaders by name; a target is an instance of :class:`unflip.data.loaders.Loader`."""
