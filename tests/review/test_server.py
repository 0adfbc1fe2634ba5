"""What the page asks of the server, asked by a program."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from helpers import Outcome, blobs, forget_quality, quick_train, write_npz
from pictures import write_picture
from reviewing import Client, decided, new_request, served
from unflip import train


def rows_of(run: Path) -> list[dict[str, object]]:
    return list(pyarrow.parquet.read_table(run / "labels.parquet").to_pylist())


def first(client: Client, query: str = "differs=true") -> dict[str, Any]:
    return dict(client.get(f"/api/examples?{query}").json["examples"][0])


def test_the_first_page_is_what_looks_most_wrong(client: Client, run: Path) -> None:
    answer = client.get("/api/examples?differs=true&count=20").json
    rows = [row for row in rows_of(run) if row["given_label"] != row["suggested_label"]]
    expected = sorted(rows, key=lambda row: float(str(row["log_odds"])))
    assert [one["index"] for one in answer["examples"]] == [row["index"] for row in expected[:20]]
    assert answer["total"] == len(rows)
    one, row = answer["examples"][0], expected[0]
    for name in ("given_label", "suggested_label", "id", "split"):
        assert one[name] == row[name]
    for name in (
        "label_quality",
        "network_prob_given",
        "gaussian_prob_given",
        "network_prob_suggested",
        "gaussian_prob_suggested",
    ):
        assert one[name] == pytest.approx(row[name], abs=1e-6)


def test_what_is_not_known_comes_last_and_is_nothing(run: Path) -> None:
    forgotten = [7, 107, 207, 307]
    forget_quality(run, forgotten)
    with served(run) as (address, _):
        client = Client(address)
        total = client.get("/api/examples?count=1").json["total"]
        page = client.get(f"/api/examples?count=10&before={total}").json["examples"]
        assert sorted(one["index"] for one in page[-4:]) == forgotten  # classes take turns
        assert [one["label_quality"] for one in page[-4:]] == [None] * 4
        assert all(one["label_quality"] > 0.5 for one in page[:-4])
        detail = client.get(f"/api/examples/{forgotten[0]}").json
        assert (detail["label_quality"], detail["gaussian_prob_given"], detail["gaussian_prob_suggested"]) == (
            None,
            None,
            None,
        )
        assert 0 <= detail["network_prob_given"] <= 1


def test_each_action_leads_to_its_state_and_label(client: Client) -> None:
    one = first(client)
    index, given, suggested = one["index"], one["given_label"], one["suggested_label"]
    third = next(label for label in range(10) if label not in (given, suggested))
    steps: list[tuple[str, dict[str, Any], str, int | None]] = [
        ("accept", {}, "accepted", suggested),
        ("keep", {}, "kept", given),
        ("choose", {"label": third}, "changed", third),
        ("choose", {"label": given}, "kept", given),
        ("choose", {"label": suggested}, "accepted", suggested),
        ("unsure", {}, "unsure", None),
        ("clear", {}, "open", None),
    ]
    for version, (action, more, state, label) in enumerate(steps):
        (row,) = client.decide(action, (index, version), **more).json["written"]
        assert (row["state"], row["label"], row["version"], row["reviewer"]) == (state, label, version + 1, "ann")
        assert client.get(f"/api/examples/{index}").json["decision"]["state"] == state


def test_two_people_see_each_other_and_neither_overwrites_unseen(client: Client) -> None:
    bob = Client(client.address, person=7)
    index = first(client)["index"]
    assert client.decide("accept", (index, 0)).json["conflicts"] == []
    refused = bob.decide("keep", (index, 0), reviewer="bob").json
    assert refused["written"] == []
    assert [(row["reviewer"], row["state"]) for row in refused["conflicts"]] == [("ann", "accepted")]
    changes = bob.get("/api/changes?since=0").json
    assert [(row["index"], row["state"]) for row in changes["changes"]] == [(index, "accepted")]
    taken = bob.decide("keep", (index, 1), reviewer="bob").json
    assert taken["written"][0]["version"] == 2
    assert client.undo().json["written"] == []  # nothing of Ann's holds any more
    assert bob.undo(reviewer="bob").json["written"][0]["state"] == "accepted"


def test_many_are_decided_and_undone_at_once(client: Client) -> None:
    indices = [one["index"] for one in client.get("/api/examples?count=50").json["examples"]]
    assert len(client.decide("accept", *((i, 0) for i in indices)).json["written"]) == 50
    progress = client.get("/api/examples?differs=true&state=open").json["progress"]
    assert sum(progress["all"].values()) - progress["all"]["open"] == 50
    assert len(client.undo().json["written"]) == 50
    assert client.get("/api/changes?since=100").json == {
        "changes": [],
        "last": 100,
        "progress": client.get("/api/examples").json["progress"],
    }


def test_a_request_sent_again_is_done_once(client: Client) -> None:
    request = new_request()
    index = first(client)["index"]
    one, two = (client.decide("accept", (index, 0), request=request).json for _ in range(2))
    assert one == two
    assert client.get("/api/changes?since=0").json["last"] == 1


def test_the_export_holds_what_was_settled_and_training_takes_it(client: Client, run: Path, tmp_path: Path) -> None:
    shown = client.get("/api/examples?differs=true&count=12").json["examples"]
    accept, keep, unsure = shown[:5], shown[5:9], shown[9:]
    for action, chosen in (("accept", accept), ("keep", keep), ("unsure", unsure)):
        client.decide(action, *((one["index"], 0) for one in chosen))
    answer = client.get("/api/export.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="reviewed.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    expected = {one["index"]: one["suggested_label"] for one in accept} | {
        one["index"]: one["given_label"] for one in keep
    }
    assert {int(row["index"]): int(row["label"]) for row in rows} == expected
    assert all(row["id"].startswith("digit-") for row in rows)
    reviewed = tmp_path / "reviewed.csv"
    reviewed.write_bytes(answer.body)
    again = train("digits", tmp_path / "again", limit=400, noise="sym:0.3", reviewed=reviewed, epochs=2, device="cpu")
    current = {row["index"]: row["current_label"] for row in rows_of(again.folder)}
    assert {index: current[index] for index in expected} == expected


def test_a_second_round_keeps_what_the_first_decided(run: Path, tmp_path: Path) -> None:
    with served(run) as (address, review):
        client = Client(address)
        names, given = review.examples.class_names, review.examples.given.tolist()
        other = {i: (given[i] + 1) % len(names) for i in (3, 4, 5, 6)}
        for i, label in other.items():
            client.decide("choose", (i, 0), label=label)
        client.decide("remove", (8, 0), (9, 0), (10, 0))
        first = client.get("/api/export.csv").body.decode()
    (tmp_path / "first.csv").write_text(first)
    again = quick_train(
        "digits", tmp_path / "again", reviewed=tmp_path / "first.csv", limit=400, noise="sym:0.3", epochs=1
    )
    with served(again.folder) as (address, review):
        client = Client(address)
        nobody = "".join(f"{line.removesuffix(',ann')}{',' * line.endswith(',ann')}\n" for line in first.splitlines())
        assert client.get("/api/export.csv").body.decode() == nobody  # who decided is known in the first round only
        client.decide("keep", (4, 0), (9, 0), (20, 0))
        client.decide("remove", (5, 0))
        client.decide("unsure", (6, 0), (10, 0))
        client.decide("keep", (3, 0))
        client.undo()
        second = client.get("/api/export.csv").body.decode()
        ids = review.examples.ids
    wanted = {3: other[3], 4: given[4], 5: None, 8: None, 9: given[9], 20: given[20]}
    assert decided(second).splitlines()[1:] == [
        f"{i},{ids[i]},,remove" if label is None else f"{i},{ids[i]},{names[label]},label"
        for i, label in wanted.items()
    ]


def test_neighbors_are_the_nearest_of_either_class(client: Client, run: Path) -> None:
    import numpy as np

    features = np.load(run / "features.npy").astype(np.float64)
    rows = rows_of(run)
    one = first(client)
    detail = client.get(f"/api/examples/{one['index']}").json
    assert [group["label"] for group in detail["neighbors"]] == [one["given_label"], one["suggested_label"]]
    for group in detail["neighbors"]:
        others = [i for i, row in enumerate(rows) if row["current_label"] == group["label"] and i != one["index"]]
        distances = {i: np.linalg.norm(features[i] - features[one["index"]]) for i in others}
        assert [near["index"] for near in group["examples"]] == sorted(others, key=distances.__getitem__)[:6]
    same = first(client, "state=any&count=1&after=300")
    if same["given_label"] == same["suggested_label"]:
        groups = client.get(f"/api/examples/{same['index']}").json["neighbors"]
        assert groups[1]["label"] is None


def test_pictures_come_with_a_year_of_caching_and_a_key_of_their_run(client: Client) -> None:
    prefix = client.get("/api/about").json["pictures"]
    answer = client.get(f"{prefix}small/3")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert answer.body.startswith(b"\x89PNG")
    assert "immutable" in answer.headers["cache-control"]
    assert client.get("/api/about").headers["cache-control"] == "no-store"
    assert client.get("/picture/0000000000000000/small/3").status == 404


def test_features_without_pictures_have_rows_and_neighbors(tmp_path: Path) -> None:
    run = quick_train(write_npz(tmp_path / "a.npz", **blobs()), tmp_path / "run", epochs=2)
    with served(run.folder) as (address, _):
        client = Client(address)
        about = client.get("/api/about").json
        assert about["pictures"] is None
        assert about["classes"] == ["0", "1", "2"]
        detail = client.get("/api/examples/4").json
        assert len(detail["neighbors"][0]["examples"]) == 6
        assert [value for _, value in detail["values"]] == pytest.approx(blobs()["train"][4].tolist())
        assert client.get("/picture/0000000000000000/small/3").status == 404
        client.decide("keep", (4, 0))
        assert (
            decided(client.get("/api/export.csv").body.decode())
            == f"index,label,decision\n4,{detail['given_label']},label\n"
        )


def test_a_manifest_has_pictures_paths_and_a_broken_file_is_one_missing_picture(tmp_path: Path) -> None:
    names = [f"pictures/{i}.png" for i in range(24)]
    for i, name in enumerate(names):
        write_picture(tmp_path / name, i % 2, (40, 40))
    table = "".join(f"{name},{'red' if i % 2 == 0 else 'green'}\n" for i, name in enumerate(names))
    (tmp_path / "list.csv").write_text(f"path,label\n{table}")
    settings = {"optimizer.batch_size": 8}
    run = train(tmp_path / "list.csv", tmp_path / "run", network="mlp", epochs=1, settings=settings, device="cpu")
    with served(run.folder) as (address, _):
        client = Client(address)
        prefix = client.get("/api/about").json["pictures"]
        assert client.get(f"{prefix}large/5").headers["content-type"] == "image/jpeg"
        (tmp_path / names[6]).write_bytes(b"broken")
        missing = client.get(f"{prefix}small/6")
        assert (missing.status, missing.json) == (404, {"error": "the image of example 6 cannot be read"})
        (row,) = client.decide("choose", (6, 0), label=1).json["written"]
        assert (
            decided(client.get("/api/export.csv").body.decode())
            == f"index,path,label,decision\n6,pictures/6.png,{['green', 'red'][1]},label\n"
        )
        assert row["index"] == 6


def test_a_run_is_not_replaced_while_it_is_reviewed_and_no_decision_is_lost(
    cli: Callable[..., Outcome], run: Path, tmp_path: Path
) -> None:
    with served(run) as (address, _):
        client = Client(address)
        assert client.decide("accept", (3, 0)).status == 200
        for command in (["clean", "digits"], ["train", "--data", "digits"]):
            done = cli(*command, "--out", run, "--force", "--epochs", 1, "--device", "cpu")
            assert done.code == 2
            assert done.err.endswith("run: is under review; end `unflip review` first\n")
        assert client.decide("keep", (4, 0)).status == 200
    assert cli("review", run, "--export", tmp_path / "reviewed.csv").code == 0
    with (tmp_path / "reviewed.csv").open() as file:
        assert [int(row["index"]) for row in csv.DictReader(file)] == [3, 4]
