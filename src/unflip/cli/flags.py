"""Flags made from the fields of option models, and flags that several commands share."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from unflip.api.options import NAMES, SECTIONS

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Device = Annotated[str, typer.Option(help="Device: auto (a GPU if available), cpu, cuda or mps.", metavar="DEVICE")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done without writing anything.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
Moved = Annotated[str | None, typer.Option(help="Current location of the run's data, if it has moved.", metavar="PATH")]
FinishedRun = Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")]

_COMMON = "Common"
_PANELS = {
    "": "Training", "sources": "Training", "data": "Data", "noise": "Data", "audit": "Data", "embedding": "Data",
    "apply": "Labels", "execution": "Compute",
}  # fmt: skip
_PANEL_OF = dict.fromkeys(("method", "epochs", "seed", "execution.quiet"), _COMMON)
_SPELLINGS = {"quiet": ("--quiet", "-q"), "settings": ("--set",)}


def takes(keys: Sequence[str], **defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the ``**options`` of a command by one flag per option.

    The command only receives flags that were typed, so that a default does not override a configuration file.

    Args:
        keys: the dotted keys of the options, as in ``unflip.api.options``; parameters of the command take precedence.
        defaults: descriptions of defaults for ``--help``, by name, where they differ from the field's.
    """
    names = {NAMES[key]: key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for parameter in signature(command, eval_str=True).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in names
        ]
        for parameter in own:
            for info in parameter.annotation.__metadata__:
                info.rich_help_panel = _COMMON if isinstance(info, typer.models.OptionInfo) else None
        flags = [_flag(name, key, defaults.get(name)) for name, key in names.items()]

        @wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            typed = {name: value for name, value in values.items() if not _is_default(context, name)}
            command(**{name: value for name, value in values.items() if name not in names} | typed)

        parameters = [*own, *flags]
        context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
        run.__signature__ = Signature([context, *parameters])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *parameters)}
        return run

    return decorate


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def _flag(name: str, key: str, default: str | None) -> Parameter:
    """Return the parameter of an option; type, help, default and panel come from its field."""
    section, _, field_name = key.rpartition(".")
    field = SECTIONS[section].model_fields[field_name]
    kind, metavar = _type_of(field)
    help_text = " ".join((field.description or "").split()).split(". ")[0].removesuffix(".")
    value = field.default if default is None and isinstance(field.default, str | int | float) else None
    option = typer.Option(
        *_SPELLINGS.get(name, (f"--{name.replace('_', '-')}",)),  # explicit, so that flags have no --no-...
        help=f"{help_text}{'; repeatable' if kind == list[str] else ''}.",
        metavar=metavar,
        show_default=default or (value is not None and kind is not bool),
        rich_help_panel=_PANEL_OF.get(key, _PANELS[section]),
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[kind | None, option])


def _type_of(field: FieldInfo) -> tuple[Any, str | None]:
    """Return the type that typer parses a field's value as, and its placeholder in ``--help``."""
    kinds = [field.annotation, *get_args(field.annotation)]
    kinds = [kind.__origin__ if get_origin(kind) is Annotated else kind for kind in kinds]
    if any(get_origin(kind) is tuple for kind in kinds):
        return list[str], "TEXT"
    if get_origin(field.annotation) is Literal:
        return str, "|".join(get_args(field.annotation))
    metavars = {bool: None, int: "INT", float: "FLOAT"}
    return next(((kind, metavar) for kind, metavar in metavars.items() if kind in kinds), (str, "TEXT"))
