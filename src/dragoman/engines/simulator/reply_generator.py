"""Plans the reply to a request: from a script, a directive or a data set, else generated. Pure; independent of time.

The text is model text, in the syntax that the model's parsers read: reasoning, tool calls and formats take the same
path as a real model's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from statistics import NormalDist
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from ...core.engine import TokenRequest
from ...core.errors import RequestError
from ...core.events import FinishReason
from ...core.message import FunctionTool, Tool
from ...core.request import Conversation, GenerateRequest, Sampling
from ...core.syntax import JsonValue, LiteralText, ReasoningFormat, ToolFormat
from ..script import (
    CallTool,
    Fail,
    Part,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    ScriptError,
    ScriptState,
    Think,
    Wait,
    build_error,
    build_subject,
    filter_reasoning,
    join_pieces,
    parse_directives,
    read_entry,
    to_conversation,
    validate_reply,
)
from .hashing import KeyedRandom
from .reply_tokens import NO_TOKEN, ConstrainedTokens, Lexicon, PlannedTokens, ReplyTokens, TokenRestrictions

_STANDARD_NORMAL = NormalDist()


class LengthDistribution(Struct, frozen=True):
    """A distribution of counts of tokens. low, high: of `uniform`, both included; the same number is a fixed length.

    median, sigma: of `lognormal`; sigma is the standard deviation of the logarithm, 0 with the others.
    """

    low: int = 1
    high: int = 1
    median: float = 0.0
    sigma: float = 0.0

    def sample(self, rng: KeyedRandom) -> int:
        """At least `low`."""
        if self.median:
            # Away from 0 and 1, where the inverse is infinite.
            quantile = min(max(rng.random(), 1e-9), 1 - 1e-9)
            return max(self.low, round(self.median * math.exp(self.sigma * _STANDARD_NORMAL.inv_cdf(quantile))))
        return self.low + rng.randbelow(self.high - self.low + 1)


def parse_length_distribution(text: str) -> LengthDistribution:
    """`200`, `uniform:50,300` or `lognormal:MEDIAN,SIGMA`. Raises ValueError."""
    kind, _, numbers = text.strip().rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not all(math.isfinite(value) and 0 <= value <= 1e7 for value in values):
        values = []
    match kind, values:
        case "", [count] if count >= 0 and count == int(count):
            return LengthDistribution(int(count), int(count))
        case "uniform", [low, high] if low <= high and low == int(low) and high == int(high):
            return LengthDistribution(int(low), int(high))
        case "lognormal", [median, sigma] if median >= 1 and sigma <= 5:
            return LengthDistribution(median=median, sigma=sigma)
        case _:
            raise ValueError(
                f"lengths are a number, uniform:LEAST,MOST or lognormal:MEDIAN,SIGMA (at most 5), not {text[:40]!r}"
            )


ReplyMode = Literal["random", "echo"]
_PROMPT_TAIL_TOKENS = 16
"""Tokens at the end of a prompt in which its template may have opened or closed reasoning."""


class ReplyOptions(Struct, frozen=True):
    """Options of generated replies.

    mode: `echo` repeats the last message.
    tool_calls: probability of a call when tools are optional.
    reasoning: probability of reasoning when neither the template nor the client determines it.
    """

    mode: ReplyMode = "random"
    output_tokens: LengthDistribution = LengthDistribution(median=128, sigma=0.6)
    reasoning_tokens: LengthDistribution = LengthDistribution(median=48, sigma=0.5)
    tool_calls: float = 0.5
    reasoning: float = 0.0
    directives: bool = False


class PlannedReply(Struct, frozen=True):
    """A reply with its timing and its end.

    waits: seconds before the token of that index.
    pace: seconds before each token.
    reason: finish reason at the end of the tokens.
    fails_at: number of tokens after which the reply fails with `error`.
    """

    tokens: ReplyTokens
    waits: Mapping[int, float] = {}
    pace: float = 0.0
    reason: FinishReason = FinishReason.STOP
    fails_at: int | None = None
    error: str = ""


class ReplyGenerator:
    """Generates replies, and tracks which script entries were used."""

    def __init__(
        self,
        lexicon: Lexicon,
        options: ReplyOptions | None = None,
        *,
        reasoning: ReasoningFormat | None = None,
        tools: ToolFormat | None = None,
        script: Script | None = None,
        replies: Mapping[str, ScriptEntry] | None = None,
    ) -> None:
        """replies: by the SHA-256 of a prompt's text, in hexadecimal (see `hash_prompt`).

        Raises: ScriptError for a script that a token engine cannot execute.
        """
        self._lexicon, self._options = lexicon, options or ReplyOptions()
        self._reasoning_syntax = None if reasoning is None else reasoning.syntax
        self._reasoning_ids: tuple[int, int] | None = None
        """The ids of its markers, where each is one token; else they are found in the prompt's text."""
        special_tokens = lexicon.tokenizer.special_tokens
        if reasoning is not None and {reasoning.syntax.begin, reasoning.syntax.end} <= special_tokens.keys():
            self._reasoning_ids = special_tokens[reasoning.syntax.begin], special_tokens[reasoning.syntax.end]
        self._tools = tools
        for entry in script.entries if script else ():
            check_entry(entry)
        self._script_state = ScriptState(script) if script else None
        self._replies = replies or {}
        self._queued_replies: list[ScriptEntry] = []
        text_tokens = frozenset(lexicon.text)

        # Nearly all requests have one of few restrictions, such as no opener of a tool call.
        @lru_cache(maxsize=64)
        def allows_text(
            logit_bias: tuple[tuple[int, float], ...],
            allowed_token_ids: tuple[int, ...] | None,
            bad_words: tuple[tuple[int, ...], ...],
        ) -> bool:
            sampling = Sampling(logit_bias=logit_bias, allowed_token_ids=allowed_token_ids, bad_words=bad_words)
            return TokenRestrictions(sampling).allow_all(text_tokens)

        self._allows_text = allows_text
        self._last_lookup: tuple[GenerateRequest, ScriptEntry | None] | None = None

    def enqueue_reply(self, entry: ScriptEntry) -> None:
        """Enqueue the reply to the next request, ahead of all other sources."""
        self._queued_replies.append(entry)

    def plan_reply(self, request: TokenRequest, rng: KeyedRandom) -> PlannedReply:
        """Plan the reply. Raises the error that the entry specifies."""
        entry = self._find_entry(request)
        if entry is not None:
            return self._plan_entry(request, entry)
        if self._options.mode == "echo":
            return self._plan_echo(request, rng)
        return PlannedReply(self._plan_random(request, rng))

    def _find_entry(self, request: TokenRequest) -> ScriptEntry | None:
        """Find the entry of a request. The choices of a request share one entry, which is used up once."""
        origin = request.origin
        if origin is None:
            return None
        if self._last_lookup is None or self._last_lookup[0] is not origin:
            self._last_lookup = (origin, self._look_up_entry(request, origin))
        return self._last_lookup[1]

    def _look_up_entry(self, request: TokenRequest, origin: GenerateRequest) -> ScriptEntry | None:
        # From the most specific to the most general: the request itself, the test that queued it, directives, data,
        # script.
        header = request.extras.reply
        if header is not None:
            return parse_reply(msgspec.json.decode(header), "x-dragoman-reply")
        if self._queued_replies:
            return self._queued_replies.pop(0)
        if not (self._options.directives or self._replies or self._script_state):
            return None
        text = self._read_prompt_text(request)
        if self._options.directives:
            entry = parse_directives(
                origin.prompt if isinstance(origin.prompt, Conversation) else to_conversation(text)
            )
            if entry is not None:
                return entry
        subject = build_subject(origin, text)
        recorded = self._replies.get(hash_prompt(subject.text))
        if recorded is not None or self._script_state is None:
            return recorded
        return self._script_state.next_entry(subject)

    def _read_prompt_text(self, request: TokenRequest) -> str:
        origin = request.origin
        if origin is None or isinstance(origin.prompt, tuple):
            return self._lexicon.tokenizer.decode(request.prompt)
        return origin.prompt if isinstance(origin.prompt, str) else ""

    def _plan_entry(self, request: TokenRequest, entry: ScriptEntry) -> PlannedReply:
        parts = entry.find_reply(request.choice)
        if request.origin is not None:
            parts = filter_reasoning(parts, request.origin)
            validate_reply(parts, request.origin)
        if parts and isinstance(parts[0], Fail):
            raise build_error(parts[0])
        plan: list[int] = []
        waits: dict[int, float] = {0: entry.delay} if entry.delay else {}
        fails_at, error = None, ""
        for part in parts:
            match part:
                case Wait(seconds):
                    waits[len(plan)] = waits.get(len(plan), 0.0) + seconds
                case Fail():
                    fails_at, error = len(plan), part.message
                case _:
                    plan += self._encode_part(part, request)
        end = self._find_eos(request) if entry.finish is FinishReason.STOP else NO_TOKEN
        # No grammar is applied: the entry was validated and is emitted verbatim.
        tokens = PlannedTokens(plan, self._lexicon.text, 0, len(plan), end)
        return PlannedReply(tokens, waits, entry.pace, entry.finish, fails_at, error)

    def _encode_part(self, part: Part, request: TokenRequest) -> list[int]:
        match part:
            case Say(pieces) | Refuse(pieces):
                return self._lexicon.tokenizer.encode(join_pieces(pieces), special=False)
            case Think(pieces):
                inner = self._lexicon.tokenizer.encode(join_pieces(pieces), special=False)
                return self._wrap_reasoning(request, inner)
            case CallTool(name, arguments):
                return self._lexicon.encode(self._render_call(request, name, join_pieces(arguments)))
            case Wait() | Fail():
                return []

    def _render_call(self, request: TokenRequest, name: str, arguments: str) -> str:
        tool = next((tool for tool in find_callable_tools(request) if tool.name == name), None)
        if tool is None or self._tools is None:
            raise RequestError(f"The reply calls the tool {name!r}, which the request does not declare.", param="tools")
        pieces = self._tools.build_call_syntax(tool)
        return "".join(piece.text if isinstance(piece, LiteralText) else arguments for piece in pieces)

    def _plan_echo(self, request: TokenRequest, rng: KeyedRandom) -> PlannedReply:
        origin = request.origin
        text = (
            self._read_prompt_text(request)
            if origin is None
            else build_subject(origin, self._read_prompt_text(request)).text
        )
        plan = self._lexicon.tokenizer.encode(text, special=False)
        if request.matcher is None:
            return PlannedReply(PlannedTokens(plan, self._lexicon.text, 0, len(plan), self._find_eos(request)))
        return PlannedReply(ConstrainedTokens(request, self._lexicon, rng, plan, ends_at=len(plan)))

    def _plan_random(self, request: TokenRequest, rng: KeyedRandom) -> ReplyTokens:
        lexicon, text = self._lexicon, self._lexicon.text
        start = lexicon.starts[rng.randbelow(len(lexicon.starts))]
        plan = self._generate_reasoning(request, rng, start)
        call_prefix = self._generate_call_prefix(request, rng)
        # With ignore_eos no end-of-sequence token stops the reply, so it runs up to max_tokens.
        stops = not request.stop_token_ids.isdisjoint(lexicon.eos)
        length = max(self._options.output_tokens.sample(rng), request.min_tokens, 1)
        ends_at = len(plan) + length if stops else None
        unconstrained = request.matcher is None or (not call_prefix and self._has_free_text(request))
        if unconstrained and self._allows(request, plan):
            return PlannedTokens(plan, text, start, ends_at, self._find_eos(request))
        return ConstrainedTokens(request, lexicon, rng, plan + call_prefix, ends_at=ends_at)

    def _allows(self, request: TokenRequest, plan: list[int]) -> bool:
        """Whether the request's sampling restricts neither running text nor the plan."""
        sampling = request.sampling
        if not self._allows_text(sampling.logit_bias, sampling.allowed_token_ids, sampling.bad_words):
            return False
        return not plan or TokenRestrictions(sampling).allow_all(plan)

    def _has_free_text(self, request: TokenRequest) -> bool:
        """Whether running text is possible although tools are callable: running text never parses as a call."""
        origin = request.origin
        if origin is None or origin.constraint is not None or not isinstance(origin.prompt, Conversation):
            return False
        return origin.prompt.tool_choice.mode == "auto"

    def _generate_reasoning(self, request: TokenRequest, rng: KeyedRandom, start: int) -> list[int]:
        # Always drawn, so that equal prompt ids and seeds give equal replies in every dialect.
        draw = rng.random()
        enabled = self._is_reasoning_requested(request)
        if enabled is None:
            enabled = draw < self._options.reasoning
        if not enabled:
            return []
        count = self._options.reasoning_tokens.sample(rng)
        text = self._lexicon.text
        return self._wrap_reasoning(request, [text[(start + index) % len(text)] for index in range(count)])

    def _wrap_reasoning(self, request: TokenRequest, inner: list[int]) -> list[int]:
        """Wrap reasoning in the delimiters that the prompt has not set, within its budget."""
        if self._reasoning_syntax is None:
            return []
        if request.reasoning_budget is not None:
            inner = inner[: request.reasoning_budget.max_tokens]
        begins_at, ends_at = self._find_reasoning_marks(request)
        begin = [] if begins_at > ends_at else self._lexicon.encode(self._reasoning_syntax.begin)
        return begin + inner + self._lexicon.encode(self._reasoning_syntax.end + self._reasoning_syntax.end_suffix)

    def _find_reasoning_marks(self, request: TokenRequest) -> tuple[int, int]:
        """Where reasoning last begins and ends near the end of the prompt; -1 where it does not."""
        syntax, tail = self._reasoning_syntax, request.prompt[-_PROMPT_TAIL_TOKENS:]
        if syntax is None:
            return -1, -1
        if self._reasoning_ids is None:
            text = self._lexicon.tokenizer.decode(tail)
            return text.rfind(syntax.begin), text.rfind(syntax.end)
        begin_id, end_id = self._reasoning_ids
        begins_at = ends_at = -1
        for place, id in enumerate(tail):
            if id == begin_id:
                begins_at = place
            elif id == end_id:
                ends_at = place
        return begins_at, ends_at

    def _is_reasoning_requested(self, request: TokenRequest) -> bool | None:
        """Whether the reply must reason: True if requested or opened by the template, None if optional."""
        origin = request.origin
        if self._reasoning_syntax is None or origin is None or not isinstance(origin.prompt, Conversation):
            return False
        begins_at, ends_at = self._find_reasoning_marks(request)
        if begins_at > ends_at:
            return True
        if begins_at >= 0:
            return False  # opened and closed by the template
        reasoning = origin.prompt.reasoning
        if reasoning.effort is not None and reasoning.enabled is None:
            return reasoning.effort != "none"
        return reasoning.enabled

    def _generate_call_prefix(self, request: TokenRequest, rng: KeyedRandom) -> list[int]:
        """Generate the tokens that begin a tool call; empty for no call."""
        tools, origin = find_callable_tools(request), request.origin
        if not tools or self._tools is None or request.matcher is None or origin is None:
            return []
        assert isinstance(origin.prompt, Conversation)
        mode = origin.prompt.tool_choice.mode
        if mode != "required" and rng.random() >= self._options.tool_calls:
            return []
        tool = tools[rng.randbelow(len(tools))]
        pieces, (begin, end) = self._tools.build_call_syntax(tool), self._tools.section_delimiters
        if isinstance(tool, FunctionTool) and not has_parameters(tool):
            empty = (p.text if isinstance(p, LiteralText) else "{}" if isinstance(p, JsonValue) else "" for p in pieces)
            return self._lexicon.encode(begin + "".join(empty) + end)
        return self._lexicon.encode(begin + pieces[0].text) if isinstance(pieces[0], LiteralText) else []

    def _find_eos(self, request: TokenRequest) -> int:
        for id in self._lexicon.eos:
            if id in request.stop_token_ids:
                return id
        return NO_TOKEN


