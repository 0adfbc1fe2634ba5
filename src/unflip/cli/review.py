"""``unflip review``: serve the review page of a run, or write what was decided."""

import getpass
import signal
import webbrowser
from contextlib import closing, suppress
from pathlib import Path

from unflip.errors import ConfigError, MissingExtraError, RunFolderError
from unflip.files import write_text
from unflip.review.examples import Examples
from unflip.review.export import as_csv
from unflip.review.review import finished_run, open_decisions, open_review


def run_review(
    folder: Path, *, data: str | None, host: str, port: int, browser: bool, reviewer: str | None, export: Path | None
) -> None:
    """Serve the page until it is stopped; with ``export`` write the decisions and leave."""
    name = (reviewer or _login()).strip()
    if not name or not name.isprintable() or len(name) > 80:
        raise ConfigError(f"--reviewer {reviewer!r}: give a name of 1 to 80 printable characters")
    if export is not None:
        _export(folder, export)
        return
    try:
        from unflip.review.serving import prepare
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "review") from error
    with open_review(folder, reviewer=name, data=data) as review:
        serving = prepare(review, host=host, port=port)
        print(f"review: {serving.address}", flush=True)  # noqa: T201
        print("Who knows this address can decide. Ctrl+C ends it; every decision is saved already.", flush=True)  # noqa: T201
        if host not in ("127.0.0.1", "localhost", "::1"):
            print("Other machines reach it by this machine's name or address; nothing is encrypted.", flush=True)  # noqa: T201
        if browser:
            webbrowser.open(serving.address)
        with suppress(_Ended):
            for ending in (signal.SIGINT, signal.SIGTERM):
                signal.signal(ending, _end)  # the server ends first, and then sends it on to us
            serving.run()
        settled = len(review.decisions.decided())
    print(f"{settled} labels are settled; write them with: unflip review {folder} --export reviewed.csv")  # noqa: T201


class _Ended(BaseException):
    """Somebody ended the server, which is how it always ends."""


def _end(*_: object) -> None:
    raise _Ended


def _export(folder: Path, target: Path) -> None:
    if target.suffix != ".csv":
        raise ConfigError(f"--export {target}: cannot write '{target.suffix}'; name a .csv file")
    examples = Examples(finished_run(folder))
    if not (folder / "review.sqlite").exists():
        raise RunFolderError(f"{folder}: nobody has reviewed it yet; start with `unflip review {folder}`")
    with closing(open_decisions(folder, examples)) as decisions:
        count = len(decisions.decided())
        write_text(target, as_csv(examples, decisions))
    print(f"{target}: {count} labels that people settled")  # noqa: T201


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user on this machine, as in some containers
        return "reviewer"
