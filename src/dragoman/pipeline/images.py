"""The images of a conversation, apart from what is said in it: a template knows their places and nothing else."""

from __future__ import annotations

import msgspec

from ..core.errors import Unsupported
from ..core.message import Image, Inline, Message, Part, Text, ToolResult
from ..core.request import Conversation

_EMPTY = Image(Inline(b""))


def apart(conversation: Conversation, instead: Text | None = None) -> tuple[Conversation, list[bytes]]:
    """The conversation with its images emptied, and what was in them, in its order.

    instead: stands where each of them was. Raises Unsupported for an image that is not here.
    """
    if not any(_has_image(part) for message in conversation.messages for part in message.parts):
        return conversation, []
    found: list[bytes] = []
    mark = instead or _EMPTY
    messages = tuple(_emptied(message, found, mark) for message in conversation.messages)
    return msgspec.structs.replace(conversation, messages=messages), found


def _has_image(part: Part) -> bool:
    return isinstance(part, Image) or (isinstance(part, ToolResult) and any(map(_has_image, part.content)))


def _emptied(message: Message, found: list[bytes], mark: Image | Text) -> Message:
    return msgspec.structs.replace(message, parts=tuple(_empty(part, found, mark) for part in message.parts))


def _empty(part: Part, found: list[bytes], mark: Image | Text) -> Part:
    match part:
        case Image(source=Inline(data)):
            found.append(data)
            return mark
        case Image():
            raise Unsupported("This engine accepts only images that are included in the request.", param="messages")
        case ToolResult(content=content):
            shown = tuple(_empty(one, found, mark) if isinstance(one, Image) else one for one in content)
            return ToolResult(part.call_id, shown, part.is_error)  # pyright: ignore[reportArgumentType]
        case _:
            return part
