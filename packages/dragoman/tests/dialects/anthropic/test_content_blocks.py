"""Messages and their content blocks are parsed."""

from __future__ import annotations

import base64
import time

import msgspec
import pytest

from dragoman.core.message import (
    File,
    Image,
    InlineMedia,
    Message,
    Part,
    Reasoning,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolResult,
    UploadedMedia,
)
from tests import pictures

from .. import bodies
from .bodies import HELLO, JsonObject, conversation, messages, parts, read_error_message, turns

PIXEL = base64.b64encode(pictures.PIXEL).decode()
CALL: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}}
LOOK = ToolCall("toolu_1", "look", '{"a":1}')
CODE = {"type": "code_execution_result", "stdout": "1", "encrypted_stdout": "zzz"}
PLAIN = {"type": "base64", "media_type": "text/plain"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": PIXEL}
SEARCHED = {"type": "search_result", "title": "T", "source": "s"}


def text(value: str, **more: object) -> JsonObject:
    return {"type": "text", "text": value, **more}


def result(content: object, **more: object) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def test_consecutive_messages_of_same_role_are_merged():
    messages = turns(
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b"), text("c")]},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": "e"},
        {"role": "user", "content": "f"},
    )
    assert messages == (
        Message(Role.USER, (Text("a"), Text("b"), Text("c"))),
        Message(Role.ASSISTANT, (Text("d"), Text("e"))),
        Message(Role.USER, (Text("f"),)),
    )


def test_system_messages_keep_their_position():
    messages = turns(
        {"role": "user", "content": "a"}, {"role": "system", "content": "b"}, system="c"
    )
    assert [(message.role, message.parts) for message in messages] == [
        (Role.SYSTEM, (Text("c"),)),
        (Role.USER, (Text("a"),)),
        (Role.SYSTEM, (Text("b"),)),
    ]


def test_system_message_with_clear_at_is_dropped_next_turn():
    note = {"role": "system", "content": "note", "clear_at": "next_user_message"}
    user = {"role": "user", "content": "a"}
    answer = {"role": "assistant", "content": "b"}
    assert [message.role for message in turns(user, note)] == [Role.USER, Role.SYSTEM]
    assert [message.role for message in turns(user, note, answer, user)] == [
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
    ]


def test_messages_with_clear_at_take_linear_time():
    note = {"role": "system", "content": "note", "clear_at": "next_user_message"}
    started = time.process_time()
    messages = turns({"role": "user", "content": "a"}, *([note] * 60_000))
    assert time.process_time() - started < 15
    assert len(messages[1].parts) == 60_000


def test_tool_use_and_results_become_calls_and_tool_messages():
    messages = turns(
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [text("b"), CALL, {**CALL, "id": "toolu_2", "name": "find"}],
        },
        {
            "role": "user",
            "content": [result("c"), {**result("d"), "tool_use_id": "toolu_2"}, text("e")],
        },
    )
    assert messages[1:] == (
        Message(Role.ASSISTANT, (Text("b"), LOOK, ToolCall("toolu_2", "find", '{"a":1}'))),
        Message(Role.TOOL, (ToolResult("toolu_1", (Text("c"),)),), "look"),
        Message(Role.TOOL, (ToolResult("toolu_2", (Text("d"),)),), "find"),
        Message(Role.USER, (Text("e"),)),
    )


def test_conversation_equals_chat_completions_conversation():
    here = turns(
        {
            "role": "user",
            "content": [
                text("a"),
                {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm."}, text("b"), CALL],
        },
        {"role": "user", "content": [result("c")]},
        {"role": "user", "content": "d"},
        system="s",
    )
    image = {"type": "image_url", "image_url": "https://x/y"}
    call = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"a":1}'},
    }
    there = bodies.conversation(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "user", "content": [text("a"), image]},
            {"role": "assistant", "reasoning_content": "Hm.", "content": "b", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "c"},
            {"role": "user", "content": "d"},
        ]
    )
    assert here == there.messages


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x", (Text("x"),)),
        ("", ()),
        (None, ()),
        ([text("x"), text("y")], (Text("x"), Text("y"))),
        (
            [{"type": "image", "source": {"type": "url", "url": "https://x/y"}}],
            (Image(RemoteMedia("https://x/y")),),
        ),
        ([{"type": "tool_reference", "tool_name": "look"}], (Text("look"),)),
    ],
)
def test_tool_result_content_is_parsed(content: object, expected: tuple[Part, ...]):
    assert parts(result(content)) == (ToolResult("toolu_1", expected),)  # pyright: ignore[reportArgumentType]


