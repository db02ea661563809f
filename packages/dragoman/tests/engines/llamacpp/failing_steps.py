"""Steps of llama.cpp that fail, as its server reports them: an error for every sequence
of the step.
"""

from __future__ import annotations

import asyncio

import pytest

from dragoman.engines.llamacpp import server_lifecycle
from dragoman.engines.llamacpp.client import ChunkReceiver, LlamaCppClient
from dragoman.engines.llamacpp.wire import CompletionBody, CompletionChunk, LlamaCppErrorBody


def fail_steps(patch: pytest.MonkeyPatch, token: int, message: str) -> None:
    """Make each step fail that has a prompt with this token.

    message: what llama.cpp says, for example `Compute error.`
    """
    failure = CompletionChunk(error=LlamaCppErrorBody(message, "server_error"))

    class FailingStepClient(LlamaCppClient):
        def __init__(self, socket: str, key: str) -> None:
            super().__init__(socket, key)
            self._failed: set[asyncio.Event] = set()

        async def complete(self, body: CompletionBody, receive: ChunkReceiver) -> None:
            failed = asyncio.Event()
            self._failed.add(failed)
            waiting = asyncio.create_task(failed.wait())
            computing = asyncio.create_task(super().complete(body, receive))
            if isinstance(body.prompt, tuple) and token in body.prompt:
                for other in self._failed:
                    other.set()
            try:
                await asyncio.wait({waiting, computing}, return_when=asyncio.FIRST_COMPLETED)
                if failed.is_set():
                    receive(failure)
                await computing
            finally:
                self._failed.discard(failed)
                waiting.cancel()
                computing.cancel()

    patch.setattr(server_lifecycle, "LlamaCppClient", FailingStepClient)