def has_parameters(tool: FunctionTool) -> bool:
    """Whether a tool declares any parameters. Models call one without them with none, although its schema allows any
    object."""
    if tool.parameters is None:
        return False
    schema = msgspec.json.decode(tool.parameters)
    return not isinstance(schema, dict) or not {
        name for name, value in cast("dict[str, object]", schema).items() if value not in ({}, [], False)
    } <= {"type", "title", "description", "additionalProperties", "$schema"}


def find_callable_tools(request: TokenRequest) -> tuple[Tool, ...]:
    origin = request.origin
    if origin is None or not isinstance(origin.prompt, Conversation) or origin.prompt.tool_choice.mode == "none":
        return ()
    names = origin.prompt.tool_choice.names
    return tuple(tool for tool in origin.prompt.tools if names is None or tool.name in names)


def hash_prompt(text: str) -> str:
    """Hash a prompt to look up a recorded reply. text: of the last user or tool message, or of a plain prompt."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_reply(value: object, where: str) -> ScriptEntry:
    """Parse a reply from a request's JSON. Raises RequestError."""
    try:
        entry = read_entry(value, where)
        check_entry(entry)
    except ScriptError as error:
        raise RequestError(str(error), code="invalid_reply") from None
    return entry


def check_entry(entry: ScriptEntry) -> None:
    """Validate an entry. Raises ScriptError for features of event engines only: usage overrides, text cut in other
    pieces than tokens.
    """
    if any(count is not None for count in msgspec.structs.astuple(entry.usage)):
        raise ScriptError("`usage`: the simulator counts its own tokens")
    if entry.chunks != "tokens":
        raise ScriptError("`chunks`: the simulator streams tokens")


class _DatasetRow(Struct, frozen=True, forbid_unknown_fields=True):
    reply: Any
    prompt: str | None = None
    prompt_sha256: str | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompt_sha256 is None):
            raise ValueError("a row has either `prompt` or `prompt_sha256`")

    @property
    def key(self) -> str:
        return (self.prompt_sha256 or "").lower() if self.prompt is None else hash_prompt(self.prompt)


def read_dataset(lines: Iterable[str | bytes], source: str) -> dict[str, ScriptEntry]:
    """Read recorded replies by `hash_prompt`; of two for one prompt the later wins. Raises ScriptError, with the line.

        {"prompt": "What is the capital of Japan?", "reply": "Tokyo."}
        {"prompt_sha256": "9f86d0...", "reply": [{"reasoning": "Easy."}, {"text": "Tokyo."}]}

    prompt: the text of the last user or tool message, or a plain prompt. reply: as in a script.
    """
    replies: dict[str, ScriptEntry] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            row = msgspec.json.decode(line, type=_DatasetRow)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ScriptError(f"{where}: {error}") from None
        entry = read_entry({"reply": row.reply, "repeat": True}, where)
        check_entry(entry)
        replies[row.key] = entry
    return replies
