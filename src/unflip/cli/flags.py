"""Flags: the options of a task as options of the command line."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Annotated, Any, get_args, get_origin

import typer

from unflip.api.options import SECTIONS, Flag, flags_of
from unflip.errors import one_line


def takes(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the ``**options`` of a command by a flag for each option of a task.

    The command is called with those that were typed, as the task takes them; it may name some of them itself.
    """
    flags = flags_of(kind)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in flags
        ]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, hint, flag)
            )
            for name, (hint, flag) in flags.items()
        ]

        @wraps(command)
        def run(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name not in flags or value is not None})

        parameters = [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *added]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _annotation(name: str, hint: Any, flag: Flag) -> Any:
    """Return what typer makes an option of."""
    first = get_args(hint)[0]
    several = get_origin(first) is Sequence
    kind = list[str] if several else first if first in (bool, int, float) else str
    section, _, key = flag.option.rpartition(".")
    field = SECTIONS[section].model_fields.get(key)
    text = flag.help or (field.description if field else None)
    names = flag.names or (f"--{name.replace('_', '-')}",)  # named, since a flag has no opposite then
    option = typer.Option(*names, help=one_line(text or ""), metavar=flag.metavar, min=flag.least)
    return Annotated[kind | None, option]
