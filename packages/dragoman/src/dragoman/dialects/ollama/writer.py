"""Renders answers of Ollama's /api/chat or /api/generate, as JSON lines or as one
object.

    the stream:  chunk*  last        one line each; texts are pieces, calls are complete; `done` is true in the last

The full object is the last line with all texts, calls and logprobs. An error is a line
of its own.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError
from ...core.events import (
    UNKNOWN_TOKEN_ID,
    Alternative,
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
    get_answer_tokens,
)
from ...core.message import Reasoning, ToolCall
from ...core.reply import Reply
from ..json_encoding import clamp_logprob, encode_string, escape_line_breaks, replace_surrogates
from ..tool_input import is_cut_off, render_whole_input
from .errors import render_ollama_error

KEEPALIVE = b" "
"""Whitespace before the next line: JSON allows it, whereas clients fail on an empty
line.
"""


class OllamaTimings(Struct, frozen=True):
    """The durations of an answer in nanoseconds.

    total: from the request's arrival to the end of the answer.
    load: loading the model; nearly 0 if it was already loaded.
    prompt_eval: from leaving the engine's queue to the first token.
    eval: from the first token to the last.
    """

    total: int
    load: int
    prompt_eval: int
    eval: int


class OllamaRenderOptions(Struct, frozen=True):
    """The response options of Ollama's chat and generate.

    model: the model's name as the client sent it, which Ollama repeats.
    now: returns Unix seconds.
    measure: returns the durations, once the answer is complete.
    is_chat: use the format of /api/chat, otherwise that of /api/generate.
    logprobs: maximum alternatives for each token; None omits logprobs.
    returns_context: return the ids of prompt and answer, if the engine reports them.
    """

    model: str
    now: Callable[[], float]
    measure: Callable[[], OllamaTimings]
    is_chat: bool
    logprobs: int | None = None
    returns_context: bool = False


class OllamaTokenLogprob(Struct, frozen=True, omit_defaults=True):
    token: str
    logprob: float
    bytes: list[int] | UnsetType = UNSET
    top_logprobs: list[OllamaTokenLogprob] | UnsetType = UNSET


class LineFraming:
    """The end, keepalives and errors of a stream of JSON lines."""

    @property
    def end(self) -> bytes:
        return b""

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE

    def render_error(self, error: DragomanError) -> bytes:
        return render_ollama_error(error) + b"\n"


class OllamaWriter(LineFraming):
    """Renders one answer, streamed or full. It has only one choice."""

    def __init__(self, options: OllamaRenderOptions) -> None:
        self._options = options
        self._head = b'{"model":%s,"created_at":"' % encode_string(options.model)
        self._call: ToolCallStart | None = None
        self._arguments: list[str] = []
        self._tokens: list[Token] = []
        """Tokens whose logprobs have not been sent."""
        self._n_calls = 0
        self._context_ids: list[int] = []
        self._choice_finished = ChoiceFinished(0, FinishReason.ABORT)
        self._has_prompt_ids = False

    def feed(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        if self._options.returns_context:
            self._context_ids += [token.id for token in get_answer_tokens(event)]
        match event:
            case TextDelta(text=text, tokens=tokens) | RefusalDelta(text=text, tokens=tokens):
                return self._finish_call(is_cut_off=False) + self._render_delta(text, "", tokens)
            case ReasoningDelta(text=text, tokens=tokens):
                return self._finish_call(is_cut_off=False) + self._render_delta("", text, tokens)
            case ToolCallStart(tokens=tokens):
                finished_call = self._finish_call(is_cut_off=False)
                self._call = event
                self._tokens.extend(tokens)
                return finished_call
            case ToolCallDelta(arguments=arguments, tokens=tokens):
                # Ollama sends a call as one object, so its arguments are collected.
                self._arguments.append(arguments)
                self._tokens.extend(tokens)
                return b""
            case Started():
                return b""
            case PromptTokens(tokens=tokens):
                # Prepended, since an event engine may report the prompt's ids after the
                # first token.
                self._context_ids[:0] = [token.id for token in tokens]
                self._has_prompt_ids = True
                return b""
            case ChoiceFinished(reason=reason, stop=stop):
                self._choice_finished = event
                return self._finish_call(is_cut_off=is_cut_off(reason, stop))
            case Finished(usage):
                context_ids = self._context_ids if self._has_prompt_ids else None
                return self._render_end(
                    self._render_message("", "", ()), self._choice_finished, usage, context_ids
                )

    def render_full(self, reply: Reply) -> bytes:
        choice = reply.choices[0]
        calls = list[bytes]()
        for i, part in enumerate(choice.parts):
            if isinstance(part, ToolCall):
                is_incomplete = i == len(choice.parts) - 1 and is_cut_off(
                    choice.reason, choice.stop
                )
                calls += _render_call(
                    len(calls), part.id, part.name, part.arguments, is_cut_off=is_incomplete
                )
        text = "".join(
            part.text for part in choice.parts if not isinstance(part, ToolCall | Reasoning)
        )
        prompt = reply.prompts[0] if reply.prompts else None
        context_ids = (
            None if prompt is None else [token.id for token in (*prompt.tokens, *choice.tokens)]
        )
        finish = ChoiceFinished(0, choice.reason, choice.stop)
        self._tokens.extend(token for part in choice.parts for token in part.tokens)
        message = self._render_message(text, choice.join_reasoning(), calls)
        # The newline at the end belongs to streams only.
        return self._render_end(message, finish, reply.usage, context_ids)[:-1]

    def _finish_call(self, *, is_cut_off: bool) -> bytes:
        """Render the open call, if any. A call that was cut off within its arguments is
        omitted.
        """
        call = self._call
        self._call = None
        if call is None:
            return b""
        arguments = "".join(self._arguments)
        self._arguments.clear()
        rendered_call = _render_call(
            self._n_calls, call.id, call.name, arguments, is_cut_off=is_cut_off
        )
        self._n_calls += len(rendered_call)
        return (
            self._render_chunk(self._render_message("", "", rendered_call))
            if rendered_call
            else b""
        )

    def _render_delta(self, text: str, thinking: str, tokens: Sequence[Token]) -> bytes:
        self._tokens.extend(tokens)
        if not text and not thinking:
            # The tokens are sent with the next text.
            return b""
        return self._render_chunk(self._render_message(text, thinking, ()))

    def _render_message(self, text: str, thinking: str, calls: Iterable[bytes]) -> bytes:
        thinking_field = b',"thinking":%s' % encode_string(thinking) if thinking else b""
        joined_calls = b",".join(calls)
        calls_field = b',"tool_calls":[%s]' % joined_calls if joined_calls else b""
        if not self._options.is_chat:
            return b'"response":%s%s%s' % (encode_string(text), thinking_field, calls_field)
        return b'"message":{"role":"assistant","content":%s%s%s}' % (
            encode_string(text),
            thinking_field,
            calls_field,
        )

    def _render_chunk(self, message: bytes) -> bytes:
        return b"%s%s,%s}\n" % (
            self._render_head(),
            message,
            b'"done":false' + self._take_logprobs(),
        )

    def _render_end(
        self,
        message: bytes,
        finish: ChoiceFinished,
        usage: Usage,
        context_ids: Sequence[int] | None,
    ) -> bytes:
        timings = self._options.measure()
        context = b""
        # Ollama has one reason for both limits and none for an aborted answer: it is
        # reported as `length`, like a truncated one.
        reason = b"length" if finish.reason in _TRUNCATED else b"stop"
        # A context with unknown ids is omitted: it would continue another conversation
        # than the client's.
        if self._options.returns_context and context_ids and UNKNOWN_TOKEN_ID not in context_ids:
            context = b',"context":[%s]' % b",".join([b"%d" % id for id in context_ids])
        # Ollama leaves counts out that it does not have, and its streams have no place
        # for a warning that a count is an estimate.
        prompt_count = eval_count = b""
        if usage.prompt is not None and usage.completion is not None and not usage.is_estimate:
            prompt_count = b'"prompt_eval_count":%d,' % usage.prompt
            eval_count = b'"eval_count":%d,' % usage.completion
        return (
            b'%s%s,"done":true,"done_reason":"%s"%s%s,"total_duration":%d,"load_duration":%d,'
            b'%s"prompt_eval_duration":%d,%s"eval_duration":%d}\n'
        ) % (
            self._render_head(), message, reason, context, self._take_logprobs(),
            timings.total, timings.load, prompt_count, timings.prompt_eval, eval_count,
            timings.eval,
        )  # fmt: skip

    def _render_head(self) -> bytes:
        return b'%s%s",' % (self._head, format_time(self._options.now()).encode())

    def _take_logprobs(self) -> bytes:
        top = self._options.logprobs
        tokens = self._tokens
        if top is None or not tokens:
            # Cleared even if logprobs are not requested: the tokens would accumulate
            # until the end of the answer.
            tokens.clear()
            return b""
        entries = [_build_logprob(token, token.top[:top]) for token in tokens]
        tokens.clear()
        return b',"logprobs":' + escape_line_breaks(msgspec.json.encode(entries))


_TRUNCATED = (
    FinishReason.LENGTH,
    FinishReason.CONTEXT_LENGTH,
    FinishReason.ABORT,
    FinishReason.CACHE_THRESHOLD,
)


def format_time(seconds: float) -> str:
    """Format Unix seconds in RFC 3339, as Go's encoder does."""
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def _render_call(
    index: int, id: str, name: str, arguments: str, *, is_cut_off: bool
) -> list[bytes]:
    """Render a call as a list of one item; empty if the call was cut off before its
    arguments were complete.
    """
    value = render_whole_input(arguments, is_incomplete=is_cut_off)
    if value is None:
        return []
    # LiteLLM needs the outer index: without it, it merges calls of separate chunks.
    return [
        b'{"id":%s,"index":%d,"function":{"index":%d,"name":%s,"arguments":%s}}'
        % (encode_string(id), index, index, encode_string(name), value)
    ]


def _build_logprob(token: Token | Alternative, top: Sequence[Alternative]) -> OllamaTokenLogprob:
    raw = token.text.encode("utf-8", "replace") if token.raw is None else token.raw
    return OllamaTokenLogprob(
        replace_surrogates(token.text),
        clamp_logprob(token.logprob),
        list(raw) or UNSET,
        [_build_logprob(alternative, ()) for alternative in top] or UNSET,
    )
