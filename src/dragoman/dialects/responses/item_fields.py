"""Output items and usage as JSON bytes, shared by events and full objects."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.events import Token, Usage
from ..json_encoding import encode_string
from ..logprobs import TokenNaming, render_chat_logprobs
from .tools import ToolName

_TEXT_NAMING = TokenNaming()


def render_logprobs(tokens: Sequence[Token], top: int | None) -> bytes:
    """Render the logprobs. The array is always present; empty if not requested."""
    return b"[]" if top is None or not tokens else render_chat_logprobs(tokens, top, _TEXT_NAMING)


def render_text_part(text: str, logprobs: bytes) -> bytes:
    return b'{"type":"output_text","text":%s,"annotations":[],"logprobs":%s}' % (encode_string(text), logprobs)


def render_refusal_part(text: str) -> bytes:
    return b'{"type":"refusal","refusal":%s}' % encode_string(text)


def render_reasoning_part(text: str) -> bytes:
    return b'{"type":"reasoning_text","text":%s}' % encode_string(text)


def render_summary_part(text: str) -> bytes:
    return b'{"type":"summary_text","text":%s}' % encode_string(text)


def render_message(id: bytes, status: bytes, content: bytes) -> bytes:
    """id: as JSON. content: the parts."""
    return b'{"id":%s,"type":"message","status":"%s","role":"assistant","content":[%s]}' % (id, status, content)


def render_reasoning(id: bytes, status: bytes, summary: bytes, content: bytes, sealed: bytes = b"") -> bytes:
    """content: the parts, empty if the item has none. sealed: the encrypted content as JSON, or empty."""
    fields = b'{"id":%s,"type":"reasoning","status":"%s","summary":[%s]' % (id, status, summary)
    fields += content and b',"content":[%s]' % content
    fields += sealed and b',"encrypted_content":' + sealed
    return fields + b"}"


def render_call(id: bytes, status: bytes, call_id: str, name: ToolName, arguments: str, custom: bool) -> bytes:
    kind, field = (b"custom_tool_call", b"input") if custom else (b"function_call", b"arguments")
    namespace = name.namespace and b',"namespace":' + encode_string(name.namespace)
    return b'{"id":%s,"type":"%s","status":"%s","call_id":%s,"name":%s%s,"%s":%s}' % (
        id, kind, status, encode_string(call_id), encode_string(name.name), namespace or b"", field,
        encode_string(arguments),
    )  # fmt: skip


def render_usage(usage: Usage) -> bytes:
    """Render usage. Both API references require integers in all fields, so unknown counts are 0 here."""
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d},'
        b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
    ) % (
        usage.prompt, usage.cached or 0, usage.written or 0, usage.completion, usage.reasoning or 0,
        usage.prompt + usage.completion,
    )  # fmt: skip
