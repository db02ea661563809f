"""Call a command of the command line in this process, and return its output."""

from __future__ import annotations

from click.testing import CliRunner, Result

from dragoman_cli import CommandLine


def call(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        CommandLine(),
        arguments,
        input=stdin,
        prog_name="dragoman",
        env={"COLUMNS": "200", "NO_COLOR": "1"},
    )


def get_output(*arguments: str) -> str:
    """Return the standard output of a successful call."""
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr or result.exception
    return result.stdout


def get_error(*arguments: str) -> str:
    """Return the one-line error message of a call that fails."""
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr
