"""SL: its options reach its loss."""

import pytest
import torch
from pydantic import ValidationError

from unflip.methods.base import TrainContext
from unflip.methods.losses import cross_entropy, symmetric_cross_entropy
from unflip.methods.sl import SL, SLOptions

LOGITS, LABELS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


def criterion(**options: float) -> torch.Tensor:
    context = TrainContext(
        num_classes=3, train=torch.arange(6), epochs=1, seed=0, batch_size=8, lr_factor=lambda epoch: 1.0,
        device=torch.device("cpu"),
    )  # fmt: skip
    return SL(SLOptions(**options), context).criterion(LOGITS, LABELS, torch.arange(6))


def test_the_defaults_are_those_of_the_paper_for_cifar10() -> None:
    torch.testing.assert_close(criterion(), symmetric_cross_entropy(LOGITS, LABELS, 0.1, 1.0, -4.0))


def test_every_option_has_its_effect() -> None:
    torch.testing.assert_close(criterion(alpha=2.0, beta=0.0), 2 * cross_entropy(LOGITS, LABELS))
    p = LOGITS.softmax(1).gather(1, LABELS[:, None])[:, 0]
    torch.testing.assert_close(criterion(alpha=0.0, beta=3.0, log_zero=-2.0), 3.0 * 2.0 * (1 - p))


@pytest.mark.parametrize("options", [{"alpha": -1}, {"beta": -1}, {"log_zero": 0.0}, {"A": -4}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SLOptions(**options)
