"""Composes the grammar of a response: reasoning, then text, a constrained body or tool
calls.

The grammar is in llguidance's dialect of Lark. Of the vocabulary it needs only the
names and ids of the added tokens. No text contains an added token, so free text ends at
one. A marker that is ordinary text is matched by a lazy terminal, which ends at the
first occurrence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ..core.json_types import JsonObject, JsonValue
from ..core.request import (
    AnyJsonObject,
    Constraint,
    ContextFreeGrammar,
    JsonSchema,
    Regex,
    StringChoices,
)
from ..core.syntax import (
    Alternation,
    FreeText,
    JsonPiece,
    LiteralText,
    OptionalPieces,
    ReasoningSyntax,
    RepeatedPieces,
    SyntaxPiece,
)
from .client_grammars import build_choices, build_context_free, build_regex
from .ecma_regex import convert_ecma_regex
from .json_schema import (
    CHEAP_VALUES,
    Schema,
    combines_schemas,
    estimate_compile_cost,
    iterate_schemas,
    parse_schema,
)
from .schema_patterns import adapt_regexes
from .vocabulary import find_control_tokens

_LIST_KEYWORDS = ("anyOf", "allOf", "prefixItems")
_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE_KEYWORDS = ("items", "additionalProperties", "additionalItems")
_KEYWORDS_THAT_PREVENT_CLOSING = frozenset(
    [
        *(
            "additionalProperties",
            "patternProperties",
            "unevaluatedProperties",
            "propertyNames",
            "minProperties",
        ),
        *(
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "if",
            "$ref",
            "$dynamicRef",
            "dependentSchemas",
            "dependencies",
        ),
    ]
)


def close_schema(schema: Schema) -> Schema:
    """Close every object that has `properties`, even empty ones, and does not set
    `additionalProperties`.

    A schema that uses `oneOf` anywhere, or combines schemas otherwise, stays open
    everywhere: a closed `allOf` branch would reject its siblings' properties, and a
    closed `oneOf` branch could accept a value that the original rejects because several
    branches match.
    """
    if isinstance(schema, bool):
        return schema
    if any("oneOf" in part or combines_schemas(part) for part in iterate_schemas(schema)):
        return schema
    return _close_node(schema)


def _close_node(schema: JsonObject) -> JsonObject:
    closed: JsonObject = {}
    for keyword, value in schema.items():
        if keyword in _MAP_KEYWORDS and isinstance(value, dict):
            closed[keyword] = {name: _close_part(subschema) for name, subschema in value.items()}
        elif keyword in _LIST_KEYWORDS and isinstance(value, list):
            closed[keyword] = [_close_part(subschema) for subschema in value]
        else:
            closed[keyword] = _close_part(value) if keyword in _SINGLE_KEYWORDS else value
    properties = schema.get("properties")
    required = schema.get("required", [])
    is_closable = (
        isinstance(properties, dict)
        and isinstance(required, list)
        and not schema.keys() & _KEYWORDS_THAT_PREVENT_CLOSING
        # A required member without a schema needs the object to stay open.
        and all(name in properties for name in required)
    )
    return {**closed, "additionalProperties": False} if is_closable else closed


def _close_part(value: JsonValue) -> JsonValue:
    return _close_node(value) if isinstance(value, dict) else value


_TYPE_KEYWORDS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
"""Keywords that may determine the type of a value."""
_ANY_TEXT = "/(?s:.*)/"
_JSON_STYLE: JsonObject = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
"""The separators of json.dumps. With flexible whitespace a weak model would emit blanks
up to the token limit.
"""
_JSON_LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"|[:,] |[{}\[\]]|[^"{}\[\]:, ]+|.', re.DOTALL)
"""Splits JSON text into the lexemes of llguidance's %json grammar."""
_MARKER = re.compile(r"<[^<>\s=]*[>=]?|\[[^\[\]\s(=]*\]?|[^:(\n]*[:(]?")
"""The shortest marker that begins a call: `<name>`, `[NAME]`, or the text up to `:` or
`(`.
"""


