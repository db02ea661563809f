"""Checks for every API that generates text: streams, limits, usage, stop strings.

Each rule becomes one check per API, because servers implement their APIs separately.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import DIALECTS, Dialect
from ..error_bodies import check_error_basics
from ..exchange import Exchange
from ..json_objects import get_object, get_objects
from ..parsed_response import ParsedResponse
from ..rules.json_values import JsonObject, Violation, require
from ..session import Session
from ..sse import normalize_sse, parse_chunks, parse_lines

STORY = "Write a story about a dog and a village."
UNICODE = "Repeat: \U0001f468‍\U0001f469‍\U0001f467 über \u65e5本語 e\u0301 \u200fعربي"
TOPICS = ("a red boat", "two tall trees", "the number seven", "an old clock")
MARKERS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end|>",
    "<|start_header_id|>",
    "</s>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|return|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "[INST]",
)
"""Control tokens of common chat templates."""
ONE_MODEL = ("llamacpp", "transformers")
"""Profiles of servers that have one model and ignore the `model` of a request."""

AREAS = {
    dialect.name: Area(
        dialect.name,
        claims=("ollama" if dialect.is_ollama else dialect.name,),
        source=dialect.source,
    )
    for dialect in DIALECTS
}
DialectCheck = Callable[[Session, Dialect], Awaitable[None]]


def on_every_dialect(
    rule: str, *, only: Callable[[Dialect], bool] = lambda _: True, **options: Any
) -> Callable[[DialectCheck], DialectCheck]:
    """Add the decorated function as a check of each dialect. options: those of
    `Area.add`.
    """

    def register(run: DialectCheck) -> DialectCheck:
        name = getattr(run, "__name__", "").replace("_", "-")
        for dialect in filter(only, DIALECTS):
            AREAS[dialect.name].add(name, rule, bind(run, dialect), **options)
        return run

    return register


def bind(run: DialectCheck, dialect: Dialect) -> Callable[[Session], Awaitable[None]]:
    return lambda session: run(session, dialect)


async def request_unstreamed(s: Session, d: Dialect) -> Exchange:
    """Request the story without `stream`; the response is cached for all checks."""
    return await s.share(
        f"{d.name}.whole", lambda: s.request(d.path, d.build_request(s.model, STORY))
    )


async def request_stream(s: Session, d: Dialect) -> Exchange:
    """Request the story with `stream`; the response is cached for all checks."""
    return await s.share(
        f"{d.name}.stream", lambda: s.request(d.path, d.build_stream_request(s.model, STORY))
    )


async def request_reproducible(s: Session, d: Dialect) -> ParsedResponse:
    """Return the answer of `request_unstreamed`. Raises Skipped if a second request has
    a different answer.
    """

    async def request_twice() -> ParsedResponse:
        answer = d.read((await request_unstreamed(s, d)).json())
        again = d.read((await s.request(d.path, d.build_request(s.model, STORY))).json())
        if (answer.text, answer.reasoning) != (again.text, again.reasoning):
            raise Skipped("repeated requests have different responses, which cannot be compared")
        return answer

    return await s.share(f"{d.name}.deterministic", request_twice)


@on_every_dialect(
    "A non-streamed request returns status 200, `Content-Type: application/json` and text."
)
async def whole(s: Session, d: Dialect) -> None:
    exchange = await request_unstreamed(s, d)
    require(
        exchange.content_type == "application/json", f"Content-Type is {exchange.content_type!r}"
    )
    check_charset(exchange)
    answer = d.read(exchange.json())
    require(answer.text or answer.reasoning, "the response has no text")


@on_every_dialect("A non-streamed response has all required fields, with valid types and values.")
async def whole_form(s: Session, d: Dialect) -> None:
    d.check_object((await request_unstreamed(s, d)).json())


@on_every_dialect("A stream has valid events in a valid order, and a single end.")
async def stream_form(s: Session, d: Dialect) -> None:
    d.check_stream((await request_stream(s, d)).body)


@on_every_dialect(
    "A stream has `Content-Type: text/event-stream` (Ollama: `application/x-ndjson`)."
)
async def stream_type(s: Session, d: Dialect) -> None:
    exchange = await request_stream(s, d)
    require(exchange.content_type == d.stream_type, f"Content-Type is {exchange.content_type!r}")
    check_charset(exchange)


def check_charset(exchange: Exchange) -> None:
    """Check that no charset other than UTF-8 is declared: JSON and server-sent events
    are always UTF-8.

    Clients that respect the declared charset would decode the text incorrectly.
    """
    name, _, charset = (exchange.header("content-type") or "").lower().partition("charset=")
    require(
        not charset or charset.strip(' "') == "utf-8", f"Content-Type is {name}charset={charset}"
    )


@on_every_dialect(
    "`model` is the requested model in the response and in all stream events.",
    level="should",
    except_for=ONE_MODEL,
)
async def model_name(s: Session, d: Dialect) -> None:
    chunks = (parse_lines if d.is_ollama else parse_chunks)((await request_stream(s, d)).body)
    # Events of Messages and Responses have the model in their `message` or `response`
    # object.
    objects = [
        (chunk, get_object(chunk, "message"), get_object(chunk, "response")) for chunk in chunks
    ]
    streamed = [value["model"] for values in objects for value in values if "model" in value]
    require(streamed, "no event of the stream has a model")
    for name in [(await request_unstreamed(s, d)).json()["model"], *streamed]:
        check_model_name(s, name)


def check_model_name(s: Session, name: object) -> None:
    # A dated or tagged version (`gpt-4o-2024-08-06`, `llama:latest`) or a name without
    # its organization is the same.
    is_same = isinstance(name, str) and (
        name.startswith(s.model) or (name and s.model.endswith(f"/{name}"))
    )
    require(is_same, f"model is {name!r}, requested was {s.model!r}")


@on_every_dialect(
    "Escaped and literal Unicode characters in the request's JSON yield the same prompt."
)
async def escapes(s: Session, d: Dialect) -> None:
    body = d.build_request(s.model, UNICODE + " \U0001f600", 16)
    counts: list[int | None] = []
    for ensure_ascii in (True, False):
        raw = json.dumps(body, ensure_ascii=ensure_ascii).encode()
        counts.append(d.read((await s.request(d.path, {}, raw=raw)).json()).prompt_tokens)
    plain = await count_prompt(s, d, "Repeat:")
    require(
        counts[0] == counts[1],
        f"{counts[0]} prompt tokens with escape sequences, {counts[1]} with literal characters",
    )
    # If the characters were lost in both requests, the counts would be equal and hardly
    # larger than `plain`.
    require(
        (counts[0] or 0) > plain + 8,
        f"{counts[0]} prompt tokens, {plain} without the characters",
    )


@on_every_dialect("The concatenated text of a stream equals the text of the non-streamed response.")
async def stream_text(s: Session, d: Dialect) -> None:
    expected, answer = await request_reproducible(s, d), d.fold((await request_stream(s, d)).body)
    require(
        answer.text == expected.text, f"stream: {answer.text!r}, non-streamed: {expected.text!r}"
    )


@on_every_dialect(
    "The concatenated reasoning of a stream equals the reasoning of the non-streamed response."
)
async def stream_reasoning(s: Session, d: Dialect) -> None:
    expected, answer = await request_reproducible(s, d), d.fold((await request_stream(s, d)).body)
    require(
        answer.reasoning == expected.reasoning,
        f"stream: {answer.reasoning!r}, non-streamed: {expected.reasoning!r}",
    )


@on_every_dialect("A stream ends with the same finish reason as the non-streamed response.")
async def stream_reason(s: Session, d: Dialect) -> None:
    answer = d.fold((await request_stream(s, d)).body)
    require(answer.reason is not None, "the stream has no finish reason")
    expected = await request_reproducible(s, d)
    require(
        answer.reason == expected.reason,
        f"stream: {answer.reason!r}, non-streamed: {expected.reason!r}",
    )


@on_every_dialect("A stream reports the same usage as the non-streamed response.")
async def stream_usage(s: Session, d: Dialect) -> None:
    answer = d.fold((await request_stream(s, d)).body)
    require(
        answer.prompt_tokens is not None and answer.output_tokens is not None,
        "the stream has no usage",
    )
    expected = await request_reproducible(s, d)
    counts = (answer.prompt_tokens, answer.output_tokens)
    expected_counts = (expected.prompt_tokens, expected.output_tokens)
    require(counts == expected_counts, f"stream: {counts}, non-streamed: {expected_counts}")


@on_every_dialect(
    "A stream sends text in several chunks during generation, not in one chunk at the end.",
    level="should",
)
async def stream_pieces(s: Session, d: Dialect) -> None:
    exchange = await request_stream(s, d)
    texts = split_texts(exchange.body, d)
    tokens = d.fold(exchange.body).output_tokens or 0
    # A few tokens may be in one chunk: servers send what has accumulated.
    require(tokens < 8 or len(texts) > 1, f"{tokens} tokens of text in {len(texts)} chunk")


def split_texts(data: bytes, d: Dialect) -> list[str]:
    """Return the texts of a stream's events, without empty ones."""
    blocks = data.splitlines() if d.is_ollama else normalize_sse(data).split(b"\n\n")
    answers = [d.fold(block) for block in blocks]
    return [answer.text + answer.reasoning for answer in answers if answer.text or answer.reasoning]


