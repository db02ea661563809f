"""`dragoman launch`: runs a coding agent on a model, configured by arguments and
environment variables of its process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Annotated
from urllib.parse import urlsplit

import click

from dragoman_cli import Argument, Command, Option, build_command, print_error, print_warning
from dragoman_cli.api_key import build_api_key_option, find_api_key

from .agent_setups import AGENTS, AgentSetup, ServerTarget, build_generic_setup, find_advice
from .api_client import LOOPBACK, ApiClient, ApiError, is_loopback
from .errors import COMMAND_ERRORS
from .server_connection import DEFAULT_URL, choose_model, print_status, serve_model

HELP = f"""Run an agent ({", ".join(AGENTS)}) on a model.

\b
    dragoman launch codex Qwen/Qwen3-8B -- exec "Fix the tests."

Uses the server at --url, or at {DEFAULT_URL} if it serves MODEL; otherwise one is
started, and stopped when the agent ends. The agent gets environment variables and
arguments for this process; none of the user's files are changed. Arguments after `--` are the
agent's. The exit code is the agent's.
"""
COMMAND_NOT_FOUND = 127
"""A shell's exit code for a missing program."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    agent: Annotated[
        str,
        Argument(metavar="AGENT", help=f"One of {', '.join(AGENTS)}."),
    ] = ""
    model: Annotated[
        str | None,
        Argument(
            metavar="MODEL",
            help="As for `dragoman serve`; by default what the running server serves, or `tiny`.",
        ),
    ] = None
    url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help=f"The server; by default {DEFAULT_URL}.",
        ),
    ] = None
    api_key: Annotated[str | None, build_api_key_option()] = None
    print: Annotated[
        bool,
        Option(
            "--print", help="Print the command and the variables that it gets, and run nothing."
        ),
    ] = False
    env: Annotated[
        bool,
        Option(
            "--env",
            help="Print the variables that other programs read, for a shell; needs no AGENT.",
        ),
    ] = False
    agent_argument: Annotated[tuple[str, ...], Option(is_hidden=True)] = ()


def _launch(options: LaunchOptions) -> None:
    agent = AGENTS.get(options.agent)
    if options.env and not options.agent:
        _print_variables(build_generic_setup(_describe_target(options)).variables)
        return
    if agent is None:
        raise ValueError(
            f"AGENT: {options.agent!r} is not one of {', '.join(AGENTS)}; --env suits other "
            f"programs"
        )
    if options.print or options.env:
        setup = _provide_home(agent.build_setup(_describe_target(options)))
        _print_variables(setup.variables)
        if not options.env:
            click.echo(shlex.join([agent.program, *setup.arguments, *options.agent_argument]))
        return
    # Fail before a server is started, which may download and load a model.
    program = shutil.which(agent.program)
    if program is None:
        print_error(f"{agent.title} is not installed: {agent.install}")
        raise click.exceptions.Exit(COMMAND_NOT_FOUND)
    with _provide_server(options) as target:
        setup = _provide_home(agent.build_setup(target))
        raise click.exceptions.Exit(
            _run_agent([program, *setup.arguments, *options.agent_argument], setup, target)
        )


def _provide_home(setup: AgentSetup) -> AgentSetup:
    """Create the agent's home, if it has one of its own, and name it in the variables."""
    from ..settings import state_directory  # noqa: PLC0415 - few agents need it

    home = setup.home
    if home is None:
        return setup
    directory = state_directory(os.environ) / home.name
    for path, text in {**home.files, **home.generated}.items():
        file = directory / path
        # The user may have added settings of their own.
        if path in home.generated or not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            # Some agents take the API key from a file.
            file.touch(mode=0o600)
            file.write_text(text)
    return replace(setup, variables={**setup.variables, home.variable: str(directory)})


def _print_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        click.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")


def _describe_target(options: LaunchOptions) -> ServerTarget:
    """Describe the target without starting a server. A running server supplies the
    model's details.

    Raises ValueError if the name of the model can be determined only by a server that
    does not run.
    """
    target = _find_running(options)
    if target is not None:
        return target
    from ..launch.model_plan import plan_model  # noqa: PLC0415 - imports the whole server

    model = options.model
    if model is None:
        name = "tiny"
    else:
        plan = plan_model(model)
        if "://" in plan.argument and plan.reference is None:
            raise ValueError(
                f"MODEL: the model names of {model} are unknown; pass the address as --url {model}"
            )
        own_name = plan.own_name if plan.argument else None
        name = own_name or model if plan.reference is None else plan.reference.name
    return ServerTarget(
        _normalize(options.url or DEFAULT_URL), name, api_key=find_api_key(options.api_key)
    )


