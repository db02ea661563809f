"""The coding agents that `dragoman launch` can run: their arguments and environment
variables.

The arguments and variables are those that the agent's vendor documents; none of the
user's files are changed.
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
class AgentHome:
    """A directory of Dragoman that an agent uses instead of the user's home.

    variable: the environment variable with its path.
    name: its name in the directory of Dragoman's state.
    files: texts by relative path, written where they do not exist.
    generated: the same, written at each start, since they name the server.
    """

    variable: str
    name: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    generated: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The arguments and environment variables of an agent's process.

    arguments: they precede the user's arguments.
    variables: a value of None removes the variable.
    home: for an agent that takes some settings only from a file.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    home: AgentHome | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that `dragoman launch` can run.

    title: name to display.
    program: name of the executable.
    api: the API that it uses.
    install: the command that installs it.
    """

    title: str
    program: str
    api: str
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


def build_gemini_setup(target: ServerTarget) -> AgentSetup:
    """Configure Gemini CLI. See https://geminicli.com/docs/reference/configuration.

    Gemini CLI 0.61 ignores the base URL if the user's settings select a Google account,
    and without a selection it rejects the URL with `-p`. Only a file of settings can
    select the API key.
    """
    settings = {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
    }
    files = {".gemini/settings.json": json.dumps(settings, indent=2) + "\n"}
    return AgentSetup(
        variables={
            "GOOGLE_GEMINI_BASE_URL": target.url,
            "GEMINI_API_KEY": target.api_key or PLACEHOLDER_KEY,
            "GEMINI_MODEL": target.model,
            # These would select another service or key.
            "GOOGLE_API_KEY": None,
            "GOOGLE_GENAI_USE_GCA": None,
            "GOOGLE_GENAI_USE_VERTEXAI": None,
        },
        home=AgentHome("GEMINI_CLI_HOME", "gemini-cli", files),
    )


