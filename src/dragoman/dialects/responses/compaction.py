"""The compaction item, and the writers of the two responses that have one.

The summary is sealed: only this server can decrypt it, for the same caller. See `summary_prompt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ...core.events import Delta, RefusalDelta, TextDelta
from ...core.message import Refusal, Text
from ...core.reply import Choice, Reply
from ..base import Header
from ..json_encoding import encode_string
from . import item_fields
from .echo import Echo
from .render_options import ResponsesRenderOptions
from .writer import ResponsesWriter

Seal = Callable[[str], str]


class CompactionWriter(ResponsesWriter):
    """A response whose only item is the compaction. Its summary is the text of the answer, without reasoning."""

    def __init__(self, header: Header, options: ResponsesRenderOptions, echo: Echo, seal: Seal) -> None:
        super().__init__(header, options, echo)
        self._seal = seal
        self._id = encode_string(f"cmp_{header.id.removeprefix('resp_')}_0")
        self._texts: list[str] = []

    def _render_part(self, event: Delta) -> bytes:
        text = event.text if isinstance(event, TextDelta | RefusalDelta) else ""
        begins = bool(text) and not self._texts
        if text:
            self._texts.append(text)
        return self._render_added() if begins else b""

    def _close_item(self, status: bytes) -> bytes:
        del status
        added_events = b"" if self._texts else self._render_added()
        item = self._render_compaction(self._seal("".join(self._texts)))
        done = self._render_item_event(b"done", item)
        self._items.append(item)
        return added_events + done

    def _render_output(self, choice: Choice) -> list[bytes]:
        texts = (part.text for part in choice.parts if isinstance(part, Text | Refusal))
        return [self._render_compaction(self._seal("".join(texts)))]

    def _render_added(self) -> bytes:
        location = b'"item_id":%s,"output_index":0' % self._id
        return self._render_item_event(b"added", self._render_compaction("")) + self._render_event(
            b"response.compaction.compacting", location
        )

    def _render_compaction(self, sealed: str) -> bytes:
        return b'{"id":%s,"type":"compaction","encrypted_content":%s}' % (self._id, encode_string(sealed))


class CompactResponseWriter(CompactionWriter):
    """The response of /v1/responses/compact, which is never streamed: the user's messages and the compaction."""

    def __init__(
        self, header: Header, options: ResponsesRenderOptions, echo: Echo, seal: Seal, user_items: Sequence[bytes]
    ) -> None:
        super().__init__(header, options, echo, seal)
        self._header, self._user_items = header, user_items

    def render_full(self, reply: Reply) -> bytes:
        output = b",".join((*self._user_items, *self._render_output(reply.choices[0])))
        return b'{"id":%s,"object":"response.compaction","created_at":%d,"output":[%s],"usage":%s}' % (
            encode_string(self._header.id), self._header.created, output, item_fields.render_usage(reply.usage),
        )  # fmt: skip


class _ItemKind(Struct):
    type: str | None = None
    role: str | None = None


def select_user_messages(items: Sequence[bytes]) -> list[bytes]:
    """Select the user messages from normalized items."""
    kinds = ((item, msgspec.json.decode(item, type=_ItemKind)) for item in items)
    return [item for item, kind in kinds if kind.type == "message" and kind.role == "user"]
