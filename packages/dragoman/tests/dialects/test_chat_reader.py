"""Fields of a Chat Completions body are parsed."""

from __future__ import annotations

import base64
import json

import pytest

from dragoman.core.errors import Unsupported
from dragoman.core.events import (
    ChoiceFinished,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    Started,
    TextDelta,
    Token,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import (
    Audio,
    CustomTool,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    Message,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    UploadedMedia,
)
from dragoman.core.request import (
    AnyJsonObject,
    ContextFreeGrammar,
    Extras,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    Regex,
    SamplingOptions,
    StringChoices,
)
from dragoman.dialects.chat import read_chat
from dragoman.dialects.chat.wire import CHAT
from dragoman.dialects.interfaces import Header, ReaderOptions
from tests.pictures import PIXEL, build_png, data_url

from .bodies import (
    HELLO,
    OPTIONS,
    WEATHER,
    chat,
    chat_refusal,
    chat_request,
    conversation,
    render,
    render_full,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANSWER = (
    Started(1),
    TextDelta(0, "x"),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(1, 1)),
)


def messages(*wire: object) -> tuple[Message, ...]:
    return conversation(messages=list(wire)).messages


def user_part(part: object) -> object:
    (message,) = messages({"role": "user", "content": [part]})
    return message.parts[0]


def test_minimal_body_sets_no_option():
    request = chat_request()
    assert request.model == "tiny"
    assert request.sampling == SamplingOptions()
    assert request.limits == GenerationLimits()
    assert request.constraint is None
    assert request.logprobs is None
    assert not chat().stream
    assert chat().id_prefix == "chatcmpl-"


def test_null_optional_fields_equal_absent_fields():
    names = {row.name for row in CHAT.rows} - {"messages"}
    with_nulls = chat(**dict.fromkeys(names))
    assert with_nulls.requests == chat().requests
    assert (with_nulls.warnings, with_nulls.unknown) == ((), ())


def test_missing_model_without_default_is_rejected():
    error = chat_refusal(ReaderOptions())
    assert (error.param, error.code) == ("model", "missing_required_parameter")
    assert chat(ReaderOptions(), model="a/b").requests[0].model == "a/b"


def test_message_roles_are_parsed():
    read = messages(
        {"role": "developer", "content": "d"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u", "name": "ann"},
        {"role": "assistant", "content": "a"},
    )
    assert read == (
        Message(Role.DEVELOPER, (Text("d"),)),
        Message(Role.SYSTEM, (Text("s"),)),
        Message(Role.USER, (Text("u"),), "ann"),
        Message(Role.ASSISTANT, (Text("a"),)),
    )


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
@pytest.mark.parametrize("content", [None, []])
def test_missing_content_is_rejected_except_for_assistant(role: str, content: object):
    message = {"role": role, "content": content, "tool_call_id": "c"}
    assert chat_refusal(messages=[message]).param == "messages[0].content"
    assert messages({**message, "role": "assistant"})[0].parts == ()


def test_content_parts_are_parsed():
    assert user_part({"type": "text", "text": "x"}) == Text("x")
    assert user_part("x") == Text("x")
    assert user_part(
        {"type": "image_url", "image_url": {"url": "https://h/x.png", "detail": "low"}}
    ) == Image(RemoteMedia("https://h/x.png"), "low")
    assert user_part({"type": "file", "file": {"file_id": "file-1"}}) == File(
        UploadedMedia("file-1")
    )


def test_inline_media_is_decoded():
    encoded = base64.b64encode(b"\x00\x01").decode()
    assert user_part({"type": "image_url", "image_url": data_url(PIXEL, "image/PNG")}) == Image(
        InlineMedia(PIXEL, "image/png")
    )
    assert user_part(
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}
    ) == Audio(InlineMedia(b"\x00\x01", "audio/wav"), "wav")
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded}"}
    assert user_part({"type": "file", "file": file}) == File(
        InlineMedia(b"\x00\x01", "application/pdf"), "a.pdf"
    )


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://h/x",
        "/etc/passwd",
        "",
        "data:image/png,x",
        "data:image/png;base64,!",
        "data:x;base64,",
    ],
)
@pytest.mark.parametrize("kind", ["image_url", "audio_url"])
def test_unsupported_or_invalid_media_url_is_rejected(url: str, kind: str):
    for value, param in (({"url": url}, f"{kind}.url"), (url, kind)):
        part = {"type": kind, kind: value}
        error = chat_refusal(messages=[{"role": "user", "content": [part]}])
        assert error.param == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (data_url(b"GIF89 is what this is not"), "invalid_image"),
        (data_url(PIXEL, "image/jpeg"), "invalid_image_format"),
        (data_url(build_png(9000, 8000, b"")), "image_too_large"),
    ],
)
def test_invalid_or_too_large_image_is_rejected(url: str, code: str):
    part = {"type": "image_url", "image_url": {"url": url}}
    error = chat_refusal(messages=[{"role": "user", "content": [part]}])
    assert (error.param, error.code) == ("messages[0].content[0].image_url.url", code)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "text"}, "text"),
        ({"type": "image_url"}, "image_url"),
        (
            {"type": "image_url", "image_url": {"url": "http://x", "detail": "x"}},
            "image_url.detail",
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "exe"}},
            "input_audio.format",
        ),
        ({"type": "file", "file": {}}, "file.file_data"),
        ({"type": "hologram"}, "type"),
        ({"type": "video_url", "video_url": {"url": "http://x"}}, "type"),
    ],
)
def test_invalid_content_part_is_rejected_with_path(part: object, param: str):
    error = chat_refusal(messages=[{"role": "user", "content": [part]}])
    assert error.param == f"messages[0].content[0].{param}"


