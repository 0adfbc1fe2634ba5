"""Two commands into one folder at random moments, reviews among them: see `tests/support/together.py`."""

from pathlib import Path

import pytest

import together
from helpers import spawn_python


@pytest.mark.parametrize(("rounds", "seed"), [(4, 0), pytest.param(200, 1, marks=pytest.mark.soak)])
def test_two_commands_at_once_lose_no_decision_and_touch_no_other_file(tmp_path: Path, rounds: int, seed: int) -> None:
    done = spawn_python(together.__file__, tmp_path, rounds, seed, timeout=300 + 10 * rounds)
    assert done.code == 0, done.err
