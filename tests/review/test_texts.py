"""Texts of examples: what the page gets of them."""

from pathlib import Path
from typing import Any

from helpers import blobs, quick_train, write_npz
from reviewing import Client, served
from unflip.review import Order
from unflip.review.examples import Filter
from unflip.review.review import open_review


def test_a_tile_gets_the_beginning_and_the_single_view_the_whole(texts_run: Path) -> None:
    with served(texts_run) as (address, _):
        client = Client(address)
        tiles = {one["index"]: one for one in client.get("/api/examples?count=200").json["examples"]}
        whole = client.get("/api/examples/20").json["whole_text"]
        assert tiles[20]["text"] == whole[:400] + "…"
        assert len(whole) > 2000
        assert tiles[4]["text"] == ""
        assert tiles[20]["cells"] == [["note", "in"], ["number", "20240121"]]  # the day is empty; numbers are not used
        detail = client.get("/api/examples/21").json
        assert detail["whole_text"] == tiles[21]["text"]
        assert detail["values"] == [["day", "2024-01-22"], ["number", 20240122.0], ["note", "out"]]
        assert all(one["text"] for group in detail["neighbors"] for one in group["examples"] if one["index"] != 4)


def test_search_finds_texts_columns_and_names_within_every_filter_and_order(texts_run: Path) -> None:
    with open_review(texts_run, reviewer="a") as review:
        examples, states = review.examples, review.decisions.states

        def found(text: str, **other: Any) -> list[int]:
            return sorted(examples.page(Filter(text=text, **other), states, count=200).indices)

        wanted = [i for i in range(120) if "courier" in review.detail(i)["text"]]
        assert found("COURIER") == wanted
        assert found(" note: out") == list(range(0, 120, 3))
        assert found("20240107") == [6]
        assert found("onerror=document") == [i for i in range(0, 120, 3) if i != 4]
        assert found(".*") == found("nothing like this") == []
        assert found("courier", differs=True) == [i for i in wanted if examples.mask(Filter(differs=True), states)[i]]
        sampled = examples.page(Filter(text="courier"), states, count=200, order=Order.SAMPLE).indices
        assert sorted(sampled) == [i for i in wanted if i in examples.sample.order]
        assert review.progress(Filter(text="20240107"))["here"]["open"] == 1


def test_rows_of_numbers_have_no_text(tmp_path: Path) -> None:
    run = quick_train(write_npz(tmp_path / "a.npz", **blobs()), tmp_path / "run", epochs=1)
    with served(run.folder) as (_, review):
        detail = review.detail(3)
        assert (detail["text"], detail["whole_text"]) == (None, None)
        assert len(detail["values"]) == 6
