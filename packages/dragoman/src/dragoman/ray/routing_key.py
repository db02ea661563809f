"""The key by which a request is routed, read from the beginning of its body.

The fields of all dialects are in one struct, because the router sees neither the path
nor the headers of a request. It may also see only the beginning of the body, so a body
that is cut off is read up to its end.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import zstandard

from .replica_tag import TAG_LENGTH

MAX_ROUTED_BYTES = 256 * 1024
"""Bytes at the beginning of a decompressed body that are read."""


# An id of a replica: prefix, the replica's tag, random digits; 32 hexadecimal digits in
# all.
_ID_TAG = re.compile(rf"^[a-z_]+_([0-9a-f]{{{TAG_LENGTH}}})[0-9a-f]{{{32 - TAG_LENGTH}}}$")


_PROMPT_FIELDS = ("messages", "input", "prompt", "inputs", "text", "token_ids", "input_ids")
"""Fields that hold the prompt in Chat, Messages and Ollama; Responses; Completions;
TGI; SGLang; token ids.
"""


_ITEM_FIELDS = frozenset({"messages", "input"})


_NOTHING = msgspec.Raw(b"null")


# The magic numbers at the beginning of compressed data.
_GZIP = b"\x1f\x8b"


_ZSTD = b"\x28\xb5\x2f\xfd"


_DECODER = json.JSONDecoder()


_BLANKS = re.compile(r"[ \t\r\n]*")


class _Envelope(msgspec.Struct):
    """The fields that a key is made of."""

    model: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    thread: Any = None
    prompt_cache_key: Any = None
    metadata: Any = None
    system: Any = None
    instructions: Any = None
    messages: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    prompt: Any = None
    inputs: Any = None
    text: Any = None
    token_ids: Any = None
    input_ids: Any = None


_ENVELOPE_DECODER = msgspec.json.Decoder(_Envelope)


_ITEMS_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RoutingKey:
    """The key of a request: requests with equal keys are routed to the same replica.

    tag: the tag of the replica that created the response that the request continues;
        None if unknown.
    text: the session, the previous id, the model, or the hash of the prompt's
        beginning.
    """

    tag: str | None = None
    text: str | None = None


def find_key(
    body: bytes, session: str | None = None, *, by_model: bool = False
) -> RoutingKey | None:
    """Find the key of a request; None if it may be routed to any replica. Never raises.

    body: the body of the request, or its beginning; may be compressed.
    session: the value of the session header.
    by_model: all requests for the same model or adapter get one key, unless they
        continue a response.
    """
    if session:
        return RoutingKey(text=f"session {session}")
    fields = _read_envelope(body)
    # The response, conversation or message that the request continues.
    conversation = fields.get("conversation")
    thread = _get_object(fields, "thread")
    if isinstance(conversation, dict):
        conversation = cast("dict[str, object]", conversation).get("id")
    for previous in (
        fields.get("previous_response_id"),
        conversation,
        thread.get("previous_message_id"),
    ):
        if isinstance(previous, str) and previous:
            # Continuations of an id without a tag (another server's, or an old one)
            # still share one replica.
            match = _ID_TAG.match(previous)
            return RoutingKey(match[1] if match else None, f"id {previous}")
    if by_model:
        return RoutingKey(text=f"model {fields.get('model')}")
    # The client's session: OpenAI's `prompt_cache_key`, or a session in the user id, as
    # coding agents send it.
    user = _get_object(fields, "metadata").get("user_id")
    for name in (fields.get("prompt_cache_key"), user if "session" in str(user) else None):
        if isinstance(name, str) and name:
            return RoutingKey(text=f"session {name}")
    beginning = _find_beginning(fields)
    return None if beginning is None else RoutingKey(text=f"{fields.get('model')} {beginning}")


def _read_envelope(body: bytes) -> Mapping[str, object]:
    """Read the fields that a key is made of. Nothing else is decoded if the body is
    complete: prompts can be long.
    """
    # Only gzip and zstd can be recognized without headers; other compressed bodies have
    # no key.
    try:
        if body.startswith(_GZIP):
            body = zlib.decompressobj(wbits=31).decompress(body, MAX_ROUTED_BYTES)
        elif body.startswith(_ZSTD):
            with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                body = reader.read(MAX_ROUTED_BYTES)
    except (zlib.error, zstandard.ZstdError):
        return {}
    body = body[:MAX_ROUTED_BYTES]
    try:
        envelope = _ENVELOPE_DECODER.decode(body)
        fields: dict[str, object] = {
            name: getattr(envelope, name) for name in _Envelope.__struct_fields__
        }
        for name in _ITEM_FIELDS:
            raw = cast("msgspec.Raw", fields[name])
            if bytes(memoryview(raw)[:1]) != b"[":
                fields[name] = msgspec.json.decode(raw)
                continue
            # The key depends on the items up to the first user message only.
            items: list[object] = []
            for part in _ITEMS_DECODER.decode(raw):
                items.append(item := msgspec.json.decode(part))
                if isinstance(item, dict) and cast("dict[str, object]", item).get("role") == "user":
                    break
            fields[name] = items
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return dict(_read_fields(body.decode("utf-8", "replace")))
    return fields


def _read_fields(text: str) -> Iterator[tuple[str, object]]:
    """Yield the fields of a JSON object until one is cut off. Messages that are cut off
    are yielded up to there.
    """
    position = _skip_blanks(text, 0)
    if text[position : position + 1] != "{":
        return
    try:
        while text[position : position + 1] in ("{", ","):
            name, position = _DECODER.raw_decode(text, _skip_blanks(text, position + 1))
            position = _skip_blanks(text, position)
            if not isinstance(name, str) or text[position : position + 1] != ":":
                return
            position = _skip_blanks(text, position + 1)
            # Item by item: a long conversation is cut off somewhere in this list.
            if name in _ITEM_FIELDS and text[position : position + 1] == "[":
                items, position = _read_items(text, position)
                yield name, items
            else:
                value, position = _DECODER.raw_decode(text, position)
                yield name, value
            position = _skip_blanks(text, position)
    except (ValueError, RecursionError):
        return


def _read_items(text: str, position: int) -> tuple[list[object], int]:
    """Read the list at a position; return its items and the position after it.

    If the list is cut off, the position is the end of the text.
    """
    items: list[object] = []
    try:
        position = _skip_blanks(text, position + 1)
        while text[position : position + 1] not in ("]", ""):
            item, position = _DECODER.raw_decode(text, position)
            items.append(item)
            position = _skip_blanks(text, position)
            if text[position : position + 1] == ",":
                position = _skip_blanks(text, position + 1)
    except (ValueError, RecursionError):
        return items, len(text)
    return items, position + 1


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()


def _get_object(fields: Mapping[str, object], name: str) -> dict[str, object]:
    value = fields.get(name)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _find_beginning(fields: Mapping[str, object]) -> str | None:
    """Return a hash of the system prompt and the items up to the first user message,
    which a conversation keeps.
    """
    prompt = next((fields[name] for name in _PROMPT_FIELDS if fields.get(name)), None)
    if prompt is None:
        return None
    parts = [_flatten(fields.get(name)) for name in ("system", "instructions")]
    if isinstance(prompt, list) and any(
        isinstance(item, dict) for item in cast("list[object]", prompt)
    ):
        for item in cast("list[object]", prompt):
            parts.append(_flatten(item))
            if isinstance(item, dict) and cast("dict[str, object]", item).get("role") == "user":
                break
    else:
        parts.append(_flatten(prompt))
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _flatten(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    """Return the text of a prompt or message, the same for a string and a list of
    parts; other content as JSON.

    `cache_control` is left out: agents move it from message to message, and write that
    message's text as a list.
    """
    match value:
        case None | "":
            text = ""
        case str() | {"text": str()}:
            text = value if isinstance(value, str) else value["text"]
        case [int(), *_]:
            # 1024 token ids suffice to tell prompts apart, and a prompt may have a
            # million.
            text = json.dumps(value[:1024])
        case list():
            text = "\0".join(map(_flatten, cast("list[object]", value)))
        case {"content": content}:
            text = _flatten(content)
        case dict():
            fields = cast("dict[str, object]", value)
            text = json.dumps(
                {name: fields[name] for name in fields if name != "cache_control"}, sort_keys=True
            )
        case _:
            text = json.dumps(value)
    return text
