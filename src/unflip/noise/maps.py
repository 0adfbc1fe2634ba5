"""Which class is mistaken for which: the maps of the usual data sets, maps within superclasses, maps by name."""

from collections.abc import Mapping, Sequence

import torch

from unflip.errors import InputError, unknown

NAMED_MAPS: dict[str, dict[int, int]] = {
    # truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog (the paper's section 4.2)
    "cifar10": {9: 1, 2: 0, 4: 7, 3: 5, 5: 3},
    # 7 -> 1, 2 -> 7, 5 <-> 6, 3 -> 8 (Patrini et al. 2017)
    "mnist": {7: 1, 2: 7, 5: 6, 6: 5, 3: 8},
}
"""Maps of asymmetric noise by the data they were made for."""

CIFAR100_CLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The 100 classes of CIFAR-100 by superclass; ids follow alphabetical order, for classes and superclasses alike."""

CIFAR100_SUPERCLASSES: tuple[int, ...] = tuple(
    superclass
    for _, superclass in sorted(
        (name, superclass) for superclass, names in enumerate(CIFAR100_CLASSES.values()) for name in names
    )
)
"""The superclass (0 to 19) of each of the 100 classes of CIFAR-100."""


def pairs_map(superclasses: Sequence[int], generator: torch.Generator) -> dict[int, int]:
    """Draw two classes in every superclass; they are mistaken for each other (the paper's section 4.2)."""
    mapping: dict[int, int] = {}
    for members in _members(superclasses):
        first, second = (members[i] for i in torch.randperm(len(members), generator=generator)[:2].tolist())
        mapping |= {first: second, second: first}
    return mapping


def cycle_map(superclasses: Sequence[int]) -> dict[int, int]:
    """Send every class to the next in its superclass, the last to the first."""
    return {
        source: target
        for members in _members(superclasses)
        for source, target in zip(members, members[1:] + members[:1], strict=True)
    }


def resolve_map(mapping: Mapping[str | int, str | int], class_names: Sequence[str]) -> dict[int, int]:
    """Turn a map of class names or ids into one of ids; an id may also be text, like the keys of JSON and TOML.

    >>> resolve_map({"cat": "dog", 0: "1"}, ["bird", "cat", "dog"])
    {1: 2, 0: 1}
    """
    resolved: dict[int, int] = {}
    for source, target in mapping.items():
        source_id = _class_id(source, class_names)
        if source_id in resolved:
            raise InputError(f"the class map names class '{class_names[source_id]}' twice; give it one target")
        resolved[source_id] = _class_id(target, class_names)
    return resolved


def _members(superclasses: Sequence[int]) -> list[list[int]]:
    """Return the classes of each superclass in order of their ids, without superclasses that have only one class."""
    groups: dict[int, list[int]] = {}
    for class_id, superclass in enumerate(superclasses):
        groups.setdefault(superclass, []).append(class_id)
    return [groups[superclass] for superclass in sorted(groups) if len(groups[superclass]) > 1]


def _class_id(name: str | int, class_names: Sequence[str]) -> int:
    if isinstance(name, str) and name in class_names:
        return class_names.index(name)
    if isinstance(name, str) and not name.isdecimal():
        raise InputError(f"class map: {unknown('class', name, class_names)}")
    class_id = int(name)
    if not 0 <= class_id < len(class_names):
        raise InputError(
            f"the class map names class {class_id}; there are {len(class_names)} classes, 0 to {len(class_names) - 1}"
        )
    return class_id
