"""What an answer may look like, written as one grammar for llguidance: reasoning, then free text, a constrained body
or tool calls. Pure; knows no vocabulary but the names of its added tokens.

An added token is never spelled by a text, so free text ends where one stands. Where a mark is ordinary text a
lazy terminal takes its place, which ends at the first mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ..core.request import Choices, Constraint, ContextFree, JsonObject, JsonSchema, Regex
from ..core.syntax import FreeText, JsonValue, Many, Maybe, OneOf, Piece, ThoughtSyntax, Verbatim
from . import given
from .closing import closed
from .schema import Json, Schema, parse_schema
from .work import CHEAP_VALUES, estimate

_FREE = "/(?s:.*)/"
_STYLE: dict[str, Json] = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""As json.dumps writes. A weak model would pad blanks to the limit if it could."""
_JSON_LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"|[:,] |[{}\[\]]|[^"{}\[\]:, ]+|.', re.DOTALL)
_MARK = re.compile(r"<[^<>\s=]*[>=]?|\[[^\[\]\s(=]*\]?|[^:(\n]*[:(]?")


class Thought(Struct, frozen=True):
    """Reasoning comes first. open: the prompt has already begun it; otherwise the answer may begin it, or not."""

    syntax: ThoughtSyntax
    open: bool = False


class CallForm(Struct, frozen=True):
    """How one tool is called, see `ToolFormat.call`. param: where its schema came from.

    strict: an unsupported keyword in the schema is an error rather than a warning.
    """

    pieces: tuple[Piece, ...]
    param: str = "tools"
    strict: bool = True


class Calls(Struct, frozen=True):
    """The tools that may be called.

    required: the answer is calls and nothing else, no body. parallel: there may be several, with `between` between two.
    around: what stands before the first call and behind the last. leading: see ToolFormat.
    """

    forms: tuple[CallForm, ...]
    between: str = ""
    required: bool = False
    parallel: bool = True
    around: tuple[str, str] = ("", "")
    leading: bool = False


class Grammar(Struct, frozen=True):
    """text: a grammar for llguidance. parts: each constraint alone, (param, text), to know which one is bad.

    is_cheap: it is known to compile within milliseconds. costly: what of it may not.
    """

    text: str
    parts: tuple[tuple[str, str], ...] = ()
    is_cheap: bool = False
    costly: tuple[str, ...] = ()

    @property
    def param(self) -> str | None:
        """Where there are several the first is named."""
        return self.parts[0][0] if self.parts else None


def compose(
    special_tokens: Mapping[str, int],
    *,
    body: Constraint | None = None,
    body_param: str = "response_format",
    calls: Calls | None = None,
    thought: Thought | None = None,
    heading: str = "",
) -> Grammar:
    """The grammar of one answer. heading: what stands before the answer where that is text, and no call.

    No body and no calls: free text. Calls not required, no body: free text, then perhaps calls, after which only
    further calls. Calls and a body: one or the other. Raises RequestError for what is too large, or no schema.
    """
    if calls is not None and not calls.forms:
        raise ValueError("calls of no tool")
    return _Writer(special_tokens, heading).answer(body, body_param, calls, thought)


def control_names(special_tokens: Iterable[str]) -> list[str]:
    """The added tokens that no text spells. Blanks and single characters are text that some vocabularies add."""
    return [name for name in special_tokens if len(name) > 1 and not name.isspace()]


def _literal(text: str) -> str:
    return json.dumps(text)


def _json(schema: Schema, strict: bool) -> str:
    """An inline schema. What its author says about llguidance's own options does not count."""
    tight = closed(schema)
    if tight is False:
        return "%json false"
    members = {} if tight is True else tight
    options: Json = {**_STYLE, "lenient": not strict}
    return "%json " + json.dumps({**members, "x-guidance": options})


