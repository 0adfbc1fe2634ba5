"""Wrapper: a method around another one, which handles every hook the wrapper does not define."""

from typing import Any

from unflip.methods.base import Method, Setting


class Wrapper(Method):
    """Passes every hook of :class:`unflip.methods.base.Method` that a subclass does not define on to the inner method.

    This also covers hooks added later: they are read from the contract, not listed here.
    """

    inner: Method

    def __init__(self, inner: Method, options: Any, setting: Setting) -> None:
        self.inner = inner
        super().__init__(options, setting)

    def __init_subclass__(cls) -> None:
        for name in [*vars(Method), *Method.__annotations__]:
            if not name.startswith("__") and name not in vars(cls):
                setattr(cls, name, _passed_on(name))


def _passed_on(name: str) -> property:
    return property(lambda self: getattr(self.inner, name), doc=f"The inner method's ``{name}``.")
