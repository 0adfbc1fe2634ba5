"""The base class of all options."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Options of one part, a section of ``config.toml``: frozen, without unknown keys, documented by docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
