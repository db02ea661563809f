"""The command line: all commands, and the options of `serve`, which are generated from
the settings.

The server is imported on demand, to keep `--help` fast.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import OptionInfo

from dragoman_check.commands.bench import bench
from dragoman_check.commands.check import check
from dragoman_sim.commands.calibrate import calibrate
from dragoman_sim.commands.list_profiles import profiles
from dragoman_sim.commands.plan import plan
from dragoman_sim.commands.predict_profile import profile
from dragoman_sim.commands.simulate import simulate

from . import __version__
from .commands.chat import chat
from .commands.deploy import deploy
from .commands.hub_cache import list_models, pull, remove
from .commands.keys import build_keys_app
from .commands.launch import launch
from .commands.options import find_vllm_flag, print_error
from .commands.record import record, replay
from .commands.run import run as run_prompt
from .commands.serve import run_server
from .settings import (
    FIELDS,
    FORMER_NAMES,
    SettingField,
    Settings,
    SettingsError,
    format_flag,
    load_settings,
)

RunServer = Callable[[Settings, Callable[[str], None], Callable[[], Settings]], int]
"""Serves until it is stopped, and returns the exit code.

Arguments: the settings, a function that prints a line, and one that reads the settings
    again for a reload.
"""

_EPILOG = (
    "Examples:\n\n\b\n"
    "  dragoman serve Qwen/Qwen3-0.6B --max-model-len 8K\n"
    "  dragoman serve sim --profile h100-llama-3.1-8b --port 0\n\n"
    "Every option can also be set by an environment variable (DRAGOMAN_MAX_MODEL_LEN=8K for "
    "--max-model-len 8K, "
    "DRAGOMAN_NO_UI=1 for --no-ui; lists are comma-separated) and in the file given by --config. "
    "The command line "
    "takes precedence over the environment, the environment over the file."
)


class Command(TyperCommand):
    """A command whose help lists the options by group.

    Typer's own tables truncate long option names on narrow terminals.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's, or typer's copies of them
        """Return the parts of the usage line: arguments that may be left out have
        brackets, required ones none.
        """
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperArgument):
                name = parameter.metavar or str(parameter.name).upper()
                # A metavar of several words, `URL [TRACE]`, is the usage itself.
                repeated = "..." if parameter.nargs == -1 and " " not in name else ""
                pieces.append((name if parameter.required else f"[{name}]") + repeated)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write the arguments, then the options of each group."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or group, []).append(
                    record
                )
        for group, records in groups.items():
            if not records:
                continue
            with formatter.section(group):
                formatter.write_dl(records)


class SimulatorCommand(Command):
    """A command with vLLM's flags; its error for an unsupported one gives the reason."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as above
        """Parse the arguments; exit with an explanation if one is a vLLM flag that the
        command does not support.
        """
        own_flags = frozenset(
            flag for option in self.params for flag in (*option.opts, *option.secondary_opts)
        )
        is_simulator = self.name != "serve" or any(
            argument.partition(":")[0] == "sim" for argument in args
        )
        flag_and_reason = find_vllm_flag(args, own_flags) if is_simulator else None
        if flag_and_reason is not None:
            flag, reason = flag_and_reason
            ctx.fail(f"{flag} of vLLM is not an option of `dragoman {self.name}`: {reason}.")
        return super().parse_args(ctx, args)


class LaunchCommand(Command):
    """A command that passes the arguments after `--` to a program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as above
        """Turn the arguments after `--` into values of a hidden option; they would be
        parsed as MODEL otherwise.
        """
        index = args.index("--") if "--" in args else len(args)
        passed = [f"--agent-argument={argument}" for argument in args[index + 1 :]]
        return super().parse_args(ctx, [*args[:index], *passed])


