"""Class maps: the published ones, those within superclasses, those that people write."""

import pytest

from unflip.compute import generator
from unflip.noise.transition import (
    CIFAR100_CLASSES,
    CIFAR100_SUPERCLASSES,
    NAMED_MAPS,
    cycle_map,
    pairs_map,
)

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def test_cifar10_map_is_the_papers() -> None:
    words = {
        "truck": "automobile",
        "bird": "airplane",
        "deer": "horse",
        "cat": "dog",
        "dog": "cat",
    }
    assert {CIFAR10.index(name): CIFAR10.index(to) for name, to in words.items()} == NAMED_MAPS["cifar10"]


def test_cifar100_has_20_superclasses_of_5() -> None:
    assert len(CIFAR100_SUPERCLASSES) == 100
    assert sorted(CIFAR100_SUPERCLASSES) == [superclass for superclass in range(20) for _ in range(5)]
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)


@pytest.mark.parametrize(
    ("class_id", "superclass"),
    # apple, aquarium_fish, baby, bear, beaver, lawn_mower, maple_tree, sweet_pepper, woman, worm: the official files
    [(0, 4), (1, 1), (2, 14), (3, 8), (4, 0), (41, 19), (47, 17), (83, 4), (98, 14), (99, 13)],
)
def test_cifar100_superclasses_are_the_official_ones(class_id: int, superclass: int) -> None:
    assert CIFAR100_SUPERCLASSES[class_id] == superclass


def test_pairs_exchange_two_classes_of_every_superclass() -> None:
    mapping = pairs_map(CIFAR100_SUPERCLASSES, generator(0))
    assert len(mapping) == 40
    assert all(mapping[target] == source != target for source, target in mapping.items())
    assert all(CIFAR100_SUPERCLASSES[source] == CIFAR100_SUPERCLASSES[target] for source, target in mapping.items())
    assert len({CIFAR100_SUPERCLASSES[source] for source in mapping}) == 20


def test_pairs_depend_on_the_seed_alone() -> None:
    first, again, other = (pairs_map(CIFAR100_SUPERCLASSES, generator(seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_cycle_visits_every_class_of_a_superclass() -> None:
    mapping = cycle_map(CIFAR100_SUPERCLASSES)
    assert sorted(mapping) == sorted(mapping.values()) == list(range(100))
    for start in range(100):
        walk = [start]
        while mapping[walk[-1]] != start:
            walk.append(mapping[walk[-1]])
        assert len(walk) == 5
        assert len({CIFAR100_SUPERCLASSES[class_id] for class_id in walk}) == 1


def test_a_class_alone_in_its_superclass_keeps_its_labels() -> None:
    assert cycle_map([0, 1, 0]) == {0: 2, 2: 0} == pairs_map([0, 1, 0], generator(0))
