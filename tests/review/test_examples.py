"""Pages and filters against going through all examples one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unflip.errors import RunFolderError
from unflip.review import Order
from unflip.review.decisions import State
from unflip.review.examples import Examples, Filter
from unflip.runs.folder import Run

DECIDED = (State.ACCEPTED, State.KEPT, State.CHANGED, State.REMOVED)
CLASSES = st.none() | st.integers(0, 9)
FILTERS = st.builds(
    Filter,
    listed=st.booleans(),
    differs=st.booleans(),
    given=CLASSES,
    suggested=CLASSES,
    label_class=CLASSES,
    below=st.none() | st.sampled_from([0.01, 0.5, 1.0]),
    state=st.sampled_from(["any", "decided", *(state.name.lower() for state in State)]),
    issue=st.none(),
)


def passes(wanted: Filter, row: dict[str, Any], state: int) -> bool:
    return (
        (not wanted.listed or row["is_label_issue"] or row["label_quality"] < 0.9)
        and (not wanted.differs or row["given_label"] != row["suggested_label"])
        and wanted.given in (None, row["given_label"])
        and wanted.suggested in (None, row["suggested_label"])
        and wanted.label_class in (None, row["given_label"], row["suggested_label"])
        and (wanted.below is None or row["label_quality"] < wanted.below)
        and (wanted.state in ("any", State(state).name.lower()) or (wanted.state == "decided" and state in DECIDED))
    )


@given(wanted=FILTERS, count=st.integers(1, 150), seed=st.integers(0, 9))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_forward_and_backward_go_through_what_passes_by_quality(
    trained: Path, wanted: Filter, count: int, seed: int
) -> None:
    examples = Examples(Run(trained))
    states = np.random.default_rng(seed).integers(0, 6, len(examples)).astype(np.uint8)
    rows = pyarrow.parquet.read_table(trained / "labels.parquet").to_pylist()
    expected = [row["index"] for row in sorted(rows, key=lambda row: row["log_odds"])]
    expected = [i for i in expected if passes(wanted, rows[i], states[i])]
    found: list[int] = []
    after, before = -1, len(rows)
    while page := examples.page(wanted, states, after=after, count=count).indices:
        assert examples.page(wanted, states, after=after, count=count)[1:3] == (len(expected), len(found))
        found, after = found + page, int(examples.ranking(Order.LOWEST_QUALITY).ranks[page[-1]])
    assert found == expected
    backwards: list[int] = []
    while page := examples.page(wanted, states, before=before, count=count).indices:
        backwards, before = page + backwards, int(examples.ranking(Order.LOWEST_QUALITY).ranks[page[0]])
    assert backwards == expected


def test_pairs_are_counted_and_the_most_frequent_comes_first(trained: Path) -> None:
    rows = pyarrow.parquet.read_table(trained / "labels.parquet").to_pylist()
    pairs = [
        (row["given_label"], row["suggested_label"]) for row in rows if row["given_label"] != row["suggested_label"]
    ]
    found = Examples(Run(trained)).pairs
    assert {(a, b): count for a, b, count in found} == {pair: pairs.count(pair) for pair in pairs}
    assert [count for *_, count in found] == sorted((count for *_, count in found), reverse=True)


def test_the_history_of_an_example_is_that_of_the_run(trained: Path) -> None:
    examples = Examples(Run(trained))
    changes = pyarrow.parquet.read_table(trained / "history.parquet").to_pylist()
    assert changes
    for index in range(len(examples)):
        mine = [{k: v for k, v in change.items() if k != "index"} for change in changes if change["index"] == index]
        assert examples.history(index) == mine


@pytest.mark.parametrize("name", ["labels.parquet", "history.parquet", "result.json", "run.json"])
def test_a_damaged_run_is_one_line_that_names_the_file(run: Path, name: str) -> None:
    (run / name).write_bytes(b"broken")
    with pytest.raises(RunFolderError, match=name):
        Examples(Run(run))


def test_labels_reviewed_before_training_are_not_offered_again(run: Path) -> None:
    table = pyarrow.parquet.read_table(run / "labels.parquet")
    reviewed = np.arange(len(table)) % 2 == 0
    for name, column in (("reviewed", reviewed), ("is_label_issue", table["is_label_issue"].to_numpy() & ~reviewed)):
        table = table.set_column(table.column_names.index(name), name, [column])
    pyarrow.parquet.write_table(table, run / "labels.parquet")
    examples, nobody = Examples(Run(run)), np.zeros(len(table), np.uint8)
    offered = examples.page(Filter(differs=True), nobody, count=len(table)).indices
    assert offered
    assert not any(reviewed[offered])
    assert sum(count for *_, count in examples.pairs) == len(offered)
