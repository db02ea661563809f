"""What a reader made of a Responses body, and the seam to whoever keeps state: a store, conversations, a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ...core.message import Message
from ...core.request import Conversation
from ..base import Call, Header
from ..envelope import AnswerId
from .compaction import CompactedWriter, CompactionWriter, said_by_users
from .echo import Echo
from .normal import InputItem
from .view import ResponsesView
from .writer import ResponsesWriter


class ResponsesCall(Struct, frozen=True, kw_only=True):
    """call: one request with one choice, as if there were no other items than those of the body.

    input: those items in normal form. echo: what the response object says back. previous_response_id,
    conversation: whose items come before these. store: whether to keep the response; None is unsaid, which means yes.
    view, id, read: for `over` and `echoing`.
    """

    call: Call
    input: tuple[InputItem, ...]
    echo: Echo
    view: ResponsesView
    id: AnswerId
    read: Callable[[Sequence[bytes]], tuple[Message, ...]]
    previous_response_id: str | None = None
    conversation: str | None = None
    store: bool | None = None
    background: bool = False

    def over(self, items: Sequence[bytes]) -> ResponsesCall:
        """The same call with these items in place of its own: earlier turns, what references stand for, its own rows.

        items: each a whole JSON object, in order. The instructions stay before them. Raises RequestError.
        """
        request = self.call.requests[0]
        assert isinstance(request.prompt, Conversation)
        prompt = msgspec.structs.replace(request.prompt, messages=self.read(items))
        requests = (msgspec.structs.replace(request, prompt=prompt),)
        return msgspec.structs.replace(self, call=msgspec.structs.replace(self.call, requests=requests))

    def after(self, said: tuple[tuple[int, ...], ...]) -> ResponsesCall:
        """The same call, whose conversation spells again what was said as it was sampled."""
        request = self.call.requests[0]
        assert isinstance(request.prompt, Conversation)
        requests = (msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, said=said)),)
        return msgspec.structs.replace(self, call=msgspec.structs.replace(self.call, requests=requests))

    def echoing(self, echo: Echo) -> ResponsesCall:
        """The same call, whose response says this back."""
        writer = writer_of(self.id, self.view, echo)
        return msgspec.structs.replace(self, echo=echo, call=msgspec.structs.replace(self.call, writer=writer))

    def compacted(self, header: Header, items: Sequence[bytes]) -> CompactedWriter:
        """For a call that was read to compact. items: all that it is about, in normal form."""
        assert self.view.compact is not None
        return CompactedWriter(self.id.over(header), self.view, self.echo, self.view.compact, said_by_users(items))

    def writer(self, header: Header) -> ResponsesWriter:
        return writer_of(self.id, self.view, self.echo)(header)


def writer_of(id: AnswerId, view: ResponsesView, echo: Echo) -> Callable[[Header], ResponsesWriter]:
    def writer(header: Header) -> ResponsesWriter:
        if view.compact is not None:
            return CompactionWriter(id.over(header), view, echo, view.compact)
        return ResponsesWriter(id.over(header), view, echo)

    return writer
