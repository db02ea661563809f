"""The finished answer, and the builder that folds events into it."""

from __future__ import annotations

from msgspec import Struct

from .events import (
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
    Timings,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    WeightSpan,
)
from .message import Reasoning, Refusal, Text, ToolCall
from .server_tools import ToolList, ToolOutcome

ReplyPart = Text | Reasoning | Refusal | ToolCall


class Choice(Struct, frozen=True):
    """One choice of an answer.

    Attributes:
        parts: text, reasoning, refusals and tool calls in the order of generation.
        reason: why it ended.
        stop: the matched stop, as in `events.ChoiceFinished`.
        trailing_tokens: tokens that released no text, such as end-of-sequence.
        kv_transfer_params: as in `events.ChoiceFinished`.
        weights: as in `events.ChoiceFinished`.
    """

    parts: tuple[ReplyPart, ...]
    reason: FinishReason
    stop: str | int | None = None
    trailing_tokens: tuple[Token, ...] = ()
    kv_transfer_params: str | None = None
    weights: tuple[WeightSpan, ...] | None = None

    @property
    def has_tool_calls(self) -> bool:
        """Whether any part is a tool call."""
        return ToolCall in map(type, self.parts)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens of this choice in sampling order."""
        return (*(token for part in self.parts for token in part.tokens), *self.trailing_tokens)

    def split_parts(self) -> tuple[str, str, str, tuple[ToolCall, ...]]:
        """Return the text, the reasoning, the refusal and the calls, each as its own
        method returns it.
        """
        if len(self.parts) == 1 and type(self.parts[0]) is Text:  # Nearly every answer.
            return self.parts[0].text, "", "", ()
        return self.join_text(), self.join_reasoning(), self.join_refusal(), self.list_calls()

    def join_text(self) -> str:
        """Return the text of all text parts."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def join_reasoning(self) -> str:
        """Return the text of all reasoning parts."""
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    def join_refusal(self) -> str:
        """Return the text of all refusals."""
        return "".join(part.text for part in self.parts if isinstance(part, Refusal))

    def list_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class Reply(Struct, frozen=True):
    """A finished answer.

    Attributes:
        choices: the choices of all prompts, by index.
        usage: token counts of all choices.
        prompts: the PromptTokens of each prompt; None if not requested.
        applied_edits: the context edits that `Started` reported.
        timings: as in `events.Finished`.
        tool_lists: as in `events.Started`.
    """

    choices: tuple[Choice, ...]
    usage: Usage
    prompts: tuple[PromptTokens | None, ...] = (None,)
    applied_edits: tuple[AppliedEdit, ...] = ()
    timings: Timings | None = None
    tool_lists: tuple[ToolList, ...] = ()

    @property
    def kv_transfer_params(self) -> str | None:
        """The parameters of the first choice that has any: a response has only one
        field for them.
        """
        for choice in self.choices:
            if choice.kv_transfer_params is not None:
                return choice.kv_transfer_params
        return None


class _OpenPart:
    """The part being built, with its pieces not yet joined."""

    __slots__ = ("custom", "id", "kind", "name", "outcome", "pieces", "seal", "tokens")

    def __init__(
        self, kind: type[ReplyPart], id: str = "", name: str = "", custom: bool = False
    ) -> None:
        self.kind = kind
        self.id = id
        self.name = name
        self.custom = custom
        self.pieces: list[str] = []
        self.tokens: list[Token] = []
        self.seal = ""
        self.outcome: ToolOutcome | None = None

    def build(self) -> ReplyPart:
        text = "".join(self.pieces)
        tokens = tuple(self.tokens)
        if self.kind is Text:
            return Text(text, tokens)
        if self.kind is ToolCall:
            return ToolCall(self.id, self.name, text, tokens, self.custom, self.outcome)
        if self.kind is Reasoning:
            return Reasoning(text, tokens, self.seal)
        return Refusal(text, tokens)


class ReplyBuilder:
    """Folds events into a Reply. Streaming and non-streaming responses share it.

    Attributes:
        warnings: those of the engine, from `Started` and `Finished`.
    """

    __slots__ = (
        "_applied_edits",
        "_finishes",
        "_parts",
        "_prompts",
        "_timings",
        "_tool_lists",
        "_usage",
        "warnings",
    )

    def __init__(self) -> None:
        self._parts: list[list[_OpenPart]] = []
        self._finishes: list[ChoiceFinished | None] = []
        self._prompts: list[PromptTokens | None] = []
        self._usage = Usage()
        self._applied_edits: tuple[AppliedEdit, ...] = ()
        self._timings: Timings | None = None
        self._tool_lists: tuple[ToolList, ...] = ()
        self.warnings: tuple[str, ...] = ()

    def feed(self, event: Event) -> None:
        """Add one event. The events must follow the grammar of `event_grammar`."""
        match event:
            case TextDelta(choice, text, tokens):
                self._append(choice, Text, text, tokens)
            case ReasoningDelta(choice, text, tokens, seal):
                self._append(choice, Reasoning, text, tokens)
                self._parts[choice][-1].seal = seal
            case ToolCallDelta(choice, arguments, tokens):
                self._append(choice, ToolCall, arguments, tokens)
                self._parts[choice][-1].outcome = event.outcome
            case RefusalDelta(choice, text, tokens):
                self._append(choice, Refusal, text, tokens)
            case ToolCallStart(choice, id, name, tokens, custom):
                part = _OpenPart(ToolCall, id, name, custom)
                part.tokens.extend(tokens)
                self._parts[choice].append(part)
            case ChoiceFinished():
                self._finishes[event.choice] = event
            case Finished(usage, timings):
                self._usage = usage
                self._timings = timings
                self.warnings += event.warnings
            case PromptTokens():
                self._prompts[event.prompt] = event
            case Started(prompt_tokens, cached, choices, prompts, applied_edits, written):
                self._parts = [[] for _ in range(choices)]
                self._finishes = [None] * choices
                self._prompts = [None] * prompts
                # `build` may be called before Finished.
                self._usage = Usage(prompt_tokens, None, cached, written=written)
                self._applied_edits = applied_edits
                self._tool_lists = event.tool_lists
                self.warnings = event.warnings

    def feed_all(self, batch: list[Event]) -> None:
        """Add a batch of events."""
        for event in batch:
            # The events of nearly all answers.
            if type(event) is TextDelta:
                self._append(event.choice, Text, event.text, event.tokens)
            elif type(event) is ChoiceFinished:
                self._finishes[event.choice] = event
            else:
                self.feed(event)

    def _append(
        self, choice: int, kind: type[ReplyPart], text: str, tokens: tuple[Token, ...]
    ) -> None:
        parts = self._parts[choice]
        part = parts[-1] if parts else None
        # A seal covers only the text before it, so it ends its part.
        if part is None or part.kind is not kind or part.seal:
            part = _OpenPart(kind)
            parts.append(part)
        part.pieces.append(text)
        part.tokens += tokens

    def build(self) -> Reply:
        """Build the answer so far. An unfinished choice has the reason ABORT."""
        choices: list[Choice] = []
        for open_parts, end in zip(self._parts, self._finishes, strict=True):
            parts = tuple([part.build() for part in open_parts])
            choices.append(
                Choice(parts, FinishReason.ABORT)
                if end is None
                else Choice(
                    parts, end.reason, end.stop, end.tokens, end.kv_transfer_params, end.weights
                )
            )
        return Reply(
            tuple(choices),
            self._usage,
            tuple(self._prompts),
            self._applied_edits,
            self._timings,
            self._tool_lists,
        )