class ReasoningSection(Struct, frozen=True):
    """Reasoning before the body.

    is_open: the prompt has begun it; otherwise the response may begin it.
    """

    syntax: ReasoningSyntax
    is_open: bool = False


class CallForm(Struct, frozen=True):
    """The syntax of a call of one tool, see `ToolFormat.build_call_syntax`.

    param: the request parameter that holds its schema.
    is_strict: an unsupported keyword in the schema is an error, not a warning.
    """

    pieces: tuple[SyntaxPiece, ...]
    param: str = "tools"
    is_strict: bool = True


class ToolCallRules(Struct, frozen=True):
    """The tools that may be called.

    separator: the text between two calls.
    is_required: the response consists of calls only.
    allows_parallel: several calls are allowed.
    section_delimiters: the texts before the first call and after the last.
    must_lead: only a call that begins the response is recognized; no marker begins it.
    """

    forms: tuple[CallForm, ...]
    separator: str = ""
    is_required: bool = False
    allows_parallel: bool = True
    section_delimiters: tuple[str, str] = ("", "")
    must_lead: bool = False


class ConstraintGrammar(Struct, frozen=True):
    """A grammar for llguidance.

    text: the grammar.
    parts: each constraint alone, (param, text), to find the invalid one.
    is_cheap: it is known to compile within milliseconds.
    costly: features that may be slow to compile, named for error messages.
    """

    text: str
    parts: tuple[tuple[str, str], ...] = ()
    is_cheap: bool = False
    costly: tuple[str, ...] = ()

    @property
    def param(self) -> str | None:
        """The param of the first constraint."""
        return self.parts[0][0] if self.parts else None


def compose_grammar(
    special_tokens: Mapping[str, int],
    *,
    body: Constraint | None = None,
    body_param: str = "response_format",
    calls: ToolCallRules | None = None,
    reasoning: ReasoningSection | None = None,
    answer_prefix: str = "",
) -> ConstraintGrammar:
    """Compose the grammar of one response.

    body: constraint on the text of the response; None allows any text.
    calls: tools that may be called.
    reasoning: section before the body.
    answer_prefix: literal text before the body, absent before a call.

    Without body and calls: free text. Optional calls without a body: free text, then
    calls only. Optional calls and a body: one or the other. Required calls: calls only,
    whatever the body is.

    Raises:
        RequestError: a constraint is too large, too expensive, invalid or of unknown
            syntax.
        ValueError: `calls` has no tools, or the end marker of the reasoning is empty.
    """
    if calls is not None and not calls.forms:
        raise ValueError("no tools to call")
    return _GrammarWriter(special_tokens, answer_prefix).compose(body, body_param, calls, reasoning)


def _quote_literal(text: str) -> str:
    return json.dumps(text)


