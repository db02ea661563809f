"""The writers of one output item: its opening, delta and closing events, its final
JSON.

Each kind renders its own events. An event is its name and its fields after
`sequence_number`; ResponsesWriter adds the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Raw

from ...core.events import Token, Usage
from ...core.message import SealKind
from ...core.server_tools import ToolFailureKind, ToolList, ToolOutcome, is_json_object
from ..json_encoding import encode_string, encode_string_or_null
from ..logprobs import TokenNaming, render_chat_logprobs
from ..token_alignment import ContentTokens, content_tokens
from .citations import Sources
from .client_tools import CLIENT_TOOLS, CallFields
from .input_items import ID_PREFIXES
from .mcp_tools import render_tool_list_tools
from .render_options import ResponsesRenderOptions
from .tool_registry import ToolName

_TEXT_NAMING = TokenNaming()


def render_logprobs(tokens: Sequence[Token], top: int | None) -> bytes:
    """Render the logprobs. The array is always present; empty if not requested."""
    return b"[]" if top is None or not tokens else render_chat_logprobs(tokens, top, _TEXT_NAMING)


def render_text_part(text: str, logprobs: bytes, annotations: Sequence[bytes] = ()) -> bytes:
    return b'{"type":"output_text","text":%s,"annotations":[%s],"logprobs":%s}' % (
        encode_string(text),
        b",".join(annotations),
        logprobs,
    )


def render_refusal_part(text: str) -> bytes:
    return b'{"type":"refusal","refusal":%s}' % encode_string(text)


def render_reasoning_part(text: str) -> bytes:
    return b'{"type":"reasoning_text","text":%s}' % encode_string(text)


def render_summary_part(text: str) -> bytes:
    return b'{"type":"summary_text","text":%s}' % encode_string(text)


def render_message(id: bytes, status: bytes, content: bytes) -> bytes:
    """Render a message item. id: as JSON. content: the parts, separated by commas."""
    return b'{"id":%s,"type":"message","status":"%s","role":"assistant","content":[%s]}' % (
        id,
        status,
        content,
    )


def render_reasoning(
    id: bytes, status: bytes, summary: bytes, content: bytes, sealed: bytes = b""
) -> bytes:
    """Render a reasoning item.

    id: as JSON.
    summary, content: the parts, separated by commas; an empty `content` is omitted.
    sealed: the encrypted content as JSON, or empty.
    """
    fields = b'{"id":%s,"type":"reasoning","status":"%s","summary":[%s]' % (id, status, summary)
    fields += content and b',"content":[%s]' % content
    fields += sealed and b',"encrypted_content":' + sealed
    return fields + b"}"


def render_call(
    id: bytes, status: bytes, call_id: str, name: ToolName, arguments: str, custom: bool
) -> bytes:
    kind, field = (b"custom_tool_call", b"input") if custom else (b"function_call", b"arguments")
    # Clients dispatch a call by name and namespace, and do not know the joined name in
    # the prompt (vllm#46737).
    namespace = name.namespace and b',"namespace":' + encode_string(name.namespace)
    return b'{"id":%s,"type":"%s","status":"%s","call_id":%s,"name":%s%s,"%s":%s}' % (
        id, kind, status, encode_string(call_id), encode_string(name.name), namespace or b"", field,
        encode_string(arguments),
    )  # fmt: skip


def render_usage(usage: Usage) -> bytes:
    """Render usage; null if the counts are unknown. Both API references require
    integers in all fields, so unknown details are 0 here.
    """
    if usage.prompt is None or usage.completion is None:
        return b"null"
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d},'
        b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
    ) % (
        usage.prompt, usage.cached or 0, usage.written or 0, usage.completion, usage.reasoning or 0,
        usage.prompt + usage.completion,
    )  # fmt: skip


EventFields = tuple[bytes, bytes]
"""The name of an event without `response.`, and its fields."""

QUEUED = b"queued"
IN_PROGRESS = b"in_progress"
COMPLETED = b"completed"
INCOMPLETE = b"incomplete"


class ItemWriter(Protocol):
    def begin(self) -> list[EventFields]: ...

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        """Render a delta, unless there is nothing to send yet."""
        ...

    def end(self) -> list[EventFields]: ...

    def render(self, status: bytes) -> bytes:
        """Render the item with everything added so far."""
        ...

    def build_next(self) -> ItemWriter | None:
        """Build the writer of the item that belongs to the same part and follows this
        one, once that has ended; None if there is none.
        """
        ...


class BaseItemWriter:
    def __init__(self, kind: str, index: int, tail: str) -> None:
        self.index = index
        # Derived ids let a stream and a later `retrieve` agree without a table of ids.
        self.id = encode_string(f"{ID_PREFIXES[kind]}_{tail}_{index}")
        self.location = b'"item_id":%s,"output_index":%d' % (self.id, index)
        self.texts: list[str] = []

    def join_text(self) -> str:
        return "".join(self.texts)

    def build_next(self) -> ItemWriter | None:
        return None


class MessageItemWriter(BaseItemWriter):
    """A message with text. Tokens that released no text are buffered for the next delta
    or the end of the item.
    """

    def __init__(
        self, index: int, tail: str, options: ResponsesRenderOptions, sources: Sources
    ) -> None:
        super().__init__("message", index, tail)
        self._sources = sources
        self._top = options.logprobs
        self._tokens: list[Token] = []
        self._pending_tokens: list[Token] = []
        self._restored: Sequence[Raw] = ()
        self._content = None if self._top is None else ContentTokens()
        self.part_location = self.location + b',"content_index":0'
        self.delta_prefix = self.part_location + b',"delta":'

    def begin(self) -> list[EventFields]:
        return [
            (
                b"content_part.added",
                b'%s,"part":%s' % (self.part_location, render_text_part("", b"[]")),
            )
        ]

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        if self._content is not None:
            self._score(self._content.feed(text, tokens))
        self.texts.append(text)
        return self._build_delta(text) if text else None

    def restore(self, text: str, logprobs: Sequence[Raw], tokens: Sequence[Token]) -> None:
        """Continue after the deltas of another writer. tokens: all of the text's."""
        self.texts.append(text)
        self._restored = logprobs
        if self._top is not None:
            self._score(content_tokens(text, tokens)[len(logprobs) :])

    def _render_logprobs(self) -> bytes:
        logprobs = render_logprobs(self._tokens, self._top)
        if not self._restored:
            return logprobs
        new = (logprobs[1:-1],) if self._tokens else ()
        return b"[%s]" % b",".join((*map(bytes, self._restored), *new))

    def _build_delta(self, text: str) -> EventFields:
        tokens = self._pending_tokens
        self._pending_tokens = []
        logprobs = render_logprobs(tokens, self._top)
        return b"output_text.delta", b'%s%s,"logprobs":%s' % (
            self.delta_prefix,
            encode_string(text),
            logprobs,
        )

    def _score(self, tokens: Sequence[Token]) -> None:
        self._tokens.extend(tokens)
        self._pending_tokens.extend(tokens)

    def end(self) -> list[EventFields]:
        if self._content is not None:
            self._score(self._content.close())
        # Tokens without text have logprobs too: an empty delta carries them, so that
        # the deltas add up to the list in `done`.
        pending = [self._build_delta("")] if self._pending_tokens else []
        text = self.join_text()
        logprobs = self._render_logprobs()
        done = b'%s,"text":%s,"logprobs":%s' % (self.part_location, encode_string(text), logprobs)
        citations = self._sources.render_citations(text)
        annotations = [
            (
                b"output_text.annotation.added",
                b'%s,"annotation_index":%d,"annotation":%s' % (self.part_location, i, citation),
            )
            for i, citation in enumerate(citations)
        ]
        part = render_text_part(text, logprobs, citations)
        return [
            *pending,
            *annotations,
            (b"output_text.done", done),
            (b"content_part.done", b'%s,"part":%s' % (self.part_location, part)),
        ]

    def render(self, status: bytes) -> bytes:
        # A full response renders the item without `end`, so the tokens that are still
        # open are listed here.
        if self._content is not None and status != IN_PROGRESS:
            self._score(self._content.close())
        logprobs = self._render_logprobs()
        text = self.join_text()
        content = render_text_part(text, logprobs, self._sources.render_citations(text))
        return render_message(self.id, status, b"" if status == IN_PROGRESS else content)


