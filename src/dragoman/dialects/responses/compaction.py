"""The item that a summary becomes, and the writers of the two answers that have one.

The summary is sealed: only this server reads it again, for the same caller. See `summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ...core.events import Delta, RefusalDelta, TextDelta
from ...core.message import Refusal, Text
from ...core.reply import Choice, Reply
from ..base import Header
from ..text import quoted
from . import pieces
from .echo import Echo
from .view import ResponsesView
from .writer import ResponsesWriter

Seal = Callable[[str], str]


class CompactionWriter(ResponsesWriter):
    """A response whose one item is the compaction. What is said goes into it; what was thought does not."""

    def __init__(self, header: Header, view: ResponsesView, echo: Echo, seal: Seal) -> None:
        super().__init__(header, view, echo)
        self._seal = seal
        self._id = quoted(f"cmp_{header.id.removeprefix('resp_')}_0")
        self._texts: list[str] = []

    def _part(self, event: Delta) -> bytes:
        text = event.text if isinstance(event, TextDelta | RefusalDelta) else ""
        begins = bool(text) and not self._texts
        if text:
            self._texts.append(text)
        return self._open_compaction() if begins else b""

    def _close(self, status: bytes) -> bytes:
        del status
        opened = b"" if self._texts else self._open_compaction()
        item = self._compaction(self._seal("".join(self._texts)))
        done = self._item_event(b"done", item)
        self._items.append(item)
        return opened + done

    def _output(self, choice: Choice) -> list[bytes]:
        said = (part.text for part in choice.parts if isinstance(part, Text | Refusal))
        return [self._compaction(self._seal("".join(said)))]

    def _open_compaction(self) -> bytes:
        place = b'"item_id":%s,"output_index":0' % self._id
        return self._item_event(b"added", self._compaction("")) + self._event(b"response.compaction.compacting", place)

    def _compaction(self, sealed: str) -> bytes:
        return b'{"id":%s,"type":"compaction","encrypted_content":%s}' % (self._id, quoted(sealed))


class CompactedWriter(CompactionWriter):
    """The answer of /v1/responses/compact, which is always whole: what users said, and the compaction."""

    def __init__(self, header: Header, view: ResponsesView, echo: Echo, seal: Seal, said: Sequence[bytes]) -> None:
        super().__init__(header, view, echo, seal)
        self._header, self._users = header, said

    def full(self, reply: Reply) -> bytes:
        output = b",".join((*self._users, *self._output(reply.choices[0])))
        return b'{"id":%s,"object":"response.compaction","created_at":%d,"output":[%s],"usage":%s}' % (
            quoted(self._header.id), self._header.created, output, pieces.usage(reply.usage),
        )  # fmt: skip


class _Told(Struct):
    type: str | None = None
    role: str | None = None


def said_by_users(items: Sequence[bytes]) -> list[bytes]:
    """Of items in normal form."""
    told = ((item, msgspec.json.decode(item, type=_Told)) for item in items)
    return [item for item, kind in told if kind.type == "message" and kind.role == "user"]
