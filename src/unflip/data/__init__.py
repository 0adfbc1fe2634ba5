"""Data in steps: load (loaders), label (labeling.py), corrupt (corrupt.py), split (split.py); see dataset.py."""

from unflip.registry import Entry, Registry

datasets = Registry(
    "data set",
    Entry(
        "texts",
        ".txt files: one folder per class, or train/CLASS, val/, test/",
        "unflip.data.loaders.class_folders:text_folder",
    ),
    Entry(
        "images",
        "images: one folder per class, or train/CLASS, val/, test/",
        "unflip.data.loaders.class_folders:image_folder",
    ),
    Entry(
        "manifest", "images in a .csv or .parquet table: path,label[,split]", "unflip.data.loaders.manifest:manifest"
    ),
    Entry(
        "table",
        "a .csv, .parquet or .jsonl table of texts, numbers, categories, dates, with a column of labels",
        "unflip.data.loaders.table:table",
    ),
    Entry(
        "arrays",
        "feature arrays: one .npz, one .npy, or a folder of .npy files",
        "unflip.data.loaders.arrays:arrays",
        suffixes=(".npz", ".npy"),
    ),
    Entry(
        "cifar10", "CIFAR-10: the folder of its official files, binary or Python", "unflip.data.loaders.cifar:CIFAR10"
    ),
    Entry(
        "cifar100",
        "CIFAR-100: the folder of its official files, binary or Python",
        "unflip.data.loaders.cifar:CIFAR100",
    ),
    Entry(
        "webvision",
        "WebVision 1.0's folder: 50 classes of its Google images",
        "unflip.data.loaders.webvision:webvision",
    ),
    Entry(
        "clothing1m", "Clothing1M's folder of key lists, labels and images", "unflip.data.loaders.clothing1m:clothing1m"
    ),
    Entry("digits", "1,797 handwritten digits, built in; their labels are clean", "unflip.data.loaders.digits:digits"),
)
"""Loaders by name; a target is an instance of :class:`unflip.data.loaders.Loader`."""
