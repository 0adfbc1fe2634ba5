"""The report and the comparison: their content, that they run no scripts, and that no run is lost to them."""

import re
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import unflip
from helpers import QUICK, Outcome, blobs, forget_quality, quick_train, write_npz
from pictures import write_picture
from reviewing import issue, write_issues
from unflip.api.report import compare
from unflip.errors import UnflipWarning
from unflip.report import run_report as reported
from unflip.report.page import THEME, Line, line_chart
from unflip.report.run_report import (
    class_rows,
    count_changes,
    find_issues,
    find_lowest_quality,
    open_views,
    truth_used,
    write_report,
)
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
CORRECT = {"plc.warmup": 2, "calibration.head_lr": 0.01}
HOSTILE = ["<script>alert(1)</script>", "a\"onload='x'", "}</style><img src=x onerror=alert(2)>"]
VOID = {"meta", "img", "br", "path", "rect", "image"}


class Page(HTMLParser):
    """What a page is made of; complains of tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def shown(page: Page) -> list[dict[str, str | None]]:
    """The pictures of examples."""
    return [image for image in page.all("img") if image.get("class") != "chart"]


def page_of(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def noisy(features: Path, out: Path, method: str = "mddc", **options: Any) -> Run:
    settings = CORRECT if method in ("mddc", "plc") else {}
    settings = {key: value for key, value in settings.items() if method == "mddc" or not key.startswith("calibration")}
    return quick_train(features, out, method=method, noise="sym:0.3", epochs=6, settings=settings | options)


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return noisy(features, tmp_path_factory.mktemp("runs") / "mddc")


@pytest.fixture(scope="module")
def plain(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return noisy(features, tmp_path_factory.mktemp("plain") / "standard", "standard")


def test_the_content_of_a_report(run: Run, tmp_path: Path) -> None:
    page = page_of(write_report(run, tmp_path / "r.html"))
    result, table = run.result, run.labels()
    changed = int(table["changed"].to_numpy().sum())
    assert changed > 10
    assert f"It changed {changed} of 150 labels" in page.text
    assert "mddc trained mlp for 6 epochs on 135 examples, with 15 more for validation" in page.text
    assert f"test accuracy {100 * result['test_accuracy']['selected']:.1f} %" in page.text
    parts = ("are wrong; ", "unflip review", "Label issues", "Training and statistics")
    order = [page.text.index(words) for words in parts]
    assert order == sorted(order)
    assert page.text.startswith(f"{run.result['data']}: report")
    assert "unflip apply" in page.text
    assert "labels.csv lists all" in page.text
    assert "No true labels were used for training or model selection" in page.text
    assert "sym:0.3" in page.text
    assert f"epoch {result['selected_epoch']} of 6, selected by noisy-val" in page.text
    assert result["versions"]["torch"] in page.text
    assert "batch_size = 32" in page.text
    for title in ("Accuracy", "Labels changed", "Threshold", "Loss"):
        assert title in page.text
    assert len([image for image in page.all("img") if image.get("class") == "chart"]) == 4
    assert (tmp_path / "r.html").stat().st_size < 200_000


def test_a_report_of_a_run_that_corrects_nothing_shows_suggestions(plain: Run, tmp_path: Path) -> None:
    page = page_of(write_report(plain, tmp_path / "r.html"))
    assert "It changed no labels" in page.text
    assert "Given and suggested labels" in page.text
    assert "by their label quality" in page.text
    assert "Labels changed" not in page.text


def test_a_report_without_validation_and_test_examples(tmp_path: Path) -> None:
    content = blobs()
    data = write_npz(tmp_path / "d.npz", train=content["train"], train_labels=content["train_labels"])
    run = quick_train(
        data, tmp_path / "run", method="standard", epochs=1, select="last", settings={"data.val_fraction": 0}
    )
    page = page_of(write_report(run))
    assert "test accuracy" not in page.text
    assert "true labels" not in page.text
    assert "Dots mark the selected epoch" not in page.text
    assert "model selection last of 1 epoch" in page.text


@pytest.mark.parametrize("select", ["best-test", pytest.param("clean-val", marks=pytest.mark.soak)])
def test_model_selection_by_true_labels_is_reported(features: Path, tmp_path: Path, select: str) -> None:
    run = quick_train(features, tmp_path / "run", method="standard", noise="sym:0.2", epochs=2, select=select)
    page = page_of(write_report(run))
    assert "True labels were used for model selection" in page.text
    assert "No true labels" not in page.text
    other = quick_train(features, tmp_path / "other", method="standard", noise="sym:0.2", epochs=2)
    protocol = next(line for line in compare([run.folder, other.folder]).splitlines() if "protocol" in line)
    assert re.search(rf"\| {select} \(uses the truth: [a-z ]+\) +\| noisy-val +\|", protocol)


def test_the_truth_is_read_from_the_protocol() -> None:
    assert truth_used({"protocol": "noisy-val"}) is None
    assert truth_used({"protocol": "best-test (uses the truth: test labels)"}) == "test labels"


def hostile_run(tmp_path: Path) -> Run:
    content = blobs() | {"class_names": np.array(HOSTILE)}
    ids = np.array([f"<script>id({i})</script>" for i in range(150)])
    return noisy(write_npz(tmp_path / "h.npz", **content, train_ids=ids), tmp_path / "<b>run")


def test_nothing_that_a_class_or_an_example_is_called_becomes_part_of_the_page(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    path = write_report(run)
    text = path.read_text("utf-8")
    page = Page(text)
    assert "<script" not in text.lower()
    assert {name for name, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "div", "h1", "h2",
        "h3", "p", "ul", "li", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
        "figcaption", "details", "summary", "pre", "code", "strong", "small", "span", "svg", "path", "rect", "br",
        "img",
    }  # fmt: skip
    assert shown(page) == []
    assert not any(name.startswith("on") or name == "style" for _, tag in page.tags for name in tag)
    assert HOSTILE[0] in page_of(path).text
    assert "<script>id(" in page_of(path).text


def test_a_page_may_load_and_run_nothing(run: Run, tmp_path: Path) -> None:
    text = write_report(run, tmp_path / "r.html").read_text("utf-8")
    page = Page(text)
    policy = next(tag["content"] for tag in page.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("style-src").startswith("'sha256-")
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert not page.all("link")
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "url(" not in text
    assert "@import" not in text


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two classes of pictures in ``photos``, and a run on them in ``run``."""
    root = tmp_path_factory.mktemp("photos")
    for label in range(2):
        for i in range(10):
            write_picture(root / "photos" / f"class {label}" / f"{i}.png", label, (20, 20))
    quick_train(root / "photos", root / "run", method="standard", network="mlp", epochs=1)
    return root


