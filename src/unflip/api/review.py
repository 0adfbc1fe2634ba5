"""review: serve the review page, and export the reviewed labels."""

import getpass
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from unflip.data.matching import Keys
from unflip.errors import ConfigError, MissingExtraError, RunFolderError, Stopped
from unflip.files import write_text
from unflip.review import Order
from unflip.review.examples import Examples
from unflip.review.review import as_csv, finished_run, open_review, saved_decisions, settled
from unflip.review.sample import Cuts, SampleSummary, find_cuts, summarize_sample
from unflip.runs.folder import Run
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
    """Serve the review page until Ctrl-C or SIGTERM.

    Args:
        folder: the folder of a finished run.
        data: where the run's data is now, if it has moved.
        host: the address to listen on; other machines can reach any but the default.
        port: the port to listen on; 0 picks a free one.
        reviewer: the reviewer's name; by default the login name.
        order: the initial order of the examples.
        on_ready: called once with the address of the page.

    Returns:
        The number of reviewed examples.
    """
    name = reviewer_name(reviewer)
    try:
        from unflip.review.pages import listen, prepare
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "review") from error
    with listen(host, port) as listening, open_review(Path(folder), reviewer=name, data=data, order=order) as opened:
        serving = prepare(opened, listening, host)
        with suppress(KeyboardInterrupt, Stopped):  # the server shuts down first, then raises the signal again
            on_ready(serving.address)
            serving.run()
        return len(opened.decisions.decided())


def export_review(folder: str | Path, out: Path, *, force: bool = False) -> int:
    """Write the reviewed labels to a .csv file for ``--reviewed``; return their number."""
    folder = Path(folder)
    check_output(out, (".csv",), force=force, option="--export")
    # A run that is being replaced, or was killed while it was, keeps its decisions.
    examples = Examples(Run(folder)) if Run(folder).is_finished else None
    nothing = Keys(None, None, np.zeros(0, np.int64), ())
    with saved_decisions(folder, nothing if examples is None else examples.keys) as decisions:
        if decisions is None:
            finished_run(folder)  # which may be what is wrong
            raise RunFolderError(f"{folder}: not reviewed yet; start with `unflip review {folder}`")
        write_text(out, as_csv(examples, decisions))
        return len(decisions.orphans()) + (0 if examples is None else len(settled(examples, decisions)))


def review_summary(folder: str | Path) -> tuple[SampleSummary, Cuts]:
    """Return what the decisions of a review in the order ``sample`` say about all labels of the run."""
    folder = Path(folder)
    examples = Examples(finished_run(folder))
    with saved_decisions(folder, examples.keys) as decisions:
        if decisions is None:
            raise RunFolderError(f"{folder}: not reviewed yet; start with `unflip review {folder} --order sample`")
        return summarize_sample(examples, decisions), find_cuts(examples, decisions)


def reviewer_name(given: str | None) -> str:
    """Return the reviewer's name, by default the login name; raise ConfigError if it is not printable."""
    try:
        name = (given or getpass.getuser()).strip()
    except (OSError, KeyError, ImportError):  # no login name, as in some containers
        name = "reviewer"
    if not name or not name.isprintable() or len(name) > 80:
        raise ConfigError(f"--reviewer {given!r}: give a name of 1 to 80 printable characters")
    return name
