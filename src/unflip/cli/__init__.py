"""The command line: ``unflip``. Nothing heavy is imported before a command needs it."""

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from io import TextIOWrapper
from typing import NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error of the user's is one line on standard error and exit code 2."""
    import typer

    from unflip.cli.app import app
    from unflip.errors import Stopped, UnflipError, UnflipWarning

    _replace_unknown_characters()
    warnings.simplefilter("always", UnflipWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # images that it cannot read are named by us
    warnings.showwarning = partial(_show_warning, set())
    # typer brings its own copy of click from 0.26 on and uses the installed one before: ask it for the base class
    usage_error = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        code = app(standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except Stopped as stop:
        _complain(str(stop))
        _end(128 + stop.signal)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except UnflipError as error:
        _complain(str(error))
        code = 2
    except UnicodeEncodeError as error:
        _complain(f"a name holds characters that this system cannot write ({error.reason}); rename it")
        code = 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output went away, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        else:  # what the file system said no to, and nobody expected
            _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            code = 2
    except Exception as error:
        if not isinstance(error, usage_error):
            raise
        _complain(error.format_message())  # type: ignore[attr-defined]
        code = 2
    if code == _INTERRUPTED:  # newer versions of typer return it instead of raising
        _complain("stopped")
    _end(code or 0)


def _end(code: int) -> NoReturn:
    """Exit; as one of several processes at once, since the threads between them now and then abort a slow exit."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _replace_unknown_characters() -> None:
    """Print ? for what an encoding lacks: Windows may write a table's arrows to a file in one that has none."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def _complain(message: str) -> None:
    from unflip.errors import one_line

    if message and int(os.environ.get("RANK", "0")) == 0:  # of several processes the first one speaks
        print(f"unflip: {one_line(message)}", file=sys.stderr)  # noqa: T201


def _show_warning(said: set[str], message: Warning | str, category: type[Warning], *place: object) -> None:
    """Show a warning of ours unless it was ``said`` before: data may be checked more than once."""
    from unflip.errors import UnflipWarning

    if issubclass(category, UnflipWarning):
        if str(message) not in said:
            _complain(str(message))
        said.add(str(message))
    else:  # somebody else's, which means nothing to a user without its place
        _show_other(message, category, *place)


_show_other: Callable[..., None] = warnings.showwarning