@on_every_dialect("A stream is valid UTF-8, and no character is split between two events.")
async def stream_utf8(s: Session, d: Dialect) -> None:
    exchange = await s.request(d.path, d.build_stream_request(s.model, UNICODE))
    try:
        exchange.body.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"the stream is not UTF-8: {error}") from None
    streamed = d.fold(exchange.body).text
    # The token limit may truncate the last character. Elsewhere the model may have
    # generated U+FFFD itself, so the check compares with the non-streamed response.
    if "�" in streamed.rstrip("�"):
        expected = d.read((await s.request(d.path, d.build_request(s.model, UNICODE))).json()).text
        require(streamed == expected, f"stream: {streamed!r}, non-streamed: {expected!r}")


@on_every_dialect("Usage reports positive counts of prompt tokens and output tokens.")
async def usage(s: Session, d: Dialect) -> None:
    answer = d.read((await request_unstreamed(s, d)).json())
    require(answer.prompt_tokens, f"the prompt token count is {answer.prompt_tokens!r}")
    require(answer.output_tokens, f"the output token count is {answer.output_tokens!r}")


@on_every_dialect("The prompt token count grows in proportion to the length of the prompt.")
async def usage_grows(s: Session, d: Dialect) -> None:
    counts: list[int] = []
    for words in (0, 10, 20):
        prompt = "Name a colour." + " apple" * words
        answer = d.read((await s.request(d.path, d.build_request(s.model, prompt, 16))).json())
        counts.append(answer.prompt_tokens or 0)
    first = counts[1] - counts[0]
    second = counts[2] - counts[1]
    # " apple" is one token for most tokenizers; the tolerance is for tokenizers that
    # merge or split words.
    require(
        first >= 5 and abs(first - second) <= 4,
        f"prompt tokens with 0, 10 and 20 additional words: {counts}",
    )


