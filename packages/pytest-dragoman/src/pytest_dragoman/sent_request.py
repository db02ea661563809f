"""What a client sent, and how its request ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from dragoman import Conversation, GenerateRequest, Message, Role, Text, ToolCall, ToolResult, Usage
from dragoman.engines.script import build_subject

_GEMINI_MODEL = re.compile(r"/models/([^/:]+):")


class Ending(StrEnum):
    """How a request ended.

    COMPLETE: the whole answer was sent.
    REJECTED: an HTTP status of 400 or above.
    FAILED: an error within the stream.
    DROPPED: the connection was closed in the middle.
    TRUNCATED: the stream ended without its last events.
    MALFORMED: the whole answer was sent, but not all of it can be parsed.
    STALLED: the client waited until the server ended a pause by closing the connection.
    ABANDONED: the client closed the connection.
    """

    RUNNING = "running"
    COMPLETE = "complete"
    REJECTED = "rejected"
    FAILED = "failed"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    STALLED = "stalled"
    ABANDONED = "abandoned"


@dataclass(slots=True)
class SentRequest:
    """One HTTP request of the client, and how it ended.

    Attributes:
        method: the HTTP method.
        path: the path, without the query.
        query: the query string.
        headers: the headers, with names in lower case.
        body: the bytes of the body.
        arrived_at: seconds of a monotonic clock.
        answered_at: when the head of the response was sent; None before that.
        status: the HTTP status; None before that.
        retry_after: the seconds of the response's `Retry-After`.
        is_stream: whether the response was a stream.
        ending: how the request ended.
        generation: the request in the form that is the same for every API; None if it
            was none for a generation, or was rejected before it was read.
        tool_calls: the calls in the answer, as far as they were sent.
        usage: the token counts that were sent; None if the answer did not get so far.
    """

    method: str = ""
    path: str = ""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    arrived_at: float = 0.0
    answered_at: float | None = None
    status: int | None = None
    retry_after: float | None = None
    is_stream: bool = False
    ending: Ending = Ending.RUNNING
    generation: GenerateRequest | None = None
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    usage: Usage | None = None

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the client sent
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def model(self) -> str:
        """The model that the client named: in the body, or in a path of Gemini's API."""
        if named := _GEMINI_MODEL.search(self.path):
            return named[1]
        try:
            body = self.json
        except ValueError:
            return ""
        return str(cast("Mapping[str, object]", body).get("model", "")) if body else ""

    @property
    def conversation(self) -> Conversation:
        """The messages, the tools and the options of the conversation. That of a plain
        prompt is one user message.
        """
        prompt = None if self.generation is None else self.generation.prompt
        match prompt:
            case Conversation():
                return prompt
            case str():
                return Conversation((Message(Role.USER, (Text(prompt),)),))
            case _:
                return Conversation(())

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, oldest first."""
        return self.conversation.messages

    @property
    def text(self) -> str:
        """The text of the last message of the user or of a tool."""
        if self.generation is None:
            return ""
        prompt = self.generation.prompt
        return build_subject(self.generation, prompt if isinstance(prompt, str) else "").text

    @property
    def system(self) -> str:
        """The text of the instructions: all messages of the system and the developer."""
        return "\n".join(
            part.text
            for message in self.messages
            if message.role in {Role.SYSTEM, Role.DEVELOPER}
            for part in message.parts
            if isinstance(part, Text)
        )

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the declared tools."""
        return tuple(tool.name for tool in self.conversation.tools)

    @property
    def tool_results(self) -> Mapping[str, str]:
        """The texts of all results of tools, by the ids of their calls."""
        return {
            part.call_id: "".join(item.text for item in part.content if isinstance(item, Text))
            for message in self.messages
            for part in message.parts
            if isinstance(part, ToolResult)
        }
