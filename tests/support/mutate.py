"""Mutate the core: change one operator, constant, condition, argument or statement at a time, and run the tests.

    python tests/support/mutate.py --count 300 --seed 0 --only methods/plc.py

A mutation that no test notices survives: either a test is missing, or it is equivalent, which `mutate.toml` then says
with the reason. Only a temporary copy of the tree is changed. Each run of tests is a fork of this process, which has
imported torch, so that it costs little more than the tests themselves.
"""

import argparse
import ast
import copy
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).parents[2]
CORE = ("methods", "stats", "noise", "engine/scoring.py")
COPIED = ("src", "tests", "examples", "pyproject.toml")
IMPORTED = (
    "torch",
    "hypothesis.extra.numpy",
    "jinja2",
    "lightning_fabric",
    "pyarrow.parquet",
    "pydantic",
    "pytest",
    "safetensors.torch",
    "scipy.optimize",
    "sklearn.metrics",
    "sklearn.mixture",
)
SKIPPED = ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.AnnAssign
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "ctx"}
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {
    "given": "current", "current": "initial", "initial": "given", "sum": "mean", "mean": "sum", "max": "min",
    "min": "max", "amax": "amin", "amin": "amax", "argmax": "argmin", "argmin": "argmax", "any": "all", "all": "any",
}  # fmt: skip
COMMUTATIVE = {"min", "max", "minimum", "maximum", "promote_types", "logaddexp", "equal"}
NO_EFFECT = {"device", "strict"}  # keywords, on one processor and in right code
SLOW = {"test_contract.py", "test_options.py", "test_warmup.py", "test_extremes.py"}
DROPPED_CALLS = {"clone", "clamp", "abs", "sqrt", "square", "log", "exp", "sort"}


class Mutation(NamedTuple):
    """One change of one file, by the text that it replaces."""

    file: str  # below src/unflip
    line: int
    name: str  # of the function, and what becomes what
    source: str  # of the whole mutated file


def mutations(file: str, text: str) -> Iterator[Mutation]:
    """Yield every mutation of a source file."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))  # positions of ast are in bytes
    encoded, tree = text.encode(), ast.parse(text)
    choices = (each for each in ast.walk(tree) if isinstance(each, ast.If | ast.While | ast.IfExp))
    conditions = {each.test for each in choices if not isinstance(each.test, ast.UnaryOp)}
    for scope, node in _nodes(tree, ""):
        negated = [ast.UnaryOp(ast.Not(), node)] if node in conditions else []
        for other in [*_variants(node), *negated]:
            before, after = ast.unparse(node), ast.unparse(other)
            assert isinstance(node, ast.expr | ast.stmt)
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            new = after if isinstance(node, ast.stmt) else f"({after})"
            changed = encoded[:first] + new.encode() + encoded[last:]
            where = f" in {lines[node.lineno - 1].decode().strip()}" if isinstance(node, ast.Constant) else ""
            yield Mutation(file, node.lineno, f"{scope}: {before} -> {after}{where}", changed.decode())


def _nodes(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes that can be mutated, each with its function; options and their defaults cannot."""
    if isinstance(node, SKIPPED) or (isinstance(node, ast.keyword) and node.arg in NO_EFFECT):
        return
    if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Options" for base in node.bases):
        return
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        scope = f"{scope}.{node.name}".strip(".")
    yield scope, node
    for name, value in ast.iter_fields(node):
        if name not in SKIPPED_FIELDS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, scope)


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the mutated forms of a node, without its children's."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            yield _with(node, ops=[OPERATORS[type(op)]()])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield _with(node, op=OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield _with(node, value=_other_number(value))
        case ast.Attribute(attr=attr) if attr in NAMES:
            yield _with(node, attr=NAMES[attr])
        case ast.Call():
            yield from _other_calls(node)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if name in {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}:
                yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _other_number(value: float) -> float:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return {0: 1, 1: 0}.get(value, value + 1)
    return value * 1.5 if value else 1.0


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    """Swap the first two arguments, drop a keyword, or drop the call of a method."""
    args, func = node.args, node.func
    name = func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)
    starred = any(isinstance(arg, ast.Starred) for arg in args[:2])
    if len(args) > 1 and name not in COMMUTATIVE and not starred and ast.dump(args[0]) != ast.dump(args[1]):
        yield _with(node, args=[args[1], args[0], *args[2:]])
    for keyword in node.keywords:
        if keyword.arg not in NO_EFFECT:
            yield _with(node, keywords=[each for each in node.keywords if each is not keyword])
    if isinstance(func, ast.Attribute) and func.attr in DROPPED_CALLS:
        yield func.value


