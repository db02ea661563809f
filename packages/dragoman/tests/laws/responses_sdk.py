"""Parse a stream of Responses with the official openai SDK through its public
interface, without a network.
"""

from __future__ import annotations

from typing import Any

import httpx2
import openai
from openai.lib.streaming.responses import (
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseTextDeltaEvent,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
)

JsonObject = dict[str, Any]


class ResponsesSdk:
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

    def response(self, stream: bytes) -> tuple[Response, dict[int, str]]:
        """Return the last event's object, and the texts and arguments that the SDK
        accumulated from deltas, by item.

        Raises openai.APIError for an error event.
        """
        self._stream = stream
        last: Response | None = None
        snapshots: dict[int, str] = {}
        with self._client.responses.stream(model="m", input="hi") as events:
            for event in events:
                if isinstance(
                    event, ResponseTextDeltaEvent | ResponseFunctionCallArgumentsDeltaEvent
                ):
                    snapshots[event.output_index] = event.snapshot
                elif isinstance(
                    event, ResponseCompletedEvent | ResponseIncompleteEvent | ResponseFailedEvent
                ):
                    last = event.response
        assert last is not None
        return last, snapshots
