"""What a reader made of a Responses body, and the seam to whoever keeps state: a store, conversations, a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ...core.message import Message
from ...core.request import Conversation
from ..base import GenerationCall, Header
from ..envelope import ResponseId
from .compaction import CompactionWriter, CompactResponseWriter, select_user_messages
from .echo import Echo
from .input_items import NormalizedItem
from .render_options import ResponsesRenderOptions
from .writer import ResponsesWriter


class ResponsesCall(Struct, frozen=True, kw_only=True):
    """call: one request with one choice, as if there were no other items than those of the body.

    input: those items in normal form. echo: what the response object says back. previous_response_id,
    conversation: whose items come before these. store: whether to keep the response; None is unsaid, which means yes.
    view, id, read: for `over` and `echoing`.
    """

    call: GenerationCall
    input: tuple[NormalizedItem, ...]
    echo: Echo
    render_options: ResponsesRenderOptions
    id: ResponseId
    read_items: Callable[[Sequence[bytes]], tuple[Message, ...]]
    previous_response_id: str | None = None
    conversation: str | None = None
    store: bool | None = None
    background: bool = False

    def with_items(self, items: Sequence[bytes]) -> ResponsesCall:
        """The same call with these items in place of its own: earlier turns, what references stand for, its own rows.

        items: each a whole JSON object, in order. The instructions stay before them. Raises RequestError.
        """
        request = self.call.requests[0]
        assert isinstance(request.prompt, Conversation)
        prompt = msgspec.structs.replace(request.prompt, messages=self.read_items(items))
        requests = (msgspec.structs.replace(request, prompt=prompt),)
        return msgspec.structs.replace(self, call=msgspec.structs.replace(self.call, requests=requests))

    def with_sampled_turns(self, sampled_turns: tuple[tuple[int, ...], ...]) -> ResponsesCall:
        """The same call, whose conversation spells again what was said as it was sampled."""
        request = self.call.requests[0]
        assert isinstance(request.prompt, Conversation)
        requests = (
            msgspec.structs.replace(
                request, prompt=msgspec.structs.replace(request.prompt, sampled_turns=sampled_turns)
            ),
        )
        return msgspec.structs.replace(self, call=msgspec.structs.replace(self.call, requests=requests))

    def with_echo(self, echo: Echo) -> ResponsesCall:
        """The same call, whose response says this back."""
        writer = build_writer_factory(self.id, self.render_options, echo)
        return msgspec.structs.replace(self, echo=echo, call=msgspec.structs.replace(self.call, writer=writer))

    def create_compacted_writer(self, header: Header, items: Sequence[bytes]) -> CompactResponseWriter:
        """For a call that was read to compact. items: all that it is about, in normal form."""
        assert self.render_options.seal_compaction is not None
        return CompactResponseWriter(
            self.id.apply_to(header),
            self.render_options,
            self.echo,
            self.render_options.seal_compaction,
            select_user_messages(items),
        )

    def create_writer(self, header: Header) -> ResponsesWriter:
        return build_writer_factory(self.id, self.render_options, self.echo)(header)


def build_writer_factory(
    id: ResponseId, render_options: ResponsesRenderOptions, echo: Echo
) -> Callable[[Header], ResponsesWriter]:
    def writer(header: Header) -> ResponsesWriter:
        if render_options.seal_compaction is not None:
            return CompactionWriter(id.apply_to(header), render_options, echo, render_options.seal_compaction)
        return ResponsesWriter(id.apply_to(header), render_options, echo)

    return writer
