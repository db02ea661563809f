"""`dragoman serve`: its options are the settings.

An option's value is a string, which the settings parse: it has the same syntax on the
command line, in the environment and in the settings file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import click

from dragoman_cli import Command, CommandArgument, CommandOption, print_error
from dragoman_cli.entry_points import find_entry_points

from ..settings import FIELDS, SettingField, Settings, SettingsError, load_settings
from .serve import run_server

RunServer = Callable[[Settings, Callable[[str], None], Callable[[], Settings]], int]
"""Serves until it is stopped, and returns the exit code.

Arguments: the settings, a function that prints a line, and one that reads the settings
    again for a reload.
"""

FOREIGN_FLAGS = "dragoman.foreign_flags"
"""The entry point group in which a package explains flags of other servers that its
engine does not have, before `foreign_flags` does. The name is the engine's, the object
an `ExplainOption` of `dragoman_cli`.
"""

EPILOG = (
    "Examples:\n\n\b\n"
    "  dragoman serve Qwen/Qwen3-0.6B --max-model-len 8K\n"
    "  dragoman serve sim --profile h100-llama-3.1-8b --port 0\n\n"
    "Every option can also be set by an environment variable (DRAGOMAN_MAX_MODEL_LEN=8K for "
    "--max-model-len 8K, "
    "DRAGOMAN_NO_UI=1 for --no-ui; lists are comma-separated) and in the file given by --config. "
    "The command line "
    "takes precedence over the environment, the environment over the file."
)


def build_serve_command(
    run: RunServer, environment: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> Command:
    """Build the command.

    run: serves.
    environment: environment variables.
    overrides: settings that replace the user's, as of `load_settings`.
    """

    def serve(**values: object) -> None:
        try:
            options = _read_options(values)

            def read_settings() -> Settings:
                return load_settings(options, environment, overrides)

            code = run(read_settings(), click.echo, read_settings)
        except SettingsError as error:
            print_error(str(error))
            code = 2
        raise click.exceptions.Exit(code)

    return Command(
        "serve",
        params=[parameter for field in FIELDS for parameter in _build_parameters(field)],
        callback=serve,
        help="Serve a model over HTTP.",
        epilog=EPILOG,
        explain_option=_explain_option,
    )


def _read_options(values: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of the command line by name. Raises SettingsError.

    values: the options by name; one that is not set is None, and a repeatable one an
        empty tuple.
    """
    options = {name: value for name, value in values.items() if value not in (None, ())}
    for field in FIELDS:
        if options.pop(_name_off_option(field), None) is not None:
            if field.name in options:
                raise SettingsError(f"{field.flag} and {field.off_flag} are mutually exclusive")
            options[field.name] = False
    return options


def _build_parameters(field: SettingField) -> Iterator[click.Parameter]:
    """Build the options of a setting: one, or for a switch two."""
    if field.name == "model":
        yield CommandArgument(
            field.name, description=_build_help(field), metavar="MODEL", required=False
        )
    elif field.kind is bool:
        # The help shows only the flag that changes the default, or both if there is no
        # fixed default.
        help_text = _build_help(field)
        off_help = f"Opposite of {field.flag}." if field.default is None else help_text
        off_name = _name_off_option(field)
        yield _build_switch(field, field.name, field.flag, help_text, hidden=field.default is True)
        yield _build_switch(
            field, off_name, field.off_flag, off_help, hidden=field.default is False
        )
    else:
        yield CommandOption(
            [field.name, field.flag],
            group=field.option.group,
            type=str,
            multiple=field.is_list,
            help=_build_help(field),
            metavar=field.option.metavar or {int: "N", float: "SECONDS"}.get(field.kind, "TEXT"),
        )


def _build_switch(
    field: SettingField, name: str, flag: str, help: str, *, hidden: bool
) -> click.Option:
    return CommandOption(
        [name, flag],
        group=field.option.group,
        is_flag=True,
        default=None,
        help=help,
        hidden=hidden,
    )


def _name_off_option(field: SettingField) -> str:
    return f"not_{field.name}"


def _build_help(field: SettingField) -> str:
    text = field.option.help
    if field.choices:
        text += f" One of {', '.join(field.choices)}."
    if field.kind is not bool and isinstance(field.default, str | int | float):
        text += f" (default: {field.default})"
    return text


def _explain_option(
    command: str, arguments: Sequence[str], own_flags: frozenset[str]
) -> str | None:
    """Explain an unknown option: first by the package of MODEL's engine."""
    engines = {argument.partition(":")[0] for argument in arguments}
    for point in find_entry_points(FOREIGN_FLAGS):
        if point.name in engines:
            explanation: str | None = point.load()(command, arguments, own_flags)
            if explanation is not None:
                return explanation
    from .foreign_flags import explain_serve_flag  # noqa: PLC0415 - only after a mistake

    return explain_serve_flag(command, arguments, own_flags)


COMMAND = build_serve_command(run_server, os.environ)
