"""Wrapper: a method around another one; what it does not define itself, the inner method does."""

from typing import Any

from unflip.methods.base import Method, Setting


class Wrapper(Method):
    """Passes on every hook of :class:`unflip.methods.base.Method` that a subclass does not define.

    That holds for hooks that are added later, too: they are found in the contract, not listed here.
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
