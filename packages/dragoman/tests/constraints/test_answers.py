"""The answers that a grammar accepts, with markers that are tokens and with markers
that are text.
"""

from __future__ import annotations

import json
import re
from random import Random

import jsonschema_rs
import pytest
from msgspec import Struct
from tests.constraints.conftest import EOS
from tests.constraints.walks import accepts, advance, text, walk
from tests.prompts import vocabularies

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.response_grammar import (
    CallForm,
    ConstraintGrammar,
    ReasoningSection,
    ToolCallRules,
    compose_grammar,
)
from dragoman.core.errors import RequestError
from dragoman.core.request import (
    AnyJsonObject,
    Constraint,
    ContextFreeGrammar,
    JsonSchema,
    Regex,
    StringChoices,
)
from dragoman.core.syntax import FreeText, JsonPiece, LiteralText, ReasoningSyntax
from dragoman.prompts.hf_tokenizer import HfTokenizer

SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'  # noqa: E501
THINK = ReasoningSection(ReasoningSyntax("<think>\n", "\n</think>", "\n\n"))
OPEN = ReasoningSection(THINK.syntax, is_open=True)
F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {"b": [2]}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = re.compile(r'<tool_call>\n\{"name": "(.)", "arguments": (.*)\}\n</tool_call>')
LLAMA_F = '{"name": "f", "parameters": {"a": 1}}'


def hermes(name: str, schema: str | None) -> CallForm:
    head = f'<tool_call>\n{{"name": "{name}", "arguments": '
    return CallForm((LiteralText(head), JsonPiece(schema), LiteralText("}\n</tool_call>")))


def calls(required: bool = False, parallel: bool = True) -> ToolCallRules:
    return ToolCallRules((hermes("f", SCHEMA), hermes("g", None)), "\n", required, parallel)


def llama(name: str) -> CallForm:
    return CallForm(
        (LiteralText(f'{{"name": "{name}", "parameters": '), JsonPiece(SCHEMA), LiteralText("}"))
    )


LLAMA = ToolCallRules((llama("f"), llama("g")), "; ")


class AnswerChecker:
    """Decides which texts are complete answers. `tokens` parses names of control tokens
    as those tokens.
    """

    def __init__(self, tokenizer: HfTokenizer, compiler: Compiler, tokens: bool) -> None:
        self.tokenizer = tokenizer
        self.compiler = compiler
        self.tokens = tokens
        self.eos = tokenizer.special_tokens[EOS]

    def __call__(self, grammar: ConstraintGrammar, answer: str) -> bool:
        ids = self.tokenizer.encode(answer, special=self.tokens)
        return accepts(self.compiler, grammar, ids, self.eos)


@pytest.fixture(params=["tokens", "text"])
def judge(
    request: pytest.FixtureRequest,
    embedded: HfTokenizer,
    compiler: Compiler,
    plain: HfTokenizer,
    plain_compiler: Compiler,
) -> AnswerChecker:
    if request.param == "tokens":
        return AnswerChecker(embedded, compiler, True)
    return AnswerChecker(plain, plain_compiler, False)


class GrammarArguments(Struct, frozen=True):
    """The arguments of `compose`."""

    body: Constraint | None = None
    calls: ToolCallRules | None = None
    thought: ReasoningSection | None = None

    def grammar(self, tokenizer: HfTokenizer) -> ConstraintGrammar:
        return compose_grammar(
            tokenizer.special_tokens, body=self.body, calls=self.calls, reasoning=self.thought
        )


