"""Review: a run's examples, their images and neighbors, and the decisions about their labels."""

import csv
import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from os.path import samestat
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unflip.data.columns import Rows
from unflip.data.files import is_image
from unflip.data.images import Pictures
from unflip.data.labels import LABEL, REMOVE
from unflip.data.matching import Keys, Reference
from unflip.errors import InputError, RunFolderError
from unflip.files import locked
from unflip.review import Order
from unflip.review.decisions import Decision, DecisionStore, State
from unflip.review.examples import Examples, Filter
from unflip.review.sample import SampleSummary, sample_weights, summarize_sample
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import REMOVED
from unflip.stats.nearest import nearest
from unflip.stats.sampling import MIN_DECISIONS

_NEIGHBORS = 6  # per class
_TILE_TEXT = 400  # characters of a text on a tile
_PAIRS = 300  # of given and suggested labels, offered as filters
_GROUP = 24  # examples of a group in the single view
Action = Literal["accept", "keep", "choose", "remove", "unsure", "clear"]


@dataclass
class Review:
    """The content of the review page, independent of HTTP.

    Attributes:
        run: the finished run.
        examples: its examples.
        decisions: the log of decisions.
        reviewer: default name of the reviewer.
        pictures: images of the examples, if they have any.
        rows: table cells of the examples; none for images.
        order: default order of the examples.
    """

    run: Run
    examples: Examples
    decisions: DecisionStore
    reviewer: str
    pictures: Pictures | None
    rows: Rows
    order: Order = Order.LOWEST_QUALITY

    def __post_init__(self) -> None:
        examples, run = self.examples, self.run
        self.picture_key = examples.fingerprint[:16]  # in the address of images: those of another run are never shown
        self._name = run.folder.resolve().name
        self._result, self._summary = run.result, run.label_summary
        self._sampled: tuple[int, SampleSummary] | None = None  # after which decision, and what it says

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
            "label_issues": self._summary.issues,
            "doubtful": self._summary.doubtful,
            "summary": str(self._summary),
            "issues": [(name, len(rows)) for name, rows in self.examples.issues.lists.items()],
            "order": self.order,
            "reviewer": self.reviewer,
            "pictures": f"/picture/{self.picture_key}/" if self.pictures else None,
            "last": self.decisions.last_id,
        }

    def brief(self, index: int) -> dict[str, Any]:
        """Return what a tile shows."""
        text = self.rows.text(index)
        if text is not None and len(text) > _TILE_TEXT:
            text = text[:_TILE_TEXT] + "…"
        return {
            **self.examples.row(index),
            "text": text,
            "cells": self.rows.cells(index),
            "issues": self.examples.issues.of(index),
            "annotations": self.examples.annotations(index),
            "decision": described(self.decisions.current(index)),
        }

    def detail(self, index: int) -> dict[str, Any]:
        """Return what the single view shows: the row, its label changes in training, and its neighbors."""
        text = self.rows.named_text(index)
        return {
            **self.brief(index),
            "history": self.examples.history(index),
            "group": [self.brief(member) for member in self.examples.issues.group(index)[:_GROUP]],
            "neighbors": self._neighbors(index),
            "whole_text": None if text is None else text[1],
            "values": [cell for cell in self.rows.values(index) if text is None or cell[0] != text[0]],
            "more_columns": self.rows.more_columns,
        }

    def sample(self) -> str | None:
        """Return what the decisions of the random sample say, if there are any."""
        last = self.decisions.last_id
        if self._sampled is None or self._sampled[0] != last:
            self._sampled = last, summarize_sample(self.examples, self.decisions)
        return str(self._sampled[1]) if self._sampled[1].decisions else None

    def progress(self, selection: Filter) -> dict[str, Any]:
        """Return the number of examples in each state, among all and among those the filter selects."""
        states = self.decisions.states
        here = states[self.examples.mask(selection.model_copy(update={"state": "any"}), states)]
        counts = {name: np.bincount(of, minlength=len(State)) for name, of in (("all", states), ("here", here))}
        return {name: {state.name.lower(): int(of[state]) for state in State} for name, of in counts.items()}

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
        if action == "keep" and given < 0:
            raise InputError(f"example {index} has no label to keep; accept the suggestion or choose a class")
        chosen = {"accept": suggested, "keep": given}.get(action, label)
        state = State.KEPT if chosen == given else State.ACCEPTED if chosen == suggested else State.CHANGED
        return state, chosen

    def _neighbors(self, index: int) -> list[dict[str, Any]]:
        """Return the nearest examples of the given and of the suggested class, by current labels.

        If both are the same, the second list is the nearest examples of all other classes.
        """
        if self.examples.features is None:
            return []
        given, suggested = int(self.examples.given[index]), int(self.examples.suggested[index])
        current, features, own = self.examples.columns["current_label"], self.examples.features, np.array([index])
        second = (None, current != suggested) if given in (suggested, -1) else (suggested, current == suggested)
        first = given if given >= 0 else suggested
        lists = []
        for label, mask in ((first, current == first), second):
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
    before = (folder / layout.RESULT).stat()
    pictures = run.pictures(data)
    rows = (run.rows(data) if pictures is None else None) or Rows(lambda _: (), 0)
    examples = Examples(run, rows)
    examples.ranking(order)  # before anything is written
    with locked(folder / layout.REVIEW_LOCK, busy="already under review, or being replaced, by another process"):
        if not run.is_finished or not samestat((folder / layout.RESULT).stat(), before):
            raise RunFolderError(f"{folder}: was replaced while it was opened; start again")
        with closing(DecisionStore(folder / layout.DECISIONS, examples.keys)) as decisions:
            yield Review(run, examples, decisions, reviewer, pictures, rows, order)


