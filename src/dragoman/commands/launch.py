"""`dragoman launch`: an agent on a model, with the settings that it needs for this process alone."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated
from urllib.parse import urlsplit

import typer

from .agents import AGENTS, AgentSetup, ServerTarget, build_generic_setup, find_advice
from .connection import DEFAULT_URL, choose_model, print_status, resolve_api_key, serve_model
from .options import build_command, print_error, print_warning

HELP = f"""Run an agent ({", ".join(AGENTS)}) on a model.

\b
    dragoman launch codex Qwen/Qwen3-8B -- exec "Fix the tests."

Uses the server at --url, or at {DEFAULT_URL} if it serves MODEL; otherwise one is started, and stopped when the agent
ends. The agent gets environment variables and arguments for this process; none of its files are changed. Arguments
after `--` are the agent's. The exit code is the agent's.
"""
COMMAND_NOT_FOUND = 127


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    agent: Annotated[str, typer.Argument(metavar="AGENT", help=f"One of {', '.join(AGENTS)}.", show_default=False)] = ""
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="As for `dragoman serve`; by default what the running server serves, or `tiny`."
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help=f"The server; by default {DEFAULT_URL}.", show_default=False),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` does not show.",
            show_default=False,
        ),
    ] = None
    print: Annotated[
        bool, typer.Option("--print", help="Print the command and the variables that it gets, and run nothing.")
    ] = False
    env: Annotated[
        bool,
        typer.Option("--env", help="Print the variables that other programs read, for a shell; needs no AGENT."),
    ] = False
    agent_argument: Annotated[list[str] | None, typer.Option(hidden=True)] = None


def _launch(options: LaunchOptions) -> None:
    agent = AGENTS.get(options.agent)
    if options.env and not options.agent:
        _print_variables(build_generic_setup(_describe_target(options)).variables)
        return
    if agent is None:
        raise ValueError(f"AGENT: {options.agent!r} is not one of {', '.join(AGENTS)}; --env suits other programs")
    if options.print or options.env:
        setup = agent.build_setup(_describe_target(options))
        _print_variables(setup.variables)
        if not options.env:
            typer.echo(shlex.join([agent.program, *setup.arguments, *(options.agent_argument or ())]))
        return
    program = shutil.which(agent.program)
    if program is None:
        print_error(f"{agent.title} is not installed: {agent.install}")
        raise typer.Exit(COMMAND_NOT_FOUND)
    with _provide_server(options) as target:
        setup = agent.build_setup(target)
        raise typer.Exit(_run_agent([program, *setup.arguments, *(options.agent_argument or ())], setup, target))


def _print_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        typer.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")


def _describe_target(options: LaunchOptions) -> ServerTarget:
    """The target without starting a server: with what a running one tells of the model."""
    target = _find_running(options)
    if target is not None:
        return target
    name = "tiny" if options.model is None else _find_served_name(options.model)
    return ServerTarget(_normalize(options.url or DEFAULT_URL), name, api_key=resolve_api_key(options.api_key))


def _find_served_name(model: str) -> str:
    """The name that a server of MODEL will give it. Raises ValueError where only that server knows."""
    from ..launch.hub_models import find_reference  # noqa: PLC0415 - it brings the whole server
    from ..launch.local_models import find_model_name  # noqa: PLC0415 - as above
    from ..launch.models import parse_model  # noqa: PLC0415 - as above

    found = find_reference(model)
    if found is not None:
        return found[0].name
    kind, path = parse_model(model)
    if kind == "upstream":
        raise ValueError(f"MODEL: the names of the models of {model} are not known; give its address as --url {model}")
    return find_model_name(kind, path) or model


def _normalize(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


@contextmanager
def _provide_server(options: LaunchOptions) -> Generator[ServerTarget]:
    """A server that serves the model while the block runs."""
    target = _find_running(options)
    if target is not None:
        yield target
        return
    port = 0
    if options.url is not None:
        from .api_client import is_loopback  # noqa: PLC0415 - `--help` does not wait for it

        parts = urlsplit(options.url)
        if not is_loopback(options.url) or parts.scheme != "http":
            raise ValueError(f"--url: no server answers at {options.url}, and one can be started on this machine only")
        port = parts.port or 80
    api_key = resolve_api_key(options.api_key)
    with serve_model(options.model, api_key, port=port, store="memory", shows_startup=True) as server:
        target = _read_target(server.url, None, api_key)
        print_status(f"Serving {target.model} on {target.url} until the agent ends.")
        yield target
        # The agent only sees a connection error; the server's own last words explain it.
        failure = server.read_failure() if server.has_ended else None
        if failure is not None:
            print_error(f"the server ended before the agent:\n{failure}")


def _find_running(options: LaunchOptions) -> ServerTarget | None:
    """The running server to use; None if there is none. Raises ValueError where --url has another model."""
    from .api_client import ApiClient, ApiError  # noqa: PLC0415 - `--help` does not wait for it

    url, api_key = _normalize(options.url or DEFAULT_URL), resolve_api_key(options.api_key)
    try:
        if options.url is None:
            with ApiClient(url, api_key) as client:
                # Some other program may have this port.
                if any(model.dragoman is None for model in client.list_models()):
                    return None
        return _read_target(url, options.model, api_key)
    except ApiError as error:
        if options.url is None or error.is_unreachable:
            return None
        raise ValueError(f"--url: {error}") from error


def _read_target(url: str, name: str | None, api_key: str | None) -> ServerTarget:
    """Ask the server for the model, and print advice where it does not suit an agent. Raises ApiError."""
    from .api_client import ApiClient  # noqa: PLC0415 - as above

    with ApiClient(url, api_key) as client:
        model = choose_model(client, name)
    target = ServerTarget(url, model.id, model.max_model_len, api_key)
    for sentence in find_advice(target, None if model.dragoman is None else model.dragoman.capabilities):
        print_warning(sentence)
    return target


def _run_agent(command: Sequence[str], setup: AgentSetup, target: ServerTarget) -> int:
    """Run the agent in the foreground, and return its exit code, as a shell would."""
    environment = {**os.environ, **_exempt_from_proxy(target.url)}
    for name, value in setup.variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    with subprocess.Popen(command, env=environment) as process:
        _forward_signals(process)
        code = process.wait()
    return 128 - code if code < 0 else code


def _exempt_from_proxy(url: str) -> dict[str, str]:
    """Variables with which the agent reaches a server on this machine without the user's proxy."""
    from .api_client import LOOPBACK, is_loopback  # noqa: PLC0415 - as above

    if not is_loopback(url):
        return {}
    names = (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), *LOOPBACK)
    value = ",".join(name for name in names if name)
    return {"NO_PROXY": value, "no_proxy": value}


def _forward_signals(process: subprocess.Popen[bytes]) -> None:
    """Pass signals on to the agent, until this process ends: Ctrl-C must not keep it from stopping the server.

    A terminal sends SIGINT and SIGQUIT to the agent too, so that they are not sent to it twice: Ctrl-C twice ends most
    agents.
    """

    def forward(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    def ignore(_number: int, _frame: FrameType | None) -> None:
        """A handler, unlike SIG_IGN, is not inherited by the agent."""

    from_terminal = ignore if sys.stdin.isatty() else forward
    handlers = {signal.SIGTERM: forward, signal.SIGINT: from_terminal}
    if sys.platform != "win32":
        handlers |= {signal.SIGHUP: forward, signal.SIGQUIT: from_terminal}
    for number, handler in handlers.items():
        signal.signal(number, handler)


launch = build_command(LaunchOptions, _launch, about=HELP)
