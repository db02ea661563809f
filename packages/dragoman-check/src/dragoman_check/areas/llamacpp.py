"""Checks of llama.cpp's API."""

from __future__ import annotations

import json

from ..rules.json_values import require
from ..session import Area, Session
from .generation import STORY

LLAMACPP = Area(
    "llamacpp",
    claims=("llamacpp",),
    source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
)


@LLAMACPP.check("`/props` has the model's context.")
async def props(s: Session) -> None:
    reply = (await s.get("/props")).json()
    require(reply.get("default_generation_settings"), f"props {sorted(reply)}")


@LLAMACPP.check("`/completion` answers with content and timings.")
async def completion(s: Session) -> None:
    reply = (await s.ask("/completion", {"prompt": STORY, "n_predict": 8, "temperature": 0})).json()
    require(reply["content"] and reply["tokens_predicted"] <= 8, f"it is {str(reply)[:200]}")


@LLAMACPP.check("`/completion` streams what it answers.")
async def completion_stream(s: Session) -> None:
    body = {"prompt": STORY, "n_predict": 8, "temperature": 0, "seed": 1}
    whole = (await s.ask("/completion", body)).json()["content"]
    exchange = await s.ask("/completion", {**body, "stream": True})
    pieces = [
        json.loads(line[6:])["content"]
        for line in exchange.body.decode().splitlines()
        if line.startswith("data: {")
    ]
    require("".join(pieces) == whole, f"streamed {''.join(pieces)!r}, whole {whole!r}")


@LLAMACPP.check("`/tokenize` and `/detokenize` are inverse.")
async def llamacpp_tokens(s: Session) -> None:
    tokens = (await s.ask("/tokenize", {"content": "A dog."})).json()["tokens"]
    reply = (await s.ask("/detokenize", {"tokens": tokens})).json()
    require(reply["content"].strip() == "A dog.", f"it comes back as {reply['content']!r}")
