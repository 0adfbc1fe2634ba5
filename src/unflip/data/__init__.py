"""Data: a Source yields inputs and never a label; one file a kind of data."""

from unflip.registry import Entry, Registry

datasets = Registry(
    "data set",
    Entry("arrays", "feature arrays: one .npz, one .npy, or a folder of .npy files", "unflip.data.arrays:load"),
    Entry("cifar10", "CIFAR-10: the folder of its official files, binary or Python", "unflip.data.cifar:CIFAR10"),
    Entry("cifar100", "CIFAR-100: the folder of its official files, binary or Python", "unflip.data.cifar:CIFAR100"),
    Entry("digits", "1,797 handwritten digits, embedded; its labels are clean", "unflip.data.digits:load"),
)