GRAMMARS = {
    "auto": GrammarArguments(calls=calls()),
    "auto single": GrammarArguments(calls=calls(parallel=False)),
    "required": GrammarArguments(calls=calls(required=True), body=AnyJsonObject()),
    "required single": GrammarArguments(calls=calls(required=True, parallel=False)),
    "named": GrammarArguments(calls=ToolCallRules((hermes("f", SCHEMA),), "\n", True, False)),
    "auto and body": GrammarArguments(calls=calls(), body=JsonSchema(SCHEMA)),
    "thought": GrammarArguments(thought=THINK),
    "thought and body": GrammarArguments(thought=THINK, body=AnyJsonObject()),
    "open thought and body": GrammarArguments(thought=OPEN, body=StringChoices(("yes", "no"))),
    "thought and calls": GrammarArguments(thought=THINK, calls=calls()),
    "thought and required calls": GrammarArguments(thought=OPEN, calls=calls(required=True)),
    "thought and regex": GrammarArguments(thought=THINK, body=Regex(r"(?s:.*)!")),
    "everything": GrammarArguments(thought=THINK, calls=calls(), body=JsonSchema(SCHEMA)),
}
CASES: list[tuple[str, str, bool]] = [
    ("auto", "", True),
    ("auto", "hello", True),
    ("auto", F, True),
    ("auto", f"hello\n{F}", True),
    ("auto", f"{F}\n{G}", True),
    ("auto", f"{F}\nhello", False),
    ("auto", f"{F}{G}", False),
    ("auto", "<tool_call>", False),
    ("auto", "hello <tool_call> and so on", False),
    ("auto", F.replace('"f"', '"h"'), False),
    ("auto", F.replace("1", '"x"'), False),
    ("auto", F.replace('"a"', '"b"'), False),
    ("auto", G.replace("[2]", "[2"), False),
    ("auto", "a < b, <tool_cal", True),
    ("auto single", f"hello {F}", True),
    ("auto single", f"{F}\n{G}", False),
    ("required", F, True),
    ("required", f"{F}\n{G}\n{F}", True),
    ("required", "", False),
    ("required", "{}", False),
    ("required", f"hello {F}", False),
    ("required single", F, True),
    ("required single", f"{F}\n{F}", False),
    ("named", F, True),
    ("named", G, False),
    ("auto and body", '{"a": 1}', True),
    ("auto and body", F, True),
    ("auto and body", f"{F}\n{G}", True),
    ("auto and body", "hello", False),
    ("auto and body", '{"a": 1}' + F, False),
    ("thought", "hello", True),
    ("thought", f"{THOUGHT}hello", True),
    ("thought", THOUGHT, True),
    ("thought", "<think>\nhm", False),
    ("thought", "<think>\n</think> hello", False),
    ("thought and body", "{}", True),
    ("thought and body", f"{THOUGHT}{{}}", True),
    ("thought and body", f"{THOUGHT}hello", False),
    ("thought and body", "<think>\n{}", False),
    ("open thought and body", "hm\n</think>\n\nyes", True),
    ("open thought and body", "\n</think>\n\nno", True),
    ("open thought and body", "yes", False),
    ("open thought and body", "hm\n</think>\n\nperhaps", False),
    ("thought and calls", f"{THOUGHT}hello {F}", True),
    ("thought and calls", f"{THOUGHT}{F}\n{G}", True),
    ("thought and calls", f"hello {F}", True),
    ("thought and required calls", f"hm\n</think>\n\n{F}", True),
    ("thought and required calls", "hm\n</think>\n\nhello", False),
    ("thought and regex", f"{THOUGHT}hello!", True),
    ("thought and regex", "hello!", True),
    ("thought and regex", "<think>\nhello!", False),
    ("everything", f'{THOUGHT}{{"a": 2}}', True),
    ("everything", f"{THOUGHT}{F}", True),
    ("everything", f"{THOUGHT}hello", False),
]


@pytest.mark.parametrize(("name", "answer", "fits"), CASES)
def test_grammar_accepts_or_rejects_answer(
    name: str, answer: str, fits: bool, judge: AnswerChecker
) -> None:
    assert judge(GRAMMARS[name].grammar(judge.tokenizer), answer) is fits


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ("", True),
        ("hello", True),
        (LLAMA_F, True),
        (f"Sure: {LLAMA_F}", True),
        (f"{LLAMA_F}; {LLAMA_F}", True),
        ('{"name": "h", "parameters": {}}', False),
        ('{"names": 1}', True),
    ],
)
def test_llama_json_calls_grammar_accepts_text_or_calls(
    answer: str, fits: bool, judge: AnswerChecker
) -> None:
    assert judge(compose_grammar(judge.tokenizer.special_tokens, calls=LLAMA), answer) is fits


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        (LLAMA_F, True),
        ('{"name": "x"}', True),
        ('{"name": "f"}', True),
        ('{"name": 1}', False),
        ("hello", False),
    ],
)
def test_json_calls_with_json_body_accepts_both(
    answer: str, fits: bool, judge: AnswerChecker
) -> None:
    body = JsonSchema(
        '{"type":"object","properties":{"name":{"type":"string"}},"additionalProperties":false}'
    )
    assert (
        judge(compose_grammar(judge.tokenizer.special_tokens, calls=LLAMA, body=body), answer)
        is fits
    )


@pytest.mark.parametrize(
    ("answer", "fits"),
    [("", True), ("hello", True), ('{"a": 1}', True), ('{"b": 1}', False), ('{"a": 1}x', False)],
)
def test_bare_json_calls_grammar_rejects_invalid_arguments(
    answer: str, fits: bool, judge: AnswerChecker
) -> None:
    form = CallForm((JsonPiece(SCHEMA),))
    assert (
        judge(
            compose_grammar(
                judge.tokenizer.special_tokens, calls=ToolCallRules((form,), allows_parallel=False)
            ),
            answer,
        )
        is fits
    )


