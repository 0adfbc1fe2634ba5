"""The command line: ``unflip``. Nothing heavy is imported before a command needs it."""

import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error of the user's is one line on standard error and exit code 2."""
    import typer

    from unflip.cli.app import app
    from unflip.errors import UnflipError

    # typer brings its own copy of click from 0.26 on and uses the installed one before: ask it for the base class
    usage_error = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        code = app(standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except UnflipError as error:
        _complain(str(error))
        code = 2
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if not isinstance(error, usage_error):
            raise
        _complain(error.format_message())  # type: ignore[attr-defined]
        code = 2
    if code == _INTERRUPTED:  # newer versions of typer return it instead of raising
        _complain("stopped")
    sys.exit(code or 0)


def _complain(message: str) -> None:
    if message and int(os.environ.get("RANK", "0")) == 0:  # of several processes the first one speaks
        print(f"unflip: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
