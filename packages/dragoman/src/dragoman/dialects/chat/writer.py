"""Renders Chat Completions: the chunks of a stream and the full object, from the same
pieces.

each choice:  role  (content | reasoning | refusal | tool deltas)*  finish
              or role and finish at once, if it ends with cache_threshold
the stream:   all roles in index order, then the choices interleaved, [usage], [DONE] or an error
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import Reasoning, Refusal, Text
from ...core.reasoning_details import build_reasoning_detail
from ...core.reply import Choice, Reply
from ..chunk_envelope import ChunkEnvelope, ChunkWriter, RenderOptions, render_finish_reason
from ..interfaces import Header, Profile
from ..json_encoding import encode_field, encode_string, escape_line_breaks
from ..logprobs import TokenNaming, render_chat_logprobs, render_prompt_logprobs, render_token_ids
from ..token_alignment import ContentTokens, content_tokens
from ..token_usage import UsageCounter
from ..vllm_response_fields import (
    render_kv_transfer,
    render_metrics,
    render_stop_reason,
    render_weight_versions,
)


def render_reasoning(names: tuple[str, ...], text: bytes) -> bytes:
    """Render reasoning under each of the names that clients read. text: as JSON."""
    return b",".join(b'"%s":%s' % (name.encode(), text) for name in names)


def render_call_start(event: ToolCallStart, index: int) -> bytes:
    """The delta that starts a call: the only one with its id, type and name."""
    kind, field = (b"custom", b"input") if event.custom else (b"function", b"arguments")
    return b'"tool_calls":[{"index":%d,"id":%s,"type":"%s","%s":{"name":%s,"%s":""}}]' % (
        index, encode_string(event.id), kind, kind, encode_string(event.name), field,
    )  # fmt: skip


def render_call_arguments(text: str, index: int, custom: bool) -> bytes:
    kind, field = (b"custom", b"input") if custom else (b"function", b"arguments")
    # Without id and name: some clients take a repeated name for a new call
    # (lmstudio-bug-tracker#649).
    return b'"tool_calls":[{"index":%d,"%s":{"%s":%s}}]' % (index, kind, field, encode_string(text))


def render_legacy_start(event: ToolCallStart) -> bytes:
    return b'"function_call":{"name":%s,"arguments":""}' % encode_string(event.name)


def render_legacy_arguments(text: str) -> bytes:
    return b'"function_call":{"arguments":%s}' % encode_string(text)


def render_message(choice: Choice, names: tuple[str, ...], profile: Profile, legacy: bool) -> bytes:
    """The full message. Its content is null if it has only reasoning, a refusal or
    calls.
    """
    text, reasoning, refusal, calls = choice.split_parts()
    sealed = [part for part in choice.parts if names and isinstance(part, Reasoning) and part.seal]
    # A completely empty response has the content "" instead of null, for clients that
    # expect a string.
    is_content_null = not text and bool(reasoning or sealed or refusal or calls)
    fields = [
        b'"role":"assistant"',
        b'"content":' + (b"null" if is_content_null else encode_string(text)),
        b'"refusal":' + (encode_string(refusal) if refusal else b"null"),
    ]
    if profile is Profile.VLLM:
        # vLLM lists its unset fields as null, OpenAI leaves them out.
        fields.append(b'"annotations":null,"audio":null')
    if calls and legacy:
        call = calls[0]
        fields.append(
            b'"function_call":{"name":%s,"arguments":%s}'
            % (encode_string(call.name), encode_string(call.arguments))
        )
    elif profile is Profile.VLLM:
        fields.append(b'"function_call":null')
    if calls and not legacy:
        entries: list[bytes] = []
        for call in calls:
            kind, field = (b"custom", b"input") if call.custom else (b"function", b"arguments")
            entries.append(
                b'{"id":%s,"type":"%s","%s":{"name":%s,"%s":%s}}' % (
                    encode_string(call.id), kind, kind, encode_string(call.name), field,
                    encode_string(call.arguments),
                )
            )  # fmt: skip
        fields.append(b'"tool_calls":[%s]' % b",".join(entries))
    if names and (reasoning or profile is Profile.VLLM):
        fields.append(render_reasoning(names, encode_string(reasoning) if reasoning else b"null"))
    if sealed:
        details = (
            _render_reasoning_detail(part.text, part.seal, i) for i, part in enumerate(sealed)
        )
        fields.append(b'"reasoning_details":[%s]' % b",".join(details))
    return b"{%s}" % b",".join(fields)


def _render_reasoning_detail(text: str, seal: str, index: int) -> bytes:
    return escape_line_breaks(msgspec.json.encode(build_reasoning_detail(text, seal, index)))


REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Clients read one or the other. No client that was tested showed the text twice when
both were sent.
"""