class _GrammarWriter:
    """Collects the rules of one grammar."""

    def __init__(self, special_tokens: Mapping[str, int], answer_prefix: str) -> None:
        self._special_tokens = special_tokens
        self._answer_prefix = answer_prefix
        # The longest first: one name may be the beginning of another.
        names = sorted(find_control_tokens(special_tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        # Expression -> name and option.
        self._rules: dict[str, tuple[str, str]] = {}
        self._parts: list[tuple[str, str]] = []
        self._nested: list[dict[str, str]] = []
        self._splits_like_json = False
        self._values = 0
        self._costly: set[str] = set()

    def compose(
        self,
        body: Constraint | None,
        body_param: str,
        calls: ToolCallRules | None,
        reasoning: ReasoningSection | None,
    ) -> ConstraintGrammar:
        is_alone = calls is None and reasoning is None and not self._answer_prefix
        if isinstance(body, ContextFreeGrammar) and is_alone:
            text = build_context_free(body, body_param)
            return ConstraintGrammar(text, ((body_param, text),), costly=("a grammar",))
        start = self._write_after_reasoning(body, body_param, calls, reasoning)
        if reasoning is not None:
            # Free text up to the first end marker, and the marker; optional where the
            # response has to begin it.
            syntax = reasoning.syntax
            head, token, tail = self._split_at_token(syntax.end)
            if not token and not head:
                raise ValueError("the end marker of reasoning is empty")
            if token:
                section = f"{_ANY_TEXT} {token} {self._write_verbatim(tail)}"
            else:
                section = self._define_rule(
                    "until", f"{_ANY_TEXT} {_quote_literal(head)}", "[lazy]"
                )
            section = f"{section} {self._write_verbatim(syntax.end_suffix)}"
            if not reasoning.is_open:
                section = (
                    self._define_rule(
                        "reasoning", f"{self._write_verbatim(syntax.begin)} {section}"
                    )
                    + "?"
                )
            start = f"{section} {start}"
        rules = (
            f"{rule_name}{option}: {expression}"
            for expression, (rule_name, option) in self._rules.items()
        )
        text = "\n".join(["%llguidance {}", f"start: {start}", *rules])
        if self._nested:
            # A grammar of the client stays a grammar of its own, so that its rule names
            # cannot collide with ours.
            text = json.dumps({"grammars": [{"lark_grammar": text}, *self._nested]})
        is_cheap = not self._costly and self._values <= CHEAP_VALUES
        return ConstraintGrammar(text, tuple(self._parts), is_cheap, tuple(sorted(self._costly)))

    def _write_after_reasoning(
        self,
        body: Constraint | None,
        body_param: str,
        calls: ToolCallRules | None,
        reasoning: ReasoningSection | None,
    ) -> str:
        """The rule after the reasoning."""
        if calls is not None and calls.is_required:
            return self._write_calls(calls)
        if body is not None:
            self._splits_like_json = isinstance(body, (AnyJsonObject, JsonSchema))
            rule = self._define_rule("body", self._write_constraint(body, body_param, reasoning))
            answer = f"{self._write_verbatim(self._answer_prefix)} {rule}"
            return answer if calls is None else f"({answer} | {self._write_calls(calls)})"
        text = self._define_rule("TEXT", self._exclude_reasoning(_ANY_TEXT, reasoning))
        if self._answer_prefix:
            text = f"{self._write_verbatim(self._answer_prefix)} {text}"
            return text if calls is None else f"({text} | {self._write_calls(calls)})"
        return text if calls is None else self._write_text_or_calls(text, calls, reasoning)

    def _exclude_reasoning(self, terminal: str, reasoning: ReasoningSection | None) -> str:
        """Exclude the reasoning marker from a text: the lexer takes the longest match
        and does not backtrack.
        """
        begin = "" if reasoning is None or reasoning.is_open else reasoning.syntax.begin
        if not begin or self._has_token(begin):
            return terminal
        return f"{terminal} & ~({_quote_literal(begin)} {_ANY_TEXT})"

    def _write_calls(self, calls: ToolCallRules) -> str:
        prefix, suffix = calls.section_delimiters
        single_call = self._write_alternatives([self._write_call(form) for form in calls.forms])
        further_calls = self._write_further_calls(single_call, calls)
        return (
            f"{self._write_verbatim(prefix)} {single_call} {further_calls} "
            f"{self._write_verbatim(suffix)}"
        )

    def _write_further_calls(self, single_call: str, calls: ToolCallRules) -> str:
        return (
            f"({self._write_verbatim(calls.separator)} {single_call})*"
            if calls.allows_parallel
            else ""
        )

    def _write_text_or_calls(
        self, text: str, calls: ToolCallRules, reasoning: ReasoningSection | None
    ) -> str:
        """Free text, then optional calls. The text includes what precedes the first
        marker of a call.

        The calls begin with a token, with a marker that is text, or with bare JSON.
        """
        prefix, suffix = calls.section_delimiters
        # White space before the first call belongs to the free text, whose lexeme takes
        # all of it.
        first_pieces = [form.pieces[0] if form.pieces else None for form in calls.forms]
        heads = [
            (prefix + (piece.text if isinstance(piece, LiteralText) else "")).lstrip()
            for piece in first_pieces
        ]
        single_call = self._write_alternatives([self._write_call(form) for form in calls.forms])
        further_calls = (
            f"{self._write_further_calls(single_call, calls)} {self._write_verbatim(suffix)}"
        )
        if all(self._has_token(head) for head in heads):
            token_heads = map(self._skip_to_token, heads)
            first_call = self._write_alternatives(map(self._write_call, calls.forms, token_heads))
            return f"{text} ({first_call} {further_calls})?"
        trigger = ""
        if not calls.must_lead:
            # The common prefix of all calls, as far as it is a marker: text that
            # contains it is treated as a call.
            first_head = min(heads)
            last_head = max(heads)
            char_pairs = enumerate(zip(first_head, last_head, strict=False))
            prefix_length = next(
                (n for n, (first, last) in char_pairs if first != last), len(first_head)
            )
            marker = _MARKER.match(first_head, 0, prefix_length)
            trigger = first_head[:prefix_length] if marker is None else marker[0]
        if not trigger:
            # The call starts with JSON; anything else is text.
            non_json_text = self._define_rule(
                "WORDS", self._exclude_reasoning("/([^\\s{\\[](?s:.*))?/", reasoning)
            )
            return (
                f"({non_json_text} | {self._write_verbatim(prefix)} {single_call} {further_calls})"
            )
        triggered = self._define_rule(
            "opened", self._define_rule("OPENED", f"{text} {_quote_literal(trigger)}"), "[lazy]"
        )
        tails = self._write_alternatives(
            map(self._write_call, calls.forms, (head[len(trigger) :] for head in heads))
        )
        return f"({text} | {triggered} {tails} {further_calls})"

    def _write_call(self, form: CallForm, head: str | None = None) -> str:
        """One call. head: the remainder of its first literal."""
        pieces: Sequence[SyntaxPiece] = form.pieces
        if head is not None:
            # Without a first literal there is nothing to replace.
            is_literal = bool(pieces) and isinstance(pieces[0], LiteralText)
            pieces = [LiteralText(head), *pieces[is_literal:]]
        return self._write_pieces(pieces, form)

    def _write_pieces(self, pieces: Sequence[SyntaxPiece], form: CallForm) -> str:
        expressions: list[str] = []
        for piece in pieces:
            match piece:
                case LiteralText(text):
                    expression = self._write_verbatim(text)
                case JsonPiece():
                    schema = (
                        True if piece.schema is None else parse_schema(piece.schema, form.param)
                    )
                    # Arguments are an object, also where the schema does not set the
                    # type.
                    is_untyped = (
                        schema if isinstance(schema, bool) else not schema.keys() & _TYPE_KEYWORDS
                    )
                    if is_untyped and not piece.allows_any_type:
                        schema = {"type": "object", **({} if isinstance(schema, bool) else schema)}
                    expression = self._write_schema(schema, form.is_strict, form.param)
                case FreeText():
                    expression = self._write_free_text(piece, form.param)
                case Alternation(options):
                    alternatives = [self._write_pieces(option, form) for option in options]
                    expression = self._define_rule("one", " | ".join(alternatives))
                case OptionalPieces(inner) | RepeatedPieces(inner):
                    quantifier = "?" if isinstance(piece, OptionalPieces) else "*"
                    expression = self._define_rule(
                        "some", f"({self._write_pieces(inner, form)}){quantifier}"
                    )
            expressions.append(expression)
        return " ".join(filter(None, expressions))

    def _write_free_text(self, text: FreeText, param: str) -> str:
        """Free text inside a call. The lexer is greedy: text and its end marker form
        one lexeme, unless the marker is a token.
        """
        head, token, tail = self._split_at_token(text.end)
        if head:
            token = ""
            tail = text.end[len(head) :]
        terminal = (
            _ANY_TEXT
            if text.pattern is None
            else build_regex(convert_ecma_regex(text.pattern), param)
        )
        if text.pattern is not None:
            self._costly.add("pattern")
        if text.min_length or text.max_length is not None:
            self._costly.add("minLength or maxLength")
            max_length = "" if text.max_length is None else text.max_length
            terminal += f" & /(?s:.{{{text.min_length},{max_length}}})/"
        # Control tokens cannot occur in text at all: only markers of several tokens
        # have to be excluded.
        forbidden = [marker for marker in text.avoid if not self._has_token(marker)]
        if not token:
            forbidden.append(head)
        # Before a single marker, any text ends at its first occurrence anyway, as the
        # lexeme of both is lazy.
        needs_exclusion = len(forbidden) > 1 or terminal != _ANY_TEXT
        if forbidden and needs_exclusion:
            terminal += (
                f" & ~(/(?s:.*)/ "
                f"({' | '.join(map(_quote_literal, dict.fromkeys(forbidden)))}) /(?s:.*)/)"
            )
        body = self._define_rule("INSIDE", terminal)
        if token:
            return f"{body} {token} {self._write_verbatim(tail)}"
        terminal = self._define_rule("VALUE", f"{body} {_quote_literal(head)}")
        return f"{self._define_rule('value', terminal, '[lazy]')} {self._write_verbatim(tail)}"

    def _write_constraint(
        self, body: Constraint, param: str, reasoning: ReasoningSection | None
    ) -> str:
        match body:
            case AnyJsonObject():
                return self._write_schema(parse_schema(body.schema, param), True, param)
            case JsonSchema(schema, strict):
                return self._write_schema(parse_schema(schema, param), strict, param)
            case Regex(pattern):
                self._costly.add("a regular expression")
                regex = self._add_part(build_regex(pattern, param), param)
                return self._define_rule("BODY", self._exclude_reasoning(regex, reasoning))
            case StringChoices(options):
                return self._add_part(build_choices(options, param), param)
            case ContextFreeGrammar():
                self._costly.add("a grammar")
                text = build_context_free(body, param)
                self._parts.append((param, text))
                self._nested.append({"name": "grammar", "lark_grammar": text})
                return "@grammar"

    def _write_schema(self, schema: Schema, strict: bool, param: str) -> str:
        cost = estimate_compile_cost(schema)
        self._values += cost.values
        self._costly |= cost.costly
        closed_schema = close_schema(schema)
        expression = "%json false"
        if closed_schema is not False:
            adapted_schema = adapt_regexes(closed_schema)
            keywords = {} if isinstance(adapted_schema, bool) else adapted_schema
            options: JsonValue = {**_JSON_STYLE, "lenient": not strict}
            # Options in the client's schema are overridden: they are not part of JSON
            # Schema.
            expression = "%json " + json.dumps({**keywords, "x-guidance": options})
        return self._define_rule("json", self._add_part(expression, param))

    def _add_part(self, expression: str, param: str) -> str:
        self._parts.append((param, f"start: {expression}"))
        return expression

    def _write_alternatives(self, alternatives: Iterable[str]) -> str:
        return self._define_rule("call", " | ".join(alternatives))

    def _define_rule(self, name: str, expression: str, option: str = "") -> str:
        """Define a rule (or, in capitals, a terminal) under a generated name. Equal
        expressions share one.
        """
        rule_name, _ = self._rules.setdefault(expression, (f"{name}_{len(self._rules)}", option))
        return rule_name

    def _has_token(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def _skip_to_token(self, text: str) -> str:
        """The literal from its first token on: free text has matched what precedes it."""
        match = self._pattern.search(text)
        return text if match is None else text[match.start() :]

    def _split_at_token(self, text: str) -> tuple[str, str, str]:
        """Split at the first token: what precedes it, the token, the rest."""
        match = self._pattern.search(text)
        if match is None:
            return text, "", ""
        return text[: match.start()], f"<[{self._special_tokens[match[0]]}]>", text[match.end() :]

    def _write_verbatim(self, text: str) -> str:
        symbols: list[str] = []
        while text:
            head, token, text = self._split_at_token(text)
            if head:
                # A literal next to a JSON body is split into the lexemes of JSON.
                lexemes = _JSON_LEXEME.findall(head) if self._splits_like_json else [head]
                symbols += map(_quote_literal, lexemes)
            if token:
                symbols.append(token)
        return " ".join(symbols)
