"""The progress of an epoch: steps that are added one by one, and what a checkpoint restores of them."""

import torch

from unflip.engine.checkpoints import EpochProgress


def test_a_restored_epoch_resumes_where_it_was() -> None:
    progress = EpochProgress()
    assert progress.steps == 0
    for step in range(3):
        progress.add({"loss": torch.tensor(float(step), requires_grad=True)}, torch.full((2, 4), float(step)))
    other = EpochProgress.from_state_dict(progress.state_dict(), torch.device("cpu"))
    for each in (progress, other):
        each.add({"loss": torch.tensor(3.0)}, torch.full((1, 4), 3.0))
        assert each.steps == 4
        assert each.terms["loss"].values.tolist() == [0, 1, 2, 3]
        assert torch.cat(each.recorded)[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3]
    progress.end_phase({"loss": 1.5})
    assert (progress.phase, progress.steps, progress.recorded, progress.losses) == (1, 0, [], {"loss": 1.5})
