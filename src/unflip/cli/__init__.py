"""The command line, ``unflip``. Heavy imports are deferred until a command runs."""

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from io import TextIOWrapper
from typing import NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; user errors are printed as one line, with exit code 2."""
    import typer

    from unflip.cli.app import app
    from unflip.errors import Stopped, UnflipError, UnflipWarning

    _replace_unknown_characters()
    warnings.simplefilter("always", UnflipWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # broken images are reported by us
    warnings.showwarning = partial(_show_warning, set())
    # typer vendors click from 0.26 on, so find the base class through typer
    usage_error = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        code = app(standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except Stopped as stop:
        _print_error(str(stop))
        _end(128 + stop.signal)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except UnflipError as error:
        _print_error(str(error))
        code = 2
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except UnicodeEncodeError as error:
        _print_error(f"cannot encode a file name ({error.reason}); rename the file")
        code = 2
    except OSError as error:
        _print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        code = 2
    except Exception as error:
        if not isinstance(error, usage_error):
            raise
        _print_error(error.format_message())  # type: ignore[attr-defined]
        code = 2
    if code == _INTERRUPTED:  # newer versions of typer return it
        _print_error("stopped")
    _end(code or 0)


def _end(code: int) -> NoReturn:
    """Exit; in distributed runs immediately, since communication threads may abort a slow exit."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _replace_unknown_characters() -> None:
    """Print ? for characters that the output encoding lacks, as on Windows."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def _print_error(message: str) -> None:
    from unflip.errors import one_line

    if message and int(os.environ.get("RANK", "0")) == 0:  # the first process only
        print(f"unflip: {one_line(message)}", file=sys.stderr)  # noqa: T201


def _show_warning(shown: set[str], message: Warning | str, category: type[Warning], *place: object) -> None:
    """Print our warnings as one line, each once, and others as usual."""
    from unflip.errors import UnflipWarning

    if not issubclass(category, UnflipWarning):
        _show_other(message, category, *place)
    elif str(message) not in shown:
        shown.add(str(message))
        _print_error(str(message))


_show_other: Callable[..., None] = warnings.showwarning