def test_replayed_assistant_message_keeps_all_parts():
    (message,) = messages(
        {
            "role": "assistant",
            "content": "text",
            "reasoning": "thought",
            "refusal": "no",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{bad json"},
                },
                {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "raw"}},
                {"id": "c3", "function": {"name": "h", "arguments": {"a": 1}}},
            ],
        }
    )
    assert message.parts == (
        Reasoning("thought"),
        Text("text"),
        Refusal("no"),
        ToolCall("c1", "f", "{bad json"),
        ToolCall("c2", "g", "raw", custom=True),
        ToolCall("c3", "h", '{"a":1}'),
    )


def test_tool_result_gets_tool_name_from_call():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    read = messages(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "21"}]},
    )
    assert read[1] == Message(Role.TOOL, (ToolResult("c1", (Text("21"),)),), "f")


def test_tool_result_without_call_id_is_rejected():
    assert (
        chat_refusal(messages=[{"role": "tool", "content": "x"}]).param
        == "messages[0].tool_call_id"
    )


def test_legacy_function_results_match_calls():
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    first, answer_1, second, answer_2 = messages(
        call,
        call,
        {"role": "function", "name": "f", "content": "1"},
        {"role": "function", "name": "f", "content": "2"},
    )
    ids = [
        part.id
        for message in (first, second)
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
    assert len(set(ids)) == 2
    answered = [
        part.call_id
        for m in (answer_1, answer_2)
        for part in m.parts
        if isinstance(part, ToolResult)
    ]
    assert answered == ids
    assert answer_1.name == "f"
    assert chat_refusal(messages=[{"role": "function", "content": "1"}]).param == "messages[0].name"


def test_tools_are_parsed():
    function = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
    tools = conversation(
        tools=[
            {"type": "function", "function": function},
            {"type": "custom", "custom": {"name": "g", "format": grammar}},
            {"type": "custom", "custom": {"name": "h", "format": {"type": "text"}}},
        ]
    ).tools
    assert tools == (
        FunctionTool("f", "d", json.dumps(SCHEMA, separators=(",", ":")), True),
        CustomTool("g", None, "lark", "start: /a/"),
        CustomTool("h"),
    )


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a\n"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "x" * 65}}], "tools[0].function.name"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": "x"}}],
            "tools[0].function.parameters",
        ),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "custom"}], "tools[0].custom"),
        (
            [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}}],
            "tools[0].custom.format.grammar",
        ),
        ([WEATHER, WEATHER], "tools"),
    ],
)
def test_invalid_tool_is_rejected(tools: object, param: str):
    assert chat_refusal(tools=tools).param == param


