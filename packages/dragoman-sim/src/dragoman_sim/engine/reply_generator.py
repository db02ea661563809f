"""Plans the reply to a request: from the request itself, a test, a directive, a dataset
or a script, else generated.

Replies are model text in the syntax of the model's parsers, so reasoning, tool calls
and formats take the same path as those of a real model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason
from dragoman.core.message import FunctionTool, Tool
from dragoman.core.request import Conversation, GenerateRequest, Sampling
from dragoman.core.syntax import JsonPiece, LiteralText, ReasoningFormat, ToolFormat
from dragoman.core.token_engine import TokenRequest
from dragoman.engines.script import (
    CallTool,
    Fail,
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

from .keyed_random import KeyedRandom
from .lexicon import Lexicon
from .reply_tokens import NO_TOKEN, ConstrainedTokens, PlannedTokens, ReplyTokens, TokenRestrictions

_STANDARD_NORMAL = NormalDist()


class LengthDistribution(Struct, frozen=True):
    """A distribution of lengths in tokens: log-normal if `median` is not 0, else
    uniform.

    low, high: bounds of `uniform`, both inclusive; equal bounds are a fixed length.
    median, sigma: parameters of `lognormal`; sigma is the standard deviation of the
        logarithm.
    """

    low: int = 1
    high: int = 1
    median: float = 0.0
    sigma: float = 0.0

    def sample(self, rng: KeyedRandom) -> int:
        """Sample a length of at least `low`."""
        if self.median:
            # The inverse is infinite at 0 and 1.
            quantile = min(max(rng.random(), 1e-9), 1 - 1e-9)
            return max(
                self.low,
                round(self.median * math.exp(self.sigma * _STANDARD_NORMAL.inv_cdf(quantile))),
            )
        return self.low + rng.randbelow(self.high - self.low + 1)


def parse_length_distribution(text: str) -> LengthDistribution:
    """Parse `200`, `uniform:50,300` or `lognormal:MEDIAN,SIGMA`. Raises ValueError."""
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
                f"lengths are a number, uniform:LEAST,MOST or lognormal:MEDIAN,SIGMA (at most 5), "
                f"not {text[:40]!r}"
            )


ReplyMode = Literal["random", "echo"]
_PROMPT_TAIL_TOKENS = 16
"""Number of tokens at the end of a prompt in which its template may have opened or
closed reasoning.
"""


class ReplyOptions(Struct, frozen=True):
    """Options of generated replies.

    mode: `echo` repeats the last user or tool message.
    output_tokens, reasoning_tokens: lengths of the text and of the reasoning.
    tool_calls: probability of a call when tools are optional.
    reasoning: probability of reasoning when neither the template nor the client
        determines it.
    directives: whether directives in prompts are obeyed.
    """

    mode: ReplyMode = "random"
    output_tokens: LengthDistribution = LengthDistribution(median=128, sigma=0.6)
    reasoning_tokens: LengthDistribution = LengthDistribution(median=48, sigma=0.5)
    tool_calls: float = 0.5
    reasoning: float = 0.0
    directives: bool = False


# One for all replies: msgspec would build a dict for each.
_NO_WAITS: Mapping[int, float] = MappingProxyType({})


class PlannedReply(Struct, frozen=True):
    """A reply with its timing and its end.

    waits: seconds before a token, by its index.
    pace: seconds before each token.
    reason: finish reason at the end of the tokens.
    fails_at: number of tokens after which the reply fails with `error`.
    """

    tokens: ReplyTokens
    waits: Mapping[int, float] = _NO_WAITS
    pace: float = 0.0
    reason: FinishReason = FinishReason.STOP
    fails_at: int | None = None
    error: str = ""


class ReplyGenerator:
    """A generator of replies, which tracks the script entries that were used."""

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
        """replies: recorded replies by `hash_prompt` of the prompt.

        Raises: ScriptError for a script that a token engine cannot execute.
        """
        self._lexicon = lexicon
        self._options = options or ReplyOptions()
        self._reasoning_syntax = None if reasoning is None else reasoning.syntax
        self._reasoning_ids: tuple[int, int] | None = None
        """Ids of the reasoning delimiters, if each is one token; None means to search
        for them in the prompt's text.
        """
        special_tokens = lexicon.tokenizer.special_tokens
        if (
            reasoning is not None
            and {reasoning.syntax.begin, reasoning.syntax.end} <= special_tokens.keys()
        ):
            self._reasoning_ids = (
                special_tokens[reasoning.syntax.begin],
                special_tokens[reasoning.syntax.end],
            )
        self._tools = tools
        for entry in script.entries if script else ():
            check_entry(entry)
        self._script_state = ScriptState(script) if script else None
        self._replies = replies or {}
        self._queued_replies: list[ScriptEntry] = []
        self._has_entries = bool(self._options.directives or self._replies or self._script_state)
        text_tokens = frozenset(lexicon.text)

        # Cached because nearly all requests have one of few restrictions, such as no
        # opener of a tool call.
        @lru_cache(maxsize=64)
        def allows_text(
            logit_bias: tuple[tuple[int, float], ...],
            allowed_token_ids: tuple[int, ...] | None,
            bad_words: tuple[tuple[int, ...], ...],
        ) -> bool:
            sampling = Sampling(
                logit_bias=logit_bias, allowed_token_ids=allowed_token_ids, bad_words=bad_words
            )
            return TokenRestrictions(sampling).allow_all(text_tokens)

        self._allows_text = allows_text
        self._last_lookup: tuple[GenerateRequest, ScriptEntry | None] | None = None

    def enqueue_reply(self, entry: ScriptEntry) -> None:
        """Enqueue the reply to the next request, ahead of all other sources."""
        self._queued_replies.append(entry)

    def plan_reply(self, request: TokenRequest, rng: KeyedRandom) -> PlannedReply:
        """Plan the reply. Raises the error that the entry specifies."""
        origin = request.origin
        if origin is not None:
            # The choices of a request share one entry, whose use is counted once.
            if self._last_lookup is None or self._last_lookup[0] is not origin:
                entry = None
                if self._has_entries or self._queued_replies or request.extras.reply is not None:
                    entry = self._look_up_entry(request, origin)
                self._last_lookup = (origin, entry)
            entry = self._last_lookup[1]
            if entry is not None:
                return self._plan_entry(request, entry)
        if self._options.mode == "random":
            return PlannedReply(self._plan_random(request, rng))
        text = self._read_prompt_text(request)
        if origin is not None:
            text = build_subject(origin, text).text
        plan = self._lexicon.tokenizer.encode(text, special=False)
        if request.matcher is None:
            return PlannedReply(
                PlannedTokens(plan, self._lexicon.text, 0, len(plan), self._find_eos(request))
            )
        return PlannedReply(ConstrainedTokens(request, self._lexicon, rng, plan, ends_at=len(plan)))

    def _look_up_entry(self, request: TokenRequest, origin: GenerateRequest) -> ScriptEntry | None:
        # From the most specific source to the most general: the request itself, replies
        # queued by a test, directives, the dataset, the script.
        header = request.extras.reply
        if header is not None:
            return parse_reply(msgspec.json.decode(header), "x-dragoman-reply")
        if self._queued_replies:
            return self._queued_replies.pop(0)
        if not self._has_entries:
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
        fails_at = None
        error = ""
        for part in parts:
            match part:
                case Wait(seconds):
                    waits[len(plan)] = waits.get(len(plan), 0.0) + seconds
                case Fail():
                    fails_at = len(plan)
                    error = part.message
                case Say(pieces) | Refuse(pieces):
                    plan += self._lexicon.tokenizer.encode(join_pieces(pieces), special=False)
                case Think(pieces):
                    inner = self._lexicon.tokenizer.encode(join_pieces(pieces), special=False)
                    plan += self._wrap_reasoning(request, inner)
                case CallTool(name, arguments):
                    tool = next(
                        (tool for tool in find_callable_tools(request) if tool.name == name), None
                    )
                    if tool is None or self._tools is None:
                        message = (
                            f"The reply calls the tool {name!r}, which the request does not "
                            f"declare."
                        )
                        raise RequestError(message, param="tools")
                    syntax = self._tools.build_call_syntax(tool)
                    text = join_pieces(arguments)
                    call = "".join(
                        piece.text if isinstance(piece, LiteralText) else text for piece in syntax
                    )
                    plan += self._lexicon.encode(call)
        end = self._find_eos(request) if entry.finish is FinishReason.STOP else NO_TOKEN
        # No grammar is applied: the entry was validated and is emitted verbatim.
        tokens = PlannedTokens(plan, self._lexicon.text, 0, len(plan), end)
        return PlannedReply(tokens, waits, entry.pace, entry.finish, fails_at, error)

    def _plan_random(self, request: TokenRequest, rng: KeyedRandom) -> ReplyTokens:
        lexicon = self._lexicon
        options = self._options
        text = lexicon.text
        origin = request.origin
        sampling = request.sampling
        start = lexicon.starts[rng.randbelow(len(lexicon.starts))]
        # Always drawn, so that equal prompt ids and seeds give equal replies in every
        # API.
        draw = rng.random()
        enabled = self._reasoning_syntax is not None and self._is_reasoning_requested(request)
        if enabled is None:
            enabled = draw < self._options.reasoning
        plan: list[int] = []
        if enabled:
            count = options.reasoning_tokens.sample(rng)
            plan = self._wrap_reasoning(
                request, [text[(start + index) % len(text)] for index in range(count)]
            )
        call_prefix = [] if request.matcher is None else self._generate_call_prefix(request, rng)
        eos = self._find_eos(request)
        length = max(options.output_tokens.sample(rng), request.min_tokens, 1)
        # With ignore_eos no end-of-sequence token stops the reply, so it runs up to
        # max_tokens.
        ends_at = None if eos == NO_TOKEN else len(plan) + length
        # Running text never parses as a call, so it needs no grammar where tools are
        # optional.
        is_free_text = request.matcher is None or (
            not call_prefix
            and origin is not None
            and origin.constraint is None
            and isinstance(origin.prompt, Conversation)
            and origin.prompt.tool_choice.mode == "auto"
        )
        if (
            is_free_text
            and self._allows_text(
                sampling.logit_bias, sampling.allowed_token_ids, sampling.bad_words
            )
            and (not plan or TokenRestrictions(sampling).allow_all(plan))
        ):
            return PlannedTokens(plan, text, start, ends_at, eos)
        return ConstrainedTokens(request, lexicon, rng, plan + call_prefix, ends_at=ends_at)

    def _wrap_reasoning(self, request: TokenRequest, inner: list[int]) -> list[int]:
        """Wrap reasoning in the delimiters that the prompt has not set, within its
        budget.
        """
        if self._reasoning_syntax is None:
            return []
        if request.reasoning_budget is not None:
            inner = inner[: request.reasoning_budget.max_tokens]
        begins_at, ends_at = self._find_reasoning_marks(request)
        begin = [] if begins_at > ends_at else self._lexicon.encode(self._reasoning_syntax.begin)
        return (
            begin
            + inner
            + self._lexicon.encode(self._reasoning_syntax.end + self._reasoning_syntax.end_suffix)
        )

    def _find_reasoning_marks(self, request: TokenRequest) -> tuple[int, int]:
        """Find the last begin and end delimiter of reasoning near the end of the
        prompt; -1 if there is none.
        """
        syntax = self._reasoning_syntax
        assert syntax is not None
        tail = request.prompt[-_PROMPT_TAIL_TOKENS:]
        if self._reasoning_ids is None:
            text = self._lexicon.tokenizer.decode(tail)
            return text.rfind(syntax.begin), text.rfind(syntax.end)
        begin_id, end_id = self._reasoning_ids
        # Without a loop in Python: most prompts have neither delimiter.
        return (
            len(tail) - 1 - tail[::-1].index(begin_id) if begin_id in tail else -1,
            len(tail) - 1 - tail[::-1].index(end_id) if end_id in tail else -1,
        )

    def _is_reasoning_requested(self, request: TokenRequest) -> bool | None:
        """Whether the reply must reason: True if requested or opened by the template,
        None if optional.
        """
        origin = request.origin
        if origin is None or not isinstance(origin.prompt, Conversation):
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
        """Generate the first tokens of a tool call, or the whole call if its tool has
        no parameters. Empty: no call.
        """
        origin = request.origin
        if self._tools is None or origin is None:
            return []
        tools = find_callable_tools(request)
        if not tools:
            return []
        assert isinstance(origin.prompt, Conversation)
        mode = origin.prompt.tool_choice.mode
        if mode != "required" and rng.random() >= self._options.tool_calls:
            return []
        tool = tools[rng.randbelow(len(tools))]
        pieces = self._tools.build_call_syntax(tool)
        (begin, end) = self._tools.section_delimiters
        if isinstance(tool, FunctionTool) and not has_parameters(tool):
            empty = (
                p.text if isinstance(p, LiteralText) else "{}" if isinstance(p, JsonPiece) else ""
                for p in pieces
            )
            return self._lexicon.encode(begin + "".join(empty) + end)
        return (
            self._lexicon.encode(begin + pieces[0].text)
            if isinstance(pieces[0], LiteralText)
            else []
        )

    def _find_eos(self, request: TokenRequest) -> int:
        for id in self._lexicon.eos:
            if id in request.stop_token_ids:
                return id
        return NO_TOKEN


def has_parameters(tool: FunctionTool) -> bool:
    """Whether a tool declares parameters. Models call a tool without any with `{}`,
    although its schema allows more.
    """
    if tool.parameters is None:
        return False
    schema = msgspec.json.decode(tool.parameters)
    return not isinstance(schema, dict) or not {
        name
        for name, value in cast("dict[str, object]", schema).items()
        if value not in ({}, [], False)
    } <= {"type", "title", "description", "additionalProperties", "$schema"}


def find_callable_tools(request: TokenRequest) -> tuple[Tool, ...]:
    origin = request.origin
    if (
        origin is None
        or not isinstance(origin.prompt, Conversation)
        or origin.prompt.tool_choice.mode == "none"
    ):
        return ()
    names = origin.prompt.tool_choice.names
    return tuple(tool for tool in origin.prompt.tools if names is None or tool.name in names)


def hash_prompt(text: str) -> str:
    """Hash a prompt to look up a recorded reply. text: of the last user or tool
    message, or of a plain prompt.
    """
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
    """Validate an entry. Raises ScriptError for usage overrides and chunks other than
    tokens.

    Only engines that produce events themselves support these.
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
        return (
            (self.prompt_sha256 or "").lower() if self.prompt is None else hash_prompt(self.prompt)
        )


def read_dataset(lines: Iterable[str | bytes], source: str) -> dict[str, ScriptEntry]:
    """Read recorded replies, by `hash_prompt`. The last one for a prompt wins. Raises
    ScriptError with the line number.

        {"prompt": "What is the capital of Japan?", "reply": "Tokyo."}
        {"prompt_sha256": "9f86d0...",
         "reply": [{"reasoning": "Easy."}, {"text": "Tokyo."}]}

    prompt: the text of the last user or tool message, or a plain prompt.
    prompt_sha256: its hash instead, in hexadecimal.
    reply: as in a script.
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
