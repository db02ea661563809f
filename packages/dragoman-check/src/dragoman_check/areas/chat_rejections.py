"""Checks that Chat Completions rejects invalid values of its own fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..dialects import CHAT
from ..error_bodies import check_error_basics
from ..rules.json_values import JsonObject, require
from ..session import Session
from .chat import AREA, PATH
from .sample_tools import TOOLS

NAMELESS_TOOLS: list[JsonObject] = [{"type": "function", "function": {"parameters": {}}}]
INVALID_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "wizard"}, "strict": True},
}
REJECTED: tuple[tuple[str, str, JsonObject, tuple[str, ...]], ...] = (
    ("n-zero", "`n: 0` is rejected.", {"n": 0}, ()),
    ("n-of-wrong-type", "An `n` that is not a number is rejected.", {"n": "two"}, ()),
    (
        "penalty",
        "A `presence_penalty` above 2 is rejected.",
        {"presence_penalty": 5},
        ("llamacpp", "ollama"),
    ),
    (
        "frequency",
        "A `frequency_penalty` below -2 is rejected.",
        {"frequency_penalty": -5},
        ("llamacpp", "ollama"),
    ),
    (
        "high-temperature",
        "A `temperature` above 2 is rejected.",
        {"temperature": 2.5},
        ("vllm", "llamacpp", "ollama", "sglang"),
    ),
    (
        "top-logprobs-alone",
        "`top_logprobs` without `logprobs` is rejected.",
        {"top_logprobs": 2},
        ("llamacpp", "ollama", "sglang"),
    ),
    (
        "many-top-logprobs",
        "A `top_logprobs` above 20 is rejected.",
        {"logprobs": True, "top_logprobs": 99},
        ("llamacpp",),
    ),
    ("stop-of-wrong-type", "A `stop` that is a number is rejected.", {"stop": 5}, ()),
    (
        "seed-of-wrong-type",
        "A `seed` that is not a number is rejected.",
        {"seed": "x"},
        ("ollama",),
    ),
    (
        "logit-bias-of-wrong-type",
        "A `logit_bias` that is not an object is rejected.",
        {"logit_bias": ["a"]},
        ("ollama",),
    ),
    (
        "tools-of-wrong-type",
        "A `tools` value that is not a list is rejected.",
        {"tools": {"a": 1}},
        (),
    ),
    (
        "tool-without-name",
        "A tool without a name is rejected.",
        {"tools": NAMELESS_TOOLS},
        ("ollama",),
    ),
    (
        "unknown-tool-choice",
        "A `tool_choice` that names an undeclared tool is rejected.",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        ("ollama",),
    ),
    (
        "response-format",
        "A `response_format` of an unknown type is rejected.",
        {"response_format": {"type": "x"}},
        ("ollama",),
    ),
    (
        "schema-without-schema",
        "A `json_schema` format without a schema is rejected.",
        {"response_format": {"type": "json_schema"}},
        ("ollama",),
    ),
    (
        "invalid-schema",
        "An invalid JSON Schema is rejected.",
        {"response_format": INVALID_SCHEMA},
        ("ollama",),
    ),
    (
        "stream-options-alone",
        "`stream_options` without `stream` is rejected.",
        {"stream_options": {"include_usage": True}},
        ("llamacpp", "ollama", "sglang"),
    ),
)


def add_rejected() -> None:
    """Add checks of values that OpenAI's reference excludes, in fields that only this
    API has.
    """

    def build(fields: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(PATH, {**CHAT.build_request(s.model, "Hello", 16), **fields})
            require(
                exchange.status in (400, 422), f"status {exchange.status}: {exchange.body[:200]!r}"
            )
            check_error_basics(exchange.json())

        return run

    for name, rule, fields, except_for in REJECTED:
        AREA.add(f"rejects-{name}", rule, build(fields), except_for=except_for, level="should")


add_rejected()
