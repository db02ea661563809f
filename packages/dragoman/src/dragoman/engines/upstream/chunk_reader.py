"""Converts the chunks of one Chat Completions or Completions response to a valid stream
of events. Pure.

A stream that ends before all of its choices have finished is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ...core.errors import EngineError
from ...core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    FinishReason,
    Finished,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    UNKNOWN_TOKEN_ID,
    Usage,
)
from ...core.request import GenerateRequest
from .errors import build_event_error, decode_data
from .wire import (
    CallDelta,
    ChunkChoice,
    Delta,
    PromptLogprobRows,
    TokenLogprobEntry,
    UpstreamChunk,
    WireUsage,
)

MAX_PENDING_CHARACTERS = 8 * 1024 * 1024
"""Limit of buffered tool calls, in characters."""

Tokens = tuple[Token, ...]

_TOKEN_ID_PREFIX = "token_id:"
_WORDS_BY_REASON = {
    FinishReason.STOP: (
        "stop",
        "tool_calls",
        "function_call",
        "eos",
        "eos_token",
        "end_turn",
        "stop_sequence",
    ),
    FinishReason.LENGTH: ("length", "max_tokens", "model_length"),
    FinishReason.CONTENT_FILTER: ("content_filter", "safety"),
    FinishReason.ABORT: ("abort",),
}
_REASON_BY_WORD = {word: reason for reason, words in _WORDS_BY_REASON.items() for word in words}
_DONE = b"[DONE]"
_decode = msgspec.json.Decoder(UpstreamChunk).decode


class ChunkReader:
    """Converts chunks to events. Call `close` after the upstream's [DONE] or the end of
    the connection.

    prompt_text: the text of a prompt that consists of token ids.
    warnings: warnings that the upstream sent before the first chunk.
    """

    def __init__(
        self, request: GenerateRequest, new_id: Callable[[], str], prompt_text: str | None = None
    ) -> None:
        self._request = request
        self._prompt_text = prompt_text
        choices = max(request.choices, request.best_of or 0)
        self._choices = [_ChoiceReader(choice, new_id) for choice in range(choices)]
        self._usage = WireUsage()
        self.has_started = self.is_done = False
        self.warnings: tuple[str, ...] = ()

    def read(self, data: bytes) -> list[Event]:
        """Read one event of the stream, see `StreamReader.read`."""
        if data == _DONE:
            self.is_done = True
            return []
        return self.feed(decode_chunk(data))

    def read_whole(self, body: bytes) -> list[Event]:
        """Read a whole response, see `StreamReader.read_whole`."""
        return self.feed(decode_chunk(body))

    def feed(self, chunk: UpstreamChunk) -> list[Event]:
        """Convert a chunk to events.

        Raises RequestError if the upstream rejects the request, EngineError if it fails
        or the chunk is invalid.
        """
        if chunk.error is not None:
            raise build_event_error(chunk.error, has_started=self.has_started)
        if chunk.usage is not None:
            self._usage = chunk.usage
        events: list[Event] = []
        if not self.has_started:
            self.has_started = True
            events.append(
                Started(
                    self._usage.prompt_tokens or 0,
                    self._count_cached(),
                    len(self._choices),
                    written_tokens=self._count_written(),
                    warnings=tuple(chunk.dragoman_warnings or self.warnings),
                )
            )
            if self._request.return_prompt:
                prompt = self._request.prompt
                top = self._request.prompt_logprobs
                text = (
                    prompt
                    if isinstance(prompt, str)
                    else self._prompt_text or chunk.prompt_text or ""
                )
                sources = (chunk, *(chunk.choices or ()))
                # The upstream may have truncated a prompt of token ids; then it returns
                # other ids than were sent.
                sent_ids = prompt if isinstance(prompt, tuple) else ()
                ids = next(
                    (source.prompt_token_ids for source in sources if source.prompt_token_ids),
                    sent_ids,
                )
                rows = (
                    next(
                        (source.prompt_logprobs for source in sources if source.prompt_logprobs),
                        None,
                    )
                    or []
                )
                tokens = (
                    tuple(Token(id, "") for id in ids)
                    if top is None
                    else read_prompt_tokens(ids, rows, top)
                )
                events.append(PromptTokens(0, text, tokens))
        for choice in chunk.choices or ():
            if not 0 <= choice.index < len(self._choices):
                raise EngineError(
                    f"The upstream returned choice {choice.index}, which was not requested."
                )
            kv_transfer_params = chunk.kv_transfer_text if choice.finish_reason else None
            events += self._choices[choice.index].feed(choice, kv_transfer_params)
        return events

    def close(self) -> list[Event]:
        """Finish the stream. Raises EngineError if the response is incomplete."""
        if not self.has_started or not all(choice.is_finished for choice in self._choices):
            raise EngineError("The upstream's answer was cut off.")
        usage = self._usage
        details = self._usage.completion_tokens_details
        num_tokens = sum(choice.num_tokens for choice in self._choices)
        return [
            Finished(
                Usage(
                    usage.prompt_tokens or 0,
                    num_tokens if usage.completion_tokens is None else usage.completion_tokens,
                    self._count_cached(),
                    None if details is None else details.reasoning_tokens,
                    self._count_written(),
                )
            )
        ]

    def _count_written(self) -> int | None:
        details = self._usage.prompt_tokens_details
        if details is None:
            return None
        return (
            details.created_cache_tokens
            if details.cache_write_tokens is None
            else details.cache_write_tokens
        )

    def _count_cached(self) -> int | None:
        details = self._usage.prompt_tokens_details
        return None if details is None else details.cached_tokens


def decode_chunk(data: bytes) -> UpstreamChunk:
    """Decode a chunk, or a response that is not streamed. Raises EngineError."""
    return decode_data(_decode, data, "chunk")


class _ChoiceReader:
    """Reads the chunks of one choice. Buffers tokens that no event has carried yet."""

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self.choice = choice
        self.calls = ToolCallSequencer(choice, new_id)
        self.pending_tokens: tuple[Token, ...] = ()
        self.is_finished = False
        self.num_tokens = 0

    def feed(self, chunk: ChunkChoice, kv_transfer_params: str | None = None) -> list[Event]:
        """Read one chunk. kv_transfer_params: see `core.engine.Ended`."""
        if self.is_finished:
            return []
        tokens = () if chunk.logprobs is None and chunk.token_ids is None else read_tokens(chunk)
        self.num_tokens += len(tokens)
        delta = chunk.delta
        # SGLang 0.4 and former versions of Ollama send an empty `finish_reason` until
        # the last chunk.
        if (
            delta is not None
            and delta.content
            and not chunk.finish_reason
            and delta.reasoning is None
            and delta.reasoning_content is None
            and delta.refusal is None
            and delta.tool_calls is None
            and not self.calls.is_open
        ):
            # A fast path for the common case, with the same result as `_read_delta`.
            if self.pending_tokens:
                tokens = self.pending_tokens + tokens
                self.pending_tokens = ()
            return [TextDelta(self.choice, delta.content, tokens)]
        events = self._read_delta(
            chunk.delta or chunk.message or Delta(content=chunk.text), self.pending_tokens + tokens
        )
        if chunk.finish_reason:
            events += self.calls.close()
            self.is_finished = True
            reason = _REASON_BY_WORD.get(chunk.finish_reason)
            if reason is None:
                raise EngineError(
                    f"The upstream ended its response with {chunk.finish_reason!r:.80}."
                )
            stop = chunk.matched_stop if chunk.stop_reason is None else chunk.stop_reason
            matched_stop = (
                stop if isinstance(stop, str | int) and reason is FinishReason.STOP else None
            )
            events.append(
                ChoiceFinished(
                    self.choice, reason, matched_stop, self.pending_tokens, kv_transfer_params
                )
            )
        return events

    def _read_delta(self, delta: Delta, tokens: tuple[Token, ...]) -> list[Event]:
        """Read a delta. The chunk's tokens are attached to its last event."""
        events: list[Event] = []
        if reasoning := delta.reasoning or delta.reasoning_content:
            events.append(ReasoningDelta(self.choice, reasoning))
        if delta.content:
            events.append(TextDelta(self.choice, delta.content))
        if delta.refusal:
            events.append(RefusalDelta(self.choice, delta.refusal))
        if events:
            events = [*self.calls.close(), *events]
        calls = delta.tool_calls or []
        self.pending_tokens = () if events or calls else tokens
        if events and not calls:
            events[-1] = msgspec.structs.replace(events[-1], tokens=tokens)
        for index, call in enumerate(calls, 1):
            events += self.calls.feed(call, tokens if index == len(calls) else ())
        return events


