"""What a streamed token costs in each writer, beside json.dumps of the same chunk:
`python -m benchmarks.writers`.

Trust the ratios of one run, not single figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from dragoman.core.events import (
    Alternative,
    Event,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)
from dragoman.dialects.chat import ChatRenderOptions, ChatWriter
from dragoman.dialects.completions.writer import CompletionsRenderOptions, CompletionsWriter
from dragoman.dialects.interfaces import Header, Profile, Writer

HEADER = Header("chatcmpl-0123456789abcdef", 1700000000, "org/model", "fp_1")
TOKEN = Token(
    5, " token", -0.25, (Alternative(5, " token", -0.25), Alternative(6, " word", -1.5)), rank=1
)
ROUNDS = 20_000
REPEATS = 5


def microseconds(call: Callable[[], object]) -> float:
    """The best of several runs, a call."""
    best = float("inf")
    for _ in range(REPEATS):
        before = time.perf_counter()
        for _ in range(ROUNDS):
            call()
        best = min(best, time.perf_counter() - before)
    return best / ROUNDS * 1e6


def fed(writer: Writer, event: Event, *before: Event) -> Callable[[], bytes]:
    for earlier in (Started(10), *before):
        writer.feed(earlier)
    return lambda: writer.feed(event)


def dumped(data: bytes) -> Callable[[], bytes]:
    """The same chunk by json.dumps of the dict that it parses to."""
    chunk: dict[str, Any] = json.loads(data.removeprefix(b"data: "))

    def dump() -> bytes:
        return f"data: {json.dumps(chunk)}\n\n".encode()

    return dump


CASES: tuple[tuple[str, Callable[[], Writer], Event, tuple[Event, ...]], ...] = (
    ("chat, text", lambda: ChatWriter(HEADER), TextDelta(0, " token", (TOKEN,)), ()),
    ("chat, text beyond ASCII", lambda: ChatWriter(HEADER), TextDelta(0, " żółć", (TOKEN,)), ()),
    (
        "chat vllm, text",
        lambda: ChatWriter(HEADER, ChatRenderOptions(profile=Profile.VLLM)),
        TextDelta(0, " token", (TOKEN,)),
        (),
    ),
    (
        "chat, logprobs=2",
        lambda: ChatWriter(HEADER, ChatRenderOptions(logprobs=2)),
        TextDelta(0, " token", (TOKEN,)),
        (),
    ),
    (
        "chat, usage on every chunk",
        lambda: ChatWriter(HEADER, ChatRenderOptions(include_usage=True, continuous_usage=True)),
        TextDelta(0, " token", (TOKEN,)),
        (),
    ),
    (
        "chat, tool arguments",
        lambda: ChatWriter(HEADER),
        ToolCallDelta(0, '{"a":', (TOKEN,)),
        (ToolCallStart(0, "c", "f"),),
    ),
    ("completions, text", lambda: CompletionsWriter(HEADER), TextDelta(0, " token", (TOKEN,)), ()),
    (
        "completions, logprobs=2",
        lambda: CompletionsWriter(HEADER, CompletionsRenderOptions(logprobs=2)),
        TextDelta(0, " token", (TOKEN,)),
        (),
    ),
)


def main() -> None:
    print(f"{'us a token':32} {'writer':>8} {'json.dumps':>11} {'ratio':>6}")
    for name, make, event, before in CASES:
        feed = fed(make(), event, *before)
        ours = microseconds(feed)
        theirs = microseconds(dumped(feed()))
        print(f"{name:32} {ours:8.2f} {theirs:11.2f} {theirs / ours:6.1f}")


if __name__ == "__main__":
    main()
