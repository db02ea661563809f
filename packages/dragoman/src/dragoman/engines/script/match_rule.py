"""Conditions of a script entry on the request."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...core.message import Message, Role, Text, ToolResult
from ...core.request import Conversation, GenerateRequest
from ...core.syntax import get_tool_names


class Subject(Struct, frozen=True):
    """The parts of a request that match rules read.

    text, role: of the last user or tool message.
    tools: names of the declared tools.
    """

    model: str
    text: str
    role: Role
    tools: frozenset[str]


class MatchRule(Struct, frozen=True):
    """Conditions of an entry; all that are set must hold.

    contains: texts that must all occur in the message.
    equals: the whole text of the message.
    glob: pattern for the whole text, where `*` matches any text.
    role: role of the message.
    model: glob for the name of the model.
    tool: name of a tool that the request must declare.
    """

    contains: tuple[str, ...] = ()
    equals: str | None = None
    glob: str | None = None
    role: Literal["user", "tool"] | None = None
    model: str | None = None
    tool: str | None = None

    def accepts(self, subject: Subject) -> bool:
        return (
            all(text in subject.text for text in self.contains)
            and (self.equals is None or self.equals == subject.text)
            and (self.glob is None or _matches_glob(self.glob, subject.text))
            and (self.role is None or self.role == subject.role)
            and (self.model is None or _matches_glob(self.model, subject.model))
            and (self.tool is None or self.tool in subject.tools)
        )


def _matches_glob(pattern: str, text: str) -> bool:
    """Match a glob. The pieces are searched in order without backtracking, so this
    takes linear time.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    end = len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def extract_text(message: Message) -> str:
    """Extract the text of a message: its text parts and those of its tool results,
    joined by line breaks.
    """
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolResult):
            texts.extend(inner.text for inner in part.content if isinstance(inner, Text))
    return "\n".join(texts)


def build_subject(request: GenerateRequest, prompt: str) -> Subject:
    """Build the subject of a request. prompt: the text of a prompt that is not a
    conversation.
    """
    if not isinstance(request.prompt, Conversation):
        return Subject(request.model, prompt, Role.USER, frozenset())
    tools = get_tool_names(request.prompt.tools)
    for message in reversed(request.prompt.messages):
        if message.role in {Role.USER, Role.TOOL}:
            return Subject(request.model, extract_text(message), message.role, tools)
    return Subject(request.model, "", Role.USER, tools)
