"""The coding agents that `dragoman launch` can run: their arguments and environment
variables.

The arguments and variables are those that the agent's vendor documents; no files are
changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