def build_copilot_setup(target: ServerTarget) -> AgentSetup:
    """Configure GitHub Copilot CLI. See `copilot help providers`."""
    limits: dict[str, str] = {}
    if target.context is not None:
        output = min(target.context // 4, 32000)
        limits["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = str(target.context - output)
        limits["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] = str(output)
    return AgentSetup(
        variables={
            "COPILOT_PROVIDER_BASE_URL": f"{target.url}/v1",
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "COPILOT_PROVIDER_API_KEY": target.api_key or PLACEHOLDER_KEY,
            "COPILOT_MODEL": target.model,
            **limits,
            # These would name another model or key.
            "COPILOT_PROVIDER_MODEL_ID": None,
            "COPILOT_PROVIDER_WIRE_MODEL": None,
            "COPILOT_PROVIDER_BEARER_TOKEN": None,
            "COPILOT_PROVIDER_API_KEY_COMMAND": None,
            # Without it the program asks GitHub for an account and sends telemetry.
            "COPILOT_OFFLINE": "true",
        }
    )


def build_qwen_setup(target: ServerTarget) -> AgentSetup:
    """Configure Qwen Code. See https://qwenlm.github.io/qwen-code-docs. The option
    precedes the user's settings, which may select an account.
    """
    return AgentSetup(
        ("--auth-type", "openai"),
        {
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_KEY": target.api_key or PLACEHOLDER_KEY,
            "OPENAI_MODEL": target.model,
        },
    )


def build_cline_setup(target: ServerTarget) -> AgentSetup:
    """Configure Cline's command. See https://docs.cline.bot. It reads the base URL of a
    provider only from a file.
    """
    settings = {
        "provider": "openai-compatible",
        "apiKey": target.api_key or PLACEHOLDER_KEY,
        "model": target.model,
        "baseUrl": f"{target.url}/v1",
    }
    # Cline replaces a file that lacks one of these fields.
    provider = {
        "settings": settings,
        "updatedAt": "2026-11-29T00:00:00.000Z",
        "tokenSource": "manual",
    }
    file = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {"openai-compatible": provider},
    }
    generated = {"settings/providers.json": json.dumps(file, indent=2) + "\n"}
    return AgentSetup(
        ("--provider", "openai-compatible"),
        # Otherwise a daemon outlives the program, and keeps the address of this server.
        {"CLINE_SESSION_BACKEND_MODE": "local"},
        AgentHome("CLINE_DATA_DIR", "cline", generated=generated),
    )


def build_pi_setup(target: ServerTarget) -> AgentSetup:
    """Configure Pi. See https://pi.dev/docs. It reads other providers only from a file,
    which names the variable with the key.
    """
    model: dict[str, object] = {"id": target.model}
    if target.context is not None:
        model["contextWindow"] = target.context
    provider = {
        "baseUrl": f"{target.url}/v1",
        "api": "openai-completions",
        "apiKey": "$DRAGOMAN_CLIENT_KEY",
        "models": [model],
    }
    generated = {"models.json": json.dumps({"providers": {"dragoman": provider}}, indent=2) + "\n"}
    return AgentSetup(
        ("--provider", "dragoman", "--model", target.model),
        {
            "DRAGOMAN_CLIENT_KEY": target.api_key or PLACEHOLDER_KEY,
            # Update checks and the catalog of models.
            "PI_OFFLINE": "1",
        },
        AgentHome("PI_CODING_AGENT_DIR", "pi", generated=generated),
    )


def build_aider_setup(target: ServerTarget) -> AgentSetup:
    """Configure Aider. See https://aider.chat/docs/config/options.html."""
    return AgentSetup(
        variables={
            "AIDER_MODEL": f"openai/{target.model}",
            # Models for commit messages and for edits, if the user has set others.
            "AIDER_WEAK_MODEL": f"openai/{target.model}",
            "AIDER_EDITOR_MODEL": f"openai/{target.model}",
            "OPENAI_API_BASE": f"{target.url}/v1",
            "OPENAI_API_KEY": target.api_key or PLACEHOLDER_KEY,
            # It would look the model up in tables of vendors on the web, and open a page.
            "AIDER_SHOW_MODEL_WARNINGS": "false",
            "AIDER_CHECK_UPDATE": "false",
            "AIDER_ANALYTICS": "false",
        }
    )


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
            "GOOGLE_GEMINI_BASE_URL": target.url,
            "GEMINI_API_KEY": key,
        }
    )


AGENTS = {
    agent.program: agent
    for agent in (
        Agent(
            "Claude Code",
            "claude",
            "Messages",
            "npm install -g @anthropic-ai/claude-code",
            build_claude_setup,
        ),
        Agent("Codex", "codex", "Responses", "npm install -g @openai/codex", build_codex_setup),
        Agent(
            "OpenCode",
            "opencode",
            "Chat Completions",
            "npm install -g opencode-ai",
            build_opencode_setup,
        ),
        Agent(
            "Gemini CLI",
            "gemini",
            "Gemini",
            "npm install -g @google/gemini-cli",
            build_gemini_setup,
        ),
        Agent(
            "GitHub Copilot CLI",
            "copilot",
            "Responses",
            "npm install -g @github/copilot",
            build_copilot_setup,
        ),
        Agent(
            "Qwen Code",
            "qwen",
            "Chat Completions",
            "npm install -g @qwen-code/qwen-code",
            build_qwen_setup,
        ),
        Agent("Cline", "cline", "Chat Completions", "npm install -g cline", build_cline_setup),
        Agent(
            "Pi",
            "pi",
            "Chat Completions",
            "npm install -g @earendil-works/pi-coding-agent",
            build_pi_setup,
        ),
        Agent("Aider", "aider", "Chat Completions", "pip install aider-chat", build_aider_setup),
    )
}
"""AGENT on the command line -> the agent. docs/agents/README.md lists them."""


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
