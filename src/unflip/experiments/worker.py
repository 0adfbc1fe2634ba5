"""A worker process: runs the cells that come in, one at a time, and ends when the sweep that started it ends."""

import json
import os
import queue
import sys
import threading


def main() -> None:
    """Read a JSON line a cell from standard input, answer each with a JSON line: what went wrong, or null."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anything prints is not an answer
    cells: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(cells,), daemon=True).start()

    from unflip.experiments.cell import run_cell  # takes a second or two, in which the sweep may end

    while True:
        answers.write(json.dumps(run_cell(**json.loads(cells.get()))) + "\n")


def _listen(cells: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        cells.put(line)
    os._exit(0)  # the sweep is gone or wants us gone; files are written atomically, so any moment will do


if __name__ == "__main__":
    main()
