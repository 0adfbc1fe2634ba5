"""A task's options are its flags: one line in its type is all that a new one takes."""

from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from unflip.api.options import (
    SECTIONS,
    CleanOptions,
    CorruptOptions,
    EmbedOptions,
    Flag,
    TrainOptions,
    flags_of,
    option_tree,
)
from unflip.cli.app import app
from unflip.cli.flags import takes
from unflip.errors import ConfigError

KINDS: list[type] = [TrainOptions, CleanOptions, EmbedOptions, CorruptOptions]
COMMANDS = {"train": TrainOptions, "clean": CleanOptions, "embed": EmbedOptions, "corrupt": CorruptOptions}
NOT_OPTIONS = {"preset", "config", "settings", "from_scratch"}


class OneMore(TrainOptions, total=False):
    """What `train` takes, and the jitter between two views."""

    jitter: Annotated[float | None, Flag("data.jitter")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_flag_sets_an_option_that_there_is(kind: type) -> None:
    for name, (_, flag) in flags_of(kind).items():
        section, _, key = flag.option.rpartition(".")
        assert key in NOT_OPTIONS if name in NOT_OPTIONS else key in SECTIONS[section].model_fields, name


@pytest.mark.parametrize(("command", "kind"), COMMANDS.items())
def test_every_option_is_a_flag_with_help(command: str, kind: type) -> None:
    click = typer.main.get_command(app)
    parameters = {each.name: each for each in click.commands[command].params}  # type: ignore[attr-defined]
    for name in flags_of(kind):
        assert parameters[name].help, name
        assert parameters[name].opts[0].startswith("--")


def test_a_new_flag_is_one_line() -> None:
    seen: list[dict[str, Any]] = []
    added = typer.Typer()

    @added.command()
    @takes(OneMore)
    def command(out: str, quiet: bool = False, **options: Any) -> None:
        seen.append({"out": out, "quiet": quiet, **options})

    helped = CliRunner().invoke(added, ["--help"], env={"COLUMNS": "200"})
    assert "Standard deviation of the noise between two views of a row" in helped.output
    done = CliRunner().invoke(added, ["place", "--jitter", "0.5", "--ignore", "a", "--ignore", "b", "-q"])
    assert done.exit_code == 0
    assert seen == [{"out": "place", "quiet": True, "jitter": 0.5, "ignore": ["a", "b"]}]
    assert option_tree(OneMore, {"jitter": 0.5, "ignore": ["a", "b"], "epochs": None}) == {
        "data": {"jitter": 0.5, "ignore": ["a", "b"]}
    }


def test_a_misspelt_option_is_told_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match="unknown option 'epoch', did you mean 'epochs'"):
        option_tree(TrainOptions, {"epoch": 3})
