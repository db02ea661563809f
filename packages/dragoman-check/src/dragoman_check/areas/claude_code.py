"""Checks of Messages as Claude Code uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..client_answer import read_message
from ..dialects import MESSAGES
from ..rules.json_values import require
from ..session import Area, Json, Session
from .messages import HI, PATH, TOOLS

CLAUDE_CODE_DOCS = "https://docs.anthropic.com/en/docs/claude-code/llm-gateway"


CLAUDE_CODE = Area("claude-code", claims=("messages", "claude-code"), source=CLAUDE_CODE_DOCS)


BETAS = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,not-known-2099-01-01"


def build_claude_code_request(model: str) -> Json:
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


@CLAUDE_CODE.check("Claude Code's own request is answered with a stream.")
async def request(s: Session) -> None:
    body = build_claude_code_request(s.model)
    async with s.stream(f"{PATH}?beta=true", body, {"anthropic-beta": BETAS}) as response:
        first = b""
        async for piece in response.aiter_bytes():
            first += piece
            # The first event suffices; the rest would take the time of a whole answer.
            if len(first) > 200 or response.status_code != 200:
                break
        require(response.status_code == 200, f"status {response.status_code}: {first[:300]!r}")
        require(
            first.startswith((b"event: message_start", b"event: ping", b":")),
            f"the stream begins {first[:80]!r}",
        )


def add_claude_code() -> None:
    full = build_claude_code_request("")
    fields: tuple[tuple[str, str, Json], ...] = (
        (
            "system-role",
            "A message of role `system` is accepted.",
            {"messages": [HI, {"role": "system", "content": "Be brief."}]},
        ),
        (
            "adaptive-thinking",
            "`thinking: adaptive` with `display` is accepted.",
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
            "`cache_control` is accepted on system, tools and messages.",
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

    def build(extra: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = {**MESSAGES.build(s.model, "Hi", 16), **extra}
            exchange = await s.post(f"{PATH}?beta=true", body, headers={"anthropic-beta": BETAS})
            require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")

        return run

    for name, rule, extra in fields:
        CLAUDE_CODE.add(f"accepts-{name}", rule, build(extra))


add_claude_code()


@CLAUDE_CODE.check("An unknown `anthropic-beta` is ignored.")
async def unknown_beta(s: Session) -> None:
    exchange = await s.post(
        PATH, MESSAGES.ask(s.model, "Hi", 16), headers={"anthropic-beta": "not-known-2099-01-01"}
    )
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@CLAUDE_CODE.check("Any `anthropic-version` is accepted.")
async def any_version(s: Session) -> None:
    exchange = await s.post(
        PATH, MESSAGES.ask(s.model, "Hi", 16), headers={"anthropic-version": "2026-10-21"}
    )
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@CLAUDE_CODE.check("A `max_tokens` beyond the context is capped, not rejected.", level="should")
async def large_limit(s: Session) -> None:
    # The stream is closed after the status: the answer might fill the context.
    async with s.stream(PATH, {**MESSAGES.ask_stream(s.model, "Hi", 1_000_000)}) as response:
        require(response.status_code == 200, f"status {response.status_code}")


@CLAUDE_CODE.check(
    "`thread` is honoured, or rejected so that the SDK falls back: never ignored.", level="should"
)
async def threads(s: Session) -> None:
    # A server that ignores `thread` sees only the last turn, and answers without the
    # history.
    headers = {"anthropic-beta": "message-threads-2026-08-12"}
    body = {
        **MESSAGES.ask(s.model, "My name is Ann. " + "apple " * 40, 16),
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
        {**MESSAGES.ask(s.model, "Go on.", 16), "thread": thread},
        headers=headers,
    )
    tokens = read_message(second.json()).prompt_tokens or 0
    require(tokens > 40, f"the continued thread has {tokens} input tokens: its history is lost")


@CLAUDE_CODE.check(
    "The models are listed in Anthropic's form if the header asks for it.",
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
            f"a model is {model}",
        )
