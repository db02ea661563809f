"""Checks of SGLang's API."""

from __future__ import annotations

from typing import Any

from ..check_catalog import Area
from ..rules import sglang
from ..rules.json_values import JsonObject, require
from ..session import Session
from .generation import STORY

SGLANG = Area(
    "sglang", claims=("sglang",), source="https://docs.sglang.ai/basic_usage/native_api.html"
)


async def generate_sglang(s: Session, **fields: Any) -> JsonObject:
    params = {"max_new_tokens": 12, "temperature": 0}
    body = {"model": s.model, "text": STORY, "sampling_params": params, **fields}
    return (await s.request("/generate", body)).json()


@SGLANG.check("`/generate` returns `text`, `output_ids` and `meta_info`.")
async def form(s: Session) -> None:
    sglang.check_object(await generate_sglang(s))


@SGLANG.check(
    "Stream events of `/generate` have the cumulative text; the last equals the text of "
    "the non-streamed response."
)
async def stream(s: Session) -> None:
    expected = await generate_sglang(s)
    params = {"max_new_tokens": 12, "temperature": 0}
    body = {"model": s.model, "text": STORY, "sampling_params": params, "stream": True}
    last = sglang.check_stream((await s.request("/generate", body)).body)[-1]
    require(
        last["text"] == expected["text"],
        f"stream: {last['text']!r}, non-streamed: {expected['text']!r}",
    )


@SGLANG.check("`return_logprob` returns one logprob per token.")
async def sglang_logprobs(s: Session) -> None:
    reply = await generate_sglang(s, return_logprob=True)
    sglang.check_object(reply)
    require(
        len(reply["meta_info"]["output_token_logprobs"]) == len(reply["output_ids"]),
        "the numbers of logprobs and ids differ",
    )


@SGLANG.check("`input_ids` are accepted as the prompt.")
async def sglang_ids(s: Session) -> None:
    body = {
        "model": s.model,
        "input_ids": [300, 301, 302],
        "sampling_params": {"max_new_tokens": 4},
    }
    reply = (await s.request("/generate", body)).json()
    require(reply["meta_info"]["prompt_tokens"] == 3, f"meta_info is {reply['meta_info']}")
