"""What is said to a request: told by a script, a directive or a data set, else made up. Pure; it knows no times.

The text is model text, in the syntax that the model's parsers read: reasoning, calls and formats take the way of a
real model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

from ...core.engine import TokenRequest
from ...core.errors import RequestError
from ...core.events import FinishReason
from ...core.message import Tool
from ...core.request import Conversation, GenerateRequest
from ...core.syntax import ReasoningFormat, ToolFormat, Verbatim
from ..script import (
    Call,
    Cast,
    Entry,
    Fail,
    Part,
    Refuse,
    Say,
    Script,
    ScriptError,
    Think,
    Wait,
    check,
    directed,
    error_of,
    joined,
    read_entry,
    spoken,
    subject_of,
    wanted,
)
from .draws import Draws
from .lengths import Lengths
from .lexicon import Lexicon
from .speech import NOTHING, Improvisation, Recital, Restrictions, Speech

Mode = Literal["random", "echo"]
_TAIL = 16
"""Tokens at the end of a prompt in which its template may have opened or closed a thought."""


class Manner(Struct, frozen=True):
    """How it speaks where nothing is told. mode: `echo` says what the last message said.

    tool_calls: how probable a call is where tools may be called and need not. reasoning: how probable a thought is
    where the template neither opens nor closes one and the client says nothing about it.
    """

    mode: Mode = "random"
    output_tokens: Lengths = Lengths(median=128, sigma=0.6)
    reasoning_tokens: Lengths = Lengths(median=48, sigma=0.5)
    tool_calls: float = 0.5
    reasoning: float = 0.0
    directives: bool = False


class Composition(Struct, frozen=True):
    """speech: its tokens. waits: seconds before the token of that number. pace: seconds before each.

    reason: how it ends when the speech does. error: how it fails instead, after so many tokens.
    """

    speech: Speech
    waits: Mapping[int, float] = {}
    pace: float = 0.0
    reason: FinishReason = FinishReason.STOP
    fails_at: int | None = None
    error: str = ""


class Composer:
    """The state of what was told and what of it has been used."""

    def __init__(
        self,
        lexicon: Lexicon,
        manner: Manner | None = None,
        *,
        reasoning: ReasoningFormat | None = None,
        tools: ToolFormat | None = None,
        script: Script | None = None,
        replies: Mapping[str, Entry] | None = None,
    ) -> None:
        """replies: by the SHA-256 of a prompt's text, in hexadecimal (see `prompt_key`). Raises ScriptError for a
        script that asks for what an engine of tokens cannot do."""
        self._lexicon, self._manner = lexicon, manner or Manner()
        self._thought = None if reasoning is None else reasoning.thought
        self._tools = tools
        for entry in script.entries if script else ():
            check_entry(entry)
        self._cast = Cast(script) if script else None
        self._replies = replies or {}
        self._told: list[Entry] = []
        self._words = frozenset(lexicon.text)
        self._recent: tuple[GenerateRequest, Entry | None] | None = None

    def tell(self, entry: Entry) -> None:
        """What the next request is answered, before anything else that is told."""
        self._told.append(entry)

    def compose(self, request: TokenRequest, draws: Draws) -> Composition:
        """Raises whatever error the reply is told to be."""
        entry = self._entry(request)
        if entry is not None:
            return self._recite(request, entry)
        if self._manner.mode == "echo":
            return self._echo(request, draws)
        return Composition(self._make_up(request, draws))

    def _entry(self, request: TokenRequest) -> Entry | None:
        """The choices of a request share one entry, which is used up once."""
        asked = request.asked
        if asked is None:
            return None
        if self._recent is None or self._recent[0] is not asked:
            self._recent = (asked, self._find(request, asked))
        return self._recent[1]

    def _find(self, request: TokenRequest, asked: GenerateRequest) -> Entry | None:
        said = dict(request.extras).get("reply")
        if said is not None:
            return entry_of(msgspec.json.decode(said), "x-dragoman-reply")
        if self._told:
            return self._told.pop(0)
        text = self._prompt_text(request)
        if self._manner.directives:
            entry = directed(asked.prompt if isinstance(asked.prompt, Conversation) else spoken(text))
            if entry is not None:
                return entry
        subject = subject_of(asked, text)
        known = self._replies.get(prompt_key(subject.text))
        if known is not None or self._cast is None:
            return known
        return self._cast.next(subject)

    def _prompt_text(self, request: TokenRequest) -> str:
        asked = request.asked
        if asked is None or isinstance(asked.prompt, tuple):
            return self._lexicon.tokenizer.decode(request.prompt)
        return asked.prompt if isinstance(asked.prompt, str) else ""

    def _recite(self, request: TokenRequest, entry: Entry) -> Composition:
        parts = entry.for_choice(request.choice)
        if request.asked is not None:
            parts = wanted(parts, request.asked)
            check(parts, request.asked)
        if parts and isinstance(parts[0], Fail):
            raise error_of(parts[0])
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
                    plan += self._spelled(part, request)
        end = self._eos(request) if entry.finish is FinishReason.STOP else NOTHING
        # No grammar is asked: what was told has been checked, and is said to the letter.
        speech = Recital(plan, self._lexicon.text, 0, len(plan), end)
        return Composition(speech, waits, entry.pace, entry.finish, fails_at, error)

    def _spelled(self, part: Part, request: TokenRequest) -> list[int]:
        match part:
            case Say(pieces) | Refuse(pieces):
                return self._lexicon.tokenizer.encode(joined(pieces), special=False)
            case Think(pieces):
                inner = self._lexicon.tokenizer.encode(joined(pieces), special=False)
                return self._thinking(request, inner)
            case Call(name, arguments):
                return self._lexicon.encode(self._call_text(request, name, joined(arguments)))
            case Wait() | Fail():
                return []

    def _call_text(self, request: TokenRequest, name: str, arguments: str) -> str:
        tool = next((tool for tool in callable_tools(request) if tool.name == name), None)
        if tool is None or self._tools is None:
            raise RequestError(f"The reply calls the tool {name!r}, which the request does not declare.", param="tools")
        pieces = self._tools.call(tool)
        return "".join(piece.text if isinstance(piece, Verbatim) else arguments for piece in pieces)

    def _echo(self, request: TokenRequest, draws: Draws) -> Composition:
        asked = request.asked
        text = self._prompt_text(request) if asked is None else subject_of(asked, self._prompt_text(request)).text
        plan = self._lexicon.tokenizer.encode(text, special=False)
        if request.matcher is None:
            return Composition(Recital(plan, self._lexicon.text, 0, len(plan), self._eos(request)))
        return Composition(Improvisation(request, self._lexicon, draws, plan, ends_at=len(plan)))

    def _make_up(self, request: TokenRequest, draws: Draws) -> Speech:
        lexicon, text = self._lexicon, self._lexicon.text
        start = lexicon.starts[draws.below(len(lexicon.starts))]
        plan = self._thoughts(request, draws, start)
        calling = self._beginning_of_call(request, draws)
        stops = not request.stop_token_ids.isdisjoint(lexicon.eos)
        wanted = max(self._manner.output_tokens.draw(draws), request.min_tokens, 1)
        ends_at = len(plan) + wanted if stops else None
        free = request.matcher is None or (not calling and self._leaves_text_free(request))
        if free and Restrictions(request).spare(self._words | frozenset(plan)):
            return Recital(plan, text, start, ends_at, self._eos(request))
        return Improvisation(request, lexicon, draws, plan + calling, ends_at=ends_at)

    def _leaves_text_free(self, request: TokenRequest) -> bool:
        """Tools that may be called and need not: running text is never one of their calls."""
        asked = request.asked
        if asked is None or asked.constraint is not None or not isinstance(asked.prompt, Conversation):
            return False
        return asked.prompt.tool_choice.mode == "auto"

    def _thoughts(self, request: TokenRequest, draws: Draws, start: int) -> list[int]:
        # Drawn whether it counts or not: the same prompt ids and seed get the same answer in every dialect.
        draw = draws.unit()
        wish = self._may_think(request)
        if wish is None:
            wish = draw < self._manner.reasoning
        if not wish:
            return []
        count = self._manner.reasoning_tokens.draw(draws)
        text = self._lexicon.text
        return self._thinking(request, [text[(start + place) % len(text)] for place in range(count)])

    def _thinking(self, request: TokenRequest, inner: list[int]) -> list[int]:
        """A thought with its marks, as far as the prompt has not set them, within its budget."""
        if self._thought is None:
            return []
        if request.thought is not None:
            inner = inner[: request.thought.tokens]
        begin = [] if self._opened(request) else self._lexicon.encode(self._thought.begin)
        return begin + inner + self._lexicon.encode(self._thought.end + self._thought.after)

    def _opened(self, request: TokenRequest) -> bool:
        if self._thought is None:
            return False
        tail = self._lexicon.tokenizer.decode(request.prompt[-_TAIL:])
        return tail.rfind(self._thought.begin) > tail.rfind(self._thought.end)

    def _may_think(self, request: TokenRequest) -> bool | None:
        """True: it has to, since it was asked for or begun. None: as it likes."""
        asked = request.asked
        if self._thought is None or asked is None or not isinstance(asked.prompt, Conversation):
            return False
        if self._opened(request):
            return True
        tail = self._lexicon.tokenizer.decode(request.prompt[-_TAIL:])
        if self._thought.begin in tail:
            return False  # begun and ended by the template
        wanted = asked.prompt.reasoning
        if wanted.effort is not None and wanted.enabled is None:
            return wanted.effort != "none"
        return wanted.enabled

    def _beginning_of_call(self, request: TokenRequest, draws: Draws) -> list[int]:
        """The tokens that begin a call of one of the tools; none where no call is made."""
        tools, asked = callable_tools(request), request.asked
        if not tools or self._tools is None or request.matcher is None or asked is None:
            return []
        assert isinstance(asked.prompt, Conversation)
        mode = asked.prompt.tool_choice.mode
        if mode != "required" and draws.unit() >= self._manner.tool_calls:
            return []
        first = self._tools.call(tools[draws.below(len(tools))])[0]
        return self._lexicon.encode(first.text) if isinstance(first, Verbatim) else []

    def _eos(self, request: TokenRequest) -> int:
        return next((id for id in self._lexicon.eos if id in request.stop_token_ids), NOTHING)


def callable_tools(request: TokenRequest) -> tuple[Tool, ...]:
    asked = request.asked
    if asked is None or not isinstance(asked.prompt, Conversation) or asked.prompt.tool_choice.mode == "none":
        return ()
    names = asked.prompt.tool_choice.names
    return tuple(tool for tool in asked.prompt.tools if names is None or tool.name in names)


def prompt_key(text: str) -> str:
    """What a recorded reply is found by. text: of the last user or tool message, or of a plain prompt."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def entry_of(value: object, where: str) -> Entry:
    """A reply that came in a message. Raises RequestError."""
    try:
        entry = read_entry(value, where)
        check_entry(entry)
    except ScriptError as error:
        raise RequestError(str(error), code="invalid_reply") from None
    return entry


def check_entry(entry: Entry) -> None:
    """Raises ScriptError for what only an engine of events can do: false counts, text cut otherwise than in tokens."""
    if any(count is not None for count in msgspec.structs.astuple(entry.usage)):
        raise ScriptError("`usage`: the simulator counts its own tokens")
    if entry.chunks != "tokens":
        raise ScriptError("`chunks`: the simulator streams tokens")