class RefusalItemWriter(BaseItemWriter):
    def __init__(self, index: int, tail: str) -> None:
        super().__init__("message", index, tail)
        self.part_location = self.location + b',"content_index":0'
        self.delta_prefix = self.part_location + b',"delta":'

    def begin(self) -> list[EventFields]:
        return [
            (b"content_part.added", b'%s,"part":%s' % (self.part_location, render_refusal_part("")))
        ]

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        del tokens
        self.texts.append(text)
        return (b"refusal.delta", self.delta_prefix + encode_string(text)) if text else None

    def end(self) -> list[EventFields]:
        part = b'%s,"part":%s' % (self.part_location, render_refusal_part(self.join_text()))
        return [
            (
                b"refusal.done",
                b'%s,"refusal":%s' % (self.part_location, encode_string(self.join_text())),
            ),
            (b"content_part.done", part),
        ]

    def render(self, status: bytes) -> bytes:
        return render_message(
            self.id, status, b"" if status == IN_PROGRESS else render_refusal_part(self.join_text())
        )


class ReasoningItemWriter(BaseItemWriter):
    """Reasoning, rendered as a summary or as raw text; the two have different events."""

    def __init__(self, index: int, tail: str, options: ResponsesRenderOptions) -> None:
        super().__init__("reasoning", index, tail)
        self._summary = options.as_summary
        self._options = options
        self.seal = ""
        # @ai-sdk/openai shows only summaries, and Codex asks for one; other clients get
        # the text under its own events.
        self._text_event = b"reasoning_summary_text" if options.as_summary else b"reasoning_text"
        self._part_event = b"reasoning_summary_part" if options.as_summary else b"content_part"
        self.part_location = self.location + (
            b',"summary_index":0' if options.as_summary else b',"content_index":0'
        )
        self.delta_prefix = self.part_location + b',"delta":'

    def _render_part(self, text: str) -> bytes:
        return render_summary_part(text) if self._summary else render_reasoning_part(text)

    def begin(self) -> list[EventFields]:
        return [
            (
                self._part_event + b".added",
                b'%s,"part":%s' % (self.part_location, self._render_part("")),
            )
        ]

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        del tokens
        self.texts.append(text)
        return (
            (self._text_event + b".delta", self.delta_prefix + encode_string(text))
            if text
            else None
        )

    def end(self) -> list[EventFields]:
        text = self.join_text()
        return [
            (
                self._text_event + b".done",
                b'%s,"text":%s' % (self.part_location, encode_string(text)),
            ),
            (
                self._part_event + b".done",
                b'%s,"part":%s' % (self.part_location, self._render_part(text)),
            ),
        ]

    def render(self, status: bytes) -> bytes:
        if status == IN_PROGRESS:
            return render_reasoning(self.id, status, b"", b"")
        text = self.join_text()
        options = self._options
        sealed: str | None = None
        # Reasoning with a seal has encrypted content even if it was not requested:
        # without it the next turn would fail.
        if self.seal and options.wrap_seal is not None:
            sealed = options.wrap_seal(text, self.seal)
        elif self.seal:
            encrypted = SealKind.OPENAI.read(self.seal)
            sealed = self.seal if encrypted is None else encrypted
        elif options.seal_reasoning is not None:
            sealed = options.seal_reasoning(text)
        part = self._render_part(text)
        summary, content = (part, b"") if self._summary else (b"", part)
        return render_reasoning(
            self.id, status, summary, content, b"" if sealed is None else encode_string(sealed)
        )


