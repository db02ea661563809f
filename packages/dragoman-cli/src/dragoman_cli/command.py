"""Builds `click` commands from the signatures of dataclasses and functions.

The help of a command lists its options by group, and cuts no name on narrow terminals.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import click

from .options import Argument, Option
from .output import report_errors

Options = TypeVar("Options")
CONTEXT_SETTINGS: Mapping[str, Any] = {
    "help_option_names": ["-h", "--help"],
    # As with vLLM, --max_model_len is --max-model-len.
    "token_normalize_func": lambda name: name.replace("_", "-"),
}


class CommandArgument(click.Argument):
    """A positional argument with a description, which click's own lacks."""

    def __init__(self, *names: str, description: str, **settings: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(names, **settings)
        self.description = description

    def make_metavar(self, ctx: click.Context) -> str:  # noqa: ARG002 - the signature is click's
        return self.metavar or str(self.name).upper()


class CommandOption(click.Option):
    """An option with the heading under which the help lists it."""

    def __init__(self, names: Sequence[str], *, group: str, **settings: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(names, **settings)
        self.group = group


class Command(click.Command):
    """A command whose help has the options by group."""

    def __init__(self, name: str | None, **settings: Any) -> None:  # noqa: ANN401 - click's
        settings.setdefault("context_settings", dict(CONTEXT_SETTINGS))
        super().__init__(name, **settings)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line: arguments that may be left out have brackets."""
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if isinstance(parameter, CommandArgument):
                name = parameter.make_metavar(ctx)
                # A metavar of several words, `URL [TRACE]`, is the usage itself.
                repeated = "..." if parameter.nargs == -1 and " " not in name else ""
                pieces.append((name if parameter.required else f"[{name}]") + repeated)
        return pieces

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options of each group."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, CommandArgument):
                record = (parameter.make_metavar(ctx), parameter.description)
                groups["Arguments"].append(record)
            elif (record := parameter.get_help_record(ctx)) is not None:
                group = parameter.group if isinstance(parameter, CommandOption) else "Options"
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def build_command(
    name: str,
    source: type[Options] | Callable[..., None],
    run: Callable[[Options], None] | None = None,
    *,
    help: str | None = None,
    short_help: str | None = None,
    kind: type[Command] = Command,
    **settings: Any,  # noqa: ANN401 - click's
) -> Command:
    """Build a command.

    source: a dataclass whose fields are the options, or a function whose parameters are; each has
        an annotation with an `Option` or an `Argument`.
    run: the command itself, called with an instance of the dataclass; not for a function.
    help: its help; by default the docstring of the source.
    short_help: its line in the list of commands; by default the help's first sentence.
    kind: the class of the command.
    settings: further arguments of `click.Command`.
    """

    def call(**values: Any) -> None:  # noqa: ANN401 - as parsed
        with report_errors():
            if run is None:
                cast("Callable[..., None]", source)(**values)
            else:
                run(cast("type[Options]", source)(**values))

    return kind(
        name,
        params=list_parameters(source),
        callback=call,
        help=inspect.cleandoc(help or source.__doc__ or ""),
        short_help=short_help,
        **settings,
    )


def list_parameters(source: Callable[..., object]) -> list[click.Parameter]:
    """List the parameters of a dataclass's constructor, or of a function."""
    hints = get_type_hints(source, include_extras=True)
    parameters: list[click.Parameter] = []
    for parameter in inspect.signature(source).parameters.values():
        default: object = parameter.default
        if type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
            # A dataclass's mark of a field with a default factory, which are lists here.
            default = ()
        if default is inspect.Parameter.empty:
            default = REQUIRED
        parameters.append(build_parameter(parameter.name, hints[parameter.name], default))
    return parameters


REQUIRED = object()
"""The default of a parameter that has none."""


def build_parameter(name: str, annotation: Any, default: object = REQUIRED) -> click.Parameter:  # noqa: ANN401 - a type
    """Build an option or an argument from an annotation `Annotated[type, Option(...)]`.

    The type is `str`, `int`, `float`, `bool`, or a list of one of them, or None beside it.
    """
    if get_origin(annotation) is not Annotated:
        raise TypeError(f"{name}: the annotation has no Option or Argument")
    kind, metadata = get_args(annotation)[:2]
    if NoneType in get_args(kind):
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    is_list = get_origin(kind) is list
    if is_list:
        (kind,) = get_args(kind)
    is_required = default is REQUIRED
    value = None if is_required else default
    if isinstance(metadata, Argument):
        return CommandArgument(
            name,
            description=metadata.help,
            type=kind,
            metavar=metadata.metavar,
            required=is_required,
            default=None if is_list else value,
            nargs=-1 if is_list else 1,
            callback=_make_list if is_list else None,
        )
    assert isinstance(metadata, Option)
    return CommandOption(
        [name, *(metadata.flags or _derive_flags(name, kind))],
        group=metadata.group,
        type=_choose_type(kind, metadata),
        # A switch is recognized by its flags, and has no value.
        is_flag=True if kind is bool else None,
        multiple=is_list,
        callback=_make_list if is_list else None,
        default=None if is_list else value,
        required=is_required,
        help=metadata.help or None,
        hidden=metadata.is_hidden,
        metavar=metadata.metavar,
        envvar=metadata.environment_variable,
        show_envvar=metadata.environment_variable is not None,
        show_default=metadata.shows_default and value not in (None, False, "", ()),
    )


def _derive_flags(name: str, kind: type) -> Iterable[str]:
    flag = name.replace("_", "-")
    return [f"--{flag}/--no-{flag}"] if kind is bool else [f"--{flag}"]


def _choose_type(kind: type, metadata: Option) -> click.ParamType | type | None:
    if kind is bool:
        return None
    if metadata.minimum is not None or metadata.maximum is not None:
        ranges = {int: click.IntRange, float: click.FloatRange}
        return ranges[kind](metadata.minimum, metadata.maximum)
    return kind


def _make_list(
    _context: click.Context, _parameter: click.Parameter, value: Iterable[object] | None
) -> list[object]:
    """Return the values of a repeatable option as a list; click makes tuples."""
    return list(value or ())
