"""Renders answers of Anthropic Messages, as a stream of events or as one object.

    message_start  (content_block_start content_block_delta* content_block_stop)*  message_delta  message_stop

One block is open at a time: text, thinking that ends with its signature, or a tool call
with its input. Empty text does not open a block.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from ...core.errors import DragomanError
from ...core.events import (
    AppliedEdit,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import Reasoning, Refusal, SealKind, ToolCall
from ...core.reply import Choice, Reply, ReplyPart
from ...core.server_tools import ServerToolName, ToolOutcome
from ..interfaces import Header
from ..json_encoding import (
    encode_field,
    encode_int,
    encode_string,
    encode_string_or_null,
    escape_line_breaks,
    replace_surrogates,
)
from ..search_links import Link
from ..tool_input import ToolInputStreamer, is_cut_off
from .context_edits import render_applied_edits
from .errors import render_anthropic_error
from .hosted_tools import map_links, render_citations, render_hosted_result

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def no_signature(_: str) -> str:
    """Return the empty signature of a server without a key."""
    return ""


class MessagesRenderOptions(Struct, frozen=True):
    """The response options of Messages.

    omit_thinking: render thinking blocks with their signature only.
    sign: computes the signature of complete thinking.
    reports_edits: report the applied context edits.
    wrap_seal: computes the signature of sealed thinking from its text and seal; None
        passes the seal on unchanged.
    server_tools: the tools that this server calls, by their names in the prompt.
    seal: encrypts the output of a search.
    """

    omit_thinking: bool = False
    sign: Callable[[str], str] = no_signature
    reports_edits: bool = False
    wrap_seal: Callable[[str, str], str] | None = None
    server_tools: Mapping[str, ServerToolName] = {}
    seal: Callable[[str], str] = no_signature

    def render_call_head(self, id: str, name: str) -> bytes:
        """Render a call without its input."""
        tool = self.server_tools.get(name)
        if tool is None:
            return b'"type":"tool_use","id":%s,"name":%s' % (encode_string(id), encode_string(name))
        if tool.hosted:
            return b'"type":"server_tool_use","id":%s,"name":%s' % (
                encode_string(_build_hosted_call_id(id)),
                encode_string(tool.hosted),
            )
        return b'"type":"mcp_tool_use","id":%s,"name":%s,"server_name":%s' % (
            encode_string(_build_server_call_id(id)),
            encode_string(tool.name),
            encode_string(tool.server),
        )

    def render_result(self, id: str, name: str, outcome: ToolOutcome) -> bytes:
        """Render the result of a call that this server made."""
        if hosted := self.server_tools[name].hosted:
            return render_hosted_result(_build_hosted_call_id(id), hosted, outcome, self.seal)
        return _render_result(id, outcome)

    def render_hosted_usage(self, n_searches: int) -> bytes:
        """Render the use of hosted tools; nothing if the request has none."""
        if not any([tool.hosted for tool in self.server_tools.values()]):
            return b""
        return b',"server_tool_use":{"web_search_requests":%d,"web_fetch_requests":0}' % n_searches

    def is_search(self, name: str, outcome: ToolOutcome | None) -> bool:
        """Whether a call is a web search that succeeded, the kind that Anthropic counts."""
        tool = self.server_tools.get(name)
        has_succeeded = outcome is not None and outcome.failure is None
        return has_succeeded and tool is not None and tool.hosted == "web_search"

    def render_signature(self, text: str, seal: str) -> bytes:
        """Render the signature of a thinking block, as JSON."""
        if not seal:
            return encode_string(self.sign(text))
        if self.wrap_seal is not None:
            return encode_string(self.wrap_seal(text, seal))
        signature = SealKind.ANTHROPIC.read(seal)
        return encode_string(seal if signature is None else signature)

    def render_redacted(self, seal: str) -> bytes | None:
        """Render a redacted_thinking block; None if the seal belongs into a thinking
        block.
        """
        data = SealKind.ANTHROPIC_REDACTED.read(seal)
        if data is None or self.wrap_seal is not None:
            return None
        return b'{"type":"redacted_thinking","data":%s}' % encode_string(data)


DEFAULT_OPTIONS = MessagesRenderOptions()


class _TextBlock:
    start = b'{"type":"text","text":""}'

    def __init__(self, index: int) -> None:
        self._opening = _render_delta_prefix(index) + b'{"type":"text_delta","text":'

    def add(self, text: str) -> bytes:
        return self._opening + encode_string(text) + b"}}\n\n"

    def end(self) -> bytes:
        return b""


class _CitingTextBlock(_TextBlock):
    """Text that follows a search. links: what searches have found, by URL."""

    def __init__(self, index: int, links: Mapping[str, Link]) -> None:
        super().__init__(index)
        self._delta_prefix = _render_delta_prefix(index)
        self._links = links
        self._texts: list[str] = []

    def add(self, text: str) -> bytes:
        self._texts.append(text)
        return super().add(text)

    def end(self) -> bytes:
        return b"".join(
            b'%s{"type":"citations_delta","citation":%s}}\n\n' % (self._delta_prefix, citation)
            for citation in render_citations("".join(self._texts), self._links)
        )


class _ThinkingBlock:
    start = b'{"type":"thinking","thinking":"","signature":""}'

    def __init__(self, index: int, options: MessagesRenderOptions) -> None:
        self._opening = _render_delta_prefix(index)
        self._options = options
        self._texts: list[str] = []
        self.seal = ""

    def add(self, text: str) -> bytes:
        self._texts.append(text)
        if self._options.omit_thinking or not text:
            return b""
        return b'%s{"type":"thinking_delta","thinking":%s}}\n\n' % (
            self._opening,
            encode_string(text),
        )

    def end(self) -> bytes:
        signature = self._options.render_signature("".join(self._texts), self.seal)
        return b'%s{"type":"signature_delta","signature":%s}}\n\n' % (self._opening, signature)


class _CompleteBlock:
    """A block that is complete when it starts: redacted thinking, or the result of a
    call that this server made.
    """

    def __init__(self, block: bytes) -> None:
        self.start = block

    def add(self, text: str) -> bytes:
        del text
        return b""

    def end(self) -> bytes:
        return b""


class _ToolUseBlock:
    """A tool_use block. The first delta of its input is empty, as in Anthropic's API."""

    def __init__(self, index: int, head: bytes, id: str, name: str) -> None:
        self.start = b'{%s,"input":{}}' % head
        self.id = id
        self.name = name
        self._opening = _render_delta_prefix(index)
        self._input = ToolInputStreamer()

    def add(self, text: str) -> bytes:
        # Only a valid prefix of JSON is sent: the SDK parses the joined pieces and
        # fails on invalid JSON.
        piece = self._input.feed(text)
        return self._render_delta(piece) if piece or not text else b""

    def end(self, *, is_cut_off: bool) -> bytes:
        piece = self._input.end(is_cut_off=is_cut_off)
        return self._render_delta(piece) if piece else b""

    def _render_delta(self, piece: str) -> bytes:
        return b'%s{"type":"input_json_delta","partial_json":%s}}\n\n' % (
            self._opening,
            encode_string(piece),
        )


