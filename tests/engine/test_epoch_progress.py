"""The progress of an epoch: steps that are added one by one, and what a checkpoint restores of them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.engine.checkpoints import EpochProgress, Growing


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 3))
def test_rows_that_are_added_come_one_after_the_other(sizes: list[int], before: int) -> None:
    first, *others = (torch.rand(size, 3) for size in (before, *sizes))
    growing = Growing(first.clone())
    for rows in others:
        growing.add(rows)
    assert torch.equal(growing.rows, torch.cat([first, *others]))
    assert len(growing) == before + sum(sizes)


def test_a_restored_epoch_goes_on_where_it_was() -> None:
    progress = EpochProgress()
    assert progress.steps == 0
    for step in range(3):
        progress.add({"loss": torch.tensor(float(step), requires_grad=True)}, torch.full((2, 4), float(step)))
    other = EpochProgress.from_state_dict(progress.state_dict(), torch.device("cpu"))
    for each in (progress, other):
        each.add({"loss": torch.tensor(3.0)}, torch.full((1, 4), 3.0))
        assert each.steps == 4
        assert each.terms["loss"].rows.tolist() == [0, 1, 2, 3]
        assert each.recorded is not None
        assert each.recorded.rows[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3]
    progress.end_phase({"loss": 1.5})
    assert (progress.phase, progress.steps, progress.recorded, progress.losses) == (1, 0, None, {"loss": 1.5})
