"""Reviewing a random sample: what counts, what it says, and what training again makes of it."""

import csv
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from helpers import Outcome, blobs, quick_train, write_npz
from reviewing import Client, served
from unflip.api.review import export_review, review_summary
from unflip.errors import RunFolderError
from unflip.review import Order
from unflip.review.decisions import Choice, DecisionStore, State
from unflip.review.examples import Examples, Filter
from unflip.review.sample import find_cuts, summarize_sample
from unflip.runs.folder import Run

COUNT = 360


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run, np.ndarray]:
    """Overlapping blobs, three of ten labels wrong: data, run, clean labels."""
    folder, content = tmp_path_factory.mktemp("noisy"), blobs(train=COUNT)
    random, truth = np.random.default_rng(1), content["train_labels"].copy()
    content["train"] += 2 * random.normal(size=content["train"].shape).astype(np.float32)
    wrong = random.random(COUNT) < 0.3
    content["train_labels"] = np.where(wrong, (truth + 1) % 3, truth)
    data = write_npz(folder / "data.npz", **content)
    return data, quick_train(data, folder / "run", method="unflip", epochs=6), truth


def decide(run: Run, truth: "np.ndarray[tuple[int], np.dtype[np.int64]]", rows: list[int], skip: int = 10**9) -> None:
    """Answer with the truth; every ``skip``-th is unsure."""
    examples = Examples(run)
    with closing(DecisionStore(run.folder / "review.sqlite", examples.keys)) as store:
        choices = []
        for number, i in enumerate(rows, 1):
            kept = truth[i] == examples.given[i]
            state = State.UNSURE if number % skip == 0 else State.KEPT if kept else State.CHANGED
            choices.append(Choice(i, 0, state, None if state == State.UNSURE else int(truth[i])))
        store.decide(choices, person="0" * 32, reviewer="ann", request="a" * 8)


@pytest.fixture
def run(noisy: tuple[Path, Run, np.ndarray], tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(noisy[1].folder, tmp_path / "run")))


def test_a_sample_tells_how_many_labels_are_wrong(
    noisy: tuple[Path, Run, np.ndarray],
    run: Run,
    cli: Callable[..., Outcome],
) -> None:
    with pytest.raises(RunFolderError, match="--order sample"):
        review_summary(run.folder)
    truth, examples = noisy[2], Examples(run)
    order = examples.ranking(Order.SAMPLE).order.tolist()
    assert sorted(order) == list(range(COUNT))
    assert order == Examples(run).ranking(Order.SAMPLE).order.tolist()  # as long as the run stays the same
    decide(run, truth, order[:12])
    assert cli("review", run.folder, "--summary").out.endswith(" wrong; 20 are needed for an estimate\n")
    decide(run, truth, order[12:110], skip=10)
    with closing(DecisionStore(run.folder / "review.sqlite", examples.keys, read_only=True)) as decisions:
        summary, cuts = summarize_sample(examples, decisions), find_cuts(examples, decisions)
        decided = decisions.decided()
    wrong = truth != examples.given
    assert summary.decisions == len(decided) == 110 - 9
    assert summary.wrong_decisions == sum(wrong[row.example] for row in decided)
    assert summary.total == COUNT
    assert summary.wrong is not None
    assert summary.low < wrong.sum() < summary.high
    assert summary.wrong == pytest.approx(wrong.sum(), rel=0.2)
    assert cuts.precision[-1] * COUNT == pytest.approx(summary.wrong, rel=0.02)
    assert (1 - cuts.quality).sum() == pytest.approx(summary.wrong, rel=0.02)
    listed = np.argsort(examples.log_odds, kind="stable")
    assert cuts.precision[99] == pytest.approx(wrong[listed[:100]].mean(), abs=0.1)
    assert 0.7 * wrong.sum() < cuts.best < 1.3 * wrong.sum()
    quality = np.sort(run.labels()["label_quality"].to_numpy())
    assert quality[cuts.best - 1] == pytest.approx(cuts.threshold)
    out = cli("review", run.folder, "--summary").out
    assert out.splitlines()[0] == str(summary)
    assert f"the first {cuts.best} are more likely wrong than right (quality up to {cuts.threshold:.1%})" in out


