"""An engine that replies from a script, from directives in the prompt, or both.

For demos, bug reports and tests: it records its requests. Token ids and counts are
real, but there is no model; a prompt is counted as a plain transcript, since there is
no chat template.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from itertools import accumulate, count, pairwise, zip_longest

from msgspec import Struct

from ...core.engine import Capabilities, Feature, Health, Tokenizer, check_ids
from ...core.errors import ContextTooLong, EngineError
from ...core.events import (
    Alternative,
    ChoiceFinished,
    Delta,
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
    Usage,
)
from ...core.message import CustomTool, Message, Reasoning, Refusal, Text, ToolCall, ToolResult
from ...core.request import Conversation, GenerateRequest
from ..script.script import (
    CallTool,
    Chunks,
    Fail,
    Part,
    Pieces,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    ScriptState,
    Think,
    Wait,
    build_default_reply,
    build_error,
    build_subject,
    join_pieces,
    parse_directives,
    to_conversation,
)
from ..script.validate_reply import filter_reasoning, validate_reply

# The events of one response, built from its script entry: choices within the request's
# limits, delays, failures.


class TokenizedPrompt(Struct, frozen=True):
    text: str
    ids: tuple[int, ...]


def tokenize_prompt(
    request: GenerateRequest, text: str, tokenizer: Tokenizer, limit: int | None
) -> TokenizedPrompt:
    """Tokenize a prompt.

    text: as `render_prompt` returned it.
    limit: most tokens of prompt and output together; None is no limit.

    Raises: ContextTooLong without room for one output token; if the text's length alone
        shows that, before tokenizing.
    """
    min_tokens = len(text.encode()) // max(tokenizer.longest_token, 1)
    if limit is not None and min_tokens >= limit:
        raise ContextTooLong(limit=limit, prompt=min_tokens, at_least=True)
    match request.prompt:
        case tuple() as ids:
            pass
        case str():
            # A plain prompt may contain control tokens; a conversation may not.
            ids = tuple(
                tokenizer.encode(text, special=True, add_special_tokens=request.add_special_tokens)
            )
        case Conversation():
            ids = tuple(tokenizer.encode(text, special=False))
    if limit is not None and len(ids) >= limit:
        raise ContextTooLong(limit=limit, prompt=len(ids))
    return TokenizedPrompt(text, ids)


def render_prompt(request: GenerateRequest, tokenizer: Tokenizer) -> str:
    match request.prompt:
        case Conversation():
            return render_transcript(request.prompt)
        case str():
            return request.prompt
        case tuple():
            check_ids(request.prompt, tokenizer.vocab_size, "prompt")
            return tokenizer.decode(request.prompt)


def render_transcript(conversation: Conversation) -> str:
    """Render tools first, one per line; then the messages, each after its role. Media
    have no text.
    """
    lines: list[str] = []
    for tool in conversation.tools:
        definition = tool.definition if isinstance(tool, CustomTool) else tool.parameters
        lines.append(
            " ".join(text for text in ("tool:", tool.name, tool.description, definition) if text)
        )
    lines += [
        f"{message.role}: {' '.join(_extract_texts(message))}" for message in conversation.messages
    ]
    return "\n".join(lines)


def _extract_texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        match part:
            case Text(text) | Reasoning(text) | Refusal(text):
                yield text
            case ToolCall(_, name, arguments):
                yield f"{name} {arguments}"
            case ToolResult():
                yield from (inner.text for inner in part.content if isinstance(inner, Text))
            case _:
                pass


class TextCut(Struct, frozen=True):
    """A piece of text with the tokens that end in it."""

    text: str
    tokens: tuple[Token, ...]


class TokenizedText(Struct, frozen=True):
    """A text in UTF-8, its tokens, and for each token the byte at which it ends. Ends
    never decrease.
    """

    data: bytes
    tokens: tuple[Token, ...]
    ends: tuple[int, ...]

    def count_whole_bytes(self, count: int) -> int:
        """Count the bytes of whole characters after `count` tokens."""
        at = len(self.data) if count >= len(self.ends) else (self.ends[count - 1] if count else 0)
        while 0 < at < len(self.data) and self.data[at] & 0xC0 == 0x80:
            at -= 1
        return at

    def split(self, boundaries: Iterator[int], *, count: int) -> Iterator[TextCut]:
        """Split the text of the first `count` tokens at `boundaries`; each piece has
        the tokens that end in it.
        """
        start = 0
        used = 0
        end = self.count_whole_bytes(count)
        for boundary in (*(at for at in boundaries if 0 < at < end), end):
            until = used
            while until < count and self.ends[until] <= boundary:
                until += 1
            if boundary > start:
                yield TextCut(self.data[start:boundary].decode(), self.tokens[used:until])
                start = boundary
                used = until


def tokenize_text(text: str, tokenizer: Tokenizer, logprobs: int | None) -> TokenizedText:
    """Tokenize a text. Every token has probability 1: its logprob is 0, and it is its
    only alternative.

    logprobs: number of requested alternatives; None means no logprobs.
    """
    ids = tokenizer.encode(text, special=False)
    data = text.encode()
    token_bytes = [tokenizer.token_bytes(id) for id in ids]
    ends = list(accumulate(map(len, token_bytes)))
    if b"".join(token_bytes) != data:
        # The tokens of a normalizing tokenizer do not concatenate to the text, so their
        # ends are spread evenly.
        ends = [len(data) * (index + 1) // len(ids) for index in range(len(ids))]
    return TokenizedText(
        data,
        tuple(_build_token(id, raw, logprobs) for id, raw in zip(ids, token_bytes, strict=True)),
        tuple(ends),
    )


def build_prompt_token(id: int, tokenizer: Tokenizer) -> Token:
    """Build a token of a prompt, without a logprob."""
    return _build_token(id, tokenizer.token_bytes(id), None, special=tokenizer.is_special(id))


def _build_token(id: int, raw: bytes, logprobs: int | None, *, special: bool = False) -> Token:
    text = raw.decode(errors="replace")
    invalid_bytes = None if text.encode() == raw else raw
    if logprobs is None:
        return Token(id, text, raw=invalid_bytes, special=special)
    top = (Alternative(id, text, 0.0, invalid_bytes),) if logprobs else ()
    return Token(id, text, 0.0, top, invalid_bytes, rank=1)


def find_boundaries(tokenized: TokenizedText, pieces: Pieces, chunks: Chunks) -> Iterator[int]:
    """Find the ascending byte offsets between pieces; always between two characters."""
    if not isinstance(pieces, str):
        return accumulate(len(piece.encode()) for piece in pieces)
    match chunks:
        case "tokens":
            # Not within a character: a byte of the form 10xxxxxx continues one.
            return (
                end
                for end in tokenized.ends
                if end == len(tokenized.data) or tokenized.data[end] & 0xC0 != 0x80
            )
        case "characters":
            return accumulate(len(character.encode()) for character in pieces)
        case "words":
            # Each word includes the white space before it.
            starts = (
                at
                for at in range(1, len(pieces))
                if pieces[at].isspace() and not pieces[at - 1].isspace()
            )
            spans = pairwise([0, *starts, len(pieces)])
            return accumulate(len(pieces[start:end].encode()) for start, end in spans)
        case "whole":
            return iter(())


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


def generate_events(
    request: GenerateRequest,
    entry: ScriptEntry,
    prompt: TokenizedPrompt,
    *,
    tokenizer: Tokenizer,
    new_id: Callable[[], str],
    max_model_len: int | None,
) -> Iterator[Event | Wait | Fail]:
    """Generate the events. Raises Unsupported first, if the entry violates the request.
    A Fail is the last step.
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
    for step in interleave(steps, entry.pace):
        yield step
        if isinstance(step, Fail):
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


