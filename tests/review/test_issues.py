"""Issues on the review page: filters, reasons, groups, removal; a program asks."""

from pathlib import Path

import numpy as np
import pytest

from helpers import quick_train
from reviewing import Client, decided, issue, served, write_issues
from unflip.review.examples import Issues
from unflip.runs.folder import Run


@pytest.fixture
def found(run: Path) -> Path:
    """A run on digits with outliers, two groups of near-duplicates, and a weak class."""
    write_issues(
        run,
        outlier=issue([7, 3, 9, 11], ["far from 'all'", 'far, "very"', "far", "nearly far"], flagged=3),
        near_duplicate=issue([40, 8, 20, 41, 7], [f"copy {i}" for i in range(5)], groups=[5, 2, 2, 5, 2]),
        class_quality=issue([-1], ["8 is taken for 3"]),
    )
    return run


def test_issues_come_by_name_by_example_and_by_group(found: Path) -> None:
    issues = Issues(Run(found).other_issues())
    assert list(issues.lists) == ["outlier", "near_duplicate"]
    assert issues.lists["outlier"].tolist() == [7, 3, 9]
    assert issues.lists["near_duplicate"].tolist() == [40, 41, 7, 8, 20]  # groups stay together
    assert issues.of(3) == [{"name": "outlier", "reason": 'far, "very"', "group": None}]
    outlier = {"name": "outlier", "reason": "far from 'all'", "group": None}
    duplicate = {"name": "near_duplicate", "reason": "copy 4", "group": 2}
    assert issues.of(7) == [outlier, duplicate]
    assert issues.of(11) == issues.of(399) == []
    assert issues.group(20) == [7, 8, 20]
    assert issues.group(3) == issues.group(0) == []


def test_a_run_without_issues_has_none(run: Path) -> None:
    issues = Issues(Run(run).other_issues())
    assert (issues.lists, issues.of(0), issues.group(0)) == ({}, [], [])
    with served(run) as (address, _):
        client = Client(address)
        assert client.get("/api/about").json["issues"] == []
        answer = client.get("/api/examples?issue=outlier")
        assert (answer.status, answer.json["error"].partition(";")[0]) == (400, "unknown issue 'outlier'")


def test_the_filter_shows_a_issue_as_the_run_lists_it(found: Path) -> None:
    with served(found) as (address, review):
        client = Client(address)
        assert client.get("/api/about").json["issues"] == [["outlier", 3], ["near_duplicate", 5]]
        page = client.get("/api/examples?issue=near_duplicate&count=3").json
        assert [(one["index"], one["rank"]) for one in page["examples"]] == [(40, 0), (41, 1), (7, 2)]
        assert page["examples"][2]["issues"][1] == {"name": "near_duplicate", "reason": "copy 4", "group": 2}
        assert page["progress"]["here"]["open"] == page["total"] == 5
        rest = client.get(f"/api/examples?issue=near_duplicate&after={page['last']}").json
        assert [one["index"] for one in rest["examples"]] == [8, 20]
        given = int(review.examples.given[7])
        same = [i for i in (40, 41, 7, 8, 20) if review.examples.given[i] == given]
        few = client.get(f"/api/examples?issue=near_duplicate&label_class={given}").json["examples"]
        assert set(same) <= {one["index"] for one in few}
        detail = client.get("/api/examples/20?issue=near_duplicate").json
        assert (detail["rank"], [one["index"] for one in detail["group"]]) == (4, [7, 8, 20])
        group = client.get("/api/examples/20/group").json
        assert (group["total"], [one["index"] for one in group["examples"]]) == (3, [7, 8, 20])


def test_a_removal_is_a_decision_that_can_be_taken_back_and_is_exported(found: Path, tmp_path: Path) -> None:
    with served(found) as (address, review):
        client = Client(address)
        answer = client.decide("remove", (8, 0), (20, 0)).json["written"]
        assert [(one["index"], one["state"], one["label"]) for one in answer] == [
            (8, "removed", None),
            (20, "removed", None),
        ]
        assert [one["index"] for one in client.get("/api/examples?state=removed").json["examples"]]
        client.decide("keep", (7, 0))
        given = int(review.examples.given[7])
        text = client.get("/api/export.csv").body.decode()
        ids = [review.examples.ids[i] for i in (7, 8, 20)]
        rows = [f"7,{ids[0]},{given},label", f"8,{ids[1]},,remove", f"20,{ids[2]},,remove"]
        assert decided(text).splitlines() == ["index,id,label,decision", *rows]
        client.undo()
        assert len(client.undo().json["written"]) == 2  # both at once
        assert decided(client.get("/api/export.csv").body.decode()) == "index,id,label,decision\n"
        assert client.decide("remove", (3, 0), label=1).status == 400
    (tmp_path / "reviewed.csv").write_text(text)
    again = quick_train("digits", tmp_path / "again", limit=400, reviewed=tmp_path / "reviewed.csv", epochs=1)
    splits = again.labels()["split"].to_numpy()
    assert np.flatnonzero(splits == "removed").tolist() == [8, 20]


def test_a_group_is_asked_for_without_what_is_removed(found: Path) -> None:
    with served(found) as (address, _):
        client = Client(address)
        client.decide("remove", (7, 0))
        group = client.get("/api/examples/20/group").json
        assert (group["total"], [one["index"] for one in group["examples"]]) == (2, [8, 20])
        client.undo()
        assert client.get("/api/examples/20/group").json["total"] == 3