class _Writer:
    """Collects the rules of one grammar."""

    def __init__(self, special_tokens: Mapping[str, int], heading: str) -> None:
        self._special = special_tokens
        self._heading = heading
        names = sorted(control_names(special_tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._rules: dict[str, str] = {}
        self._parts: list[tuple[str, str]] = []
        self._nested: list[dict[str, str]] = []
        self._beside_json = False
        self._values = 0
        self._costly: set[str] = set()

    def answer(self, body: Constraint | None, body_param: str, calls: Calls | None, thought: Thought | None) -> Grammar:
        if isinstance(body, ContextFree) and calls is None and thought is None:
            text = given.context_free(body, body_param)
            return Grammar(text, ((body_param, text),), costly=("a grammar",))
        start = self._after_thought(thought, self._said(body, body_param, calls, thought))
        rules = (f"{own}: {expression}" for expression, own in self._rules.items())
        text = "\n".join(["%llguidance {}", f"start: {start}", *rules])
        if self._nested:
            text = json.dumps({"grammars": [{"lark_grammar": text}, *self._nested]})
        is_cheap = not self._costly and self._values <= CHEAP_VALUES
        return Grammar(text, tuple(self._parts), is_cheap, tuple(sorted(self._costly)))

    def _said(self, body: Constraint | None, body_param: str, calls: Calls | None, thought: Thought | None) -> str:
        """What comes after the reasoning."""
        if calls is not None and calls.required:
            return self._calls(calls)
        if body is not None:
            self._beside_json = isinstance(body, (JsonObject, JsonSchema))
            inner = f"{self._verbatim(self._heading)} {self._rule('body', self._body(body, body_param, thought))}"
            return inner if calls is None else f"({inner} | {self._calls(calls)})"
        text = self._rule("TEXT", self._but_no_thought(_FREE, thought))
        if self._heading:
            text = f"{self._verbatim(self._heading)} {text}"
            return text if calls is None else f"({text} | {self._calls(calls)})"
        return text if calls is None else self._text_or_calls(text, calls, thought)

    def _but_no_thought(self, terminal: str, thought: Thought | None) -> str:
        """What begins as reasoning is to be reasoning: the lexer takes the longest match, and does not go back."""
        begin = "" if thought is None or thought.open else thought.syntax.begin
        if not begin or self._has_token(begin):
            return terminal
        return f"{terminal} & ~({_literal(begin)} {_FREE})"

    def _after_thought(self, thought: Thought | None, rest: str) -> str:
        if thought is None:
            return rest
        syntax = thought.syntax
        inside = self._until(syntax.end)
        after = self._verbatim(syntax.after)
        if thought.open:
            return f"{inside} {after} {rest}"
        whole = self._rule("thought", f"{self._verbatim(syntax.begin)} {inside} {after}")
        return f"{whole}? {rest}"

    def _until(self, mark: str) -> str:
        """Free text that ends at the first mark, and the mark."""
        head, token, rest = self._split(mark)
        if token:
            return f"{_FREE} {token} {self._verbatim(rest)}"
        if not head:
            raise ValueError("the end mark of reasoning is empty")
        return self._rule("until", f"{_FREE} {_literal(head)}", "[lazy]")

    def _calls(self, calls: Calls) -> str:
        before, after = calls.around
        one = self._one_of([self._call(form) for form in calls.forms])
        return f"{self._verbatim(before)} {one} {self._further(one, calls)} {self._verbatim(after)}"

    def _further(self, one: str, calls: Calls) -> str:
        return f"({self._verbatim(calls.between)} {one})*" if calls.parallel else ""

    def _text_or_calls(self, text: str, calls: Calls, thought: Thought | None) -> str:
        """Free text, then perhaps calls. The text takes what stands before the first mark of a call."""
        before, after = calls.around
        heads = [(before + _head(form.pieces)).lstrip() for form in calls.forms]
        one = self._one_of([self._call(form) for form in calls.forms])
        further = f"{self._further(one, calls)} {self._verbatim(after)}"
        if all(self._has_token(head) for head in heads):
            rests = map(self._from_token, heads)
            first = self._one_of(map(self._call, calls.forms, rests))
            return f"{text} ({first} {further})?"
        mark = "" if calls.leading else _trigger(heads)
        if not mark:
            # The call begins as JSON does. What is not JSON is text.
            words = self._rule("WORDS", self._but_no_thought("/([^\\s{\\[](?s:.*))?/", thought))
            return f"({words} | {self._verbatim(before)} {one} {further})"
        opened = self._rule("opened", self._rule("OPENED", f"{text} {_literal(mark)}"), "[lazy]")
        tails = self._one_of(map(self._call, calls.forms, (head[len(mark) :] for head in heads)))
        return f"({text} | {opened} {tails} {further})"

    def _call(self, form: CallForm, head: str | None = None) -> str:
        """One call. head: what is left to be written of its first text."""
        pieces: Sequence[Piece] = form.pieces
        if head is not None:
            pieces = [Verbatim(head), *pieces[1:]]
        return self._pieces(pieces, form)

    def _pieces(self, pieces: Sequence[Piece], form: CallForm) -> str:
        return " ".join(filter(None, (self._piece(piece, form) for piece in pieces)))

    def _piece(self, piece: Piece, form: CallForm) -> str:
        match piece:
            case Verbatim(text):
                return self._verbatim(text)
            case JsonValue():
                return self._schema(_schema_of(piece, form.param), form.strict, form.param)
            case FreeText():
                return self._free_text(piece, form.param)
            case OneOf(options):
                return self._rule("one", " | ".join(self._pieces(option, form) for option in options))
            case Maybe(inner) | Many(inner):
                again = "?" if isinstance(piece, Maybe) else "*"
                return self._rule("some", f"({self._pieces(inner, form)}){again}")

    def _free_text(self, text: FreeText, param: str) -> str:
        """The lexer is greedy: a text that ends at a mark is one lexeme with it, unless the mark is a token."""
        head, token, rest = self._split(text.end)
        if head:
            token, rest = "", text.end[len(head) :]
        inside = "/(?s:.*)/" if text.pattern is None else f"/{given.regex(text.pattern, param)[1:-1]}/"
        if text.pattern is not None:
            self._costly.add("pattern")
        if text.least or text.most is not None:
            self._costly.add("minLength or maxLength")
            most = "" if text.most is None else text.most
            inside += f" & /(?s:.{{{text.least},{most}}})/"
        avoided = [mark for mark in text.avoid if not self._has_token(mark)]
        if not token:
            avoided.append(head)
        if avoided and (len(avoided) > 1 or "&" in inside or text.pattern is not None):
            inside += f" & ~(/(?s:.*)/ ({' | '.join(map(_literal, dict.fromkeys(avoided)))}) /(?s:.*)/)"
        body = self._rule("INSIDE", inside)
        if token:
            return f"{body} {token} {self._verbatim(rest)}"
        return (
            f"{self._rule('value', self._rule('VALUE', f'{body} {_literal(head)}'), '[lazy]')} {self._verbatim(rest)}"
        )

    def _body(self, body: Constraint, param: str, thought: Thought | None) -> str:
        match body:
            case JsonObject():
                return self._schema({"type": "object"}, True, param)
            case JsonSchema(schema, strict):
                return self._schema(parse_schema(schema, param), strict, param)
            case Regex(pattern):
                self._costly.add("a regular expression")
                regex = self._alone(given.regex(pattern, param), param)
                return self._rule("BODY", self._but_no_thought(regex, thought))
            case Choices(options):
                return self._alone(given.choices(options, param), param)
            case ContextFree():
                self._costly.add("a grammar")
                text = given.context_free(body, param)
                self._parts.append((param, text))
                self._nested.append({"name": "grammar", "lark_grammar": text})
                return "@grammar"

    def _schema(self, schema: Schema, strict: bool, param: str) -> str:
        work = estimate(schema)
        self._values += work.values
        self._costly |= work.costly
        return self._rule("json", self._alone(_json(schema, strict), param))

    def _alone(self, expression: str, param: str) -> str:
        self._parts.append((param, f"start: {expression}"))
        return expression

    def _one_of(self, alternatives: Iterable[str]) -> str:
        return self._rule("call", " | ".join(alternatives))

    def _rule(self, name: str, expression: str, option: str = "") -> str:
        """Define a rule (or, in capitals, a terminal) under a name of its own. Equal ones are one."""
        own = self._rules.setdefault(expression, f"{name}_{len(self._rules)}{option}")
        return own.removesuffix(option)

    def _has_token(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def _from_token(self, text: str) -> str:
        """Without what stands before the first token: free text has taken that."""
        found = self._pattern.search(text)
        return text if found is None else text[found.start() :]

    def _split(self, text: str) -> tuple[str, str, str]:
        """What stands before the first token, the token, the rest."""
        found = self._pattern.search(text)
        if found is None:
            return text, "", ""
        return text[: found.start()], f"<[{self._special[found[0]]}]>", text[found.end() :]

    def _verbatim(self, text: str) -> str:
        symbols: list[str] = []
        while text:
            head, token, text = self._split(text)
            symbols += self._literals(head)
            symbols += [token] if token else []
        return " ".join(symbols)

    def _literals(self, text: str) -> list[str]:
        """Text that stands beside a JSON body has to be cut into the same lexemes as it."""
        if not self._beside_json:
            return [_literal(text)] if text else []
        return [_literal(lexeme) for lexeme in _JSON_LEXEME.findall(text)]


def _head(pieces: Sequence[Piece]) -> str:
    first = pieces[0] if pieces else None
    return first.text if isinstance(first, Verbatim) else ""


def _trigger(heads: Sequence[str]) -> str:
    """The beginning that all calls share, as far as it is a mark: text with more of it is meant to be a call."""
    least, greatest = min(heads), max(heads)
    shared = next((n for n, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b), len(least))
    common = least[:shared]
    found = _MARK.match(common)
    return found[0] if found else common


def _schema_of(value: JsonValue, param: str) -> Schema:
    schema = True if value.schema is None else parse_schema(value.schema, param)
    return schema if value.any else _of_object(schema)


def _of_object(schema: Schema) -> Schema:
    """Arguments are an object, also where the schema forgets to say so."""
    if schema is True:
        return {"type": "object"}
    if isinstance(schema, dict) and not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
        return {"type": "object", **schema}
    return schema
