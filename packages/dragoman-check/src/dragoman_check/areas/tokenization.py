"""Checks of tokenization: vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

from ..rules.json_values import require
from ..session import Area, Session, Skipped
from .generation import STORY
from .vllm import VLLM_DOCS, ask_chat, complete

TOKENIZE = Area("tokenize", claims=("tokenize",), source=VLLM_DOCS)


@TOKENIZE.check("`/tokenize` counts the tokens of a text as the usage does.")
async def count(s: Session) -> None:
    reply = (
        await s.ask(
            "/tokenize", {"model": s.model, "prompt": STORY}, feature="/tokenize of this model"
        )
    ).json()
    require(
        reply["count"] == len(reply["tokens"]),
        f"count {reply['count']}, {len(reply['tokens'])} tokens",
    )
    usage = (await complete(s))["usage"]["prompt_tokens"]
    require(reply["count"] == usage, f"count {reply['count']}, usage {usage}")


@TOKENIZE.check("`/detokenize` is the inverse of `/tokenize`.")
async def detokenize(s: Session) -> None:
    text = "A dog, 日本語 and \U0001f600."
    body = {"model": s.model, "prompt": text, "add_special_tokens": False}
    tokens = (await s.ask("/tokenize", body, feature="/tokenize of this model")).json()["tokens"]
    reply = (await s.ask("/detokenize", {"model": s.model, "tokens": tokens})).json()
    require(reply["prompt"] == text, f"{text!r} comes back as {reply['prompt']!r}")


@TOKENIZE.check("`/tokenize` counts a conversation as the usage does.")
async def count_messages(s: Session) -> None:
    body = {"model": s.model, "messages": [{"role": "user", "content": STORY}]}
    exchange = await s.post("/tokenize", body)
    if exchange.status == 400:
        raise Skipped(f"the server rejects the request: {exchange.message()}")
    usage = (await ask_chat(s))["usage"]["prompt_tokens"]
    require(exchange.json()["count"] == usage, f"count {exchange.json()['count']}, usage {usage}")


@TOKENIZE.check("Invalid requests are rejected.")
async def rejects(s: Session) -> None:
    for path, body in (
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
    ):
        exchange = await s.post(path, {"model": s.model, **body})
        require(400 <= exchange.status < 500, f"{path} {body}: status {exchange.status}")
