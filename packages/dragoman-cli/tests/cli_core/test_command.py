"""Commands from dataclasses and functions: their options, help and errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import click
import pytest
from click.testing import CliRunner, Result

from dragoman_cli import Argument, Command, Option, build_command, build_group
from dragoman_cli.api_key import find_api_key


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    files: Annotated[tuple[str, ...], Argument(metavar="FILE", help="What to read.")]
    num_steps: Annotated[int, Option(help="Number of steps.", minimum=1, group="Limits")] = 10
    rate: Annotated[float, Option(minimum=0, maximum=1)] = 0.5
    name: Annotated[str | None, Option(help="Name of the run.", metavar="NAME")] = None
    tags: Annotated[tuple[str, ...], Option("--tag", "-t")] = ()
    enable_cache: Annotated[bool | None, Option("--enable-cache/--no-enable-cache")] = None
    shuffle: Annotated[bool, Option()] = True
    verbose: Annotated[bool, Option("--verbose")] = False
    inner: Annotated[str, Option(is_hidden=True)] = ""


class TrainError(Exception):
    pass


def run(*arguments: str) -> TrainOptions:
    calls: list[TrainOptions] = []
    result = invoke(build_command("train", TrainOptions, calls.append), *arguments)
    assert result.exit_code == 0, result.output
    return calls[0]


def invoke(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, prog_name="train", env={"NO_COLOR": "1"})


def test_command_without_options_uses_defaults():
    assert run("a") == TrainOptions(files=("a",))


def test_command_parses_values_by_type():
    options = run(
        "a", "b", "--num_steps", "3", "--rate=0.25", "-t", "x", "--tag", "y", "--no-shuffle",
        "--verbose", "--enable-cache", "--name", "n",
    )  # fmt: skip
    assert options == TrainOptions(
        files=("a", "b"),
        num_steps=3,
        rate=0.25,
        tags=("x", "y"),
        shuffle=False,
        verbose=True,
        enable_cache=True,
        name="n",
    )


def test_negated_flag_accepts_vllm_spelling():
    assert run("a", "--no-enable-cache").enable_cache is False
    assert run("a", "--disable-cache").enable_cache is False


@pytest.mark.parametrize(
    ("option", "variable", "key"),
    [("o", "a, b", "o"), (None, "a, b", "a"), (None, "", None), (None, " , b", None)],
)
def test_find_api_key_prefers_option_to_variable(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str, key: str | None
):
    monkeypatch.setenv("DRAGOMAN_API_KEY", variable)
    assert find_api_key(option) == key


def test_help_lists_options_by_group():
    command = build_command("train", TrainOptions, print, help="Train a model.\n\nIt is long.")
    output = invoke(command, "-h").output
    assert output.startswith("Usage: train [OPTIONS] FILE...\n\n  Train a model.\n")
    assert re.search(r"\nArguments:\n  FILE +What to read.\n", output)
    assert re.search(r"\nLimits:\n  --num-steps INTEGER RANGE .*\[default: 10;\s+x>=1\]", output)
    assert "--inner" not in output
    assert command.get_short_help_str() == "Train a model."


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "Missing argument 'FILE'."),
        (["a", "--num-steps", "0"], "0 is not in the range x>=1."),
        (["a", "--num-steps", "x"], "'x' is not a valid integer"),
        (["a", "--rate", "nan"], "'nan' is not a valid float"),
        (["a", "--stepz", "1"], "No such option"),
    ],
)
def test_invalid_arguments_exit_2_with_usage(arguments: list[str], error: str):
    result = invoke(build_command("train", TrainOptions, print), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: train [OPTIONS] FILE...\n")
    assert error in result.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad value"), "Error: bad value\n"),
        (FileNotFoundError(2, "No such file", "x.yaml"), "Error: x.yaml: No such file\n"),
        (TrainError("diverged"), "Error: diverged\n"),
    ],
)
def test_known_error_prints_one_line_and_exits_2(error: Exception, line: str):
    def fail() -> None:
        raise error

    result = invoke(build_command("train", fail, errors=(TrainError,)))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line)


def test_unknown_error_is_raised():
    def fail() -> None:
        raise TrainError

    assert isinstance(invoke(build_command("train", fail)).exception, TrainError)


def test_keyboard_interrupt_exits_130():
    def interrupt() -> None:
        raise KeyboardInterrupt

    result = invoke(build_command("train", interrupt))
    assert (result.exit_code, result.output) == (130, "")


def test_unknown_option_error_comes_from_explain_option():
    def explain(command: str, arguments: Sequence[str], own_flags: frozenset[str]) -> str | None:
        assert "--num-steps" in own_flags
        return f"{command}: no --gpus" if "--gpus" in arguments else None

    command = build_command("train", TrainOptions, print, explain_option=explain)
    assert "Error: train: no --gpus\n" in invoke(command, "a", "--gpus", "2").stderr
    assert "No such option" in invoke(command, "a", "--cpus", "2").stderr


def test_annotation_without_metadata_raises_type_error():
    def train(steps: int = 1) -> None: ...

    with pytest.raises(TypeError, match="steps: the annotation has no Option or Argument"):
        build_command("train", train)


def start(name: Annotated[str, Argument(metavar="NAME")]) -> None:
    """Start a run. It continues
    in the background.
    """
    click.echo(f"started {name}")


def stop() -> None:
    """Stop all runs."""


def build_runs() -> click.Group:
    commands: list[Command] = [build_command("start", start), build_command("stop", stop)]
    return build_group("runs", "Manage runs.", commands)


def test_group_runs_chosen_command():
    result = invoke(build_runs(), "start", "a")
    assert (result.exit_code, result.output) == (0, "started a\n")


def test_group_without_command_lists_commands_in_order():
    result = invoke(build_runs())
    assert result.exit_code == 2
    assert "Commands:\n  start  Start a run.\n  stop   Stop all runs.\n" in result.output