def _normalize(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


@contextmanager
def _provide_server(options: LaunchOptions) -> Generator[ServerTarget]:
    """Provide a server for the model while the block runs: a running one, or a new one."""
    target = _find_running(options)
    if target is not None:
        yield target
        return
    port = 0
    if options.url is not None:
        parts = urlsplit(options.url)
        if not is_loopback(options.url) or parts.scheme != "http":
            raise ValueError(
                f"--url: no server answers at {options.url}, and a server can be started only on "
                f"this machine"
            )
        port = parts.port or 80
    api_key = find_api_key(options.api_key)
    with serve_model(
        options.model, api_key, port=port, store="memory", shows_startup=True
    ) as server:
        target = _read_target(server.url, None, api_key)
        print_status(f"Serving {target.model} on {target.url} until the agent ends.")
        yield target
        # The agent only sees a connection error; the last log lines of the server
        # explain it.
        failure = server.read_failure() if server.has_ended else None
        if failure is not None:
            print_error(f"the server ended before the agent:\n{failure}")


def _find_running(options: LaunchOptions) -> ServerTarget | None:
    """Find the running server to use; None if there is none. Raises ValueError if the
    server of --url is unsuitable.
    """
    url = _normalize(options.url or DEFAULT_URL)
    api_key = find_api_key(options.api_key)
    try:
        if options.url is None:
            with ApiClient(url, api_key) as client:
                # Only Dragoman lists models with this field: another program may listen
                # on the default port.
                if any(model.dragoman is None for model in client.list_models()):
                    return None
        return _read_target(url, options.model, api_key)
    except ApiError as error:
        # Only a server given by --url must work; another program may listen on the
        # default address.
        if options.url is None or error.is_unreachable:
            return None
        raise ValueError(f"--url: {error}") from error


def _read_target(url: str, name: str | None, api_key: str | None) -> ServerTarget:
    """Read the model's details from the server, and warn if it does not suit an agent.
    Raises ApiError.
    """
    with ApiClient(url, api_key) as client:
        model = choose_model(client, name)
    target = ServerTarget(url, model.id, model.max_model_len, api_key)
    for sentence in find_advice(
        target, None if model.dragoman is None else model.dragoman.capabilities
    ):
        print_warning(sentence)
    return target


def _run_agent(command: Sequence[str], setup: AgentSetup, target: ServerTarget) -> int:
    """Run the agent in the foreground. Return its exit code; 128 plus the signal's
    number if a signal ended it.
    """
    environment = dict(os.environ)
    if is_loopback(target.url):
        # Exempt this machine from the user's proxy, in addition to the user's
        # exemptions. Programs read either spelling of the variable, so both are set.
        exempt = (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), *LOOPBACK)
        environment["NO_PROXY"] = environment["no_proxy"] = ",".join(
            host for host in exempt if host
        )
    for name, value in setup.variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    with subprocess.Popen(command, env=environment) as process:

        def forward(number: int, _frame: FrameType | None) -> None:
            process.send_signal(number)

        def ignore(_number: int, _frame: FrameType | None) -> None:
            """Ignore the signal. Unlike SIG_IGN, the agent does not inherit a handler."""

        # Forward signals to the agent instead of ending: this process must still stop
        # the server. A terminal sends SIGINT and SIGQUIT to the agent itself; they are
        # not forwarded, since two Ctrl-C end most agents.
        from_terminal = ignore if sys.stdin.isatty() else forward
        handlers = {signal.SIGTERM: forward, signal.SIGINT: from_terminal}
        if sys.platform != "win32":
            handlers |= {signal.SIGHUP: forward, signal.SIGQUIT: from_terminal}
        for number, handler in handlers.items():
            signal.signal(number, handler)
        code = process.wait()
    return 128 - code if code < 0 else code


class LaunchCommand(Command):
    """A command that passes the arguments after `--` to a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn the arguments after `--` into values of a hidden option; they would be
        parsed as MODEL otherwise.
        """
        index = args.index("--") if "--" in args else len(args)
        passed = [f"--agent-argument={argument}" for argument in args[index + 1 :]]
        return super().parse_args(ctx, [*args[:index], *passed])


COMMAND = build_command(
    "launch", LaunchOptions, _launch, help=HELP, errors=COMMAND_ERRORS, kind=LaunchCommand
)
