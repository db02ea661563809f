"""The official SDK against our reader and writer, in one process; a script provides the
model's answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2

from dragoman.core.errors import RequestError
from dragoman.core.events import Event
from dragoman.core.message import Message
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import Conversation
from dragoman.dialects.anthropic import map_anthropic_status, read_messages, render_anthropic_error
from dragoman.dialects.interfaces import GenerationCall, Header

from ...laws.anthropic_sdk import as_stream, client
from .bodies import OPTIONS

Script = Callable[[tuple[Message, ...]], tuple[Event, ...]]


class Served:
    """The received prompts, and an SDK that sends requests."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.bodies: list[dict[str, Any]] = []
        self.sdk: anthropic.Anthropic = client(self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        try:
            call = read_messages(request.content, OPTIONS)
        except RequestError as error:
            return httpx2.Response(
                map_anthropic_status(error), content=render_anthropic_error(error, "req_1")
            )
        return self._written(call)

    def _written(self, call: GenerationCall) -> httpx2.Response:
        prompt = call.requests[0].prompt
        assert isinstance(prompt, Conversation)
        writer = call.writer(Header(f"msg_{len(self.bodies)}", 1, "tiny"))
        events = self._script(prompt.messages)
        if call.stream:
            return as_stream(b"".join(writer.feed(event) for event in events) + writer.end)
        folded = ReplyBuilder()
        for event in events:
            folded.feed(event)
        return httpx2.Response(
            200,
            content=writer.render_full(folded.build()),
            headers={"content-type": "application/json"},
        )
