"""Labels that other code has corrected: reviewed, applied, reported and exported like those of a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import unflip
from helpers import Outcome, write_npz
from pictures import write_picture
from reviewing import Client, served
from unflip.api.export import export
from unflip.errors import InputError, RunFolderError

pd = pytest.importorskip("pandas")
Cli = Callable[..., Outcome]
SCHEMA = Path(__file__).parents[2] / "docs" / "result.schema.json"
NAMES = [f"digit {number}" for number in range(10)]


@pytest.fixture(scope="module")
def loop() -> tuple[Any, unflip.LabelCorrection, torch.Tensor]:
    """A data set of digits with names for labels, labels that a loop has corrected, and the true ones."""
    images, truth = (torch.as_tensor(part) for part in load_digits(n_class=10, return_X_y=True))
    images, truth = images[:600].float() / 16, truth[:600].long()
    given = unflip.noise.corrupt_labels(truth, "sym:0.3", seed=1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    labels = unflip.LabelCorrection(given, 10, warmup=4)
    for _ in range(9):
        for index in torch.randperm(600).split(50):
            logits = model(images[index])
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[index]).backward()
            optimizer.step()
            labels.record(index, logits)
        labels.step()
    data = pd.DataFrame(images.numpy().round(4), columns=[f"pixel{place}" for place in range(64)])
    return data.assign(label=[NAMES[number] for number in given.tolist()]), labels, truth


def test_labels_of_a_loop_are_reviewed_and_applied(
    loop: tuple[Any, unflip.LabelCorrection, torch.Tensor], tmp_path: Path, cli: Cli
) -> None:
    data, labels, truth = loop
    data.to_csv(tmp_path / "digits.csv", index=False)
    saved = unflip.save(labels.to_frame(), tmp_path / "digits.csv", tmp_path / "run")
    jsonschema.validate(saved.result, json.loads(SCHEMA.read_text("utf-8")))
    wanted = labels.current.clone()
    changed = (labels.current != labels.given).nonzero()[:, 0].tolist()
    assert sorted(saved.issues["index"]) == changed
    assert (wanted == truth).float().mean() > (labels.given == truth).float().mean() + 0.15
    ranked = saved.issues["label_quality"].to_numpy()
    assert (np.diff(ranked) >= 0).all()
    assert saved.result["out_of_sample"] == 0
    assert "Nothing was trained" in saved.report_path.read_text("utf-8")
    assert "pixel0" in saved.report_path.read_text("utf-8")
    kept, chosen, removed = changed[:3]
    other = next(c for c in range(10) if c not in (int(labels.given[chosen]), int(wanted[chosen])))
    with served(tmp_path / "run") as (address, review):
        assert review.about()["label_issues"] == len(changed)
        client = Client(address)
        done = [client.decide("keep", (kept, 0)), client.decide("choose", (chosen, 0), label=other)]
        assert [answer.status for answer in [*done, client.decide("remove", (removed, 0))]] == [200] * 3
    wanted[kept], wanted[chosen] = labels.given[kept], other
    expected = [NAMES[number] for place, number in enumerate(wanted.tolist()) if place != removed]
    applied = unflip.apply(tmp_path / "run", tmp_path / "fixed.csv")
    assert pd.read_csv(tmp_path / "fixed.csv")["label"].tolist() == expected
    assert applied.dropped == 1
    assert unflip.load(tmp_path / "run").apply(data=data).data["label"].tolist() == expected
    assert cli("review", tmp_path / "run", "--export", tmp_path / "reviewed.csv").code == 0
    assert len((tmp_path / "reviewed.csv").read_text().splitlines()) == 4
    assert cli("export", tmp_path / "run", "--out", tmp_path / "tasks.json").code == 0
    tasks = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    assert len(tasks) == len(changed)
    assert "pixel0" in tasks[0]["data"]["text"]
    assert "no model.safetensors" in cli("predict", tmp_path / "run", "--data", tmp_path / "digits.csv").err


def three(given: list[Any], suggested: list[Any], **more: Any) -> Any:
    return pd.DataFrame({"given_label": given, "suggested_label": suggested, **more})


ROWS, GIVEN = np.eye(6)[:, :4], np.array(["cat", "dog", "cat", "dog", "owl", "cat"])
NUMBERS = [0, 1, 0, 1, 2, 0]


@pytest.mark.parametrize("kind", ["names", "numbers", "csv", "parquet", "label", "changed", "shuffled"])
def test_any_table_with_given_and_suggested_labels_will_do(kind: str, tmp_path: Path) -> None:
    names = three(GIVEN.tolist(), ["cat", "dog", "owl", "dog", "owl", "dog"], index=range(6))
    numbers = three(NUMBERS, [0, 1, 2, 1, 2, 1])
    frames: dict[str, Any] = {"names": names, "numbers": numbers}
    frames["label"] = names.rename(columns={"suggested_label": "label"})
    frames |= {"changed": names[names.given_label != names.suggested_label], "shuffled": names[::-1]}
    if kind in ("csv", "parquet"):
        frames[kind] = tmp_path / f"frame.{kind}"
        numbers.to_csv(frames[kind]) if kind == "csv" else names.to_parquet(frames[kind])
    fixed = unflip.save(frames[kind], (ROWS, GIVEN), tmp_path / "run").apply().data[1]
    assert fixed.tolist() == ["cat", "dog", "owl", "dog", "owl", "dog"]


def test_quality_and_reviews_of_a_table_count(tmp_path: Path) -> None:
    given, suggested = NUMBERS, [0, 1, 2, 1, 2, 1]
    frame = three(
        given, suggested, label_quality=[0.99, 0.5, 0.1, None, 0.95, 0.4], reviewed=[False] * 5 + [True],
        out_of_sample=[True] * 3 + [False] * 3,
    )  # fmt: skip
    saved = unflip.save(frame, (ROWS, np.array(given)), tmp_path / "run")
    table, summary = saved.labels(), saved.label_summary
    assert table["label_quality"].to_pylist() == pytest.approx([0.99, 0.5, 0.1, None, 0.95, 1.0])
    assert table["prob_suggested"].to_pylist() == pytest.approx([0.99, 0.5, 0.9, None, 0.95, 0.4])
    wrong, chance = 0.01 + 0.5 + 0.9 + 0.05, 2 * np.sqrt(0.0099 + 0.25 + 0.09 + 0.0475)
    assert summary == pytest.approx((4, wrong, np.floor(wrong - chance), np.ceil(wrong + chance), 1, 1, 1))
    assert saved.result["error_pairs"] == [[0, 2, pytest.approx(0.9)]]
    assert saved.result["out_of_sample"] == 0.5
    assert saved.apply(only="reviewed").data[1].tolist() == [0, 1, 0, 1, 2, 1]
    assert saved.apply(min_confidence=0.95).data[1].tolist() == [0, 1, 0, 1, 2, 1]


def test_classes_may_be_called_by_other_numbers_and_the_table_may_be_that_of_find_label_errors(tmp_path: Path) -> None:
    rows, labels, wrong = np.random.default_rng(0).normal(size=(90, 4)), 2024 + np.arange(90) % 3, [4, 50]
    probs = 0.02 + 0.94 * np.eye(3)[labels - 2024]
    labels[wrong] = 2024 + (labels[wrong] - 2023) % 3
    found = unflip.find_label_errors(labels=labels, pred_probs=probs)
    fixed = unflip.save(found.ranked, (rows, labels), tmp_path / "a").apply().data[1]
    assert np.flatnonzero(fixed != labels).tolist() == wrong
    numbers = three((labels - 2024).tolist(), (fixed - 2024).tolist())
    again = unflip.save(numbers, (rows, labels), tmp_path / "b").apply().data[1]
    assert again.tolist() == fixed.tolist()


def test_images_are_found_by_path_and_shown(tmp_path: Path) -> None:
    for place in range(6):
        write_picture(tmp_path / "photos" / ("cat" if place < 4 else "dog") / f"{place}.png", place // 4, (16, 16))
    frame = pd.DataFrame({"path": ["cat/2.png"], "given_label": ["cat"], "suggested_label": ["dog"]})
    saved = unflip.save(frame, tmp_path / "photos", tmp_path / "run")
    assert "data:image" in saved.report_path.read_text("utf-8")
    saved.apply(tmp_path / "fixed")
    assert sorted(path.name for path in (tmp_path / "fixed" / "dog").iterdir()) == ["2.png", "4.png", "5.png"]
    with served(tmp_path / "run") as (_, review):
        assert review.brief(2)["suggested_label"] == 1
        assert review.brief(0)["label_quality"] is None
        assert review.pictures is not None


def test_examples_for_validation_come_after_those_for_training(tmp_path: Path) -> None:
    labels = {"train_labels": np.array([0, 1, 0, 1]), "val_labels": np.array([1, 0])}
    data = write_npz(tmp_path / "data.npz", train=ROWS[:4], val=ROWS[4:], **labels)
    saved = unflip.save(three([0, 1, 0, 1, 1], [0, 1, 0, 1, 0], index=range(5)), data, tmp_path / "run")
    assert saved.labels()["split"].to_pylist() == ["train"] * 4 + ["val"] * 2
    assert saved.issues["index"].tolist() == [4]


def test_a_run_is_replaced_only_if_told_and_keeps_its_decisions(tmp_path: Path) -> None:
    frame = three(NUMBERS, [0, 1, 2, 1, 2, 1])
    unflip.save(frame, (ROWS, GIVEN), tmp_path / "run")
    with served(tmp_path / "run") as (address, _):
        assert Client(address).decide("keep", (2, 0)).status == 200
    with pytest.raises(RunFolderError, match="already contains a run"):
        unflip.save(frame, (ROWS, GIVEN), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"labels\.csv: is an input of the run that would replace it"):
        unflip.save(tmp_path / "run" / "labels.csv", (ROWS, GIVEN), tmp_path / "run", force=True)
    frame["suggested_label"] = [0, 1, 1, 1, 2, 1]
    fixed = unflip.save(frame, (ROWS, GIVEN), tmp_path / "run", force=True).apply().data[1]
    assert fixed.tolist() == ["cat", "dog", "cat", "dog", "owl", "dog"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros(3), "labels: a ndarray; give a data frame or a file"),
        (pd.DataFrame({"given_label": NUMBERS}), "labels: no column 'label' among given_label"),
        (pd.DataFrame({"label": NUMBERS}), "labels: no column 'given_label' among label"),
        (three(NUMBERS[:5], NUMBERS[:5]), "labels: 5 rows for 6 examples"),
        (three(NUMBERS[:1], NUMBERS[:1], index=[6]), "labels, row 0: index '6' is not an integer from 0 to 5"),
        (three([0, 0], [0, 1], index=[2, 2]), "labels, row 1: the same example as in row 0; keep one of them"),
        (three([0], [1], id=["a"]), "labels: examples of this data have no id; use the column 'index'"),
        (three([0, 1, 1, 1, 2, 0], NUMBERS), "row 2: given_label 1, but example 2 of the data has 'cat'"),
        (three(NUMBERS, [0, 1, 0, 1, 2, 3]), "'suggested_label', row 5: label 3.0 is not an integer"),
        (three(GIVEN.tolist(), ["cat"] * 5 + ["dgo"]), "'suggested_label', row 5: unknown class 'dgo', did you"),
        (three(NUMBERS, NUMBERS, label_quality=[1.5] * 6), "row 0: label_quality 1.5 is not a number from 0 to 1"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_in_one_line(frame: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        unflip.save(frame, (ROWS, GIVEN), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run" / "result.json").exists()


def test_without_a_quality_all_suggestions_are_applied_but_none_is_sure(tmp_path: Path) -> None:
    saved = unflip.save(three(NUMBERS, [0, 1, 2, 1, 2, 1]), (ROWS, GIVEN), tmp_path / "run")
    assert str(saved.label_summary) == "2 label issues; 0 more are worth a look"
    assert (saved.apply().relabeled, saved.apply(min_confidence=0.5).relabeled) == (2, 0)
    assert export(saved, tmp_path / "tasks.json") == 2
    assert [task["predictions"][0]["score"] for task in json.loads((tmp_path / "tasks.json").read_text())] == [None] * 2


def test_a_class_that_no_given_label_has_is_declared(tmp_path: Path) -> None:
    frame = three(NUMBERS, [0, 1, 3, 1, 2, 0])
    saved = unflip.save(frame, (ROWS, GIVEN), tmp_path / "run", classes=["cat", "dog", "owl", "yak"])
    assert saved.apply().data[1].tolist() == ["cat", "dog", "yak", "dog", "owl", "cat"]
