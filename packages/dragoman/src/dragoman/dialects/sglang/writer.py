"""Renders the answers of SGLang's /generate.

Each event of a stream contains the whole answer so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError
from ...core.events import (
    Alternative,
    ChoiceEvent,
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
    WeightSpan,
)
from ...core.message import Reasoning, Refusal, Text
from ...core.reply import Choice, Reply
from ..interfaces import Header, Profile
from ..json_encoding import clamp_logprob, escape_line_breaks, replace_surrogates
from ..openai_errors import render_openai_error
from ..server_sent_events import DONE, KEEPALIVE_COMMENT

LogprobTriple = tuple[float | None, int, str | None]
"""SGLang's triple: logprob, token id, and the token's text if requested."""


class SglangRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options of SGLang's /generate.

    as_list: the response is an array.
    logprobs: maximum alternatives for each token; None for no logprobs.
    token_texts: add the tokens' texts to logprobs.
    logprob_start: index of the first prompt token with a logprob; None for none.
    prompt_token_ids: return the prompt's ids.
    """

    as_list: bool = False
    logprobs: int | None = None
    token_texts: bool = False
    logprob_start: int | None = None
    prompt_token_ids: bool = False
    profile: Profile = Profile.OPENAI


DEFAULT_OPTIONS = SglangRenderOptions()


class SglangStopReason(Struct, frozen=True, tag_field="type", tag="stop"):
    matched: str | int | None


class SglangLengthReason(Struct, frozen=True, tag_field="type", tag="length"):
    length: int | None


class SglangAbortReason(Struct, frozen=True, tag_field="type", tag="abort"):
    message: str
    status_code: None = None
    err_type: None = None


class SglangMeta(Struct, frozen=True):
    """The `meta_info` of an answer.

    weight_version: version of the weights that sampled the last token; null before the
        end, as it may still change.
    completion_tokens: null if the engine reports no tokens.
    """

    id: str
    finish_reason: SglangStopReason | SglangLengthReason | SglangAbortReason | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int
    weight_version: str | None
    weight_versions: tuple[WeightSpan, ...] | UnsetType
    input_token_logprobs: list[LogprobTriple] | UnsetType
    output_token_logprobs: list[LogprobTriple] | UnsetType
    output_token_logprobs_length: int | UnsetType
    input_top_logprobs: list[list[LogprobTriple] | None] | UnsetType
    output_top_logprobs: list[list[LogprobTriple] | None] | UnsetType


class SglangResponse(Struct, frozen=True):
    text: str
    output_ids: list[int]
    meta_info: SglangMeta
    prompt_token_ids: list[int] | UnsetType
    index: int | UnsetType = UNSET


