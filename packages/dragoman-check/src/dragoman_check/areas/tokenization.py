"""Checks of tokenization: vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..rules.json_values import require
from ..session import Session
from .generation import STORY
from .vllm import VLLM_DOCS, complete, request_chat

TOKENIZE = Area("tokenize", claims=("tokenize",), source=VLLM_DOCS)


@TOKENIZE.check("For a text, `/tokenize` returns the prompt token count that usage reports.")
async def count(s: Session) -> None:
    reply = (
        await s.request(
            "/tokenize", {"model": s.model, "prompt": STORY}, feature="/tokenize of this model"
        )
    ).json()
    require(
        reply["count"] == len(reply["tokens"]),
        f"count is {reply['count']}, but there are {len(reply['tokens'])} tokens",
    )
    usage = (await complete(s))["usage"]["prompt_tokens"]
    require(reply["count"] == usage, f"count is {reply['count']}, usage reports {usage}")


@TOKENIZE.check("`/detokenize` is the inverse of `/tokenize`.")
async def detokenize(s: Session) -> None:
    text = "A dog, 日本語 and \U0001f600."
    body = {"model": s.model, "prompt": text, "add_special_tokens": False}
    tokens = (await s.request("/tokenize", body, feature="/tokenize of this model")).json()[
        "tokens"
    ]
    reply = (await s.request("/detokenize", {"model": s.model, "tokens": tokens})).json()
    require(reply["prompt"] == text, f"{text!r} is returned as {reply['prompt']!r}")


@TOKENIZE.check(
    "For a conversation, `/tokenize` returns the prompt token count that usage reports."
)
async def count_messages(s: Session) -> None:
    body = {"model": s.model, "messages": [{"role": "user", "content": STORY}]}
    exchange = await s.post("/tokenize", body)
    if exchange.status == 400:
        raise Skipped(f"the server rejects the request: {exchange.message()}")
    usage = (await request_chat(s))["usage"]["prompt_tokens"]
    require(
        exchange.json()["count"] == usage,
        f"count is {exchange.json()['count']}, usage reports {usage}",
    )


@TOKENIZE.check("Invalid requests are rejected with a 4xx status.")
async def rejects(s: Session) -> None:
    for path, body in (
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
    ):
        exchange = await s.post(path, {"model": s.model, **body})
        require(400 <= exchange.status < 500, f"{path} {body}: status {exchange.status}")