@pytest.mark.parametrize(
    ("wire", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (
            {"type": "function", "function": {"name": "weather"}},
            ToolChoice("required", ("weather",), is_named=True),
        ),
        (
            {"type": "custom", "custom": {"name": "shell"}},
            ToolChoice("required", ("shell",), is_named=True),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            ToolChoice("auto", ("weather",)),
        ),
    ],
)
def test_tool_choice_is_parsed(wire: object, choice: ToolChoice):
    tools = [WEATHER, {"type": "custom", "custom": {"name": "shell"}}]
    assert conversation(tools=tools, tool_choice=wire).tool_choice == choice


@pytest.mark.parametrize(
    ("wire", "param"),
    [
        ("always", "tool_choice"),
        ({"type": "function", "function": {"name": "nope"}}, "tool_choice.function.name"),
        ({"type": "custom", "custom": {"name": "weather"}}, "tool_choice.custom.name"),
        ({"type": "function"}, "tool_choice.function"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "nope"}}]},
            },
            "tool_choice.allowed_tools.tools[0]",
        ),
        ({"type": "web_search"}, "tool_choice"),
    ],
)
def test_tool_choice_of_undeclared_tool_is_rejected(wire: object, param: str):
    assert chat_refusal(tools=[WEATHER], tool_choice=wire).param == param


def test_tool_choice_required_without_tools_is_rejected():
    assert chat_refusal(tool_choice="required").param == "tool_choice"
    assert (
        chat_refusal(tools=[{"type": "web_search"}], tool_choice="required").param == "tool_choice"
    )


def test_parallel_tool_calls_is_parsed():
    assert conversation(tools=[WEATHER]).parallel_tool_calls
    assert not conversation(tools=[WEATHER], parallel_tool_calls=False).parallel_tool_calls


def test_legacy_functions_become_tools_with_single_call():
    read = conversation(functions=[{"name": "f"}], function_call={"name": "f"})
    assert read.tools == (FunctionTool("f"),)
    assert read.tool_choice == ToolChoice("required", ("f",), is_named=True)
    assert not read.parallel_tool_calls
    assert conversation(functions=[{"name": "f"}], function_call="none").tool_choice == ToolChoice(
        "none"
    )
    assert (
        chat_refusal(functions=[{"name": "f"}], function_call={"name": "g"}).param
        == "function_call.name"
    )
    assert chat_refusal(functions=[{"name": "f"}], tools=[WEATHER]).param == "functions"


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, AnyJsonObject()),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            JsonSchema("{}", strict=False),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": True},
                }
            },
            JsonSchema("{}", strict=True, name="n"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}},
                }
            },
            JsonSchema("{}", strict=False, name="n"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            AnyJsonObject(),
        ),
        ({"structured_outputs": {"json": {"type": "object"}}}, JsonSchema('{"type":"object"}')),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, JsonSchema('{"type": "object"}')),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StringChoices(("a", "b"))),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"'}},
            ContextFreeGrammar('root ::= "a"', "gbnf"),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            ContextFreeGrammar('start: "a"', "lark"),
        ),
        ({"structured_outputs": {"json_object": True}}, AnyJsonObject()),
        ({"guided_json": {}}, JsonSchema("{}")),
        ({"guided_regex": "a+"}, Regex("a+")),
        ({"guided_choice": ["a"]}, StringChoices(("a",))),
        ({"guided_grammar": 'root ::= "a"'}, ContextFreeGrammar('root ::= "a"', "gbnf")),
        ({"response_format": {"type": "text"}, "guided_regex": "a+"}, Regex("a+")),
    ],
)
def test_constraints_are_parsed(fields: dict[str, object], constraint: object):
    assert chat_request(**fields).constraint == constraint


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"jsn": {"type": "object"}}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_json": "not json"}, "guided_json"),
        ({"guided_json": "3"}, "guided_json"),
        ({"guided_regex": "a" * 5_000}, "guided_regex"),
        ({"guided_json": {"d": "x" * 70_000}}, "guided_json"),
    ],
)
def test_invalid_or_multiple_constraints_are_rejected(fields: dict[str, object], param: str):
    assert chat_refusal(**fields).param == param


