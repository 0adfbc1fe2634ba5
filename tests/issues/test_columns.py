"""Columns and slices: what is found in tables, and that nothing is found by chance."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import fisher_exact

from issue_inputs import clusters, made, reasons
from unflip.data.columns import Table
from unflip.encoders.table import TableEncoder, gives_label_away
from unflip.issues.audit import AuditInput
from unflip.issues.columns import find_column_issues, find_slices

Array = np.ndarray[Any, Any]
COUNT = 400


def audited_table(columns: Mapping[str, Any], quality: Array | None = None, val: int = 0) -> AuditInput:
    cells = Table(pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()}))
    encoder = TableEncoder.fit(cells[: len(cells) - val])
    given = np.arange(len(cells)) % 2
    audited = made(encoder.encode(cells).features, given, ["no", "yes"], quality=quality, val=val)
    examples = {"train": cells[: len(cells) - val]} | ({"val": cells[len(cells) - val :]} if val else {})
    return replace(audited, data=replace(audited.data, encoding=encoder.encoding()), examples=examples)


@pytest.mark.parametrize("val", [0, 50])
def test_useless_and_derived_columns_are_named(val: int) -> None:
    random, yes = np.random.default_rng(0), np.arange(COUNT) % 2 == 1
    plan = random.choice(["basic", "pro", "team"], COUNT)
    age = random.normal(40, 10, COUNT)
    columns = {
        "plan": plan,
        "plan_code": [["basic", "pro", "team"].index(name) + 10 for name in plan],
        "age": age,
        "age_again": age,
        "height": random.normal(170, 10, COUNT),
        "region": ["EU"] * COUNT,
        "fax": [None] * (COUNT - 8) + ["x", "y"] * 4,
        "notes": [None] * COUNT,
        "refund": np.where(yes, random.uniform(5, 9, COUNT), random.uniform(0, 4, COUNT)),
        "status": np.where(yes, random.choice(["closed", "ended"], COUNT), "open"),
        "nearly": np.where(yes | (np.arange(COUNT) == 4), "gone", "here"),
    }
    found = find_column_issues(audited_table(columns, val=val))
    assert found.rows.tolist() == [-1] * 7
    assert found.flags.all()
    assert sorted(reasons(found)) == [
        "age_again: the same as age; drop one of them",
        "fax: 98 % of the cells are empty; drop the column",
        "notes: 100 % of the cells are empty; drop the column",
        "plan_code: the same as plan; drop one of them",
        "refund: ranges of values occur with one class only; drop it if it was derived from the label",
        "region: every cell is EU; drop the column",
        "status: each value occurs with one class only; drop it if it was derived from the label",
    ]


def test_a_label_is_given_away_only_without_exception() -> None:
    random, labels = np.random.default_rng(0), np.arange(COUNT) % 4
    assert gives_label_away(labels + 7, labels)
    assert gives_label_away(labels + random.random(COUNT) / 2, labels)
    assert not gives_label_away(np.where(np.arange(COUNT) == 9, 0, labels), labels)
    assert not gives_label_away(labels > 1, labels)
    assert not gives_label_away(np.arange(COUNT), np.sort(labels))  # numbers of the rows, or names
    assert not gives_label_away(random.normal(size=COUNT), labels)
    assert not gives_label_away(labels, np.zeros(COUNT, int))
    assert not gives_label_away(labels[:12], labels[:12])


def test_slices_with_many_wrong_labels_are_named() -> None:
    random = np.random.default_rng(0)
    color = random.choice(["red", "green", "blue"], COUNT, p=[0.3, 0.4, 0.3])
    weight = np.where(random.random(COUNT) < 0.2, np.nan, random.integers(1, 81, COUNT))
    wrong = random.random(COUNT) < np.where(color == "red", 0.4, 0.02)
    quality = np.where(wrong, 0.05, 0.97)
    found = find_slices(audited_table({"color": color, "weight": weight, "other": random.random(COUNT)}, quality))
    red = color == "red"
    shares = [f"{100 * (1 - quality[some]).mean():.{digits}f} %" for some, digits in ((red, 0), (~red, 1))]
    assert reasons(found) == [
        f"color = red: {shares[0]} of {red.sum()} labels are expected to be wrong, {shares[1]} elsewhere"
    ]
    expected = np.round(
        [[(1 - quality[red]).sum(), quality[red].sum()], [(1 - quality[~red]).sum(), quality[~red].sum()]]
    )
    assert fisher_exact(expected, alternative="greater").pvalue < 0.01 / 12
    assert found.scores[0] == pytest.approx((1 - quality[red]).mean())

    quality = np.where((weight > 60) & (random.random(COUNT) < 0.5), 0.1, 0.98)
    (reason,) = reasons(find_slices(audited_table({"color": color, "weight": weight}, quality)))
    assert reason.startswith("weight = 6")
    assert " to 80: " in reason
    quality = np.where(np.isnan(weight) & (random.random(COUNT) < 0.6), 0.1, 0.98)
    (reason,) = reasons(find_slices(audited_table({"color": color, "weight": weight}, quality)))
    assert reason.startswith("weight = empty: ")


def test_no_slice_is_flagged_by_chance() -> None:
    random = np.random.default_rng(0)
    columns = {f"c{i}": random.choice(list("abcdefg"), 1000) for i in range(12)}
    columns |= {f"n{i}": random.standard_exponential(1000) for i in range(8)}
    audited, flagged = audited_table(columns), 0
    for share in np.repeat([0.01, 0.05, 0.2], 10):
        quality = np.where(random.random(1000) < share, random.beta(1, 9, 1000), random.beta(30, 1, 1000))
        table = made(np.zeros((1000, 1)), np.arange(1000) % 2, ["no", "yes"], quality=quality).table
        flagged += len(find_slices(replace(audited, table=table)).rows)
    assert flagged <= 1


def test_clusters_are_slices_where_there_are_no_columns() -> None:
    features, given = clusters(600, 3)
    wrong = (given == 1) & (np.random.default_rng(0).random(600) < 0.5)
    found = find_slices(made(features, given, ["cat", "dog", "frog"], quality=np.where(wrong, 0.1, 0.99)))
    assert len(found.rows) >= 1
    for reason in reasons(found):
        like = int(reason.removeprefix("examples like ").partition(":")[0])
        assert given[like] == 1


def test_labels_without_a_quality_or_that_people_reviewed_do_not_count() -> None:
    features, given = clusters(200, 2)
    quality = np.where(given == 1, 0.3, 0.99)
    assert len(find_slices(made(features, given, ["cat", "dog"], quality=quality)).rows)
    assert not len(find_slices(made(features, given, ["cat", "dog"], quality=quality, out_of_sample=False)).rows)
    audited = made(features, given, ["cat", "dog"], quality=quality)
    place = audited.table.column_names.index("reviewed")
    table = audited.table.set_column(place, "reviewed", pa.array(given == 1))
    assert not len(find_slices(replace(audited, table=table)).rows)
