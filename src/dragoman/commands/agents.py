"""What each agent needs to use a server: arguments and environment variables, as its vendor documents them.

Pure: knows no process and no network. docs/agents/ describes the same settings for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PLACEHOLDER_KEY = "none"
"""For agents that insist on a key when the server wants none."""
MIN_CONTEXT = 65536
"""Tokens. Codex's and OpenCode's prompts take 6,000 to 15,000, Claude Code's up to 33,000, before any file is read."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """What an agent is pointed at.

    url: without `/v1`. context: in tokens, if known. api_key: None where the server wants none.
    """

    url: str
    model: str
    context: int | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What one process of an agent gets.

    arguments: before those of the user. variables: None removes one.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class Agent:
    """A program that `dragoman launch` knows.

    program: its executable. install: the command that installs it.
    """

    title: str
    program: str
    install: str
    build_setup: Callable[[ServerTarget], AgentSetup]


def build_claude_setup(target: ServerTarget) -> AgentSetup:
    """https://code.claude.com/docs/en/env-vars and /llm-gateway."""
    names = ("", "_DEFAULT_OPUS", "_DEFAULT_SONNET", "_DEFAULT_HAIKU", "_SMALL_FAST")
    models = {f"ANTHROPIC{name}_MODEL": target.model for name in names}
    windows: dict[str, str] = {}
    if target.context is not None:
        # Claude Code assumes 200,000 tokens for a model that it does not know, and takes no compaction window below
        # 100,000.
        windows["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
        if target.context >= 100_000:
            windows["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
    return AgentSetup(
        variables={
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": target.api_key or PLACEHOLDER_KEY,
            # These take precedence over the base URL, or ask which of two keys to use.
            "ANTHROPIC_API_KEY": None,
            "CLAUDE_CODE_USE_BEDROCK": None,
            "CLAUDE_CODE_USE_VERTEX": None,
            "CLAUDE_CODE_USE_FOUNDRY": None,
            **models,
            "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
            **windows,
            # No telemetry, error reports or updates; no line at the head of each prompt that differs every time.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        },
    )


def build_codex_setup(target: ServerTarget) -> AgentSetup:
    """https://developers.openai.com/codex/config-reference. Overrides on the command line, in TOML, leave CODEX_HOME
    alone, so that sessions can be resumed and the user's own settings hold.
    """
    key = "" if target.api_key is None else ', env_key = "DRAGOMAN_CLIENT_KEY"'
    provider = f'{{name = "Dragoman", base_url = {json.dumps(f"{target.url}/v1")}, wire_api = "responses"{key}}}'
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
    return AgentSetup(tuple(arguments), {} if target.api_key is None else {"DRAGOMAN_CLIENT_KEY": target.api_key})


def build_opencode_setup(target: ServerTarget) -> AgentSetup:
    """https://opencode.ai/docs/config and /providers. The variable is merged over the user's files."""
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
        # For titles and summaries: otherwise it would take a model of a provider that the user has an account with.
        "small_model": f"dragoman/{target.model}",
        "provider": {"dragoman": provider},
        "share": "disabled",
        "autoupdate": False,
    }
    return AgentSetup(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def build_generic_setup(target: ServerTarget) -> AgentSetup:
    """The variables that SDKs and most other programs read."""
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
    "claude": Agent("Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", build_claude_setup),
    "codex": Agent("Codex", "codex", "npm install -g @openai/codex", build_codex_setup),
    "opencode": Agent("OpenCode", "opencode", "npm install -g opencode-ai", build_opencode_setup),
}
"""By the name on the command line. Every agent has a page in docs/agents."""


def find_advice(target: ServerTarget, capabilities: tuple[str, ...] | None) -> list[str]:
    """What makes this model unfit for an agent, in sentences. capabilities: None if they are unknown."""
    advice: list[str] = []
    if target.model == "tiny":
        advice.append("`tiny` shows that everything works, and cannot do an agent's work: name a larger model.")
    if target.context is not None and target.context < MIN_CONTEXT:
        advice.append(
            f"The context of {target.model} is {target.context} tokens, and an agent's prompt alone takes up to "
            f"33,000: {MIN_CONTEXT} or more are better (--max-model-len of `dragoman serve`, or "
            "DRAGOMAN_MAX_MODEL_LEN)."
        )
    if capabilities is not None and "tools" not in capabilities:
        advice.append(
            f"{target.model} makes no tool calls, since no tool parser fits its chat template: "
            "set --tool-call-parser of `dragoman serve`."
        )
    return advice
