"""Checks of logprobs in Chat Completions."""

from __future__ import annotations

import math

from ..dialects import CHAT
from ..json_objects import get_objects
from ..parsed_response import read_chat
from ..rules.json_values import JsonObject, require
from ..rules.openai_values import check_chat_logprobs
from ..session import Session
from ..sse import parse_chunks
from .chat import AREA, PATH, get_choices, request_chat
from .generation import STORY, request_reproducible


async def request_logprobs(s: Session) -> JsonObject:
    async def request() -> JsonObject:
        return await request_chat(
            s, CHAT.build_request(s.model, STORY, 12, logprobs=True, top_logprobs=3), "logprobs"
        )

    return await s.share("chat.logprobs", request)


def get_entries(reply: JsonObject) -> list[JsonObject]:
    logprobs = reply["choices"][0].get("logprobs")
    require(logprobs and logprobs.get("content"), f"logprobs were requested, but are {logprobs!r}")
    return logprobs["content"]


@AREA.check(
    "Logprob entries have `token`, `logprob`, `bytes` and `top_logprobs`; no `logprob` is above 0."
)
async def logprobs_form(s: Session) -> None:
    reply = await request_logprobs(s)
    get_entries(reply)
    check_chat_logprobs(reply["choices"][0]["logprobs"], "logprobs")


@AREA.check("There is one logprob entry per output token.")
async def logprobs_per_token(s: Session) -> None:
    reply = await request_logprobs(s)
    count = len(get_entries(reply))
    tokens = reply["usage"]["completion_tokens"]
    is_plain = not read_chat(reply).reasoning
    # The EOS token may have no logprob.
    require(
        count in (tokens, tokens - 1) or not is_plain,
        f"{count} logprob entries for {tokens} tokens",
    )


@AREA.check(
    "The concatenated tokens of the logprobs equal the text.", level="should", except_for=("vllm",)
)
async def logprobs_text(s: Session) -> None:
    reply = await request_logprobs(s)
    # Compare bytes: a character may span several tokens, and the text of each is then
    # U+FFFD.
    joined = b"".join(
        bytes(entry["bytes"] or entry["token"].encode()) for entry in get_entries(reply)
    )
    text = read_chat(reply).text
    require(
        joined.decode(errors="replace").startswith(text),
        f"the tokens are {joined!r}, the text is {text!r}",
    )


@AREA.check("`top_logprobs` has the requested number of entries, sorted by descending probability.")
async def logprobs_top(s: Session) -> None:
    for entry in get_entries(await request_logprobs(s)):
        values = [top["logprob"] for top in entry["top_logprobs"]]
        total = sum(math.exp(value) for value in values[:3])
        # Under a constraint fewer tokens may be possible; their probabilities then add
        # up to 1.
        require(len(values) in (3, 4) or total > 0.999, f"3 were requested, {len(values)} returned")
        require(
            values[:3] == sorted(values[:3], reverse=True), f"top_logprobs are not sorted: {values}"
        )
        require(total < 1.01, f"the probabilities of top_logprobs add up to more than 1: {values}")


@AREA.check("With greedy sampling, the sampled token has the highest of its `top_logprobs`.")
async def logprobs_greedy(s: Session) -> None:
    for entry in get_entries(await request_logprobs(s)):
        # The tolerance is for ties of half-precision logits, which a sorting kernel may
        # order differently.
        best = max(top["logprob"] for top in entry["top_logprobs"])
        require(
            entry["logprob"] >= best - 0.2,
            f"{entry['token']!r} has logprob {entry['logprob']}, the highest is {best}",
        )


@AREA.check("The logprobs of a stream have the same tokens as those of the non-streamed response.")
async def logprobs_of_stream(s: Session) -> None:
    await request_reproducible(s, CHAT)
    tokens = [entry["token"] for entry in get_entries(await request_logprobs(s))]
    body = CHAT.build_stream_request(s.model, STORY, 12, logprobs=True, top_logprobs=3)
    choices = get_choices(parse_chunks((await s.request(PATH, body, feature="logprobs")).body))
    streamed = [
        entry["token"]
        for c in choices
        if c.get("logprobs")
        for entry in get_objects(c["logprobs"], "content")
    ]
    require(streamed == tokens, f"stream: {streamed}, non-streamed: {tokens}")
