"""Cache diagnostics of Messages: how a prompt differs from an earlier one, whose prefix
it cannot reuse.

Prompts are compared by their digests, so an earlier one need not be stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from typing import cast

import msgspec
from msgspec import Struct

from ...core.message import Role
from ...core.request import Conversation, GenerateRequest
from ..request_body import BodySchema, ParsedBody
from .wire import CacheDiagnosticsOptions

_FIELD = b'"diagnostics"'
_CHARACTERS_PER_TOKEN = 4
NO_DIVERGENCE = b"null"
NOT_FOUND = b'{"cache_miss_reason":{"type":"previous_message_not_found"}}'
UNAVAILABLE = b'{"cache_miss_reason":{"type":"unavailable"}}'


class _DiagnosedBody(Struct, frozen=True):
    diagnostics: CacheDiagnosticsOptions | None = None


_DIAGNOSED_BODY = BodySchema(_DiagnosedBody)


class PartDigest(Struct, frozen=True, array_like=True):
    """A part of a prompt.

    size: its characters.
    """

    digest: bytes
    size: int


class PromptFingerprint(Struct, frozen=True):
    """All that determines a prompt, as digests.

    system: the system prompt before all messages.
    options: other settings, such as thinking.
    messages: one digest for each part of each message.
    """

    model: PartDigest
    system: PartDigest
    tools: PartDigest
    options: PartDigest
    messages: Sequence[PartDigest]


def read_diagnostics(data: bytes) -> CacheDiagnosticsOptions | None:
    """Parse the field `diagnostics` of a body; None without it. Raises RequestError."""
    # Fast path: most bodies have none and need not be parsed twice.
    return ParsedBody(data).decode(_DIAGNOSED_BODY).diagnostics if _FIELD in data else None


def build_fingerprint(request: GenerateRequest) -> PromptFingerprint:
    """Build the fingerprint of a request's conversation."""
    prompt = request.prompt
    assert isinstance(prompt, Conversation)
    system = list(takewhile(lambda message: message.role is Role.SYSTEM, prompt.messages))
    # Parts and not messages: an added message of the same role continues the last turn.
    parts = (
        _digest((message.role, part))
        for message in prompt.messages[len(system) :]
        for part in message.parts
    )
    options = (
        prompt.tool_choice,
        prompt.parallel_tool_calls,
        prompt.reasoning,
        prompt.template.kwargs,
        prompt.template.template,
        prompt.edits,
        request.cache_salt,
    )
    return PromptFingerprint(
        _digest(request.model),
        _digest([message.parts for message in system]),
        _digest(prompt.tools),
        _digest(options),
        list(parts),
    )


def render_diagnosis(previous: PromptFingerprint, current: PromptFingerprint) -> bytes:
    """Return the field `diagnostics` of a response: the first difference."""
    if previous.model != current.model:
        reason = "model_changed"
        lost = chain((previous.system, previous.tools), previous.messages)
    elif previous.system != current.system:
        reason = "system_changed"
        lost = chain((previous.system, previous.tools), previous.messages)
    elif previous.tools != current.tools:
        reason = "tools_changed"
        lost = chain((previous.tools,), previous.messages)
    elif previous.options != current.options:
        return UNAVAILABLE
    else:
        n_equal = _count_equal(previous.messages, current.messages)
        if n_equal == len(previous.messages):
            return NO_DIVERGENCE
        reason = "messages_changed"
        lost = iter(previous.messages[n_equal:])
    return b'{"cache_miss_reason":{"type":"%s","cache_missed_input_tokens":%d}}' % (
        reason.encode(),
        _estimate_tokens(lost),
    )


def _digest(part: object) -> PartDigest:
    encoded = msgspec.json.encode(part, order="deterministic", enc_hook=repr)
    digest = hashlib.blake2b(encoded, digest_size=16).digest()
    return PartDigest(digest, _count_characters(msgspec.json.decode(encoded)))


def _count_characters(value: object) -> int:
    """Count the characters of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_count_characters, cast("list[object]", value)))
    if isinstance(value, dict):
        return sum(map(_count_characters, cast("dict[str, object]", value).values()))
    return 0


def _count_equal(first: Sequence[PartDigest], second: Sequence[PartDigest]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _estimate_tokens(parts: Iterable[PartDigest]) -> int:
    return sum(part.size for part in parts) // _CHARACTERS_PER_TOKEN
