"""Data: a Source yields inputs and never a label; one file a kind of data."""

from unflip.registry import Entry, Registry

datasets = Registry(
    "data set",
    Entry("arrays", "feature arrays: one .npz, one .npy, or a folder of .npy files", "unflip.data.arrays:load"),
    Entry("images", "images: a folder a class, or train/CLASS, val/, test/", "unflip.data.image_folder:image_folder"),
    Entry("manifest", "images in a .csv or .parquet table: path,label[,split]", "unflip.data.manifest:manifest"),
    Entry("table", "a .csv or .parquet table of numbers, with a column of labels", "unflip.data.table:table"),
    Entry("cifar10", "CIFAR-10: the folder of its official files, binary or Python", "unflip.data.cifar:CIFAR10"),
    Entry("cifar100", "CIFAR-100: the folder of its official files, binary or Python", "unflip.data.cifar:CIFAR100"),
    Entry("webvision", "WebVision 1.0's folder: 50 classes of its Google images", "unflip.data.webvision:webvision"),
    Entry("clothing1m", "Clothing1M's folder of key lists, labels and images", "unflip.data.clothing1m:clothing1m"),
    Entry("digits", "1,797 handwritten digits, embedded; its labels are clean", "unflip.data.digits:load"),
)