class CallItemWriter(BaseItemWriter):
    def __init__(self, index: int, tail: str, call_id: str, name: ToolName, custom: bool) -> None:
        super().__init__("custom_tool_call" if custom else "function_call", index, tail)
        self._call_id = call_id
        self._name = name
        self._custom = custom
        self._text_event = b"custom_tool_call_input" if custom else b"function_call_arguments"
        self.delta_prefix = self.location + b',"delta":'

    def begin(self) -> list[EventFields]:
        return []

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        del tokens
        self.texts.append(text)
        return (
            (self._text_event + b".delta", self.delta_prefix + encode_string(text))
            if text
            else None
        )

    def end(self) -> list[EventFields]:
        arguments = encode_string(self.join_text())
        if self._custom:
            return [(self._text_event + b".done", b'%s,"input":%s' % (self.location, arguments))]
        # OpenAI's type of this event requires the name, whereas that of a custom tool
        # has none.
        name = encode_string(self._name.name)
        return [
            (
                self._text_event + b".done",
                b'%s,"name":%s,"arguments":%s' % (self.location, name, arguments),
            )
        ]

    def render(self, status: bytes) -> bytes:
        return render_call(
            self.id, status, self._call_id, self._name, self.join_text(), self._custom
        )


class McpCallItemWriter(CallItemWriter):
    """A call of an MCP server's tool, which this server makes once it is complete.

    outcome: what the call returned; None if it has not been made.
    """

    def __init__(self, index: int, tail: str, call_id: str, name: ToolName) -> None:
        super().__init__(index, tail, call_id, name, custom=False)
        assert name.server_tool is not None
        self._tool = name.server_tool
        self._tail = tail
        self.outcome: ToolOutcome | None = None
        self._set_id("mcp_call")

    def _set_id(self, kind: str) -> None:
        self.id = encode_string(f"{ID_PREFIXES[kind]}_{self._tail}_{self.index}")
        self.location = b'"item_id":%s,"output_index":%d' % (self.id, self.index)
        self.delta_prefix = self.location + b',"delta":'
        self._text_event = b"mcp_call_arguments"

    def begin(self) -> list[EventFields]:
        return [(b"mcp_call.in_progress", self.location)]

    def end(self) -> list[EventFields]:
        arguments = encode_string(self.join_text())
        done = (b"mcp_call_arguments.done", b'%s,"arguments":%s' % (self.location, arguments))
        if self.outcome is None:
            return [done]
        ending = b"mcp_call.completed" if self.outcome.failure is None else b"mcp_call.failed"
        return [done, (ending, self.location)]

    def render(self, status: bytes) -> bytes:
        outcome = self.outcome
        output = error = approval = b"null"
        if outcome is not None:
            approval = encode_string_or_null(outcome.approval)
            if outcome.failure is None:
                output = encode_string(outcome.text)
            else:
                error = _render_call_error(outcome)
        return (
            b'{"id":%s,"type":"mcp_call","status":"%s","approval_request_id":%s,'
            b'"server_label":%s,"name":%s,"arguments":%s,"error":%s,"output":%s}'
        ) % (
            self.id, self._map_status(status), approval, encode_string(self._tool.server),
            encode_string(self._tool.name), encode_string(self.join_text()), error, output,
        )  # fmt: skip

    def _map_status(self, status: bytes) -> bytes:
        """Return the status of a call in an item of this status."""
        if self.outcome is None:
            return status if status == IN_PROGRESS else INCOMPLETE
        return COMPLETED if self.outcome.failure is None else b"failed"


