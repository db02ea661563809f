"""Call a command of the CLI, and return its output."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from dragoman.cli import create_app


def call(*arguments: str) -> Result:
    app = create_app(lambda _settings, _say, _reload: 0, {})
    return CliRunner().invoke(
        app, arguments, prog_name="dragoman", env={"COLUMNS": "200", "NO_COLOR": "1"}
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