@on_every_dialect(
    "A response does not exceed the output token limit; its finish reason shows whether "
    "the limit was reached."
)
async def limit(s: Session, d: Dialect) -> None:
    answer = d.read((await s.request(d.path, d.build_request(s.model, STORY, 16))).json())
    check_limit(answer, 16)


@on_every_dialect(
    "A stream does not exceed the output token limit; its finish reason shows whether the "
    "limit was reached."
)
async def limit_of_stream(s: Session, d: Dialect) -> None:
    check_limit(
        d.fold((await s.request(d.path, d.build_stream_request(s.model, STORY, 16))).body), 16
    )


@on_every_dialect("An output token limit of 1 is honoured.", only=lambda d: d.name != "responses")
async def limit_of_one(s: Session, d: Dialect) -> None:
    check_limit(d.read((await s.request(d.path, d.build_request(s.model, STORY, 1))).json()), 1)


ENOUGH = 40_000
"""Bytes of a stream after which a check stops to read it."""


@on_every_dialect(
    "Without a limit, an answer is not cut after fewer than 128 tokens.",
    only=lambda d: d.name not in ("completions", "messages"),
    level="should",
    except_for=("tgi",),
)
async def default_length(s: Session, d: Dialect) -> None:
    body = d.build_stream_request(s.model, "Count from 1 to 200.")
    body.pop(d.limit, None)
    if d.is_ollama:
        body["options"].pop(d.limit)
    data = b""
    async with s.stream(d.path, body) as response:
        require(response.status == 200, f"status {response.status}")
        while len(data) < ENOUGH and (piece := await response.read()) is not None:
            data += piece
    if len(data) < ENOUGH:
        answer = d.fold(data)
        tokens = answer.output_tokens or 0
        require(answer.reason != "length" or tokens >= 128, f"the answer is cut after {tokens}")


