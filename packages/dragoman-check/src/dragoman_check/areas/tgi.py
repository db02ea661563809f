"""Checks of TGI's API."""

from __future__ import annotations

import json
from typing import Any

from ..check_catalog import Area
from ..rules import tgi
from ..rules.json_values import require
from ..session import Session
from .generation import STORY

TGI = Area(
    "tgi", claims=("tgi",), source="https://huggingface.github.io/text-generation-inference/"
)


async def generate_tgi(s: Session, path: str = "/generate", **fields: Any) -> bytes:
    parameters = {"max_new_tokens": 12, "details": True, "do_sample": False, **fields}
    return (
        await s.request(path, {"model": s.model, "inputs": STORY, "parameters": parameters})
    ).body


@TGI.check("`/generate` returns `generated_text` and `details`.")
async def tgi_form(s: Session) -> None:
    reply = json.loads(await generate_tgi(s))
    tgi.check_object(reply)
    require(
        reply["details"]["generated_tokens"] <= 12,
        f"{reply['details']['generated_tokens']} tokens, the limit is 12",
    )


@TGI.check(
    "The concatenated tokens of `/generate_stream` equal its text and the text of `/generate`."
)
async def tgi_stream(s: Session) -> None:
    expected = json.loads(await generate_tgi(s))["generated_text"]
    events = tgi.check_stream(await generate_tgi(s, "/generate_stream"))
    require(
        events[-1]["generated_text"] == expected,
        f"stream: {events[-1]['generated_text']!r}, non-streamed: {expected!r}",
    )


@TGI.check("Invalid parameters are rejected with TGI's error body.")
async def tgi_rejects(s: Session) -> None:
    exchange = await s.post(
        "/generate", {"model": s.model, "inputs": STORY, "parameters": {"max_new_tokens": -1}}
    )
    require(exchange.status == 422, f"status {exchange.status}")
    tgi.check_error(exchange.json())
