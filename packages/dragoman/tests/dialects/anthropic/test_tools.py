"""Tools and tool choice are parsed."""

from __future__ import annotations

import json

import pytest

from dragoman.core.message import FunctionTool, ToolChoice
from dragoman.dialects.anthropic.wire import AnthropicWireTool

from .bodies import (
    HELLO,
    NOTHING,
    WEATHER,
    JsonObject,
    conversation,
    messages,
    read_error,
    read_error_message,
)

SEARCH: JsonObject = {"type": "web_search_20260318", "name": "web_search", "max_uses": 5}
EDITOR = {"command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line"}
COMPUTER = {"action", "coordinate", "text"}
LATER_COMPUTER = {
    *COMPUTER,
    "start_coordinate",
    "scroll_direction",
    "scroll_amount",
    "duration",
}
MEMORY = {*EDITOR, "insert_text", "old_path", "new_path"}


def choose(name: str) -> JsonObject:
    return {"type": "tool", "name": name}


def tool(**fields: object) -> FunctionTool:
    (read,) = conversation(tools=[fields]).tools
    assert isinstance(read, FunctionTool)
    return read


@pytest.mark.parametrize("kind", [{}, {"type": None}, {"type": "custom"}])
def test_custom_tool_is_parsed(kind: JsonObject):
    read = tool(**kind, name="f", description="d", input_schema={"type": "object"}, strict=True)
    assert read == FunctionTool("f", "d", '{"type":"object"}', True)


def test_tool_input_examples_extend_description():
    read = tool(name="f", description="d", input_schema={}, input_examples=[{"a": 1}, {"a": 2}])
    assert read.description == 'd\n\nExamples of its input:\n{"a":1}\n{"a":2}'


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "memory_20250818"])
def test_anthropic_defined_tool_is_strict_with_examples(kind: str):
    read = tool(type=kind, name="x", strict=True, input_examples=[{"a": 1}])
    assert read.strict
    assert (read.description or "").endswith('.\n\nExamples of its input:\n{"a":1}')


@pytest.mark.parametrize("enables_zoom", [None, False, True])
def test_computer_tool_zooms_if_client_enables_it(enables_zoom: bool | None):
    read = tool(type="computer_20251124", name="computer", enable_zoom=enables_zoom)
    properties = json.loads(read.parameters or "")["properties"]
    assert ("zoom" in properties["action"]["enum"]) == bool(enables_zoom)
    assert ("region" in properties) == bool(enables_zoom)


def test_deferred_tools_are_included_in_prompt():
    """No client searches for them, and the prefix of the prompt stays stable."""
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    call = messages(tools=[search, {**WEATHER, "defer_loading": True}])
    assert [
        one.name for one in conversation(tools=[search, {**WEATHER, "defer_loading": True}]).tools
    ] == ["weather"]
    assert call.warnings == (
        "tools[0]: 'tool_search_tool_regex' cannot be run here; it was left out",
    )


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("bash_20250124", "bash", {"command", "restart"}),
        ("text_editor_20241022", "str_replace_editor", EDITOR),
        ("text_editor_20250728", "str_replace_based_edit_tool", {*EDITOR, "insert_text"}),
        ("computer_20241022", "computer", COMPUTER),
        ("computer_20251124", "computer", LATER_COMPUTER),
        ("memory_20250818", "memory", MEMORY),
    ],
)
def test_anthropic_defined_tools_get_description_and_schema(kind: str, name: str, fields: set[str]):
    for read in (tool(type=kind, name=name), tool(type=kind)):
        schema = json.loads(read.parameters or "")
        assert read.name == name
        assert read.description
        assert set(schema["properties"]) == fields
        assert set(schema["required"]) <= fields


def test_text_editor_undo_exists_only_in_old_versions():
    commands = [json.loads(tool(type=f"text_editor_{day}").parameters
    or "")["properties"]["command"]["enum"]
                for day in ("20241022", "20250124", "20250429", "20250728")]  # fmt: skip
    assert ["undo_edit" in each for each in commands] == [True, True, False, False]


def test_computer_tool_description_has_screen_size():
    read = tool(
        type="computer_20250124", name="computer", display_width_px=1024, display_height_px=768
    )
    assert "1024 by 768 pixels" in (read.description or "")
    assert "scroll" in json.loads(read.parameters or "")["properties"]["action"]["enum"]


