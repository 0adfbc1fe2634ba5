"""The error tree, and the sentence about unknown names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unflip import errors
from unflip.errors import MissingExtraError, UnflipError, unknown

NAMES = st.lists(st.text("abcdefgh-_", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


@pytest.mark.parametrize(
    "kind", [errors.InputError, errors.ConfigError, errors.RunFolderError, errors.DivergedError, MissingExtraError]
)
def test_every_error_is_an_unflip_error(kind: type[Exception]) -> None:
    assert issubclass(kind, UnflipError)


def test_a_missing_extra_says_what_to_install() -> None:
    assert str(MissingExtraError("tensorboard", "board")) == (
        "tensorboard is not installed; try: pip install 'unflip[board]'"
    )


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("gcee", "gce"),
        ("standrad", "standard"),
        ("lr", "optimizer.lr"),
        ("data.valfraction", "data.val_fraction"),
        ("optimizer.momentm", "optimizer.momentum"),
    ],
)
def test_an_unknown_name_is_told_the_closest(name: str, closest: str) -> None:
    choices = ["gce", "standard", "optimizer.lr", "optimizer.momentum", "data.val_fraction"]
    assert f"unknown thing '{name}', did you mean '{closest}'?" in unknown("thing", name, choices)


def test_a_name_like_no_other_is_told_all_choices_in_order() -> None:
    assert unknown("method", "xyzzy", ["sl", "gce"]) == "unknown method 'xyzzy'; choose from: gce, sl"


def test_a_long_list_is_left_out_when_the_closest_is_known() -> None:
    choices = [f"choice-{i}" for i in range(100)]
    text = unknown("name", "choice-55x", choices)
    assert "did you mean 'choice-55'?" in text
    assert "choose from" not in text
    assert "choice-99" in unknown("name", "qqqq", choices)


@given(NAMES, st.text("abcdefgh-_", min_size=1, max_size=8))
def test_the_sentence_is_one_line_and_names_a_choice(choices: list[str], name: str) -> None:
    text = unknown("name", name, choices)
    assert "\n" not in text
    assert f"'{name}'" in text
    assert any(choice in text for choice in choices)


@given(NAMES)
def test_a_choice_with_a_slip_finds_itself(choices: list[str]) -> None:
    target = max(choices, key=len) * 3
    assert f"did you mean '{target}'" in unknown("name", target[:-1], [target, "zzzzz"])
