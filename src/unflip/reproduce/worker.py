"""A worker process: runs cells one at a time and exits with the sweep that started it."""

import json
import os
import queue
import sys
import threading


def main() -> None:
    """Read one JSON line per cell from standard input; answer each with a JSON line: the error or null."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep printed text out of the answers
    cells: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(cells,), daemon=True).start()

    from unflip.reproduce.cell import run_cell  # takes a second or two, during which the sweep may end

    while True:
        answers.write(json.dumps(run_cell(**json.loads(cells.get()))) + "\n")


def _listen(cells: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        cells.put(line)
    os._exit(0)  # the sweep ended or closed us; files are written atomically, so it is safe at any time


if __name__ == "__main__":
    main()
