"""The writers of one output item: its opening, delta and closing events, its final
JSON.

Each kind renders its own events. An event is its name and its fields after
`sequence_number`; ResponsesWriter adds the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from ...core.events import Token, Usage
from ...core.message import Reasoning, Refusal, SealKind, Text, ToolCall
from ...core.reply import ReplyPart
from ...core.server_tools import ToolFailureKind, ToolList, ToolOutcome, is_json_object
from ..json_encoding import encode_string, encode_string_or_null
from ..logprobs import TokenNaming, render_chat_logprobs
from ..search_links import find_links, locate_links
from ..token_alignment import ContentTokens, content_tokens
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


def render_citations(text: str, titles: Mapping[str, str]) -> list[bytes]:
    """Render a citation for each link of a search that stands in the text.

    titles: the titles of the links, by URL.
    """
    return [
        b'{"type":"url_citation","start_index":%d,"end_index":%d,"url":%s,"title":%s}'
        % (start, start + len(url), encode_string(url), encode_string(titles[url]))
        for start, url in locate_links(text)
        if url in titles
    ]


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


class _BaseItemWriter:
    def __init__(self, kind: str, index: int, tail: str) -> None:
        self.index = index
        # Derived ids let a stream and a later `retrieve` agree without a table of ids.
        self.id = encode_string(f"{ID_PREFIXES[kind]}_{tail}_{index}")
        self.location = b'"item_id":%s,"output_index":%d' % (self.id, index)
        self.texts: list[str] = []

    def join_text(self) -> str:
        return "".join(self.texts)


class MessageItemWriter(_BaseItemWriter):
    """A message with text. Tokens that released no text are buffered for the next delta
    or the end of the item.
    """

    def __init__(
        self, index: int, tail: str, options: ResponsesRenderOptions, titles: Mapping[str, str]
    ) -> None:
        super().__init__("message", index, tail)
        self._titles = titles
        self._top = options.logprobs
        self._tokens: list[Token] = []
        self._pending_tokens: list[Token] = []
        self._restored: Sequence[Raw] = ()
        self._content = ContentTokens()
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
        if self._top is not None:
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
        self._score(self._content.close())
        # Tokens without text have logprobs too: an empty delta carries them, so that
        # the deltas add up to the list in `done`.
        pending = [self._build_delta("")] if self._pending_tokens else []
        text = self.join_text()
        logprobs = self._render_logprobs()
        done = b'%s,"text":%s,"logprobs":%s' % (self.part_location, encode_string(text), logprobs)
        citations = self._render_citations()
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

    def _render_citations(self) -> list[bytes]:
        return render_citations(self.join_text(), self._titles) if self._titles else []

    def render(self, status: bytes) -> bytes:
        # A full response renders the item without `end`, so the tokens that are still
        # open are listed here.
        self._score(self._content.close() if status != IN_PROGRESS else [])
        logprobs = self._render_logprobs()
        content = render_text_part(self.join_text(), logprobs, self._render_citations())
        return render_message(self.id, status, b"" if status == IN_PROGRESS else content)


class RefusalItemWriter(_BaseItemWriter):
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


class ReasoningItemWriter(_BaseItemWriter):
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


class CallItemWriter(_BaseItemWriter):
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


class HostedCallItemWriter(McpCallItemWriter):
    """A call of a tool of the operator that runs a hosted tool."""

    def __init__(
        self,
        index: int,
        tail: str,
        call_id: str,
        name: ToolName,
        options: ResponsesRenderOptions,
    ) -> None:
        super().__init__(index, tail, call_id, name)
        self._kind = self._tool.hosted + "_call"
        self._options = options
        self._set_id(self._kind)

    def begin(self) -> list[EventFields]:
        return [(self._kind.encode() + b".in_progress", self.location)]

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        del tokens
        self.texts.append(text)
        return None

    def _build_endings(self, stage: bytes) -> list[EventFields]:
        """Return the events of a call that was made. There is none for a failure."""
        kind = self._kind.encode()
        if self.outcome is None:
            return []
        begun = (kind + b"." + stage, self.location)
        if self.outcome.failure is not None:
            return [begun]
        return [begun, (kind + b".completed", self.location)]

    def _find_argument(self, *names: str) -> str:
        """Return an argument by its usual names, or else the first text."""
        try:
            arguments = msgspec.json.decode(self.join_text(), type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError):
            return ""
        values = [*(arguments.get(name) for name in names), *arguments.values()]
        return next((value for value in values if isinstance(value, str)), "")


class WebSearchItemWriter(HostedCallItemWriter):
    """A `web_search_call`. titles: receives the titles of the links that it finds."""

    def __init__(
        self,
        index: int,
        tail: str,
        call_id: str,
        name: ToolName,
        options: ResponsesRenderOptions,
        titles: dict[str, str],
    ) -> None:
        super().__init__(index, tail, call_id, name, options)
        self._titles = titles

    def end(self) -> list[EventFields]:
        return self._build_endings(b"searching")

    def find_links(self) -> list[str]:
        """Return the URLs of the links that the search found, and keep their titles."""
        if self.outcome is None or self.outcome.failure is not None:
            return []
        links = find_links(self.outcome.text)
        self._titles |= {link.url: link.title for link in links}
        return [link.url for link in links]

    def render(self, status: bytes) -> bytes:
        status = self._map_status(status)
        action = b""
        if status != IN_PROGRESS:
            query = encode_string(self._find_argument("query", "q"))
            action = b',"query":%s,"queries":[%s]' % (query, query)
        if self.outcome is not None and self.outcome.failure is None:
            urls = self.find_links()
            if self._options.include_sources:
                sources = (b'{"type":"url","url":%s}' % encode_string(url) for url in urls)
                action += b',"sources":[%s]' % b",".join(sources)
        return b'{"id":%s,"type":"web_search_call","status":"%s","action":{"type":"search"%s}}' % (
            self.id,
            status,
            action,
        )


class CodeInterpreterItemWriter(HostedCallItemWriter):
    """A `code_interpreter_call`. Its code is sent at once when it is complete, since the
    model writes it as a string of JSON.
    """

    def end(self) -> list[EventFields]:
        code = encode_string(self._find_code())
        prefix = self._kind.encode() + b"_code."
        delta = [(prefix + b"delta", self.delta_prefix + code)] if self._find_code() else []
        done = (prefix + b"done", b'%s,"code":%s' % (self.location, code))
        return [*delta, done, *self._build_endings(b"interpreting")]

    def _find_code(self) -> str:
        return self._find_argument("code", "script", "source")

    def render(self, status: bytes) -> bytes:
        status = self._map_status(status)
        outputs = b"null"
        if self.outcome is not None and self._options.include_code_outputs:
            outputs = b'[{"type":"logs","logs":%s}]' % encode_string(self.outcome.text)
        return (
            b'{"id":%s,"type":"code_interpreter_call","status":"%s","code":%s,'
            b'"container_id":%s,"outputs":%s}'
        ) % (
            self.id, status, encode_string("" if status == IN_PROGRESS else self._find_code()),
            encode_string(f"cntr_{self._tail}"), outputs,
        )  # fmt: skip


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
            # OpenAI's types of these three events have no `item_id`.
            location = b'"output_index":%d,"command_index":%d' % (self.index, i)
            events.append((b"shell_call_command.added", location + b',"command":""'))
            events.append(
                (b"shell_call_command.delta", b'%s,"delta":%s' % (location, encode_string(command)))
            )
            events.append(
                (
                    b"shell_call_command.done",
                    b'%s,"command":%s' % (location, encode_string(command)),
                )
            )
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


class OpenItem(Struct, frozen=True):
    """The fields of an item as it begins."""

    type: str
    name: str = ""
    namespace: str = ""
    server_label: str | None = None
    call_id: str = ""
    is_refusal: bool = False


class ItemWriterFactory:
    """Creates the item writers of one response. Item ids derive from the response's id
    and never change.
    """

    def __init__(self, response_id: str, options: ResponsesRenderOptions) -> None:
        self._tail = response_id.removeprefix("resp_")
        self._options = options
        self._titles: dict[str, str] = {}
        self._names = {name.qualified: name for name in options.tool_names}

    def create(
        self, index: int, kind: type[ReplyPart]
    ) -> MessageItemWriter | RefusalItemWriter | ReasoningItemWriter:
        """Create the writer of any item except a call."""
        if kind is Reasoning:
            return ReasoningItemWriter(index, self._tail, self._options)
        return (
            RefusalItemWriter(index, self._tail)
            if kind is Refusal
            else MessageItemWriter(index, self._tail, self._options, self._titles)
        )

    def create_list(self, index: int, tool_list: ToolList) -> ToolListWriter:
        return ToolListWriter(index, self._tail, tool_list)

    def create_call(self, index: int, call_id: str, name: str, custom: bool) -> CallItemWriter:
        # The table has only the names that differ between the prompt and the wire.
        tool_name = self._names.get(name) or ToolName(name, name, "")
        if (tool := tool_name.server_tool) is not None and tool.hosted == "web_search":
            return WebSearchItemWriter(
                index, self._tail, call_id, tool_name, self._options, self._titles
            )
        if tool is not None and tool.hosted:
            return CodeInterpreterItemWriter(index, self._tail, call_id, tool_name, self._options)
        if tool is not None:
            kind = ApprovalItemWriter if tool.needs_approval else McpCallItemWriter
            return kind(index, self._tail, call_id, tool_name)
        if tool_name.kind and not custom:
            return ClientCallItemWriter(index, self._tail, call_id, tool_name)
        return CallItemWriter(index, self._tail, call_id, tool_name, custom)

    def restore_links(self, calls: Sequence[ToolCall]) -> None:
        """Find the links in the outcomes of earlier calls, which later text may cite."""
        for call in calls:
            item = self.create_complete(0, call)
            if isinstance(item, WebSearchItemWriter):
                item.find_links()

    def restore(
        self,
        index: int,
        item: OpenItem,
        text: str,
        logprobs: Sequence[Raw],
        part: ReplyPart | None,
    ) -> ItemWriter:
        """Create the writer of an item that another writer has begun.

        text, logprobs: those of its deltas.
        part: the whole of it; None if it was cut off.
        """
        if part is not None and not isinstance(part, Text):
            return self.create_complete(index, part)
        writer: ItemWriter
        match item.type:
            case "message":
                writer = self.create(index, Refusal if item.is_refusal else Text)
            case "reasoning":
                writer = self.create(index, Reasoning)
            case _:
                writer = self.create_call(
                    index, item.call_id, self._find_qualified(item), item.type == "custom_tool_call"
                )
        if isinstance(writer, MessageItemWriter):
            writer.restore(text, logprobs, () if part is None else part.tokens)
        else:
            writer.add(text, ())
        return writer

    def _find_qualified(self, item: OpenItem) -> str:
        for name in self._names.values():
            if name.server_tool is not None and name.server_tool.hosted + "_call" == item.type:
                return name.qualified
            label = None if name.server_tool is None else name.server_tool.server
            if (name.name, name.namespace, label) == (
                item.name,
                item.namespace,
                item.server_label,
            ):
                return name.qualified
        return item.name

    def create_complete(self, index: int, part: ReplyPart) -> ItemWriter:
        """Create the writer of a finished part, with the part added."""
        if isinstance(part, ToolCall):
            call = self.create_call(index, part.id, part.name, part.custom)
            call.add(part.arguments, ())
            if isinstance(call, McpCallItemWriter):
                call.outcome = part.outcome
            if isinstance(call, (ClientCallItemWriter, ApprovalItemWriter)):
                call.resolve()
            return call
        writer = self.create(index, type(part))
        writer.add(part.text, part.tokens if isinstance(part, Text) else ())
        if isinstance(writer, ReasoningItemWriter) and isinstance(part, Reasoning):
            writer.seal = part.seal
        return writer