def check_limit(answer: ParsedResponse, limit: int) -> None:
    tokens = answer.output_tokens or 0
    require(tokens <= limit, f"{tokens} output tokens, the limit is {limit}")
    require(
        tokens == limit or answer.reason != "length",
        f"the finish reason is length after {tokens} of {limit} tokens",
    )
    # A response that reaches the limit may be complete by chance, so the reason is
    # checked only if the text ends within a sentence.
    is_truncated = tokens == limit and answer.text.rstrip()[-1:] not in (".", "!", "?", "")
    require(
        not is_truncated or answer.reason == "length",
        f"the limit truncated the text, but the finish reason is {answer.reason!r}",
    )


@on_every_dialect(
    "Text ends before a stop string, and does not include it.",
    only=lambda d: d.stop is not None,
)
async def stop(s: Session, d: Dialect) -> None:
    text, mark = await choose_stop(s, d)
    answer = d.read((await s.request(d.path, build_request_with_stop(d, s.model, [mark]))).json())
    require(
        answer.text == text[: text.index(mark)],
        f"with stop {mark!r}: {answer.text!r}, without: {text!r}",
    )
    require(answer.reason == "stop", f"the finish reason is {answer.reason!r}")


@on_every_dialect(
    "A stream does not include any part of a stop string.", only=lambda d: d.stop is not None
)
async def stop_of_stream(s: Session, d: Dialect) -> None:
    text, mark = await choose_stop(s, d)
    body = {**build_request_with_stop(d, s.model, [mark]), "stream": True, **d.stream_options}
    answer = d.fold((await s.request(d.path, body)).body)
    require(
        answer.text == text[: text.index(mark)],
        f"with stop {mark!r}: {answer.text!r}, without: {text!r}",
    )


@on_every_dialect(
    "With four stop strings, each one ends the text, and the first one that occurs.",
    only=lambda d: d.stop is not None,
)
async def stop_of_several(s: Session, d: Dialect) -> None:
    text, mark = await choose_stop(s, d)
    unused = ["never to be found", "nor this", "nor that"]
    lists = [[*unused[:i], mark, *unused[i:]] for i in range(4)]
    # The later one is listed first: the order of the list must not matter.
    end = text.index(mark) + len(mark)
    if later := text[end : end + 4].strip():
        lists.append([later, unused[0], mark] if later not in text[:end] else [mark])
    for marks in lists:
        body = build_request_with_stop(d, s.model, marks)
        answers = [d.read((await s.request(d.path, body)).json())]
        if marks is lists[-1]:
            stream = {**body, "stream": True, **d.stream_options}
            answers.append(d.fold((await s.request(d.path, stream)).body))
        for answer in answers:
            require(
                answer.text == text[: text.index(mark)],
                f"with stop {marks}: {answer.text!r}, without: {text!r}",
            )


@on_every_dialect("A space at the end of a text is part of it.", only=lambda d: d.stop is not None)
async def outer_space(s: Session, d: Dialect) -> None:
    text = (await request_reproducible(s, d)).text
    word = next((word for word in text.split(" ")[1:] if len(word) > 2), "")
    before = text.partition(word)[0] if word else ""
    if not before.endswith(" "):
        raise Skipped(f"no word after a space can be a stop string: {text!r}")
    body = build_request_with_stop(d, s.model, [word])
    for answer in (
        d.read((await s.request(d.path, body)).json()),
        d.fold((await s.request(d.path, {**body, "stream": True, **d.stream_options})).body),
    ):
        require(answer.text == before, f"with stop {word!r}: {answer.text!r}, not {before!r}")