def test_call_arguments_without_type_must_be_object(judge: AnswerChecker) -> None:
    form = CallForm((LiteralText("CALL "), JsonPiece('{"properties":{"a":{"type":"integer"}}}')))
    grammar = compose_grammar(
        judge.tokenizer.special_tokens, calls=ToolCallRules((form,), is_required=True)
    )
    assert judge(grammar, 'CALL {"a": 1}')
    assert not judge(grammar, "CALL 1")


@pytest.mark.parametrize(
    "name", ["auto", "required", "auto and body", "thought and required calls", "everything"]
)
def test_random_constrained_answers_parse_as_calls(name: str, judge: AnswerChecker) -> None:
    compiled = judge.compiler.compile(GRAMMARS[name].grammar(judge.tokenizer))
    matchers = [compiled.build_matcher() for _ in range(8)]
    if name.startswith("thought"):  # chance would hardly end one
        thought = judge.tokenizer.encode("hm\n</think>\n\n", special=judge.tokens)
        assert all(advance(matcher, thought) for matcher in matchers)
    walks = [
        walk(matcher, judge.tokenizer, judge.eos, Random(f"{name}{n}"))
        for n, matcher in enumerate(matchers)
    ]
    ended = [text(judge.tokenizer, ids) for ids in walks if ids is not None]
    assert ended
    for answer in ended:
        for called, arguments in CALL.findall(answer):
            value = json.loads(arguments)
            assert isinstance(value, dict)
            if called == "f":
                jsonschema_rs.validate(json.loads(SCHEMA), value)


@pytest.mark.parametrize(
    ("pattern", "answer", "fits"),
    [
        (r"\d{3}", "123", True),
        (r"^\d{3}$", "123", True),
        (r"\d{3}", "12", False),
        (r"\d{3}", "1234", False),
        (r"\d", "٣", False),
        (r"a/b|c\.d", "a/b", True),
        (r"a/b|c\.d", "cxd", False),
        ("a\nb", "a\nb", True),
        ("", "", True),
        ("", "a", False),
        ("é+", "éé", True),
        ("(?i)yes", "YeS", True),
    ],
)
def test_regex_body_must_match_full_answer(
    pattern: str, answer: str, fits: bool, judge: AnswerChecker
) -> None:
    assert (
        judge(compose_grammar(judge.tokenizer.special_tokens, body=Regex(pattern)), answer) is fits
    )


@pytest.mark.parametrize(
    ("answer", "fits"), [("a", True), ("ab", True), ('q"\\\n', True), ("é", True), ("b", False)]
)
def test_choices_body_matches_exactly(answer: str, fits: bool, judge: AnswerChecker) -> None:
    body = StringChoices(("a", "ab", 'q"\\\n', "é", "a"))
    assert judge(compose_grammar(judge.tokenizer.special_tokens, body=body), answer) is fits


