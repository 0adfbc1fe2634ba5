"""The documentation: it builds strictly, opens from a disk on a phone, and leaves nothing out."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import unflip
from browser import PHONE, chromium, open_page
from helpers import spawn_python
from unflip.cli.app import build_app
from unflip.cli.paper import paper_app
from unflip.methods import methods

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILE_NAMES = re.compile(r"^ +- .+: (\S+\.md)$", re.MULTILINE)


@pytest.fixture
def site_parts(monkeypatch: pytest.MonkeyPatch) -> "ModuleType":
    import importlib

    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    return importlib.import_module("site_parts")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    arguments = ("build", "--strict", "--config-file", ROOT / "mkdocs.yml", "--site-dir", folder)
    built = spawn_python("-m", "mkdocs", *arguments, timeout=300, NO_MKDOCS_2_WARNING="1")
    assert built.code == 0, built.err
    return folder


def html_pages(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if page.name != "404.html")  # that one is for servers


def test_the_site_builds_strictly_without_raw_markup(site: Path) -> None:
    pages = html_pages(site)
    assert len(pages) >= len(nav())
    for page in pages:
        text = page.read_text("utf-8")
        assert str(ROOT) not in text, page
        assert not re.search(r":(class|func|meth|attr):", text), page
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.DOTALL):
            raw = re.search(r"^\s*(- |\d+\. |\| ---|```)", paragraph, re.MULTILINE)
            assert not raw, (page, "no list, table or block")


def check_in_browser(site: Path, pages: list[Path]) -> None:
    """Open pages from disk on a phone: no overflow, no errors, no other hosts, and the search works."""
    with chromium() as browser:
        watched = open_page(browser, PHONE)
        for page in pages:
            watched.page.goto(page.as_uri())
            assert watched.overflow() <= 0, page
        watched.page.goto((site / "index.html").as_uri())
        watched.page.fill(".md-search__input", "agnosticmean", force=True)
        watched.page.wait_for_selector(".md-search-result__item", state="attached", timeout=120_000)
        assert watched.errors == []
        assert {address.partition(":")[0] for address in watched.requests} <= {"file", "data", "about"}


def test_pages_open_from_disk_on_a_phone(site: Path) -> None:
    check_in_browser(site, [site / "index.html", site / "commands.html"])


@pytest.mark.soak
def test_every_page_opens_from_disk_on_a_phone(site: Path) -> None:
    check_in_browser(site, html_pages(site))


def nav() -> list[str]:
    return FILE_NAMES.findall((ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2])


def test_what_is_generated_is_what_the_code_has(site_parts: "ModuleType") -> None:
    texts = {path: path.read_text("utf-8") for path in site_parts.PAGES}
    assert [path for path, text in texts.items() if site_parts.fill(text) != text] == []  # python pages/site_parts.py
    found = re.findall(r"<!-- generated: (\w+)", "".join(texts.values()))
    assert set(found) == {"commands", "options", "figures", "gains", "methods", "grids", "result", "source"}


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_a_section(name: str, site_parts: "ModuleType") -> None:
    page = (DOCS / "methods.md").read_text("utf-8")
    assert re.search(rf"^### .*{{#{site_parts.anchor(name)}}}$", page, re.MULTILINE)


def test_every_option_says_what_it_does(site_parts: "ModuleType") -> None:
    rows = [row for row in site_parts.options().splitlines() if row.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if not all(cell.strip() for cell in row.strip("|").split(" | "))] == []


def test_every_command_has_a_section_with_its_flags(site_parts: "ModuleType") -> None:
    own = [
        f"unflip {command.name or command.callback.__name__}"
        for command in build_app().registered_commands
        if command.callback
    ]
    below = [
        f"unflip {name} {command.callback.__name__.replace('_', '-')}"
        for name, group in (("paper", paper_app),)
        for command in group.registered_commands
        if command.callback
    ]
    text = site_parts.commands()
    assert sorted(re.findall("^## (.+)$", text, re.MULTILINE)) == sorted([*own, *below])
    assert re.search(r"^\| `--label-column [^`]+` \|", text, re.MULTILINE)
    assert "<!-- generated: commands -->" in (DOCS / "commands.md").read_text("utf-8")


@pytest.mark.parametrize("name", unflip.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    assert f"::: unflip.{name}\n" in page or f"`unflip.{name}`" in page


def test_every_extra_is_on_the_page_about_installing() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    page = (DOCS / "install.md").read_text("utf-8")
    ours = {"dev", "ci", "docs", "release"}  # for those who work on the package
    assert {*re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)} == {*extras} - ours


def test_a_part_that_is_not_known_is_an_error(site_parts: "ModuleType") -> None:
    with pytest.raises(KeyError):
        site_parts.part("optoins gce")


def test_links_out_of_the_documentation_lead_somewhere(site_parts: "ModuleType") -> None:
    import importlib

    hooks = importlib.import_module("site_hooks")
    assert hooks._target("../CONTRIBUTING.md", "docs", "index.md") == "contributing.md"
    assert hooks._target("../../CONTRIBUTING.md", "docs/results", "results/elr.md") == "../contributing.md"
    assert hooks._target("docs/paper.md", ".", "changelog.md") == "paper.md"
    assert hooks._target("../bench", "docs", "index.md") == "https://github.com/unflip/unflip/tree/main/bench"
    assert hooks._target("../no-such-file", "docs", "index.md") == "../no-such-file"


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_guides_name_exist(name: str) -> None:
    for path in set(re.findall(r"`([\w./-]+/[\w-]+\.(?:py|md|toml|yml)|[\w/]+/)`", (ROOT / name).read_text("utf-8"))):
        places = [ROOT / path, ROOT / "src" / "unflip" / path]
        made = re.search(r"NAME|yours|^(site|checkpoints|build)/", path)
        assert made or any(place.exists() for place in places), path


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 70


REFERENCE = {"api", "commands", "files", "method-api", "options"}
GENERATED = re.compile(r"^<!-- (generated:|unflip paper table) .*?^<!-- end -->$", re.DOTALL | re.MULTILINE)


def test_user_pages_are_few_and_short() -> None:
    pages = {path: path.read_text("utf-8") for path in DOCS.glob("*.md") if path.stem not in REFERENCE}
    assert len(pages) <= 25
    written = {path.stem: GENERATED.sub("", text) for path, text in pages.items()}
    assert sum(len(text.split()) for text in written.values()) <= 30_000
    long = [(name, line) for name, text in written.items() for line in text.splitlines() if len(line) > 160]
    assert [(name, line) for name, line in long if not line.startswith(("|", "!["))] == []


def test_every_study_is_on_the_page_of_results() -> None:
    page = (DOCS / "results.md").read_text("utf-8")
    assert {path.name for path in (DOCS / "results").glob("*.md")} == {*re.findall(r"\(results/([\w-]+\.md)\)", page)}
