"""Training examples: turns, tool calls and tools, and how they are rendered to text.
Independent of tasks and tensors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Call:
    """One tool call; its arguments are an object."""

    name: str
    arguments: dict[str, Any]

    def text(self) -> str:
        """The call as the model must write it."""
        body = json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"


@dataclass(frozen=True)
class Turn:
    """One message. An assistant turn has a `thought` if the template opened its
    thinking block.
    """

    role: Role
    content: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()

    def message(self) -> dict[str, Any]:
        """The turn as a chat template reads it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        return message

    def answer(self) -> str:
        """What the model writes in this turn after its reasoning."""
        return "\n".join(
            part for part in (self.content, *(call.text() for call in self.calls)) if part
        )


@dataclass(frozen=True)
class Conversation:
    """One example: turns, and the tools in the prompt; or plain `text` without turns,
    for completions.
    """

    turns: tuple[Turn, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    text: str = ""

    def messages(self) -> list[dict[str, Any]]:
        """The turns as a chat template reads them."""
        return [turn.message() for turn in self.turns]


@dataclass(frozen=True)
class Segment:
    """A part of the text; only `learned` parts count in the loss."""

    text: str
    learned: bool


def segments(conversation: Conversation) -> list[Segment]:
    """Return the conversation as text, split where the model's own output begins and
    ends.

    The joined texts are exactly what the chat template renders; a test compares them.
    """
    if conversation.text:
        return [Segment(conversation.text + "<|im_end|>", learned=True)]
    turns = conversation.turns
    parts: list[Segment] = []
    if conversation.tools:
        opening = turns[0].content if turns and turns[0].role == "system" else ""
        parts.append(Segment(_tool_block(opening, conversation.tools), learned=False))
        turns = turns[1:] if opening else turns
    for turn in turns:
        parts.extend(_turn_segments(turn))
    return parts


def _tool_block(opening: str, tools: tuple[dict[str, Any], ...]) -> str:
    lines = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
    return (
        "<|im_start|>system\n"
        + (opening + "\n\n" if opening else "")
        + f"# Tools\n{lines}<|im_end|>\n"
    )


def _turn_segments(turn: Turn) -> list[Segment]:
    if turn.role != "assistant":
        return [Segment(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n", learned=False)]
    prompt = "<|im_start|>assistant\n" + ("<think>\n" if turn.thought else "")
    thought = f"{turn.thought}\n</think>\n\n" if turn.thought else ""
    return [
        Segment(prompt, learned=False),
        Segment(thought + turn.answer() + "<|im_end|>", learned=True),
        Segment("\n", learned=False),
    ]
