"""From a list of label issues to corrected data, and back: every kind of data, in its own format."""

import csv
import errno
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import tiny_backbone
import unflip
from helpers import Outcome
from pictures import COLORS, write_picture
from unflip.api.review import export_review
from unflip.data.arrays import write_npz
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.data.rewrite import NewLabels, rewrite
from unflip.errors import ConfigError, InputError, RunFolderError, UnflipWarning
from unflip.report.run_report import next_commands
from unflip.review.decisions import Choice, State
from unflip.review.review import open_review

Cli = Callable[..., Outcome]
Labels = dict[int, str]
COUNT, NAMES = 120, ("ape", "bee", "cat")
TRUTH: Labels = {i: NAMES[i % 3] for i in range(COUNT)}
WRONG: Labels = {i: NAMES[(i + 1) % 3] for i in range(4, COUNT, 8)}
GIVEN = TRUTH | WRONG
ACCEPTED, KEPT, REMOVED, *LEFT = WRONG


def features() -> np.ndarray[Any, Any]:
    """Rows that are easy to tell apart by class; the first column names the example."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(COUNT, 6)) + 12 * np.eye(6)[[NAMES.index(TRUTH[i]) for i in range(COUNT)]]
    return rows.round(5).astype(np.float32)


def frame() -> pa.Table:
    rows = features()
    columns: dict[str, Any] = {f"x{i}": rows[:, i] for i in range(6)}
    columns |= {"kind": [GIVEN[i] for i in range(COUNT)], "note": [f'no. "{i}",\nin two lines' for i in range(COUNT)]}
    return pa.table(columns)


def number(note: str) -> int:
    return int(note.split('"')[1])


class Kind:
    """A kind of data: how it is written to a folder, its options, and how its labels are read."""

    options: dict[str, Any] = {}  # noqa: RUF012

    def write(self, folder: Path) -> Any:
        raise NotImplementedError

    def read(self, data: Any) -> Labels:
        raise NotImplementedError

    def target(self, folder: Path) -> Path | None:
        return folder


class TableFile(Kind):
    options = {"label_column": "kind", "ignore": ["note"]}  # noqa: RUF012

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def target(self, folder: Path) -> Path:
        return folder.with_suffix(self.suffix)

    def write(self, folder: Path) -> Path:
        path = self.target(folder)
        if self.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, frame().column_names)
                writer.writeheader()
                writer.writerows(frame().to_pylist())
        elif self.suffix == ".parquet":
            pa.parquet.write_table(frame(), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in frame().to_pylist()))
        return path

    def rows(self, data: Path) -> list[dict[str, Any]]:
        if self.suffix == ".csv":
            with data.open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        if self.suffix == ".parquet":
            return pa.parquet.read_table(data).to_pylist()  # type: ignore[no-any-return]
        return [json.loads(line) for line in data.read_text().splitlines()]

    def read(self, data: Path) -> Labels:
        return {number(row["note"]): row["kind"] for row in self.rows(data)}


class ImageFolder(Kind):
    options = {"backbone": "tiny"}  # noqa: RUF012

    def write(self, folder: Path) -> Path:
        for i in range(COUNT):
            write_picture(folder / GIVEN[i] / f"{i:03}.png", i % 3, (40, 40))
        return folder

    def read(self, data: Path) -> Labels:
        return {int(path.stem[:3]): path.parent.name for path in data.rglob("*.png")}


class Manifest(TableFile):
    options = {"backbone": "tiny", "label_column": "kind"}  # noqa: RUF012

    def write(self, folder: Path) -> Path:
        rows = [{"path": f"pictures/{i:03}.png", "kind": GIVEN[i], "note": f'"{i}"'} for i in range(COUNT)]
        for i, row in enumerate(rows):
            write_picture(folder.parent / row["path"], i % 3, (40, 40))
        path = self.target(folder)
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
        return path


class TextFolder(Kind):
    words = ("fox wolf bear", "zinc iron lead", "plum pear fig")

    def write(self, folder: Path) -> Path:
        for i in range(COUNT):
            path = folder / GIVEN[i] / f"{i:03}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{self.words[i % 3]} on day {i}")
        return folder

    def read(self, data: Path) -> Labels:
        return {int(path.stem[:3]): path.parent.name for path in data.rglob("*.txt")}


class ArrayFile(Kind):
    def target(self, folder: Path) -> Path:
        return folder.with_suffix(".npz")

    def write(self, folder: Path) -> Path:
        np.savez(self.target(folder), train=features(), train_labels=np.array([*GIVEN.values()]), more=np.arange(3))
        return self.target(folder)

    def read(self, data: Path) -> Labels:
        with np.load(data) as content:
            assert content["more"].tolist() == [0, 1, 2]
            return by_row(content["train"], content["train_labels"])


def by_row(rows: Any, labels: Any) -> Labels:
    place = {float(value): i for i, value in enumerate(features()[:, 0])}
    return {place[float(row[0])]: str(label) for row, label in zip(rows, labels, strict=True)}


class InMemory(Kind):
    """Data that is no file: it is given and returned as it is."""

    def target(self, folder: Path) -> None:
        return None


class Pandas(InMemory):
    options = {"label_column": "kind", "ignore": ["note"]}  # noqa: RUF012

    def write(self, folder: Path) -> Any:
        return frame().to_pandas().set_index(np.arange(COUNT)[::-1])

    def read(self, data: Any) -> Labels:
        return {number(note): kind for note, kind in zip(data["note"], data["kind"], strict=True)}


class Arrow(Pandas):
    def write(self, folder: Path) -> Any:
        return frame()

    def read(self, data: Any) -> Labels:
        return super().read(data.to_pydict())


class HuggingFace(InMemory):
    def write(self, folder: Path) -> Any:
        hf = pytest.importorskip("datasets", reason="the library `datasets` is not installed: nothing of it is tested")
        columns = {"vector": features().tolist(), "label": [NAMES.index(name) for name in GIVEN.values()]}
        types = hf.Dataset.from_dict({name: cells[:1] for name, cells in columns.items()}).features.copy()
        types["label"] = hf.ClassLabel(names=[*NAMES])
        return hf.DatasetDict({"train": hf.Dataset.from_dict(columns, features=types)})

    def read(self, data: Any) -> Labels:
        assert data["train"].features["label"].names == [*NAMES]
        return by_row(np.float32(data["train"]["vector"]), [NAMES[i] for i in data["train"]["label"]])


class Arrays(InMemory):
    def write(self, folder: Path) -> Any:
        return features(), [*GIVEN.values()]

    def read(self, data: Any) -> Labels:
        return by_row(*data)


class Pictures(InMemory):
    options = {"backbone": "tiny"}  # noqa: RUF012

    def write(self, folder: Path) -> Any:
        random = np.random.default_rng(0)
        noise = random.integers(-25, 25, (COUNT, 40, 40, 3))
        images = [PIL.Image.fromarray((COLORS[i % 3] + noise[i]).astype(np.uint8)) for i in range(COUNT)]
        for i, image in enumerate(images):
            image.putpixel((0, 0), (i, 0, 0))
        return images, [*GIVEN.values()]

    def read(self, data: Any) -> Labels:
        return {image.getpixel((0, 0))[0]: str(label) for image, label in zip(*data, strict=True)}


KINDS = {
    "csv": TableFile(".csv"), "parquet": TableFile(".parquet"), "jsonl": TableFile(".jsonl"), "images": ImageFolder(),
    "manifest": Manifest(".parquet"), "texts": TextFolder(), "npz": ArrayFile(), "pandas": Pandas(), "arrow": Arrow(),
    "hugging face": HuggingFace(), "arrays": Arrays(), "pictures": Pictures(),
}  # fmt: skip
QUICK = ("csv", "images", "npz", "pandas")
"""What a whole round is tried with by `make test`; the other kinds are in the soak tests."""


def of_kinds(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.soak) for name in names]
    )


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_backbone.register(monkeypatch)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def cleaned(kind: Kind, data: Any, out: Path, **options: Any) -> unflip.Result:
    more = dict(kind.options)
    if isinstance(data, tuple):
        data, more["labels"] = data
    # unflip itself is careful on so few examples; here each wrong label is to be listed
    return unflip.clean(data, out, quiet=True, device="cpu", method="standard", **more, **options)


def decide(result: unflip.Result, kind: Kind, decisions: dict[int, tuple[State, str | None]]) -> None:
    """Review examples by number."""
    ids = numbers(result)
    with open_review(result.folder, reviewer="ann") as review:
        choices = [
            Choice(ids[i], 0, state, None if label is None else result.class_names.index(label))
            for i, (state, label) in decisions.items()
        ]
        assert not review.decisions.decide(choices, person="p", reviewer="ann", request="r").conflicts


def numbers(result: unflip.Result) -> dict[int, int]:
    """Return the index in a run by the number of an example, which only its content tells."""
    rows = result.rows()
    found = {}
    for index, name in enumerate(result.labels(["id"])["id"].to_pylist()):
        if numbered := re.fullmatch(r".*/(\d{3})(-\w+)?\.(png|txt)", name):
            found[int(numbered[1])] = index
        elif name.endswith(".png"):
            found[int(np.asarray(PIL.Image.open(result.folder / "data" / name))[0, 0, 0])] = index
        else:
            assert rows is not None
            value = np.float32(dict(rows.values(index)).get("x0", rows.values(index)[0][1]))
            found[int(np.abs(features()[:, 0] - value).argmin())] = index
    return found


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@of_kinds(KINDS)
def test_reviewed_labels_are_applied_and_the_next_run_finds_what_was_left(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    (tmp_path / "mine").mkdir()
    data = kind.write(tmp_path / "mine" / "data")
    before = snapshot(tmp_path / "mine")
    first = cleaned(kind, data, tmp_path / "first")
    index_of = numbers(first)
    listed = set(first.issues.to_pydict()["index"] if name == "arrow" else first.issues["index"])
    assert {index_of[i] for i in WRONG} == listed
    decide(
        first, kind,
        {ACCEPTED: (State.ACCEPTED, TRUTH[ACCEPTED]), KEPT: (State.KEPT, GIVEN[KEPT]), REMOVED: (State.REMOVED, None)},
    )  # fmt: skip
    export_review(first.folder, tmp_path / "reviewed.csv")
    target = kind.target(tmp_path / "fixed")
    done = first.apply(target, only="reviewed")
    expected = GIVEN | {ACCEPTED: TRUTH[ACCEPTED]}
    expected.pop(REMOVED)
    assert kind.read(done.data) == expected
    assert (done.relabeled, done.dropped) == (1, 1)
    assert done.changes["reason"].to_pylist() == ["reviewed"] * 3
    again = unflip.apply(first.folder, kind.target(tmp_path / "twice"), data=done.data, only="reviewed")
    assert (again.relabeled, again.dropped, {*again.changes["reason"].to_pylist()} - {"reviewed"}) == (0, 0, set())
    assert kind.read(again.data) == expected
    second = cleaned(kind, done.data, tmp_path / "second", reviewed=tmp_path / "reviewed.csv")
    index_of = numbers(second)
    table = second.labels(["given_label_name", "current_label_name"]).take([index_of[ACCEPTED], index_of[KEPT]])
    assert table["given_label_name"].to_pylist() == [GIVEN[ACCEPTED], GIVEN[KEPT]]  # not those of the corrected data
    assert table["current_label_name"].to_pylist() == [TRUTH[ACCEPTED], GIVEN[KEPT]]
    listed = set(second.issues.to_pydict()["index"] if name == "arrow" else second.issues["index"])
    found = {i for i in LEFT if index_of[i] in listed}
    assert len(found) == len(listed) >= len(LEFT) // 2
    last = second.apply(kind.target(tmp_path / "last"))
    assert kind.read(last.data) == expected | {i: TRUTH[i] for i in found}
    assert snapshot(tmp_path / "mine") == before


def labels_of(result: unflip.Result, column: str) -> Labels:
    names = result.labels([column])[column].to_pylist()
    return {i: names[index] for i, index in numbers(result).items()}


@of_kinds(name for name, kind in KINDS.items() if not isinstance(kind, InMemory))
def test_corrected_data_is_cleaned_with_the_labels_given_before(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    first = cleaned(kind, kind.write(tmp_path / "data"), tmp_path / "first")
    decide(
        first, kind,
        {ACCEPTED: (State.ACCEPTED, TRUTH[ACCEPTED]), KEPT: (State.KEPT, GIVEN[KEPT]), REMOVED: (State.REMOVED, None)},
    )  # fmt: skip
    done = first.apply(kind.target(tmp_path / "fixed"))
    expected = TRUTH | {KEPT: GIVEN[KEPT]}
    expected.pop(REMOVED)
    assert kind.read(done.data) == expected
    second = cleaned(kind, done.data, tmp_path / "second")
    assert labels_of(second, "given_label_name") == {i: GIVEN[i] for i in expected}
    assert {i for i, is_reviewed in labels_of(second, "reviewed").items() if is_reviewed} == {ACCEPTED, KEPT}
    assert [labels_of(second, "current_label_name")[i] for i in (ACCEPTED, KEPT)] == [TRUTH[ACCEPTED], GIVEN[KEPT]]
    assert {*LEFT} == {i for i, is_issue in labels_of(second, "is_label_issue").items() if is_issue}
    same = second.apply(kind.target(tmp_path / "same"))
    assert (same.relabeled, same.dropped, kind.read(same.data)) == (0, 0, expected)
    assert sorted(same.changes["reason"].to_pylist()) == ["label issue"] * len(LEFT) + ["reviewed"] * 2
    decide(second, kind, {LEFT[0]: (State.KEPT, GIVEN[LEFT[0]])})
    expected[LEFT[0]] = GIVEN[LEFT[0]]
    last = second.apply(kind.target(tmp_path / "last"))
    assert (last.relabeled, kind.read(last.data)) == (1, expected)
    third = cleaned(kind, last.data, tmp_path / "third")  # the list has all changes since the original data
    assert labels_of(third, "given_label_name") == {i: GIVEN[i] for i in expected}
    assert {i for i, is_reviewed in labels_of(third, "reviewed").items() if is_reviewed} == {ACCEPTED, KEPT, LEFT[0]}
    people = second.apply(kind.target(tmp_path / "people"), only="reviewed")
    assert kind.read(people.data) == expected | {i: GIVEN[i] for i in LEFT}


def test_your_own_changes_to_corrected_data_are_kept(run: unflip.Result, tmp_path: Path) -> None:
    kind = TableFile(".csv")
    done = run.apply(tmp_path / "fixed.csv")
    assert repr(done).startswith(f"Applied(relabeled={len(WRONG)}, dropped=0, missing=0, listed=")
    fixed = done.data
    before, after = [i for i in WRONG if i % 3 == 0][:2]
    change_cell(fixed, before, "cat")
    second = cleaned(kind, fixed, tmp_path / "second")
    assert labels_of(second, "given_label_name") == GIVEN | {before: "cat"}
    assert f"unflip apply {second.folder} --out fixed-2.csv" in [command for command, _ in next_commands(second)]
    change_cell(fixed, after, "cat")
    expected = TRUTH | {before: "cat", after: "cat"}
    expected[before] = labels_of(second, "suggested_label_name")[before]
    assert kind.read(second.apply(tmp_path / "last.csv").data) == expected
    (tmp_path / "fixed.changes.csv").unlink()
    third = cleaned(kind, fixed, tmp_path / "third")
    assert labels_of(third, "given_label_name") == TRUTH | {before: "cat", after: "cat"}


def change_cell(path: Path, row: int, label: str) -> None:
    """Change the label of a row of the table."""
    kind = TableFile(".csv")
    rows = kind.rows(path)
    rows[row]["kind"] = label
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> unflip.Result:
    """A run on a .csv file, whose label issues are the wrong labels."""
    kind, folder = KINDS["csv"], tmp_path_factory.mktemp("csv")
    result = cleaned(kind, kind.write(folder / "data"), folder / "run")
    assert set(result.issues["index"]) == {*WRONG}
    return result


def test_all_other_columns_stay_and_the_given_labels_can_be_kept(run: unflip.Result, tmp_path: Path, cli: Cli) -> None:
    done = cli("apply", run.folder, "--out", tmp_path / "fixed.csv", "--keep-given-as", "was")
    assert done.out == f"{len(WRONG)} labels changed, 0 examples dropped: {tmp_path / 'fixed.csv'}\n" + (
        f"Changes: {tmp_path / 'fixed.changes.csv'}\n"
    )
    kind = TableFile(".csv")
    for i, (old, new) in enumerate(
        zip(kind.rows(Path(run.result["data_path"])), kind.rows(tmp_path / "fixed.csv"), strict=True)
    ):
        assert new == old | {"kind": TRUTH[i], "was": GIVEN[i]}
    changes = list(csv.DictReader((tmp_path / "fixed.changes.csv").read_text().splitlines()))
    assert {int(row["index"]): (row["given_label"], row["label"]) for row in changes} == {
        i: (GIVEN[i], TRUTH[i]) for i in WRONG
    }
    assert {row["reason"] for row in changes} == {"label issue"}
    again = cli("apply", run.folder, "--out", tmp_path / "fixed.csv")
    assert again.code == 2
    assert "already exists; replace it with --force" in again.err
    before = (tmp_path / "fixed.csv").read_bytes()
    assert cli("apply", run.folder, "--out", tmp_path / "fixed.csv", "--keep-given-as", "was", "--force").code == 0
    assert (tmp_path / "fixed.csv").read_bytes() == before


def test_label_issues_can_be_dropped_or_must_be_sure(run: unflip.Result, tmp_path: Path) -> None:
    done = run.apply(tmp_path / "dropped.csv", drop="label-issues")
    assert TableFile(".csv").read(done.data) == {i: label for i, label in GIVEN.items() if i not in WRONG}
    quality = run.ranked.set_index("index")["label_quality"]
    limit = float(1 - quality[[*WRONG]].median())
    done = run.apply(tmp_path / "sure.csv", min_confidence=limit)
    assert 0 < done.relabeled < len(WRONG)
    assert all(1 - quality[row["index"]] >= limit for row in done.changes.to_pylist())
    assert run.apply(tmp_path / "none.csv", only="reviewed").relabeled == 0


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_table_of_labels_takes_the_place_of_the_run(run: unflip.Result, tmp_path: Path, in_memory: bool) -> None:
    table = pa.table({"index": [0, 1], "label": ["cat", None], "decision": ["label", "remove"]})
    pa.csv.write_csv(table, tmp_path / "mine.csv")
    done = run.apply(tmp_path / "fixed.csv", labels=table if in_memory else tmp_path / "mine.csv")
    expected = GIVEN | {0: "cat"}
    del expected[1]
    assert TableFile(".csv").read(done.data) == expected
    assert done.changes["reason"].to_pylist() == ["listed", "listed"]


def test_labels_changed_since_the_run_are_not_overwritten(run: unflip.Result, tmp_path: Path) -> None:
    kind = TableFile(".csv")
    rows = kind.rows(Path(run.result["data_path"]))
    rows[12] |= {"kind": "cat" if WRONG[12] != "cat" else "bee"}
    with (tmp_path / "edited.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(reversed(rows))
    fixed = kind.read(run.apply(tmp_path / "fixed.csv", data=tmp_path / "edited.csv").data)
    assert fixed == TRUTH | {12: rows[12]["kind"]}


def test_labels_for_data_sets_in_their_own_order_and_class_numbers(run: unflip.Result, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(COUNT)[:100]
    table = frame().take(order)
    assert run.labels_for(table.to_pandas()).tolist() == [TRUTH[i] for i in order.tolist()]
    dropped = run.labels_for(table, drop="label-issues").tolist()
    assert dropped == [None if i in WRONG else TRUTH[i] for i in order.tolist()]
    np.savez(tmp_path / "x.npz", train=features(), train_labels=[NAMES.index(name) for name in GIVEN.values()])
    of_rows = unflip.clean(tmp_path / "x.npz", tmp_path / "run", quiet=True, device="cpu", method="plc")
    given = torch.tensor([NAMES.index(name) for name in GIVEN.values()])
    data = torch.utils.data.TensorDataset(torch.from_numpy(features()), given)
    subset = torch.utils.data.Subset(data, order.tolist())
    assert of_rows.labels_for(subset).tolist() == [NAMES.index(TRUTH[i]) for i in order.tolist()]
    assert of_rows.labels_for(data, drop="label-issues").tolist() == [
        -1 if i in WRONG else NAMES.index(TRUTH[i]) for i in range(COUNT)
    ]
    with pytest.raises(InputError, match="dataset: a str; give the data set itself"):
        run.labels_for("data.csv")


def test_labels_for_data_of_another_kind_says_so(run: unflip.Result) -> None:
    class OfTargets:
        def __init__(self, targets: list[Any], *classes: str) -> None:
            self.targets, self.classes = targets, classes or [*NAMES]

    numbers = [NAMES.index(name) for name in GIVEN.values()]
    for dataset, message in (
        (
            OfTargets([9, *numbers[1:]]),
            f"^dataset: its targets must be class numbers from 0 to {len(NAMES) - 1}, or -1",
        ),
        (OfTargets([None, *numbers[1:]]), "^dataset: its targets must be class numbers"),
        (OfTargets([*GIVEN.values()]), "^dataset: its targets must be class numbers"),
        (OfTargets(numbers, "x", "y", "z"), "^dataset: none of its classes, such as x, is one of the run, such as"),
    ):
        with pytest.raises(InputError, match=message):
            run.labels_for(dataset)
    with pytest.warns(UnflipWarning, match=f"^dataset: none of the run's {len(WRONG)} changed labels is of an ex"):
        run.labels_for(frame().to_pandas()[["kind"]].assign(other=1.5))
    rows = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    with pytest.warns(UnflipWarning, match="^dataset: none of the"):
        assert run.labels_for(torch.utils.data.TensorDataset(rows, torch.tensor([0, 1, 0]))).tolist() == [0, 1, 0]


class Torchvision:
    """What torchvision's ``ImageFolder`` has, with classes in another order."""

    def __init__(self, root: Path) -> None:
        self.root, self.classes = str(root), ["none", *reversed(NAMES)]
        files = sorted(root.rglob("*.png"), key=lambda path: path.name)
        self.samples = [(str(path), self.classes.index(path.parent.name)) for path in files]