def _render_call_error(outcome: ToolOutcome) -> bytes:
    if outcome.failure is ToolFailureKind.EXECUTION:
        return b'{"type":"mcp_tool_execution_error","content":%s}' % encode_string(outcome.text)
    kind = b"http_error" if outcome.failure is ToolFailureKind.HTTP else b"mcp_protocol_error"
    return b'{"type":"%s","code":%d,"message":%s}' % (
        kind,
        outcome.code,
        encode_string(outcome.text),
    )


class ApprovalItemWriter(McpCallItemWriter):
    """A call that needs the client's approval: a request for it, or the call itself if it
    was made after an approval, or can never be made.
    """

    def __init__(self, index: int, tail: str, call_id: str, name: ToolName) -> None:
        super().__init__(index, tail, call_id, name)
        self._is_request = False

    def resolve(self) -> None:
        # A client must not approve what the model did not finish writing.
        self._is_request = self.outcome is None and is_json_object(self.join_text())
        if self._is_request:
            self._set_id("mcp_approval_request")

    def render_added(self) -> bytes:
        if self._is_request:
            return self.render(IN_PROGRESS)
        text = self.texts
        outcome = self.outcome
        self.texts = []
        self.outcome = None
        added = super().render(IN_PROGRESS)
        self.texts = text
        self.outcome = outcome
        return added

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        super().add(text, tokens)
        return None

    def end(self) -> list[EventFields]:
        if self._is_request:
            return []
        text = self.join_text()
        delta = (b"mcp_call_arguments.delta", self.delta_prefix + encode_string(text))
        return [*self.begin(), *([delta] if text else []), *super().end()]

    def render(self, status: bytes) -> bytes:
        if not self._is_request:
            return super().render(status)
        return (
            b'{"id":%s,"type":"mcp_approval_request","server_label":%s,"name":%s,"arguments":%s}'
            % (
                self.id,
                encode_string(self._tool.server),
                encode_string(self._tool.name),
                encode_string(self.join_text()),
            )
        )


