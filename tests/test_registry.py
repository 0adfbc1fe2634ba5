"""Names for parts: ours, other packages', and none."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

import unflip.registry
from unflip.data import datasets
from unflip.errors import ConfigError
from unflip.methods import methods
from unflip.nn import networks
from unflip.registry import Entry, Registry

OWN = (
    Entry("path", "a class of the standard library", "pathlib:Path"),
    Entry("missing", "is imported by nobody", "no_such_module_anywhere:Thing"),
)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let other packages register `added`, and a `path` of their own; return the groups that were asked for."""
    asked: list[str] = []

    def points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [
            EntryPoint("path", "os.path:join", group),
            EntryPoint("added", "foreign_package.part:Part", group),
        ]

    module = ModuleType("foreign_package.part")
    monkeypatch.setattr(module, "Part", object(), raising=False)
    monkeypatch.setitem(sys.modules, "foreign_package", ModuleType("foreign_package"))
    monkeypatch.setitem(sys.modules, "foreign_package.part", module)
    monkeypatch.setattr(unflip.registry, "entry_points", points)
    return asked


def test_a_part_is_loaded_by_its_name() -> None:
    from pathlib import Path

    assert Registry("thing", OWN).load("path") is Path


def test_listing_imports_nothing() -> None:
    registry = Registry("thing", OWN)
    assert [entry.summary for entry in registry] == ["a class of the standard library", "is imported by nobody"]
    assert "missing" in registry
    assert "no_such_module_anywhere" not in sys.modules


def test_an_unknown_name_lists_the_choices_and_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"unknown thing 'pth', did you mean 'path'\?; choose from: missing, path"):
        Registry("thing", OWN).load("pth")


def test_another_package_adds_a_part_through_an_entry_point(foreign: list[str]) -> None:
    registry = Registry("thing", OWN)
    assert registry.names() == ["path", "missing", "added"]
    assert registry.load("added") is sys.modules["foreign_package.part"].Part
    assert next(entry for entry in registry if entry.name == "added").summary == "from foreign_package.part"
    assert foreign == ["unflip.things"]


def test_our_part_wins_over_a_foreign_one_of_the_same_name(foreign: list[str]) -> None:
    from pathlib import Path

    assert Registry("thing", OWN).load("path") is Path


def test_ours_are_listed_first(foreign: list[str]) -> None:
    registry = Registry("thing", OWN)
    assert [entry.name for entry in registry] == registry.names()


def test_a_foreign_name_is_among_the_choices(foreign: list[str]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'added'"):
        Registry("thing", OWN).load("addad")


def test_a_family_makes_its_members_by_name() -> None:
    registry = Registry("thing", [*OWN, Entry("int", "numbers", "builtins:int", family=True)])
    assert registry.load("int:12") == 12
    assert "int" in registry
    for name in ("int", "path:x", "path:", "itn:3"):
        with pytest.raises(ConfigError, match=rf"unknown thing '{name}'.*choose from: int:NAME, missing, path"):
            registry.load(name)


@pytest.mark.parametrize("registry", [methods, networks, datasets], ids=lambda registry: registry.kind)
def test_every_part_of_ours_can_be_loaded_and_has_its_line(registry: Registry) -> None:
    for entry in registry:
        assert entry.load() is not None
        assert entry.summary
        assert "\n" not in entry.summary


@pytest.mark.parametrize("kind", [methods.kind, networks.kind, datasets.kind])
def test_every_kind_has_a_group_that_a_package_can_name(kind: str, foreign: list[str]) -> None:
    assert "added" in Registry(kind, [])
    (group,) = foreign
    assert all(part.isidentifier() for part in group.split("."))  # what the packaging specification allows
