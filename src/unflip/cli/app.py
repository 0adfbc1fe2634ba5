"""All commands, ``unflip list``, and ``run``, which runs a command and prints errors as one line."""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Container
from functools import partial
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from unflip._version import __version__
from unflip.errors import ConfigError, Stopped, UnflipError, UnflipWarning, one_line, unknown

_INTERRUPTED = 130
_show_other: Callable[..., None] = warnings.showwarning
KINDS = ("methods", "networks", "backbones", "text-encoders", "data", "checks", "presets", "grids")
_CALIBRATED = "  Append -m or -c to any method for mean- or covariance-based calibration, such as gce-m"

# Where each command is, and the first sentence of its docstring, so that `unflip --help` imports none of them.
COMMANDS = {
    "demo": ("train", "Find wrong labels among handwritten digits, and compare methods, in about a minute."),
    "clean": ("clean", "Find label issues in images, texts or tables."),
    "annotators": ("clean", "Estimate the true labels, and how reliable each annotator is, from labels alone."),
    "review": ("finished", "Review label issues in the browser."),
    "apply": ("finished", "Write your data with corrected labels; reviewed labels take precedence."),
    "check": ("finished", "Score the labels of new data with the model of a finished run, without training."),
    "train": ("train", "Train a classifier on noisy labels."),
    "predict": ("finished", "Predict classes and probabilities for new examples."),
    "report": ("finished", "Write the HTML report of a run, or print a table that compares several runs."),
    "export": ("finished", "Export labels as a table, or for Label Studio, Argilla or FiftyOne."),
    "embed": ("train", "Compute image features with a pretrained network, so that training takes seconds."),
    "corrupt": ("train", "Add label noise to clean labels, and record the recipe."),
    "list": ("app", "List available methods, networks, backbones, checks, presets and more."),
    "paper": ("paper", "Reproduce the paper: sweeps and tables."),
}
_CALLED = {"list": "list_parts", "paper": "paper_app"}  # all others are called as the command


def build_app(loaded: Container[str] = COMMANDS) -> typer.Typer:
    """Return the command line; of commands that are not ``loaded`` there is only the line in ``--help``."""
    app = typer.Typer(
        name="unflip",
        help="Find label errors, and train classifiers on noisy labels.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        epilog="Start with: unflip demo",
    )
    app.callback()(_root)
    for name, (module, summary) in COMMANDS.items():
        attribute = _CALLED.get(name, name)
        command = getattr(import_module(f"unflip.cli.{module}"), attribute) if name in loaded else _not_loaded
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, help=None if name in loaded else summary)(command)
    return app


def _not_loaded() -> None:
    raise AssertionError("a command whose name is not among the arguments cannot run")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"unflip {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log each step to standard error.")] = False,
) -> None:
    if verbose:
        logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
        logging.getLogger("unflip").setLevel(logging.INFO)


def list_parts(
    kind: Annotated[str | None, typer.Argument(help=f"{', '.join(KINDS)}; by default all.", metavar="[KIND]")] = None,
) -> None:
    """List available methods, networks, backbones, checks, presets and more."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(unknown("kind", kind, KINDS))
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for name in [kind] if kind else KINDS:
        rows = _rows(name)
        console.print(name, style="bold")
        width = max(len(part) for part, _ in rows)
        for part, summary in rows:
            console.print(f"  {part:<{width}}  {summary}")
        if name == "methods":
            console.print(_CALIBRATED)


def _rows(kind: str) -> list[tuple[str, str]]:
    """Return the name and summary of all parts of a kind."""
    from unflip.data import datasets
    from unflip.encoders import text_encoders
    from unflip.issues import checks
    from unflip.methods import methods
    from unflip.nn import backbones, networks
    from unflip.presets import preset_names, preset_text
    from unflip.reproduce.grids import grid_names, grid_text

    registries = {
        "methods": methods, "networks": networks, "backbones": backbones, "text-encoders": text_encoders,
        "data": datasets, "checks": checks,
    }  # fmt: skip
    if kind in ("presets", "grids"):
        names, text = (preset_names, preset_text) if kind == "presets" else (grid_names, grid_text)
        return [(name, text(name).splitlines()[0].lstrip("# ")) for name in names()]
    return [(entry.name, entry.summary) for entry in registries[kind]]


def run() -> None:
    """Run the command line; user errors are printed as one line, with exit code 2."""
    _prepare_streams()
    if is_default := signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    warnings.simplefilter("always", UnflipWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # broken images are reported by us
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where there is no home for its cache
    warnings.showwarning = partial(_show_warning, set())
    # typer vendors click from 0.26 on, so find the base class through typer
    usage_error: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        code = build_app(sys.argv)(standalone_mode=False)
        sys.stdout.flush()  # a full disk is an error
    except typer.Exit as stop:
        code = stop.exit_code
    except Stopped as stop:
        _print_error(str(stop))
        _end(128 + stop.signal)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except UnflipError as error:
        code = _print_error(str(error))
    except UnicodeEncodeError as error:
        code = _print_error(f"cannot encode a file name ({error.reason}); rename the file")
    except OSError as error:
        code = _print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except usage_error as error:
        code = _print_error(error.format_message())
    finally:
        if is_default:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if code == _INTERRUPTED:  # newer versions of typer return it
        _print_error("stopped")
    _end(code or 0)


def _terminate(number: int, frame: object) -> NoReturn:
    """End the command as Ctrl-C does, so that partial files are removed; a second signal ends it immediately."""
    signal.signal(number, signal.SIG_DFL)
    raise Stopped("stopped", number)


def _end(code: int) -> NoReturn:
    """Exit; in distributed runs immediately, since communication threads may abort a slow exit."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class _Output(FileIO):
    """An output that is dropped once its reader is gone, as with `| head`: a command that writes a run finishes it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, "standard output") from error
            return len(data)


def _prepare_streams() -> None:
    """Print ? for characters that the output encoding lacks, as on Windows; drop what nobody reads."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # it is closed; a file must not take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            if stream.encoding.lower() != "utf-8":
                stream.reconfigure(errors="replace")
            if isinstance(getattr(stream.buffer, "raw", stream.buffer), FileIO) and not stream.isatty():
                buffer = BufferedWriter(_Output(stream.fileno(), "wb", closefd=False))
                text = TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
                setattr(sys, name, text)


def _print_error(message: str) -> int:
    """Print a message as one line, by the first process only; return the exit code of errors."""
    if message and int(os.environ.get("RANK", "0")) == 0:
        print(f"unflip: {one_line(message)}", file=sys.stderr)  # noqa: T201
    return 2


def _show_warning(shown: set[str], message: Warning | str, category: type[Warning], *place: object) -> None:
    """Print our warnings as one line, each once, and others as usual."""
    if not issubclass(category, UnflipWarning):
        _show_other(message, category, *place)
    elif str(message) not in shown:
        shown.add(str(message))
        _print_error(str(message))
