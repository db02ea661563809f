"""OpenRouter's `reasoning_details`: the form in which Chat Completions carries the
seals of reasoning.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .message import SealKind

_GEMINI_FORMAT = "google-gemini-v1"


class ReasoningDetail(Struct, frozen=True, omit_defaults=True):
    """A piece of reasoning.

    Attributes:
        type: `reasoning.text`, `reasoning.summary` or `reasoning.encrypted`.
        text: of the first type.
        summary: of the second type, or of encrypted reasoning.
        signature: proves that the text is the vendor's.
        data: the encrypted reasoning.
        format: names the vendor.
        id: the vendor's id of this piece.
        index: its place.
    """

    type: str | None = None
    text: str | None = None
    summary: str | None = None
    signature: str | None = None
    data: str | None = None
    format: str | None = None
    id: str | None = None
    index: int | None = None


def build_reasoning_detail(text: str, seal: str, index: int) -> ReasoningDetail:
    """Build the piece of sealed reasoning. A client sends it back unchanged."""
    # `format` names the vendor: by it, `read_seal` finds the kind of the seal.
    if (signature := SealKind.ANTHROPIC.read(seal)) is not None:
        return ReasoningDetail(
            "reasoning.text", text, None, signature, None, "anthropic-claude-v1", None, index
        )
    if (data := SealKind.ANTHROPIC_REDACTED.read(seal)) is not None:
        return ReasoningDetail(
            "reasoning.encrypted", data=data, format="anthropic-claude-v1", index=index
        )
    if (signature := SealKind.GEMINI.read(seal)) is not None:
        is_text = bool(text)
        return ReasoningDetail(
            "reasoning.text" if is_text else "reasoning.encrypted",
            text=text or None,
            signature=signature if is_text else None,
            data=None if is_text else signature,
            format=_GEMINI_FORMAT,
            index=index,
        )
    if (fields := SealKind.OPENROUTER.read(seal)) is not None:
        try:
            detail = msgspec.json.decode(fields, type=ReasoningDetail)
        except msgspec.MsgspecError:
            # A client has changed it.
            return ReasoningDetail("reasoning.text", text, index=index)
        texts = {"text": text} if detail.type == "reasoning.text" else {"summary": text or None}
        return msgspec.structs.replace(detail, **texts, index=index)
    data = seal.removeprefix(SealKind.OPENAI)
    return ReasoningDetail(
        "reasoning.encrypted",
        summary=text,
        data=data,
        format="openai-responses-v1",
        index=index,
    )


def read_seal(detail: ReasoningDetail) -> str:
    """Return the seal of a piece of reasoning; empty if it has none."""
    if not (detail.signature or detail.data):
        return ""
    format = detail.format or ""
    if format == _GEMINI_FORMAT and detail.id is None and not detail.summary:
        return SealKind.GEMINI + (detail.signature or detail.data or "")
    # Vendors without a kind of their own, and ids, of which Gemini's name tool calls.
    if detail.id is not None or (format and not format.startswith(("anthropic", "openai"))):
        without_text = msgspec.structs.replace(detail, text=None, summary=None, index=None)
        return SealKind.OPENROUTER + msgspec.json.encode(without_text).decode()
    if detail.signature:
        return SealKind.ANTHROPIC + detail.signature
    is_openai = format.startswith("openai")
    return (SealKind.OPENAI if is_openai else SealKind.ANTHROPIC_REDACTED) + (detail.data or "")
