"""A change of the core is noticed by its tests: see `tests/support/mutate.py`."""

import ast

import pytest

import mutate
from helpers import spawn_python

TEXT = '''
def scale(values, *, limit=2):
    """Say nothing."""
    if not values:
        raise ValueError("none: " + str(1))
    values = sorted(values, reverse=True)
    return [value * 0.5 for value in values if value < limit][0]
'''
LAST = TEXT.splitlines()[-1].strip()


def test_each_mutation_is_one_change_that_parses() -> None:
    names = [mutation.name for mutation in mutate.mutations("a.py", TEXT)]
    assert set(names) == {
        f"scale: 0 -> 1 in {LAST}",
        f"scale: 0.5 -> 0.75 in {LAST}",
        "scale: 2 -> 3 in def scale(values, *, limit=2):",
        "scale: not values -> values",
        "scale: sorted(values, reverse=True) -> sorted(values)",
        "scale: True -> False in values = sorted(values, reverse=True)",
        "scale: value * 0.5 -> value / 0.5",
        "scale: value < limit -> value <= limit",
        "scale: values = sorted(values, reverse=True) -> pass",
    }
    assert len(set(names)) == len(names)
    for mutation in mutate.mutations("a.py", TEXT):
        ast.parse(mutation.source)
        assert mutation.source.count("\n") == TEXT.count("\n")


def test_what_counts_as_equivalent_still_exists() -> None:
    everything = mutate.sample(10**6, 0, "", known=True)
    for file, patterns in mutate.equivalents().items():
        names = [mutation.name for mutation in everything if mutation.file == file]
        for pattern, reason in patterns.items():
            assert any(mutate.matches(pattern, name) for name in names), f"{file}: {pattern}"
            assert len(reason) > 10


@pytest.mark.soak
def test_of_300_mutations_of_the_core_at_least_95_percent_are_noticed() -> None:
    done = spawn_python(mutate.__file__, "--count", 300, "--least", 0.95, timeout=6 * 3600)
    assert done.code == 0, done.out
