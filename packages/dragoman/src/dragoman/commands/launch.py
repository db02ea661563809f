"""`dragoman launch`: runs a coding agent on a model, configured by arguments and
environment variables of its process.

The arguments and variables are those that the agent's vendor documents; no files are
changed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated
from urllib.parse import urlsplit

import typer

from .api_client import ApiClient, ApiError, LOOPBACK, is_loopback
from .connection import DEFAULT_URL, choose_model, print_status, resolve_api_key, serve_model
from .options import build_command, print_error, print_warning

PLACEHOLDER_KEY = "none"
"""Key for agents that require one, if the server requires none."""
MIN_CONTEXT = 65536
"""Context length in tokens below which a warning is printed.

Before any file is read, the prompts of Codex and OpenCode have 6,000 to 15,000 tokens,
those of Claude Code up to 33,000.
"""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server and model that an agent uses.

    url: base URL without `/v1`.
    context: context length in tokens; None if unknown.
    api_key: None if the server requires none.
    """

    url: str
    model: str
    context: int | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The arguments and environment variables of an agent's process.

    arguments: they precede the user's arguments.
    variables: a value of None removes the variable.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that `dragoman launch` can run.

    title: name to display.
    program: name of the executable.
    install: the command that installs it.
    """

    title: str
    program: str
    install: str
    build_setup: Callable[[ServerTarget], AgentSetup]


def build_claude_setup(target: ServerTarget) -> AgentSetup:
    """Configure Claude Code. See https://code.claude.com/docs/en/env-vars and
    /llm-gateway.
    """
    # Claude Code has a model per tier, for sub-agents and for background tasks: each
    # must be the served model.
    names = ("", "_DEFAULT_OPUS", "_DEFAULT_SONNET", "_DEFAULT_HAIKU", "_SMALL_FAST")
    models = {f"ANTHROPIC{name}_MODEL": target.model for name in names}
    windows: dict[str, str] = {}
    if target.context is not None:
        # Claude Code assumes 200,000 tokens for an unknown model, and accepts no
        # compaction window below 100,000.
        windows["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
        if target.context >= 100_000:
            windows["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
    return AgentSetup(
        variables={
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": target.api_key or PLACEHOLDER_KEY,
            # These would override the base URL, or make Claude Code ask which of two
            # keys to use.
            "ANTHROPIC_API_KEY": None,
            "CLAUDE_CODE_USE_BEDROCK": None,
            "CLAUDE_CODE_USE_VERTEX": None,
            "CLAUDE_CODE_USE_FOUNDRY": None,
            **models,
            "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
            **windows,
            # Disable telemetry, error reports and updates, and the prompt's first line,
            # which differs in every request and so defeats prefix caching.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        },
    )


def build_codex_setup(target: ServerTarget) -> AgentSetup:
    """Configure Codex. See https://developers.openai.com/codex/config-reference.

    Command-line overrides in TOML leave CODEX_HOME unchanged: sessions can be resumed,
    and the user's settings apply.
    """
    # The key has its own variable: `ps` would show it on the command line, and
    # OPENAI_API_KEY keeps the user's value.
    key = "" if target.api_key is None else ', env_key = "DRAGOMAN_CLIENT_KEY"'
    # `-c` expects TOML; a JSON string is also a basic string of TOML.
    provider = (
        f'{{name = "Dragoman", base_url = {json.dumps(f"{target.url}/v1")}, wire_api = '
        f'"responses"{key}}}'
    )
    overrides = {
        "model": json.dumps(target.model),
        "model_provider": '"dragoman"',
        "model_providers.dragoman": provider,
        "check_for_update_on_startup": "false",
        "analytics.enabled": "false",
    }
    if target.context is not None:
        overrides["model_context_window"] = str(target.context)
    arguments = [part for name, value in overrides.items() for part in ("-c", f"{name}={value}")]
    return AgentSetup(
        tuple(arguments), {} if target.api_key is None else {"DRAGOMAN_CLIENT_KEY": target.api_key}
    )


def build_opencode_setup(target: ServerTarget) -> AgentSetup:
    """Configure OpenCode. See https://opencode.ai/docs/config and /providers. It merges
    the variable over the files.
    """
    model: dict[str, object] = {"name": target.model}
    if target.context is not None:
        model["limit"] = {"context": target.context, "output": min(target.context // 4, 32000)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Dragoman",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.api_key or PLACEHOLDER_KEY},
        "models": {target.model: model},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"dragoman/{target.model}",
        # Model for titles and summaries; OpenCode would use one of another configured
        # provider otherwise.
        "small_model": f"dragoman/{target.model}",
        "provider": {"dragoman": provider},
        "share": "disabled",
        "autoupdate": False,
    }
    return AgentSetup(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def build_generic_setup(target: ServerTarget) -> AgentSetup:
    """Build the variables that SDKs and most other programs read."""
    key = target.api_key or PLACEHOLDER_KEY
    return AgentSetup(
        variables={
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_BASE": f"{target.url}/v1",
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": target.model,
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": key,
            "ANTHROPIC_MODEL": target.model,
        }
    )


AGENTS = {
    "claude": Agent(
        "Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", build_claude_setup
    ),
    "codex": Agent("Codex", "codex", "npm install -g @openai/codex", build_codex_setup),
    "opencode": Agent("OpenCode", "opencode", "npm install -g opencode-ai", build_opencode_setup),
}
"""AGENT on the command line -> the agent. Every agent has a page in docs/agents."""


def find_advice(target: ServerTarget, capabilities: tuple[str, ...] | None) -> list[str]:
    """Return sentences about what makes this model unsuitable for an agent.
    capabilities: None if unknown.
    """
    advice: list[str] = []
    if target.model == "tiny":
        advice.append("`tiny` is only for testing the setup; an agent needs a larger model.")
    if target.context is not None and target.context < MIN_CONTEXT:
        advice.append(
            f"The context of {target.model} is {target.context} tokens, and an agent's prompt "
            f"alone takes up to "
            f"33,000: {MIN_CONTEXT} or more are better (--max-model-len of `dragoman serve`, or "
            "DRAGOMAN_MAX_MODEL_LEN)."
        )
    if capabilities is not None and "tools" not in capabilities:
        advice.append(
            f"{target.model} cannot make tool calls, since no tool parser fits its chat template: "
            "set --tool-call-parser of `dragoman serve`."
        )
    return advice


HELP = f"""Run an agent ({", ".join(AGENTS)}) on a model.

