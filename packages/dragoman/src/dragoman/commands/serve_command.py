"""`dragoman serve`: its options are the settings.

An option's value is a string, which the settings parse: it has the same syntax on the
command line, in the environment and in the settings file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from dragoman_cli import Command, CommandArgument, CommandOption, print_error

from ..launch.engine_spec import EngineSpec, TranslatedArguments
from ..settings import FIELDS, SettingField, Settings, SettingsError, load_settings
from ..settings.engine_settings import load_declarations
from .serve import run_server

RunServer = Callable[[Settings, Callable[[str], None], Callable[[], Settings]], int]
"""Serves until it is stopped, and returns the exit code.

Arguments: the settings, a function that prints a line, and one that reads the settings
    again for a reload.
"""

_TRANSLATED = "dragoman.translated"
"""Where click's context has the translated arguments."""

HELP_FLAGS = ("-h", "--help")

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
        meta = click.get_current_context().meta
        translated: TranslatedArguments = meta.get(_TRANSLATED, TranslatedArguments(()))
        try:
            options = _read_options(values)

            def read_settings() -> Settings:
                settings = load_settings(options, environment, overrides)
                return msgspec.structs.replace(
                    settings, notices=translated.notices, information=translated.information
                )

            code = run(read_settings(), click.echo, read_settings)
        except SettingsError as error:
            print_error(str(error))
            code = 2
        raise click.exceptions.Exit(code)

    return ServeCommand(
        "serve",
        environment=environment,
        params=[parameter for field in FIELDS for parameter in _build_parameters(field)],
        callback=serve,
        help="Serve a model over HTTP.",
        epilog=EPILOG,
        explain_option=_explain_option,
    )


class ServeCommand(Command):
    """The command `serve`, whose arguments may be those of a server that the engine of
    MODEL simulates.
    """

    def __init__(
        self,
        name: str,
        *,
        environment: Mapping[str, str],
        **settings: Any,  # noqa: ANN401 - click's
    ) -> None:
        super().__init__(name, **settings)
        self._environment = environment

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            translated = self._translate(args)
        except ValueError as error:
            ctx.fail(str(error))
        if translated is None:
            return super().parse_args(ctx, args)
        ctx.meta[_TRANSLATED] = translated
        return super().parse_args(ctx, list(translated.arguments))

    def _translate(self, arguments: list[str]) -> TranslatedArguments | None:
        """Translate the arguments, if the engine of MODEL does; else return None."""
        flags = {
            flag: not (isinstance(option, click.Option) and option.is_flag)
            for option in self.params
            for flag in (*option.opts, *option.secondary_opts)
            if flag.startswith("-")
        } | dict.fromkeys(HELP_FLAGS, False)
        for declaration in load_declarations():
            if not isinstance(declaration, EngineSpec) or declaration.translate_arguments is None:
                continue
            place = _find_model(arguments, declaration.name, flags)
            if place is not None:
                others = (*arguments[:place], *arguments[place + 1 :])
                return declaration.translate_arguments(
                    (arguments[place], *others), flags, self._environment
                )
        return None


def _find_model(arguments: Sequence[str], engine: str, flags: Mapping[str, bool]) -> int | None:
    """Return the index of MODEL if it names the engine; None if not.

    flags: those of the command, with whether each takes a value.
    """
    for index, argument in enumerate(arguments):
        if argument.partition(":")[0] == engine:
            former = arguments[index - 1] if index else ""
            if not flags.get(former.replace("_", "-"), False):
                return index
    return None


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
    from .foreign_flags import explain_serve_flag  # noqa: PLC0415 - only after a mistake

    return explain_serve_flag(command, arguments, own_flags)


COMMAND = build_serve_command(run_server, os.environ)
