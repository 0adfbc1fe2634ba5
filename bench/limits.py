"""Limits of benchmarks: one line per limit, and exit code 1 if one is exceeded."""


class Limits:
    """Compares figures with their limits as they come; `finish` ends the script, non-zero if any was missed."""

    def __init__(self) -> None:
        self._missed: list[str] = []

    def at_most(self, name: str, measured: float, limit: float, show: str = "{:.3f}") -> None:
        """Print the figure as ``show`` formats it; it is missed above ``limit``."""
        self._tell(name, measured, limit, show, "at most", kept=measured <= limit)

    def at_least(self, name: str, measured: float, limit: float, show: str = "{:.3f}") -> None:
        """Print the figure as ``show`` formats it; it is missed below ``limit``."""
        self._tell(name, measured, limit, show, "at least", kept=measured >= limit)

    def _tell(self, name: str, measured: float, limit: float, show: str, side: str, *, kept: bool) -> None:
        figure = f"{name}: {show.format(measured)}, {side} {show.format(limit)}"
        print(f"{figure}: {'ok' if kept else 'MISSED'}", flush=True)
        if not kept:
            self._missed.append(figure)

    def finish(self) -> None:
        """Exit with 1 and one line that names what was missed; return if nothing was."""
        if self._missed:
            raise SystemExit("limit missed: " + "; ".join(self._missed))
