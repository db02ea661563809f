"""The command line: options made of the settings, and what to run with them.

Knows no server: `launch` is imported when it is needed, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from . import __version__
from .commands.calibrate import calibrate
from .commands.profiles import profiles
from .commands.record import record, replay
from .commands.simulate import simulate
from .settings import FIELDS, FORMER_NAMES, Field, Settings, SettingsError, flag_of, load

Run = Callable[[Settings, Callable[[str], None]], int]
"""Serves until it is told to stop; gets a way to tell people what happens, and gives the exit code."""

_EPILOG = (
    "Every option is also a variable of the environment (--max-model-len is DRAGOMAN_MAX_MODEL_LEN; lists are "
    "separated by commas) and a key of the file that --config names. The command line counts first, then the "
    "environment, then the file."
)


def create_app(run: Run, environment: Mapping[str, str]) -> typer.Typer:
    """The commands. run: what `serve` does with its settings."""
    app = typer.Typer(
        help="One process that speaks every LLM API dialect, in front of any engine.",
        add_completion=False,
        no_args_is_help=True,
        # A traceback that shows the values of variables would show keys.
        pretty_exceptions_enable=False,
        # As with vLLM, --max_model_len is --max-model-len.
        context_settings={"token_normalize_func": _with_dashes, "help_option_names": ["-h", "--help"]},
    )
    app.callback()(_about)
    app.command("serve", epilog=_EPILOG)(_serve(run, environment))
    app.command("simulate")(simulate)
    app.command("calibrate")(calibrate)
    app.command("record")(record)
    app.command("replay")(replay)
    app.command("profiles")(profiles)
    app.command("version")(_version)
    return app


def _with_dashes(name: str) -> str:
    return name.replace("_", "-")


def _version() -> None:
    """Show the version."""
    typer.echo(__version__)


def _show_version(wanted: bool) -> None:
    if wanted:
        _version()
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What comes before the name of a command."""


def _serve(run: Run, environment: Mapping[str, str]) -> Callable[..., None]:
    def serve(**options: object) -> None:
        """Serve a model."""
        try:
            code = run(load(_said(options), environment), typer.echo)
        except SettingsError as error:
            typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
            code = 2
        raise typer.Exit(code)

    parameters = [each for field in FIELDS for each in _parameters(field)]
    parameters += [
        _parameter(name, str | None, typer.Option(None, flag_of(name), hidden=True)) for name in FORMER_NAMES
    ]
    # What typer looks at to find the options.
    vars(serve)["__signature__"] = inspect.Signature(parameters)
    return serve


def _said(options: Mapping[str, object]) -> dict[str, object]:
    """Only what was said. An option that can be repeated is an empty list where it was not."""
    said = {name: value for name, value in options.items() if value not in (None, [])}
    for field in FIELDS:
        if said.pop(_opposite(field), None) is not None:
            if field.name in said:
                raise SettingsError(f"{field.flag} and {field.off_flag}: only one of them can be meant")
            said[field.name] = False
    return said


def _opposite(field: Field) -> str:
    return f"not_{field.name}"


def _parameters(field: Field) -> Iterator[inspect.Parameter]:
    """Values stay texts: the settings read them, so that they mean the same wherever they are said."""
    if field.name == "model":
        info: object = typer.Argument(None, metavar="MODEL", help=_help(field), show_default=False)
        yield _parameter(field.name, str | None, info)
    elif field.kind is bool:
        # Of the two flags help shows the one that changes something.
        yield _parameter(field.name, bool | None, _flag(field, field.flag, hidden=field.default))
        yield _parameter(_opposite(field), bool | None, _flag(field, field.off_flag, hidden=not field.default))
    else:
        kind = list[str] | None if field.several else str | None
        info = typer.Option(
            None,
            field.flag,
            help=_help(field),
            metavar=field.option.metavar or {int: "N", float: "SECONDS"}.get(field.kind, "TEXT"),
            show_default=False,
            rich_help_panel=field.option.group,
        )
        yield _parameter(field.name, kind, info)


def _flag(field: Field, flag: str, *, hidden: bool) -> object:
    return typer.Option(
        None,
        flag,
        help=_help(field),
        metavar=" ",
        show_default=False,
        hidden=hidden,
        rich_help_panel=field.option.group,
    )


def _parameter(name: str, kind: Any, info: object) -> inspect.Parameter:  # noqa: ANN401 - a type is no value of a type
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _help(field: Field) -> str:
    text = field.option.help
    if field.choices:
        text += f" One of {', '.join(field.choices)}."
    if field.kind is not bool and isinstance(field.default, str | int | float):
        text += f" (default: {field.default})"
    return text


def _launch(settings: Settings, tell: Callable[[str], None]) -> int:
    # BLAS reads these when numpy is first imported. Its threads spin while they wait for each other, on the
    # core that the event loop needs, and a small model's products are too small to share.
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, "1")
    # What is imported and built is kept: looking for garbage in it is a sixth of the time that a start takes.
    gc.disable()
    try:
        from .launch import run  # noqa: PLC0415 - it brings the whole server

        return run(settings, tell)
    finally:
        gc.enable()


def main() -> None:
    """The `dragoman` command."""
    create_app(_launch, os.environ)(prog_name="dragoman")
