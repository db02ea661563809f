"""Stored chat completions: their stored format, the objects rendered from it, and
updates of their metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from ..field_errors import missing_parameter
from ..generation_fields import check_metadata
from ..interfaces import GenerationCall
from ..json_encoding import encode_string, escape_line_breaks
from ..pagination import PageRow
from ..request_body import BodySchema, ParsedBody


class ChatCall(Struct, frozen=True):
    """A call and the request fields to store with it.

    stored_fields: None if the client did not set `store`.
    """

    call: GenerationCall
    stored_fields: StoredChatFields | None


class StoredChatFields(Struct, frozen=True):
    messages: tuple[Raw, ...]
    metadata: Raw


class _Part(Struct, frozen=True):
    text: str | None = None


class StoredChat(Struct, frozen=True):
    """The body of a stored completion.

    whole: the response object without its metadata.
    messages: the request's messages, each as raw JSON.
    metadata: the metadata as a JSON object.
    model: the model's name in `whole`.
    """

    whole: Raw
    messages: tuple[Raw, ...]
    metadata: Raw
    model: str

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def render_object(self) -> bytes:
        # Metadata is stored separately because it is the only field that an update can
        # replace.
        return b'%s,"metadata":%s}' % (bytes(self.whole)[:-1], bytes(self.metadata))

    def matches(self, metadata: Mapping[str, str]) -> bool:
        """Whether the stored metadata contains all of these entries."""
        stored_metadata = msgspec.json.decode(self.metadata, type=dict[str, str])
        return all(stored_metadata.get(key) == value for key, value in metadata.items())

    def list_messages(self, id: str) -> list[PageRow]:
        """List the messages. An array of content moves to `content_parts`, and
        `content` becomes its text.
        """
        rows: list[PageRow] = []
        for i, raw in enumerate(self.messages):
            message_id = f"{id}-{i}"
            fields = msgspec.json.decode(raw, type=dict[str, Raw])
            content = bytes(fields.get("content", Raw(b"null"))).strip()
            parts = Raw(b"null")
            if content.startswith(b"["):
                parts = Raw(content)
                content_parts = msgspec.json.decode(content, type=list[_Part | str])
                texts = [
                    part if isinstance(part, str) else part.text or "" for part in content_parts
                ]
                content = encode_string("".join(texts)) if any(texts) else b"null"
            raw_id = Raw(encode_string(message_id))
            # `id` comes first, as in OpenAI's API. It is set again at the end to
            # override an `id` that the client sent.
            message = (
                {"id": raw_id}
                | fields
                | {"content": Raw(content), "content_parts": parts, "id": raw_id}
            )
            # OpenAI's type of a stored message requires the field, which requests may
            # omit.
            message.setdefault("refusal", Raw(b"null"))
            rows.append((message_id, escape_line_breaks(msgspec.json.encode(message))))
        return rows


def read_stored_chat(body: bytes) -> StoredChat:
    return msgspec.json.decode(body, type=StoredChat)


class ChatUpdate(Struct, frozen=True):
    metadata: dict[str, str] | None = None


_UPDATE = BodySchema(ChatUpdate)


def read_update(data: bytes) -> Raw:
    """Parse an update to the new metadata; null clears it. Raises RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_UPDATE)
    if "metadata" not in parsed.fields:
        raise missing_parameter("metadata")
    check_metadata(body.metadata)
    return encode_metadata(body.metadata)


def encode_metadata(metadata: dict[str, str] | None) -> Raw:
    return Raw(escape_line_breaks(msgspec.json.encode(metadata or {})))


def render_deleted_chat(id: str) -> bytes:
    return b'{"object":"chat.completion.deleted","id":%s,"deleted":true}' % encode_string(id)
