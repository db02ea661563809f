"""Checks of Completions: forms of the prompt, echo, logprobs, several choices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..dialects import COMPLETIONS
from ..rules.json_values import require
from ..session import Json, Session
from ..sse import parse_chunks, parse_sse
from .chat import is_seconds
from .generation import AREAS, STORY, ask_deterministic, ask_stream, ask_whole

AREA = AREAS["completions"]
PATH = COMPLETIONS.path


async def ask(s: Session, feature: str | None = None, /, **fields: object) -> Json:
    return (
        await s.ask(PATH, COMPLETIONS.ask(s.model, STORY, 12, **fields), feature=feature)
    ).json()


def add_fields() -> None:
    fields: tuple[tuple[str, str, Callable[[Json], object]], ...] = (
        ("object", "`object` is `text_completion`.", lambda r: r["object"] == "text_completion"),
        ("id", "`id` is a text that is not empty.", lambda r: isinstance(r["id"], str) and r["id"]),
        ("created", "`created` is a time in seconds.", lambda r: is_seconds(r["created"])),
        ("text", "The choice has `text`.", lambda r: isinstance(r["choices"][0]["text"], str)),
        (
            "total-tokens",
            "`total_tokens` is the sum.",
            lambda r: (
                r["usage"]["total_tokens"]
                == r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]
            ),
        ),
    )

    def build(judge: Callable[[Json], object], rule: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await ask_whole(s, COMPLETIONS)).json()
            require(judge(reply), f"rule violated: {rule} {str(reply)[:400]}")

        return run

    for name, rule, judge in fields:
        AREA.add(f"field-{name}", rule, build(judge, rule))


add_fields()


@AREA.check("A stream ends with `data: [DONE]`.")
async def stream_done(s: Session) -> None:
    events = [event.data for event in parse_sse((await ask_stream(s, COMPLETIONS)).body)]
    require(
        events[-1:] == ["[DONE]"] and events.count("[DONE]") == 1,
        f"the last events are {events[-2:]}",
    )


@AREA.check("Without `include_usage` there is no usage chunk.")
async def stream_without_usage(s: Session) -> None:
    exchange = await s.ask(PATH, {**COMPLETIONS.ask(s.model, STORY), "stream": True})
    wrong = [
        chunk
        for chunk in parse_chunks(exchange.body)
        if not chunk.get("choices") or chunk.get("usage")
    ]
    require(not wrong, f"chunks with usage or without choices: {wrong[:2]}")


@AREA.check(
    "Without a limit an answer has at most 16 tokens.",
    level="should",
    except_for=("llamacpp", "ollama", "sglang"),
)
async def default_limit(s: Session) -> None:
    body = COMPLETIONS.ask(s.model, STORY)
    del body["max_tokens"]
    reply = (await s.ask(PATH, body)).json()
    require(
        reply["usage"]["completion_tokens"] <= 16, f"{reply['usage']['completion_tokens']} tokens"
    )


@AREA.check("A list of prompts is answered with a choice for each, in order.")
async def prompt_list(s: Session) -> None:
    body = {
        **COMPLETIONS.ask(s.model, "", 8),
        "prompt": ["One two", "Three four five six seven eight nine"],
    }
    reply = (await s.ask(PATH, body, feature="a list of prompts")).json()
    require(
        [choice["index"] for choice in reply["choices"]] == [0, 1], f"choices {reply['choices']}"
    )
    alone = (await s.ask(PATH, COMPLETIONS.ask(s.model, "One two", 8))).json()["usage"][
        "prompt_tokens"
    ]
    require(
        reply["usage"]["prompt_tokens"] > alone,
        f"usage {reply['usage']}, of the first alone {alone}",
    )


@AREA.check("A list of prompts with `n` has n choices for each prompt, numbered prompt by prompt.")
async def prompt_list_with_n(s: Session) -> None:
    body = {**COMPLETIONS.ask(s.model, "", 4), "prompt": ["One", "Two"], "n": 2}
    reply = (await s.ask(PATH, body, feature="n of a list of prompts")).json()
    require(
        [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3],
        f"choices {reply['choices']}",
    )


@AREA.check("A prompt may be token ids.")
async def prompt_ids(s: Session) -> None:
    body = {**COMPLETIONS.ask(s.model, "", 4), "prompt": [300, 301, 302]}
    reply = (await s.ask(PATH, body, feature="token ids")).json()
    count = reply["usage"]["prompt_tokens"]
    # Some servers prepend a BOS token even to token ids.
    require(count in (3, 4), f"3 ids are {count} prompt tokens")


@AREA.check("`echo` puts the prompt before the text.")
async def echo(s: Session) -> None:
    reply = await ask(s, "echo", echo=True)
    require(
        reply["choices"][0]["text"].startswith(STORY),
        f"the text is {reply['choices'][0]['text']!r}",
    )


@AREA.check("The echo is not output: usage does not count it twice.")
async def echo_usage(s: Session) -> None:
    plain, reply = await ask(s), await ask(s, "echo", echo=True)
    require(
        # The second request may hit the prefix cache, so the cached tokens are not
        # compared.
        reply["usage"] | {"prompt_tokens_details": 0}
        == plain["usage"] | {"prompt_tokens_details": 0},
        f"usage {reply['usage']}, without echo {plain['usage']}",
    )


@AREA.check("A streamed echo is the whole echo.")
async def echo_of_stream(s: Session) -> None:
    await ask_deterministic(s, COMPLETIONS)
    whole = (await ask(s, "echo", echo=True))["choices"][0]["text"]
    exchange = await s.ask(
        PATH, COMPLETIONS.ask_stream(s.model, STORY, 12, echo=True), feature="echo"
    )
    streamed = COMPLETIONS.fold(exchange.body).text
    require(streamed == whole, f"streamed {streamed!r}, whole {whole!r}")


@AREA.check("`logprobs` have four columns of the same length, with one entry for each token.")
async def logprobs(s: Session) -> None:
    reply = await ask(s, "logprobs", logprobs=2)
    columns = reply["choices"][0]["logprobs"]
    require(columns, "logprobs were requested, and are absent")
    COMPLETIONS.judge_object(reply)
    count = len(columns["tokens"])
    tokens = reply["usage"]["completion_tokens"]
    require(count in (tokens, tokens - 1), f"{count} logprobs of {tokens} tokens")


@AREA.check("`text_offset` points at each token's place in the text.")
async def logprobs_offsets(s: Session) -> None:
    choice = (await ask(s, "logprobs", logprobs=1))["choices"][0]
    columns = choice["logprobs"]
    start = columns["text_offset"][0]
    for token, offset in zip(columns["tokens"], columns["text_offset"], strict=True):
        is_text = (
            # A token that is part of a character has no text to compare; control tokens
            # lie beyond the end of the text.
            "�" in token
            or choice["text"][offset - start :].startswith(token)
            or offset - start >= len(choice["text"])
        )
        require(is_text, f"{token!r} is not at {offset - start} of {choice['text']!r}")


@AREA.check("`echo` with `logprobs` scores the prompt, whose first token has no logprob.")
async def echo_logprobs(s: Session) -> None:
    reply = await ask(s, "echo with logprobs", echo=True, logprobs=1)
    values = reply["choices"][0]["logprobs"]["token_logprobs"]
    require(values[0] is None and all(value <= 0 for value in values[1:]), f"logprobs {values[:5]}")
    expected = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    require(len(values) in (expected, expected - 1), f"{len(values)} logprobs of {expected} tokens")


@AREA.check("`suffix` is part of the prompt, or rejected.")
async def suffix(s: Session) -> None:
    short = await ask(s, "suffix", suffix="the end")
    long = await ask(s, "suffix", suffix="the end" + " apple" * 30)
    counts = [reply["usage"]["prompt_tokens"] for reply in (short, long)]
    require(counts[1] > counts[0] + 20, f"30 words more of suffix are {counts} prompt tokens")


@AREA.check(
    "`best_of` below `n` is rejected.",
    level="should",
    except_for=("llamacpp", "ollama", "sglang", "vllm"),
)
async def rejects_best_of(s: Session) -> None:
    exchange = await s.post(PATH, COMPLETIONS.ask(s.model, STORY, 4, n=3, best_of=2))
    require(exchange.status in (400, 422), f"status {exchange.status}")


@AREA.check(
    "A prompt of ids outside the vocabulary is rejected, and is not a failure of the server."
)
async def rejects_unknown_ids(s: Session) -> None:
    exchange = await s.post(PATH, {**COMPLETIONS.ask(s.model, "", 4), "prompt": [999_999_999]})
    require(400 <= exchange.status < 500, f"status {exchange.status}: {exchange.message()}")


@AREA.check("Negative ids in a prompt are rejected, and are not a failure of the server.")
async def rejects_negative_ids(s: Session) -> None:
    exchange = await s.post(PATH, {**COMPLETIONS.ask(s.model, "", 4), "prompt": [-1, 5]})
    require(400 <= exchange.status < 500, f"status {exchange.status}: {exchange.message()}")