def test_tool_result_error_flag_is_parsed():
    assert parts(result("no", is_error=True)) == (
        ToolResult("toolu_1", (Text("no"),), is_error=True),
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            {"type": "base64", "media_type": "image/png", "data": PIXEL},
            InlineMedia(pictures.PIXEL, "image/png"),
        ),
        ({"type": "url", "url": "https://x/y.png"}, RemoteMedia("https://x/y.png")),
        (
            {"type": "url", "url": f"data:image/png;base64,{PIXEL}"},
            InlineMedia(pictures.PIXEL, "image/png"),
        ),
        ({"type": "file", "file_id": "file_1"}, UploadedMedia("file_1")),
    ],
)
def test_image_sources_are_parsed(
    source: JsonObject, expected: InlineMedia | RemoteMedia | UploadedMedia
):
    assert parts({"type": "image", "source": source}) == (Image(expected),)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "x"}, Text("x")),
        ({**PLAIN, "data": base64.b64encode(b"x").decode()}, Text("x")),
        (PDF, File(InlineMedia(pictures.PIXEL, "application/pdf"))),
        ({"type": "url", "url": "https://x/y.pdf"}, File(RemoteMedia("https://x/y.pdf"))),
        ({"type": "file", "file_id": "file_1"}, File(UploadedMedia("file_1"))),
        ({"type": "content", "content": "x"}, Text("x")),
        ({"type": "content", "content": [text("x")]}, Text("x")),
    ],
)
def test_document_sources_are_parsed(source: JsonObject, expected: Part):
    assert parts({"type": "document", "source": source, "citations": {"enabled": False}}) == (
        expected,
    )


def test_document_title_and_context_precede_content():
    source = {"type": "text", "media_type": "text/plain", "data": "x"}
    messages = parts({"type": "document", "source": source, "title": "T", "context": "C"})
    assert messages == (Text("T"), Text("C"), Text("x"))


def test_search_result_is_parsed_as_text():
    block = {
        "type": "search_result",
        "title": "T",
        "source": "https://x",
        "content": [text("a"), text("b")],
    }
    assert parts(block) == (Text("T\nhttps://x"), Text("a"), Text("b"))


def test_citations_request_gives_warning():
    document = {
        "type": "document",
        "source": {"type": "content", "content": "x"},
        "citations": {"enabled": True},
    }
    cited = [{"type": "char_location", "cited_text": "x"}]
    assert messages(messages=[{"role": "user", "content": [document]}]).warnings == (
        "citations: citations are not supported",
    )
    assert (
        messages(
            messages=[*HELLO, {"role": "assistant", "content": [text("x", citations=cited)]}]
        ).warnings
        == ()
    )


def test_thinking_is_replayed_and_redacted_is_skipped():
    messages = turns(
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "thinking", "thinking": "", "signature": "withheld"},
                {"type": "redacted_thinking", "data": "xyz"},
                text("b"),
            ],
        },
        {"role": "user", "content": "c"},
    )
    assert messages[1].parts == (Reasoning("Hm."), Text("b"))


def test_cache_control_is_accepted_on_all_blocks():
    mark = {"type": "ephemeral", "ttl": "1h"}
    messages = turns(
        {"role": "user", "content": [text("a", cache_control=mark)]},
        {"role": "assistant", "content": [{**CALL, "cache_control": mark}]},
        {"role": "user", "content": [result([text("b", cache_control=mark)], cache_control=mark)]},
        system=[text("s", cache_control=mark)],
        tools=[{"name": "look", "input_schema": {}, "cache_control": mark}],
        cache_control=mark,
    )
    assert [message.role for message in messages] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
    ]