def test_decisions_in_another_order_count_only_where_the_sample_reached_them(
    noisy: tuple[Path, Run, np.ndarray],
    run: Run,
) -> None:
    examples = Examples(run)
    lowest, order = (examples.ranking(kind).order.tolist() for kind in (Order.LOWEST_QUALITY, Order.SAMPLE))
    decide(run, noisy[2], lowest[:80])
    summary = review_summary(run.folder)[0]
    strata = examples.sample.strata
    reached = 0
    for stratum in range(10):
        mine = [i for i in order if strata[i] == stratum]
        reached += next((place for place, i in enumerate(mine) if i not in lowest[:80]), len(mine))
    assert summary.decisions == reached < 80


def test_the_export_has_weights_and_training_again_uses_them(
    noisy: tuple[Path, Run, np.ndarray],
    run: Run,
    tmp_path: Path,
) -> None:
    data, _, truth = noisy
    examples = Examples(run)
    order = examples.ranking(Order.SAMPLE).order.tolist()
    decide(run, truth, order[:90])
    assert export_review(run.folder, tmp_path / "reviewed.csv") == 90
    rows = list(csv.DictReader((tmp_path / "reviewed.csv").read_text().splitlines()))
    assert sum(float(row["review_weight"]) for row in rows) == pytest.approx(COUNT, rel=1e-4)
    without = tmp_path / "without.csv"
    without.write_text("index,label\n" + "".join(f"{row['index']},{row['label']}\n" for row in rows))
    wrong = int((truth != examples.given).sum()) - sum(row["label"] != row["given_label"] for row in rows)
    found = {}
    for name in ("unflip", "plc"):
        for file in (tmp_path / "reviewed.csv", without):
            again = quick_train(data, tmp_path / f"{name}-{file.stem}", method=name, epochs=6, reviewed=str(file))
            found[name, file.stem] = again.label_summary
        assert found[name, "reviewed"].low < wrong < found[name, "reviewed"].high
        assert found[name, "reviewed"].wrong == pytest.approx(wrong, rel=0.25)
        of_sample, of_model = (found[name, file] for file in ("reviewed", "without"))
        assert (of_sample.low, of_sample.high) != (of_model.low, of_model.high)
    weights = Run(tmp_path / "unflip-reviewed").labels()["review_weight"]
    assert weights.null_count == COUNT - 90
    exported = {row["index"]: row["review_weight"] for row in rows}
    again = Run(tmp_path / "unflip-reviewed")
    decide(again, truth, [i for i in range(COUNT) if str(i) not in exported][:1])
    export_review(again.folder, tmp_path / "later.csv")
    later = {
        row["index"]: row["review_weight"] for row in csv.DictReader((tmp_path / "later.csv").read_text().splitlines())
    }
    assert {index: later[index] for index in exported} == exported


def test_the_page_says_what_the_sample_says(
    noisy: tuple[Path, Run, np.ndarray],
    run: Run,
) -> None:
    truth = noisy[2]
    with served(run.folder, order=Order.SAMPLE) as (address, review):
        client = Client(address)
        assert client.get("/api/about").json["order"] == "sample"
        shown = client.get("/api/examples?count=30").json
        assert shown["progress"]["sample"] is None
        order = review.examples.ranking(Order.SAMPLE).order.tolist()
        assert [one["index"] for one in shown["examples"]] == order[:30]
        for one in shown["examples"]:
            label = int(truth[one["index"]])
            assert client.decide("choose", (one["index"], 0), label=label).status == 200
        said = client.get("/api/changes?since=0").json["progress"]["sample"]
        assert said == str(summarize_sample(review.examples, review.decisions))
        assert said.startswith("sample: 30 decisions, ")
        assert f" of {COUNT} labels are wrong" in said
        assert (
            review.examples.page(Filter(state="open"), review.decisions.states, count=1, order=Order.SAMPLE).total
            == 330
        )