async def choose_stop(s: Session, d: Dialect) -> tuple[str, str]:
    """Return the text of the story, and a stop string from the middle of it. Raises
    Skipped.
    """
    text = (await request_reproducible(s, d)).text
    # The stop string contains a space, so it spans several tokens, and a stream must
    # hold back its first part.
    start = next(
        (i for i in range(8, len(text) - 8) if text[i] == " " and text[i - 2 : i + 3].isascii()),
        None,
    )
    if start is None:
        raise Skipped("the text is too short for a stop string")
    return text, text[start - 2 : start + 3]


def build_request_with_stop(d: Dialect, model: str, marks: list[str]) -> JsonObject:
    assert d.stop is not None
    return (
        d.build_request(model, STORY, options={d.stop: marks})
        if d.is_ollama
        else {**d.build_request(model, STORY), d.stop: marks}
    )


@on_every_dialect(
    "Repeated requests with temperature 0 and a fixed seed return the same text.", level="should"
)
async def reproducible(s: Session, d: Dialect) -> None:
    first = d.read((await request_unstreamed(s, d)).json())
    second = d.read((await s.request(d.path, d.build_request(s.model, STORY))).json())
    require(first.text == second.text, f"first {first.text!r}, then {second.text!r}")


@on_every_dialect("Concurrent requests return the same texts as sequential requests.")
async def concurrent(s: Session, d: Dialect) -> None:
    await request_reproducible(s, d)
    prompts = [f"Tell me about {topic}." for topic in TOPICS]
    sequential = [
        d.read((await s.request(d.path, d.build_request(s.model, prompt, 16))).json()).text
        for prompt in prompts
    ]
    streams = await asyncio.gather(
        *(s.request(d.path, d.build_stream_request(s.model, prompt, 16)) for prompt in prompts)
    )
    concurrent_texts = [d.fold(stream.body).text for stream in streams]
    # Only a response that belongs to another request proves a mix-up: batched
    # arithmetic may change a response.
    mixed = [
        i for i, text in enumerate(concurrent_texts) if text != sequential[i] and text in sequential
    ]
    require(
        not mixed,
        f"responses of other requests: sequential {sequential}, concurrent {concurrent_texts}",
    )
    if sequential != concurrent_texts:
        again = [
            d.read((await s.request(d.path, d.build_request(s.model, prompt, 16))).json()).text
            for prompt in prompts
        ]
        if again != sequential:
            raise Skipped("repeated requests have different responses, which cannot be compared")
        # Batched arithmetic may sample another token, but not lose the text.
        require(
            all(text for text, other in zip(concurrent_texts, sequential, strict=True) if other),
            "a stream has no text",
        )


@on_every_dialect("Optional request fields may be `null`.")
async def nulls(s: Session, d: Dialect) -> None:
    names = {
        "chat": (
            "stop",
            "n",
            "logprobs",
            "tools",
            "tool_choice",
            "response_format",
            "user",
            "metadata",
        ),
        "completions": ("stop", "n", "logprobs", "suffix", "echo", "user", "best_of"),
        "responses": ("instructions", "include", "metadata", "previous_response_id", "reasoning"),
        "messages": ("stop_sequences", "system", "tools", "tool_choice", "metadata", "thinking"),
    }.get(d.name, ("format", "keep_alive", "think"))
    for name in names:
        # Typed clients (Java, Go, pydantic) may serialize unset fields as null.
        exchange = await s.post(
            d.path, d.build_request(s.model, "Name a colour.", 16, **{name: None})
        )
        require(
            exchange.status == 200,
            f"{name}: null returns status {exchange.status}: {exchange.message()}",
        )


@on_every_dialect("An unknown request field is ignored, or rejected with an error that names it.")
async def unknown_field(s: Session, d: Dialect) -> None:
    exchange = await s.post(
        d.path, d.build_request(s.model, "Name a colour.", 16, conformance_check=1)
    )
    is_named = exchange.status in (400, 422) and b"conformance_check" in exchange.body
    require(exchange.status == 200 or is_named, f"status {exchange.status}: {exchange.message()}")