FEATURES = frozenset(
    {
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.CHOICE,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.TOKEN_IDS,
        Feature.REASONING_BUDGET,
        Feature.IMAGES,
        Feature.AUDIO,
        Feature.FILES,
    }
)
# A token of probability 1 is unaffected by temperature, truncation, penalties and seed,
# so they count as supported.
PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "max_tokens",
        "reasoning_effort",
        "enable_thinking",
        "chat_template_kwargs",
        "detail",
    }
)
MAX_LOGPROBS = 20
_LONG_TEXT_CHARACTERS = 8_192
"""Longer texts are tokenized on a thread: they take milliseconds."""
_EVENTS_PER_YIELD = 64
"""Events after which the generator yields to the event loop."""


class ScriptedEngine:
    """An engine that replies from a script.

    requests: the most recent `history_size` requests, oldest first.
    num_requests: total number of requests.
    num_closed_early: number of requests closed before their end.
    num_running: number of requests in progress.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        tokenizer: Tokenizer,
        directives: bool = False,
        max_model_len: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] | None = None,
        native: bool = True,
        history_size: int = 1000,
    ) -> None:
        """new_id: creates ids for tool calls without one; by default call_1, call_2,
            ...

        native: False means that texts are raw model output, to be parsed by the
            pipeline.
        """
        self._script_state = ScriptState(script or Script())
        self._tokenizer = tokenizer
        self._directives = directives
        self._max_model_len = max_model_len
        self._sleep = sleep
        numbers = count(1)
        self._new_id = new_id or (lambda: f"call_{next(numbers)}")
        self._capabilities = Capabilities(
            FEATURES, PARAMETERS, MAX_LOGPROBS, native, native, max_alternatives=1
        )
        self._delays: set[asyncio.Future[None]] = set()
        self._stopped = False
        self.requests: deque[GenerateRequest] = deque(maxlen=history_size)
        self.num_requests = self.num_closed_early = self.num_running = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        self._stopped = False

    async def stop(self) -> None:
        self._stopped = True
        for delay in self._delays:
            delay.cancel()

    def health(self) -> Health:
        return Health(
            not self._stopped, "stopped" if self._stopped else None, running=self.num_running
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        self.requests.append(request)
        self.num_requests += 1
        self.num_running += 1
        has_finished = False
        try:
            text = render_prompt(request, self._tokenizer)
            entry = self._find_entry(request, text)
            steps = generate_events(
                request,
                entry,
                await self._tokenize_prompt(request, text, self._max_model_len),
                tokenizer=self._tokenizer,
                new_id=self._new_id,
                max_model_len=self._max_model_len,
            )
            for number, step in enumerate(steps, 1):
                if isinstance(step, Fail):
                    raise build_error(step)
                if isinstance(step, Wait):
                    await self._delay(step.seconds)
                    continue
                # Without delays the generator never suspends, and would block all other
                # requests.
                if number % _EVENTS_PER_YIELD == 0:
                    await asyncio.sleep(0)
                self._check_running()
                has_finished = isinstance(step, Finished)
                yield step
        except (GeneratorExit, asyncio.CancelledError):
            # A consumer may stop at Finished without exhausting the generator.
            self.num_closed_early += not has_finished
            raise
        finally:
            self.num_running -= 1

    async def count_prompt_tokens(self, request: GenerateRequest) -> int:
        """Count the tokens of a prompt; no script entry is used."""
        text = render_prompt(request, self._tokenizer)
        return len((await self._tokenize_prompt(request, text, None)).ids)

    def _find_entry(self, request: GenerateRequest, text: str) -> ScriptEntry:
        if self._directives:
            conversation = (
                request.prompt
                if isinstance(request.prompt, Conversation)
                else to_conversation(text)
            )
            entry = parse_directives(conversation)
            if entry is not None or self._script_state.is_empty:
                return entry or build_default_reply(conversation)
        return self._script_state.next_entry(build_subject(request, text))

    async def _tokenize_prompt(
        self, request: GenerateRequest, text: str, limit: int | None
    ) -> TokenizedPrompt:
        """Tokenize the prompt; a long one on a thread, so that it does not block the
        event loop.
        """
        if len(text) < _LONG_TEXT_CHARACTERS:
            return tokenize_prompt(request, text, self._tokenizer, limit)
        return await asyncio.to_thread(tokenize_prompt, request, text, self._tokenizer, limit)

    def _check_running(self) -> None:
        if self._stopped:
            raise EngineError("The engine was stopped.")

    async def _delay(self, seconds: float) -> None:
        """Sleep. Raises EngineError if the engine is stopped meanwhile."""
        delay = asyncio.ensure_future(self._sleep(seconds))
        self._delays.add(delay)
        try:
            # If `stop` cancels the delay, awaiting it would raise CancelledError, as if
            # the request were cancelled.
            await asyncio.wait({delay})
        finally:
            self._delays.discard(delay)
            delay.cancel()
        self._check_running()
        delay.result()
