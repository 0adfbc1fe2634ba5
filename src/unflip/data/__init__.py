"""Data in steps: load (loaders), label (labeling.py), corrupt (corrupt.py), split (split.py); see dataset.py."""

from unflip.registry import Entry, Registry

_IN = "unflip.data.loaders"
datasets = Registry(
    "data set",
    [
        Entry("texts", ".txt files: one folder per class, or train/CLASS, val/, test/", f"{_IN}.class_folders:texts"),
        Entry("images", "images: one folder per class, or train/CLASS, val/, test/", f"{_IN}.class_folders:images"),
        Entry("manifest", "images in a .csv or .parquet table: path,label[,split]", f"{_IN}.table:manifest"),
        Entry("table", "a .csv, .parquet or .jsonl table with a column of labels", f"{_IN}.table:table"),
        Entry("arrays", "features: .npz, .npy, or a folder of .npy files", f"{_IN}.arrays:arrays", (".npz", ".npy")),
        Entry("cifar10", "CIFAR-10: the folder of its official files, binary or Python", f"{_IN}.cifar:CIFAR10"),
        Entry("cifar100", "CIFAR-100: the folder of its official files, binary or Python", f"{_IN}.cifar:CIFAR100"),
        Entry("digits", "1,797 handwritten digits, built in, with clean labels", f"{_IN}.digits:digits"),
    ],
)
"""Loaders by name; a target is an instance of :class:`unflip.data.loaders.Loader`."""
