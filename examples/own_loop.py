"""MDDC and CDDC in a plain PyTorch loop on frozen features: python examples/own_loop.py FEATURES.npz LABELS.npy [SEED]

FEATURES.npz holds train (n, d), train_labels, test and test_labels; LABELS.npy the noisy labels of the first rows.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unflip


def train(
    model: Any, inputs: Tensor, given: Tensor, kind: Any, order: Callable[[int], Tensor],
    epochs: int = 15, warmup: int = 5, jitter: float = 0.1, lr: float = 0.01, seed: int = 0, recorded: bool = False,
) -> unflip.LabelCorrection:  # fmt: skip
    """Train ``model.head(model.encode(inputs))``, correct labels, calibrate unless ``kind`` is None; return the labels.

    With ``recorded``, calibration uses the features of the training pass, which costs no further pass.
    """
    labels = unflip.LabelCorrection(given, model.head.out_features, warmup=warmup)
    calibration = kind and unflip.DistributionCalibration(
        model.head, model.head.out_features, kind, head_lr=lr, seed=seed
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)

    def encode_all() -> Tensor:
        model.eval()
        return torch.cat([model.encode(part) for part in inputs.split(1024)])

    for epoch in range(1, epochs + 1):
        model.train()
        for index in order(epoch).split(128):
            batch = inputs[index] + jitter * torch.randn_like(inputs[index])
            features = model.encode(batch)
            logits = model.head(features)
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[index]).backward()
            optimizer.step()
            labels.record(index, logits)
            if recorded and labels.correcting:
                calibration.record(index, features)
        if kind and labels.correcting:
            calibration.step(labels.current, features=None if recorded else encode_all, epoch=epoch)
        labels.step()
    return labels


def main(features: str, noisy: str, seed: int) -> None:
    data, given = np.load(features), torch.from_numpy(np.load(noisy).astype("i8"))
    inputs, test = (torch.from_numpy(data[name].astype("f4")) for name in ("train", "test"))
    inputs = inputs[: len(given)]
    inputs, test = ((part - inputs.mean(0)) / inputs.std() for part in (inputs, test))
    truth, test_labels = (torch.from_numpy(data[f"{name}_labels"].astype("i8")) for name in ("train", "test"))
    for kind in (None, "mean", "covariance"):
        torch.manual_seed(seed)
        model = nn.Module()
        model.encode = nn.Sequential(nn.Linear(inputs.shape[1], 256, bias=False), nn.BatchNorm1d(256), nn.ReLU())
        model.head = nn.Linear(256, int(truth.max()) + 1)
        labels = train(model, inputs, given, kind, lambda epoch: torch.randperm(len(given)), seed=seed)
        model.eval()
        right = (model.head(model.encode(test)).argmax(1) == test_labels).double().mean()
        print(
            f"{kind}: accuracy {right:.4f}, labels {(labels.current == truth[: len(given)]).double().mean():.4f} right"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
