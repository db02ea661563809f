"""Builds `click` commands from the signatures of dataclasses and functions.

The help of a command lists its options by group, and cuts no name on narrow terminals.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import click

from .options import Argument, Option
from .output import report_errors

Options = TypeVar("Options")
HELP_OPTIONS: Mapping[str, Any] = {"help_option_names": ["-h", "--help"]}
INTERRUPTED = 130
"""A shell's exit code after SIGINT: 128 plus the signal's number."""

ExplainOption = Callable[[str, Sequence[str], frozenset[str]], str | None]
"""Explains an unknown option: returns the error to report instead of click's, or None.

Arguments: the command's name, the arguments of the command line, and the command's own
    flags.
"""


class CommandArgument(click.Argument):
    """A positional argument with a description."""

    def __init__(self, name: str, *, description: str, **settings: Any) -> None:  # noqa: ANN401 - click's
        super().__init__([name], **settings)
        # click has one since 8.5 only.
        self.description = description

    def make_metavar(self, ctx: click.Context) -> str:  # noqa: ARG002 - the signature is click's
        return self.metavar or str(self.name).upper()


class CommandOption(click.Option):
    """An option with the heading under which the help lists it."""

    def __init__(self, names: Sequence[str], *, group: str, **settings: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(names, **settings)
        self.group = group


class Command(click.Command):
    """A command whose help has the options by group, and which takes options in vLLM's
    spellings.
    """

    def __init__(
        self,
        name: str | None,
        *,
        explain_option: ExplainOption | None = None,
        **settings: Any,  # noqa: ANN401 - click's
    ) -> None:
        """Create a command. explain_option: explains unknown options."""
        super().__init__(
            name,
            context_settings={**HELP_OPTIONS, "token_normalize_func": self._normalize_option},
            **settings,
        )
        self._explain_option = explain_option
        self.flags = frozenset(
            flag for option in self.params for flag in (*option.opts, *option.secondary_opts)
        )
        """The options' names, with their dashes."""

    def _normalize_option(self, name: str) -> str:
        """Return the option's own name, without its leading dashes.

        As with vLLM, --max_model_len is --max-model-len, and --disable-X is what
        --no-enable-X is.
        """
        name = name.replace("_", "-")
        if name.startswith("disable-"):
            former = f"no-enable-{name.removeprefix('disable-')}"
            return former if f"--{former}" in self.flags else name
        return name

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        arguments = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            explanation = None
            if self._explain_option is not None:
                explanation = self._explain_option(str(self.name), arguments, self.flags)
            if explanation is None:
                raise
            ctx.fail(explanation)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line: arguments that may be left out have
        brackets.
        """
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
    errors: Iterable[type[Exception]] = (),
    explain_option: ExplainOption | None = None,
    kind: type[Command] = Command,
) -> Command:
    """Build a command.

    source: a dataclass whose fields are the options, or a function whose parameters
        are; each has an annotation with an `Option` or an `Argument`.
    run: the command itself, called with an instance of the dataclass; not for a
        function.
    help: its help; by default the function's docstring.
    short_help: its line in the list of commands; by default the help's first sentence.
    errors: types of errors to report without a traceback, besides ValueError and
        OSError.
    explain_option: explains unknown options.
    kind: the class of the command.
    """

    def call(**values: Any) -> None:  # noqa: ANN401 - as parsed
        with report_errors(*errors):
            if run is None:
                cast("Callable[..., None]", source)(**values)
            else:
                run(cast("type[Options]", source)(**values))

    return kind(
        name,
        params=list_parameters(source),
        callback=call,
        help=inspect.cleandoc(help or source.__doc__ or ""),
        short_help=short_help or _find_first_sentence(help or source.__doc__ or ""),
        explain_option=explain_option,
    )


class CommandGroup(click.Group):
    """A command with sub-commands, which the help lists in their order."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(self.commands)


def build_group(name: str, help: str, commands: Iterable[Command]) -> click.Group:
    """Build a command with sub-commands; without one it shows its help."""
    return CommandGroup(
        name,
        help=help,
        commands=list(commands),
        no_args_is_help=True,
        context_settings=dict(HELP_OPTIONS),
    )


def _find_first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return f"{sentence}{dot.strip()}"


def list_parameters(source: Callable[..., object]) -> list[click.Parameter]:
    """List the parameters of a dataclass's constructor, or of a function."""
    hints = get_type_hints(source, include_extras=True)
    return [
        build_parameter(parameter.name, hints[parameter.name], parameter.default)
        for parameter in inspect.signature(source).parameters.values()
    ]


def build_parameter(
    name: str,
    annotation: Any,  # noqa: ANN401 - a type
    default: object = inspect.Parameter.empty,
) -> click.Parameter:
    """Build an option or an argument from an annotation `Annotated[type, Option(...)]`.

    The type is `str`, `int`, `float`, `bool`, or None beside one of them; a tuple of
    one of them, `tuple[str, ...]`, is for a parameter that can be repeated.
    """
    if get_origin(annotation) is not Annotated:
        raise TypeError(f"{name}: the annotation has no Option or Argument")
    kind, metadata = get_args(annotation)[:2]
    members = get_args(kind)
    is_repeatable = get_origin(kind) is tuple
    if is_repeatable:
        kind = members[0]
    elif NoneType in members:
        (kind,) = (member for member in members if member is not NoneType)
    is_required = default is inspect.Parameter.empty
    # Of a parameter that can be repeated, click itself makes the default: no values.
    value = None if is_required or is_repeatable else default
    # click takes a default of None for one, even where a value is required.
    defaults = {} if is_required or is_repeatable else {"default": default}
    if isinstance(metadata, Argument):
        return CommandArgument(
            name,
            description=metadata.help,
            type=kind,
            metavar=metadata.metavar,
            required=is_required,
            nargs=-1 if is_repeatable else 1,
            **defaults,
        )
    assert isinstance(metadata, Option)
    return CommandOption(
        [name, *(metadata.flags or _derive_flags(name, kind))],
        group=metadata.group,
        type=_choose_type(kind, metadata),
        # A switch is recognized by its flags, and has no value.
        is_flag=True if kind is bool else None,
        multiple=is_repeatable,
        required=is_required,
        help=metadata.help or None,
        hidden=metadata.is_hidden,
        metavar=metadata.metavar,
        show_default=value is not None and value is not False and value != "",
        **defaults,
    )


def _derive_flags(name: str, kind: type) -> Iterable[str]:
    flag = name.replace("_", "-")
    return [f"--{flag}/--no-{flag}"] if kind is bool else [f"--{flag}"]


def _choose_type(kind: type, metadata: Option) -> Any:  # noqa: ANN401 - click's
    if kind is bool:
        return None
    if metadata.minimum is not None or metadata.maximum is not None:
        ranges: dict[type, Any] = {int: click.IntRange, float: FloatRange}
        return ranges[kind](metadata.minimum, metadata.maximum)
    return kind


class FloatRange(click.FloatRange):
    """A range of numbers, which excludes nan; click's own contains it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - click's
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return number
