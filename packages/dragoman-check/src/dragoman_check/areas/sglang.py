"""Checks of SGLang's API."""

from __future__ import annotations

from typing import Any

from ..rules import sglang
from ..rules.json_values import require
from ..session import Area, Json, Session
from .generation import STORY

SGLANG = Area(
    "sglang", claims=("sglang",), source="https://docs.sglang.ai/basic_usage/native_api.html"
)


async def generate_sglang(s: Session, **fields: Any) -> Json:
    params = {"max_new_tokens": 12, "temperature": 0}
    body = {"model": s.model, "text": STORY, "sampling_params": params, **fields}
    return (await s.ask("/generate", body)).json()


@SGLANG.check("`/generate` has text, ids and meta_info.")
async def form(s: Session) -> None:
    sglang.check_object(await generate_sglang(s))


@SGLANG.check("A stream of `/generate` has the cumulative text, and ends as the whole answer.")
async def stream(s: Session) -> None:
    whole = await generate_sglang(s)
    params = {"max_new_tokens": 12, "temperature": 0}
    body = {"model": s.model, "text": STORY, "sampling_params": params, "stream": True}
    last = sglang.check_stream((await s.ask("/generate", body)).body)[-1]
    require(last["text"] == whole["text"], f"streamed {last['text']!r}, whole {whole['text']!r}")


@SGLANG.check("`return_logprob` has a logprob for each token.")
async def sglang_logprobs(s: Session) -> None:
    reply = await generate_sglang(s, return_logprob=True)
    sglang.check_object(reply)
    require(
        len(reply["meta_info"]["output_token_logprobs"]) == len(reply["output_ids"]),
        "counts of logprobs and ids differ",
    )


@SGLANG.check("`input_ids` are a prompt.")
async def sglang_ids(s: Session) -> None:
    body = {
        "model": s.model,
        "input_ids": [300, 301, 302],
        "sampling_params": {"max_new_tokens": 4},
    }
    reply = (await s.ask("/generate", body)).json()
    require(reply["meta_info"]["prompt_tokens"] == 3, f"meta_info {reply['meta_info']}")