def tests_of(file: str, tests: Path, *, near: bool) -> list[str]:
    """Return the tests of a file's room, whole runs last, those that import the file first; only these if ``near``."""
    parts = Path(file.removesuffix("/__init__.py")).with_suffix("").parts
    folder = tests / parts[0]
    every = sorted(folder.glob("test_*.py"))
    if parts[0] == "engine":
        every = [folder / f"test_{name}.py" for name in ("scoring", "final_scores", "quality", "noise_rate")]
    module, (*above, own) = ".".join(("unflip", *parts)), ("unflip", *parts)
    mention = re.compile(rf"{re.escape(module)}\b|from {re.escape('.'.join(above))} import .*\b{own}\b")
    texts = {path: path.read_text("utf-8") for path in every}
    ranks = {path: (path.name in SLOW, not mention.search(text), "tmp_path" in text) for path, text in texts.items()}
    if near:
        every = [path for path in every if ranks[path][:2] == (False, False)] or every
    return [str(path) for path in sorted(every, key=ranks.__getitem__)]


def run_tests(tree: Path, tests: list[str], limit: float) -> bool | None:
    """Return whether the tests pass in a fork of this process; None if they take longer than ``limit`` seconds."""
    pid = os.fork()
    if pid == 0:
        try:
            _run_here(tree, tests)
        finally:
            os._exit(9)  # never return into the caller, who would remove the tree
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _run_here(tree: Path, tests: list[str]) -> NoReturn:
    os.setsid()
    os.chdir(tree)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    sys.path.insert(0, str(tree / "src"))
    os.environ |= {"PYTHONPATH": str(tree / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "-m", "not soak"]
    os._exit(int(pytest.main([*options, *tests])))


def equivalents() -> dict[str, dict[str, str]]:
    """Return the mutations that no test can notice: by file, patterns of names and the reason."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def matches(pattern: str, name: str) -> bool:
    """Return whether a mutation has a name like ``pattern``, in which ``*`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def sample(count: int, seed: int, only: str, *, known: bool = False) -> list[Mutation]:
    """Return mutations of the core in random order, without those ``known`` to be equivalent unless asked for."""
    folder, found, same = ROOT / "src" / "unflip", [], {} if known else equivalents()
    for place in CORE:
        for path in [folder / place] if place.endswith(".py") else sorted((folder / place).rglob("*.py")):
            file = path.relative_to(folder).as_posix()
            found += list(mutations(file, path.read_text("utf-8"))) if only in file else []
    found = [each for each in found if not any(matches(pattern, each.name) for pattern in same.get(each.file, ()))]
    return random.Random(seed).sample(found, min(count, len(found)))


class Tree:
    """A temporary copy of the tree, in which mutations are tried."""

    def __init__(self, folder: Path, *, near: bool) -> None:
        self.folder, self.near = folder, near
        self.limits: dict[str, float] = {}  # seconds, by tests
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, folder / name)

    def notices(self, mutation: Mutation) -> bool:
        """Return whether a test fails, or takes four times as long, once the file is mutated."""
        path = self.folder / "src" / "unflip" / mutation.file
        tests = tests_of(mutation.file, self.folder / "tests", near=self.near)
        key = " ".join(sorted(tests))
        if key not in self.limits:
            start = time.monotonic()
            if not run_tests(self.folder, tests, 3600):
                sys.exit(f"{mutation.file}: its tests fail without a mutation")
            self.limits[key] = 30 + 4 * (time.monotonic() - start)
        original = path.read_text("utf-8")
        path.write_text(mutation.source, "utf-8")
        passed = run_tests(self.folder, tests, self.limits[key])
        path.write_text(original, "utf-8")
        return not passed


def main() -> int:
    """Print each survivor, then the fraction killed; return 1 if that is below ``--least``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="number of mutations")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="part of a file name, below src/unflip")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--near", action="store_true", help="run only the tests that import the mutated file")
    parser.add_argument("--least", type=float, default=0.0, help="fraction that must be killed")
    options = parser.parse_args()
    sys.dont_write_bytecode = True  # a mutation within the same second would not be noticed
    for name in IMPORTED:
        importlib.import_module(name)
    end, killed, survived = time.monotonic() + 60 * options.minutes, 0, 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Tree(Path(folder), near=options.near)
        for mutation in sample(options.count, options.seed, options.only):
            if time.monotonic() > end:
                break
            if tree.notices(mutation):
                killed += 1
            else:
                survived += 1
                print(f"survived: {mutation.file}:{mutation.line} {mutation.name}", flush=True)
    total = killed + survived
    print(f"{killed} of {total} killed ({killed / max(1, total):.1%}), {survived} survived")
    return int(killed < options.least * total)


if __name__ == "__main__":
    sys.exit(main())
