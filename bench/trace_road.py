"""How long the road of a command is, and how large the code: each figure with its limit.

- A function is entered when it is called. Lambdas, comprehensions and the bodies of modules and classes do not count.
- A file is entered with the first of its functions.
- A room is a folder directly below src/unflip; the modules beside the folders are one more room. Changes of room: with
  files in the order in which they are first entered, how often the next one is in another room than the one before.
- MDDC, from its entry to its loss: files of the rooms in ``THEORY`` that are entered while a function of methods/ runs,
  and the lines of code of the functions entered there, without docstrings and comments. The registry,
  methods/__init__.py, which finds a method by name, does not count.

Before the source was re-cut this gave 90 files, 494 functions and 53 changes of room for `train`, 119, 701 and 70 for
`clean`, 17 files for MDDC; all lines of these files, entered or not, were 1,763.

    python bench/trace_road.py
"""

import ast
import contextlib
import io
import itertools
import multiprocessing
import os
import runpy
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np
from PIL import Image

from count_code import SOURCE, code_lines, count_rooms, total
from limits import Limits

COMMANDS = {
    "train": (["train", "--data", "digits", "--method", "mddc", "--epochs", "3", "--out", "run"], 45, 15),
    "clean": (["clean", "photos", "--out", "run"], 65, 20),
}
"""Arguments; files at most; changes of room at most."""
THEORY = ("methods/", "stats/", "losses.py", "labels/", "calibration/")  # the last two: in older versions
MDDC_FILES, MDDC_LINES = 5, 600
CODE_FILES, CODE_LINES, DOCSTRINGS = 180, 18_000, 0.2


class Road(NamedTuple):
    """What a command entered, relative to the package, in the order of the first entry."""

    functions: int
    files: list[str]
    method_code: dict[str, set[int]]
    """First lines of the functions of the theory that were entered while a method ran, by file."""

    @property
    def changes(self) -> int:
        """How often the next file is in another room."""
        rooms = [str(Path(name).parts[0]) if "/" in name else "." for name in self.files]
        return sum(one != other for one, other in itertools.pairwise(rooms))


def trace(arguments: list[str], source: str) -> Road:
    """Run a command in this process, in a folder of its own, and return its road."""
    functions: dict[CodeType, str] = {}
    method_code: defaultdict[str, set[int]] = defaultdict(set)

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(source) or not code.co_filename.endswith(".py"):
            return
        if code.co_name.startswith("<") or not code.co_flags & 1:  # 1: with fast locals, which bodies do not have
            return
        name = functions.setdefault(code, Path(code.co_filename).relative_to(source).as_posix())
        if name.startswith(THEORY) and not name.endswith("__init__.py") and _in_method(frame, f"{source}/methods/"):
            method_code[name].add(code.co_firstlineno)

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        write_photos(Path("photos"))
        sys.argv = ["unflip", *arguments]
        threading.setprofile(enter)
        sys.setprofile(enter)
        try:
            runpy.run_module("unflip", run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"unflip {' '.join(arguments)}: exit code {ended.code}") from ended
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return Road(len(functions), list(dict.fromkeys(functions.values())), dict(method_code))


def _in_method(frame: FrameType | None, methods: str) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(methods):
            return True
        frame = frame.f_back
    return False


def count_entered(path: Path, first_lines: set[int]) -> int:
    """Count the lines of code of the functions of a file that begin at ``first_lines``, those inside them included."""
    text = path.read_text()
    entered: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first in first_lines:
                entered |= set(range(first, (node.end_lineno or first) + 1))
    return len(entered & code_lines(text))


def write_photos(folder: Path) -> None:
    """Write 60 noisy pictures of three colors, a folder for each."""
    random = np.random.default_rng(0)
    for name, color in {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}.items():
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = random.normal(color, 40, (80, 80, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def main() -> None:
    limits = Limits()
    os.environ["OMP_NUM_THREADS"] = "1"  # what runs in a thread of its own is not entered from a method
    for name, (arguments, most_files, most_changes) in COMMANDS.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # nothing imported or remembered yet
            road = pool.apply(trace, (arguments, str(SOURCE)))
        print(f"{name}: {road.functions} functions")
        limits.at_most(f"{name}, files", len(road.files), most_files, "{:.0f}")
        limits.at_most(f"{name}, changes of room", road.changes, most_changes, "{:.0f}")
        if name == "train":
            lines = {file: count_entered(SOURCE / file, first) for file, first in road.method_code.items()}
            print(f"mddc: {', '.join(f'{file} {count}' for file, count in lines.items())}")
            limits.at_most("mddc, files", len(lines), MDDC_FILES, "{:.0f}")
            limits.at_most("mddc, lines of code", sum(lines.values()), MDDC_LINES, "{:.0f}")
    size = total([*count_rooms().values()])
    limits.at_most("code, files", size.files, CODE_FILES, "{:.0f}")
    limits.at_most("code, lines", size.code, CODE_LINES, "{:,.0f}")
    limits.at_least("docstrings, share of lines that are not blank", size.documented, DOCSTRINGS, "{:.3f}")
    limits.finish()


if __name__ == "__main__":
    main()