@pytest.fixture
def copied_photos(photos: Path, tmp_path: Path) -> Iterator[Run]:
    """A copy of that run; its pictures are restored afterwards."""
    shutil.copytree(photos / "photos", tmp_path / "backup")
    yield Run(Path(shutil.copytree(photos / "run", tmp_path / "run")))
    shutil.rmtree(photos / "photos", ignore_errors=True)
    (tmp_path / "backup").rename(photos / "photos")


def test_tables_have_headers_and_pictures_have_text_alternatives(photos: Path, tmp_path: Path) -> None:
    page = page_of(write_report(Run(photos / "run"), tmp_path / "r.html"))
    images = shown(page)
    assert len(images) == 20
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in images)
    assert all(
        re.fullmatch(r"Example class \d/\d+\.png, given .*, suggested .*", image["alt"] or "") for image in images
    )
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th"))
    assert all(image.get("aria-label") or image.get("aria-hidden") for image in page.all("svg"))


def test_a_broken_picture_costs_no_other(photos: Path, copied_photos: Run) -> None:
    (photos / "photos" / "class 0" / "3.png").write_bytes(b"broken")
    page = page_of(write_report(copied_photos))
    assert len(shown(page)) == 19
    assert "class 0/3.png: can no longer be read" in page.text


def test_moved_data_costs_only_the_pictures(photos: Path, copied_photos: Run, tmp_path: Path, cli: Cli) -> None:
    page = copied_photos.folder / "report.html"
    (photos / "photos").rename(tmp_path / "moved")
    assert cli("report", copied_photos.folder).code == 0
    assert shown(page_of(page)) == []
    assert "The examples are missing (" in page_of(page).text
    before = page.read_bytes()
    answer = cli("report", copied_photos.folder, "--data", tmp_path / "nowhere")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "nowhere" in answer.err
    assert page.read_bytes() == before
    assert cli("report", copied_photos.folder, "--data", tmp_path / "moved").code == 0
    assert len(shown(page_of(page))) == 20