def test_folders_are_linked_or_copied_and_names_stay_unique(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = ImageFolder()
    data = kind.write(tmp_path / "photos")
    (data / TRUTH[4] / "004.png").write_bytes((data / TRUTH[1] / "001.png").read_bytes())  # where 004 should go
    result = cleaned(kind, data, tmp_path / "run")
    dataset = Torchvision(data)
    labels = [dataset.classes[i] for i in result.labels_for(dataset)]
    assert labels == [TRUTH[int(Path(path).stem)] for path, _ in dataset.samples]
    assert result.apply(tmp_path / "fixed").relabeled == len(WRONG)
    assert (tmp_path / "fixed" / TRUTH[4] / f"004-{GIVEN[4]}.png").is_symlink()
    assert (tmp_path / "fixed" / TRUTH[4] / "004.png").resolve() == data / TRUTH[4] / "004.png"
    with pytest.raises(ConfigError, match="already holds corrected data; replace it with --force"):
        result.apply(tmp_path / "fixed")
    done = cli("apply", result.folder, "--out", tmp_path / "fixed", "--force", "--copy-files", "--drop", "label-issues")
    assert done.code == 0, done.err
    assert not any(path.is_symlink() for path in (tmp_path / "fixed").rglob("*"))
    (tmp_path / "fixed" / "mine.txt").write_text("not yours")
    before = snapshot(tmp_path)
    done = cli("apply", result.folder, "--out", tmp_path / "fixed", "--force")
    assert done.code == 2
    assert "mine.txt" in done.err
    assert snapshot(tmp_path) == before
    (tmp_path / "fixed" / "mine.txt").unlink()
    before = snapshot(tmp_path)
    monkeypatch.setattr(shutil, "copyfile", full_disk)
    done = cli("apply", result.folder, "--out", tmp_path / "fixed", "--force", "--copy-files")
    assert (done.code, done.err) == (2, f"unflip: cannot write {tmp_path / 'fixed'}: No space left on device\n")
    assert snapshot(tmp_path) == before


def test_a_corrected_folder_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        (tmp_path / "data" / label / "1.txt").write_text(f"about a {label}", "utf-8")
    options = DataOptions(path=str(tmp_path / "data"))
    raw, new = load_raw(options), NewLabels(np.arange(2), np.zeros(2, int), np.ones(2, bool))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")

    def write(**more: Any) -> None:
        rewrite(raw, options, tmp_path / "link", {"train": new}, ["cat", "dog"], **more)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "source")

    write()
    before = snapshot(tmp_path)
    for name in ("unlink", "rmdir"):  # as in a folder that is read-only: what is complete stays or is replaced
        monkeypatch.setattr(Path, name, refused)
    write()
    assert snapshot(tmp_path).keys() == before.keys()
    monkeypatch.setattr(shutil, "copy2", refused)
    with pytest.raises(InputError, match=r"^source: Permission denied$"):
        write(copy=True)
    assert snapshot(tmp_path).keys() == before.keys()
    (tmp_path / "link" / "mine.txt").touch()
    with pytest.raises(RunFolderError, match=r"holds files that are not ours, such as mine\.txt; move them$"):
        write()
    assert (tmp_path / "link" / "mine.txt").exists()


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_cannot_be_applied_is_one_line(run: unflip.Result, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out: name the file or folder to write"):
        unflip.apply(run)
    with pytest.raises(ConfigError, match=r"cannot write '.parquet'; use .csv"):
        run.apply(tmp_path / "fixed.parquet")
    with pytest.raises(ConfigError, match="already has a column 'note'"):
        run.apply(tmp_path / "fixed.csv", keep_given_as="note")
    with pytest.raises(ConfigError, match="min_confidence = 2: must be less than or equal to 1"):
        run.apply(tmp_path / "fixed.csv", min_confidence=2)
    with pytest.raises(ConfigError, match="--copy-files is for folders"):
        run.apply(tmp_path / "fixed.csv", copy_files=True)
    with pytest.raises(InputError, match="if the data was moved, name its location with --data"):
        run.apply(tmp_path / "fixed.csv", data=tmp_path / "gone.csv")
    digits = unflip.train("digits", tmp_path / "digits", method="standard", epochs=1, quiet=True, device="cpu")
    with pytest.raises(InputError, match="'digits' cannot be rewritten; export the labels with `unflip export`"):
        digits.apply(tmp_path / "fixed")
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_a_run_is_opened_shown_and_summarized(run: unflip.Result, tmp_path: Path) -> None:
    opened = unflip.load(str(run.folder))
    assert opened == run
    assert opened.issues.columns.tolist() == [
        "index", "id", "issue", "given_label", "suggested_label", "label_quality", "score", "reason"
    ]  # fmt: skip
    lines = opened.summary().splitlines()
    assert lines[0].startswith("data.csv: about ")
    assert f"{len(WRONG)} label issues" in lines[0]
    assert lines[-1] == f"Run: {run.folder}"
    page = opened._repr_html_()
    assert page.count("<tr>") == 11
    assert f"{len(WRONG) - 10} more" in page
    assert page.count("\u00a0%</td>") == 10  # label qualities
    assert page.count("<tr><td></td>") == 0  # each has its text or columns
    assert opened.report(str(tmp_path / "page.html")).read_text().startswith("<!DOCTYPE html>")


def test_without_a_folder_the_run_is_kept_in_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    same: dict[str, Any] = {"label_column": "kind", "quiet": True, "device": "cpu", "method": "standard"}
    result = unflip.clean(frame().to_pandas(), ignore=["note"], **same)
    assert result.folder.parent == tmp_path
    assert unflip.load(result.folder).issues.equals(result.issues)
    assert Pandas().read(result.apply().data) == TRUTH
    assert isinstance(unflip.clean(frame().drop_columns("note"), **same).issues, pa.Table)


def test_data_in_memory_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for data, options, message in (
        (features(), {}, "labels: none given"),
        (features(), {"labels": [1, 2]}, "labels: 2 labels for 120 examples"),
        (frame(), {}, "data: no column 'label' among x0, .*; choose one with label_column"),
        (frame().append_column("Label", frame()["kind"]), {"label_column": "kind"}, "column 'Label' besides"),
        ([object()], {"labels": [1]}, "data: cannot read a list; must be a path, a name, a data frame"),
    ):
        with pytest.raises(InputError, match=message):
            unflip.clean(data, tmp_path / "run", **options)


@pytest.mark.parametrize("name", ["csv", "images"])
def test_data_that_has_grown_keeps_its_decisions_and_says_what_is_new(name: str, tmp_path: Path, cli: Cli) -> None:
    kind = KINDS[name]
    data = kind.write(tmp_path / "data")
    first = cleaned(kind, data, tmp_path / "run")
    assert first.result["since_last"] is None
    decide(
        first,
        kind,
        {ACCEPTED: (State.ACCEPTED, TRUTH[ACCEPTED]), KEPT: (State.KEPT, GIVEN[KEPT]), REMOVED: (State.REMOVED, None)},
    )
    if name == "csv":
        rows = frame().to_pylist()
        new = {**rows[1], "x1": rows[1]["x1"] + 0.5, "kind": "ape", "note": 'a new "999"'}
        with data.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*new])
            writer.writeheader()
            writer.writerows([new, *rows[:-1][::-1]])  # another order, a new one, and the last is gone
    else:
        write_picture(data / "ape" / "999.png", 1, (40, 40))
        (data / GIVEN[COUNT - 1] / f"{COUNT - 1:03}.png").unlink()
    more = ["--label-column", "kind", "--ignore", "note"] if name == "csv" else ["--backbone", "tiny"]
    done = cli("clean", data, "--out", tmp_path / "run", "--force", "--device", "cpu", "--method", "standard", *more)
    assert done.code == 0, done.err
    assert (name == "csv") != ("tiny at 112 pixels of 1 new images, then train" in done.out)
    assert "  since the last run: 1 new example (1 label issue), 1 gone\n" in done.out
    assert "2 reviewed labels, 1 corrected; 1 example removed" in done.out
    again = unflip.load(tmp_path / "run")
    assert again.result["since_last"] == {"new": 1, "label_issues": 1, "gone": 1, "reviewed": 3}
    index_of = numbers(again)
    table = again.labels()
    assert table["current_label_name"][index_of[ACCEPTED]].as_py() == TRUTH[ACCEPTED]
    assert table["current_label_name"][index_of[KEPT]].as_py() == GIVEN[KEPT]
    assert table["split"][index_of[REMOVED]].as_py() == "removed"
    assert not {index_of[i] for i in (ACCEPTED, KEPT, REMOVED)} & set(again.issues["index"])


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (["ape", "bee"], ["ape", "bee", "cat"], ["cat", "bee"]),
        (None, ["ape", "bee", "cat"], ["cat", ""]),
        (np.array([2020, 2022], np.uint16), ["2020", "2022", "2025"], [2025, 2022]),
    ],
)
def test_arrays_get_a_class_that_no_row_has(
    labels: Any, classes: list[str], expected: list[Any], tmp_path: Path
) -> None:
    given = {} if labels is None else {"train_labels": np.asarray(labels)}
    write_npz(tmp_path / "data.npz", {"train": np.eye(2), **given})
    options = DataOptions(path=str(tmp_path / "data.npz"))
    own = np.array([-1, -1] if labels is None else [0, 1])
    new = NewLabels(own, np.array([2, -1]), np.ones(2, bool))
    rewrite(load_raw(options), options, tmp_path / "new.npz", {"train": new}, classes)
    with np.load(tmp_path / "new.npz") as written:
        assert written["train_labels"].tolist() == expected
        assert labels is None or written["train_labels"].dtype == given["train_labels"].dtype
