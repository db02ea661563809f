"""SGLang's /generate on the wire: each event of a stream is the whole answer so far, the last one the whole answer.

each choice:  so far*  finished
the stream:   the choices interleaved, [DONE] or an error
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
from ..base import Header, Profile
from ..envelope import COMMENT, DONE
from ..errors import openai_error
from ..text import line_safe, logprob, printable

Scored = tuple[float | None, int, str | None]
"""SGLang's triple: logprob, token id, and the text where it was asked for."""


class SglangView(Struct, frozen=True, kw_only=True):
    """What the client asked to see.

    several: the answer is an array. logprobs: most alternatives a token; None for no logprobs. texts: of tokens, too.
    start: the first token of the prompt that is scored; None scores none.
    """

    several: bool = False
    logprobs: int | None = None
    texts: bool = False
    start: int | None = None
    prompt_ids: bool = False
    profile: Profile = Profile.OPENAI


DEFAULT_VIEW = SglangView()


class _Matched(Struct, frozen=True, tag_field="type", tag="stop"):
    matched: str | int | None


class _Length(Struct, frozen=True, tag_field="type", tag="length"):
    length: int


class _Aborted(Struct, frozen=True, tag_field="type", tag="abort"):
    message: str
    status_code: None = None
    err_type: None = None


class _Meta(Struct, frozen=True):
    """weight_version: null before the end, as it may still change; then that of the last token."""

    id: str
    finish_reason: _Matched | _Length | _Aborted | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    reasoning_tokens: int
    weight_version: str | None
    weight_versions: tuple[WeightSpan, ...] | UnsetType
    input_token_logprobs: list[Scored] | UnsetType
    output_token_logprobs: list[Scored] | UnsetType
    output_token_logprobs_length: int | UnsetType
    input_top_logprobs: list[list[Scored] | None] | UnsetType
    output_top_logprobs: list[list[Scored] | None] | UnsetType


class _Answer(Struct, frozen=True):
    text: str
    output_ids: list[int]
    meta_info: _Meta
    prompt_token_ids: list[int] | UnsetType
    index: int | UnsetType = UNSET


class _Said:
    """One choice so far. end: how it ended, once it has."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[Token] = []
        self.reasoning = 0
        self.end: ChoiceFinished | None = None

    @classmethod
    def of(cls, index: int, choice: Choice) -> _Said:
        said = cls()
        said.text = "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))
        said.tokens = list(choice.tokens)
        said.reasoning = sum(
            not token.markup for part in choice.parts if isinstance(part, Reasoning) for token in part.tokens
        )
        said.end = ChoiceFinished(index, choice.reason, choice.stop, weights=choice.weights)
        return said


class SglangWriter:
    """One answer, streamed or whole."""

    def __init__(self, header: Header, view: SglangView = DEFAULT_VIEW) -> None:
        self._header, self._view = header, view
        self._choices: list[_Said] = []
        self._prompts: list[PromptTokens | None] = []
        self._counts: tuple[int, int | None] = (0, None)

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        return COMMENT

    def error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % openai_error(error, self._view.profile)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started(prompt_tokens, cached_tokens, choices, prompts):
                self._choices = [_Said() for _ in range(choices)]
                self._begin(prompt_tokens, cached_tokens, [None] * prompts)
                return b""
            case PromptTokens():
                self._prompts[event.prompt] = event
                return b""
            case Finished():
                return b""
            case _:
                return self._go_on(event.choice, event)

    def full(self, reply: Reply) -> bytes:
        self._choices = [_Said.of(index, choice) for index, choice in enumerate(reply.choices)]
        self._begin(reply.usage.prompt, reply.usage.cached, list(reply.prompts))
        answers = [self._answer(index) for index in range(len(self._choices))]
        return line_safe(msgspec.json.encode(answers if self._view.several else answers[0]))

    def _begin(self, prompt_tokens: int, cached_tokens: int | None, prompts: list[PromptTokens | None]) -> None:
        self._prompts = prompts
        self._counts = (prompt_tokens, cached_tokens)

    def _go_on(self, choice: int, event: ChoiceEvent) -> bytes:
        said = self._choices[choice]
        said.tokens += event.tokens
        match event:
            case TextDelta(_, text) | RefusalDelta(_, text):
                said.text += text
            case ReasoningDelta():
                said.reasoning += sum(not token.markup for token in event.tokens)
            case ChoiceFinished():
                said.end = event
            case _:
                """A call is no part of the text, as in Completions."""
        answer = self._answer(choice)
        if self._view.several:
            answer = msgspec.structs.replace(answer, index=choice)
        return b"data: %s\n\n" % line_safe(msgspec.json.encode(answer))

    def _answer(self, index: int) -> _Answer:
        said, prompt = self._choices[index], self._prompts[index // self._each]
        ids = UNSET if prompt is None or not self._view.prompt_ids else [token.id for token in prompt.tokens]
        return _Answer(printable(said.text), [token.id for token in said.tokens], self._meta(index, said, prompt), ids)

    @property
    def _each(self) -> int:
        """Choices of a prompt."""
        return len(self._choices) // max(1, len(self._prompts))

    def _meta(self, index: int, said: _Said, prompt: PromptTokens | None) -> _Meta:
        prompt_tokens, cached = self._counts
        if len(self._prompts) > 1:
            # Of several prompts the counts are a sum, and how many of each were cached is not told.
            prompt_tokens, cached = 0 if prompt is None else len(prompt.tokens), None
        weights = None if said.end is None else said.end.weights
        most, asked = self._view.logprobs, self._scored_prompt(prompt)
        scored, ranked = most is not None, bool(most)
        return _Meta(
            id=f"{self._header.id}_{index}" if self._view.several else self._header.id,
            finish_reason=None if said.end is None else _finish(said.end, said.tokens),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(said.tokens),
            cached_tokens=cached,
            reasoning_tokens=said.reasoning,
            weight_version=weights[-1].version if weights else None,
            weight_versions=UNSET if weights is None else weights,
            input_token_logprobs=[self._scored(token) for token in asked] if scored else UNSET,
            output_token_logprobs=[self._scored(token) for token in said.tokens] if scored else UNSET,
            output_token_logprobs_length=len(said.tokens) if scored else UNSET,
            input_top_logprobs=[self._top(token) for token in asked] if ranked else UNSET,
            output_top_logprobs=[self._top(token) for token in said.tokens] if ranked else UNSET,
        )

    def _scored_prompt(self, prompt: PromptTokens | None) -> Sequence[Token]:
        start = self._view.start
        return () if prompt is None or start is None else prompt.tokens[start:]

    def _scored(self, token: Token | Alternative) -> Scored:
        """Nothing precedes a prompt's first token: it has no logprob."""
        value = None if token.logprob is None else logprob(token.logprob)
        return value, token.id, printable(token.text) if self._view.texts else None

    def _top(self, token: Token) -> list[Scored] | None:
        most = self._view.logprobs or 0
        return None if token.logprob is None else [self._scored(other) for other in token.top[:most]]


def _finish(end: ChoiceFinished, tokens: Sequence[Token]) -> _Matched | _Length | _Aborted:
    match end.reason:
        case FinishReason.STOP:
            last = tokens[-1].id if tokens and tokens[-1].special else None
            return _Matched(last if end.stop is None else end.stop)
        case FinishReason.LENGTH:
            return _Length(len(tokens))
        case FinishReason.CONTENT_FILTER:
            return _Aborted("The content was filtered.")
        case FinishReason.ABORT:
            return _Aborted("The request was aborted.")
