"""Texts of examples: what the page gets of them."""

from pathlib import Path

from helpers import blobs, quick_train, write_npz
from reviewing import Client, served


def test_a_tile_gets_the_beginning_and_the_single_view_the_whole(texts_run: Path) -> None:
    with served(texts_run) as (address, _):
        client = Client(address)
        tiles = {one["index"]: one for one in client.get("/api/examples?count=200").json["examples"]}
        whole = client.get("/api/examples/20").json["whole_text"]
        assert tiles[20]["text"] == whole[:400] + "…"
        assert len(whole) > 2000
        assert tiles[4]["text"] == ""
        assert tiles[20]["cells"] == [["number", "20240121"], ["note", "in"]]  # the day is empty
        detail = client.get("/api/examples/21").json
        assert detail["whole_text"] == tiles[21]["text"]
        assert detail["values"] == [["day", "2024-01-22"], ["number", 20240122.0], ["note", "out"]]
        assert all(one["text"] for group in detail["neighbors"] for one in group["examples"] if one["index"] != 4)


def test_rows_of_numbers_have_no_text(tmp_path: Path) -> None:
    run = quick_train(write_npz(tmp_path / "a.npz", **blobs()), tmp_path / "run", epochs=1)
    with served(run.folder) as (_, review):
        detail = review.detail(3)
        assert (detail["text"], detail["whole_text"]) == (None, None)
        assert len(detail["values"]) == 6
