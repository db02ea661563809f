"""Stored chat completions: what is kept of one, and how it is told again. Knows no store."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from ..base import Call
from ..body import Body, Shape, missing
from ..fields import check_metadata
from ..pages import Row
from ..text import line_safe, quoted


class ChatCall(Struct, frozen=True):
    """A call, and what else is kept of it when it was asked to be; None where it was not.

    messages: those of the prompt, as they came. metadata: as JSON.
    """

    call: Call
    kept: ToKeep | None


class ToKeep(Struct, frozen=True):
    messages: tuple[Raw, ...]
    metadata: Raw


class KeptChat(Struct, frozen=True):
    """The body of a stored completion. whole: the object, without its metadata. model: its name in that."""

    whole: Raw
    messages: tuple[Raw, ...]
    metadata: Raw
    model: str

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def object(self) -> bytes:
        return b'%s,"metadata":%s}' % (bytes(self.whole)[:-1], bytes(self.metadata))

    def fits(self, metadata: Mapping[str, str]) -> bool:
        """Whether it has all of these."""
        own = msgspec.json.decode(self.metadata, type=dict[str, str])
        return all(own.get(key) == value for key, value in metadata.items())

    def rows(self, id: str) -> list[Row]:
        return [_message(f"{id}-{i}", raw) for i, raw in enumerate(self.messages)]


def read_kept_chat(body: bytes) -> KeptChat:
    return msgspec.json.decode(body, type=KeptChat)


class _Update(Struct, frozen=True):
    metadata: dict[str, str] | None = None


_UPDATE = Shape(_Update)


def read_update(data: bytes) -> Raw:
    """The metadata; null clears it. Raises RequestError."""
    parsed = Body(data)
    body = parsed.read(_UPDATE)
    if "metadata" not in parsed.fields:
        raise missing("metadata")
    check_metadata(body.metadata)
    return metadata_json(body.metadata)


def metadata_json(metadata: dict[str, str] | None) -> Raw:
    return Raw(line_safe(msgspec.json.encode(metadata or {})))


def deleted_chat(id: str) -> bytes:
    return b'{"object":"chat.completion.deleted","id":%s,"deleted":true}' % quoted(id)


class _Part(Struct, frozen=True):
    text: str | None = None


def _message(id: str, raw: Raw) -> Row:
    """A list of parts is told as such, and its text as the content, which is a string in a stored message."""
    fields = msgspec.json.decode(raw, type=dict[str, Raw])
    content = bytes(fields.get("content", Raw(b"null"))).strip()
    parts = Raw(b"null")
    if content.startswith(b"["):
        parts = Raw(content)
        said = msgspec.json.decode(content, type=list[_Part | str])
        texts = [part if isinstance(part, str) else part.text or "" for part in said]
        content = quoted("".join(texts)) if any(texts) else b"null"
    told = {"id": Raw(quoted(id))} | fields | {"content": Raw(content), "content_parts": parts}
    told.setdefault("refusal", Raw(b"null"))
    return id, line_safe(msgspec.json.encode(told | {"id": Raw(quoted(id))}))