class ToolListWriter:
    """The item of an MCP server's list of tools; it is complete when it is added."""

    def __init__(self, index: int, tail: str, tool_list: ToolList) -> None:
        self._list = tool_list
        self.id = encode_string(f"{ID_PREFIXES['mcp_list_tools']}_{tail}_{index}")
        self._location = b'"item_id":%s,"output_index":%d' % (self.id, index)

    def list_events(self) -> list[EventFields]:
        ending = b"completed" if self._list.error is None else b"failed"
        return [
            (b"mcp_list_tools.in_progress", self._location),
            (b"mcp_list_tools." + ending, self._location),
        ]

    def render_added(self) -> bytes:
        return self._render(b"[]", b"null")

    def render(self) -> bytes:
        return self._render(
            render_tool_list_tools(self._list.tools), encode_string_or_null(self._list.error)
        )

    def _render(self, tools: bytes, error: bytes) -> bytes:
        return b'{"id":%s,"type":"mcp_list_tools","server_label":%s,"tools":%s,"error":%s}' % (
            self.id,
            encode_string(self._list.server),
            tools,
            error,
        )


def render_command_events(output_index: int, index: int, command: str) -> list[EventFields]:
    """Render the events of a command of a shell call, which is complete."""
    # OpenAI's types of these three events have no `item_id`.
    location = b'"output_index":%d,"command_index":%d' % (output_index, index)
    text = encode_string(command)
    return [
        (b"shell_call_command.added", location + b',"command":""'),
        (b"shell_call_command.delta", b'%s,"delta":%s' % (location, text)),
        (b"shell_call_command.done", b'%s,"command":%s' % (location, text)),
    ]


class ClientCallItemWriter(CallItemWriter):
    """A call of a tool that OpenAI defines and the client runs.

    The item's fields are built from the complete arguments, so it is added only when
    the call is complete. Arguments that do not have the tool's shape, because the
    answer was truncated or the engine enforces no schema, are returned as a function
    call: a client must not run a command that the model did not write.
    """

    def __init__(self, index: int, tail: str, call_id: str, name: ToolName) -> None:
        super().__init__(index, tail, call_id, name, custom=False)
        self._tail = tail
        self._tool = CLIENT_TOOLS[name.kind]
        self._fields: CallFields | None = None

    def resolve(self) -> None:
        """Choose the item's type by whether the arguments have the tool's shape."""
        try:
            self._fields = self._tool.render_call(self.join_text().encode())
        # The model wrote the arguments: they may have any shape, and nest deeper than
        # the decoder allows.
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        # No event has carried the id yet, so it can still get the prefix of its type.
        self.id = encode_string(f"{ID_PREFIXES[self._tool.call]}_{self._tail}_{self.index}")

    def render_added(self) -> bytes:
        """Render the item as it begins: without what its events add."""
        if self._fields is None:
            return render_call(self.id, IN_PROGRESS, self._call_id, self._name, "", custom=False)
        return self._render(IN_PROGRESS, self._fields.initial or self._fields.complete)

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        del tokens
        self.texts.append(text)
        return None

    def end(self) -> list[EventFields]:
        if self._fields is None:
            text = self.join_text()
            deltas = (
                [(self._text_event + b".delta", self.delta_prefix + encode_string(text))]
                if text
                else []
            )
            return [*deltas, *super().end()]
        events: list[EventFields] = []
        for i, command in enumerate(self._fields.commands):
            events += render_command_events(self.index, i, command)
        return events

    def render(self, status: bytes) -> bytes:
        if self._fields is None:
            return super().render(status)
        # A patch has no status `incomplete`, and its arguments are complete.
        is_patch = self._tool.call == "apply_patch_call"
        return self._render(
            COMPLETED if is_patch and status == INCOMPLETE else status, self._fields.complete
        )

    def _render(self, status: bytes, fields: bytes) -> bytes:
        return b'{"id":%s,"type":"%s","status":"%s","call_id":%s,%s}' % (
            self.id, self._tool.call.encode(), status, encode_string(self._call_id), fields,
        )  # fmt: skip
