"""Checks for every API that generates text: streams, limits, usage, stop strings.

Each rule becomes one check per API, since servers implement, and break, their APIs separately.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..client_answer import ClientAnswer
from ..dialects import DIALECTS, Dialect
from ..error_bodies import check_error_basics
from ..rules.json_values import require
from ..session import Area, Exchange, Json, Session, Skipped, get_object, get_objects
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
OnDialect = Callable[[Session, Dialect], Awaitable[None]]


def on_every_dialect(
    rule: str, *, only: Callable[[Dialect], bool] = lambda _: True, **options: Any
) -> Callable[[OnDialect], OnDialect]:
    """Add the decorated function as a check of each dialect. options: those of
    `Area.add`.
    """

    def register(run: OnDialect) -> OnDialect:
        name = getattr(run, "__name__", "").replace("_", "-")
        for dialect in filter(only, DIALECTS):
            AREAS[dialect.name].add(name, rule, bind(run, dialect), **options)
        return run

    return register


def bind(run: OnDialect, dialect: Dialect) -> Callable[[Session], Awaitable[None]]:
    return lambda session: run(session, dialect)


async def ask_whole(s: Session, d: Dialect) -> Exchange:
    """Request the story; the answer is cached for all checks."""
    return await s.share(f"{d.name}.whole", lambda: s.ask(d.path, d.ask(s.model, STORY)))


async def ask_stream(s: Session, d: Dialect) -> Exchange:
    """Request the story as a stream; the answer is cached for all checks."""
    return await s.share(f"{d.name}.stream", lambda: s.ask(d.path, d.ask_stream(s.model, STORY)))


async def ask_deterministic(s: Session, d: Dialect) -> ClientAnswer:
    """Return the answer of `ask_whole`. Raises Skipped if the same request has another
    answer the second time.
    """

    async def ask() -> ClientAnswer:
        answer = d.read((await ask_whole(s, d)).json())
        again = d.read((await s.ask(d.path, d.ask(s.model, STORY))).json())
        if (answer.text, answer.reasoning) != (again.text, again.reasoning):
            raise Skipped("answers to the same request differ, so they cannot be compared")
        return answer

    return await s.share(f"{d.name}.deterministic", ask)


@on_every_dialect("A request for text is answered with 200, application/json and text.")
async def whole(s: Session, d: Dialect) -> None:
    exchange = await ask_whole(s, d)
    require(
        exchange.content_type == "application/json", f"Content-Type is {exchange.content_type!r}"
    )
    check_charset(exchange)
    answer = d.read(exchange.json())
    require(answer.text or answer.reasoning, "the answer has no text")


@on_every_dialect(
    "The whole answer has every field that the API defines, with the right types and values."
)
async def whole_form(s: Session, d: Dialect) -> None:
    d.judge_object((await ask_whole(s, d)).json())


@on_every_dialect("The stream follows the API's grammar of events: order, fields, and one end.")
async def stream_form(s: Session, d: Dialect) -> None:
    d.judge((await ask_stream(s, d)).body)


@on_every_dialect("A stream has the Content-Type of a stream.")
async def stream_type(s: Session, d: Dialect) -> None:
    exchange = await ask_stream(s, d)
    require(exchange.content_type == d.stream_type, f"Content-Type is {exchange.content_type!r}")
    check_charset(exchange)


def check_charset(exchange: Exchange) -> None:
    """Check that no other charset than UTF-8 is declared: JSON and server-sent events
    are always UTF-8.

    Clients that respect the charset would decode wrong characters.
    """
    name, _, charset = (exchange.header("content-type") or "").lower().partition("charset=")
    require(
        not charset or charset.strip(' "') == "utf-8", f"Content-Type is {name}charset={charset}"
    )


@on_every_dialect(
    "The answer and every event name the model that was asked for.",
    level="should",
    except_for=ONE_MODEL,
)
async def model_name(s: Session, d: Dialect) -> None:
    chunks = (parse_lines if d.is_ollama else parse_chunks)((await ask_stream(s, d)).body)
    # Events of Messages and Responses have the model in their `message` or `response`
    # object.
    holders = [
        (chunk, get_object(chunk, "message"), get_object(chunk, "response")) for chunk in chunks
    ]
    streamed = [value["model"] for values in holders for value in values if "model" in value]
    require(streamed, "no event of the stream names the model")
    for name in [(await ask_whole(s, d)).json()["model"], *streamed]:
        check_model_name(s, name)


def check_model_name(s: Session, name: object) -> None:
    # A dated or tagged version (`gpt-4o-2024-08-06`, `llama:latest`) or a name without
    # its organization is the same.
    is_same = isinstance(name, str) and (
        name.startswith(s.model) or (name and s.model.endswith(f"/{name}"))
    )
    require(is_same, f"model is {name!r}, {s.model!r} was asked for")


@on_every_dialect(
    "A text is the same, whether or not its characters are escaped in the request's JSON."
)
async def escapes(s: Session, d: Dialect) -> None:
    body = d.ask(s.model, UNICODE + " \U0001f600", 16)
    counts: list[int | None] = []
    for ensure_ascii in (True, False):
        raw = json.dumps(body, ensure_ascii=ensure_ascii).encode()
        counts.append(d.read((await s.ask(d.path, {}, raw=raw)).json()).prompt_tokens)
    plain = await count_prompt(s, d, "Repeat:")
    require(counts[0] == counts[1], f"{counts[0]} prompt tokens with escapes, {counts[1]} without")
    # If the characters were lost in both requests, the counts would be equal and hardly
    # larger than `plain`.
    require(
        (counts[0] or 0) > plain + 8,
        f"{counts[0]} prompt tokens, and {plain} without the characters",
    )


@on_every_dialect("The text of the stream, joined as clients do, is the text of the whole answer.")
async def stream_text(s: Session, d: Dialect) -> None:
    expected, answer = await ask_deterministic(s, d), d.fold((await ask_stream(s, d)).body)
    require(answer.text == expected.text, f"streamed {answer.text!r}, whole {expected.text!r}")


@on_every_dialect("The reasoning of the stream is the reasoning of the whole answer.")
async def stream_reasoning(s: Session, d: Dialect) -> None:
    expected, answer = await ask_deterministic(s, d), d.fold((await ask_stream(s, d)).body)
    require(
        answer.reasoning == expected.reasoning,
        f"streamed {answer.reasoning!r}, whole {expected.reasoning!r}",
    )


@on_every_dialect("The stream says why it ended, as the whole answer does.")
async def stream_reason(s: Session, d: Dialect) -> None:
    answer = d.fold((await ask_stream(s, d)).body)
    require(answer.reason is not None, "the stream never says why it ended")
    expected = await ask_deterministic(s, d)
    require(
        answer.reason == expected.reason, f"streamed {answer.reason!r}, whole {expected.reason!r}"
    )


@on_every_dialect("The usage of the stream is the usage of the whole answer.")
async def stream_usage(s: Session, d: Dialect) -> None:
    answer = d.fold((await ask_stream(s, d)).body)
    require(
        answer.prompt_tokens is not None and answer.output_tokens is not None,
        "the stream has no usage",
    )
    expected = await ask_deterministic(s, d)
    counts = (answer.prompt_tokens, answer.output_tokens)
    whole_counts = (expected.prompt_tokens, expected.output_tokens)
    require(counts == whole_counts, f"streamed {counts}, whole {whole_counts}")


@on_every_dialect(
    "A stream comes in pieces while it is generated, not at once at its end.", level="should"
)
async def stream_pieces(s: Session, d: Dialect) -> None:
    exchange = await ask_stream(s, d)
    texts = split_pieces(exchange.body, d)
    tokens = d.fold(exchange.body).output_tokens or 0
    # A few tokens may come in one piece: servers send what has accumulated.
    require(tokens < 8 or len(texts) > 1, f"{tokens} tokens of text came in {len(texts)} piece")


def split_pieces(data: bytes, d: Dialect) -> list[str]:
    """Return the text of each event of a stream that has any."""
    blocks = data.splitlines() if d.is_ollama else normalize_sse(data).split(b"\n\n")
    answers = [d.fold(block) for block in blocks]
    return [answer.text + answer.reasoning for answer in answers if answer.text or answer.reasoning]


@on_every_dialect("A stream is valid UTF-8, and no character is torn apart between two events.")
async def stream_utf8(s: Session, d: Dialect) -> None:
    exchange = await s.ask(d.path, d.ask_stream(s.model, UNICODE))
    try:
        exchange.body.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"the stream is not UTF-8: {error}") from None
    streamed = d.fold(exchange.body).text
    # The token limit may cut the last character. Elsewhere the model may have written
    # U+FFFD itself, so the check compares with the whole answer.
    if "�" in streamed.rstrip("�"):
        expected = d.read((await s.ask(d.path, d.ask(s.model, UNICODE))).json()).text
        require(streamed == expected, f"streamed {streamed!r}, whole {expected!r}")


@on_every_dialect("Usage counts the prompt and the output; both are positive.")
async def usage(s: Session, d: Dialect) -> None:
    answer = d.read((await ask_whole(s, d)).json())
    require(answer.prompt_tokens, f"prompt tokens are {answer.prompt_tokens!r}")
    require(answer.output_tokens, f"output tokens are {answer.output_tokens!r}")


@on_every_dialect("A longer prompt counts as more tokens, in proportion.")
async def usage_grows(s: Session, d: Dialect) -> None:
    counts: list[int] = []
    for words in (0, 10, 20):
        prompt = "Name a colour." + " apple" * words
        answer = d.read((await s.ask(d.path, d.ask(s.model, prompt, 16))).json())
        counts.append(answer.prompt_tokens or 0)
    first = counts[1] - counts[0]
    second = counts[2] - counts[1]
    # " apple" is one token for most tokenizers; the tolerance is for tokenizers that
    # merge or split words.
    require(
        first >= 5 and abs(first - second) <= 4,
        f"0, 10 and 20 words more are {counts} prompt tokens",
    )


@on_every_dialect(
    "No answer is longer than its limit of tokens, and one that the limit ends says so."
)
async def limit(s: Session, d: Dialect) -> None:
    answer = d.read((await s.ask(d.path, d.ask(s.model, STORY, 16))).json())
    check_limit(answer, 16)


@on_every_dialect(
    "No streamed answer is longer than its limit of tokens, and one that the limit ends says so."
)
async def limit_of_stream(s: Session, d: Dialect) -> None:
    check_limit(d.fold((await s.ask(d.path, d.ask_stream(s.model, STORY, 16))).body), 16)


@on_every_dialect("A limit of one token is honoured.", only=lambda d: d.name != "responses")
async def limit_of_one(s: Session, d: Dialect) -> None:
    check_limit(d.read((await s.ask(d.path, d.ask(s.model, STORY, 1))).json()), 1)


def check_limit(answer: ClientAnswer, limit: int) -> None:
    tokens = answer.output_tokens or 0
    require(tokens <= limit, f"{tokens} output tokens, the limit is {limit}")
    require(
        tokens == limit or answer.reason != "length",
        f"ended by length after {tokens} of {limit} tokens",
    )
    # An answer that reaches the limit may be complete by chance, so the reason is
    # judged only if its sentence is not.
    is_cut = tokens == limit and answer.text.rstrip()[-1:] not in (".", "!", "?", "")
    require(
        not is_cut or answer.reason == "length",
        f"the limit ended the text, and the reason is {answer.reason!r}",
    )


@on_every_dialect(
    "A stop string ends the text before it, and is not part of it.",
    only=lambda d: d.stop is not None,
)
async def stop(s: Session, d: Dialect) -> None:
    text, mark = await choose_stop(s, d)
    answer = d.read((await s.ask(d.path, ask_with_stop(d, s.model, [mark]))).json())
    require(
        answer.text == text[: text.index(mark)],
        f"with stop {mark!r} the text is {answer.text!r}, without {text!r}",
    )
    require(answer.reason == "stop", f"ended by {answer.reason!r}")


@on_every_dialect(
    "No part of a stop string appears in a stream.", only=lambda d: d.stop is not None
)
async def stop_of_stream(s: Session, d: Dialect) -> None:
    text, mark = await choose_stop(s, d)
    body = {**ask_with_stop(d, s.model, [mark]), "stream": True, **d.stream_options}
    answer = d.fold((await s.ask(d.path, body)).body)
    require(
        answer.text == text[: text.index(mark)],
        f"with stop {mark!r} it streams {answer.text!r}, without {text!r}",
    )


@on_every_dialect(
    "Of several stop strings the first that occurs ends the text.",
    only=lambda d: d.stop is not None,
)
async def stop_of_several(s: Session, d: Dialect) -> None:
    text, mark = await choose_stop(s, d)
    answer = d.read(
        (await s.ask(d.path, ask_with_stop(d, s.model, ["never to be found", mark]))).json()
    )
    require(
        answer.text == text[: text.index(mark)],
        f"with stop {mark!r} the text is {answer.text!r}, without {text!r}",
    )


async def choose_stop(s: Session, d: Dialect) -> tuple[str, str]:
    """Return the text of the story, and a stop string from the middle of it. Raises
    Skipped.
    """
    text = (await ask_deterministic(s, d)).text
    # The stop string contains a space, so it spans several tokens, and a stream must
    # hold back its first part.
    start = next(
        (i for i in range(8, len(text) - 8) if text[i] == " " and text[i - 2 : i + 3].isascii()),
        None,
    )
    if start is None:
        raise Skipped("the answer is too short for a stop string")
    return text, text[start - 2 : start + 3]


def ask_with_stop(d: Dialect, model: str, marks: list[str]) -> Json:
    assert d.stop is not None
    return (
        d.ask(model, STORY, options={d.stop: marks})
        if d.is_ollama
        else {**d.ask(model, STORY), d.stop: marks}
    )


@on_every_dialect(
    "The same request with temperature 0 and a seed has the same answer.", level="should"
)
async def reproducible(s: Session, d: Dialect) -> None:
    first = d.read((await ask_whole(s, d)).json())
    second = d.read((await s.ask(d.path, d.ask(s.model, STORY))).json())
    require(first.text == second.text, f"{first.text!r}, and then {second.text!r}")


@on_every_dialect("Requests at the same time have the answers that they have one by one.")
async def concurrent(s: Session, d: Dialect) -> None:
    await ask_deterministic(s, d)
    prompts = [f"Tell me about {topic}." for topic in TOPICS]
    alone = [
        d.read((await s.ask(d.path, d.ask(s.model, prompt, 16))).json()).text for prompt in prompts
    ]
    streams = await asyncio.gather(
        *(s.ask(d.path, d.ask_stream(s.model, prompt, 16)) for prompt in prompts)
    )
    together = [d.fold(stream.body).text for stream in streams]
    # Only an answer that belongs to another request proves a mix-up: batched arithmetic
    # may change an answer.
    mixed = [i for i, text in enumerate(together) if text != alone[i] and text in alone]
    require(not mixed, f"answers went to other requests: alone {alone}, together {together}")
    if alone != together:
        again = [
            d.read((await s.ask(d.path, d.ask(s.model, prompt, 16))).json()).text
            for prompt in prompts
        ]
        if again != alone:
            raise Skipped("answers to the same request differ, so they cannot be compared")
        # Batched arithmetic may sample another token, but not lose the text.
        require(
            all(text for text, other in zip(together, alone, strict=True) if other),
            "a stream has no text",
        )


@on_every_dialect("Optional fields may be null.")
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
        exchange = await s.post(d.path, d.ask(s.model, "Name a colour.", 16, **{name: None}))
        require(
            exchange.status == 200, f"{name}: null is a {exchange.status}: {exchange.message()}"
        )


@on_every_dialect("An unknown field is tolerated, or rejected by name.")
async def unknown_field(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, d.ask(s.model, "Name a colour.", 16, conformance_check=1))
    is_named = exchange.status in (400, 422) and b"conformance_check" in exchange.body
    require(exchange.status == 200 or is_named, f"status {exchange.status}: {exchange.message()}")


@on_every_dialect("A Content-Type with a charset is accepted.")
async def charset(s: Session, d: Dialect) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    exchange = await s.post(d.path, d.ask(s.model, "Name a colour.", 16), headers=headers)
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@on_every_dialect(
    "Every answer has an id of its own, also those of concurrent requests.",
    only=lambda d: not d.is_ollama,
)
async def ids(s: Session, d: Dialect) -> None:
    body = d.ask(s.model, "Name a colour.", 16)
    exchanges = await asyncio.gather(*(s.ask(d.path, body) for _ in range(3)))
    ids = [exchange.json()["id"] for exchange in exchanges]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


@on_every_dialect(
    "A response has the header of its request id, so that a failure can be reported.",
    only=lambda d: not d.is_ollama,
    level="should",
    claims=("request-id",),
)
async def request_id(s: Session, d: Dialect) -> None:
    name = "request-id" if d.name == "messages" else "x-request-id"
    for exchange in (await ask_whole(s, d), await ask_stream(s, d)):
        require(exchange.header(name), f"no {name}")


@on_every_dialect(
    "Text that looks like a control token does not become one.", only=lambda d: d.is_chat
)
async def control_tokens(s: Session, d: Dialect) -> None:
    """Compare token counts: eight control tokens add eight tokens, eight such texts add
    several tokens each.
    """
    plain = await count_prompt(s, d, "Name a colour.")
    for marker in MARKERS:
        more = await count_prompt(s, d, "Name a colour." + f" {marker}" * 8) - plain
        # No added tokens also fail: the marker was parsed and dropped. A space before
        # each marker may be a token.
        tight = await count_prompt(s, d, "Name a colour." + marker * 8) - plain
        require(
            tight > 8 or more > 16,
            f"8 times {marker!r} is {tight} tokens, so each is a control token",
        )


async def count_prompt(s: Session, d: Dialect, prompt: str) -> int:
    return d.read((await s.ask(d.path, d.ask(s.model, prompt, 16))).json()).prompt_tokens or 0


LARGE_CONTEXT = 40_000
"""Context length in tokens above which the too long prompt is not sent as a stream
request.

Tokenizing such a prompt takes so long that some servers send the headers of the stream
first, as a keepalive.
"""


@on_every_dialect(
    "A prompt beyond the context is rejected with an error's status, also if a stream was "
    "requested."
)
async def too_long(s: Session, d: Dialect) -> None:
    context = await find_context(s)
    if context is None or context > 300_000:
        raise Skipped("the length of the context is not known, or too large to be exceeded")
    ask = d.ask_stream if context <= LARGE_CONTEXT else d.ask
    body = ask(s.model, "apple river " * context, 16)
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
        exchange = await s.get("/v1/models")
        models = get_objects(exchange.json(), "data") if exchange.status == 200 else list[Json]()
        for model in models:
            if model.get("id") == s.model or len(models) == 1:
                lengths = [model[name] for name in names if isinstance(model.get(name), int)]
                return lengths[0] if lengths else get_object(model, "meta").get("n_ctx_train")
        return None

    return await s.share("context", find)
