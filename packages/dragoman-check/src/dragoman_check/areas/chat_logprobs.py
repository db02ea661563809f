"""Checks of logprobs in Chat Completions."""

from __future__ import annotations

import math

from ..client_answer import read_chat
from ..dialects import CHAT
from ..rules.json_values import require
from ..rules.openai_values import check_chat_logprobs
from ..session import Json, Session, get_objects
from ..sse import parse_chunks
from .chat import AREA, PATH, ask_chat, get_choices
from .generation import STORY, ask_deterministic


async def ask_logprobs(s: Session) -> Json:
    async def ask() -> Json:
        return await ask_chat(
            s, CHAT.ask(s.model, STORY, 12, logprobs=True, top_logprobs=3), "logprobs"
        )

    return await s.share("chat.logprobs", ask)


def get_entries(reply: Json) -> list[Json]:
    logprobs = reply["choices"][0].get("logprobs")
    require(logprobs and logprobs.get("content"), f"logprobs were requested, and are {logprobs!r}")
    return logprobs["content"]


@AREA.check("Logprobs have token, logprob, bytes and top_logprobs, and no logprob is above 0.")
async def logprobs_form(s: Session) -> None:
    reply = await ask_logprobs(s)
    get_entries(reply)
    check_chat_logprobs(reply["choices"][0]["logprobs"], "logprobs")


@AREA.check("There is one logprob for each token of the text.")
async def logprobs_per_token(s: Session) -> None:
    reply = await ask_logprobs(s)
    count = len(get_entries(reply))
    tokens = reply["usage"]["completion_tokens"]
    is_plain = not read_chat(reply).reasoning
    # The EOS token may have no logprob.
    require(count in (tokens, tokens - 1) or not is_plain, f"{count} logprobs of {tokens} tokens")


@AREA.check(
    "The tokens of the logprobs, joined, are the text.", level="should", except_for=("vllm",)
)
async def logprobs_text(s: Session) -> None:
    reply = await ask_logprobs(s)
    # Compare bytes: a character may span several tokens, and the text of each is then
    # U+FFFD.
    joined = b"".join(
        bytes(entry["bytes"] or entry["token"].encode()) for entry in get_entries(reply)
    )
    text = read_chat(reply).text
    require(
        joined.decode(errors="replace").startswith(text),
        f"the tokens say {joined!r}, the text is {text!r}",
    )


@AREA.check("`top_logprobs` are as many as requested, the likeliest first.")
async def logprobs_top(s: Session) -> None:
    for entry in get_entries(await ask_logprobs(s)):
        values = [top["logprob"] for top in entry["top_logprobs"]]
        total = sum(math.exp(value) for value in values[:3])
        # Under a constraint fewer tokens may be possible; their probabilities then add
        # up to 1.
        require(len(values) in (3, 4) or total > 0.999, f"3 were requested, {len(values)} came")
        require(values[:3] == sorted(values[:3], reverse=True), f"they are not sorted: {values}")
        require(total < 1.01, f"their probabilities add up to more than 1: {values}")


@AREA.check("The sampled token of a greedy answer is the first of its `top_logprobs`.")
async def logprobs_greedy(s: Session) -> None:
    for entry in get_entries(await ask_logprobs(s)):
        # The tolerance is for ties of half-precision logits, which a sorting kernel may
        # order differently.
        best = max(top["logprob"] for top in entry["top_logprobs"])
        require(
            entry["logprob"] >= best - 0.2,
            f"{entry['token']!r} at {entry['logprob']}, the best is {best}",
        )


@AREA.check("The stream's logprobs are those of the whole answer.")
async def logprobs_of_stream(s: Session) -> None:
    await ask_deterministic(s, CHAT)
    tokens = [entry["token"] for entry in get_entries(await ask_logprobs(s))]
    body = CHAT.ask_stream(s.model, STORY, 12, logprobs=True, top_logprobs=3)
    choices = get_choices(parse_chunks((await s.ask(PATH, body, feature="logprobs")).body))
    streamed = [
        entry["token"]
        for c in choices
        if c.get("logprobs")
        for entry in get_objects(c["logprobs"], "content")
    ]
    require(streamed == tokens, f"streamed {streamed}, whole {tokens}")
