"""The pages in a real browser: they open from disk, fetch nothing, fit a phone and print."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor

from browser import DESK, PHONE, chromium, open_page
from helpers import blobs, quick_train, write_npz
from reviewing import issue, write_issues
from unflip.report.page import THEME
from unflip.report.run_report import write_report

HOSTILE = [
    "<script>document.title = 'broken into'</script>",
    "<img src=x onerror=\"document.title='broken into'\">",
    "averyverylongnamewithoutanyspaces" * 6,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of digits with pictures, one of 100 classes with features, and one with hostile names."""
    root = tmp_path_factory.mktemp("pages")
    content = blobs(classes=100, train=1000, test=200, columns=128)
    hundred = write_npz(root / "hundred.npz", **content)
    hostile = write_npz(root / "hostile.npz", **blobs(), class_names=np.array(HOSTILE))
    settings = {"plc.warmup": 1}
    runs = {
        name: quick_train(data, root / name, method="mddc", noise="sym:0.3", epochs=3, settings=settings)
        for name, data in (("digits", Path("digits")), ("hundred", hundred), ("hostile", hostile))
    }
    for name in ("digits", "hostile"):
        write_issues(
            runs[name].folder,
            outlier=issue([7, 3], [HOSTILE[2], "x" * 300]),
            near_duplicate=issue([4, 9, 5], ["nearly the same"] * 3, groups=[0, 0, 0]),
            class_quality=issue([-1], [HOSTILE[1]]),
        )
    return {name: write_report(run) for name, run in runs.items()}


LOOKS = [
    pytest.param(PHONE, False, id="phone-light"),
    *(
        pytest.param(size, dark, id=f"{name}-{'dark' if dark else 'light'}", marks=pytest.mark.soak)
        for name, size, dark in (("phone", PHONE, True), ("desk", DESK, False), ("desk", DESK, True))
    ),
]


@pytest.mark.parametrize(("size", "dark"), LOOKS)
@pytest.mark.parametrize("name", ["digits", "hundred", "hostile"])
def test_a_page_opens_from_disk_and_fits(
    browser: Any, pages: dict[str, Path], name: str, size: tuple[int, int], dark: bool
) -> None:
    watched = open_page(browser, size, dark=dark)
    page = watched.page
    page.goto(pages[name].as_uri())
    for summary in page.locator("summary").all():
        summary.click()
    assert watched.errors == []
    assert [url for url in watched.requests if not url.startswith("data:")] == [pages[name].as_uri()]
    assert watched.overflow() == 0
    assert "broken into" not in page.title()
    assert pages[name].stat().st_size < 5_000_000
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")  # so the style was let in
    assert all(page.locator("img").evaluate_all("all => all.map(image => image.naturalWidth > 0)"))
    page.context.close()


def contrast(one: str, other: str) -> float:
    """The contrast of two colors, as WCAG 2 defines it."""

    def luminance(color: str) -> float:
        parts = [float(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["light", "dark"])
def test_text_and_lines_stand_out(browser: Any, pages: dict[str, Path], dark: bool) -> None:
    page = open_page(browser, dark=dark).page
    page.goto(pages["digits"].as_uri())
    color = "(selector, key) => getComputedStyle(document.querySelector(selector))[key]"

    def read(selector: str, key: str) -> str:
        return str(page.evaluate(f"([selector, key]) => ({color})(selector, key)", [selector, key]))

    paper = read("body", "backgroundColor")
    for selector, key, behind, least in (
        ("body", "color", paper, 7.0),
        ("footer", "color", paper, 4.5),
        ("summary", "color", paper, 4.5),
        (".tile dt", "color", read(".tile", "backgroundColor"), 4.5),
        (".box p", "color", read(".box", "backgroundColor"), 4.5),
    ):
        assert contrast(read(selector, key), behind) >= least, (selector, contrast(read(selector, key), behind))
    colors = {name: ImageColor.getrgb(pair[dark]) for name, pair in THEME.items()}
    for name, least in (("soft", 4.5), ("c0", 3.0), ("c1", 3.0), ("c2", 3.0), ("c4", 3.0), ("c5", 3.0)):
        assert contrast(f"rgb{colors[name]}", paper) >= least
    for summary in page.locator("summary").all():
        summary.click()
    chart = Image.open(BytesIO(page.locator(".chart").first.screenshot())).convert("RGB")
    assert colors["c0"] in {color for _, color in chart.getcolors(10**6) or ()}  # a chart knows the mode, too
    page.context.close()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["digits", "hundred"])
def test_a_page_fits_on_paper(browser: Any, pages: dict[str, Path], name: str) -> None:
    watched = open_page(browser, (720, 1000))  # A4 with margins
    watched.page.goto(pages[name].as_uri())
    watched.page.emulate_media(media="print")
    assert watched.overflow() == 0
    watched.page.context.close()


def test_a_page_prints_in_light_colors_with_everything_open(browser: Any, pages: dict[str, Path]) -> None:
    page = open_page(browser, dark=True).page
    page.goto(pages["hundred"].as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    box = page.locator("details pre").last.bounding_box()
    assert box is not None
    assert box["height"] > 100
    page.context.close()
