"""The base class of all options, and their validation with one-line errors."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from unflip.errors import ConfigError, unknown


class Options(BaseModel):
    """Base class for the options of one section of ``config.toml``.

    Options are frozen, unknown keys are errors, and each field is documented by its docstring.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )


def _split_commas(names: Any) -> list[str]:
    listed = [names] if isinstance(names, str) else names
    return [column.strip() for name in listed for column in str(name).split(",")]


CommaSeparated = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
"""Names, which may also be written as ``a,b,c``."""
_Model = TypeVar("_Model", bound=Options)


def check_options(
    model: type[_Model], values: Any, *, prefix: str = "", kind: str = "option", keys: Iterable[str] | None = None
) -> _Model:
    """Validate options; the error is one line with key, value and what is allowed.

    Args:
        model: the options.
        values: by key.
        prefix: what errors put before a key.
        kind: what errors call a key.
        keys: that an error may suggest; by default those of the model.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = (prefix + _locate(model, first["loc"])).rstrip(".")
        if first["type"] == "extra_forbidden":
            raise ConfigError(unknown(kind, key, model.model_fields if keys is None else keys)) from error
        if first["type"] == "missing":
            hint = "; name the data (`unflip train --data`)" if key == "data.path" else ""
            raise ConfigError(f"'{key}' is missing{hint}") from error
        if first["type"] == "literal_error":
            choices = re.findall("'([^']*)'", first["ctx"]["expected"])
            raise ConfigError(unknown(key, str(first["input"]), choices)) from error
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if number := {"int_parsing": "a whole number", "float_parsing": "a number"}.get(first["type"]):
            others = [e["ctx"]["expected"] for e in error.errors() if e["type"] == "literal_error"]
            message = " or ".join([number, *others])  # that, or a word such as 'auto'
        raise ConfigError(f"{key} = {first['input']!r}: must be {message}") from error


def _locate(model: type[Options], location: Sequence[str | int]) -> str:
    """Return the dotted key of an invalid value, without pydantic's names of union members."""
    parts: list[str] = []
    section: type[Options] | None = model
    for part in location:
        if section is not None or isinstance(part, int):
            parts.append(str(part))
        field = section.model_fields.get(str(part)) if section is not None else None
        kind = field.annotation if field else None
        section = kind if isinstance(kind, type) and issubclass(kind, Options) else None
    return ".".join(parts)
