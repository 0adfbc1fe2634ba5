"""One seed, many independent generators."""

import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.compute import derive, generator

PURPOSES = st.lists(st.one_of(st.integers(), st.text("abcdef:", max_size=5)), max_size=4).map(tuple)


@given(st.integers(0, 2**40), PURPOSES)
def test_the_same_purpose_gives_the_same_seed_in_the_range_of_torch(seed: int, purpose: tuple[str | int, ...]) -> None:
    value = derive(seed, *purpose)
    assert value == derive(seed, *purpose)
    assert 0 <= value < 2**63


@given(st.integers(0, 99), PURPOSES, st.integers(0, 99), PURPOSES)
def test_another_purpose_gives_another_seed(
    seed: int, purpose: tuple[str | int, ...], other_seed: int, other: tuple[str | int, ...]
) -> None:
    same = (seed, purpose) == (other_seed, other)
    assert (derive(seed, *purpose) == derive(other_seed, *other)) is same


def test_a_number_and_its_text_are_different_purposes() -> None:
    assert derive(0, "1") != derive(0, 1)
    assert derive(0, "ab") != derive(0, "a", "b")


def test_a_seed_does_not_depend_on_the_process_it_is_derived_in() -> None:
    code = "import sys; from unflip.compute import derive; sys.stdout.write(str(derive(3, 'order', 7)))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == derive(3, "order", 7)


def test_generators_depend_on_nothing_that_was_drawn_before() -> None:
    first = torch.rand(5, generator=generator(1, "order", 2))
    torch.rand(100)
    torch.rand(5, generator=generator(1, "order", 1))
    assert torch.equal(first, torch.rand(5, generator=generator(1, "order", 2)))
    assert not torch.equal(first, torch.rand(5, generator=generator(2, "order", 2)))


def test_streams_of_neighboring_purposes_are_uncorrelated() -> None:
    streams = torch.stack([torch.rand(4000, generator=generator(0, "step", epoch)) for epoch in range(8)])
    correlation = torch.corrcoef(streams) - torch.eye(8)
    assert correlation.abs().max() < 0.08  # five deviations of 1 / sqrt(4000)