def test_tools_and_response_format_are_combined():
    request = chat_request(tools=[WEATHER], response_format={"type": "json_object"})
    assert request.constraint == AnyJsonObject()


def test_sampling_fields_are_parsed():
    assert chat_request(
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        seed=-5,
        logit_bias={"7": -100, "8": 5.5},
        allowed_token_ids=[1, 2],
        bad_words=["no"],
    ).sampling == SamplingOptions(
        temperature=0.5,
        top_p=0.9,
        top_k=0,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        seed=-5,
        logit_bias=((7, -100.0), (8, 5.5)),
        allowed_token_ids=(1, 2),
        bad_words=("no",),
    )


def test_limit_fields_are_parsed():
    assert chat_request(
        max_tokens=9,
        min_tokens=2,
        stop="END",
        stop_token_ids=[3],
        include_stop_str_in_output=True,
        ignore_eos=True,
        truncate_prompt_tokens=-1,
    ).limits == GenerationLimits(9, 2, ("END",), (3,), True, True, -1)
    assert chat_request(stop=["a", "b"]).limits.stop == ("a", "b")


def test_max_completion_tokens_overrides_max_tokens():
    assert chat_request(max_tokens=5).limits.max_tokens == 5
    assert chat_request(max_completion_tokens=6).limits.max_tokens == 6
    assert chat_request(max_tokens=5, max_completion_tokens=6).limits.max_tokens == 6
    assert chat_request(max_tokens=-1).limits.max_tokens is None
    assert chat_request(max_tokens=5, max_completion_tokens=-1).limits.max_tokens is None


def test_conflicting_fields_are_rejected():
    assert chat_refusal(top_logprobs=3).param == "top_logprobs"
    assert chat_refusal(min_tokens=5, max_tokens=4).param == "min_tokens"
    assert chat_refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert chat_refusal(prompt_logprobs=0, stream=True).param == "prompt_logprobs"
    assert chat_refusal(stop=["x"] * 17).param == "stop"
    assert chat_refusal(continue_final_message=True).param == "continue_final_message"
    assert chat_refusal(ReaderOptions(default_model="m", max_n=4), n=5).param == "n"


def test_logprobs_fields_are_parsed():
    assert chat_request(logprobs=True).logprobs == 0
    assert chat_request(logprobs=True, top_logprobs=20).logprobs == 20
    assert chat_request(logprobs=False, top_logprobs=0).logprobs is None
    assert isinstance(chat_refusal(logprobs=True, top_logprobs=-1), Unsupported)
    assert chat_request(prompt_logprobs=2).prompt_logprobs == 2
    assert chat_request(prompt_logprobs=2).return_prompt


def test_reasoning_fields_are_parsed():
    assert conversation(reasoning_effort="none").reasoning == ReasoningOptions(False, "none")
    assert conversation(
        reasoning_effort="high", thinking_token_budget=100
    ).reasoning == ReasoningOptions(None, "high", 100)
    assert conversation(thinking_token_budget=-1).reasoning == ReasoningOptions()
    assert conversation(
        chat_template_kwargs={"enable_thinking": False}
    ).reasoning == ReasoningOptions(False)
    assert conversation(chat_template_kwargs={"thinking": True}).reasoning == ReasoningOptions(True)