@pytest.mark.parametrize(
    "hosted",
    [
        SEARCH,
        {"type": "code_execution_20260521", "name": "code_execution"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "browser_toolset_20260801"},
        {**WEATHER, "allowed_callers": ["code_execution_20260120"]},
    ],
)
def test_hosted_tool_is_skipped_with_warning(hosted: JsonObject):
    assert conversation(tools=[hosted]).tools == ()
    (warning,) = messages(tools=[hosted]).warnings
    assert warning.startswith("tools[0]: ")


def test_tool_with_direct_among_allowed_callers_is_included():
    assert tool(**WEATHER, allowed_callers=["code_execution_20260120", "direct"]).name == "weather"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "none"}, ToolChoice("none")),
        (choose("weather"), ToolChoice("required", ("weather",), is_named=True)),
    ],
)
def test_tool_choice_is_parsed(choice: object, expected: ToolChoice):
    parsed = conversation(tools=[WEATHER], tool_choice=choice)
    assert parsed.tool_choice == expected
    assert parsed.parallel_tool_calls


def test_disable_parallel_tool_use_is_parsed():
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not conversation(tools=[WEATHER], tool_choice=choice).parallel_tool_calls


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools.1.name: tool names must be unique"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: Field required"),
        ({"tools": [{"input_schema": NOTHING}]}, "tools.0.name: Field required"),
        ({"tools": [{"name": "a b", "input_schema": NOTHING}]}, "tools.0.name: expected 1 to 128"),
        (
            {"tools": [{"name": "f", "input_schema": "{}"}]},
            "tools.0.input_schema: expected an object",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice: 'any' needs at least one tool"),
        (
            {"tools": [SEARCH], "tool_choice": {"type": "any"}},
            "tool_choice: 'any' needs at least one tool",
        ),
        (
            {"tools": [SEARCH], "tool_choice": choose("web_search")},
            "tool_choice.name: 'web_search' cannot be run here",
        ),
        (
            {"tools": [WEATHER], "tool_choice": choose("x")},
            "tool_choice: Tool 'x' not found in provided tools",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name: Field required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type: 'some'."),
    ],
)
def test_invalid_tool_error_names_field(fields: JsonObject, message: str):
    assert read_error_message(**fields).startswith(message)


def change(kind: str, **what: object) -> list[JsonObject]:
    return [*HELLO, {"role": "system", "content": [{"type": kind, "tool": what}]}]


def test_tool_addition_adds_tool():
    added = change("tool_addition", type="tool_definition", definition=WEATHER)
    assert [one.name for one in conversation(messages=added).tools] == ["weather"]


def test_tool_addition_redefines_tool():
    newer = {**WEATHER, "description": "newer"}
    added = change("tool_addition", type="tool_definition", definition=newer)
    (read,) = conversation(tools=[WEATHER], messages=added).tools
    assert read.description == "newer"


def test_tool_removal_removes_tool():
    other = {**WEATHER, "name": "other"}
    gone = change("tool_removal", type="tool_reference", name="weather")
    assert [one.name for one in conversation(tools=[WEATHER, other], messages=gone).tools] == [
        "other"
    ]


def test_tool_addition_of_declared_tool_has_no_effect():
    again = change("tool_addition", type="tool_reference", name="weather")
    assert [one.name for one in conversation(tools=[WEATHER], messages=again).tools] == ["weather"]


def test_tool_addition_restores_removed_tool():
    gone = change("tool_removal", type="tool_reference", name="weather")
    again = change("tool_addition", type="tool_reference", name="weather")
    assert [one.name for one in conversation(tools=[WEATHER], messages=[*gone, *again]).tools] == [
        "weather"
    ]


@pytest.mark.parametrize("kind", ["tool_addition", "tool_removal"])
def test_tool_change_of_undeclared_tool_warns(kind: str):
    unknown = change(kind, type="tool_reference", name="other")
    call = messages(tools=[WEATHER], messages=unknown)
    assert call.warnings == (
        "messages[1].content[0].tool.name: no tool 'other' is declared; the block was ignored",
    )


def test_tool_addition_of_mcp_toolset_is_rejected():
    assert (
        read_error(messages=change("tool_addition", type="mcp_toolset_reference")).param
        == "messages[1].content[0].tool.type"
    )


def test_wire_tool_has_no_defer_loading_field():
    """A field of that type would need an implementation."""
    assert "defer_loading" not in AnthropicWireTool.__struct_fields__
