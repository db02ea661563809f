"""Checks of Messages as Claude Code uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..check_catalog import Area
from ..dialects import MESSAGES
from ..parsed_response import read_message
from ..rules.json_values import JsonObject, require
from ..session import Session
from .messages import HI, PATH, TOOLS

CLAUDE_CODE_DOCS = "https://docs.anthropic.com/en/docs/claude-code/llm-gateway"
CLAUDE_CODE = Area("claude-code", claims=("messages", "claude-code"), source=CLAUDE_CODE_DOCS)
BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "not-known-2099-01-01"
)


def build_claude_code_request(model: str) -> JsonObject:
    """Build a request as Claude Code 2.1 sends it, with two tools instead of twelve."""
    cached = {"cache_control": {"type": "ephemeral"}}
    reminder = {"type": "text", "text": "<system-reminder>Be careful.</system-reminder>"}
    return {
        "model": model,
        # Claude Code sends 32,000; the check `large-limit` covers values beyond the
        # context.
        "max_tokens": 1024,
        "stream": True,
        "system": [
            # Claude Code sends this header as its first system block.
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1"},
            {"type": "text", "text": "You are an agent.", **cached},
            {"type": "text", "text": "Use the tools.", **cached},
        ],
        "messages": [
            {
                "role": "user",
                "content": [reminder, {"type": "text", "text": "Say hello.", **cached}],
            },
            {"role": "system", "content": "The date is 2026-11-23."},
        ],
        "tools": [{**TOOLS[0], "defer_loading": False}, TOOLS[1]],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "user_1"},
    }


@CLAUDE_CODE.check("A request as Claude Code sends it returns a stream.")
async def request(s: Session) -> None:
    body = build_claude_code_request(s.model)
    async with s.stream(f"{PATH}?beta=true", body, {"anthropic-beta": BETAS}) as response:
        first = b""
        # The first event suffices; the rest would take the time of a full response.
        while len(first) <= 200 and (piece := await response.read()) is not None:
            first += piece
        require(response.status == 200, f"status {response.status}: {first[:300]!r}")
        require(
            first.startswith((b"event: message_start", b"event: ping", b":")),
            f"the stream starts with {first[:80]!r}",
        )


def add_claude_code() -> None:
    full = build_claude_code_request("")
    fields: tuple[tuple[str, str, JsonObject], ...] = (
        (
            "system-role",
            "A message with the role `system` is accepted.",
            {"messages": [HI, {"role": "system", "content": "Be brief."}]},
        ),
        (
            "adaptive-thinking",
            "`thinking.type: adaptive` with `display` is accepted.",
            {"thinking": full["thinking"]},
        ),
        (
            "thinking-updates",
            "`thinking.display: updates` is accepted.",
            {"thinking": {"type": "adaptive", "display": "updates"}},
        ),
        (
            "context-management",
            "`context_management` is accepted.",
            {"context_management": full["context_management"]},
        ),
        ("effort", "`output_config.effort` is accepted.", {"output_config": {"effort": "high"}}),
        (
            "cache-control",
            "`cache_control` is accepted in `system`, `tools` and `messages`.",
            {
                "system": full["system"],
                "tools": [{**TOOLS[0], "cache_control": {"type": "ephemeral"}}],
            },
        ),
        (
            "unsigned-thinking",
            "A thinking block with an empty signature is accepted.",
            {
                "messages": [
                    HI,
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "Hm.", "signature": ""},
                            {"type": "text", "text": "Hello"},
                        ],
                    },
                    {"role": "user", "content": "Go on"},
                ]
            },
        ),
    )

    def build(extra: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = {**MESSAGES.build_body(s.model, "Hi", 16), **extra}
            exchange = await s.post(f"{PATH}?beta=true", body, headers={"anthropic-beta": BETAS})
            require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")

        return run

    for name, rule, extra in fields:
        CLAUDE_CODE.add(f"accepts-{name}", rule, build(extra))


add_claude_code()


@CLAUDE_CODE.check("An unknown value of `anthropic-beta` is ignored.")
async def unknown_beta(s: Session) -> None:
    exchange = await s.post(
        PATH,
        MESSAGES.build_request(s.model, "Hi", 16),
        headers={"anthropic-beta": "not-known-2099-01-01"},
    )
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@CLAUDE_CODE.check("Any value of `anthropic-version` is accepted.")
async def any_version(s: Session) -> None:
    exchange = await s.post(
        PATH, MESSAGES.build_request(s.model, "Hi", 16), headers={"anthropic-version": "2026-10-21"}
    )
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@CLAUDE_CODE.check(
    "A `max_tokens` above the context length is capped, not rejected.", level="should"
)
async def large_limit(s: Session) -> None:
    # The stream is closed after the status: the response might fill the context.
    async with s.stream(
        PATH, {**MESSAGES.build_stream_request(s.model, "Hi", 1_000_000)}
    ) as response:
        require(response.status == 200, f"status {response.status}")


@CLAUDE_CODE.check(
    "`thread` is honoured, or rejected with an error that names it; it is not ignored.",
    level="should",
)
async def threads(s: Session) -> None:
    # A server that ignores `thread` receives only the last turn, without the history.
    headers = {"anthropic-beta": "message-threads-2026-08-12"}
    body = {
        **MESSAGES.build_request(s.model, "My name is Ann. " + "apple " * 40, 16),
        "thread": {"type": "create"},
    }
    exchange = await s.post(f"{PATH}?beta=true", body, headers=headers)
    if exchange.status == 400:
        require(b"thread" in exchange.body, f"the error is {exchange.message()!r}")
        return
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
    thread = {"type": "continue", "previous_message_id": exchange.json()["id"]}
    second = await s.post(
        f"{PATH}?beta=true",
        {**MESSAGES.build_request(s.model, "Go on.", 16), "thread": thread},
        headers=headers,
    )
    tokens = read_message(second.json()).prompt_tokens or 0
    require(tokens > 40, f"the continued thread has {tokens} input tokens: its history is missing")


@CLAUDE_CODE.check(
    "`GET /v1/models` with `anthropic-version` lists the models in Anthropic's format.",
    level="should",
    claims=("models",),
)
async def models(s: Session) -> None:
    exchange = await s.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
    require(exchange.status == 200, f"status {exchange.status}")
    page = exchange.json()
    for name in ("data", "has_more", "first_id", "last_id"):
        require(name in page, f"the page has no {name}")
    for model in page["data"]:
        require(
            model.get("type") == "model" and model.get("display_name") and model.get("created_at"),
            f"an entry is {model}",
        )
