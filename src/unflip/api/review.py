"""review: the page on which people decide about doubtful labels, and what they decided."""

import getpass
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from unflip.errors import ConfigError, MissingExtraError, RunFolderError
from unflip.files import write_text
from unflip.review import Order
from unflip.review.decisions import DecisionStore
from unflip.review.examples import Examples
from unflip.review.review import as_csv, finished_run, open_review, settled
from unflip.runs import layout
from unflip.runs.layout import check_output


def review(
    folder: str | Path,
    *,
    data: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    reviewer: str | None = None,
    order: Order = Order.LOWEST_QUALITY,
    on_ready: Callable[[str], None],
) -> int:
    """Serve the page until somebody ends it; return how many examples are settled.

    Args:
        folder: of a finished run.
        data: where the data is now, if it has moved since training.
        host: the address to listen on; any but the default can be reached by other machines.
        port: where to listen; 0 takes a free port.
        reviewer: the name to decide under; by default the login.
        order: of the examples at first: the most doubtful labels, or those about which a decision teaches most.
        on_ready: is told the page's address, once.
    """
    name = reviewer_name(reviewer)
    try:
        from unflip.review.pages import listen, prepare
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "review") from error
    with listen(host, port) as listening, open_review(Path(folder), reviewer=name, data=data, order=order) as opened:
        serving = prepare(opened, listening, host)
        with suppress(_Ended):
            for ending in (signal.SIGINT, signal.SIGTERM):
                signal.signal(ending, _end)  # the server ends first, and then sends it on to us
            on_ready(serving.address)
            serving.run()
        return len(opened.decisions.decided())


def export_review(folder: str | Path, out: Path, *, force: bool = False) -> int:
    """Write what people decided to a .csv for ``train --reviewed``; return how many examples that are about."""
    folder = Path(folder)
    check_output(out, (".csv",), force=force, option="--export")
    examples = Examples(finished_run(folder))
    log = folder / layout.DECISIONS
    if not log.exists() or not log.stat().st_size:
        raise RunFolderError(f"{folder}: nobody has reviewed it yet; start with `unflip review {folder}`")
    with closing(
        DecisionStore(log, fingerprint=examples.fingerprint, count=len(examples), read_only=True)
    ) as decisions:
        write_text(out, as_csv(examples, decisions))
        return len(settled(examples, decisions))


def reviewer_name(given: str | None) -> str:
    """Return the name to decide under: the given one, if it is one, else the login."""
    name = (given or _login()).strip()
    if not name or not name.isprintable() or len(name) > 80:
        raise ConfigError(f"--reviewer {given!r}: give a name of 1 to 80 printable characters")
    return name


class _Ended(BaseException):
    """Somebody ended the server, which is how it always ends."""


def _end(*_: object) -> None:
    raise _Ended


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user on this machine, as in some containers
        return "reviewer"
