"""The base of all options: frozen, no unknown keys, every field with its reason."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Options of one part of the house; a section of ``config.toml``. Subclass it beside the part."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
