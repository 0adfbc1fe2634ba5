"""Review: a run's examples, their images and neighbors, and the decisions about their labels."""

import csv
import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np

from unflip.data.arrays import Array
from unflip.data.files import is_image
from unflip.data.labels import LABEL, REMOVE
from unflip.data.preview import Pictures, Rows
from unflip.errors import InputError, RunFolderError
from unflip.files import locked
from unflip.review import Order
from unflip.review.decisions import Decision, DecisionStore, State
from unflip.review.examples import Examples, Filter
from unflip.review.words import Words, pieces
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import REMOVED
from unflip.stats.nearest import nearest

_NEIGHBORS = 6  # per class
_TILE_TEXT = 400  # characters of a text on a tile
_PAIRS = 300  # of given and suggested labels, offered as filters
_GROUP = 24  # examples of a group in the single view
Action = Literal["accept", "keep", "choose", "remove", "unsure", "clear"]


class Review:
    """The content of the review page, independent of HTTP.

    Args:
        run: the finished run.
        examples: its examples.
        decisions: the log of decisions.
        reviewer: default name of the reviewer.
        pictures: images of the examples, if they have any.
        rows: table cells of the examples, if they have no images.
        order: default order of the examples.
    """

    def __init__(
        self,
        run: Run,
        examples: Examples,
        decisions: DecisionStore,
        reviewer: str,
        *,
        pictures: Pictures | None,
        rows: Rows | None,
        order: Order = Order.LOWEST_QUALITY,
    ) -> None:
        self.examples, self.decisions, self.pictures, self.reviewer = examples, decisions, pictures, reviewer
        self.order = order
        self._rows = rows
        self._words = Words(run, rows, examples.columns["current_label"]) if rows else None
        self.picture_key = examples.fingerprint[:16]  # in the address of images: those of another run are never shown
        self._name = run.folder.resolve().name
        self._result = run.result

    def about(self) -> dict[str, Any]:
        """Return the constants of the page."""
        pairs = self.examples.pairs
        return {
            "run": self._name,
            "data": self._result["data"],
            "method": self._result["method"],
            "examples": len(self.examples),
            "classes": self.examples.class_names,
            "pairs": pairs[:_PAIRS],
            "differ": sum(count for *_, count in pairs),
            "issues": self.examples.issues.counts(),
            "order": self.order,
            "reviewer": self.reviewer,
            "pictures": f"/picture/{self.picture_key}/" if self.pictures else None,
            "last": self.decisions.last_id,
        }

    def brief(self, index: int) -> dict[str, Any]:
        """Return what a tile shows."""
        text = self._rows.text(index) if self._rows else None
        if text is not None and len(text) > _TILE_TEXT:
            text = text[:_TILE_TEXT] + "…"
        return {
            **self.examples.row(index),
            "text": text,
            "issues": [issue._asdict() for issue in self.examples.issues.of(index)],
            "decision": described(self.decisions.current(index)),
        }

    def detail(self, index: int) -> dict[str, Any]:
        """Return what the single view shows: the row, its label changes in training, and its neighbors.

        A text comes in pieces, each with whether it is highlighted as evidence for the suggested label.
        """
        text = self._rows.named_text(index) if self._rows else None
        values = self._rows.values(index) if self._rows else []
        return {
            **self.brief(index),
            "history": self.examples.history(index),
            "group": [self.brief(member) for member in self.examples.issues.group(index)[:_GROUP]],
            "neighbors": self._neighbors(index),
            "pieces": None if text is None else self._pieces(index, *text),
            "values": [cell for cell in values if text is None or cell[0] != text[0]],
            "values_left_out": self._rows.left_out if self._rows else 0,
        }

    def progress(self, selection: Filter) -> dict[str, Any]:
        """Return the number of examples in each state, among all and among those the filter selects."""
        states = self.decisions.states
        here = states[self.examples.mask(selection._replace(states=None), states)]
        return {name: _counts(of) for name, of in (("all", states), ("here", here))}

    def group(self, index: int) -> list[int]:
        """Return the members of the groups of an example that are not removed."""
        states, splits = self.decisions.states, self.examples.splits
        return [
            i
            for i in self.examples.issues.group(index)
            if states[i] != State.REMOVED and (states[i] != State.OPEN or splits[i] != REMOVED)
        ]

    def meaning(self, action: Action, index: int, label: int | None) -> tuple[State, int | None]:
        """Return the state and label that an action results in."""
        without_label = {"clear": State.OPEN, "unsure": State.UNSURE, "remove": State.REMOVED}
        if action in without_label:
            return without_label[action], None
        given, suggested = int(self.examples.given[index]), int(self.examples.suggested[index])
        if label is not None and label >= len(self.examples.class_names):
            raise InputError(f"label {label}: there are only {len(self.examples.class_names)} classes, from 0")
        chosen = {"accept": suggested, "keep": given}.get(action, label)
        state = State.KEPT if chosen == given else State.ACCEPTED if chosen == suggested else State.CHANGED
        return state, chosen

    def _pieces(self, index: int, column: str, text: str) -> list[tuple[str, bool]]:
        given, suggested = int(self.examples.given[index]), int(self.examples.suggested[index])
        spans = self._words.evidence(index, column, text, given, suggested) if self._words else []
        return pieces(text, spans)

    def _neighbors(self, index: int) -> list[dict[str, Any]]:
        """Return the nearest examples of the given and of the suggested class, by current labels.

        If both are the same, the second list is the nearest examples of all other classes.
        """
        if self.examples.features is None:
            return []
        given, suggested = int(self.examples.given[index]), int(self.examples.suggested[index])
        current, features, own = self.examples.columns["current_label"], self.examples.features, np.array([index])
        second = (None, current != given) if given == suggested else (suggested, current == suggested)
        lists = []
        for label, mask in ((given, current == given), second):
            near = nearest(features, features[own], _NEIGHBORS, rows=np.flatnonzero(mask), leave_out=own)
            pairs = zip(near.indices[0].tolist(), near.distances[0].tolist(), strict=True)
            examples = [{**self.brief(i), "distance": round(distance, 4)} for i, distance in pairs if i >= 0]
            lists.append({"label": label, "examples": examples})
        return lists


