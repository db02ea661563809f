"""Checks of Completions: prompt formats, echo, logprobs, several choices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..dialects import COMPLETIONS
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks, parse_sse
from .chat import is_seconds
from .generation import AREAS, STORY, request_reproducible, request_stream, request_unstreamed

AREA = AREAS["completions"]
PATH = COMPLETIONS.path


async def request_completion(
    s: Session, feature: str | None = None, /, **fields: object
) -> JsonObject:
    return (
        await s.request(
            PATH, COMPLETIONS.build_request(s.model, STORY, 12, **fields), feature=feature
        )
    ).json()


def add_fields() -> None:
    fields: tuple[tuple[str, str, Callable[[JsonObject], object]], ...] = (
        ("object", "`object` is `text_completion`.", lambda r: r["object"] == "text_completion"),
        ("id", "`id` is a non-empty string.", lambda r: isinstance(r["id"], str) and r["id"]),
        ("created", "`created` is a Unix time in seconds.", lambda r: is_seconds(r["created"])),
        ("text", "`text` is a string.", lambda r: isinstance(r["choices"][0]["text"], str)),
        (
            "total-tokens",
            "`total_tokens` is the sum of `prompt_tokens` and `completion_tokens`.",
            lambda r: (
                r["usage"]["total_tokens"]
                == r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]
            ),
        ),
    )

    def build(
        predicate: Callable[[JsonObject], object], rule: str
    ) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await request_unstreamed(s, COMPLETIONS)).json()
            require(predicate(reply), f"rule violated: {rule} The response is {str(reply)[:400]}")

        return run

    for name, rule, predicate in fields:
        AREA.add(f"field-{name}", rule, build(predicate, rule))


add_fields()


@AREA.check("A stream ends with a single `data: [DONE]`.")
async def stream_done(s: Session) -> None:
    events = [event.data for event in parse_sse((await request_stream(s, COMPLETIONS)).body)]
    require(
        events[-1:] == ["[DONE]"] and events.count("[DONE]") == 1,
        f"the last events are {events[-2:]}",
    )


@AREA.check("Without `include_usage`, no chunk has `usage` or empty `choices`.")
async def stream_without_usage(s: Session) -> None:
    exchange = await s.request(PATH, {**COMPLETIONS.build_request(s.model, STORY), "stream": True})
    wrong = [
        chunk
        for chunk in parse_chunks(exchange.body)
        if not chunk.get("choices") or chunk.get("usage")
    ]
    require(not wrong, f"chunks with usage or without choices: {wrong[:2]}")


@AREA.check(
    "The default output token limit is 16.",
    level="should",
    except_for=("llamacpp", "ollama", "sglang"),
)
async def default_limit(s: Session) -> None:
    body = COMPLETIONS.build_request(s.model, STORY)
    del body["max_tokens"]
    reply = (await s.request(PATH, body)).json()
    tokens = reply["usage"]["completion_tokens"]
    is_truncated = reply["choices"][0]["finish_reason"] == "length"
    require(tokens == 16 if is_truncated else tokens <= 16, f"{tokens} tokens")


@AREA.check("A list of prompts returns one choice per prompt, in order.")
async def prompt_list(s: Session) -> None:
    body = {
        **COMPLETIONS.build_request(s.model, "", 8),
        "prompt": ["One two", "Three four five six seven eight nine"],
    }
    reply = (await s.request(PATH, body, feature="a list of prompts")).json()
    require(
        [choice["index"] for choice in reply["choices"]] == [0, 1],
        f"the choices are {reply['choices']}",
    )
    alone = (await s.request(PATH, COMPLETIONS.build_request(s.model, "One two", 8))).json()[
        "usage"
    ]["prompt_tokens"]
    require(
        reply["usage"]["prompt_tokens"] > alone,
        f"usage is {reply['usage']}, with the first prompt alone {alone} prompt tokens",
    )


@AREA.check("A list of prompts with `n` returns n choices per prompt, grouped by prompt.")
async def prompt_list_with_n(s: Session) -> None:
    body = {**COMPLETIONS.build_request(s.model, "", 4), "prompt": ["One", "Two"], "n": 2}
    reply = (await s.request(PATH, body, feature="n of a list of prompts")).json()
    require(
        [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3],
        f"the choices are {reply['choices']}",
    )


@AREA.check("A prompt may be a list of token ids.")
async def prompt_ids(s: Session) -> None:
    body = {**COMPLETIONS.build_request(s.model, "", 4), "prompt": [300, 301, 302]}
    reply = (await s.request(PATH, body, feature="token ids")).json()
    count = reply["usage"]["prompt_tokens"]
    # Some servers prepend a BOS token even to token ids.
    require(count in (3, 4), f"{count} prompt tokens for 3 token ids")


@AREA.check("With `echo`, the text starts with the prompt.")
async def echo(s: Session) -> None:
    reply = await request_completion(s, "echo", echo=True)
    require(
        reply["choices"][0]["text"].startswith(STORY),
        f"the text is {reply['choices'][0]['text']!r}",
    )


@AREA.check("With `echo`, usage counts the prompt once, as input.")
async def echo_usage(s: Session) -> None:
    plain, reply = await request_completion(s), await request_completion(s, "echo", echo=True)
    require(
        # The second request may hit the prefix cache, so the cached tokens are not
        # compared.
        reply["usage"] | {"prompt_tokens_details": 0}
        == plain["usage"] | {"prompt_tokens_details": 0},
        f"usage with echo: {reply['usage']}, without: {plain['usage']}",
    )


@AREA.check("With `echo`, the text of a stream equals the text of the non-streamed response.")
async def echo_of_stream(s: Session) -> None:
    await request_reproducible(s, COMPLETIONS)
    expected = (await request_completion(s, "echo", echo=True))["choices"][0]["text"]
    exchange = await s.request(
        PATH, COMPLETIONS.build_stream_request(s.model, STORY, 12, echo=True), feature="echo"
    )
    streamed = COMPLETIONS.fold(exchange.body).text
    require(streamed == expected, f"stream: {streamed!r}, non-streamed: {expected!r}")


@AREA.check("`logprobs` has four lists of equal length, with one entry per token.")
async def logprobs(s: Session) -> None:
    reply = await request_completion(s, "logprobs", logprobs=2)
    columns = reply["choices"][0]["logprobs"]
    require(columns, "logprobs were requested, but are absent")
    COMPLETIONS.check_object(reply)
    count = len(columns["tokens"])
    tokens = reply["usage"]["completion_tokens"]
    require(count in (tokens, tokens - 1), f"{count} logprob entries for {tokens} tokens")


@AREA.check("`text_offset` is the position of each token in the text.")
async def logprobs_offsets(s: Session) -> None:
    choice = (await request_completion(s, "logprobs", logprobs=1))["choices"][0]
    columns = choice["logprobs"]
    start = columns["text_offset"][0]
    for token, offset in zip(columns["tokens"], columns["text_offset"], strict=True):
        is_text = (
            # A token that is part of a character has no text to compare; control tokens
            # are after the end of the text.
            "�" in token
            or choice["text"][offset - start :].startswith(token)
            or offset - start >= len(choice["text"])
        )
        require(is_text, f"{token!r} is not at position {offset - start} of {choice['text']!r}")


@AREA.check("`echo` with `logprobs` returns logprobs of the prompt, `null` for its first token.")
async def echo_logprobs(s: Session) -> None:
    reply = await request_completion(s, "echo with logprobs", echo=True, logprobs=1)
    values = reply["choices"][0]["logprobs"]["token_logprobs"]
    require(
        values[0] is None and all(value <= 0 for value in values[1:]),
        f"token_logprobs starts with {values[:5]}",
    )
    expected = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    require(
        len(values) in (expected, expected - 1),
        f"{len(values)} logprob entries for {expected} tokens",
    )


@AREA.check("`suffix` is part of the prompt, or rejected.")
async def suffix(s: Session) -> None:
    short = await request_completion(s, "suffix", suffix="the end")
    long = await request_completion(s, "suffix", suffix="the end" + " apple" * 30)
    counts = [reply["usage"]["prompt_tokens"] for reply in (short, long)]
    require(counts[1] > counts[0] + 20, f"prompt tokens with a suffix of 2 and 32 words: {counts}")


@AREA.check(
    "`best_of` below `n` is rejected.",
    level="should",
    except_for=("llamacpp", "ollama", "sglang", "vllm"),
)
async def rejects_best_of(s: Session) -> None:
    exchange = await s.post(PATH, COMPLETIONS.build_request(s.model, STORY, 4, n=3, best_of=2))
    require(exchange.status in (400, 422), f"status {exchange.status}")


@AREA.check("A prompt with token ids outside the vocabulary is rejected with a 4xx status.")
async def rejects_unknown_ids(s: Session) -> None:
    exchange = await s.post(
        PATH, {**COMPLETIONS.build_request(s.model, "", 4), "prompt": [999_999_999]}
    )
    require(400 <= exchange.status < 500, f"status {exchange.status}: {exchange.message()}")


@AREA.check("A prompt with negative token ids is rejected with a 4xx status.")
async def rejects_negative_ids(s: Session) -> None:
    exchange = await s.post(PATH, {**COMPLETIONS.build_request(s.model, "", 4), "prompt": [-1, 5]})
    require(400 <= exchange.status < 500, f"status {exchange.status}: {exchange.message()}")
