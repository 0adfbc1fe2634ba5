"""The page in a real browser: a whole review by keyboard, filters, two people, reloading, export, hostile names."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import DESK, PHONE, Watched, chromium, open_page
from helpers import blobs, forget_quality, quick_train, write_npz
from pictures import write_picture
from reviewing import Client, issue, served, write_issues
from unflip import train
from unflip.report.page import written_quality
from unflip.review import Order
from unflip.review.decisions import Choice, Decision, State
from unflip.review.examples import Examples, Filter
from unflip.review.review import Review

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MARKUP = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as found:
        yield found


@pytest.fixture(autouse=True)
def _closed(browser: "Browser") -> Iterator[None]:
    """Close a test's pages: they would go on asking its server, which is gone."""
    yield
    for context in browser.contexts:
        context.close()


def visit(browser: "Browser", address: str, size: tuple[int, int] = DESK, *, dark: bool = False) -> Watched:
    """Open the page and wait until it can be used."""
    watched = open_page(browser, size, dark=dark)
    watched.page.goto(address)
    watched.page.wait_for_selector("body[data-ready]")
    return watched


def press(page: "Page", *keys: str) -> None:
    """Press keys as fast as they come."""
    for key in keys:
        page.keyboard.press(key)


def said(page: "Page", text: str) -> None:
    """Wait until the page says so, to those who listen."""
    page.wait_for_function("text => document.getElementById('live').textContent.includes(text)", arg=text)


def focused(page: "Page") -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.id"))


def done(page: "Page", count: int) -> None:
    page.wait_for_function(
        "text => document.getElementById('progress').textContent.startsWith(text)", arg=f"{count} of "
    )


def decision_about(review: Review, index: int) -> Decision:
    """What holds for an example that somebody decided."""
    decision = review.decisions.current(index)
    assert decision is not None
    return decision


def assert_clean(watched: Watched, address: str) -> None:
    """Nothing went wrong, and nothing was asked of anybody else."""
    assert watched.errors == []
    origin = address.partition("/?")[0]
    assert all(url.startswith((f"{origin}/", "data:")) for url in watched.requests)


