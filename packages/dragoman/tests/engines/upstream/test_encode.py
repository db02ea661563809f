"""Requests to upstreams: the Chat reader parses them back to the same request, and
nothing is silently dropped.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dragoman.core.errors import Unsupported
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
    Constraint,
    ContextFreeGrammar,
    Conversation,
    Extras,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    Regex,
    SamplingOptions,
    StringChoices,
    TemplateOptions,
)
from dragoman.dialects.chat import read_chat
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.engines.upstream import KINDS, UpstreamDefaults
from dragoman.engines.upstream.openai_request import encode_request
from tests.pictures import PIXEL

ADD = FunctionTool("add", "Adds", '{"type":"object"}', True)
RUN = CustomTool("run", "Runs", "lark", "start: /a+/")


def build_conversation(*parts: Part, **fields: Any) -> Conversation:
    return Conversation((Message(Role.USER, parts or (Text("hi"),)),), **fields)


def body(
    request: GenerateRequest, kind: str = "dragoman", defaults: UpstreamDefaults | None = None
) -> dict[str, Any]:
    return json.loads(
        encode_request(request, KINDS[kind], "there", defaults or UpstreamDefaults()).body
    )


CONVERSATIONS = {
    "roles": Conversation(
        (
            Message(Role.SYSTEM, (Text("Be kind."),)),
            Message(Role.DEVELOPER, (Text("Be brief."),)),
            Message(Role.USER, (Text("hi"),), "ann"),
        )
    ),
    "several texts": build_conversation(Text("a"), Text(""), Text("b")),
    "media": build_conversation(
        Text("See:"),
        Image(InlineMedia(PIXEL, "image/png"), "low"),
        Image(RemoteMedia("https://x/y")),
        Audio(InlineMedia(b"wav", "audio/wav"), "wav"),
        File(InlineMedia(b"pdf", "application/pdf"), "a.pdf"),
    ),
    "a loop of tools": Conversation(
        (
            Message(Role.USER, (Text("add"),)),
            Message(
                Role.ASSISTANT, (Reasoning("Hm."), Text("Yes."), ToolCall("c", "add", '{"a": 1}'))
            ),
            Message(Role.TOOL, (ToolResult("c", (Text("2"),)),), "add"),
            Message(Role.ASSISTANT, (ToolCall("d", "run", "aa", custom=True),)),
        ),
        tools=(ADD, RUN),
        tool_choice=ToolChoice("required", ("add",), is_named=True),
    ),
    "allowed tools": build_conversation(
        tools=(ADD, RUN), tool_choice=ToolChoice("auto", ("run",)), parallel_tool_calls=False
    ),
    "no tools": build_conversation(tools=(ADD,), tool_choice=ToolChoice("none")),
    "a budget": build_conversation(reasoning=ReasoningOptions(None, "high", 50)),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversation_roundtrip_is_lossless(name: str) -> None:
    request = GenerateRequest("there", CONVERSATIONS[name], add_special_tokens=False)
    (read,) = read_chat(
        encode_request(request, KINDS["dragoman"], "there", UpstreamDefaults()).body,
        ReaderOptions(),
    ).requests
    assert read.prompt == request.prompt


CONSTRAINTS: list[Constraint] = [
    AnyJsonObject(),
    JsonSchema('{"type":"object"}', True, "house"),
    JsonSchema('{"type":"object"}', False, "house"),
    Regex("[ab]+"),
    StringChoices(("a", "b")),
    ContextFreeGrammar("start: /a/"),
    ContextFreeGrammar('root ::= "a"', "gbnf"),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_request_roundtrip_is_lossless(constraint: Constraint) -> None:
    request = GenerateRequest(
        "there",
        build_conversation(),
        choices=3,
        sampling=SamplingOptions(
            0.5, 0.9, 0, 0.1, 0.2, 0.3, 1.1, -5, ((7, -1.0),), (1, 2), ("no",)
        ),
        limits=GenerationLimits(30, 2, ("x", "y"), (9,), True, True, -1),
        constraint=constraint,
        logprobs=4,
        special_tokens_in_text=True,
        add_special_tokens=True,
        priority=-3,
        cache_salt="salt",
        extras=Extras('{"a":1}', '{"b":2}', session_id="s", cache_hit_threshold=0.25),
    )
    (read,) = read_chat(
        encode_request(request, KINDS["dragoman"], "there", UpstreamDefaults()).body,
        ReaderOptions(),
    ).requests
    # This server requests the ids of all tokens, including the prompt's.
    assert read == msgspec.structs.replace(
        request, return_prompt=True, constraint_param=read.constraint_param
    )


def test_encode_request_omits_unset_fields() -> None:
    assert body(GenerateRequest("m", build_conversation()), "compatible").keys() == {
        "model",
        "stream",
        "stream_options",
        "messages",
    }


def test_encode_request_applies_defaults_for_unset_fields() -> None:
    defaults = UpstreamDefaults(SamplingOptions(temperature=0.1, top_p=0.5), 9)
    payload = body(
        GenerateRequest("m", build_conversation(), sampling=SamplingOptions(temperature=1.0)),
        "openai",
        defaults,
    )
    assert (payload["temperature"], payload["top_p"], payload["max_completion_tokens"]) == (
        1.0,
        0.5,
        9,
    )


@pytest.mark.parametrize(("kind", "rest"), [("vllm", None), ("dragoman", -1), ("llama.cpp", -1)])
def test_encode_completion_without_limit_sets_max_tokens(kind: str, rest: int | None) -> None:
    assert body(GenerateRequest("m", "hi"), kind)["max_tokens"] == rest


def test_encode_request_uses_field_names_of_kind() -> None:
    sampling = SamplingOptions(repetition_penalty=1.2)
    assert "repeat_penalty" in body(GenerateRequest("m", "hi", sampling=sampling), "llama.cpp")
    assert "reasoning_content" not in str(
        body(GenerateRequest("m", CONVERSATIONS["a loop of tools"]), "openai")
    )
    assert (
        body(GenerateRequest("m", build_conversation(), constraint=Regex("a")), "sglang")["regex"]
        == "a"
    )
    roles = [
        each["role"]
        for each in body(GenerateRequest("m", CONVERSATIONS["roles"]), "vllm")["messages"]
    ]
    assert roles == ["system", "system", "user"]


def test_encode_request_filters_tools_without_allowed_tools() -> None:
    tools = (ADD, FunctionTool("sub"))
    payload = body(
        GenerateRequest(
            "m", build_conversation(tools=tools, tool_choice=ToolChoice("required", ("sub",)))
        ),
        "vllm",
    )
    assert ([tool["function"]["name"] for tool in payload["tools"]], payload["tool_choice"]) == (
        ["sub"],
        "required",
    )


def test_encode_request_sets_thinking_in_template_kwargs() -> None:
    payload = body(
        GenerateRequest("m", build_conversation(reasoning=ReasoningOptions(False))), "vllm"
    )
    assert payload["chat_template_kwargs"] == {"enable_thinking": False}
    options = TemplateOptions(kwargs='{"thinking": true}')
    payload = body(
        GenerateRequest(
            "m", build_conversation(reasoning=ReasoningOptions(True), template=options)
        ),
        "vllm",
    )
    assert payload["chat_template_kwargs"] == {"thinking": True}


def test_encode_request_prefixes_failed_tool_result() -> None:
    result = Message(Role.USER, (ToolResult("c", (Text("no"),), is_error=True), Text("Go on.")))
    messages = body(GenerateRequest("m", Conversation((result,))), "openai")["messages"]
    assert [(each["role"], each["content"]) for each in messages] == [
        ("tool", "Error: no"),
        ("user", "Go on."),
    ]


CONTINUED = TemplateOptions(continue_final_message=True)


@pytest.mark.parametrize(
    ("request_", "kind", "param"),
    [
        (
            GenerateRequest("m", build_conversation(), return_prompt=True),
            "openai",
            "return_token_ids",
        ),
        (GenerateRequest("m", (1, 2), return_prompt=True), "sglang", "return_token_ids"),
        (
            GenerateRequest("m", build_conversation(), limits=GenerationLimits(include_stop=True)),
            "openai",
            "include_stop_str_in_output",
        ),
        (
            GenerateRequest("m", build_conversation(), special_tokens_in_text=True),
            "openai",
            "skip_special_tokens",
        ),
        (GenerateRequest("m", build_conversation(tools=(RUN,))), "vllm", "tools"),
        (
            GenerateRequest("m", build_conversation(File(UploadedMedia("file-1")))),
            "openai",
            "messages",
        ),
        (
            GenerateRequest("m", build_conversation(template=TemplateOptions(template="{{ x }}"))),
            "vllm",
            "chat_template",
        ),
        (
            GenerateRequest(
                "m", build_conversation(template=TemplateOptions(continue_final_message=True))
            ),
            "openai",
            "continue_final_message",
        ),
        (
            GenerateRequest("m", build_conversation(), constraint=ContextFreeGrammar("start: /a/")),
            "llama.cpp",
            "structured_outputs.grammar",
        ),
    ],
)
def test_encode_request_unsupported_field_raises_with_param(
    request_: GenerateRequest, kind: str, param: str
) -> None:
    with pytest.raises(Unsupported) as found:
        body(request_, kind)
    assert found.value.param == param