# Tokens.


def read_tokens(choice: ChunkChoice) -> tuple[Token, ...]:
    """Read the tokens of a chunk in sampling order, from logprobs or ids. Text is empty
    if only ids are known.
    """
    logprobs = choice.logprobs
    ids = choice.token_ids or []
    if logprobs is None:
        return tuple(Token(id, "") for id in ids)
    tokens: list[Token] = []
    if logprobs.tokens is not None:
        scores = logprobs.token_logprobs or [None] * len(logprobs.tokens)
        tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
        token_ids = (
            ids if len(ids) == len(logprobs.tokens) else [UNKNOWN_TOKEN_ID] * len(logprobs.tokens)
        )
        for id, text, score, top in zip(token_ids, logprobs.tokens, scores, tops, strict=False):
            # A completion's alternatives have no ids and no order.
            ranked = sorted((top or {}).items(), key=lambda entry: -entry[1])
            others = tuple(
                Alternative(UNKNOWN_TOKEN_ID, other, logprob) for other, logprob in ranked
            )
            tokens.append(Token(id, text, score, others))
        return tuple(tokens)
    entries = (logprobs.content or []) + (logprobs.refusal or [])
    if not entries:
        return tuple(Token(id, "") for id in ids)
    token_ids = ids if len(ids) == len(entries) else [UNKNOWN_TOKEN_ID] * len(entries)
    for id, entry in zip(token_ids, entries, strict=True):
        text, raw = _read_text(entry)
        alternatives: list[Alternative] = []
        for other in entry.top_logprobs or ():
            other_text, other_raw = _read_text(other)
            logprob = 0.0 if other.logprob is None else other.logprob
            alternatives.append(
                Alternative(_find_id(other, UNKNOWN_TOKEN_ID), other_text, logprob, other_raw)
            )
        tokens.append(Token(_find_id(entry, id), text, entry.logprob, tuple(alternatives), raw))
    return tuple(tokens)