@on_every_dialect("`Content-Type: application/json; charset=utf-8` is accepted.")
async def charset(s: Session, d: Dialect) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    exchange = await s.post(d.path, d.build_request(s.model, "Name a colour.", 16), headers=headers)
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@on_every_dialect(
    "Every response has a unique `id`, also under concurrency.",
    only=lambda d: not d.is_ollama,
)
async def ids(s: Session, d: Dialect) -> None:
    body = d.build_request(s.model, "Name a colour.", 16)
    exchanges = await asyncio.gather(*(s.request(d.path, body) for _ in range(3)))
    ids = [exchange.json()["id"] for exchange in exchanges]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


@on_every_dialect(
    "A response has a request id of its own: `x-request-id` (Messages: `request-id`).",
    only=lambda d: not d.is_ollama,
    level="should",
    claims=("request-id",),
)
async def request_id(s: Session, d: Dialect) -> None:
    name = "request-id" if d.name == "messages" else "x-request-id"
    ids = [
        exchange.header(name)
        for exchange in (await request_unstreamed(s, d), await request_stream(s, d))
    ]
    require(all(ids), f"no {name}")
    require(ids[0] != ids[1], f"two responses have the {name} {ids[0]!r}")


@on_every_dialect(
    "A control token in the text of a message is tokenized as plain text.", only=lambda d: d.is_chat
)
async def control_tokens(s: Session, d: Dialect) -> None:
    """Compare token counts: eight control tokens add eight tokens; tokenized as plain
    text, each adds several.
    """
    plain = await count_prompt(s, d, "Name a colour.")
    for marker in MARKERS:
        more = await count_prompt(s, d, "Name a colour." + f" {marker}" * 8) - plain
        # No additional tokens also fail: the marker was parsed and dropped. A space
        # before each marker may be a token.
        tight = await count_prompt(s, d, "Name a colour." + marker * 8) - plain
        require(
            tight > 8 or more > 16,
            f"8 times {marker!r} is {tight} tokens: each is tokenized as a control token",
        )


async def count_prompt(s: Session, d: Dialect, prompt: str) -> int:
    return (
        d.read((await s.request(d.path, d.build_request(s.model, prompt, 16))).json()).prompt_tokens
        or 0
    )


LARGE_CONTEXT = 40_000
"""Context length in tokens above which the too long prompt is not sent with `stream`.

Tokenizing such a prompt takes so long that some servers send the headers of the stream
first, as a keepalive.
"""


@on_every_dialect(
    "A prompt that exceeds the context length is rejected with a 4xx status, with and "
    "without `stream`."
)
async def too_long(s: Session, d: Dialect) -> None:
    context = await find_context(s)
    if context is None or context > 300_000:
        raise Skipped("the context length is unknown, or too large to exceed")
    build = d.build_stream_request if context <= LARGE_CONTEXT else d.build_request
    body = build(s.model, "apple river " * context, 16)
    if d.is_ollama:
        body["truncate"] = False
    exchange = await s.post(d.path, body)
    require(
        exchange.status in (400, 413, 422), f"status {exchange.status}, {exchange.content_type}"
    )
    check_error_basics(exchange.json())


async def find_context(s: Session) -> int | None:
    """Return the model's context length in tokens from /v1/models; None if the server
    does not state it.
    """

    async def find() -> int | None:
        # OpenAI's API has no such field; each vendor uses its own name.
        names = ("max_model_len", "context_length", "max_input_tokens", "context_window")
        try:
            models = get_objects((await s.get("/v1/models")).json(), "data")
        except Violation:
            # The area `models` reports a list that cannot be read.
            return None
        for model in models:
            if model.get("id") == s.model or len(models) == 1:
                lengths = [model[name] for name in names if isinstance(model.get(name), int)]
                # llama.cpp's: the length of a request, and in older versions only the
                # model's.
                meta = get_object(model, "meta")
                return lengths[0] if lengths else meta.get("n_ctx", meta.get("n_ctx_train"))
        return None

    return await s.share("context", find)
