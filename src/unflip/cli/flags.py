"""Flags: the options of a command, made from the fields of their models; and flags that several commands share."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from unflip.api.options import SECTIONS, option_name
from unflip.errors import one_line

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto (a GPU if there is one), cpu, cuda or mps.", metavar="DEVICE")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
Moved = Annotated[str | None, typer.Option(help="Where the run's data is now, if it has moved since training.")]
FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.")]

_COMMON = "Common"
_PANELS = {
    "": "Training", "sources": "Training", "data": "Data", "noise": "Data", "audit": "Data", "embedding": "Data",
    "execution": "Compute",
}  # fmt: skip
_PANEL_OF = {
    "method": _COMMON, "epochs": _COMMON, "seed": _COMMON, "execution.quiet": _COMMON,
    "embedding.backend": "Compute", "embedding.address": "Compute",
}  # fmt: skip
_SPELLINGS = {"quiet": ("--quiet", "-q"), "settings": ("--set",)}


def takes(keys: Sequence[str], **defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the ``**options`` of a command by a flag for each option.

    The command is called with those that were typed, by name, so that a flag at its default overrides no file; it may
    name some of them itself.

    Args:
        keys: the dotted keys of the options, as in ``unflip.api.options``.
        defaults: by name, what ``--help`` shows as the default where that is not the model's.
    """
    names = {option_name(key): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in names
        ]
        for parameter in own:
            for info in parameter.annotation.__metadata__:
                info.rich_help_panel = _COMMON if isinstance(info, typer.models.OptionInfo) else None
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(key, defaults.get(name))
            )
            for name, key in names.items()
        ]

        @wraps(command)
        def run(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name not in names or value is not None})

        parameters = [*own, *added]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _flag(key: str, default: str | None) -> Any:
    """Return what typer makes the flag of an option of: its type, help, default and panel come from the field."""
    section, _, field_name = key.rpartition(".")
    field, name = SECTIONS[section].model_fields[field_name], option_name(key)
    kind, choices = _type_of(field)
    help_text = one_line(field.description or "").split(". ")[0].removesuffix(".")
    plain = isinstance(field.default, str | int | float) and not isinstance(field.default, bool)
    option = typer.Option(
        *_SPELLINGS.get(name, (f"--{name.replace('_', '-')}",)),  # named, since a flag has no opposite then
        help=f"{help_text}{'; repeatable' if kind == list[str] else ''}.",
        metavar="|".join(choices) or None,
        show_default=default or (str(field.default) if plain else False),
        rich_help_panel=_PANEL_OF.get(key, _PANELS[section]),
    )
    return Annotated[kind | None, option]


def _type_of(field: FieldInfo) -> tuple[Any, Sequence[str]]:
    """Return the type that typer reads a field's value as, and the allowed words if it is one of some."""
    kinds = [field.annotation, *get_args(field.annotation)]
    kinds = [kind.__origin__ if get_origin(kind) is Annotated else kind for kind in kinds]
    if any(get_origin(kind) is tuple for kind in kinds):
        return list[str], ()
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return next((kind for kind in (bool, int, float) if kind in kinds), str), choices