@contextmanager
def open_review(
    folder: Path, *, reviewer: str, data: str | None = None, order: Order = Order.LOWEST_QUALITY
) -> Iterator[Review]:
    """Open the review of a run and lock it for this process.

    Args:
        folder: of the finished run.
        reviewer: default name of the reviewer.
        data: where the data is now, if it was moved.
        order: default order of the examples.
    """
    run = finished_run(folder)
    pictures = run.pictures(data)
    rows = run.rows(data) if pictures is None else None
    examples = Examples(run)
    examples.ranking(order)  # before anything is written
    with (
        locked(folder / layout.REVIEW_LOCK, busy="already under review by another process"),
        closing(
            DecisionStore(folder / layout.DECISIONS, fingerprint=examples.fingerprint, count=len(examples))
        ) as decisions,
    ):
        yield Review(run, examples, decisions, reviewer, pictures=pictures, rows=rows, order=order)


def finished_run(folder: Path) -> Run:
    """Return the run in ``folder``; raise RunFolderError if it is not finished."""
    run = Run(folder)
    if not run.is_finished:
        raise RunFolderError(f"{folder}: not a finished run (no result.json)")
    return run


def settled(examples: Examples, decisions: DecisionStore) -> dict[int, int | None]:
    """Return the reviewed label of examples, None for removed ones, by index.

    Labels reviewed before the run hold until a reviewer changes them or marks them as unsure.
    """
    current = examples.columns["current_label"]
    earlier = np.flatnonzero(examples.reviewed & (decisions.states != State.UNSURE)).tolist()
    labels = {i: None if examples.splits[i] == REMOVED else int(current[i]) for i in earlier}
    labels |= {row.example: row.label for row in decisions.decided()}
    return dict(sorted(labels.items()))


def as_csv(examples: Examples, decisions: DecisionStore) -> str:
    """Return all reviewed examples as ``index,path,label,decision``; removed ones have no label.

    Examples that are not files have an ``id`` instead of a path, or neither if it would repeat the index.
    """
    named = next((i for i, name in enumerate(examples.ids) if name != str(i)), None)
    column = [] if named is None else ["path" if is_image(PurePath(examples.ids[named]).name) else "id"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", *column, "label", "decision"])
    for example, label in settled(examples, decisions).items():
        name = [examples.ids[example]] if column else []
        writer.writerow([example, *name, *(["", REMOVE] if label is None else [examples.class_names[label], LABEL])])
    return text.getvalue()


def described(row: Decision | None) -> dict[str, Any] | None:
    """Return a decision as the page shows it, without the person's secret id."""
    if row is None:
        return None
    return {
        "id": row.id, "index": row.example, "version": row.version, "state": row.state.name.lower(),
        "label": row.label, "reviewer": row.reviewer, "at": row.at, "undo": row.undoes is not None,
    }  # fmt: skip


def _counts(states: Array) -> dict[str, int]:
    counts = np.bincount(states, minlength=len(State))
    return {state.name.lower(): int(counts[state]) for state in State}