class _ChoiceState:
    """The state of one choice."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[Token] = []
        self.reasoning_tokens = 0
        self.finish: ChoiceFinished | None = None

    @property
    def num_tokens(self) -> int | None:
        """Number of tokens; None if the engine does not report them."""
        return None if self.text and not self.tokens else len(self.tokens)

    @classmethod
    def from_choice(cls, index: int, choice: Choice) -> _ChoiceState:
        state = cls()
        state.text = "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))
        state.tokens = list(choice.tokens)
        state.reasoning_tokens = sum(
            not token.markup
            for part in choice.parts
            if isinstance(part, Reasoning)
            for token in part.tokens
        )
        state.finish = ChoiceFinished(index, choice.reason, choice.stop, weights=choice.weights)
        return state


class SglangWriter:
    """Renders one answer, streamed or full."""

    def __init__(self, header: Header, options: SglangRenderOptions = DEFAULT_OPTIONS) -> None:
        self._header = header
        self._options = options
        self._choices: list[_ChoiceState] = []
        self._prompts: list[PromptTokens | None] = []
        self._prompt_counts: tuple[int | None, int | None] = (None, None)
        self._ended_choices: list[int] = []

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % render_openai_error(error, self._options.profile)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started(prompt_tokens, cached_tokens, choices, prompts):
                self._choices = [_ChoiceState() for _ in range(choices)]
                known_tokens = None if event.is_estimate else prompt_tokens
                self._reset(known_tokens, cached_tokens, [None] * prompts)
                return b""
            case PromptTokens():
                self._prompts[event.prompt] = event
                return b""
            case Finished(usage):
                self._prompt_counts = (usage.prompt, usage.cached)
                return b"".join(map(self._render_answer, self._ended_choices))
            case _:
                return self._render_event(event.choice, event)

    def render_full(self, reply: Reply) -> bytes:
        self._choices = [
            _ChoiceState.from_choice(index, choice) for index, choice in enumerate(reply.choices)
        ]
        self._reset(reply.usage.prompt, reply.usage.cached, list(reply.prompts))
        answers = [self._build_answer(index) for index in range(len(self._choices))]
        return escape_line_breaks(
            msgspec.json.encode(answers if self._options.as_list else answers[0])
        )

    def _reset(
        self,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        prompts: list[PromptTokens | None],
    ) -> None:
        self._prompts = prompts
        self._prompt_counts = (prompt_tokens, cached_tokens)

    def _render_event(self, choice: int, event: ChoiceEvent) -> bytes:
        state = self._choices[choice]
        state.tokens += event.tokens
        match event:
            case TextDelta(_, text) | RefusalDelta(_, text):
                state.text += text
            case ReasoningDelta():
                state.reasoning_tokens += sum(not token.markup for token in event.tokens)
            case ChoiceFinished():
                # The last event of a choice has the counts of the whole answer, which
                # some engines report at its end.
                state.finish = event
                self._ended_choices.append(choice)
                return b""
            case _:
                """A tool call is not part of the text, as in Completions."""
        return self._render_answer(choice)

    def _render_answer(self, choice: int) -> bytes:
        answer = self._build_answer(choice)
        if self._options.as_list:
            answer = msgspec.structs.replace(answer, index=choice)
        # Quadratic in the answer's length, as SGLang's own format is: each event
        # repeats all of the text and ids.
        return b"data: %s\n\n" % escape_line_breaks(msgspec.json.encode(answer))

    def _build_answer(self, index: int) -> SglangResponse:
        options = self._options
        choices_per_prompt = len(self._choices) // max(1, len(self._prompts))
        state = self._choices[index]
        prompt = self._prompts[index // choices_per_prompt]
        prompt_tokens, cached = self._prompt_counts
        if len(self._prompts) > 1:
            # For several prompts the counts are a sum, and the cached tokens of each
            # are unknown.
            prompt_tokens = None if prompt is None else len(prompt.tokens)
            cached = None
        weights = None if state.finish is None else state.finish.weights
        scored_prompt: Sequence[Token] = ()
        if prompt is not None and options.logprob_start is not None:
            scored_prompt = prompt.tokens[options.logprob_start :]
        has_logprobs = options.logprobs is not None
        has_top_logprobs = bool(options.logprobs)
        meta = SglangMeta(
            id=f"{self._header.id}_{index}" if options.as_list else self._header.id,
            finish_reason=None
            if state.finish is None
            else _build_finish_reason(state.finish, state.tokens, state.num_tokens),
            prompt_tokens=prompt_tokens,
            completion_tokens=state.num_tokens,
            cached_tokens=cached,
            reasoning_tokens=state.reasoning_tokens,
            weight_version=weights[-1].version if weights else None,
            weight_versions=UNSET if weights is None else weights,
            input_token_logprobs=[self._build_triple(token) for token in scored_prompt]
            if has_logprobs
            else UNSET,
            output_token_logprobs=[self._build_triple(token) for token in state.tokens]
            if has_logprobs
            else UNSET,
            output_token_logprobs_length=len(state.tokens) if has_logprobs else UNSET,
            input_top_logprobs=[self._build_top(token) for token in scored_prompt]
            if has_top_logprobs
            else UNSET,
            output_top_logprobs=[self._build_top(token) for token in state.tokens]
            if has_top_logprobs
            else UNSET,
        )
        prompt_ids = (
            UNSET
            if prompt is None or not options.prompt_token_ids
            else [token.id for token in prompt.tokens]
        )
        return SglangResponse(
            replace_surrogates(state.text), [token.id for token in state.tokens], meta, prompt_ids
        )

    def _build_triple(self, token: Token | Alternative) -> LogprobTriple:
        """Build a triple. The first token of a prompt has no logprob, because nothing
        precedes it.
        """
        logprob = None if token.logprob is None else clamp_logprob(token.logprob)
        return (
            logprob,
            token.id,
            replace_surrogates(token.text) if self._options.token_texts else None,
        )

    def _build_top(self, token: Token) -> list[LogprobTriple] | None:
        max_top = self._options.logprobs or 0
        return (
            None
            if token.logprob is None
            else [self._build_triple(alternative) for alternative in token.top[:max_top]]
        )


def _build_finish_reason(
    finish: ChoiceFinished, tokens: Sequence[Token], num_tokens: int | None
) -> SglangStopReason | SglangLengthReason | SglangAbortReason:
    match finish.reason:
        case FinishReason.STOP:
            # SGLang reports the id of the end token that was sampled as what matched.
            last = tokens[-1].id if tokens and tokens[-1].special else None
            return SglangStopReason(last if finish.stop is None else finish.stop)
        case FinishReason.LENGTH | FinishReason.CONTEXT_LENGTH:
            return SglangLengthReason(num_tokens)
        case FinishReason.CONTENT_FILTER:
            return SglangAbortReason("The content was filtered.")
        case FinishReason.ABORT:
            return SglangAbortReason("The request was aborted.")
        case FinishReason.CACHE_THRESHOLD:
            return SglangAbortReason("Less of the prompt is cached than the server demands.")
