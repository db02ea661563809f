"""An engine that repeats the prompt word by word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from dragoman import (
    Capabilities,
    ChoiceFinished,
    ContextTooLong,
    Conversation,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    Health,
    Started,
    Text,
    TextDelta,
    Token,
    Usage,
)


class Parrot:
    capabilities = Capabilities(parameters=frozenset({"seed", "temperature"}))
    max_model_len = 4096

    def __init__(self, *, is_loud: bool) -> None:
        self._is_loud = is_loud

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        words = find_text(request).split() or ["..."]
        left = self.max_model_len - len(words)
        if left < 1:
            raise ContextTooLong(limit=self.max_model_len, prompt=len(words))
        count = min(request.limits.max_tokens or left, left)
        yield Started(len(words), choices=request.choices)
        for number in range(count):
            word = words[number % len(words)] + " "
            text = word.upper() if self._is_loud else word
            for choice in range(request.choices):
                yield TextDelta(choice, text, (Token(number % len(words), text),))
            await asyncio.sleep(0)
        for choice in range(request.choices):
            yield ChoiceFinished(choice, FinishReason.LENGTH)
        yield Finished(Usage(len(words), count * request.choices, 0))


def find_text(request: GenerateRequest) -> str:
    if not isinstance(request.prompt, Conversation):
        return str(request.prompt)
    parts = [part for message in request.prompt.messages for part in message.parts]
    return " ".join(part.text for part in parts if isinstance(part, Text))
