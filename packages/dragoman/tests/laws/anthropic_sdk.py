"""Parse a writer's output with the official anthropic SDK through its public interface,
without a network.
"""

from __future__ import annotations

from collections.abc import Callable

import anthropic
import httpx2
from anthropic.types import Message
from anthropic.types.beta import BetaMessage

Answer = Callable[[httpx2.Request], httpx2.Response]


def client(answer: Answer) -> anthropic.Anthropic:
    transport = httpx2.MockTransport(answer)
    return anthropic.Anthropic(
        api_key="x",
        base_url="http://test",
        http_client=httpx2.Client(transport=transport),
        max_retries=0,
    )


def as_stream(data: bytes) -> httpx2.Response:
    return httpx2.Response(200, content=data, headers={"content-type": "text/event-stream"})


class AnthropicSdk:
    def __init__(self) -> None:
        self._stream = b""
        self._client = client(lambda _: as_stream(self._stream))

    def message(self, stream: bytes) -> Message:
        """Return the final message of `.stream()`. Raises anthropic.APIError for an
        error event.
        """
        self._stream = stream
        with self._client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as events:
            return events.get_final_message()

    def edited_message(self, stream: bytes) -> BetaMessage:
        """Return the final message of the beta client, which supports context edits."""
        self._stream = stream
        with self._client.beta.messages.stream(
            model="m",
            max_tokens=9,
            messages=[{"role": "user", "content": "hi"}],
            betas=["context-management-2025-06-27"],
            context_management={"edits": []},
        ) as events:
            return events.get_final_message()
