"""What a release says of itself in several places is the same everywhere."""

import re
import tomllib
from pathlib import Path

import unflip

ROOT = Path(__file__).parents[1]
FOR_DEVELOPERS = {"dev", "ci", "docs", "release"}


def test_the_version_has_a_dated_section_and_is_the_one_to_cite() -> None:
    first = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert first is not None
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert first[1] == unflip.__version__
    assert f"\nversion: {first[1]}\ndate-released: {first[2]}\n" in cited


def test_all_holds_every_extra_for_users_and_the_page_lists_them() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("unflip[").removesuffix("]").split(","))
    assert named == set(extras) - FOR_DEVELOPERS - {"all"}
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == named | {"all"}
