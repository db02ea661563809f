"""The fields of a chat message on the wire, as JSON bytes: what chunks and whole messages are made of."""

from __future__ import annotations

from ...core.events import ToolCallStart
from ...core.message import ToolCall
from ...core.reply import Choice
from ..base import Profile
from ..text import quoted


def reasoning(names: tuple[str, ...], text: bytes) -> bytes:
    """text: as JSON. One thought under each of the names that clients read."""
    return b",".join(b'"%s":%s' % (name.encode(), text) for name in names)


def call_start(event: ToolCallStart, index: int) -> bytes:
    """A delta that opens a call: the only one with its id, type and name."""
    kind, field = (b"custom", b"input") if event.custom else (b"function", b"arguments")
    return b'"tool_calls":[{"index":%d,"id":%s,"type":"%s","%s":{"name":%s,"%s":""}}]' % (
        index, quoted(event.id), kind, kind, quoted(event.name), field,
    )  # fmt: skip


def call_arguments(text: str, index: int, custom: bool) -> bytes:
    kind, field = (b"custom", b"input") if custom else (b"function", b"arguments")
    return b'"tool_calls":[{"index":%d,"%s":{"%s":%s}}]' % (index, kind, field, quoted(text))


def legacy_start(event: ToolCallStart) -> bytes:
    return b'"function_call":{"name":%s,"arguments":""}' % quoted(event.name)


def legacy_arguments(text: str) -> bytes:
    return b'"function_call":{"arguments":%s}' % quoted(text)


def message(choice: Choice, names: tuple[str, ...], profile: Profile, legacy: bool) -> bytes:
    """The whole message. Where there is only reasoning, a refusal or calls, the content is null."""
    text, thought, refusal, calls = choice.text(), choice.reasoning(), choice.refusal(), choice.calls()
    bare = not text and (thought or refusal or calls)
    fields = [
        b'"role":"assistant"',
        b'"content":' + (b"null" if bare else quoted(text)),
        b'"refusal":' + (quoted(refusal) if refusal else b"null"),
    ]
    if profile is Profile.VLLM:
        fields.append(b'"annotations":null,"audio":null')
    if calls and legacy:
        fields.append(_legacy_call(calls[0]))
    elif profile is Profile.VLLM:
        fields.append(b'"function_call":null')
    if calls and not legacy:
        fields.append(b'"tool_calls":[%s]' % b",".join(map(_call, calls)))
    if names and (thought or profile is Profile.VLLM):
        fields.append(reasoning(names, quoted(thought) if thought else b"null"))
    return b"{%s}" % b",".join(fields)


def _call(call: ToolCall) -> bytes:
    kind, field = (b"custom", b"input") if call.custom else (b"function", b"arguments")
    return b'{"id":%s,"type":"%s","%s":{"name":%s,"%s":%s}}' % (
        quoted(call.id), kind, kind, quoted(call.name), field, quoted(call.arguments),
    )  # fmt: skip


def _legacy_call(call: ToolCall) -> bytes:
    return b'"function_call":{"name":%s,"arguments":%s}' % (quoted(call.name), quoted(call.arguments))