def test_hosted_tool_blocks_of_other_server_are_replayed():
    found = [
        {"type": "web_search_result", "title": "T", "url": "https://x", "encrypted_content": "zzz"}
    ]
    messages = turns(
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "server_tool_use",
                    "id": "srvtoolu_1",
                    "name": "web_search",
                    "input": {"query": "q"},
                },
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found},
                text("b"),
            ],
        },
        {"role": "user", "content": "c"},
    )
    assert messages[1:4] == (
        Message(Role.ASSISTANT, (ToolCall("srvtoolu_1", "web_search", '{"query":"q"}'),)),
        Message(Role.TOOL, (ToolResult("srvtoolu_1", (Text("T\nhttps://x"),)),), "web_search"),
        Message(Role.ASSISTANT, (Text("b"),)),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CODE, '{"type":"code_execution_result","stdout":"1"}'),
        ("plain", "plain"),
        ([text("x")], "x"),
    ],
)
def test_hosted_tool_results_are_parsed(content: object, expected: str):
    block = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": content}
    last = {"role": "assistant", "content": [block]}
    (message,) = turns(last)
    assert message == Message(Role.TOOL, (ToolResult("srvtoolu_1", (Text(expected),)),))
    assert conversation(messages=[last]).template.add_generation_prompt


def test_compaction_block_is_parsed_as_text():
    assert parts({"type": "compaction", "content": "In short: x."}, text("go on")) == (
        Text("In short: x."),
        Text("go on"),
    )
    assert parts({"type": "compaction", "content": None}, text("go on")) == (Text("go on"),)


def test_invalid_json_arguments_are_restored():
    call = {**CALL, "input": {"a": 1, "INVALID_JSON": '{"a": 1, b}'}}
    messages = turns(
        {"role": "assistant", "content": [call]}, {"role": "user", "content": [result("x")]}
    )
    assert messages[0].parts == (ToolCall("toolu_1", "look", '{"a": 1, b}'),)


def test_tool_arguments_are_preserved_verbatim():
    written = '{"n": 1.0, "big": 123456789012345678901234567890}'
    messages = turns(
        {"role": "assistant", "content": [{**CALL, "input": msgspec.Raw(written.encode())}]}, *HELLO
    )
    assert messages[0].parts == (ToolCall("toolu_1", "look", written),)


@pytest.mark.parametrize(
    ("role", "block", "message"),
    [
        ("user", {"type": "video"}, "type: 'video'. Supported values are: 'text', "),
        ("user", CALL, "type: 'tool_use'."),
        ("assistant", result("x"), "type: 'tool_result'."),
        ("user", {"type": "container_upload", "file_id": "f"}, "type: "),
        ("assistant", {**CALL, "input": [1]}, "input: expected an object"),
        ("assistant", {**CALL, "input": None}, "input: Field required"),
        ("assistant", {**CALL, "id": None}, "id: Field required"),
        ("user", {"type": "tool_result", "content": "x"}, "tool_use_id: Field required"),
        ("user", result({"a": 1}), "content: expected a string or an array"),
        ("user", {"type": "image"}, "source: Field required"),
        ("user", {"type": "image", "source": "x"}, "source: expected an object"),
        ("user", {"type": "image", "source": {"type": "url", "url": "file:///x"}}, "source.url: "),
        (
            "user",
            {"type": "document", "source": {**PLAIN, "data": "/w=="}},
            "source.data: expected text in UTF-8",
        ),
        ("user", {**SEARCHED, "content": {"a": 1}}, "content: expected an array of text blocks"),
    ],
)
def test_unreadable_block_error_names_field(role: str, block: JsonObject, message: str):
    assert read_error_message(messages=[{"role": role, "content": [block]}]).startswith(
        "messages.0.content.0." + message
    )