_Block = _TextBlock | _ThinkingBlock | _CompleteBlock | _ToolUseBlock


class MessagesWriter:
    """Renders one answer, streamed or full. It has only one choice."""

    def __init__(self, header: Header, options: MessagesRenderOptions = DEFAULT_OPTIONS) -> None:
        self.id = header.id
        self._options = options
        self._head = b'"id":%s,"type":"message","role":"assistant","model":%s' % (
            encode_string(header.id), encode_string(header.model),
        )  # fmt: skip
        self._block_index = 0
        self._open_block: _Block | None = None
        self._open_text: _TextBlock | None = None
        self._has_calls = self._has_refusal = False
        self._n_searches = 0
        self._links: dict[str, Link] = {}
        self._choice_finished: ChoiceFinished | None = None
        self._applied_edits: tuple[AppliedEdit, ...] = ()

    def add_diagnostics(self, diagnostics: bytes) -> None:
        """Add the field `diagnostics`, as JSON, to a message that is not yet begun."""
        self._head += b',"diagnostics":' + diagnostics

    @property
    def end(self) -> bytes:
        return b""

    @property
    def keepalive(self) -> bytes:
        return PING

    def render_error(self, error: DragomanError) -> bytes:
        return _render_event(b"error", render_anthropic_error(error))

    def feed(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        if self._open_text is not None and type(event) is TextDelta:
            # The hot path, taken for nearly every token: one escape, one concatenation.
            return self._open_text.add(event.text) if event.text else b""
        match event:
            case TextDelta(text=text):
                return self._write_text(text)
            case RefusalDelta(text=text):
                self._has_refusal = self._has_refusal or bool(text)
                return self._write_text(text)
            case ReasoningDelta(text=text, seal=seal):
                return self._write_thinking(text, seal)
            case ToolCallStart(id=id, name=name):
                self._has_calls = self._has_calls or name not in self._options.server_tools
                close_events = self._close_block(is_cut_off=False)
                head = self._options.render_call_head(id, name)
                return close_events + self._start_block(
                    _ToolUseBlock(self._block_index, head, id, name), ""
                )
            case ToolCallDelta(outcome=ToolOutcome() as outcome):
                return self._write_outcome(event.arguments, outcome)
            case ToolCallDelta(arguments=text):
                # The block's start has sent an empty input_json_delta, as the API does;
                # later empty ones are skipped.
                return self._open_block.add(text) if self._open_block is not None and text else b""
            case Started():
                self._applied_edits = event.edited
                usage = _render_usage(
                    Usage(event.prompt_tokens, 0, event.cached_tokens, written=event.written_tokens)
                )
                empty = b'"content":[],"stop_reason":null,"stop_sequence":null'
                message = b'{%s,%s,"usage":{%s,"service_tier":"standard"}}' % (
                    self._head,
                    empty,
                    usage,
                )
                return _render_event(
                    b"message_start", b'{"type":"message_start","message":%s}' % message
                )
            case PromptTokens():
                return b""
            case ChoiceFinished():
                self._choice_finished = event
                return self._close_block(is_cut_off=is_cut_off(event.reason, event.stop))
            case Finished(usage):
                return self._finish(usage)

    def render_full(self, reply: Reply) -> bytes:
        choice = reply.choices[0]
        usage = reply.usage
        parts: list[ReplyPart] = []
        has_refusal = False
        has_calls = False
        n_searches = 0
        for part in choice.parts:
            if isinstance(part, ToolCall):
                has_calls = has_calls or part.name not in self._options.server_tools
                n_searches += self._options.is_search(part.name, part.outcome)
            elif not part.text and not (isinstance(part, Reasoning) and part.seal):
                continue
            elif isinstance(part, Refusal):
                has_refusal = True
            parts.append(part)
        stop = self._render_stop(choice.reason, choice.stop, has_calls, has_refusal)
        content = b",".join(self._render_content(parts, choice))
        return b'{%s,"content":[%s],%s,"usage":{%s%s,"service_tier":"standard"}%s%s}' % (
            self._head, content, stop, _render_usage(usage),
            self._options.render_hosted_usage(n_searches),
            self._render_edits(reply.applied_edits),
            encode_field("kv_transfer_params", reply.kv_transfer_params),
        )  # fmt: skip

    def _finish(self, usage: Usage) -> bytes:
        # Without ChoiceFinished the engine cut the answer; clients need a stop_reason
        # even then.
        choice_finished = self._choice_finished or ChoiceFinished(0, FinishReason.ABORT)
        stop = self._render_stop(
            choice_finished.reason, choice_finished.stop, self._has_calls, self._has_refusal
        )
        transfer = encode_field("kv_transfer_params", choice_finished.kv_transfer_params)
        payload = b'{"type":"message_delta","delta":{%s},"usage":{%s%s}%s%s}' % (
            stop, _render_usage(usage), self._options.render_hosted_usage(self._n_searches),
            self._render_edits(self._applied_edits), transfer,
        )  # fmt: skip
        return _render_event(b"message_delta", payload) + MESSAGE_STOP

    def _render_edits(self, edits: Sequence[AppliedEdit]) -> bytes:
        return (
            b',"context_management":' + render_applied_edits(edits)
            if self._options.reports_edits
            else b""
        )

    def _write_text(self, text: str) -> bytes:
        if not text:
            # Text ends the thinking before it even if it is empty, as in the full
            # answer.
            return (
                self._close_block(is_cut_off=False)
                if isinstance(self._open_block, _ThinkingBlock)
                else b""
            )
        if self._open_text is not None:
            return self._open_text.add(text)
        close_events = self._close_block(is_cut_off=False)
        self._open_text = (
            _CitingTextBlock(self._block_index, self._links)
            if self._links
            else _TextBlock(self._block_index)
        )
        return close_events + self._start_block(self._open_text, text)

    def _write_thinking(self, text: str, seal: str) -> bytes:
        """Write a piece of thinking.

        seal: ends the block, unless it is empty.
        """
        if not text and not seal:
            return b""
        block = self._open_block
        if isinstance(block, _ThinkingBlock):
            events = block.add(text)
        else:
            events = self._close_block(is_cut_off=False)
            redacted = None if text else self._options.render_redacted(seal)
            block = (
                _ThinkingBlock(self._block_index, self._options)
                if redacted is None
                else _CompleteBlock(redacted)
            )
            events += self._start_block(block, text)
        if not seal:
            return events
        if isinstance(block, _ThinkingBlock):
            block.seal = seal
        return events + self._close_block(is_cut_off=False)

    def _write_outcome(self, text: str, outcome: ToolOutcome) -> bytes:
        """Write the last piece of a call that this server made, and its result."""
        block = self._open_block
        if not isinstance(block, _ToolUseBlock):
            return b""
        events = block.add(text) if text else b""
        events += self._close_block(is_cut_off=False)
        result = self._options.render_result(block.id, block.name, outcome)
        if self._options.is_search(block.name, outcome):
            self._n_searches += 1
            self._links |= map_links(outcome.text)
        events += self._start_block(_CompleteBlock(result), "")
        return events + self._close_block(is_cut_off=False)

    def _start_block(self, block: _Block, text: str) -> bytes:
        """Start a block while none is open.

        text: its first text.
        """
        self._open_block = block
        payload = b'{"type":"content_block_start","index":%d,"content_block":%s}' % (
            self._block_index,
            block.start,
        )
        return _render_event(b"content_block_start", payload) + block.add(text)

    def _close_block(self, *, is_cut_off: bool) -> bytes:
        """Close the open block, if any.

        is_cut_off: the answer was truncated within this block.
        """
        block = self._open_block
        self._open_block = None
        self._open_text = None
        if block is None:
            return b""
        stop = _render_event(
            b"content_block_stop", b'{"type":"content_block_stop","index":%d}' % self._block_index
        )
        self._block_index += 1
        return (
            block.end(is_cut_off=is_cut_off) if isinstance(block, _ToolUseBlock) else block.end()
        ) + stop

    def _render_content(self, parts: list[ReplyPart], choice: Choice) -> Iterator[bytes]:
        """Yield the blocks of the full object. Adjacent text and refusals form one
        block.
        """
        options = self._options
        texts = list[str]()
        links: dict[str, Link] = {}
        for i, part in enumerate(parts):
            if not isinstance(part, Reasoning | ToolCall):
                texts.append(part.text)
                continue
            if texts:
                yield _render_text_block(texts, links)
                texts = []
            if isinstance(part, ToolCall):
                # This is the input that a stream's deltas add up to. Only the last call
                # can be incomplete: a later part proves that an earlier one was
                # complete.
                input = ToolInputStreamer()
                input.feed(part.arguments)
                is_last = i == len(parts) - 1 and part.outcome is None
                input.end(is_cut_off=is_last and is_cut_off(choice.reason, choice.stop))
                value = escape_line_breaks(replace_surrogates(input.value).encode())
                yield b'{%s,"input":%s}' % (options.render_call_head(part.id, part.name), value)
                if part.outcome is not None:
                    yield options.render_result(part.id, part.name, part.outcome)
                    if options.is_search(part.name, part.outcome):
                        links |= map_links(part.outcome.text)
            elif not part.text and (redacted := options.render_redacted(part.seal)) is not None:
                yield redacted
            else:
                yield b'{"type":"thinking","thinking":%s,"signature":%s}' % (
                    encode_string("" if options.omit_thinking else part.text),
                    options.render_signature(part.text, part.seal),
                )
        if texts:
            yield _render_text_block(texts, links)

    def _render_stop(
        self,
        reason: FinishReason,
        stop: str | int | None,
        has_calls: bool,
        has_refusal: bool,
    ) -> bytes:
        # An integer is a stop token, such as the end of the turn, which Anthropic's API
        # does not report.
        stop_sequence = (
            stop
            if reason is FinishReason.STOP and isinstance(stop, str) and not has_refusal
            else None
        )
        match reason:
            case FinishReason.CONTENT_FILTER:
                stop_reason = b"refusal"
            case FinishReason.LENGTH | FinishReason.ABORT | FinishReason.CACHE_THRESHOLD:
                # Anthropic has no reason for an aborted answer or one that was not begun;
                # this one at least marks it as truncated.
                stop_reason = b"max_tokens"
            case FinishReason.CONTEXT_LENGTH:
                stop_reason = b"model_context_window_exceeded"
            case FinishReason.STOP if has_refusal:
                stop_reason = b"refusal"
            case FinishReason.STOP if stop_sequence is not None:
                stop_reason = b"stop_sequence"
            case FinishReason.STOP:
                stop_reason = b"tool_use" if has_calls else b"end_turn"
        fields = b'"stop_reason":"%s","stop_sequence":%s' % (
            stop_reason,
            encode_string_or_null(stop_sequence),
        )
        if stop_reason != b"refusal":
            return fields
        return fields + b',"stop_details":{"type":"refusal","category":null,"explanation":null}'


def _build_server_call_id(id: str) -> str:
    """Return the id of a call that this server makes, with Anthropic's prefix."""
    return "mcptoolu_" + id.removeprefix("toolu_")


def _build_hosted_call_id(id: str) -> str:
    return "srvtoolu_" + id.removeprefix("toolu_")


def _render_result(id: str, outcome: ToolOutcome) -> bytes:
    return (
        b'{"type":"mcp_tool_result","tool_use_id":%s,"is_error":%s,'
        b'"content":[{"type":"text","text":%s}]}'
    ) % (
        encode_string(_build_server_call_id(id)),
        b"false" if outcome.failure is None else b"true",
        encode_string(outcome.text),
    )


def _render_text_block(pieces: list[str], links: Mapping[str, Link]) -> bytes:
    text = "".join(pieces)
    citations = render_citations(text, links) if links else []
    return b'{"type":"text","text":%s%s}' % (
        encode_string(text),
        b',"citations":[%s]' % b",".join(citations) if citations else b"",
    )


def _render_usage(usage: Usage) -> bytes:
    """Render the token counts. Unknown ones are null or absent, never 0; estimates are
    rendered, since clients require integers.
    """
    # Anthropic's `input_tokens` excludes tokens read from and written to the cache: the
    # prompt has the sum of all three counts. OpenAI's `prompt_tokens` includes them.
    uncached = (
        None
        if usage.prompt is None
        else max(0, usage.prompt - (usage.cached or 0) - (usage.written or 0))
    )
    counts = b'"input_tokens":%s,"cache_creation_input_tokens":%s,"cache_read_input_tokens":%s,"output_tokens":%s' % (  # noqa: E501
        encode_int(uncached), encode_int(usage.written), encode_int(usage.cached),
        encode_int(usage.completion),
    )  # fmt: skip
    if usage.reasoning is None:
        return counts
    return counts + b',"output_tokens_details":{"thinking_tokens":%d}' % usage.reasoning


def _render_event(name: bytes, payload: bytes) -> bytes:
    """Render an event. Its `event:` line is required: the official SDKs drop an event
    without it.
    """
    return b"event: %s\ndata: %s\n\n" % (name, payload)


def _render_delta_prefix(index: int) -> bytes:
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
        % index
    )