def test_choice_with_token_name_matches_plain_text(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    grammar = compose_grammar(embedded.special_tokens, body=StringChoices(("<think>",)))
    eos = embedded.special_tokens[EOS]
    assert accepts(compiler, grammar, embedded.encode("<think>", special=False), eos)
    assert not accepts(compiler, grammar, embedded.encode("<think>", special=True), eos)


LARK = 'start: "(" start ")" | WORD\nWORD: /[a-z]+/'
GBNF = 'root ::= "(" root ")" | word\nword ::= [a-z]+ ("-" [0-9]{2})?'


@pytest.mark.parametrize(("definition", "syntax"), [(LARK, "lark"), (GBNF, "gbnf")])
def test_context_free_grammar_composes_with_calls_and_reasoning(
    definition: str, syntax: str, judge: AnswerChecker
) -> None:
    special = judge.tokenizer.special_tokens
    body = ContextFreeGrammar(definition, syntax)
    alone = compose_grammar(special, body=body)
    beside = compose_grammar(special, body=body, calls=calls(), reasoning=THINK)
    assert judge(alone, "((abc))")
    assert not judge(alone, "((abc)")
    assert judge(beside, "((abc))")
    assert judge(beside, f"{THOUGHT}(abc)")
    assert judge(beside, f"{THOUGHT}{F}")
    assert not judge(beside, f"{THOUGHT}(abc")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (Regex("(a"), "unclosed group"),
        (Regex("(?=a)b"), "look-around"),
        (Regex(r"\bfoo\b"), "lookarounds"),
        (Regex("a" * 4097), "4 KiB"),
        (Regex("(" * 2_000 + ")" * 2_000), "regex"),
        (Regex(r"[^\s\S]"), "no answer"),
        (StringChoices(()), "list of choices is empty"),
        (StringChoices(("x" * 70_000,)), "64 KiB"),
        (ContextFreeGrammar("start: nothing"), "nothing"),
        (ContextFreeGrammar(""), "mpty"),
        (ContextFreeGrammar("start: a\na: start"), "no answer"),
        (ContextFreeGrammar('start: "a"' + " " * 70_000), "64 KiB"),
        (ContextFreeGrammar("start: " + "(" * 5_000 + '"a"' + ")" * 5_000), "nested"),
        (
            ContextFreeGrammar("start: X\nX: " + " & ".join(f"/.*{n}.*/" for n in range(12))),
            "intersects",
        ),
        (ContextFreeGrammar("start: %json {"), "%json"),
        (ContextFreeGrammar('start: %json {"type": "x"}'), "Invalid JSON Schema"),
        (ContextFreeGrammar('start: "a"', "ebnf"), "ebnf"),
        (ContextFreeGrammar("root ::= nothing", "gbnf"), "nothing"),
        (ContextFreeGrammar('root ::= "a', "gbnf"), "GBNF"),
        (ContextFreeGrammar('root ::= "\\', "gbnf"), "GBNF"),
        (ContextFreeGrammar("root ::= " + "(" * 3_000 + '"a"' + ")" * 3_000, "gbnf"), "nested"),
        (
            ContextFreeGrammar(
                'root ::= "a"\n' + "".join(f'r{n} ::= "a"\n' for n in range(2_001)), "gbnf"
            ),
            "2000 rules",
        ),
    ],
)
def test_invalid_constraint_is_rejected_with_param(
    body: Regex | StringChoices | ContextFreeGrammar,
    word: str,
    embedded: HfTokenizer,
    compiler: Compiler,
) -> None:
    for thought in (None, THINK):
        with pytest.raises(RequestError, match=re.escape(word)) as caught:
            compiler.compile(
                compose_grammar(
                    embedded.special_tokens, body=body, body_param="here", reasoning=thought
                )
            )
        assert (caught.value.status, caught.value.param) == (400, "here")
        assert len(caught.value.message) < 1_200


def test_added_whitespace_tokens_count_as_text() -> None:
    data = vocabularies.byte_level_data(("<|im_start|>", EOS))
    data["added_tokens"] += [
        vocabularies.added(265, "\n\n", special=False),
        vocabularies.added(266, "字", special=False),
    ]
    tokenizer = vocabularies.build_tokenizer(data)
    judge = AnswerChecker(tokenizer, Compiler(tokenizer, [tokenizer.special_tokens[EOS]]), False)
    grammar = compose_grammar(tokenizer.special_tokens, reasoning=OPEN, body=AnyJsonObject())
    assert judge(grammar, 'hm\n\n字\n</think>\n\n{"字": "字"}')
    assert 266 in tokenizer.encode('{"字": "字"}', special=False)


def test_tool_call_rules_without_tool_raise_value_error(embedded: HfTokenizer) -> None:
    with pytest.raises(ValueError, match="no tool"):
        compose_grammar(embedded.special_tokens, calls=ToolCallRules(()))


def test_lark_ampersands_in_strings_and_comments_are_ignored(judge: AnswerChecker) -> None:
    grammar = 'start: "&&&&&&&&&&&&" // & & & & & & & & & &\n'
    assert judge(
        compose_grammar(judge.tokenizer.special_tokens, body=ContextFreeGrammar(grammar)),
        "&&&&&&&&&&&&",
    )


@pytest.mark.parametrize("syntax", ["lark", "gbnf"])
def test_grammar_with_answer_prefix_requires_prefix(
    syntax: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    definition = {"lark": "start: /yes|no/", "gbnf": 'root ::= "yes" | "no"'}[syntax]
    body = ContextFreeGrammar(definition, syntax)
    grammar = compose_grammar(embedded.special_tokens, body=body, answer_prefix="<answer>\n")
    judge = AnswerChecker(embedded, compiler, True)
    assert judge(grammar, "<answer>\nyes")
    assert not judge(grammar, "yes")


@pytest.mark.parametrize("pattern", ["", "^$"])
def test_empty_pattern_matches_only_empty_text(
    pattern: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    judge = AnswerChecker(embedded, compiler, True)
    form = CallForm(
        (LiteralText("<"), FreeText(">", max_length=5, pattern=pattern), LiteralText("!"))
    )
    grammar = compose_grammar(
        embedded.special_tokens, calls=ToolCallRules((form,), is_required=True)
    )
    assert judge(grammar, "<>!")
    assert not judge(grammar, "<a>!")
    assert judge(compose_grammar(embedded.special_tokens, body=Regex(pattern)), "")