def read_prompt_tokens(ids: Sequence[int], rows: PromptLogprobRows, top: int) -> tuple[Token, ...]:
    """Read the tokens of a prompt. The first token has no row, so its text is empty.

    A row contains the token itself, whatever its rank, and the alternatives of the best
    ranks.

    top: number of alternatives for each token.

    Raises: EngineError if the rows do not match the ids.
    """
    if len(rows) != len(ids):
        raise EngineError("The upstream did not return the logprobs of the prompt.")
    tokens: list[Token] = []
    for id, row in zip(ids, rows, strict=True):
        if not row:
            tokens.append(Token(id, ""))
            continue
        token_entry = row.get(str(id))
        if token_entry is None:
            raise EngineError("The upstream did not return the logprobs of the prompt.")
        ranked = sorted(
            (entry.rank, other, entry.decoded_token or "", entry.logprob)
            for key, entry in row.items()
            if entry.rank is not None and (other := _parse_id(key)) is not None
        )
        alternatives = tuple(
            Alternative(other, text, logprob)
            for rank, other, text, logprob in ranked
            if rank <= top
        )
        tokens.append(
            Token(
                id,
                token_entry.decoded_token or "",
                token_entry.logprob,
                alternatives,
                rank=token_entry.rank,
            )
        )
    return tuple(tokens)


def _find_id(entry: TokenLogprobEntry, fallback: int) -> int:
    number = entry.token.removeprefix(_TOKEN_ID_PREFIX)
    id = None if number == entry.token else _parse_id(number)
    return fallback if id is None else id


def _parse_id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def _read_text(entry: TokenLogprobEntry) -> tuple[str, bytes | None]:
    """Read a token's text, and its bytes if they differ from the text."""
    if entry.bytes is None or not all(0 <= byte < 256 for byte in entry.bytes):
        return entry.token, None
    raw = bytes(entry.bytes)
    text = raw.decode("utf-8", "replace")
    return text, None if text.encode() == raw else raw


