"""Checks of llama.cpp's API."""

from __future__ import annotations

from ..check_catalog import Area
from ..rules.json_values import require
from ..session import Session
from ..sse import parse_chunks
from .generation import STORY

LLAMACPP = Area(
    "llamacpp",
    claims=("llamacpp",),
    source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
)


@LLAMACPP.check("`/props` returns `default_generation_settings`.")
async def props(s: Session) -> None:
    reply = (await s.get("/props")).json()
    require(reply.get("default_generation_settings"), f"the fields are {sorted(reply)}")


@LLAMACPP.check("`/completion` returns `content` and `tokens_predicted`.")
async def completion(s: Session) -> None:
    reply = (
        await s.request("/completion", {"prompt": STORY, "n_predict": 8, "temperature": 0})
    ).json()
    require(
        reply["content"] and reply["tokens_predicted"] <= 8, f"the response is {str(reply)[:200]}"
    )


@LLAMACPP.check(
    "The concatenated text of a `/completion` stream equals the non-streamed `content`."
)
async def completion_stream(s: Session) -> None:
    body = {"prompt": STORY, "n_predict": 8, "temperature": 0, "seed": 1}
    expected = (await s.request("/completion", body)).json()["content"]
    exchange = await s.request("/completion", {**body, "stream": True})
    pieces = [chunk["content"] for chunk in parse_chunks(exchange.body)]
    require(
        "".join(pieces) == expected,
        f"stream: {''.join(pieces)!r}, non-streamed: {expected!r}",
    )


@LLAMACPP.check("`/detokenize` is the inverse of `/tokenize`.")
async def llamacpp_tokens(s: Session) -> None:
    tokens = (await s.request("/tokenize", {"content": "A dog."})).json()["tokens"]
    reply = (await s.request("/detokenize", {"tokens": tokens})).json()
    require(reply["content"].strip() == "A dog.", f"the text is returned as {reply['content']!r}")
