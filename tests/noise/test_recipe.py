"""The text of recipes: round trip, and errors that name the step."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unflip.errors import ConfigError
from unflip.noise.recipe import STEPS, Recipe, Step, parse

LEVELS = st.floats(0, 1, exclude_min=True, exclude_max=True)
PMD = st.builds(Step, st.sampled_from(["pmd1", "pmd2", "pmd3"]), LEVELS)
OTHER = st.one_of(
    st.builds(Step, st.sampled_from(["sym", "asym", "asym-pairs", "asym-cycle", "pair"]), LEVELS),
    st.just(Step("matrix", None)),
)
RECIPES = st.builds(
    lambda first, rest: Recipe((*first, *rest)), st.lists(PMD, max_size=1), st.lists(OTHER, min_size=1, max_size=4)
)


@settings(max_examples=30)
@given(RECIPES)
def test_text_and_back(recipe: Recipe) -> None:
    assert parse(str(recipe)) == recipe
    assert str(parse(str(recipe))) == str(recipe)


@settings(max_examples=30)
@given(RECIPES, st.sampled_from(["", " ", "  ", "\t"]))
def test_spaces_and_capitals_do_not_matter(recipe: Recipe, space: str) -> None:
    text = str(recipe).replace(" ", space).replace(":", f"{space}:{space}")
    assert parse(f"{space}{text.upper()}{space}") == recipe


@pytest.mark.parametrize(("text", "same"), [("pmd:I:0.35", "pmd1:0.35"), ("PMD : iii : .2 + sym:.1", "pmd3:.2+sym:.1")])
def test_types_of_pmd_may_be_written_as_in_the_paper(text: str, same: str) -> None:
    assert parse(text) == parse(same)


def test_the_example_of_the_design() -> None:
    recipe = parse("pmd1:0.35 + sym:0.30")
    assert recipe.steps == (Step("pmd1", 0.35), Step("sym", 0.3))
    assert str(recipe) == "pmd1:0.35 + sym:0.3"
    assert recipe.needs_posterior
    assert recipe.steps[0].pmd_kind == 1
    assert not parse("sym:0.3 + matrix").needs_posterior


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a step such as sym:0.3, found nothing"),
        ("   ", "found nothing"),
        (":0.3", "expected a step such as sym:0.3, found ':0.3'"),
        ("pmd1:0.35 + foo:0.3", "unknown step 'foo'"),
        ("pmd:0.35", "did you mean 'pmd"),
        ("pmd1:0.35 +", "expected a step such as sym:0.3, found nothing"),
        ("pmd1:0.35 sym:0.3", "as in pmd1:0.3, found 'pmd1:0.35 sym:0.3'"),
        ("pmd1", "expected pmd1 with a level between 0 and 1, as in pmd1:0.3, found 'pmd1'"),
        ("sym 0.3", "unknown step 'sym 0.3', did you mean 'sym'?"),
        ("sym:", "expected sym with a level between 0 and 1, as in sym:0.3, found 'sym:'"),
        ("sym:+0.3", "as in sym:0.3, found 'sym:'"),
        ("sym:lots", "found 'sym:lots'"),
        ("sym:0_3", "found 'sym:0_3'"),
        ("sym:nan", "found 'sym:nan'"),
        ("sym:0", "level 0 is outside (0, 1)"),
        ("sym:1", "level 1 is outside (0, 1)"),
        ("sym:-0.3", "level -0.3 is outside (0, 1)"),
        ("pair:0.1 + sym:35", "level 35 is outside (0, 1); levels are fractions, try sym:0.35"),
        ("sym:0.3 + pmd1:0.35", "must be the first step"),
        ("pmd1:0.3 + pmd2:0.3", "must be the first step"),
        ("matrix:0.3", "takes no level"),
        ("0.3", "unknown step '0.3'"),
        ("sym:0.3\n+ pair", "found 'pair'"),
    ],
)
def test_errors_name_the_recipe_and_the_step(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    message = str(error.value)
    assert message.startswith(f"noise recipe {text!r}: ")
    assert problem in message
    assert "\n" not in message


@settings(max_examples=30)
@given(st.text(max_size=20))
def test_any_text_is_a_recipe_or_one_line_of_error(text: str) -> None:
    try:
        problem = str(parse(text))
    except ConfigError as error:
        problem = str(error)
    assert len(problem.splitlines()) == 1


@pytest.mark.parametrize("name", STEPS)
def test_every_step_can_be_written(name: str) -> None:
    text = name if name == "matrix" else f"{name}:0.25"
    assert str(parse(text)) == text


def test_reading_a_recipe_imports_no_torch() -> None:
    code = "import sys, unflip.noise.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
