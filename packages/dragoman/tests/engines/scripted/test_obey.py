"""A reply that the request does not allow is rejected, not changed."""

from __future__ import annotations

import json

import pytest

from dragoman.core.errors import EngineError, Unsupported
from dragoman.core.message import CustomTool, FunctionTool, ToolChoice
from dragoman.core.request import (
    AnyJsonObject,
    ContextFreeGrammar,
    Conversation,
    GenerateRequest,
    JsonSchema,
    Regex,
    StringChoices,
)
from dragoman.engines.script.script import Part
from dragoman.engines.scripted import CallTool, Fail, Refuse, Say, Script, Think

from .harness import ask, chat, engine, user


def doubling(times: int) -> str:
    """Return a short schema that expands to 2 ** times others."""
    definitions: dict[str, object] = {"d0": {"type": "integer"}}
    for number in range(1, times + 1):
        definitions[f"d{number}"] = {"anyOf": [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    return json.dumps({"$ref": f"#/$defs/d{times}", "$defs": definitions})


STRICT = FunctionTool("f", parameters='{"type": "object", "required": ["a"]}', strict=True)
LETTERS = Conversation((user("hi"),), (CustomTool("c", None, "regex", "[ab]+|x"),))


@pytest.mark.parametrize(
    ("parts", "request_", "why"),
    [
        ([CallTool("g")], chat(tools=["f"]), "'g'; declared are: f"),
        ([CallTool("f")], chat(), "declared are: none"),
        (
            [CallTool("f")],
            chat(tools=["f"], tool_choice=ToolChoice("none")),
            "tool_choice does not allow",
        ),
        (
            [CallTool("f")],
            chat(tools=["f", "g"], tool_choice=ToolChoice(names=("g",))),
            "tool_choice does not allow",
        ),
        ([Say("x")], chat(tools=["f"], tool_choice=ToolChoice("required")), "makes none"),
        (
            [CallTool("f"), CallTool("f")],
            chat(tools=["f"], parallel_tool_calls=False),
            "2 tool calls at once",
        ),
        (
            [CallTool("f")],
            GenerateRequest("m", Conversation((user("hi"),), (STRICT,))),
            "does not follow the schema",
        ),
        (
            [CallTool("f", "{")],
            GenerateRequest("m", Conversation((user("hi"),), (STRICT,))),
            "must be valid JSON",
        ),
        ([CallTool("c", "abc")], GenerateRequest("m", LETTERS), "does not follow the schema"),
        ([CallTool("f")], GenerateRequest("m", "plain"), "plain prompt"),
        ([Say("no")], chat(constraint=AnyJsonObject()), "must be valid JSON"),
        ([Say("[]")], chat(constraint=AnyJsonObject()), "does not follow"),
        ([Say('{"a": NaN}')], chat(constraint=AnyJsonObject()), "NaN is not JSON"),
        ([Say("[" * 100_000)], chat(constraint=AnyJsonObject()), "must be valid JSON"),
        (
            [Say('{"a": 1}')],
            chat(constraint=JsonSchema('{"properties": {"a": {"type": "string"}}}')),
            "not follow",
        ),
        (
            [Say("{}")],
            chat(constraint=JsonSchema('{"$ref": "http://127.0.0.1:9/x"}')),
            "cannot be checked",
        ),
        (
            [Say("{}")],
            chat(constraint=JsonSchema('{"$ref": "file:///etc/hostname"}')),
            "cannot be checked",
        ),
        ([Say("{}")], chat(constraint=JsonSchema('{"type": 3}')), "cannot be checked"),
        ([Say("{}")], chat(constraint=JsonSchema("{")), "cannot be checked"),
        ([Say('"\\ud800"')], chat(constraint=JsonSchema('{"minLength": 1}')), "cannot be checked"),
        (
            [Say("1")],
            chat(constraint=JsonSchema('{"const": "\\ud800"}')),
            "cannot be checked|does not follow",
        ),
        ([Say("1" * 5000)], chat(constraint=JsonSchema('{"maximum": 1}')), "must be valid JSON"),
        ([Say("{}")], chat(constraint=JsonSchema('{"$ref": "#"}')), "contains itself"),
        ([Say("{}")], chat(constraint=JsonSchema('{"$ref": "#/x/y"}')), "#/x/y does not exist"),
        (
            [Say("{}")],
            chat(constraint=JsonSchema('{"$ref": "#anchor", "$anchor": "anchor"}')),
            "does not exist",
        ),
        (
            [Say("{}")],
            chat(constraint=JsonSchema('{"$dynamicRef": "#x"}')),
            "only plain references",
        ),
        (
            [Say("{}")],
            chat(constraint=JsonSchema('{"not":' * 5000 + "{}" + "}" * 5000)),
            "nested too deeply",
        ),
        ([Say('"x"')], chat(constraint=JsonSchema(doubling(40))), "too large"),
        ([Say(f"[{'1,' * 100_000}1]")], chat(constraint=JsonSchema(doubling(5))), "too large"),
        ([Say('"x"')], chat(constraint=JsonSchema(doubling(14))), "does not follow the schema.$"),
        ([Say("perhaps")], chat(constraint=StringChoices(("yes", "no"))), "not one of the choices"),
        ([Say("a")], chat(constraint=Regex("a")), "regular expressions"),
        ([Say("a")], chat(constraint=ContextFreeGrammar("a")), "regular expressions and grammars"),
    ],
)
async def test_reply_violating_request_is_rejected(
    parts: list[Part], request_: GenerateRequest, why: str
):
    with pytest.raises(Unsupported, match=why):
        await ask(engine(Script.of(*parts)), request_)


@pytest.mark.parametrize(
    ("parts", "request_"),
    [
        ([CallTool("f", '{"a": 1}')], GenerateRequest("m", Conversation((user("hi"),), (STRICT,)))),
        ([CallTool("f", "{broken")], chat(tools=["f"])),
        ([CallTool("c", "abba")], GenerateRequest("m", LETTERS)),
        ([CallTool("f"), CallTool("f")], chat(tools=["f"])),
        ([Think("hm"), Say('{"a"'), Say(": 1}")], chat(constraint=AnyJsonObject())),
        (
            [Say('{"a": "x"}')],
            chat(constraint=JsonSchema('{"properties": {"a": {"type": "string"}}}')),
        ),
        ([Say("yes")], chat(constraint=StringChoices(("yes", "no")))),
        (
            [Say("[1, 2, 3]")],
            chat(
                constraint=JsonSchema('{"items": {"$ref": "#/x/a~1b%20c/0"}, "x": {"a/b c": [{}]}}')
            ),
        ),
        ([Say("1")], chat(constraint=JsonSchema(doubling(5)))),
        ([Refuse("No.")], chat(constraint=AnyJsonObject())),
        ([CallTool("f")], chat(tools=["f"], constraint=AnyJsonObject())),
    ],
)
async def test_reply_satisfying_request_is_accepted(parts: list[Part], request_: GenerateRequest):
    assert (await ask(engine(Script.of(*parts)), request_)).choices[0].parts


async def test_scripted_error_precedes_request_checks():
    with pytest.raises(EngineError, match="broken"):
        await ask(
            engine(Script.of(Fail(message="broken"))),
            chat(tools=["f"], tool_choice=ToolChoice("required")),
        )
