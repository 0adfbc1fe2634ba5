"""How an epoch is cut: the same steps for every process, nothing lost, no batch too small; and prepared in time."""

import threading
from collections.abc import Generator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.compute import prefetched
from unflip.engine.trainer import cut, repeated, shuffled

LENGTHS, SIZES, PROCESSES = st.integers(1, 80), st.integers(2, 30), st.integers(1, 4)


@given(LENGTHS, SIZES, PROCESSES)
def test_every_process_takes_the_same_steps(length: int, size: int, processes: int) -> None:
    order = torch.randperm(length)
    shares = [cut(order, size, processes, rank) for rank in range(processes)]
    sizes = [[len(share) for share in one] for one in shares]
    assert all(one == sizes[0] for one in sizes)
    assert min(sizes[0]) >= 2  # batch normalization needs two
    whole = max(2 * processes, size // processes * processes)
    assert all(step * processes == whole for step in sizes[0][:-1])
    assert sizes[0][-1] * processes < whole + 2 * processes


@given(LENGTHS, SIZES, PROCESSES)
def test_interleaving_the_shares_gives_the_order_back(length: int, size: int, processes: int) -> None:
    order = torch.randperm(length)
    shares = torch.stack([torch.cat(cut(order, size, processes, rank)) for rank in range(processes)])
    together = shares.T.flatten()
    assert torch.equal(together[:length], order)
    assert len(together) - length < max(processes, 2 * processes - length + 1)
    repeats = order.repeat(2 * processes)
    assert torch.equal(together, repeats[: len(together)])  # what was added comes from the order's beginning


@given(LENGTHS, SIZES, PROCESSES)
def test_every_step_is_a_stretch_of_the_order(length: int, size: int, processes: int) -> None:
    """So a run under several processes learns from the batches of a run under one."""
    order = torch.arange(length)
    shares = [cut(order, size, processes, rank) for rank in range(processes)]
    start = 0
    for step in zip(*shares, strict=True):
        together = torch.cat(step).sort().values
        assert set(together.tolist()) <= {i % length for i in range(start, start + len(together))}
        start += len(together)


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert [len(share) for share in cut(torch.arange(33), 16, 1, 0)] == [16, 17]
    assert [len(share) for share in cut(torch.arange(34), 16, 1, 0)] == [16, 16, 2]
    assert [len(share) for share in cut(torch.arange(34), 16, 2, 1)] == [8, 9]


def test_an_empty_epoch_has_no_batch() -> None:
    assert cut(torch.arange(0), 16, 2, 1) == ()


def test_an_epoch_of_one_example_goes_round() -> None:
    assert cut(torch.tensor([7]), 16, 1, 0)[0].tolist() == [7, 7]
    assert cut(torch.tensor([7]), 16, 2, 1)[0].tolist() == [7, 7]


@given(st.lists(st.integers(0, 99), min_size=1, unique=True), st.integers(0, 50))
def test_shuffling_keeps_every_index_once(indices: list[int], seed: int) -> None:
    order = shuffled(torch.tensor(indices), torch.Generator().manual_seed(seed))
    assert sorted(order.tolist()) == sorted(indices)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=10, unique=True), st.integers(1, 40))
def test_repeating_goes_round_all_before_it_starts_again(indices: list[int], count: int) -> None:
    drawn = repeated(torch.tensor(indices), count, torch.Generator().manual_seed(0)).tolist()
    assert len(drawn) == count
    for start in range(0, count, len(indices)):
        turn = drawn[start : start + len(indices)]
        assert len(set(turn)) == len(turn)
        assert set(turn) <= set(indices)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_prepared_results_come_in_order(prefetch: int) -> None:
    assert list(prefetched((partial(pow, i, 2) for i in range(20)), prefetch)) == [i * i for i in range(20)]
    assert list(prefetched([], prefetch)) == []


def test_the_next_results_are_made_while_one_is_in_use() -> None:
    made = [threading.Event() for _ in range(10)]
    results = prefetched((event.set for event in made), 2)
    next(results)
    assert made[1].wait(10)
    assert made[2].wait(10)
    assert not made[3].wait(0.05)  # and no more than was asked for
    assert isinstance(results, Generator)
    results.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_is_raised_where_its_result_would_have_come(prefetch: int) -> None:
    results = prefetched((partial(divmod, 6, number) for number in (3, 2, 0, 1)), prefetch)
    assert [next(results), next(results)] == [(2, 0), (3, 0)]
    with pytest.raises(ZeroDivisionError):
        next(results)
