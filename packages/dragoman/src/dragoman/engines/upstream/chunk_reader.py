"""Converts the chunks of one Chat Completions or Completions response to a valid stream
of events. Pure.

A stream that ends before all of its choices have finished is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...core.errors import EngineError
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
    Usage,
)
from ...core.request import GenerateRequest
from .chunk_tokens import read_prompt_tokens, read_tokens
from .errors import build_event_error, decode_data
from .tool_call_sequencer import ToolCallSequencer
from .wire import (
    ChunkChoice,
    Delta,
    UpstreamChunk,
    WireUsage,
)

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
    FinishReason.LENGTH: ("length", "max_tokens"),
    # Mistral's word, and Anthropic's as gateways pass it on.
    FinishReason.CONTEXT_LENGTH: ("model_length", "model_context_window_exceeded"),
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
                    # Some servers say 0 until they know the count.
                    self._usage.prompt_tokens or None,
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
        return [
            Finished(
                Usage(
                    usage.prompt_tokens or None,
                    usage.completion_tokens,
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

    def feed(self, chunk: ChunkChoice, kv_transfer_params: str | None = None) -> list[Event]:
        """Read one chunk. kv_transfer_params: see `core.engine.Ended`."""
        if self.is_finished:
            return []
        tokens = () if chunk.logprobs is None and chunk.token_ids is None else read_tokens(chunk)
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
