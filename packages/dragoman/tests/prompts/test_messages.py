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
from dragoman.prompts.template import TemplateFeatures
from dragoman.prompts.template_messages import (
    MessageOptions,
    build_message_values,
    build_tool_values,
)

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


def test_message_values_single_text_becomes_string() -> None:
    assert values(user(Text("hi")), traits=NOTHING) == [{"role": "user", "content": "hi"}]
    assert values(user(Text("hi")), traits=LISTS) == [{"role": "user", "content": "hi"}]


def test_message_values_string_template_joins_texts() -> None:
    assert values(user(Text("a"), Text("b"))) == [{"role": "user", "content": "a\nb"}]


def test_message_values_list_template_keeps_texts_separate() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert values(user(Text("a"), Text("b")), traits=LISTS) == [{"role": "user", "content": parts}]


def test_message_values_list_only_template_gets_lists() -> None:
    content = [{"type": "text", "text": "a"}]
    assert values(user(Text("a")), traits=ONLY_LISTS) == [{"role": "user", "content": content}]
    assert values(assistant(Text("a")), traits=ONLY_LISTS) == [
        {"role": "assistant", "content": content}
    ]


def test_message_values_assistant_texts_are_concatenated() -> None:
    message = assistant(Text("Hel"), Text("lo"))
    for traits in (NOTHING, LISTS):
        assert values(message, traits=traits) == [{"role": "assistant", "content": "Hello"}]


def test_message_values_without_parts_has_empty_content() -> None:
    assert values(user(), assistant()) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
    ]


def test_message_values_keep_message_name() -> None:
    message = Message(Role.USER, (Text("hi"),), "ann")
    assert values(message) == [{"role": "user", "content": "hi", "name": "ann"}]


def test_message_values_refusal_becomes_content() -> None:
    assert values(assistant(Refusal("No."))) == [{"role": "assistant", "content": "No."}]


def test_message_values_parse_tool_arguments_to_object() -> None:
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
def test_message_values_keep_non_object_arguments(arguments: str, expected: object) -> None:
    [value] = values(assistant(ToolCall("c1", "f", arguments)))
    assert value["tool_calls"][0]["function"]["arguments"] == expected


def test_message_values_tool_calls_alone_have_null_content() -> None:
    message = assistant(ToolCall("c1", "f", "{}"))
    assert values(message, traits=NOTHING)[0]["content"] is None
    assert values(message, traits=LISTS)[0]["content"] == ""


def test_message_values_custom_tool_input_becomes_argument() -> None:
    [value] = values(assistant(ToolCall("c1", "f", "ls -l {", custom=True)))
    assert value["tool_calls"][0]["function"]["arguments"] == {"input": "ls -l {"}


def test_message_values_set_all_reasoning_keys() -> None:
    message = assistant(Reasoning("hm "), Reasoning("so"), Text("Yes."))
    expected = {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "hm so",
        "reasoning": "hm so",
    }
    assert values(message) == [expected]
    assert values(message, traits=LISTS) == [expected | {"thinking": "hm so"}]


def test_message_values_extract_reasoning_if_template_splits() -> None:
    message = assistant(Text("<think>\nhm\n</think>\n\nYes."))
    expected = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
    cut = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm", "reasoning": "hm"}
    assert values(message) == [expected]
    assert values(message, thoughts=("</think>",)) == [cut]
    assert values(assistant(Text("hm</think>Yes.")), thoughts=("</think>",)) == [cut]


def test_message_values_tool_results_become_separate_messages() -> None:
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


def test_message_values_tool_message_becomes_result() -> None:
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
def test_message_values_failed_tool_result_includes_error(
    content: tuple[Text, ...], expected: str
) -> None:
    [value] = values(Message(Role.TOOL, (ToolResult("c1", content, is_error=True),)))
    assert value["content"] == expected


def test_message_values_developer_becomes_system_if_unsupported() -> None:
    message = Message(Role.DEVELOPER, (Text("Be brief."),))
    assert values(message, traits=NOTHING)[0]["role"] == "system"
    assert values(message, traits=LISTS)[0]["role"] == "developer"


def test_message_values_leading_instructions_are_merged() -> None:
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
def test_message_values_media_rejected_by_default(part: Image | Audio | File) -> None:
    kind = type(part).__name__.lower()
    for traits in (NOTHING, LISTS):
        for message in (user(Text("see"), part), Message(Role.TOOL, (ToolResult("c1", (part,)),))):
            with pytest.raises(Unsupported, match=kind) as caught:
                values(message, traits=traits)
            assert caught.value.param == "messages"


def test_message_values_images_require_vision_model() -> None:
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
def test_message_values_part_in_wrong_role_rejected(message: Message) -> None:
    with pytest.raises(RequestError) as caught:
        values(message)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_message_values_image_in_instructions_rejected() -> None:
    picture = Message(Role.SYSTEM, (Image(RemoteMedia("x")),))
    for messages in ((picture,), (picture, picture)):
        with pytest.raises(Unsupported):
            values(*messages)


def test_tool_values_function_uses_openai_format() -> None:
    tool = FunctionTool(
        "f", "Does it.", '{"type": "object", "properties": {"a": {"type": "integer"}}}', strict=True
    )
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "f", "description": "Does it.", "parameters": parameters}
    assert build_tool_values([tool], same) == [{"type": "function", "function": function}]


def test_tool_values_missing_parameters_become_empty_schema() -> None:
    function: dict[str, object] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert build_tool_values([FunctionTool("f")], same) == [
        {"type": "function", "function": function}
    ]


def test_tool_values_custom_tool_has_one_string_parameter() -> None:
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


def test_message_values_visit_every_user_string_and_no_other() -> None:
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


def test_message_values_string_arguments_template_gets_strings():
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
