"""A command's options are its flags: a key more in its list is all that a new one takes."""

from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from unflip.api.options import CLEAN, CORRUPT, EMBED, NAMES, PREDICT, SECTIONS, TRAIN, option_tree
from unflip.cli.app import build_app
from unflip.cli.flags import takes
from unflip.errors import ConfigError

COMMANDS = {"train": TRAIN, "clean": CLEAN, "embed": EMBED, "corrupt": CORRUPT, "predict": PREDICT}
ONE_MORE = (*TRAIN, "data.jitter")


@pytest.mark.parametrize(("command", "keys"), COMMANDS.items(), ids=list(COMMANDS))
def test_every_option_is_a_field_and_a_flag_with_help_in_a_panel(command: str, keys: tuple[str, ...]) -> None:
    click = typer.main.get_command(build_app())
    parameters = {each.name: each for each in click.commands[command].params}  # type: ignore[attr-defined]
    for key in keys:
        section, _, field = key.rpartition(".")
        assert SECTIONS[section].model_fields[field].description, key
        flag = parameters[NAMES[key]]
        assert flag.help, key
        assert flag.opts[0].startswith("--")
        assert flag.rich_help_panel in ("Common", "Data", "Training", "Compute")


def test_help_shows_defaults_choices_and_panels() -> None:
    shown = CliRunner().invoke(build_app(), ["train", "--help"], env={"COLUMNS": "200"}).output
    for words in ("default: 30", "default: unflip", "noisy-val|last|clean-val|best-test", "Common", "Compute"):
        assert words in shown


def test_a_new_flag_is_one_key() -> None:
    seen: list[dict[str, Any]] = []
    added = typer.Typer()

    @added.command()
    @takes(ONE_MORE)
    def command(out: Annotated[str, typer.Argument()], quiet: bool = False, **options: Any) -> None:
        seen.append({"out": out, "quiet": quiet, **options})

    helped = CliRunner().invoke(added, ["--help"], env={"COLUMNS": "200"})
    assert "Standard deviation of the random noise added to rows in training" in helped.output
    done = CliRunner().invoke(added, ["place", "--jitter", "0.5", "--ignore", "a", "--ignore", "b", "-q"])
    assert done.exit_code == 0
    assert seen == [{"out": "place", "quiet": True, "jitter": 0.5, "ignore": ["a", "b"]}]
    assert option_tree(ONE_MORE, {"jitter": 0.5, "ignore": ["a", "b"], "epochs": None}) == {
        "data": {"jitter": 0.5, "ignore": ["a", "b"]}
    }


def test_a_misspelled_option_is_told_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match="unknown option 'epoch', did you mean 'epochs'"):
        option_tree(TRAIN, {"epoch": 3})
