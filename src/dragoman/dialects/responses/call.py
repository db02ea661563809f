"""A parsed Responses body, and the interface to the code that has state: stores, conversations, keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ...core.request import Conversation, GenerateRequest
from ..base import GenerationCall, Header
from ..envelope import ResponseId
from .compaction import CompactionWriter, CompactResponseWriter, select_user_messages
from .echo import Echo
from .input_items import NormalizedItem
from .render_options import ResponsesRenderOptions
from .writer import ResponsesWriter


class BuiltRequest(Struct, frozen=True):
    """What a body and its input items ask for. echo: the fields that `Echo.rest` has."""

    request: GenerateRequest
    render_options: ResponsesRenderOptions
    echo: bytes


class ResponsesCall(Struct, frozen=True, kw_only=True):
    """A parsed Responses body.

    call: one request with one choice, built from the items of the body alone.
    input: those items, normalized.
    echo: the request fields that the response object repeats.
    render_options, id: for `create_writer` and `with_echo`.
    rebuild: what the body asks for after other items, for `with_items`.
    previous_response_id, conversation: whose items precede these.
    store: whether to store the response; None is unset, which means yes.
    background: run in the background.
    """

    call: GenerationCall
    input: tuple[NormalizedItem, ...]
    echo: Echo
    render_options: ResponsesRenderOptions
    id: ResponseId
    rebuild: Callable[[Sequence[bytes]], BuiltRequest]
    previous_response_id: str | None = None
    conversation: str | None = None
    store: bool | None = None
    background: bool = False

    def with_items(self, items: Sequence[bytes]) -> ResponsesCall:
        """The same call with its items replaced: earlier turns, resolved references, its own items.

        items: each a complete JSON object, in order. The instructions stay before them, and tools
        and settings that they contain apply. Raises RequestError.
        """
        built = self.rebuild(items)
        call = msgspec.structs.replace(self.call, requests=(built.request,))
        changed = msgspec.structs.replace(self, call=call, render_options=built.render_options)
        return changed.with_echo(msgspec.structs.replace(self.echo, rest=built.echo))

    def with_sampled_turns(self, sampled_turns: tuple[tuple[int, ...], ...]) -> ResponsesCall:
        """The same call, whose conversation encodes earlier output to the ids that were sampled."""
        request = self.call.requests[0]
        assert isinstance(request.prompt, Conversation)
        requests = (
            msgspec.structs.replace(
                request, prompt=msgspec.structs.replace(request.prompt, sampled_turns=sampled_turns)
            ),
        )
        return msgspec.structs.replace(self, call=msgspec.structs.replace(self.call, requests=requests))

    def with_echo(self, echo: Echo) -> ResponsesCall:
        """The same call with another echo."""
        writer = build_writer_factory(self.id, self.render_options, echo)
        return msgspec.structs.replace(self, echo=echo, call=msgspec.structs.replace(self.call, writer=writer))

    def create_compacted_writer(self, header: Header, items: Sequence[bytes]) -> CompactResponseWriter:
        """Create the writer of a call that was read with `compact`. items: all items to compact, normalized."""
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