def test_template_fields_set_template_options():
    template = conversation(
        chat_template="{{ x }}",
        chat_template_kwargs={"a": [1]},
        documents=[{"title": "t", "text": "x"}],
        add_generation_prompt=False,
    ).template
    assert template.template == "{{ x }}"
    assert template.kwargs == '{"a":[1]}'
    assert template.documents == '[{"title":"t","text":"x"}]'
    assert not template.add_generation_prompt


def test_continue_final_message_is_parsed():
    history = [*HELLO, {"role": "assistant", "content": "He"}]
    template = conversation(messages=history, continue_final_message=True).template
    assert template.continue_final_message
    assert not template.add_generation_prompt
    error = chat_refusal(messages=history, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"


def test_engine_specific_fields_are_passed_through():
    request = chat_request(
        kv_transfer_params={"do_remote_prefill": True},
        vllm_xargs={"x": 1},
        priority=-3,
        cache_salt="s",
    )
    assert request.extras == Extras('{"do_remote_prefill":true}', '{"x":1}')
    assert (request.priority, request.cache_salt) == (-3, "s")


def test_request_id_sets_completion_id():
    writer = chat(request_id="abc").writer(Header("chatcmpl-x", 1, "m"))
    assert b'"id":"chatcmpl-abc"' in writer.feed(Started(1))


def test_return_token_ids_includes_prompt_and_output_ids():
    call = chat(return_token_ids=True, return_prompt_text=True, stream=True)
    assert call.requests[0].return_prompt
    text = render(
        call,
        Started(2),
        PromptTokens(0, "hi", (Token(5, "hi"),)),
        TextDelta(0, "x", (Token(6, "x"),)),
    )
    assert '"prompt_token_ids":[5],"prompt_text":"hi"' in text
    assert text.index('"role"') < text.index('"content":"x"')
    assert '"token_ids":[6]' in text


def test_role_chunk_does_not_wait_for_prompt_tokens():
    text = render(chat(return_token_ids=True, stream=True), Started(2), TextDelta(0, "x"))
    assert text.index('"role"') < text.index('"content":"x"')


def test_include_reasoning_false_omits_reasoning():
    events = (Started(1), ReasoningDelta(0, "secret"), *ANSWER[1:])
    call = chat(include_reasoning=False, stream=True)
    assert "secret" not in render(call, *events) + render_full(call, *events)
    assert "secret" in render(chat(stream=True), *events)


def test_finish_reason_is_stop_for_named_function():
    events = (Started(1), ToolCallStart(0, "c", "weather"), ANSWER[2], ANSWER[3])
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, reason in (("required", "tool_calls"), ("auto", "tool_calls"), (named, "stop")):
        call = chat(tools=[WEATHER], tool_choice=choice)
        assert f'"finish_reason":"{reason}"' in render(call, *events)
        assert f'"finish_reason":"{reason}"' in render_full(call, *events)


def test_service_tier_is_default_when_requested():
    assert "service_tier" not in render_full(chat(), *ANSWER)
    assert '"service_tier":"default"' in render_full(chat(service_tier="auto"), *ANSWER)
    assert chat(service_tier="flex").warnings == (
        "service_tier: 'flex' is not available; 'default' was used",
    )


def test_read_chat_is_deterministic():
    body = b'{"messages":[{"role":"user","content":"x"}],"model":"m"}'
    assert read_chat(body, OPTIONS).requests == read_chat(body, OPTIONS).requests


def test_logit_bias_error_names_all_invalid_keys():
    error = chat_refusal(logit_bias={"x": 1, "5": 1, "-1": 1, "99999999999": 1})
    assert error.param == "logit_bias"
    assert error.message.endswith("not 'x', '-1', '99999999999'.")
    assert chat_refusal(logit_bias={f"x{i}": 1 for i in range(10)}).message.endswith(
        "'x7' and 2 more."
    )
