"""Started by test_together.py: one process that forks commands into one run folder, two at a time, at random moments.

After each round every command has ended with success or one line, the person's own files are as they were, the files of
the run fit together, and every decision that was confirmed can be exported.
"""

import contextlib
import csv
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import unflip
from helpers import blobs, write_npz
from unflip.api.report import report
from unflip.api.review import export_review
from unflip.errors import UnflipError
from unflip.review.decisions import Choice
from unflip.review.review import open_review
from unflip.runs import layout
from unflip.runs.folder import Run

OWN = ("notes.txt", "checkpoints/my.pt", "review (copy).sqlite", "labels (copy).csv")
WRITERS = ("clean small", "clean grown", "train small", "train grown")
COMMANDS = (*WRITERS, "decide", "decide", "decide", "resume", "export", "report")
KILLED = 0.3  # of the rounds, one of both commands


class Folder:
    """A run folder, the data it is made of, and what must hold of it."""

    def __init__(self, home: Path) -> None:
        self.home, self.run, self.notes = home, home / "run", home / "notes.csv"
        content = blobs(train=60)
        inputs, labels = content["train"], content["train_labels"]
        order = np.random.default_rng(0).permutation(75)
        more = np.concatenate([inputs, inputs[:15] + 0.5]), np.concatenate([labels, labels[:15]])
        self.sizes = {"small": 60, "grown": 75}
        write_npz(home / "small.npz", train=inputs, train_labels=labels)
        write_npz(home / "grown.npz", train=more[0][order], train_labels=more[1][order])

    def perform(self, command: str, seed: int) -> None:
        """Carry out one command, in a process of its own."""
        options = {"epochs": 1, "device": "cpu", "quiet": True}
        verb, _, name = command.partition(" ")
        if verb in ("clean", "train"):
            getattr(unflip, verb)(str(self.home / f"{name}.npz"), self.run, force=True, **options)
        elif verb == "resume":
            unflip.train(None, self.run, resume=True, device="cpu", quiet=True)
        elif verb == "report":
            report(self.run)
        elif verb == "export":
            export_review(self.run, self.home / f"{seed}.csv")
        else:
            self.decide(seed)

    def decide(self, seed: int) -> None:
        """Decide about some examples; note each decision before it is made and once it is confirmed."""
        draw = random.Random(seed)
        with open_review(self.run, reviewer="ann") as review, self.notes.open("a") as file:
            keys, classes = review.examples.keys, review.examples.class_names
            for index in draw.sample(range(len(review.examples.given)), draw.randrange(1, 6)):
                label = draw.choice([None, *range(len(classes))])
                held = review.decisions.current(index)
                meaning = review.meaning("choose" if label is not None else "remove", index, label)
                choice = Choice(index, held.version if held else 0, *meaning)
                note = f"{keys.reference(index).digest},{'' if label is None else classes[label]}\n"
                print(f"tried,{note}", end="", file=file, flush=True)
                request = f"request-{seed}-{index}"
                if review.decisions.decide([choice], person="a", reviewer="ann", request=request).written:
                    print(f"confirmed,{note}", end="", file=file, flush=True)
                time.sleep(draw.uniform(0, 0.05))

    def noted(self) -> tuple[set[str], dict[str, set[str]]]:
        """Return the examples with confirmed decisions, and the labels that each may have.

        That is the last one confirmed, or one tried since by a process that was killed.
        """
        confirmed: set[str] = set()
        possible: dict[str, set[str]] = {}
        for line in self.notes.read_text().splitlines():
            kind, digest, label = line.split(",")
            if kind == "confirmed":
                confirmed.add(digest)
                possible[digest] = {label}
            else:
                possible.setdefault(digest, set()).add(label)
        return confirmed, possible

    def put_own_files(self) -> None:
        """Put the person's files into the folder; they must stay."""
        for name in OWN:
            (self.run / name).parent.mkdir(parents=True, exist_ok=True)
            (self.run / name).write_text(f"mine: {name}")

    def check(self) -> None:
        """Raise AssertionError if something was lost or mixed."""
        for name in OWN:
            assert (self.run / name).read_text() == f"mine: {name}"
        if self.notes.exists():
            export_review(self.run, self.home / "all.csv", force=True)
            with (self.home / "all.csv").open(newline="") as file:
                found = {row["digest"]: row["label"] for row in csv.DictReader(file)}
            confirmed, possible = self.noted()
            assert confirmed <= found.keys(), "a decision that was confirmed is lost"
            assert all(label in possible[digest] for digest, label in found.items()), "a decision is not the last one"
        run = Run(self.run)
        if not run.is_finished:
            return
        table = run.labels()
        assert len(table) == self.sizes[Path(run.result["data_path"]).stem]
        assert len(np.load(self.run / layout.FEATURES)) == len(table)
        given = [str(label) for label in table["given_label"].to_pylist()]
        for list_of in (layout.LABEL_ISSUES, layout.ISSUES):
            if (self.run / list_of).exists():
                with (self.run / list_of).open(newline="") as file:
                    rows = [row for row in csv.DictReader(file) if row["index"]]
                assert all(int(row["index"]) < len(table) for row in rows)
                assert all(row.get("given_label", "") in ("", given[int(row["index"])]) for row in rows)


def start(work: Callable[[], None], errors: Path) -> int:
    """Return the process that does the work; it exits with 2 if the error is one line."""
    child = os.fork()
    if child:
        return child
    code = 1
    with contextlib.suppress(BaseException):
        try:
            work()
            code = 0
        except UnflipError as error:
            code = 2 if "\n" not in str(error) else 1
        except BaseException:
            errors.write_text(traceback.format_exc())
    os._exit(code)


def play(folder: Folder, number: int, draw: random.Random, usual: float) -> None:
    """Let two commands run together, and check what is left."""
    pair, errors = draw.sample(COMMANDS, 2), folder.home / "errors.txt"
    children = []
    for place, command in enumerate(pair):
        children.append(start(partial(folder.perform, command, 2 * number + place), errors))
        time.sleep(draw.uniform(0, usual))
    victim = draw.choice(children) if draw.random() < KILLED else None
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    told = f"round {number}: {pair} ended with {codes}"
    assert all(code in (0, 2, -signal.SIGKILL) for code in codes), f"{told}: {errors.read_text()}"
    if pair[0] in WRITERS and -signal.SIGKILL not in codes:
        assert 0 in codes, told
    try:
        folder.check()
    except Exception as error:
        raise AssertionError(told) from error


def main(home: str, rounds: int, seed: int) -> None:
    torch.set_num_threads(1)
    folder, draw = Folder(Path(home)), random.Random(seed)
    folder.perform("clean small", 0)  # imports what all of them need
    started = time.monotonic()
    folder.perform("clean small", 0)
    usual = time.monotonic() - started
    folder.put_own_files()
    for number in range(rounds):
        play(folder, number, draw, usual)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