def test_a_whole_review_by_keyboard_ends_in_an_export_that_training_takes(
    browser: "Browser", run: Path, tmp_path: Path
) -> None:
    with served(run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        assert "token" not in page.url
        order = [one["index"] for one in Client(address).get("/api/examples?listed=true&count=60").json["examples"]]
        assert focused(page).startswith(f"Example {order[0]}, given ")
        press(page, "a", "k", "s")  # three decisions without waiting
        done(page, 3)
        assert [review.decisions.states[i] for i in order[:3]] == [1, 2, 4]
        assert focused(page).startswith(f"Example {order[3]}, ")
        given, suggested = int(review.examples.given[order[3]]), int(review.examples.suggested[order[3]])
        third = next(label for label in range(10) if label not in (given, suggested))
        press(page, "c")
        page.wait_for_selector("#chooser[open]")
        page.keyboard.type(str(third))
        page.wait_for_selector(f"#chooser-list [aria-selected=true] >> text='{third}'")
        press(page, "Enter")
        done(page, 4)
        assert decision_about(review, order[3]).label == third
        press(page, "Enter")  # one at a time
        page.wait_for_selector("#single:not([hidden]) .neighbors img")
        assert focused(page).startswith(f"Example {order[4]}, ")
        assert page.locator("#single .history").inner_text()
        press(page, "a", "a")
        done(page, 6)
        press(page, "ArrowRight", "p", "Escape")
        page.wait_for_selector("#grid:not([hidden])")
        press(page, "x", "Shift+ArrowRight", "Shift+ArrowRight")
        said(page, "3 selected")
        press(page, "k")
        done(page, 9)
        assert [review.decisions.states[i] for i in order[6:9]] == [2, 2, 2]
        press(page, "u")  # all three at once
        done(page, 6)
        said(page, "3 decisions undone")
        press(page, "u")
        done(page, 5)
        press(page, "?")
        page.wait_for_selector("#help[open]")
        press(page, "Escape")
        with page.expect_download() as download:
            page.get_by_role("link", name="Export").click()
        saved = tmp_path / "reviewed.csv"
        download.value.save_as(saved)
        assert_clean(watched, address)
    rows = {int(row["index"]): int(row["label"]) for row in csv.DictReader(saved.read_text().splitlines())}
    assert rows == {i: decision_about(review, i).label for i in (order[0], order[1], order[3], order[4])}
    again = train("digits", tmp_path / "again", limit=400, noise="sym:0.3", reviewed=saved, epochs=1, device="cpu")
    assert again.result["reviewed"] == 4


@pytest.mark.soak
def test_what_is_suggested_decides_the_main_button_and_the_color_of_the_given_label(
    browser: "Browser", run: Path
) -> None:
    with served(run) as (address, review):
        page = visit(browser, address).page
        page.select_option("#pair", "all")
        differs = review.examples.given != review.examples.suggested
        for disputed, main in ((True, "accept"), (False, "keep")):
            go_to(page, review, int((differs == disputed).argmax()))
            assert page.locator("#actions .main").get_attribute("id") == main
            assert (page.locator("#single h2 .given").count() > 0) == disputed
        page.context.close()


def test_all_of_a_kind_are_accepted_at_once_and_undone_at_once(browser: "Browser", run: Path) -> None:
    with served(run) as (address, review):
        watched = visit(browser, address)
        page, count = watched.page, int(review.examples.mask(Filter(listed=True), review.decisions.states).sum())
        assert 60 < count < 1000
        press(page, "Control+a")
        said(page, f"60 selected, {count - 60} more match")
        press(page, "Control+a")
        said(page, f"{count} selected")
        press(page, "a")
        said(page, f"{count} decided")
        issues = int(review.examples.mask(Filter(differs=True), review.decisions.states).sum())
        assert int((review.decisions.states == State.ACCEPTED).sum()) == issues
        assert (
            int((review.decisions.states == State.KEPT).sum()) == count - issues
        )  # doubtful: the given one is suggested
        press(page, "u")
        said(page, f"{count} decisions undone")
        assert not review.decisions.states.any()
        assert_clean(watched, address)


def test_filters_show_what_they_say_and_survive_reloading(browser: "Browser", run: Path) -> None:
    with served(run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        given, suggested, count = review.examples.pairs[0]
        page.select_option("#pair", f"{given}-{suggested}")
        said(page, f"{count} examples")
        tiles = page.locator(".tile")
        assert tiles.count() == count
        assert {re.sub(r"label quality.*", "", text, flags=re.S).strip() for text in tiles.all_inner_texts()} == {
            f"{given} → {suggested}"
        }
        low = int(
            (
                review.examples.mask(Filter(given=given, suggested=suggested), review.decisions.states)
                & (review.examples.columns["label_quality"] < 0.05)
            ).sum()
        )
        page.select_option("#below", "0.05")
        page.wait_for_url(re.compile("below=0.05"))  # what is said may be the same as before
        said(page, f"{low} example{'' if low == 1 else 's'}")
        assert tiles.count() == low
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.input_value("#below") == "0.05"
        page.select_option("#below", "")
        said(page, f"{count} examples")
        page.locator(".tile").first.click()
        press(page, "a", "n")
        done(page, 1)
        page.select_option("#state", "accepted")
        said(page, "1 example")
        page.select_option("#pair", "all")
        page.select_option("#class", str(given))
        page.select_option("#state", "any")
        expected = int(((review.examples.given == given) | (review.examples.suggested == given)).sum())
        said(page, f"{expected} examples")
        page.locator(".tile").nth(3).click()
        before = focused(page)
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert focused(page) == before
        assert page.locator("#class").input_value() == str(given)
        assert page.locator("#place").inner_text().endswith(f"of {expected}")
        press(page, "Enter")
        page.wait_for_selector("#single:not([hidden])")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#single").is_visible()
        assert focused(page) == before
        assert_clean(watched, address)


@pytest.mark.soak
def test_what_one_was_not_sure_of_is_gone_through_again(browser: "Browser", run: Path) -> None:
    with served(run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        press(page, "s", "s", "s")
        done(page, 3)
        page.select_option("#state", "unsure")
        said(page, "3 examples")
        page.locator(".tile").first.click()
        press(page, "a", "k", "a")
        page.wait_for_function("() => document.querySelectorAll('.badge.accepted').length === 2")
        said(page, "This is the last example.")
        assert sorted(row.state.name for row in review.decisions.decided()) == ["ACCEPTED", "ACCEPTED", "KEPT"]
        assert_clean(watched, address)


@pytest.mark.soak
def test_pages_forward_and_back(browser: "Browser", run: Path) -> None:
    with served(run) as (address, _):
        watched = visit(browser, address)
        page = watched.page
        page.select_option("#pair", "all")
        said(page, "400 examples")
        page.locator(".tile").first.click()
        place = page.locator("#place")
        assert place.inner_text() == "1 to 60 of 400"
        press(page, "]")
        page.wait_for_selector("#place >> text='61 to 120 of 400'")
        press(page, "p")  # over the edge, back
        page.wait_for_selector("#place >> text='1 to 60 of 400'")
        assert page.locator(".tile").nth(59).get_attribute("tabindex") == "0"
        page.get_by_role("button", name="Next page").click()
        page.wait_for_selector("#place >> text='61 to 120 of 400'")
        assert_clean(watched, address)


def test_two_people_at_once_are_shown_each_others_decisions_before_they_replace_them(
    browser: "Browser", run: Path
) -> None:
    with served(run) as (address, review):
        ann, bob = visit(browser, address), visit(browser, address)
        bob.page.fill("#reviewer", "bob")
        bob.page.locator(".tile").first.click()
        index = int(focused(bob.page).split(",")[0].removeprefix("Example "))
        press(ann.page, "a")
        done(ann.page, 1)
        press(bob.page, "k")  # he has not seen it
        bob.page.wait_for_selector("#conflict[open]")
        assert f"Example {index}: ann accepted" in bob.page.locator("#conflict-list").inner_text()
        press(bob.page, "Escape")
        bob.page.wait_for_selector("#conflict:not([open])", state="attached")
        assert decision_about(review, index).reviewer == "ann"
        second = int(focused(bob.page).split(",")[0].removeprefix("Example "))
        assert second != index
        press(ann.page, "a")  # Ann is at the same one
        done(ann.page, 2)
        press(bob.page, "k")
        bob.page.wait_for_selector("#conflict[open]")
        bob.page.get_by_role("button", name="Replace with mine").click()
        done(bob.page, 2)
        held = review.decisions.current(second)
        assert held is not None
        assert (held.reviewer, held.version, held.state.name) == ("bob", 2, "KEPT")
        said(ann.page, f"bob decided example {second}: kept")  # she is told without asking
        press(ann.page, "u")  # hers that still holds is the first
        ann.page.wait_for_function("() => document.getElementById('progress').textContent.startsWith('1 of')")
        assert review.decisions.states[index] == 0
        assert review.decisions.current(second) == held
        for watched in (ann, bob):
            assert_clean(watched, address)


def test_it_works_with_the_mouse_and_tells_a_screen_reader(browser: "Browser", run: Path) -> None:
    with served(run) as (address, _):
        watched = visit(browser, address)
        page = watched.page
        grid = page.get_by_role("listbox", name="Examples")
        options = grid.get_by_role("option")
        assert options.count() == 60
        assert options.nth(2).get_attribute("aria-posinset") == "3"
        assert re.fullmatch(
            r"Example \d+, given \d, suggested \d, label quality [\d<>]+ %, undecided",
            str(options.nth(2).get_attribute("aria-label")),
        )
        options.nth(4).click(modifiers=["Control"])
        options.nth(6).click()
        page.get_by_role("button", name="Select").click()
        assert grid.locator("[aria-selected=true]").count() == 2
        page.get_by_role("button", name="Accept").click()
        done(page, 2)
        said(page, "2 decided")
        options.nth(10).dblclick()
        page.wait_for_selector("#single:not([hidden])")
        page.get_by_role("button", name="Unsure").click()
        done(page, 3)
        page.get_by_role("button", name="Other class").click()
        page.wait_for_selector("#chooser[open]")
        assert page.get_by_role("combobox", name="Class, type to search").is_visible()
        page.locator("#chooser-list [role=option]").nth(3).click()
        done(page, 4)
        page.get_by_role("button", name="Undo").click()
        done(page, 3)
        page.get_by_role("button", name="Grid").click()
        page.wait_for_selector("#grid:not([hidden])")
        for toolbar in page.locator("button, select, input, a").all():
            if toolbar.is_visible():
                name = toolbar.evaluate("e => e.innerText || e.labels?.[0]?.innerText || e.getAttribute('aria-label')")
                assert name.strip()
        assert_clean(watched, address)


HOSTILE = [
    "<img src=x onerror=document.title='owned'>",
    "</script><script>document.title='owned'</script>",
    "\"'><svg onload=document.title='owned'>",
]


def test_names_from_the_data_are_only_ever_text(browser: "Browser", tmp_path: Path) -> None:
    files = [f"{i}-<img src=x onerror=alert(1)>&quot;'.png" for i in range(24)]
    for i, name in enumerate(files):
        write_picture(tmp_path / name, i % 3, (24, 24))
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((name, HOSTILE[i % 3]) for i, name in enumerate(files))])
    settings = {"optimizer.batch_size": 8}
    run = train(tmp_path / "list.csv", tmp_path / "<b>run", network="mlp", epochs=1, settings=settings, device="cpu")
    with served(run.folder) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        page.on("dialog", lambda dialog: watched.errors.append(dialog.message))
        page.fill("#reviewer", "<b onclick=alert(1)>eve")
        page.select_option("#pair", "all")
        said(page, "24 examples")
        page.locator(".tile").first.click()
        press(page, "Enter")
        page.wait_for_selector("#single:not([hidden]) .neighbors")
        press(page, "c")
        page.wait_for_selector("#chooser[open]")
        page.keyboard.type("svg")
        press(page, "Enter")
        done(page, 1)
        (decided,) = review.decisions.decided()
        assert decided.label is not None
        assert review.examples.class_names[decided.label] == HOSTILE[2]
        assert decided.reviewer == "<b onclick=alert(1)>eve"
        press(page, "p", "Escape")
        assert page.title() == "Review <b>run"
        text = page.locator("body").inner_text()
        assert HOSTILE[0] in text
        assert page.locator("img[src=x], svg, b, main script").count() == 0
        assert_clean(watched, address)
        exported = Client(address).get("/api/export.csv").body.decode()
    assert HOSTILE[2] in list(csv.reader(exported.splitlines()))[1]


@pytest.mark.soak
def test_features_without_pictures_are_shown_as_rows(browser: "Browser", tmp_path: Path) -> None:
    run = quick_train(write_npz(tmp_path / "a.npz", **blobs()), tmp_path / "run", epochs=2)
    with served(run.folder) as (address, _):
        watched = visit(browser, address)
        page = watched.page
        page.select_option("#pair", "all")
        said(page, "150 examples")
        assert page.locator(".tile img").count() == 0
        page.locator(".tile").first.click()
        press(page, "Enter")
        page.wait_for_selector("#single:not([hidden]) .neighbors")
        assert page.locator("#single img").count() == 0
        assert page.locator("#single .values dt").all_inner_texts() == [f"column {i}" for i in range(6)]
        assert "distance" in page.locator(".neighbors li").first.inner_text()
        assert_clean(watched, address)


def go_to(page: "Page", review: Review, index: int) -> None:
    """Open an example in the single view by the page's address."""
    page.evaluate(
        "place => { location.hash = place }",
        f"pair=all&state=any&view=single&at={review.examples.ranking(Order.LOWEST_QUALITY).ranks[index]}&from={review.examples.ranking(Order.LOWEST_QUALITY).ranks[index]}",
    )
    page.reload()
    page.wait_for_selector("#single:not([hidden]) .neighbors")


@pytest.mark.parametrize(
    ("size", "dark"), [pytest.param(PHONE, True, marks=pytest.mark.soak), (DESK, False)], ids=["phone", "desk"]
)
def test_texts_are_read_as_texts(browser: "Browser", texts_run: Path, size: tuple[int, int], dark: bool) -> None:
    with served(texts_run) as (address, review):
        examples = review.examples
        doubted = next(i for i in range(11, 120, 22) if examples.given[i] != examples.suggested[i])
        watched = visit(browser, address, size, dark=dark)
        page = watched.page
        page.select_option("#pair", "all")
        said(page, "120 examples")
        first = review.brief(int(examples.ranking(Order.LOWEST_QUALITY).order[0]))
        content = f", undecided: {', '.join([first['text'], *(f'{name} {value}' for name, value in first['cells'])])}"
        shown = [review.brief(int(i)) for i in examples.ranking(Order.LOWEST_QUALITY).order[:60]]
        assert page.locator(".tile .text").count() == sum(one["text"].strip() != "" for one in shown)
        assert page.locator(".tile").first.locator("dt").all_inner_texts() == [name for name, _ in first["cells"]]
        assert page.locator(".tile .text").first.text_content() == first["text"]
        assert str(page.locator(".tile").first.get_attribute("aria-label")).endswith(content)
        assert max(page.locator(".tile .text").evaluate_all("all => all.map((e) => e.clientHeight)")) <= 5 * 24
        assert watched.overflow() == 0
        assert worst_contrast(page) >= 4.5
        go_to(page, review, 30)  # long, with markup in it
        box = page.get_by_role("region", name="Text of example 30")
        assert box.text_content() == review.detail(30)["whole_text"]
        assert "\n\n    <img" in str(box.text_content())
        assert page.locator("main img").count() == 0
        box.focus()
        press(page, "End")
        page.wait_for_function("() => document.querySelector('.passage').scrollTop > 0")
        assert review.decisions.decide(
            [Choice(30, 0, State.KEPT, int(examples.given[30]))], person="f" * 32, reviewer="bob", request="12345678"
        )
        said(page, "bob just decided this example")
        assert box.evaluate("box => box.scrollTop > 0 && box === document.activeElement")  # what is read stays there
        go_to(page, review, doubted)
        assert page.locator(".values dt").all_inner_texts() == ["day", "number", "note"]
        assert page.locator(".values dd").nth(1).inner_text() == str(20240101 + doubted)
        assert watched.overflow() == 0
        assert worst_contrast(page) >= 4.5
        go_to(page, review, 4)
        assert page.locator(".passage").count() == 0  # the text is empty, but other columns are not
        assert page.locator("#single .values h3").inner_text() == "Columns"
        assert "2024" in page.locator(".neighbors .cells").first.inner_text()
        go_to(page, review, 5)
        assert page.locator(".values dd").first.inner_text() == "empty"
        assert page.title() == "Review run"
        assert_clean(watched, address)


def test_a_search_by_keyboard_stays_after_reloading_and_decides_nothing(browser: "Browser", texts_run: Path) -> None:
    with served(texts_run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        page.select_option("#pair", "all")
        said(page, "120 examples")
        page.locator(".tile").first.focus()
        press(page, "/")
        page.keyboard.type("Note: OUT")
        press(page, "Enter")
        said(page, "40 examples")
        assert page.evaluate("document.activeElement.id") == "search"
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.input_value("#search") == "Note: OUT"
        assert page.locator("#place").inner_text().endswith("of 40")
        page.fill("#search", "akrs")
        press(page, "Enter")
        page.locator("#message").wait_for(state="visible")
        said(page, "0 examples")
        page.fill("#search", "20240107")
        press(page, "Enter")
        said(page, "1 example")
        press(page, "Escape", "k")
        done(page, 1)
        assert not review.decisions.states[:6].any()
        assert decision_about(review, 6).state is State.KEPT
        assert_clean(watched, address)


def test_a_quality_is_written_as_in_the_report(browser: "Browser", run: Path) -> None:
    told = {
        None: "unknown", 0: "<1 %", 3e-7: "<1 %", 0.0099: "<1 %", 0.01: "1 %", 0.125: "13 %", 0.286: "29 %",
        0.989: "99 %", 0.99: "99 %", 0.992: ">99 %", 0.9999999: ">99 %", 1: "100 %",
    }  # fmt: skip
    with served(run) as (address, _):
        page = visit(browser, address).page
        code = "async (shares) => { const { percent } = await import('/static/dom.js'); return shares.map(percent); }"
        assert page.evaluate(code, list(told)) == list(told.values())
    assert [written_quality(share).replace("\u00a0", " ") for share in told] == list(told.values())


@pytest.mark.soak
def test_what_is_not_known_is_said_rather_than_shown_as_nothing(browser: "Browser", run: Path) -> None:
    forget_quality(run, range(400))
    with served(run) as (address, _):
        watched = visit(browser, address)
        page = watched.page
        assert "label quality unknown" in focused(page)
        assert page.locator(".tile .figures").first.inner_text() == "label quality unknown"
        press(page, "Enter")
        page.wait_for_selector("#single:not([hidden]) .probabilities")
        assert "Label quality: unknown" in page.locator("#single .facts").inner_text()
        assert page.locator("#single .probabilities thead th").all_inner_texts() == ["network"]  # no Gaussian
        networks = page.locator("#single .probabilities tbody td")
        assert networks.locator("meter").count() == networks.count() >= 1
        assert_clean(watched, address)


@pytest.mark.parametrize("size", [PHONE, pytest.param(DESK, marks=pytest.mark.soak)], ids=["phone", "desk"])
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["light", "dark"])
def test_nothing_sticks_out_and_text_can_be_read(
    browser: "Browser", run: Path, size: tuple[int, int], dark: bool
) -> None:
    with served(run) as (address, _):
        watched = visit(browser, address, size, dark=dark)
        page = watched.page
        press(page, "a", "k", "s")
        done(page, 3)
        page.select_option("#state", "any")
        said(page, "examples")
        assert watched.overflow() == 0
        assert worst_contrast(page) >= 4.5
        page.locator(".tile").first.click()
        press(page, "Enter")
        page.wait_for_selector(".neighbors")
        assert watched.overflow() == 0
        assert worst_contrast(page) >= 4.5
        assert_clean(watched, address)


def worst_contrast(page: "Page") -> float:
    """Return the smallest contrast between a text and what it stands on, by WCAG 2's formula."""
    colors = page.evaluate(
        """() => {
          const own = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
          const clear = (e) => getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)';
          const texts = [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.disabled
            && !e.closest('#toast, #live, dialog') && own(e));
          return texts.map((e) => {
            let ground = e;
            while (clear(ground) && ground.parentElement) ground = ground.parentElement;
            return [getComputedStyle(e).color, getComputedStyle(ground).backgroundColor];
          });
        }"""
    )

    def light(color: str) -> float:
        assert color.startswith("rgb("), color
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((light(one), light(other)))
        return (high + 0.05) / (low + 0.05)

    return min(contrast(ink, paper) for ink, paper in colors)


def test_the_page_says_when_the_server_is_gone(browser: "Browser", run: Path) -> None:
    with served(run) as (address, _):
        watched = visit(browser, address)
    press(watched.page, "a")
    said(watched.page, "No response from the server")
    assert json.dumps(watched.requests[0])
    assert focused(watched.page).endswith("undecided")  # what was not saved is not shown as decided


def test_a_issue_has_its_filter_its_reasons_and_its_removal(browser: "Browser", run: Path) -> None:
    write_issues(
        run,
        outlier=issue([7, 3], ["far from every class", MARKUP]),
        near_duplicate=issue([40, 8, 20, 41, 9], ["nearly the same"] * 5, groups=[5, 2, 2, 5, 2]),
    )
    with served(run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        options = page.locator("#issue option").all_inner_texts()
        assert options == ["any", "outlier (2)", "near duplicate (5)"]
        page.select_option("#issue", "outlier")
        page.wait_for_selector(".tile:nth-child(2):last-child")
        assert page.locator("#pair").input_value() == "all"
        assert page.locator("#order").is_disabled()
        assert page.locator("#tile-3 .issue").inner_text() == f"outlier {MARKUP}"
        page.locator("#tile-7").click()
        press(page, "r")
        done(page, 1)
        assert decision_about(review, 7).state == State.REMOVED
        assert page.locator("#tile-7 .badge").inner_text() == "removed"
        page.select_option("#issue", "near_duplicate")
        page.wait_for_selector("#tile-40")
        assert [tile.get_attribute("id") for tile in page.locator(".tile").all()] == [
            f"tile-{i}" for i in (40, 41, 8, 9, 20)
        ]
        page.locator("#tile-9").click()
        press(page, "g")
        said(page, "3 selected")
        press(page, "g")
        said(page, "2 selected: all but example 8")
        press(page, "r")
        done(page, 2)
        assert [int(review.decisions.states[i]) for i in (8, 9, 20)] == [0, State.REMOVED, State.REMOVED]
        press(page, "u")
        said(page, "2 decisions undone")
        done(page, 0)
        assert not review.decisions.states[[8, 9, 20]].any()
        page.locator("#tile-20").click()
        press(page, "Enter")
        page.wait_for_selector("#single .neighbors li[aria-current]")
        assert page.locator("#single section:has(h3:text('Group of near-duplicates')) li").count() == 3
        assert "near duplicate nearly the same" in page.locator("#single .facts").inner_text()
        page.select_option("#issue", "")
        page.wait_for_selector("#grid:not([hidden])")
        assert page.locator("#pair").input_value() == "listed"
        assert_clean(watched, address)


@pytest.mark.soak
def test_of_a_group_whose_first_is_removed_the_next_is_kept(browser: "Browser", run: Path) -> None:
    write_issues(run, near_duplicate=issue([8, 9, 20, 40, 41], ["same"] * 5, groups=[2, 2, 2, 5, 5]))
    with served(run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        page.select_option("#issue", "near_duplicate")
        page.wait_for_selector("#tile-8")
        page.locator("#tile-8").click()
        press(page, "r", "g")
        said(page, "2 selected")
        press(page, "g")
        said(page, "1 selected: all but example 9")
        press(page, "r")
        done(page, 2)
        assert [int(review.decisions.states[i]) for i in (8, 9, 20)] == [State.REMOVED, 0, State.REMOVED]
        page.locator("#tile-9").click()
        press(page, "g", "g", "r")  # it is the last
        said(page, "only example 9 of its group is left")
        assert page.locator("#target").inner_text() == "0 selected"
        press(page, "Escape", "r")  # and goes only if asked for by itself
        done(page, 3)
        page.locator("#tile-20").click()
        press(page, "g")
        said(page, "All examples of this group are removed.")
        assert not review.decisions.states[[40, 41]].any()
        assert_clean(watched, address)


@pytest.mark.soak
def test_no_more_are_selected_than_can_be_decided_at_once(browser: "Browser", tmp_path: Path) -> None:
    run = quick_train(write_npz(tmp_path / "a.npz", **blobs(train=1100)), tmp_path / "run", epochs=1)
    order = Examples(run).ranking(Order.LOWEST_QUALITY).order.tolist()
    groups = [order[0], *order[-5:]], [order[1], *order[100:1090]]
    rows = [(i, group) for group, members in enumerate(groups) for i in members]
    reasons = ["same"] * len(rows)
    write_issues(run.folder, near_duplicate=issue([i for i, _ in rows], reasons, groups=[g for _, g in rows]))
    with served(run.folder) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        page.select_option("#pair", "all")
        said(page, "1,100 examples")
        page.locator(f"#tile-{order[0]}").click()
        press(page, "Control+a", "Control+a")
        said(page, "1,000 selected, the maximum, 100 more match")
        press(page, "g")
        said(page, "1,000 selected: no room for 5 more of this group")
        press(page, "k")
        said(page, "1,000 decided")
        press(page, "u")
        said(page, "1,000 decisions undone")
        page.locator(f"#tile-{order[1]}").click()
        press(page, "g")
        said(page, "991 selected")
        press(page, "Control+a")
        said(page, "1,000 selected, the maximum")
        assert page.locator(".tile[aria-selected=true]").count() == 10
        press(page, "k")
        said(page, "1,000 decided")
        assert int((review.decisions.states == State.KEPT).sum()) == 1000
        assert_clean(watched, address)


@pytest.mark.soak
def test_nobody_is_told_that_somebody_else_decided_what_they_did_themselves(browser: "Browser", run: Path) -> None:
    with served(run) as (address, review):
        watched = visit(browser, address)
        page = watched.page
        press(page, "a", "p", "x", "u", "k")  # selected before the undo
        said(page, "kept")
        press(page, "x", "Shift+ArrowRight", "s", "u")  # two that are undone on the same page
        said(page, "2 decisions undone")
        press(page, "a", "Control+a")
        said(page, "60 selected")
        press(page, "k")
        said(page, "60 decided")
        assert page.locator("#conflict").is_hidden()
        assert int((review.decisions.states == State.KEPT).sum()) == 60
        assert_clean(watched, address)


@pytest.mark.soak
def test_the_order_can_be_chosen_and_stays_after_reloading(browser: "Browser", run: Path) -> None:
    with served(run) as (address, _):
        watched = visit(browser, address)
        page = watched.page
        assert page.locator("#found").is_hidden()
        page.select_option("#order", "informative")
        wanted = Client(address).get("/api/examples?listed=true&state=open&order=informative&count=3").json["examples"]
        page.wait_for_function("id => document.querySelector('.tile').id === id", arg=f"tile-{wanted[0]['index']}")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#order").input_value() == "informative"
        assert page.locator(".tile").first.get_attribute("id") == f"tile-{wanted[0]['index']}"
        assert_clean(watched, address)


@pytest.mark.parametrize("size", [PHONE, pytest.param(DESK, marks=pytest.mark.soak)])
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_issues_fit_the_window(browser: "Browser", run: Path, size: tuple[int, int], dark: bool) -> None:
    write_issues(run, near_duplicate=issue([40, 41], ["x" * 400, "nearly the same"], groups=[0, 0]))
    with served(run) as (address, _):
        watched = visit(browser, address, size, dark=dark)
        watched.page.select_option("#issue", "near_duplicate")
        watched.page.wait_for_selector("#tile-40")
        assert watched.overflow() <= 0
        watched.page.locator("#tile-40").click()
        press(watched.page, "Enter")
        watched.page.wait_for_selector("#single .neighbors li[aria-current]")
        assert watched.overflow() <= 0
        assert_clean(watched, address)


def test_a_sample_is_of_all_labels_and_says_how_many_are_wrong(browser: "Browser", run: Path) -> None:
    with served(run, order=Order.SAMPLE) as (address, review):
        watched = visit(browser, address)
        page, order = watched.page, review.examples.ranking(Order.SAMPLE).order.tolist()
        assert [page.locator(f"#{name}").input_value() for name in ("pair", "order")] == ["all", "sample"]
        for index in order[:20]:
            press(page, "a" if review.examples.given[index] != review.examples.suggested[index] else "k")
            said(page, f"Example {index} ")
        page.wait_for_function("() => document.getElementById('progress').textContent.includes('sample: 20 decisions')")
        assert page.locator("#progress").inner_text().endswith(" of 400 labels are wrong")
        page.select_option("#order", "lowest-quality")
        page.wait_for_function("() => document.getElementById('pair').value === 'listed'")
        assert_clean(watched, address)
