"""The events of one response, built from its script entry: choices within the request's
limits, delays, failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest

from msgspec import Struct

from ...core.events import (
    ChoiceFinished,
    Delta,
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
from ...core.message import CustomTool
from ...core.request import Conversation, GenerateRequest
from ...core.tokenizer import Tokenizer
from ..script.script import (
    CallTool,
    Chunks,
    Drop,
    Fail,
    Interruption,
    Part,
    Pieces,
    Refuse,
    Say,
    ScriptEntry,
    Think,
    Wait,
    join_pieces,
)
from ..script.validate_reply import filter_reasoning, validate_reply
from .prompt_transcript import TokenizedPrompt
from .tokenized_text import build_prompt_token, find_boundaries, tokenize_text

Step = Delta | ChoiceFinished | Wait | Fail


class ChoiceLimits(Struct, frozen=True):
    """Limits of every choice.

    max_tokens, max_reasoning: tokens; None is no limit.
    logprobs: number of requested alternatives; None means no logprobs.
    custom_tools: names of custom tools.

    Stop strings are not handled here: the pipeline detects them, as for token engines.
    """

    max_tokens: int | None = None
    max_reasoning: int | None = None
    logprobs: int | None = None
    custom_tools: frozenset[str] = frozenset()


class ChoiceEvents:
    """The events of one choice. `generate_steps` is called once.

    completion_tokens, reasoning_tokens: numbers of tokens generated so far; the former
        includes the latter.
    """

    def __init__(
        self,
        choice: int,
        limits: ChoiceLimits,
        tokenizer: Tokenizer,
        chunks: Chunks,
        new_id: Callable[[], str],
    ) -> None:
        self._choice = choice
        self._limits = limits
        self._tokenizer = tokenizer
        self._chunks: Chunks = chunks
        self._new_id = new_id
        self._end: FinishReason | None = None
        self._pending_tokens: tuple[Token, ...] = ()
        """Tokens without text yet, such as half a character at the limit."""
        self.completion_tokens = self.reasoning_tokens = 0

    def generate_steps(self, parts: tuple[Part, ...], finish: FinishReason) -> Iterator[Step]:
        for part in parts:
            match part:
                case Say(pieces):
                    yield from self._generate_text(pieces, partial(TextDelta, self._choice))
                case Think(pieces):
                    before = self.completion_tokens
                    max_reasoning = self._limits.max_reasoning
                    max_tokens = (
                        None if max_reasoning is None else max_reasoning - self.reasoning_tokens
                    )
                    yield from self._generate_text(
                        pieces, partial(ReasoningDelta, self._choice), max_tokens=max_tokens
                    )
                    self.reasoning_tokens += self.completion_tokens - before
                case Refuse(pieces):
                    yield from self._generate_text(pieces, partial(RefusalDelta, self._choice))
                case CallTool():
                    yield from self._generate_call(part)
                case Wait():
                    yield part
                case Fail():
                    yield part
                    return
            if self._end is not None:
                break
        yield ChoiceFinished(self._choice, self._end or finish, tokens=self._pending_tokens)

    def _generate_call(self, call: CallTool) -> Iterator[Step]:
        name = tokenize_text(call.name, self._tokenizer, self._limits.logprobs).tokens
        allowed = self._limit_tokens(len(name))
        self.completion_tokens += allowed
        tokens = (*self._pending_tokens, *name[:allowed])
        self._pending_tokens = ()
        # A call whose name is cut off has not begun: its tokens count, but there is no
        # event for it.
        if allowed < len(name):
            self._pending_tokens = tokens
            self._end = FinishReason.LENGTH
            return
        custom = call.name in self._limits.custom_tools
        yield ToolCallStart(self._choice, call.id or self._new_id(), call.name, tokens, custom)
        yield from self._generate_text(call.arguments, partial(ToolCallDelta, self._choice))

    def _limit_tokens(self, requested: int) -> int:
        if self._limits.max_tokens is None:
            return requested
        return min(requested, self._limits.max_tokens - self.completion_tokens)

    def _generate_text(
        self,
        pieces: Pieces,
        build_event: Callable[[str, tuple[Token, ...]], Delta],
        max_tokens: int | None = None,
    ) -> Iterator[Step]:
        """Generate a text. max_tokens: limit of this part, after which the next one
        begins; None is no limit.
        """
        tokenized = tokenize_text(join_pieces(pieces), self._tokenizer, self._limits.logprobs)
        requested = (
            len(tokenized.tokens) if max_tokens is None else min(len(tokenized.tokens), max_tokens)
        )
        count = self._limit_tokens(requested)
        if count < requested:
            self._end = FinishReason.LENGTH
        self.completion_tokens += count
        emitted = 0
        for cut in tokenized.split(find_boundaries(tokenized, pieces, self._chunks), count=count):
            emitted += len(cut.tokens)
            tokens = (*self._pending_tokens, *cut.tokens)
            self._pending_tokens = ()
            yield build_event(cut.text, tokens)
        # Tokens without text of their own (the last bytes of a cut-off character)
        # belong to the next event.
        self._pending_tokens += tokenized.tokens[emitted:count]


def interleave(choices: list[Iterator[Step]], pace: float) -> Iterator[Step]:
    """Interleave choices, one step of each in turn; the first error ends all. Delays of
    the choices overlap.

    pace: seconds before each round with output.
    """
    for turn in zip_longest(*choices):
        steps = [step for step in turn if step is not None and not isinstance(step, Wait)]
        pause = max((step.seconds for step in turn if isinstance(step, Wait)), default=0.0)
        if any(not isinstance(step, ChoiceFinished | Fail) for step in steps):
            pause += pace
        if pause:
            yield Wait(pause)
        for step in steps:
            yield step
            if isinstance(step, Fail):
                return


def interrupt(steps: Iterator[Step | Drop], interruption: Interruption) -> Iterator[Step | Drop]:
    """Interrupt a reply after so many tokens; at the latest before its first choice ends."""
    tokens = 0
    is_pending = True
    for step in steps:
        if is_pending and (tokens >= interruption.tokens or isinstance(step, ChoiceFinished)):
            is_pending = False
            if interruption.seconds:
                yield Wait(interruption.seconds)
            if interruption.end is not None:
                yield interruption.end
                return
        if not isinstance(step, Wait | Fail | Drop):
            tokens += len(step.tokens)
        yield step


def generate_events(
    request: GenerateRequest,
    entry: ScriptEntry,
    prompt: TokenizedPrompt,
    *,
    tokenizer: Tokenizer,
    new_id: Callable[[], str],
    max_model_len: int | None,
) -> Iterator[Event | Wait | Fail | Drop]:
    """Generate the events. Raises Unsupported first, if the entry violates the request.
    A Fail or a Drop is the last step.
    """
    replies = [
        filter_reasoning(entry.find_reply(choice), request) for choice in range(request.choices)
    ]
    for reply in replies:
        validate_reply(reply, request)
    if entry.delay:
        yield Wait(entry.delay)
    # Before Started, so that the request fails with the entry's status instead of in
    # its stream.
    failure = next((reply[0] for reply in replies if reply and isinstance(reply[0], Fail)), None)
    if failure is not None:
        yield failure
        return
    usage = _build_usage(entry, len(prompt.ids), [])
    yield Started(usage.prompt, usage.cached, request.choices, written_tokens=usage.written)
    if request.return_prompt:
        yield PromptTokens(
            0, prompt.text, tuple(build_prompt_token(id, tokenizer) for id in prompt.ids)
        )
    context_left = None if max_model_len is None else max_model_len - len(prompt.ids)
    max_tokens = [limit for limit in (request.limits.max_tokens, context_left) if limit is not None]
    conversation = request.prompt if isinstance(request.prompt, Conversation) else Conversation(())
    limits = ChoiceLimits(
        max_tokens=min(max_tokens, default=None),
        max_reasoning=conversation.reasoning.budget,
        logprobs=request.logprobs,
        custom_tools=frozenset(
            tool.name for tool in conversation.tools if isinstance(tool, CustomTool)
        ),
    )
    choices = [
        ChoiceEvents(choice, limits, tokenizer, entry.chunks, new_id)
        for choice in range(request.choices)
    ]
    steps = [
        events.generate_steps(reply, entry.finish)
        for events, reply in zip(choices, replies, strict=True)
    ]
    pieces: Iterator[Step | Drop] = interleave(steps, entry.pace)
    if entry.interruption is not None:
        pieces = interrupt(pieces, entry.interruption)
    for step in pieces:
        yield step
        if isinstance(step, Fail | Drop):
            return
    yield Finished(_build_usage(entry, len(prompt.ids), choices))


def _build_usage(entry: ScriptEntry, prompt: int, choices: list[ChoiceEvents]) -> Usage:
    """Build the usage: real counts, except those that the script overrides. There is no
    cache: cached and written tokens are 0, not unknown.
    """
    counts = entry.usage
    completion = sum(choice.completion_tokens for choice in choices)
    reasoning = sum(choice.reasoning_tokens for choice in choices)
    return Usage(
        prompt if counts.prompt is None else counts.prompt,
        completion if counts.completion is None else counts.completion,
        0 if counts.cached is None else counts.cached,
        reasoning if counts.reasoning is None else counts.reasoning,
        written=0,
    )
