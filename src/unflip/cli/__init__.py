"""The command line, ``unflip``. Heavy imports are deferred until a command runs."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it in one line, even while it is loading."""
    try:
        from unflip.cli.app import run

        run()
    except KeyboardInterrupt:
        print("unflip: stopped", file=sys.stderr)  # noqa: T201
        sys.exit(130)