def test_texts_of_label_issues_are_shown_as_text(tmp_path: Path, cli: Cli) -> None:
    subjects = ("parcel courier address", "bank card transfer")
    lines = [f"{subjects[i % 2]} {i} {HOSTILE[2] if i % 2 else 'word ' * 90},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "mail.csv").write_text("\n".join(["body,label", *lines]))
    options: dict[str, Any] = {"label_column": "label", "text_encoder": "tfidf", "method": "standard", "epochs": 1}
    run = quick_train(tmp_path / "mail.csv", tmp_path / "run", **options)
    doubts = find_lowest_quality(run.labels(), ["a", "b"], open_views(run, None))
    for each in doubts:
        own = int(each.id)
        assert each.text is not None
        assert each.text.startswith(f"{subjects[own % 2]} {own} ")
        assert each.text.endswith(HOSTILE[2] if own % 2 else "…")
        assert len(each.text) <= 301
    page = page_of(write_report(run))
    assert shown(page) == []
    assert all(str(each.text) in page.text for each in doubts)
    (tmp_path / "mail.csv").rename(tmp_path / "moved.csv")
    assert "The examples are missing (" in page_of(write_report(run)).text
    assert cli("report", run.folder, "--data", tmp_path / "moved.csv").code == 0
    assert str(doubts[0].text) in page_of(run.folder / "report.html").text


def test_rows_of_a_table_show_their_columns(tmp_path: Path) -> None:
    lines = [f"{i % 2 + i / 1000},{'' if i % 3 else 'Rome'},{HOSTILE[2]},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["size,town,note,label", *lines]))
    options: dict[str, Any] = {"label_column": "label", "method": "standard", "epochs": 1}
    run = quick_train(tmp_path / "t.csv", tmp_path / "run", **options)
    for each in find_lowest_quality(run.labels(), ["a", "b"], open_views(run, None)):
        own = int(each.id)
        town = [] if own % 3 else [("town", "Rome")]
        assert each.cells == [("size", f"{own % 2 + own / 1000:.6g}"), *town, ("note", HOSTILE[2])]
    page = page_of(write_report(run))
    assert page.text.startswith("t.csv: report")
    assert "size 0." in page.text


def test_label_issues_are_those_of_lowest_quality(run: Run) -> None:
    table = run.labels()
    doubts = find_lowest_quality(table, ["zero", "1", "2"], open_views(run, None))
    quality = np.sort(table["label_quality"].to_numpy())
    assert [each.quality for each in doubts] == pytest.approx(quality[:24].tolist())
    suggested = table["suggested_label"].to_pylist()
    assert [each.suggested for each in doubts] == [("zero", "1", "2")[suggested[int(each.id)]] for each in doubts]


def test_the_report_has_the_expected_number_of_wrong_labels(run: Run, tmp_path: Path) -> None:
    doubts = np.sort(1 - run.labels()["label_quality"].to_numpy().astype(float))[::-1]
    page = page_of(write_report(run, tmp_path / "r.html"))
    text = " ".join(page.text.split())
    summary = run.label_summary
    assert summary.wrong == pytest.approx(doubts.sum(), rel=1e-5)
    assert f"About {doubts.sum():.0f} ({summary.low:.0f} to {summary.high:.0f}) of 150 labels are wrong; " in text
    assert f"expected wrong labels 100 {doubts[:100].sum():.0f}" in text


def test_quality_that_is_not_known_comes_last_and_counts_nowhere(run: Run, tmp_path: Path) -> None:
    copy = Run(Path(shutil.copytree(run.folder, tmp_path / "run")))
    order = run.labels()["label_quality"].to_numpy().argsort(kind="stable").tolist()
    known = sorted(order[::8])
    forget_quality(copy.folder, [i for i in range(150) if i not in known])
    doubts = find_lowest_quality(copy.labels(), ["0", "1", "2"], open_views(copy, None))
    assert [int(each.id) for each in doubts[:19]] == order[::8]
    assert [each.quality for each in doubts[19:]] == [None] * 5
    page = page_of(write_report(copy, tmp_path / "r.html"))
    assert page.text.count("unknown") == 5 + 1
    assert "It is unknown for classes with too few examples" in page.text
    forget_quality(copy.folder, range(150))
    page = page_of(write_report(copy, tmp_path / "r.html"))
    assert page.text.count("unknown") == 24 + 1
    assert "expected wrong labels" not in page.text


def test_reviewed_labels_are_counted_apart(features: Path, tmp_path: Path) -> None:
    given = np.load(features)["train_labels"]
    decided = [f"{i},{(int(given[i]) + (i < 3)) % 3}\n" for i in range(5)]
    (tmp_path / "reviewed.csv").write_text("index,label\n" + "".join(decided))
    run = noisy(features, tmp_path / "run", "plc")
    again = quick_train(
        features, tmp_path / "again", method="plc", noise="sym:0.3", epochs=6, reviewed=str(tmp_path / "reviewed.csv")
    )
    table = again.labels()
    changed, reviewed = (table[name].to_numpy() for name in ("changed", "reviewed"))
    people, wrong = int((changed & reviewed).sum()), (1 - table["label_quality"].to_numpy().astype(float)).sum()
    assert reviewed.sum() == 5
    assert people > 0
    page = page_of(write_report(again))
    assert f"of 150 labels ({100 * int(changed.sum() - people) / 150:.1f} %)." in page.text
    assert f"5 reviewed labels are trusted; reviewers changed {people}." in page.text
    assert f"About {wrong:.0f} (" in page.text
    assert ") of 145 unreviewed labels are wrong; " in page.text
    assert re.search(rf"\| data\.reviewed +\| +\| {tmp_path}/reviewed\.csv \|", compare([run.folder, again.folder]))


def test_reviewed_labels_are_no_label_issues(run: Run) -> None:
    table = run.labels()
    first = find_lowest_quality(table, ["0", "1", "2"], open_views(run, None))[0].id
    reviewed = pa.array([name == first for name in table["id"].to_pylist()])
    place = table.column_names.index("reviewed")
    kept = find_lowest_quality(table.set_column(place, "reviewed", reviewed), ["0", "1", "2"], open_views(run, None))
    assert first not in [each.id for each in kept]


def table_of(given: list[int], current: list[int]) -> pa.Table:
    changed = [a != b for a, b in zip(given, current, strict=True)]
    quality = [1.0] * len(given)
    return pa.table(
        {
            "given_label": given,
            "current_label": current,
            "suggested_label": current,
            "changed": changed,
            "label_quality": quality,
        }
    )


def test_changes_are_counted_by_pair() -> None:
    changes = count_changes(table_of([0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 2, 2]), ["ant", "bee", "2"])
    assert [tuple(pair.values())[:3] for pair in changes.pairs] == [("ant", "bee", 2), ("bee", "2", 1)]
    assert changes.pairs[0]["share"] == pytest.approx(2 / 3)
    assert (changes.changed, changes.kind) == (3, "corrected")


def errors(wrong: float) -> dict[str, float]:
    return {"scored": 2, "wrong": wrong, "low": wrong / 2, "high": 2 * wrong}


def test_classes_with_the_most_noise_come_first() -> None:
    rows = class_rows(table_of([0, 0, 1, 1], [0, 1, 1, 1]), ["0", "1"], [errors(0.2), errors(0.8)], None)
    assert [tuple(row.values())[:7] for row in rows] == [
        ("1", 2, 3, 0.0, 0.4, 0.2, 0.8),
        ("0", 2, 1, 0.5, 0.1, 0.05, 0.2),
    ]


def test_a_class_without_quality_has_no_noise_rate() -> None:
    table = table_of([0, 0, 1], [0, 1, 1])
    table = table.set_column(4, "label_quality", pa.array([0.9, 0.2, None]))
    rows = class_rows(table, ["ant", "bee"], [errors(0.2), None], None)
    assert [(row["name"], row["noise"]) for row in rows] == [("ant", 0.1), ("bee", None)]


def svg_of(chart: str) -> str:
    """The drawing inside a chart's address."""
    (address,) = Page(chart).all("img")
    return b64decode((address["src"] or "").partition("base64,")[2]).decode()


@pytest.mark.parametrize("options", [{}, {"percent": True}, {"zero": True}])
@pytest.mark.parametrize("points", [[(1, 0.0)], [(1, 0.5), (2, 0.5)], [(1, -3.0), (5, 1e6)]])
def test_any_line_can_be_drawn(options: dict[str, bool], points: list[tuple[float, float]]) -> None:
    lines = [Line("a", points, 9, 1)]
    text = line_chart(lines, label="<&>", **options)
    assert "nan" not in svg_of(text)
    assert "inf" not in svg_of(text)
    assert 'alt="&lt;&amp;&gt;"' in text
    assert text == line_chart(lines, label="<&>", **options)


def words_of(chart: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg_of(chart))


def test_axes_have_round_numbers_and_whole_epochs() -> None:
    forty = line_chart([Line("a", [(i, 0.5 + i / 500) for i in range(1, 41)], 0)], label="x", percent=True)
    assert words_of(forty) == ["10", "20", "30", "40", "epoch", "48%", "50%", "52%", "54%", "56%", "58%", "60%"]
    assert words_of(line_chart([Line("a", [(1, 8123)], 0)], label="x", zero=True)) == [
        "1", "epoch", "0", "2,000", "4,000", "6,000", "8,000", "10,000",
    ]  # fmt: skip


def test_charts_have_the_colors_of_the_page_and_nothing_that_could_run() -> None:
    lines = [Line("a", [(1, 0.5), (2, 0.7)], 0, 2), Line("b", [(1, 0.5), (2, 0.7)], 9)]
    svg = svg_of(line_chart(lines, label="x"))
    assert "<script" not in svg
    drawn = svg.partition("</style>")[2]
    assert {"var(--c0)", "var(--c1)", "var(--soft)", "var(--rule)"} <= {*re.findall(r"var\([a-z0-9-]+\)", drawn)}
    assert not any(color in drawn for pair in THEME.values() for color in pair)


def test_train_writes_a_report_from_python_and_from_the_command_line(cli: Cli, features: Path, tmp_path: Path) -> None:
    run = unflip.train(features, tmp_path / "a", epochs=1, method="standard", settings=QUICK, device="cpu")
    assert "standard trained mlp for 1 epoch" in page_of(run.folder / "report.html").text
    done = cli("train", "--data", features, "--out", tmp_path / "b", "--epochs", 1, "--method", "standard")
    assert done.code == 0
    assert str(tmp_path / "b" / "report.html") in done.out


def test_a_finished_run_that_is_resumed_keeps_its_report(features: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "standard", "settings": QUICK, "device": "cpu"}
    run = unflip.train(features, tmp_path / "a", epochs=1, **options)
    (run.folder / "report.html").write_text("kept")
    unflip.train(None, tmp_path / "a", resume=True, device="cpu")
    assert (run.folder / "report.html").read_text() == "kept"
    unflip.train(None, tmp_path / "a", epochs=2, resume=True, device="cpu")
    assert "for 2 epochs" in page_of(run.folder / "report.html").text


def test_a_report_that_fails_loses_no_run(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Run) -> None:
        raise ZeroDivisionError("of the report's own")

    monkeypatch.setattr(reported, "write_report", fail)
    with pytest.warns(UnflipWarning, match=r"the report could not be written \(ZeroDivisionError: of the rep"):
        run = unflip.train(features, tmp_path / "a", epochs=1, method="standard", settings=QUICK, device="cpu")
    assert run.is_finished
    assert run.result["epochs"] == 1


def test_force_removes_an_old_report(features: Path, tmp_path: Path) -> None:
    folder = unflip.train(features, tmp_path / "a", epochs=1, method="standard", settings=QUICK, device="cpu").folder
    assert (folder / "report.html").exists()
    quick_train(features, tmp_path / "a", epochs=1, method="standard", force=True)
    assert not (folder / "report.html").exists()


def test_a_comparison_tells_the_runs_apart(cli: Cli, run: Run, plain: Run, features: Path, tmp_path: Path) -> None:
    other = quick_train(features, tmp_path / "again", method="standard", noise="sym:0.3", epochs=6, seed=1)
    done = cli("report", run.folder, plain.folder, other.folder)
    assert done.code == 0
    table = {
        name: row for name, *row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.out.splitlines())
    }
    assert table[""] == [str(each.folder) for each in (run, plain, other)]
    assert table["method"] == ["mddc", "standard", "standard"]
    assert table["seed"] == ["0", "0", "1"]
    accuracy = [f"{each.result['test_accuracy']['selected']:.1%}" for each in (run, plain, other)]
    assert table["test_accuracy.selected"] == accuracy
    assert "plc.warmup" not in table  # only one of them has it


def test_cells_that_kept_only_results_can_be_compared(run: Run, plain: Run, tmp_path: Path) -> None:
    for each in (run, plain):
        folder = tmp_path / each.folder.name
        folder.mkdir()
        for name in ("run.json", "config.toml", "result.json", "metrics.jsonl"):
            (folder / name).write_bytes((each.folder / name).read_bytes())
    assert "test_accuracy" in compare([tmp_path / "mddc", tmp_path / "standard"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "x: no run.json; is this the folder of a finished run?"),
        (["x", "y"], "x: no run.json"),
        (["RUN", "--out", "a.pdf"], "--out a.pdf: cannot write '.pdf'; use .html or .htm"),
        (["RUN", "--out", "no/a.html"], "--out no/a.html: the folder no does not exist"),
        (["RUN", "PLAIN", "--data", "digits"], "--out and --data are for the report of a single run"),
        ([], "Missing argument 'RUN'"),
    ],
)
def test_a_wrong_argument_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, plain: Run, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {"RUN": str(run.folder), "PLAIN": str(plain.folder)}
    done = cli("report", *(folders.get(argument, argument) for argument in arguments))
    assert done.code == 2
    assert done.err.startswith("unflip: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert not list(tmp_path.iterdir())


def test_a_damaged_folder_is_one_line(cli: Cli, features: Path, tmp_path: Path) -> None:
    folder = quick_train(features, tmp_path / "run", method="standard", epochs=1).folder
    for name, words in (
        ("labels.parquet", "not a readable Parquet file"),
        ("metrics.jsonl", "not a readable JSON Lines file"),
    ):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(b"damaged")
        done = cli("report", folder)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert words in done.err
        (folder / name).write_bytes(whole)
    assert not (folder / "report.html").exists()
    assert cli("report", folder).code == 0


def test_issues_are_shown_with_advice_and_groups_of_different_labels_first(photos: Path, copied_photos: Run) -> None:
    run = copied_photos
    assert "Other issues" not in page_of(write_report(run)).text
    write_issues(run.folder)
    assert "None found." in page_of(write_report(run)).text
    write_issues(
        run.folder,
        outlier=issue(range(14), [f"far {i}" for i in range(14)], flagged=13),
        near_duplicate=issue([1, 2, 3, 12, 5, 6], ["nearly the same"] * 6, groups=[0, 0, 1, 1, 2, 2]),
        class_quality=issue([-1, -1], ["class 1 is taken for class 0", HOSTILE[2]]),
        mystery=issue([4], ["who knows"]),
    )
    (photos / "photos" / "class 0" / "3.png").write_bytes(b"broken")
    views, names = open_views(run, None), run.class_names
    issues = run.other_issues()
    assert issues is not None
    outliers, copies, classes, mystery = find_issues(run.labels(), issues, names, views)
    assert (outliers.count, len(outliers.entries)) == (13, 12)
    assert [entry.reason for entry in outliers.entries[:2]] == ["far 0", "far 1"]
    assert [entry.picture is None for entry in outliers.entries[:5]] == [False, False, False, True, False]
    assert [[entry.id for entry in group] for group in copies.groups] == [
        ["class 0/3.png", "class 1/2.png"],
        ["class 0/1.png", "class 0/2.png"],
        ["class 0/5.png", "class 0/6.png"],
    ]
    assert (classes.of_classes, len(classes.entries)) == (True, 2)
    assert (mystery.name, mystery.count) == ("mystery", 1)
    page = page_of(write_report(run))
    assert "outliers (13), near-duplicates (6), class quality (2), mystery (1)" in page.text
    assert "the review page can filter by issue" in page.text
    assert "Near-duplicates (6 in 3 groups)" in page.text
    assert HOSTILE[2] in page.text
    assert "far 11" in page.text
    assert "far 12" not in page.text
    write_issues(run.folder, class_quality=issue([-1], ["class 1 is small"]))
    assert "All are in issues.csv ." in page_of(write_report(run)).text
