"""The fields of a chat message on the wire as JSON bytes, shared by chunks and full messages."""

from __future__ import annotations

from ...core.events import ToolCallStart
from ...core.message import Reasoning, SealKind, ToolCall
from ...core.reply import Choice
from ..base import Profile
from ..json_encoding import encode_string


def render_reasoning(names: tuple[str, ...], text: bytes) -> bytes:
    """Render reasoning under each of the names that clients read. text: as JSON."""
    return b",".join(b'"%s":%s' % (name.encode(), text) for name in names)


def render_reasoning_detail(text: str, seal: str, index: int) -> bytes:
    """Render reasoning with its seal, in OpenRouter's format. A client sends it back unchanged."""
    format, kind = b"anthropic-claude-v1", b"reasoning.encrypted"
    if (signature := SealKind.ANTHROPIC.read(seal)) is not None:
        kind = b"reasoning.text"
        fields = b'"text":%s,"signature":%s' % (encode_string(text), encode_string(signature))
    elif (data := SealKind.ANTHROPIC_REDACTED.read(seal)) is not None:
        fields = b'"data":' + encode_string(data)
    else:
        format = b"openai-responses-v1"
        data = seal.removeprefix(SealKind.OPENAI)
        fields = b'"summary":%s,"data":%s' % (encode_string(text), encode_string(data))
    return b'{"type":"%s",%s,"format":"%s","index":%d}' % (kind, fields, format, index)


def render_call_start(event: ToolCallStart, index: int) -> bytes:
    """The delta that starts a call: the only one with its id, type and name."""
    kind, field = (b"custom", b"input") if event.custom else (b"function", b"arguments")
    return b'"tool_calls":[{"index":%d,"id":%s,"type":"%s","%s":{"name":%s,"%s":""}}]' % (
        index, encode_string(event.id), kind, kind, encode_string(event.name), field,
    )  # fmt: skip


def render_call_arguments(text: str, index: int, custom: bool) -> bytes:
    kind, field = (b"custom", b"input") if custom else (b"function", b"arguments")
    return b'"tool_calls":[{"index":%d,"%s":{"%s":%s}}]' % (index, kind, field, encode_string(text))


def render_legacy_start(event: ToolCallStart) -> bytes:
    return b'"function_call":{"name":%s,"arguments":""}' % encode_string(event.name)


def render_legacy_arguments(text: str) -> bytes:
    return b'"function_call":{"arguments":%s}' % encode_string(text)


def render_message(choice: Choice, names: tuple[str, ...], profile: Profile, legacy: bool) -> bytes:
    """The full message. Its content is null if it has only reasoning, a refusal or calls."""
    text, reasoning, refusal, calls = choice.split_parts()
    sealed = [part for part in choice.parts if names and isinstance(part, Reasoning) and part.seal]
    # An answer that is empty altogether has the text "", so that clients which expect a string get one.
    is_empty = not text and (reasoning or sealed or refusal or calls)
    fields = [
        b'"role":"assistant"',
        b'"content":' + (b"null" if is_empty else encode_string(text)),
        b'"refusal":' + (encode_string(refusal) if refusal else b"null"),
    ]
    if profile is Profile.VLLM:
        fields.append(b'"annotations":null,"audio":null')
    if calls and legacy:
        call = calls[0]
        fields.append(
            b'"function_call":{"name":%s,"arguments":%s}' % (encode_string(call.name), encode_string(call.arguments))
        )
    elif profile is Profile.VLLM:
        fields.append(b'"function_call":null')
    if calls and not legacy:
        fields.append(b'"tool_calls":[%s]' % b",".join(map(_render_call, calls)))
    if names and (reasoning or profile is Profile.VLLM):
        fields.append(render_reasoning(names, encode_string(reasoning) if reasoning else b"null"))
    if sealed:
        details = (render_reasoning_detail(part.text, part.seal, i) for i, part in enumerate(sealed))
        fields.append(b'"reasoning_details":[%s]' % b",".join(details))
    return b"{%s}" % b",".join(fields)


def _render_call(call: ToolCall) -> bytes:
    kind, field = (b"custom", b"input") if call.custom else (b"function", b"arguments")
    return b'{"id":%s,"type":"%s","%s":{"name":%s,"%s":%s}}' % (
        encode_string(call.id), kind, kind, encode_string(call.name), field, encode_string(call.arguments),
    )  # fmt: skip
