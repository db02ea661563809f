"""Calls a command as a person does, and gives what it prints."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from dragoman.cli import create_app


def call(*arguments: str) -> Result:
    app = create_app(lambda _settings, _say, _reload: 0, {})
    return CliRunner().invoke(app, arguments, prog_name="dragoman", env={"COLUMNS": "200", "NO_COLOR": "1"})


def get_output(*arguments: str) -> str:
    """The standard output of a call that goes well."""
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr or result.exception
    return result.stdout


def fault(*arguments: str) -> str:
    """The one line of a call that does not."""
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr
