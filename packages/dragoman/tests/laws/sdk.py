"""Parse a writer's output with the official openai SDK through its public interface,
without a network.
"""

from __future__ import annotations

import httpx2
import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion

from dragoman.core.events import Event
from dragoman.dialects.interfaces import Writer


def write_stream(writer: Writer, events: tuple[Event, ...]) -> bytes:
    """Return the whole stream as bytes, including its end."""
    return b"".join(writer.feed(event) for event in events) + writer.end


class OpenAiSdk:
    def __init__(self) -> None:
        self._stream = b""
        transport = httpx2.MockTransport(self._answer)
        self._client = openai.OpenAI(
            api_key="x",
            base_url="http://test/v1",
            http_client=httpx2.Client(transport=transport),
            max_retries=0,
        )

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, content=self._stream, headers={"content-type": "text/event-stream"}
        )

    def chat(self, stream: bytes) -> ChatCompletion:
        """Return the final completion of `.stream()`. Raises openai.APIError for an
        error event.
        """
        self._stream = stream
        with self._client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}]
        ) as events:
            for _ in events:
                pass
            return events.current_completion_snapshot

    def completions(self, stream: bytes) -> list[Completion]:
        """Return the chunks, which the SDK does not accumulate."""
        self._stream = stream
        return list(self._client.completions.create(model="m", prompt="hi", stream=True))