def create_app(
    run: RunServer, environment: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> typer.Typer:
    """Build the command line application.

    run: implements `serve`.
    environment: environment variables.
    overrides: settings of `serve` that replace the user's, as of `load_settings`.
    """
    app = typer.Typer(
        help="Inference API server: OpenAI, Anthropic and other LLM APIs in front of any engine.",
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
        # A traceback with the values of variables would show API keys.
        pretty_exceptions_enable=False,
        # As with vLLM, --max_model_len is --max-model-len.
        context_settings={
            "token_normalize_func": _normalize_option,
            "help_option_names": ["-h", "--help"],
        },
    )
    app.callback()(_show_about)
    app.command("serve", cls=SimulatorCommand, epilog=_EPILOG)(
        _build_serve_command(run, environment, overrides)
    )
    app.command("deploy", cls=Command, short_help="Serve a model on a Ray cluster, with replicas.")(
        deploy
    )
    app.command("pull", cls=Command, short_help="Download a model, or its newest version.")(pull)
    app.command("models", cls=Command)(list_models)
    app.command("rm", cls=Command)(remove)
    app.command("run", cls=Command)(run_prompt)
    app.command("chat", cls=Command)(chat)
    app.command("launch", cls=LaunchCommand)(launch)
    app.command("bench", cls=Command, short_help="Measure the latencies of a server under a load.")(
        bench
    )
    app.command(
        "simulate",
        cls=SimulatorCommand,
        short_help="Simulate a workload on a fleet of vLLM servers.",
    )(simulate)
    app.command(
        "calibrate",
        cls=SimulatorCommand,
        short_help="Fit a simulator profile to measured requests.",
    )(calibrate)
    app.command("check", cls=Command, short_help="Check a server against the rules of its APIs.")(
        check
    )
    app.command("record", cls=Command, short_help="Record requests to a server and its responses.")(
        record
    )
    app.command("replay", cls=Command, short_help="Replay recorded responses with their timing.")(
        replay
    )
    app.command("profiles", cls=Command, short_help="List the simulator's profiles.")(profiles)
    app.command(
        "profile", cls=SimulatorCommand, short_help="Predict a simulator profile from datasheets."
    )(profile)
    app.command(
        "plan", cls=SimulatorCommand, short_help="Find the cheapest fleet that meets an objective."
    )(plan)
    app.add_typer(build_keys_app(Command), name="keys")
    app.command("version", cls=Command)(_version)
    return app


_ALIASES = {
    f"disable-{name}": f"no-enable-{name}"
    for name in ("prefix-caching", "chunked-prefill", "expert-parallel")
}
"""vLLM 0.33's names of negated flags -> ours. vLLM accepts both."""


def _normalize_option(name: str) -> str:
    """Return the option's canonical name. name: the option without its leading dashes."""
    name = name.replace("_", "-")
    return _ALIASES.get(name, name)


def _version() -> None:
    """Show the version."""
    typer.echo(__version__)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        _version()
        raise typer.Exit


def _show_about(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options before the command's name."""


def _build_serve_command(
    run: RunServer, environment: Mapping[str, str], overrides: Mapping[str, object] | None
) -> Callable[..., None]:
    """Build the `serve` command.

    Its parameters are strings, which the settings parse: a value has the same syntax on
    the command line, in the environment and in the settings file.
    """

    def serve(**options: object) -> None:
        """Serve a model over HTTP."""
        try:
            # An option that is not set is None, and a repeatable one an empty list.
            set_options = {
                name: value for name, value in options.items() if value not in (None, [])
            }
            for field in FIELDS:
                if set_options.pop(_build_off_name(field), None) is not None:
                    if field.name in set_options:
                        raise SettingsError(
                            f"{field.flag} and {field.off_flag} are mutually exclusive"
                        )
                    set_options[field.name] = False

            def read_settings() -> Settings:
                return load_settings(set_options, environment, overrides)

            code = run(read_settings(), typer.echo, read_settings)
        except SettingsError as error:
            print_error(str(error))
            code = 2
        raise typer.Exit(code)

    parameters: list[inspect.Parameter] = []
    for field in FIELDS:
        if field.name == "model":
            info: object = typer.Argument(
                None, metavar="MODEL", help=_build_help(field), show_default=False
            )
            parameters.append(_build_parameter(field.name, str | None, info))
        elif field.kind is bool:
            # The help shows only the flag that changes the default, or both if there is
            # no fixed default.
            flag = _build_flag(field, field.flag, hidden=field.default is True)
            off_flag = _build_flag(field, field.off_flag, hidden=field.default is False)
            if field.default is None:
                off_flag.help = f"Opposite of {field.flag}."
            parameters.append(_build_parameter(field.name, bool | None, flag))
            parameters.append(_build_parameter(_build_off_name(field), bool | None, off_flag))
        else:
            info = typer.Option(
                None,
                field.flag,
                help=_build_help(field),
                metavar=field.option.metavar
                or {int: "N", float: "SECONDS"}.get(field.kind, "TEXT"),
                show_default=False,
                rich_help_panel=field.option.group,
            )
            kind = list[str] | None if field.is_list else str | None
            parameters.append(_build_parameter(field.name, kind, info))
    parameters += [
        _build_parameter(name, str | None, typer.Option(None, format_flag(name), hidden=True))
        for name in FORMER_NAMES
    ]
    # Typer reads the options from the signature.
    vars(serve)["__signature__"] = inspect.Signature(parameters)
    return serve


def _build_off_name(field: SettingField) -> str:
    return f"not_{field.name}"


def _build_flag(field: SettingField, flag: str, *, hidden: bool) -> OptionInfo:
    return typer.Option(
        None,
        flag,
        help=_build_help(field),
        show_default=False,
        hidden=hidden,
        rich_help_panel=field.option.group,
    )


def _build_parameter(name: str, kind: Any, info: object) -> inspect.Parameter:  # noqa: ANN401 - a type is no value of a type
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _build_help(field: SettingField) -> str:
    text = field.option.help
    if field.choices:
        text += f" One of {', '.join(field.choices)}."
    if field.kind is not bool and isinstance(field.default, str | int | float):
        text += f" (default: {field.default})"
    return text


def main(overrides: Mapping[str, object] | None = None) -> None:
    """Run the `dragoman` command. overrides: as of `create_app`."""
    create_app(run_server, os.environ, overrides)(prog_name="dragoman")
