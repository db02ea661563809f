"""A third-party program that uses only the public names of `dragoman`; its types are
checked strictly.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import dragoman
from dragoman import (
    BaseEngine,
    BaseTokenEngine,
    ChoiceFinished,
    Conversation,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    Reply,
    ReplyBuilder,
    Started,
    Text,
    TextDelta,
    Token,
    TokenRequest,
    Usage,
)


class Shouter(BaseEngine):
    """An engine that repeats the prompt in capital letters."""

    max_model_len = 1000

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        words = join_text(request).upper().split()
        if len(words) >= self.max_model_len:
            raise dragoman.ContextTooLong(limit=self.max_model_len, prompt=len(words))
        yield Started(len(words), choices=request.choices)
        for choice in range(request.choices):
            for id, word in enumerate(words):
                yield TextDelta(choice, f"{word} ", (Token(id, f"{word} "),))
            yield ChoiceFinished(choice, FinishReason.STOP)
        yield Finished(Usage(len(words), len(words) * request.choices))


class Dice(BaseTokenEngine):
    """An engine that samples uniformly from the tokens that the request allows."""

    capabilities = dragoman.CONSTRAINED_TOKEN_CAPABILITIES

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        chance = random.Random(0)
        while True:
            mask = b"\xff" * 32 if request.matcher is None else request.matcher.mask()
            yield chance.choice(
                [id for id in range(8 * len(mask)) if mask[id >> 3] >> (id & 7) & 1]
            )


def join_text(request: GenerateRequest) -> str:
    if not isinstance(request.prompt, Conversation):
        return request.prompt if isinstance(request.prompt, str) else ""
    parts = [part for message in request.prompt.messages for part in message.parts]
    return " ".join(part.text for part in parts if isinstance(part, Text))


def create(argument: str, settings: dragoman.Settings) -> dragoman.Engine:
    """A factory, for `dragoman serve python:public_api_example:create`."""
    return Shouter()


async def translate(body: bytes) -> bytes:
    """Answer an Anthropic request in the format of OpenAI's Chat Completions."""
    call = dragoman.read_request("messages", body)
    writer = dragoman.create_writer("chat", "chatcmpl-1", model="shouter")
    builder = ReplyBuilder()
    async for event in Shouter().generate(call.requests[0]):
        builder.feed(event)
    reply: Reply = builder.build()
    return writer.render_full(reply)


def build_app(tokenizer: Path) -> dragoman.Application:
    engines = {"shouter": Shouter(), "dice": Dice(tokenizer, max_model_len=2048)}
    return dragoman.create_app(engines=engines, store="memory")


if __name__ == "__main__":
    sys.stdout.buffer.write(asyncio.run(translate(sys.stdin.buffer.read())))
