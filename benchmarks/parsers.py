"""What a token costs from its id to events, beside a loop that only makes the event:
`python -m benchmarks.parsers`.

Trust the ratios of one run, not single figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import dragoman.engines.tiny
from dragoman.core.events import Event, TextDelta, Token
from dragoman.core.message import FunctionTool
from dragoman.core.syntax import ParseContext
from dragoman.core.token_engine import TokenLogprob
from dragoman.parsers import registry
from dragoman.pipeline.detokenizer import TextAssembler, Vocabulary
from dragoman.pipeline.stop_strings import StopStage
from dragoman.prompts.hf_tokenizer import load_tokenizer

REPEATS = 7
ROUNDS = 200
TOKENIZER = load_tokenizer(Path(dragoman.engines.tiny.__file__).with_name("data"))
PROSE = "So the answer is that it depends on what is asked, and on whom.\n"
CALL = (
    '<tool_call>\n{"name": "f", "arguments": {"city": "Paris", "days": [1, 2], "note": "as '
    '\\"usual\\""}}\n</tool_call>'
)
FILE = (
    '<tool_call>\n{"name": "f", "arguments": {"text": "' + PROSE.strip() * 20 + '"}}\n</tool_call>'
)


def pieces(text: str) -> list[TextDelta]:
    """Four characters a token, about what models write."""
    return [
        TextDelta(0, text[at : at + 4], (Token(1, text[at : at + 4]),))
        for at in range(0, len(text), 4)
    ]


def microseconds(work: Callable[[], int]) -> float:
    """The best of several runs, a token. work returns how many tokens it has made."""
    best = float("inf")
    for _ in range(REPEATS):
        before = time.perf_counter()
        tokens = work()
        best = min(best, (time.perf_counter() - before) / tokens)
    return best * 1e6


def trivial() -> int:
    """A loop that only makes the event."""
    token = Token(0, " plain")
    out = TextDelta(0, "")
    for _ in range(ROUNDS * 100):
        out = TextDelta(0, " plain", (token,))
    return ROUNDS * 100 * len(out.tokens)


def assembling(ids: Sequence[int], score: TokenLogprob | None = None) -> Callable[[], int]:
    vocabulary = Vocabulary(TOKENIZER)

    def work() -> int:
        assembler = TextAssembler(vocabulary, 0)
        for _ in range(ROUNDS):
            for id in ids:
                assembler.feed(id, score)
        return ROUNDS * len(ids)

    return work


def parsing(reasoning: str, tools: str, deltas: Sequence[Event]) -> Callable[[], int]:
    formats = registry.find_reasoning_format(reasoning), registry.find_tool_format(tools)
    context = ParseContext("", (FunctionTool("f"),), lambda: "call")

    def work() -> int:
        parser = registry.create_parser(*formats, context)
        for _ in range(ROUNDS):
            for delta in deltas:
                parser.feed(delta)
        return ROUNDS * len(deltas)

    return work


def stopping(stops: Sequence[str], deltas: Sequence[Event]) -> Callable[[], int]:
    def work() -> int:
        stage = StopStage(0, stops, includes_stop=False, min_tokens=0)
        for _ in range(ROUNDS):
            for delta in deltas:
                stage.feed(delta)
        return ROUNDS * len(deltas)

    return work


ASCII = TOKENIZER.encode(PROSE, special=False)
BEYOND = TOKENIZER.encode("żółć 日本語", special=False)
SCORE = TokenLogprob(-0.1, 1, ((ASCII[0], -0.1), (ASCII[1], -2.0)))
CASES: tuple[tuple[str, Callable[[], int]], ...] = (
    ("only the event", trivial),
    ("assembler: ASCII", assembling(ASCII)),
    ("assembler: logprobs, 2 alternatives", assembling(ASCII, SCORE)),
    ("assembler: pieces of characters", assembling(BEYOND)),
    ("two stop strings: text", stopping(["User:", "\n\n"], pieces(PROSE))),
    ("think: text", parsing("think", "none", pieces(PROSE))),
    ("think: reasoning", parsing("think_unopened", "none", pieces(PROSE))),
    ("hermes: text", parsing("none", "hermes", pieces(PROSE))),
    ("hermes: calls", parsing("none", "hermes", pieces(CALL))),
    ("hermes: a long string", parsing("none", "hermes", pieces(FILE))),
    ("think and hermes: text", parsing("think", "hermes", pieces(PROSE))),
)


def main() -> None:
    base = microseconds(trivial)
    print(f"{'':38}{'us a token':>10}{'ratio':>8}")
    for name, work in CASES:
        cost = microseconds(work)
        print(f"{name:38}{cost:10.2f}{cost / base:8.1f}")


if __name__ == "__main__":
    main()