KINDS = (b"chat.completion.chunk", b"chat.completion")
_REASONING = 1
_NOT_REASONING = 2
CONTENT = b'"content":'


class ChatRenderOptions(RenderOptions, frozen=True, kw_only=True):
    """The response options of Chat Completions.

    prompt_text: add the prompt's text.
    reasoning_fields: the field names of reasoning; empty hides it.
    is_named_choice: `tool_choice` named one function, for which OpenAI's finish reason
        is `stop`.
    legacy_functions: render a call as `function_call`; there is at most one.
    """

    prompt_text: bool = False
    reasoning_fields: tuple[str, ...] = REASONING_FIELDS
    is_named_choice: bool = False
    legacy_functions: bool = False


DEFAULT_OPTIONS = ChatRenderOptions()


@lru_cache(maxsize=16)
def _render_chunk_starts(choices: int) -> tuple[bytes, ...]:
    """The beginnings of the choices of a chunk, by index: the same for all streams, so
    that they share them.
    """
    return tuple([b'{"index":%d,"delta":{' % i for i in range(choices)])


@lru_cache(maxsize=16)
def _render_chunk_end(token_ids: bytes, suffix: bytes) -> bytes:
    """The end of a chunk with a delta, which streams share too."""
    return b'},"logprobs":null,"finish_reason":null%s}%s' % (token_ids, suffix)


class _ChoiceState:
    """The state of one streamed choice.

    pending_tokens: tokens that no chunk has carried yet.
    scored: those that `logprobs` lists, each with whether it is part of a refusal.
    content: the tokens of the text being written, with whether it is a refusal.
    """

    __slots__ = ("calls", "content", "is_custom", "pending_tokens", "scored")

    def __init__(self) -> None:
        self.calls = 0
        self.is_custom = False
        self.pending_tokens: list[Token] = []
        self.scored: list[tuple[bool, Token]] = []
        self.content: tuple[bool, ContentTokens] | None = None

    def score(self, text: str | None, tokens: Sequence[Token], *, refusal: bool) -> None:
        """text: the content or refusal text that the tokens released; None if they
        released neither.
        """
        if self.content is not None and (text is None or self.content[0] is not refusal):
            kind, content = self.content
            self.scored.extend((kind, token) for token in content.close())
            self.content = None
        if text is not None:
            self.content = self.content or (refusal, ContentTokens())
            self.scored.extend((refusal, token) for token in self.content[1].feed(text, tokens))


