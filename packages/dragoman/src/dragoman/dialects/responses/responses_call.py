"""A parsed Responses body, with its interface for stateful code: stores, conversations,
keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ...core.events import Delta, RefusalDelta, TextDelta
from ...core.message import Refusal, Text
from ...core.reply import Choice, Reply
from ...core.request import GenerateRequest
from ...core.server_tools import RequestedServer, ServerToolPlan, ToolList
from ..chunk_envelope import ResponseId
from ..field_errors import abbreviate, invalid_value
from ..interfaces import GenerationCall, Header
from ..json_encoding import encode_string
from . import item_writers
from .input_items import InputItem
from .parsed_items import ParsedItem
from .render_options import Echo, ResponsesRenderOptions
from .wire import WireItem
from .writer import ResponsesWriter

Seal = Callable[[str], str]


class CompactionWriter(ResponsesWriter):
    """Renders a response whose only item is the compaction. The summary is the answer's
    text without reasoning.
    """

    def __init__(
        self, header: Header, options: ResponsesRenderOptions, echo: Echo, seal: Seal
    ) -> None:
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

    def _render_output(self, choice: Choice, tool_lists: Sequence[ToolList] = ()) -> list[bytes]:
        del tool_lists
        texts = (part.text for part in choice.parts if isinstance(part, Text | Refusal))
        return [self._render_compaction(self._seal("".join(texts)))]

    def _render_added(self) -> bytes:
        location = b'"item_id":%s,"output_index":0' % self._id
        return self._render_item_event(b"added", self._render_compaction("")) + self._render_event(
            b"response.compaction.compacting", location
        )

    def _render_compaction(self, sealed: str) -> bytes:
        return b'{"id":%s,"type":"compaction","encrypted_content":%s}' % (
            self._id,
            encode_string(sealed),
        )


class CompactResponseWriter(CompactionWriter):
    """Renders the response of /v1/responses/compact: the user's messages and the
    compaction. It is never streamed.
    """

    def __init__(
        self,
        header: Header,
        options: ResponsesRenderOptions,
        echo: Echo,
        seal: Seal,
        user_items: Sequence[bytes],
    ) -> None:
        super().__init__(header, options, echo, seal)
        self._header = header
        self._user_items = user_items

    def render_full(self, reply: Reply) -> bytes:
        output = b",".join((*self._user_items, *self._render_output(reply.choices[0])))
        return b'{"id":%s,"object":"response.compaction","created_at":%d,"output":[%s],"usage":%s}' % (  # noqa: E501
            encode_string(self._header.id), self._header.created, output,
            item_writers.render_usage(reply.usage),
        )  # fmt: skip


class _ItemKind(Struct):
    type: str | None = None
    role: str | None = None


def select_user_messages(items: Sequence[bytes]) -> list[bytes]:
    """Select the user messages from normalized items."""
    kinds = ((item, msgspec.json.decode(item, type=_ItemKind)) for item in items)
    return [item for item, kind in kinds if kind.type == "message" and kind.role == "user"]


class RequestedTools(Struct, frozen=True):
    """What a request wants of MCP servers.

    plan: what may be called.
    unlisted: the servers whose tools are not known.
    unmatched_approvals: the fields with answers to unknown requests for an approval.
    warnings: those that depend on the tools that were listed.
    """

    plan: ServerToolPlan
    unlisted: tuple[RequestedServer, ...] = ()
    unmatched_approvals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class BuiltRequest(Struct, frozen=True):
    """The request built from a body and its input items, and the options for rendering
    its response.

    echo: JSON of the fields in `Echo.rest`.
    items: the parsed input items.
    tools: what the request wants of MCP servers; None if nothing.
    """

    request: GenerateRequest
    render_options: ResponsesRenderOptions
    echo: bytes
    items: Sequence[ParsedItem]
    tools: RequestedTools | None


class ResponsesCall(Struct, frozen=True, kw_only=True):
    """A parsed Responses body.

    call: one request with one choice; it contains only the body's items until
        `with_history`.
    input: the items of the body.
    echo: the request fields that the response object repeats.
    render_options, id: the rendering options and the requested id, for `create_writer`
        and `with_echo`.
    rebuild: builds the request again with other items and sampled turns, for
        `with_history`.
    previous_response_id, conversation: the response or conversation whose items precede
        these.
    store: whether to store the response; None is unset, which means yes.
    background: run in the background.
    items: the parsed items of the history and the input.
    sampled_turns: as in `Conversation`.
    tools: as in `BuiltRequest`.
    durable_body: the body without `input`, with which a background response can be
        continued after a restart; None if the body has secrets, which are not stored.
    """

    call: GenerationCall
    input: tuple[InputItem, ...]
    echo: Echo
    render_options: ResponsesRenderOptions
    id: ResponseId
    rebuild: Callable[
        [Sequence[ParsedItem | WireItem], tuple[tuple[int, ...], ...], tuple[ToolList, ...]],
        BuiltRequest,
    ]
    items: Sequence[ParsedItem]
    tools: RequestedTools | None
    previous_response_id: str | None = None
    conversation: str | None = None
    store: bool | None = None
    background: bool = False
    durable_body: bytes | None = None
    sampled_turns: tuple[tuple[int, ...], ...] = ()

    def with_history(
        self,
        history: Sequence[WireItem],
        input: tuple[InputItem, ...],
        sampled_turns: tuple[tuple[int, ...], ...] = (),
    ) -> ResponsesCall:
        """Return the same call with earlier items before its input.

        history: stored items. The instructions stay before them; tools and settings in
            them apply.
        input: the call's own items, with references resolved.
        sampled_turns: token ids to which the conversation encodes earlier output.

        Raises:
            RequestError: a stored item is invalid for this call.
        """
        built = self.rebuild((*history, *(item.parsed for item in input)), sampled_turns, ())
        changed = msgspec.structs.replace(self, input=input, sampled_turns=sampled_turns)
        return changed._with_built(built)

    def with_tool_lists(self, lists: tuple[ToolList, ...]) -> ResponsesCall:
        """Return the same call with the tools that MCP servers have listed.

        Raises:
            RequestError: the tool choice or an approval does not fit them.
        """
        built = self.rebuild(self.items, self.sampled_turns, lists)
        if built.tools is None:
            return self
        for path in built.tools.unmatched_approvals:
            raise invalid_value(path, "there is no request for this approval")
        plan = built.tools.plan
        for approved in plan.approved:
            if approved.tool not in plan.tools:
                raise invalid_value(
                    "tools",
                    f"the approved call of {abbreviate(approved.tool)} needs its MCP server, with "
                    "that tool allowed",
                )
        changed = self._with_built(built)
        warnings = (*changed.call.warnings, *built.tools.warnings)
        call = msgspec.structs.replace(changed.call, server_tools=plan, warnings=warnings)
        return msgspec.structs.replace(changed, call=call)

    def _with_built(self, built: BuiltRequest) -> ResponsesCall:
        # The output limit is the body's, or that of a call without output.
        request = msgspec.structs.replace(built.request, limits=self.call.requests[0].limits)
        call = msgspec.structs.replace(self.call, requests=(request,))
        changed = msgspec.structs.replace(
            self,
            call=call,
            render_options=built.render_options,
            items=built.items,
            tools=built.tools,
        )
        return changed.with_echo(msgspec.structs.replace(self.echo, rest=built.echo))

    def with_echo(self, echo: Echo) -> ResponsesCall:
        """Return the same call with another echo."""
        writer = build_writer_factory(self.id, self.render_options, echo)
        return msgspec.structs.replace(
            self, echo=echo, call=msgspec.structs.replace(self.call, writer=writer)
        )

    def create_compacted_writer(
        self, header: Header, items: Sequence[bytes]
    ) -> CompactResponseWriter:
        """Create the writer of a call that was parsed for compaction.

        items: all items to compact, normalized.
        """
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
            return CompactionWriter(
                id.apply_to(header), render_options, echo, render_options.seal_compaction
            )
        return ResponsesWriter(id.apply_to(header), render_options, echo)

    return writer
