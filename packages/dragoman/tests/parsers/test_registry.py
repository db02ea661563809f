"""Formats by name, by detection from a chat template, and from third parties."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import dragoman.engines.tiny
from dragoman.core.errors import Unsupported
from dragoman.core.events import ChoiceFinished, Finished, FinishReason, Started, TextDelta, Usage
from dragoman.core.message import FunctionTool
from dragoman.parsers import registry
from dragoman.parsers.delimited_calls import DelimitedCallFormat
from dragoman.parsers.think import ThinkFormat

from .parsing import answer, context, tool_format


@pytest.mark.parametrize("name", ["think", "deepseek_r1", "qwen3", "think_unopened"])
def test_find_reasoning_format_returns_format_by_name(name: str):
    assert isinstance(registry.find_reasoning_format(name), ThinkFormat)


@pytest.mark.parametrize("name", ["hermes", "qwen2_5", "qwen25", "qwen3"])
def test_find_tool_format_returns_format_by_name(name: str):
    assert isinstance(registry.find_tool_format(name), DelimitedCallFormat)


def test_mistral_format_is_selected_by_vocabulary():
    old = registry.find_tool_format("mistral", ("[TOOL_CALLS]",))
    new = registry.find_tool_format("mistral", ("[TOOL_CALLS]", "[ARGS]"))
    assert old is not None
    assert new is not None
    assert (old.section_delimiters, new.section_delimiters) == (("[TOOL_CALLS][", "]"), ("", ""))
    for text in ('[TOOL_CALLS][{"name": "f", "arguments": {}}]', "[TOOL_CALLS]f[ARGS]{}"):
        assert (
            answer(old.create_parser(context("f")), text)
            == answer(new.create_parser(context("f")), text)
            == [("call", "f", "{}")]
        )


def test_format_name_none_returns_no_format():
    assert registry.find_reasoning_format("none") is None
    assert registry.find_tool_format("none") is None
    assert all("none" in names for names in registry.list_names())


def test_unknown_format_name_error_lists_names():
    with pytest.raises(
        ValueError, match=r"reasoning parser 'thnk'.*Did you mean 'think'\?.*deepseek_r1.*none"
    ):
        registry.find_reasoning_format("thnk")
    with pytest.raises(ValueError, match=r"tools parser 'zzz'\. There are: .*hermes.*none"):
        registry.find_tool_format("zzz")


def test_third_party_reasoning_format_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shouting.py").write_text(
        "from dragoman.parsers.think import ThinkFormat\n"
        "def make(added):\n"
        "    return ThinkFormat('<LOUD>', '</LOUD>', added_tokens=added)\n"
    )
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dragoman.parsers]\nreasoning.loud = shouting:make\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = registry.find_reasoning_format("loud")
    assert found is not None
    assert found.syntax.begin == "<LOUD>"
    with pytest.raises(ValueError, match="loud"):
        registry.find_reasoning_format("luod")
    with pytest.raises(ValueError, match="tools parser 'loud'"):
        registry.find_tool_format("loud")


QWEN = r"""{{- '<think>\n' }} <tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"""  # noqa: E501


@pytest.mark.parametrize(
    ("template", "added", "expected"),
    [
        (QWEN, (), ("think", "hermes")),
        ("{% set content = content.split('</think>')[-1] %}", (), ("think", None)),
        ("{{ messages }}", ("<think>", "</think>"), ("think", None)),
        (
            '<tool_call>\n<function=example>\n<parameter=x> "name" arguments </tool_call>',
            (),
            (None, "qwen3_coder"),
        ),
        ("<tool_call>{{ name }}<arg_key></tool_call>", (), (None, None)),
        ("{{ messages }}", (), (None, None)),
    ],
)
def test_detect_formats_recognizes_chat_templates(
    template: str, added: tuple[str, ...], expected: tuple[str | None, ...]
):
    assert registry.detect_formats(template, added) == expected


def test_detect_formats_recognizes_embedded_model():
    source = Path(dragoman.engines.tiny.__file__).with_name("data") / "chat_template.jinja"
    assert registry.detect_formats(source.read_text()) == ("think", "hermes")


def test_reasoning_is_parsed_before_tool_calls():
    text = (
        '<think>\nI could <tool_call>.\n</think>\n\nSo:\n<tool_call>\n{"name": "f"}\n</tool_call>'
    )
    both = registry.create_parser(
        registry.find_reasoning_format("think"), registry.find_tool_format("hermes"), context("f")
    )
    assert answer(both, text) == [
        ("reasoning", "I could <tool_call>."),
        ("text", "So:"),
        ("call", "f", "{}"),
    ]


def test_calls_without_declared_tools_are_text():
    text = '\n<tool_call>\n{"name": "f"}\n</tool_call>\n'
    assert answer(
        registry.create_parser(None, registry.find_tool_format("hermes"), context()), text
    ) == [("text", text)]


def test_parser_without_formats_passes_events_through():
    nothing = registry.create_parser(None, None, context())
    for event in (
        Started(1),
        TextDelta(0, "<think>"),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(1, 1)),
    ):
        (passed,) = nothing.feed(event)
        assert passed is event


def test_exponential_schema_expansion_is_bounded():
    """Each definition refers to the next one many times: the full expansion would be
    astronomically large.
    """
    defs = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 20} for n in range(30)}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/D0"}}, "$defs": defs}
    tool = FunctionTool("f", None, json.dumps(schema))
    format = tool_format("qwen3_coder")
    assert format.build_call_syntax(tool)
    text = "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>"
    assert answer(format.create_parser(context(tool)), text) == [("call", "f", '{"x": 1}')]


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic"])
def test_build_call_syntax_too_many_arguments_is_rejected(name: str):
    schema = {"type": "object", "properties": {f"x{n}": {"type": "string"} for n in range(1000)}}
    with pytest.raises(Unsupported, match="arguments"):
        tool_format(name).build_call_syntax(FunctionTool("f", None, json.dumps(schema)))


@pytest.mark.parametrize(
    ("name", "tool", "properties"),
    [
        ("qwen3_coder", "f", {"a>b": {"type": "string"}}),
        ("qwen3_coder", "f", {"a": {"enum": ["</parameter>"]}}),
        ("pythonic", "f", {"a b": {"type": "string"}}),
        ("gemma4", "f", {"a": {"const": '<|"|>'}}),
        ("kimi_k2", "f g", {}),
        ("pythonic", "f(", {}),
    ],
)
def test_build_call_syntax_unrepresentable_tool_is_rejected(
    name: str, tool: str, properties: dict[str, object]
):
    schema = json.dumps({"type": "object", "properties": properties})
    with pytest.raises(Unsupported, match="cannot be represented"):
        tool_format(name).build_call_syntax(FunctionTool(tool, None, schema))