class ChatWriter(ChunkWriter):
    """Renders one answer, streamed or full."""

    __slots__ = (
        "_awaits_prompt",
        "_choice_count",
        "_choices",
        "_chunk_end",
        "_chunk_starts",
        "_counter",
        "_ends_empty",
        "_envelope",
        "_is_plain",
        "_is_vllm",
        "_last_delta",
        "_lists_all_tokens",
        "_options",
        "_reasoning",
        "_wants_prompt",
        "_wants_tokens",
    )

    def __init__(self, header: Header, options: ChatRenderOptions = DEFAULT_OPTIONS) -> None:
        self._options = options
        self._envelope = ChunkEnvelope(header, options, KINDS)
        self._is_vllm = options.profile is Profile.VLLM
        # Clients that request token ids (RL trainers) pair each id with a logprob,
        # including the end-of-text token.
        self._lists_all_tokens = self._is_vllm or options.token_ids or options.tokens_as_ids
        self._wants_prompt = options.token_ids or options.prompt_text
        self._wants_tokens = options.token_ids or options.logprobs is not None
        # A plain stream sends text deltas without looking up a choice's state.
        self._is_plain = not (self._wants_prompt or self._wants_tokens or options.continuous_usage)
        self._awaits_prompt = False
        self._ends_empty = False
        self._choice_count = 0
        self._last_delta = (
            bytearray()
        )  # per choice: 0 before the first delta, then _REASONING or _NOT_REASONING
        # Both are created on first use: most streams wait without them.
        self._choices: dict[int, _ChoiceState] | None = None
        # Per choice: the text of the part of reasoning that has not ended, and the
        # number of sealed parts before it.
        self._reasoning: dict[int, tuple[list[str], int]] | None = None
        self._chunk_starts: tuple[bytes, ...] = ()
        self._chunk_end = b""
        self._counter = UsageCounter() if options.continuous_usage else None

    def feed(self, event: Event) -> bytes:
        if self._is_plain and type(event) is TextDelta:
            # The hot path, taken for nearly every token: one lookup, one escape, one
            # concatenation.
            prefix = self._envelope.chunk_prefix
            start = self._chunk_starts[event.choice]
            if not event.text:
                return self._render_delta(event.choice, b"", event.tokens)
            self._last_delta[event.choice] = _NOT_REASONING
            return b"".join((prefix, start, CONTENT, encode_string(event.text), self._chunk_end))
        if self._awaits_prompt:
            prompt = event if isinstance(event, PromptTokens) else None
            # The ids of the prompt belong into the first chunks, so these wait for the
            # event that brings them.
            return self._render_roles(prompt) + self._render_event(event)
        return self._render_event(event)

    def render_full(self, reply: Reply) -> bytes:
        options = self._options
        # Nearly all clients want none of these.
        has_token_fields = self._is_vllm or self._wants_prompt
        choices = list[bytes]()
        for i, choice in enumerate(reply.choices):
            message = render_message(
                choice, options.reasoning_fields, options.profile, options.legacy_functions
            )
            logprobs = b"null"
            if options.logprobs is not None:
                logprobs = self._render_logprobs(self._list_scored(choice), is_complete=True)
            reason = self._render_reason(choice.reason, choice.has_tool_calls)
            ids = b""
            if has_token_fields:
                reason += self._render_stop(choice.stop)
                ids = self._render_token_ids(choice.tokens if options.token_ids else ())
            if options.weight_versions:
                ids += self._render_weights(choice)
            choices.append(
                b'{"index":%d,"message":%s,"logprobs":%s,"finish_reason":%s%s}'
                % (i, message, logprobs, reason, ids)
            )
        prompt = reply.prompts[0] if reply.prompts else None
        extra = self._render_prompt_fields(prompt) if has_token_fields else b""
        if options.prompt_logprobs is not None and prompt is not None:
            extra += b',"prompt_logprobs":' + render_prompt_logprobs(
                prompt, options.prompt_logprobs
            )
        elif self._is_vllm:
            extra += b',"prompt_logprobs":null'
        extra += render_kv_transfer(reply.kv_transfer_params, options.profile)
        if reply.timings is not None:
            extra += render_metrics(reply.usage, reply.timings)
        return self._envelope.render_object(b",".join(choices), reply.usage, extra)

    def _render_event(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        match event:
            case TextDelta(choice, text, tokens):
                self._score(choice, text, tokens)
                return self._render_delta(
                    choice, text and b'"content":' + encode_string(text), tokens
                )
            case ReasoningDelta(choice, text, tokens):
                self._score(choice, None, tokens)
                last = self._last_delta[choice]
                field = self._render_reasoning(event)
                chunk = self._render_delta(choice, field, tokens)
                # Text counts also if it is hidden.
                self._last_delta[choice] = _REASONING if text or field else last
                return chunk
            case RefusalDelta(choice, text, tokens):
                self._score(choice, text, tokens, refusal=True)
                return self._render_delta(
                    choice, text and b'"refusal":' + encode_string(text), tokens
                )
            case ToolCallStart(choice):
                self._score(choice, None, event.tokens)
                state = self._get_state(choice)
                state.calls = state.calls + 1
                state.is_custom = event.custom
                is_legacy = self._options.legacy_functions
                delta = (
                    render_legacy_start(event)
                    if is_legacy
                    else render_call_start(event, state.calls - 1)
                )
                # The legacy format has one call.
                return self._render_delta(
                    choice, b"" if is_legacy and state.calls > 1 else delta, event.tokens
                )
            case ToolCallDelta(choice):
                self._score(choice, None, event.tokens)
                state = self._get_state(choice)
                is_legacy = self._options.legacy_functions
                delta = (
                    render_legacy_arguments(event.arguments)
                    if is_legacy
                    else render_call_arguments(event.arguments, state.calls - 1, state.is_custom)
                )
                is_hidden = not event.arguments or (is_legacy and state.calls > 1)
                return self._render_delta(choice, b"" if is_hidden else delta, event.tokens)
            case ChoiceFinished():
                return self._finish(event)
            case Started():
                return self._start(event)
            case PromptTokens():
                return b""
            case Finished():
                return self._envelope.render_usage_chunk(event)

    def _render_reasoning(self, event: ReasoningDelta) -> bytes:
        """The fields of a delta. The one with a seal repeats the whole part, which the
        client has to send back.
        """
        names = self._options.reasoning_fields
        text = event.text
        if not names:
            return b""
        fields = [render_reasoning(names, encode_string(text))] if text else []
        if self._reasoning is None:
            self._reasoning = {}
        open_texts, count = self._reasoning.setdefault(event.choice, ([], 0))
        if self._last_delta[event.choice] == _NOT_REASONING:
            # A seal covers its own part of reasoning alone, and what was sent since has
            # ended the part before.
            open_texts.clear()
        open_texts.append(text)
        if event.seal:
            text = "".join(open_texts)
            detail = _render_reasoning_detail(text, event.seal, count)
            fields.append(b'"reasoning_details":[%s]' % detail)
            self._reasoning[event.choice] = ([], count + 1)
        return b",".join(fields)

    def _start(self, event: Started) -> bytes:
        self._envelope.begin_stream()
        self._choice_count = event.choices
        self._last_delta = bytearray(event.choices)
        self._chunk_starts = _render_chunk_starts(event.choices)
        self._chunk_end = _render_chunk_end(self._render_token_ids(()), self._envelope.chunk_suffix)
        if self._counter is not None:
            self._counter = UsageCounter(event)
        # The first chunk carries the prompt's ids, which come with the event after this
        # one.
        self._awaits_prompt = self._wants_prompt
        # llm-d's router reads only the first chunk to decide whether it must prefill.
        self._ends_empty = event.ends_empty and not self._awaits_prompt
        return b"" if self._awaits_prompt or self._ends_empty else self._render_roles(None)

    def _render_roles(
        self, prompt: PromptTokens | None, reason: bytes = b"null", extra: bytes = b""
    ) -> bytes:
        """All roles, in index order and before anything else, because the official SDK
        appends choices as they arrive.

        Without a content in OpenAI's profile, so that an answer of calls alone folds to
        the null of the full response.

        reason: the finish reason of a choice that ends empty.
        """
        self._awaits_prompt = False
        extra += self._render_prompt_fields(prompt)
        logprobs = (
            b"null"
            if self._options.logprobs is None or self._is_vllm
            else b'{"content":[],"refusal":null}'
        )
        content = b',"content":""' if self._is_vllm or self._ends_empty else b""
        fields = b'"delta":{"role":"assistant"%s},"logprobs":%s,"finish_reason":%s}' % (
            content,
            logprobs,
            reason,
        )
        return b"".join(
            [
                self._envelope.render_chunk(
                    b'{"index":%d,%s' % (i, fields), self._get_usage(), extra
                )
                for i in range(self._choice_count)
            ]
        )

    def _get_state(self, choice: int) -> _ChoiceState:
        """Return the state of a choice, created on first use: plain text deltas do not
        need it.
        """
        if self._choices is None:
            self._choices = {}
        state = self._choices.get(choice)
        if state is None:
            state = self._choices[choice] = _ChoiceState()
        return state

    def _render_delta(self, choice: int, field: bytes | str, tokens: Sequence[Token]) -> bytes:
        """field: the delta's only field; if empty, the tokens are buffered for the next
        chunk.
        """
        self._buffer_tokens(choice, tokens)
        if not isinstance(field, bytes) or not field:
            if self._last_delta[choice]:
                self._last_delta[choice] = _NOT_REASONING
            return b""
        self._last_delta[choice] = _NOT_REASONING
        if self._is_plain:
            return b"".join(
                (self._envelope.chunk_prefix, self._chunk_starts[choice], field, self._chunk_end)
            )
        return self._render_chunk(choice, b"{%s}" % field, b"null")

    def _finish(self, event: ChoiceFinished) -> bytes:
        self._score(event.choice, None, event.tokens)
        self._buffer_tokens(event.choice, event.tokens, ended=True)
        # A stream keeps no list of its parts, so the calls were counted as they began.
        has_calls = self._choices is not None and self._get_state(event.choice).calls > 0
        reason = self._render_reason(event.reason, has_calls) + self._render_weights(event)
        transfer = encode_field("kv_transfer_params", event.kv_transfer_params)
        if self._ends_empty:
            return self._render_roles(None, reason + self._render_stop(event.stop), transfer)
        # An empty answer has an empty content, in a stream as in the full response.
        has_content = self._is_vllm or self._last_delta[event.choice]
        empty = b"" if has_content else self._render_chunk(event.choice, b'{"content":""}', b"null")
        return empty + self._render_chunk(
            event.choice, b"{}", reason + self._render_stop(event.stop), transfer
        )

    def _buffer_tokens(self, choice: int, tokens: Sequence[Token], *, ended: bool = False) -> None:
        if self._counter is not None:
            self._counter.add(tokens, has_output=not ended)
        if self._options.token_ids:
            self._get_state(choice).pending_tokens.extend(tokens)

    def _score(
        self, choice: int, text: str | None, tokens: Sequence[Token], *, refusal: bool = False
    ) -> None:
        """Collect the tokens that `logprobs` lists: all in vLLM's profile and beside
        ids, else those of the content.
        """
        if self._options.logprobs is None:
            return
        state = self._get_state(choice)
        if self._lists_all_tokens:
            state.scored.extend((refusal, token) for token in tokens)
        else:
            state.score(text, tokens, refusal=refusal)

    def _render_chunk(self, choice: int, delta: bytes, reason: bytes, extra: bytes = b"") -> bytes:
        """extra: further fields of the chunk, each after a comma."""
        tokens: list[Token] = []
        logprobs = b"null"
        if self._wants_tokens:
            state = self._get_state(choice)
            tokens = state.pending_tokens
            state.pending_tokens = []
            if state.scored:
                logprobs = self._render_logprobs(state.scored)
                state.scored = []
        ids = self._render_token_ids(tokens)
        body = b'{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice, delta, logprobs, reason, ids,
        )  # fmt: skip
        return self._envelope.render_chunk(body, self._get_usage(), extra)

    def _list_scored(self, choice: Choice) -> list[tuple[bool, Token]]:
        """See `_score`."""
        # vLLM lists every token, those of reasoning and calls too; OpenAI lists those
        # of the content alone.
        if self._lists_all_tokens:
            listed = [
                (isinstance(part, Refusal), token) for part in choice.parts for token in part.tokens
            ]
            return [*listed, *((False, token) for token in choice.trailing_tokens)]
        return [
            (isinstance(part, Refusal), token)
            for part in choice.parts
            if isinstance(part, Text | Refusal)
            for token in content_tokens(part.text, part.tokens)
        ]

    def _render_reason(self, reason: FinishReason, has_calls: bool) -> bytes:
        """A truncated call is incomplete, so `length` takes precedence. A call forced
        by name finishes with `stop`.
        """
        # vLLM had both wrong: vllm#53269 (the truncated call) and vllm#25054 (the named
        # function).
        if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:
            return render_finish_reason(reason, self._options.profile)
        return b'"function_call"' if self._options.legacy_functions else b'"tool_calls"'

    def _render_weights(self, choice: ChoiceFinished | Choice) -> bytes:
        return render_weight_versions(choice.weights) if self._options.weight_versions else b""

    def _render_stop(self, stop: str | int | None) -> bytes:
        return b',"stop_reason":' + render_stop_reason(stop) if self._is_vllm else b""

    def _render_logprobs(
        self, tokens: Sequence[tuple[bool, Token]], is_complete: bool = False
    ) -> bytes:
        """Refusals have a list of their own. Empty streamed lists are null, so that
        clients append nothing.
        """
        top = self._options.logprobs
        if top is None:
            return b"null"
        naming = TokenNaming(self._options.tokens_as_ids)
        content_tokens = [token for refusal, token in tokens if not refusal]
        refusal_tokens = [token for refusal, token in tokens if refusal]
        return b'{"content":%s,"refusal":%s}' % (
            render_chat_logprobs(content_tokens, top, naming)
            if content_tokens or is_complete
            else b"null",
            render_chat_logprobs(refusal_tokens, top, naming) if refusal_tokens else b"null",
        )

    def _render_token_ids(self, tokens: Sequence[Token]) -> bytes:
        if self._options.token_ids:
            return b',"token_ids":' + render_token_ids(tokens)
        return b',"token_ids":null' if self._is_vllm else b""

    def _render_prompt_fields(self, prompt: PromptTokens | None) -> bytes:
        """The fields of the prompt in the first chunks and in the full object."""
        options = self._options
        extra = b""
        if options.token_ids or self._is_vllm:
            ids = (
                render_token_ids(prompt.tokens)
                if options.token_ids and prompt is not None
                else b"null"
            )
            extra += b',"prompt_token_ids":' + ids
        if options.prompt_text or self._is_vllm:
            extra += b',"prompt_text":' + (
                encode_string(prompt.text)
                if options.prompt_text and prompt is not None
                else b"null"
            )
        return extra

    def _get_usage(self) -> Usage | None:
        return None if self._counter is None else self._counter.usage
