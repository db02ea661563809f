"""Separates images from a conversation: a template needs their places only."""

from __future__ import annotations

import msgspec

from ..core.errors import Unsupported
from ..core.message import Image, InlineMedia, Message, Part, Text, ToolResult
from ..core.request import Conversation

_EMPTY_IMAGE = Image(InlineMedia(b""))


def extract_images(conversation: Conversation, placeholder: Text | None = None) -> tuple[Conversation, list[bytes]]:
    """Return the conversation without image data, and the data in order.

    placeholder: replaces each image.

    Raises:
        Unsupported: an image is given by URL and not as data.
    """
    if not any(_has_image(part) for message in conversation.messages for part in message.parts):
        return conversation, []
    image_data: list[bytes] = []
    replacement = placeholder or _EMPTY_IMAGE
    messages = tuple(_replace_message_images(message, image_data, replacement) for message in conversation.messages)
    return msgspec.structs.replace(conversation, messages=messages), image_data


def _has_image(part: Part) -> bool:
    return isinstance(part, Image) or (isinstance(part, ToolResult) and any(map(_has_image, part.content)))


def _replace_message_images(message: Message, image_data: list[bytes], replacement: Image | Text) -> Message:
    return msgspec.structs.replace(
        message, parts=tuple(_replace_image(part, image_data, replacement) for part in message.parts)
    )


def _replace_image(part: Part, image_data: list[bytes], replacement: Image | Text) -> Part:
    match part:
        case Image(source=InlineMedia(data)):
            image_data.append(data)
            return replacement
        case Image():
            raise Unsupported("This engine accepts only images that are included in the request.", param="messages")
        case ToolResult(content=content):
            content_parts = tuple(
                _replace_image(item, image_data, replacement) if isinstance(item, Image) else item for item in content
            )
            return ToolResult(part.call_id, content_parts, part.is_error)  # pyright: ignore[reportArgumentType]
        case _:
            return part
