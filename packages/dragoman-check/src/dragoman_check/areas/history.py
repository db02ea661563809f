"""Checks that every part of a request reaches the prompt: each of several turns,
content parts, tools, calls and results.

They apply to each API, since each has its own format for these parts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ..check_exceptions import Skipped
from ..dialects import DIALECTS, Dialect
from ..parsed_response import ParsedResponse
from ..rules.json_values import JsonObject, Violation, require
from ..session import Session
from .generation import AREAS, bind, on_every_dialect
from .several_parts import OF_DIALECT, SeveralParts

SYSTEM = "Answer in one short sentence, as a friend of the family would."
FILLER = " apple" * 30
Count = Callable[[Sequence[str]], Awaitable[int]]
"""Returns the number of prompt tokens of a request with these texts as its parts."""


def require_prompt_tokens(answer: ParsedResponse) -> int:
    """Return the number of prompt tokens. Raises Skipped if there is none: other checks
    require the usage.
    """
    if answer.prompt_tokens is None:
        raise Skipped("the response has no prompt token count")
    return answer.prompt_tokens


async def check_each_part(
    kind: SeveralParts, filler: int, count: Count, *more_counts: Count
) -> None:
    """Check that each part of a request makes its prompt longer.

    All parts are made longer at once; only if the prompt grows too little, each is
    tried alone, to name the one that is missing.

    filler: number of tokens of `FILLER`.
    more_counts: other ways to send the same request, such as a stream.
    """
    short = ["apple"] * kind.count
    before = await count(short)
    for count_again in (count, *more_counts):
        grown = await count_again([text + FILLER for text in short]) - before
        if grown >= filler * kind.count - filler // 2:
            continue
        for i in range(kind.count):
            texts = [text + FILLER if i == j else text for j, text in enumerate(short)]
            alone = await count_again(texts) - before
            require(
                alone > filler // 2,
                f"number {i + 1} of {kind.count} ({kind.noun}) does not reach the prompt: 30 words "
                f"more are {alone} prompt tokens more, elsewhere {filler}",
            )
        raise Violation(
            f"30 words more in each of {kind.count} ({kind.noun}) are {grown} prompt tokens more, "
            f"{filler} if only one has them"
        )


async def count_filler(s: Session, name: str, count: Count) -> int:
    """Return the number of tokens of `FILLER`, cached for all checks of an API. Raises
    Skipped if longer prompts have no more tokens: another check requires it.
    """

    async def find() -> int:
        tokens = await count(["apple" + FILLER]) - await count(["apple"])
        if tokens < 20:
            raise Skipped(f"cannot tell: 30 words more are {tokens} prompt tokens more")
        return tokens

    return await s.share(f"{name}.filler", find)


def build_kind_request(d: Dialect, model: str, fields: JsonObject) -> JsonObject:
    # Claude's shortest answer is one token, OpenAI's in Responses are 16.
    return {**d.build_request(model, "", 1), **fields}


async def require_one_is_rejected(
    s: Session, d: Dialect, kind: SeveralParts, rejection: Skipped
) -> None:
    """Check that a server that rejects several tools, calls or results also rejects
    one: else it has lost some of them.
    """
    if kind.feature == "tools":
        body = build_kind_request(d, s.model, kind.build(["apple"]))
        exchange = await s.post(d.path, body)
        require(exchange.status != 200, f"one part ({kind.noun}) is accepted, several: {rejection}")


def add_each_part() -> None:
    def build(kind: SeveralParts) -> Callable[[Session, Dialect], Awaitable[None]]:
        async def run(s: Session, d: Dialect) -> None:
            async def count_words(texts: Sequence[str]) -> int:
                body = d.build_request(s.model, texts[0], 1)
                return require_prompt_tokens(d.read((await s.request(d.path, body)).json()))

            async def count(texts: Sequence[str]) -> int:
                body = build_kind_request(d, s.model, kind.build(texts))
                try:
                    exchange = await s.request(d.path, body, feature=kind.feature)
                except Skipped as rejection:
                    await require_one_is_rejected(s, d, kind, rejection)
                    raise
                return require_prompt_tokens(d.read(exchange.json()))

            async def count_streamed(texts: Sequence[str]) -> int:
                body = build_kind_request(d, s.model, kind.build(texts))
                # No `feature`: the same request has succeeded without `stream`.
                exchange = await s.request(d.path, {**body, "stream": True, **d.stream_options})
                return require_prompt_tokens(d.fold(exchange.body))

            filler = await count_filler(s, d.name, count_words)
            await check_each_part(kind, filler, count, count_streamed)

        return run

    for dialect in DIALECTS:
        for kind in OF_DIALECT[dialect.name]:
            AREAS[dialect.name].add(
                f"each-{kind.name}",
                f"Each of several parts reaches the prompt: {kind.noun}.",
                bind(build(kind), dialect),
            )


add_each_part()


def add_system(name: str, body: JsonObject) -> None:
    match name:
        case "responses":
            body["instructions"] = SYSTEM
        case "messages":
            body["system"] = SYSTEM
        case _:
            body["messages"].insert(0, {"role": "system", "content": SYSTEM})


def build_history(d: Dialect, model: str) -> JsonObject:
    """Build a conversation with instructions, tools, calls and their results."""
    results = next(kind for kind in OF_DIALECT[d.name] if kind.name == "result")
    body = {**d.build_request(model, "", 16), **results.build(("It is sunny.", "It rains."))}
    add_system(d.name, body)
    return body


@on_every_dialect(
    "A conversation with instructions, tools and tool results has the same prompt token "
    "count with and without `stream`.",
    only=lambda d: d.is_chat,
)
async def stream_of_history(s: Session, d: Dialect) -> None:
    body = build_history(d, s.model)
    expected = require_prompt_tokens(
        d.read((await s.request(d.path, body, feature="tools")).json())
    )
    # No `feature`: a request that succeeds without streaming must not be rejected with
    # it.
    streamed = await s.request(d.path, {**body, "stream": True, **d.stream_options})
    tokens = d.fold(streamed.body).prompt_tokens
    require(
        tokens == expected,
        f"{tokens} prompt tokens with stream, {expected} without",
    )
