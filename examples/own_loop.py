"""MDDC and CDDC in a plain PyTorch loop on frozen features: python examples/own_loop.py FEATURES.npz LABELS.npy [SEED]

FEATURES.npz holds train (n, d), train_labels, test and test_labels; LABELS.npy the noisy labels of the first rows.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unflip


def train(
    model: Any, inputs: Tensor, given: Tensor, kind: Any, order: Any,
    epochs: int = 15, warmup: int = 5, jitter: float = 0.1, lr: float = 0.01, seed: int = 0,
) -> unflip.LabelCorrection:  # fmt: skip
    """Train a model with ``encode`` and ``head``, correct labels, calibrate unless ``kind`` is None."""
    num_classes = model.head.out_features
    labels = unflip.LabelCorrection(given, num_classes, warmup=warmup)
    calibration = kind and unflip.DistributionCalibration(model.head, num_classes, kind, head_lr=lr, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)

    def encode_all() -> Tensor:
        model.eval()
        return torch.cat([model.encode(part) for part in inputs.split(1024)])

    for epoch in range(1, epochs + 1):
        model.train()
        for index in order(epoch).split(128):
            logits = model.head(model.encode(inputs[index] + jitter * torch.randn_like(inputs[index])))
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, labels[index]).backward()
            optimizer.step()
            labels.record(index, logits)
        if kind and labels.correcting:
            calibration.step(labels.current, features=encode_all, epoch=epoch)
        labels.step()
    return labels


def main(features: str, noisy: str, seed: str = "0") -> None:
    data, given = np.load(features), torch.from_numpy(np.load(noisy)).long()
    inputs, truth = (torch.from_numpy(data[name][: len(given)]).float() for name in ("train", "train_labels"))
    test, test_labels = (torch.from_numpy(data[name]).float() for name in ("test", "test_labels"))
    inputs, test = ((part - inputs.mean(0)) / inputs.std() for part in (inputs, test))
    for kind in (None, "mean", "covariance"):
        torch.manual_seed(int(seed))
        model: Any = nn.Module()
        model.encode = nn.Sequential(nn.Linear(inputs.shape[1], 256, bias=False), nn.BatchNorm1d(256), nn.ReLU())
        model.head = nn.Linear(256, int(truth.max()) + 1)
        labels = train(model, inputs, given, kind, lambda epoch: torch.randperm(len(given)), seed=int(seed))
        accuracy = (model.eval().head(model.encode(test)).argmax(1) == test_labels).double().mean()
        print(f"{kind}: accuracy {accuracy:.4f}, labels {(labels.current == truth).double().mean():.4f} right")


if __name__ == "__main__":
    main(*sys.argv[1:])