# Tool calls: the deltas of one choice's calls may be interleaved, but in the event
# stream a call ends before the next begins. A later call is buffered until the one
# before it is complete: when its arguments are a whole JSON object, which causes no
# delay for sequential calls, or else at the end of all calls.


class ToolCallSequencer:
    """Puts the tool calls of one choice in sequence. new_id: creates ids for calls
    without one.
    """

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self._choice = choice
        self._new_id = new_id
        self._by_index: dict[int, _Call] = {}
        self._queue: list[_Call] = []
        self._pending_characters = 0

    @property
    def is_open(self) -> bool:
        """Whether a call has not ended."""
        return bool(self._queue)

    def feed(self, delta: CallDelta, tokens: Tokens = ()) -> list[Event]:
        """Feed a delta, and return the events that are ready. tokens: those of the same
        chunk.
        """
        index = delta.index
        if index is None:
            # Some servers send each call whole, without an index.
            is_new = delta.id is not None or not self._by_index
            index = len(self._by_index) if is_new else max(self._by_index)
        call = self._by_index.get(index)
        name, text = _read_delta(delta)
        is_another = False
        if call is not None and call.is_complete:
            # Other servers use index 0 for all calls, some of them without ids.
            is_another = (
                delta.id != call.id if delta.id and call.id else bool(name and text.strip())
            )
        if call is None or is_another:
            call = _Call(delta.id or None, delta.custom is not None)
            self._by_index[index] = call
            self._queue.append(call)
        if name and not call.name:
            call.name = name
        if call.is_finished:
            # White space after the object is not part of the arguments.
            if text.strip():
                raise EngineError("The upstream continued a tool call that was already complete.")
            text = ""
        call.scanner.feed(text)
        if not call.is_finished:
            call.pending.append((text, tokens))
            self._pending_characters += len(text)
        events: list[Event] = []
        while self._queue:
            head = self._queue[0]
            self._pending_characters -= (
                sum(len(text) for text, _ in head.pending) if head.name else 0
            )
            events += head.drain(self._choice, self._new_id)
            # Without a name, the call waits for one; `close` reports that there was
            # none.
            if len(self._queue) == 1 or not head.name or not head.is_complete:
                break
            head.is_finished = True
            self._queue.pop(0)
        if self._pending_characters > MAX_PENDING_CHARACTERS:
            raise EngineError(
                "The upstream's tool calls are interleaved and too long to be put in sequence."
            )
        return events

    def close(self) -> list[Event]:
        """End the calls and flush all buffered ones, in the order in which they began."""
        events: list[Event] = []
        for call in self._queue:
            if not call.name:
                raise EngineError("The upstream started a tool call without a name.")
            events += call.drain(self._choice, self._new_id)
            call.is_finished = True
        self._queue.clear()
        self._pending_characters = 0
        return events


class JsonObjectScanner:
    """Detects the end of a JSON object in text that is fed in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.is_complete = False

    def feed(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                if character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.is_complete |= self._depth == 0


class _Call:
    def __init__(self, id: str | None, custom: bool) -> None:
        self.id = id
        self.name = ""
        self.custom = custom
        self.has_begun = self.is_finished = False
        self.scanner = JsonObjectScanner()
        self.pending: list[tuple[str, Tokens]] = []

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete. Custom tool input has no detectable end."""
        return self.scanner.is_complete and not self.custom

    def drain(self, choice: int, new_id: Callable[[], str]) -> list[Event]:
        """Return the events that are ready."""
        if not self.name:
            return []
        pending = self.pending
        self.pending = []
        events: list[Event] = []
        if not self.has_begun:
            self.has_begun = True
            # The first delta of a call has its name but no arguments, so its tokens
            # belong to the start.
            name_tokens = pending.pop(0)[1] if pending and not pending[0][0] else ()
            events.append(
                ToolCallStart(choice, self.id or new_id(), self.name, name_tokens, self.custom)
            )
        events += [
            ToolCallDelta(choice, text, tokens) for text, tokens in pending if text or tokens
        ]
        return events


def _read_delta(delta: CallDelta) -> tuple[str, str]:
    """Read the tool's name and a fragment of its arguments."""
    if delta.custom is not None:
        return delta.custom.name or "", delta.custom.input or ""
    if delta.function is not None:
        return delta.function.name or "", delta.function.arguments or ""
    return "", ""
