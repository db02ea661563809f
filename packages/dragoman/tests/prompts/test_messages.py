"""The messages that a template gets for a conversation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.core.errors import RequestError, Unsupported
from dragoman.core.message import (
    Audio,
    CustomTool,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    Message,
    Part,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.prompts.render import MessageOptions, build_message_values, build_tool_values
from dragoman.prompts.template import TemplateFeatures

NOTHING = TemplateFeatures(
    accepts_strings=True,
    accepts_parts=False,
    needs_string_arguments=False,
    accepts_null_content=True,
    supports_developer=False,
    supports_tools=True,
    variables=frozenset(),
    fields=frozenset(),
    literals=frozenset(),
    split_separators=frozenset(),
    replaces_text=False,
)
LISTS = TemplateFeatures(
    accepts_strings=True,
    accepts_parts=True,
    needs_string_arguments=False,
    accepts_null_content=False,
    supports_developer=True,
    supports_tools=True,
    variables=frozenset(),
    fields=frozenset({"thinking"}),
    literals=frozenset(),
    split_separators=frozenset(),
    replaces_text=False,
)
ONLY_LISTS = TemplateFeatures(
    accepts_strings=False,
    accepts_parts=True,
    needs_string_arguments=False,
    accepts_null_content=False,
    supports_developer=False,
    supports_tools=False,
    variables=frozenset(),
    fields=frozenset(),
    literals=frozenset(),
    split_separators=frozenset(),
    replaces_text=False,
)


def same(text: str) -> str:
    return text


def values(
    *messages: Message,
    traits: TemplateFeatures = NOTHING,
    images: bool = False,
    thoughts: tuple[str, ...] = (),
) -> Any:
    return build_message_values(messages, MessageOptions(traits, frozenset(thoughts), images), same)


def user(*parts: Part) -> Message:
    return Message(Role.USER, parts)


def assistant(*parts: Part) -> Message:
    return Message(Role.ASSISTANT, parts)


def test_one_text_is_a_string() -> None:
    assert values(user(Text("hi")), traits=NOTHING) == [{"role": "user", "content": "hi"}]
    assert values(user(Text("hi")), traits=LISTS) == [{"role": "user", "content": "hi"}]


def test_several_texts_are_joined_where_the_template_takes_strings() -> None:
    assert values(user(Text("a"), Text("b"))) == [{"role": "user", "content": "a\nb"}]


def test_several_texts_stay_apart_where_the_template_takes_lists() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert values(user(Text("a"), Text("b")), traits=LISTS) == [{"role": "user", "content": parts}]


def test_a_template_that_takes_only_lists_gets_lists() -> None:
    content = [{"type": "text", "text": "a"}]
    assert values(user(Text("a")), traits=ONLY_LISTS) == [{"role": "user", "content": content}]
    assert values(assistant(Text("a")), traits=ONLY_LISTS) == [
        {"role": "assistant", "content": content}
    ]


def test_the_pieces_of_an_assistants_text_are_one_text() -> None:
    message = assistant(Text("Hel"), Text("lo"))
    for traits in (NOTHING, LISTS):
        assert values(message, traits=traits) == [{"role": "assistant", "content": "Hello"}]


def test_no_parts_are_an_empty_text() -> None:
    assert values(user(), assistant()) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
    ]


def test_names_are_passed_on() -> None:
    message = Message(Role.USER, (Text("hi"),), "ann")
    assert values(message) == [{"role": "user", "content": "hi", "name": "ann"}]


def test_a_refusal_is_content() -> None:
    assert values(assistant(Refusal("No."))) == [{"role": "assistant", "content": "No."}]


def test_arguments_are_an_object() -> None:
    message = assistant(Text("Look."), ToolCall("c1", "f", '{"a": [1, {"b": 2.5}]}'))
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": {"a": [1, {"b": 2.5}]}},
    }
    assert values(message) == [{"role": "assistant", "content": "Look.", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ("nothing", "nothing"),
        ("", {}),
        ("{}", {}),
        ('{"n": 12345678901234567890123}', {"n": 12345678901234567890123}),
        ('{"n": 1.0, "m": 1e2}', {"n": 1.0, "m": 100.0}),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ("[" * 3000, "[" * 3000),
    ],
)
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str, expected: object) -> None:
    [value] = values(assistant(ToolCall("c1", "f", arguments)))
    assert value["tool_calls"][0]["function"]["arguments"] == expected


def test_calls_alone_have_null_content_where_the_template_takes_it() -> None:
    message = assistant(ToolCall("c1", "f", "{}"))
    assert values(message, traits=NOTHING)[0]["content"] is None
    assert values(message, traits=LISTS)[0]["content"] == ""


def test_the_input_of_a_custom_tool_is_its_one_argument() -> None:
    [value] = values(assistant(ToolCall("c1", "f", "ls -l {", custom=True)))
    assert value["tool_calls"][0]["function"]["arguments"] == {"input": "ls -l {"}


def test_reasoning_goes_by_all_its_names() -> None:
    message = assistant(Reasoning("hm "), Reasoning("so"), Text("Yes."))
    expected = {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "hm so",
        "reasoning": "hm so",
    }
    assert values(message) == [expected]
    assert values(message, traits=LISTS) == [expected | {"thinking": "hm so"}]


def test_reasoning_is_cut_out_of_a_text_where_the_template_would_do_so() -> None:
    message = assistant(Text("<think>\nhm\n</think>\n\nYes."))
    expected = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
    cut = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm", "reasoning": "hm"}
    assert values(message) == [expected]
    assert values(message, thoughts=("</think>",)) == [cut]
    assert values(assistant(Text("hm</think>Yes.")), thoughts=("</think>",)) == [cut]


def test_results_of_tools_become_messages_of_their_own() -> None:
    called = assistant(ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "{}"))
    answered = user(
        Text("first"),
        ToolResult("c1", (Text("1"),)),
        ToolResult("c2", (Text("a"), Text("b"))),
        Text("go on"),
    )
    assert values(called, answered)[1:] == [
        {"role": "user", "content": "first"},
        {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f"},
        {"role": "tool", "content": "a\nb", "tool_call_id": "c2", "name": "g"},
        {"role": "user", "content": "go on"},
    ]


def test_a_tools_message_is_a_result() -> None:
    message = Message(Role.TOOL, (ToolResult("c9", (Text("1"),)),), "f")
    assert values(message) == [{"role": "tool", "content": "1", "tool_call_id": "c9", "name": "f"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ((Text("no such file"),), "Error: no such file"),
        ((Text("ERROR 5"),), "ERROR 5"),
        ((), "Error: "),
        ((Text("a"), Text("b")), "Error: a\nb"),
    ],
)
def test_a_failed_result_says_so(content: tuple[Text, ...], expected: str) -> None:
    [value] = values(Message(Role.TOOL, (ToolResult("c1", content, is_error=True),)))
    assert value["content"] == expected


def test_a_developer_is_the_system_unless_the_template_knows_better() -> None:
    message = Message(Role.DEVELOPER, (Text("Be brief."),))
    assert values(message, traits=NOTHING)[0]["role"] == "system"
    assert values(message, traits=LISTS)[0]["role"] == "developer"


def test_leading_instructions_are_one_message() -> None:
    system = Message(Role.SYSTEM, (Text("a"), Text("b")))
    developer = Message(Role.DEVELOPER, (Text("c"),))
    late = Message(Role.SYSTEM, (Text("d"),))
    for traits, role in ((NOTHING, "system"), (LISTS, "developer")):
        found = values(system, developer, user(Text("hi")), late, traits=traits)
        assert found[0] == {"role": role, "content": "a\nb\n\nc"}
        assert [value["role"] for value in found[1:]] == ["user", "system"]


@pytest.mark.parametrize(
    "part",
    [
        Image(RemoteMedia("http://example.invalid/a.png")),
        Audio(InlineMedia(b"x")),
        File(InlineMedia(b"x"), "a.pdf"),
    ],
)
def test_media_are_refused_by_default(part: Image | Audio | File) -> None:
    kind = type(part).__name__.lower()
    for traits in (NOTHING, LISTS):
        for message in (user(Text("see"), part), Message(Role.TOOL, (ToolResult("c1", (part,)),))):
            with pytest.raises(Unsupported, match=kind) as caught:
                values(message, traits=traits)
            assert caught.value.param == "messages"


def test_only_images_are_rendered_and_only_for_models_with_vision() -> None:
    image = Image(RemoteMedia("http://example.invalid/a.png"))
    found = values(user(Text("see"), image), traits=LISTS, images=True)
    assert found == [
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]}
    ]
    with pytest.raises(Unsupported, match="supports only text"):
        values(user(image), traits=NOTHING, images=True)
    with pytest.raises(Unsupported, match="audio"):
        values(user(Audio(InlineMedia(b"x"))), traits=LISTS, images=True)


@pytest.mark.parametrize(
    "message",
    [user(ToolCall("c1", "f", "{}")), assistant(ToolResult("c1", (Text("1"),)))],
)
def test_parts_in_the_wrong_message_are_refused(message: Message) -> None:
    with pytest.raises(RequestError) as caught:
        values(message)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_instructions_hold_only_text() -> None:
    picture = Message(Role.SYSTEM, (Image(RemoteMedia("x")),))
    for messages in ((picture,), (picture, picture)):
        with pytest.raises(Unsupported):
            values(*messages)


def test_functions_are_rendered_in_openais_form() -> None:
    tool = FunctionTool(
        "f", "Does it.", '{"type": "object", "properties": {"a": {"type": "integer"}}}', strict=True
    )
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "f", "description": "Does it.", "parameters": parameters}
    assert build_tool_values([tool], same) == [{"type": "function", "function": function}]


def test_a_function_without_parameters_takes_none() -> None:
    function: dict[str, object] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert build_tool_values([FunctionTool("f")], same) == [
        {"type": "function", "function": function}
    ]


def test_a_custom_tool_takes_one_string() -> None:
    description = "The input of the tool. It must follow this lark grammar:\nstart: X"
    properties = {"input": {"type": "string", "description": description}}
    parameters = {"type": "object", "properties": properties, "required": ["input"]}
    function: dict[str, object] = {
        "name": "sh",
        "description": "A shell.",
        "parameters": parameters,
    }
    tool = CustomTool("sh", "A shell.", "lark", "start: X")
    assert build_tool_values([tool], same) == [{"type": "function", "function": function}]


def test_every_string_of_the_users_is_visited_and_no_other() -> None:
    seen: list[str] = []

    def visit(text: str) -> str:
        seen.append(text)
        return text

    messages = (
        Message(Role.SYSTEM, (Text("t1"),), "n1"),
        Message(
            Role.ASSISTANT,
            (Reasoning("t2"), Text("t3"), ToolCall("t4", "t5", '{"t6": ["t7", {"t8": 1}]}')),
        ),
        Message(Role.TOOL, (ToolResult("t9", (Text("t10"),)),), "n2"),
        Message(
            Role.ASSISTANT,
            (ToolCall("t11", "t12", "t13"), ToolCall("t14", "t15", "t16", custom=True)),
        ),
    )
    build_message_values(messages, MessageOptions(NOTHING), visit)
    build_tool_values(
        [FunctionTool("t17", "t18", '{"t19": "t20"}'), CustomTool("t21", "t22", None, "t23")], visit
    )
    assert {f"t{n}" for n in range(1, 23)} | {"n1", "n2"} <= set(seen)
    assert any("t23" in text for text in seen)
    assert not {"role", "content", "user", "system", "text", "function", "arguments"} & set(seen)


def test_arguments_are_text_where_the_template_needs_text():
    features = msgspec.structs.replace(NOTHING, needs_string_arguments=True)
    calls = (
        ToolCall("c", "f", '{"a": 1}'),
        ToolCall("d", "g", 'x"', custom=True),
        ToolCall("e", "h", ""),
    )
    (value,) = build_message_values(
        [Message(Role.ASSISTANT, calls)], MessageOptions(features), same
    )
    arguments: Any = value
    assert [call["function"]["arguments"] for call in arguments["tool_calls"]] == [
        '{"a": 1}',
        '{"input":"x\\""}',
        "{}",
    ]