@contextmanager
def saved_decisions(folder: Path, keys: Keys) -> Iterator[DecisionStore | None]:
    """Open the log of a run's review to read it; None if there is no log, or an empty one."""
    log = folder / layout.DECISIONS
    if not log.exists() or not log.stat().st_size:
        yield None
        return
    with closing(DecisionStore(log, keys, read_only=True)) as decisions:
        yield decisions


def finished_run(folder: Path) -> Run:
    """Return the run in ``folder``; raise RunFolderError if it is not finished."""
    run = Run(folder)
    if not run.is_finished:
        raise RunFolderError(f"{folder}: not a finished run (no result.json)")
    return run


def settled(examples: Examples, decisions: DecisionStore | None) -> dict[int, int | None]:
    """Return the reviewed label of examples, None for removed ones, by index.

    Labels reviewed before the run hold until a reviewer changes them or marks them as unsure.
    """
    current, states = examples.columns["current_label"], State.OPEN if decisions is None else decisions.states
    earlier = np.flatnonzero(examples.reviewed & (states != State.UNSURE)).tolist()
    labels = {i: None if examples.splits[i] == REMOVED else int(current[i]) for i in earlier}
    labels |= {row.example: row.label for row in (decisions.decided() if decisions else ())}
    return dict(sorted(labels.items()))


def as_csv(examples: Examples | None, decisions: DecisionStore) -> str:
    """Return all reviewed examples as ``index,path,label,decision,given_label,digest,annotator,review_weight``.

    ``annotator`` is the reviewer, so that the file can also be given as annotations, those of one more annotator.
    Removed ones have no label. Examples that are not files have an ``id`` instead of a path, or neither if it would
    repeat the index. ``review_weight``, if there is a sample that is large enough to tell anything, is how many labels
    a decision of it stands for. Decisions about examples that the run does not have come last, without an index.
    """
    rows: list[tuple[Reference, str | None, str, str]] = []
    if examples is not None:
        names, weights = examples.class_names, sample_weights(examples, decisions)
        weights = np.where(weights > 0, weights, np.nan_to_num(examples.review_weight))
        for index, label in settled(examples, decisions).items():
            weight = f"{weights[index]:.6g}" if weights[index] else ""
            decision = decisions.current(index)
            by = "" if decision is None else decision.reviewer
            rows.append((examples.keys.reference(index), None if label is None else names[label], by, weight))
    rows += [(replace(orphan.example, index=None), orphan.label, "", "") for orphan in decisions.orphans()]
    sampled = sum(weight != "" for *_, weight in rows) >= MIN_DECISIONS
    ids = [] if examples is None or examples.keys.ids is None else examples.keys.ids[:1]
    named = next((name for name in (*ids, *(example.id for example, *_ in rows)) if name is not None), None)
    column = [] if named is None else ["path" if is_image(named) else "id"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["index", *column, "label", "decision", "given_label", "digest", "annotator"]
    writer.writerow(header + ["review_weight"] * sampled)
    for example, chosen, by, weight in rows:
        what = ["", REMOVE] if chosen is None else [chosen, LABEL]
        name = [example.id] if column else []
        writer.writerow([example.index, *name, *what, example.given, example.digest, by] + [weight] * sampled)
    return text.getvalue()


def described(row: Decision | None) -> dict[str, Any] | None:
    """Return a decision as the page shows it, without the person's secret id."""
    if row is None:
        return None
    return {
        "id": row.id, "index": row.example, "version": row.version, "state": row.state.name.lower(),
        "label": row.label, "reviewer": row.reviewer, "at": row.at, "undo": row.undoes is not None,
    }  # fmt: skip