\b
    dragoman launch codex Qwen/Qwen3-8B -- exec "Fix the tests."

Uses the server at --url, or at {DEFAULT_URL} if it serves MODEL; otherwise one is started, and stopped when the agent
ends. The agent gets environment variables and arguments for this process; none of its files are changed. Arguments
after `--` are the agent's. The exit code is the agent's.
"""
COMMAND_NOT_FOUND = 127
"""A shell's exit code for a missing program."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    agent: Annotated[
        str,
        typer.Argument(metavar="AGENT", help=f"One of {', '.join(AGENTS)}.", show_default=False),
    ] = ""
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="As for `dragoman serve`; by default what the running server serves, or `tiny`.",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help=f"The server; by default {DEFAULT_URL}.", show_default=False
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` "
            "does not show.",
            show_default=False,
        ),
    ] = None
    print: Annotated[
        bool,
        typer.Option(
            "--print", help="Print the command and the variables that it gets, and run nothing."
        ),
    ] = False
    env: Annotated[
        bool,
        typer.Option(
            "--env",
            help="Print the variables that other programs read, for a shell; needs no AGENT.",
        ),
    ] = False
    agent_argument: Annotated[list[str] | None, typer.Option(hidden=True)] = None


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
        setup = agent.build_setup(_describe_target(options))
        _print_variables(setup.variables)
        if not options.env:
            typer.echo(
                shlex.join([agent.program, *setup.arguments, *(options.agent_argument or ())])
            )
        return
    # Fail before a server is started, which may download and load a model.
    program = shutil.which(agent.program)
    if program is None:
        print_error(f"{agent.title} is not installed: {agent.install}")
        raise typer.Exit(COMMAND_NOT_FOUND)
    with _provide_server(options) as target:
        setup = agent.build_setup(target)
        raise typer.Exit(
            _run_agent([program, *setup.arguments, *(options.agent_argument or ())], setup, target)
        )


def _print_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        typer.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")


def _describe_target(options: LaunchOptions) -> ServerTarget:
    """Describe the target without starting a server. A running server supplies the
    model's details.

    Raises ValueError if the name of the model can be determined only by a server that
    does not run.
    """
    target = _find_running(options)
    if target is not None:
        return target
    from ..launch.hub_models import find_reference  # noqa: PLC0415 - imports the whole server
    from ..launch.local_models import find_model_name  # noqa: PLC0415 - as above
    from ..launch.models import parse_model  # noqa: PLC0415 - as above

    model = options.model
    if model is None:
        name = "tiny"
    elif (reference := find_reference(model)) is not None:
        name = reference[0].name
    else:
        kind, path = parse_model(model)
        if kind == "upstream":
            raise ValueError(
                f"MODEL: the model names of {model} are unknown; pass the address as --url {model}"
            )
        name = find_model_name(kind, path) or model
    return ServerTarget(
        _normalize(options.url or DEFAULT_URL), name, api_key=resolve_api_key(options.api_key)
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
    api_key = resolve_api_key(options.api_key)
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
    api_key = resolve_api_key(options.api_key)
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


launch = build_command(LaunchOptions, _launch, about=HELP)
