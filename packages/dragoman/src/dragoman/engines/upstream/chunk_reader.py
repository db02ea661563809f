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
from .answer_items import TextItem, TextKind
from .chunk_deltas import ToolCallReader, find_single_text, read_texts
from .chunk_template import ChunkTemplate
from .chunk_tokens import read_prompt_tokens, read_tokens
from .errors import build_event_error, read_error, read_error_event
from .event_decoding import build_decoder, decode_data
from .request_warnings import RequestWarnings
from .wire import (
    ChunkChoice,
    Delta,
    UpstreamChunk,
    WireError,
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
    # Of the simulator of llm-d, and of this one.
    FinishReason.CACHE_THRESHOLD: ("cache_threshold",),
}
_REASON_BY_WORD = {word: reason for reason, words in _WORDS_BY_REASON.items() for word in words}
_DONE = b"[DONE]"
_CALL_WORDS = frozenset({"tool_calls", "function_call"})
_decoder = build_decoder(UpstreamChunk)


class ChunkReader:
    """Converts chunks to events. Call `close` after the upstream's [DONE] or the end of
    the connection.

    prompt_text: the text of a prompt that consists of token ids.
    warnings: warnings for the client, sent with `Started`.
    """

    def __init__(
        self, request: GenerateRequest, new_id: Callable[[], str], prompt_text: str | None = None
    ) -> None:
        self._request = request
        self._prompt_text = prompt_text
        choices = max(request.choices, request.best_of or 0)
        self._choices = [_ChoiceReader(choice, new_id) for choice in range(choices)]
        self._usage = WireUsage()
        self._template = ChunkTemplate()
        self.has_started = self.is_done = False
        self.warnings = RequestWarnings()

    def read(self, data: bytes, name: str = "") -> list[Event]:
        """Read one event of the stream, see `StreamReader.read`."""
        template = self._template
        if not name and (text := template.read_text(data)):
            return self._choices[template.choice].feed_text(template.kind, text)
        if not data.startswith(b"{") and data.strip().startswith(_DONE):
            self.is_done = True
            return []
        if name == "error":
            error = read_error_event(data)
            raise build_event_error(error, has_started=self.has_started)
        chunk = decode_data(_decoder, data, "chunk")
        events = self.feed(chunk)
        template.learn(data, chunk)
        return events

    def read_whole(self, body: bytes) -> list[Event]:
        """Read a whole response, see `StreamReader.read_whole`."""
        return self.feed(decode_data(_decoder, body, "chunk"))

    def feed(self, chunk: UpstreamChunk) -> list[Event]:
        """Convert a chunk to events.

        Raises RequestError if the upstream rejects the request, EngineError if it fails
        or the chunk is invalid.
        """
        is_plain = chunk.choices and not chunk.error
        if not is_plain and (error := _find_error(chunk)) is not None:
            raise build_event_error(error, has_started=self.has_started)
        choices = chunk.choices or ()
        if chunk.usage is not None:
            self._usage = self._usage.update(chunk.usage)
        events: list[Event] = []
        if not self.has_started:
            self.has_started = True
            if chunk.dragoman_warnings:
                self.warnings.report(chunk.dragoman_warnings)
            events.append(
                Started(
                    # Some servers say 0 until they know the count.
                    self._usage.prompt_tokens or None,
                    self._count_cached(),
                    len(self._choices),
                    written_tokens=self._count_written(),
                    ends_empty=len(self._choices) == 1
                    and [choice.finish_reason for choice in choices if choice is not None]
                    == ["cache_threshold"],
                    warnings=self.warnings.all,
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
                sources = (chunk, *(choice for choice in choices if choice is not None))
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
        for choice in choices:
            if choice is None:
                continue
            if choice.usage is not None:
                self._usage = self._usage.update(choice.usage)
            if choice.error:
                raise build_event_error(read_error(choice.error), has_started=True)
            index = choice.index or 0
            if not 0 <= index < len(self._choices):
                raise EngineError(f"The upstream returned choice {index}, which was not requested.")
            kv_transfer_params = chunk.kv_transfer_text if choice.finish_reason else None
            events += self._choices[index].feed(choice, kv_transfer_params)
        return events

    def close(self) -> list[Event]:
        """Finish the stream. Raises EngineError if the response is incomplete."""
        events = [event for choice in self._choices for event in choice.close()]
        usage = self._usage
        details = self._usage.completion_tokens_details
        return [
            *events,
            Finished(
                Usage(
                    usage.prompt_tokens or None,
                    usage.completion_tokens,
                    self._count_cached(),
                    None if details is None else details.reasoning_tokens,
                    self._count_written(),
                )
            ),
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


def _find_error(chunk: UpstreamChunk) -> WireError | None:
    """Find the error of a chunk, in an envelope or without one."""
    if error := chunk.error or chunk.errors:
        return read_error(error)
    is_error = "error" in (chunk.object_type, chunk.type)
    if is_error or (chunk.choices is None and (chunk.message or chunk.detail)):
        fields = {
            "message": chunk.message or chunk.detail,
            "type": chunk.type,
            "code": chunk.code,
            "param": chunk.param,
        }
        return read_error(fields)
    return None


class _ChoiceReader:
    """Reads the chunks of one choice. Buffers tokens that no event has carried yet.

    finish: the end of the choice, which is emitted at the end of the stream: some
        servers send content after the reason.
    """

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self.choice = choice
        self.calls = ToolCallReader(choice, new_id)
        self.items = self.calls.items
        self.pending_tokens: tuple[Token, ...] = ()
        self.finish: ChoiceFinished | None = None
        self._finish_word = ""
        self._whole: Delta | None = None
        self._known_signatures: set[str] = set()
        self._texts: dict[TextKind, TextItem] = {
            TextDelta: TextItem(TextDelta),
            ReasoningDelta: TextItem(ReasoningDelta),
            RefusalDelta: TextItem(RefusalDelta),
        }

    def feed(self, chunk: ChunkChoice, kv_transfer_params: str | None = None) -> list[Event]:
        """Read one chunk. kv_transfer_params: see `core.engine.Ended`."""
        tokens = () if chunk.logprobs is None and chunk.token_ids is None else read_tokens(chunk)
        delta = chunk.delta
        # SGLang 0.4 and former versions of Ollama send an empty `finish_reason` until
        # the last chunk.
        if (
            delta is not None
            and not chunk.finish_reason
            and chunk.message is None
            and (single := find_single_text(delta)) is not None
        ):
            return self.feed_text(*single, tokens)
        message = chunk.message
        if delta is None and not (self.items.has_any):
            # A response that is not streamed.
            delta = message
        elif message is not None:
            # Some servers send whole messages in a stream: at its end, or like
            # Perplexity in each chunk the text so far.
            self._whole = message
        self._read_delta(delta or Delta(content=chunk.text), self.pending_tokens + tokens)
        if chunk.finish_reason:
            self._complete()
            self._read_finish(chunk, chunk.finish_reason, kv_transfer_params)
        return self.items.take()

    def feed_text(self, kind: TextKind, text: str, tokens: tuple[Token, ...] = ()) -> list[Event]:
        """Read a chunk that has nothing but a text, and its tokens: the common case."""
        item = self._texts[kind]
        if self.pending_tokens:
            tokens = self.pending_tokens + tokens
            self.pending_tokens = ()
        if self.items.record_plain(item, text):
            return [kind(self.choice, text, tokens)]
        self.items.add(item, text, tokens)
        return self.items.take()

    def close(self) -> list[Event]:
        """Finish the choice. Raises EngineError if it is incomplete."""
        if self.finish is None:
            raise EngineError("The upstream's answer was cut off.")
        self._complete()
        self.items.close(is_cut_off=self.finish.reason is not FinishReason.STOP)
        if self._finish_word in _CALL_WORDS:
            self.items.check_not_empty(self._finish_word)
        finish = msgspec.structs.replace(self.finish, tokens=self.pending_tokens)
        return [*self.items.take(), finish]

    def _read_finish(self, chunk: ChunkChoice, word: str, kv_transfer_params: str | None) -> None:
        reason = _REASON_BY_WORD.get(word.lower())
        if reason is None:
            raise EngineError(f"The upstream ended its response with {word!r:.80}.")
        stop = chunk.matched_stop if chunk.stop_reason is None else chunk.stop_reason
        matched_stop = stop if isinstance(stop, str | int) and reason is FinishReason.STOP else None
        self.items.close(is_cut_off=reason is not FinishReason.STOP)
        self._finish_word = word
        self.finish = ChoiceFinished(
            self.choice, reason, matched_stop, kv_transfer_params=kv_transfer_params
        )

    def _read_delta(self, delta: Delta, tokens: tuple[Token, ...]) -> None:
        """Read a delta. The chunk's tokens are attached to its last event."""
        pieces = [(kind, text, seal) for kind, text, seal in read_texts(delta) if text or seal]
        calls = self.calls.list_deltas(delta)
        self.pending_tokens = () if pieces or calls else tokens
        for index, (kind, text, seal) in enumerate(pieces, 1):
            is_last = index == len(pieces) and not calls
            self._known_signatures.add(seal)
            self.items.add(self._texts[kind], text, tokens if is_last else (), seal)
        for index, call in enumerate(calls, 1):
            self.calls.feed(call, tokens if index == len(calls) else ())

    def _complete(self) -> None:
        """Compare a whole message with the deltas, and add what it has beyond them."""
        message = self._whole
        self._whole = None
        if message is None:
            return
        thoughts: list[tuple[str, str]] = []
        wholes: dict[TextKind, str] = {}
        for kind, text, seal in read_texts(message):
            if kind is ReasoningDelta:
                thoughts.append((text, seal))
            else:
                wholes[kind] = wholes.get(kind, "") + text
        if thoughts:
            self._complete_reasoning(thoughts)
        for kind, whole in wholes.items():
            self.items.complete(self._texts[kind], whole)
        self.calls.complete(self.calls.list_deltas(message))

    def _complete_reasoning(self, thoughts: list[tuple[str, str]]) -> None:
        """Compare the reasoning of a whole message, texts and seals, with the deltas."""
        item = self._texts[ReasoningDelta]
        is_new = not item.pieces
        if not is_new:
            self.items.complete(item, "".join(text for text, _ in thoughts))
        for text, seal in thoughts:
            # A seal has to end the text that it signs. Encrypted reasoning has none.
            fits = is_new or not text or (self.items.is_in_reasoning and text == item.text)
            if fits:
                new_seal = "" if seal in self._known_signatures else seal
                self._known_signatures.add(seal)
                self.items.add(item, text if is_new else "", seal=new_seal)
