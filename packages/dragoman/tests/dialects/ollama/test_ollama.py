"""Bodies of Ollama's routes: fields are parsed, and invalid ones are rejected."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from dragoman.core.errors import DragomanError, EngineError, RequestError, Unsupported
from dragoman.core.message import (
    Image,
    InlineMedia,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.core.request import (
    AnyJsonObject,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    SamplingOptions,
    TemplateOptions,
)
from dragoman.dialects.ollama import (
    AnswerClock,
    OllamaCall,
    OllamaModelCard,
    OllamaTimings,
    read_embed,
    read_embeddings,
    read_model_reference,
    read_ollama_chat,
    read_ollama_generate,
    render_ollama_error,
    render_show,
    render_tags,
)
from dragoman.dialects.ollama.keep_alive import read_keep_alive
from dragoman.dialects.ollama.messages import read_messages
from dragoman.dialects.ollama.wire import (
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_MODEL,
    OLLAMA_OPTIONS,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaModelBody,
    OllamaOptions,
    OllamaWireMessage,
)
from dragoman.dialects.parameter_table import ParameterSupport, ParameterTable, SupportStatus
from tests.pictures import PIXEL

from ..bodies import HELLO, OPTIONS

CLOCK = AnswerClock(lambda: 0.0, lambda: OllamaTimings(0, 0, 0, 0))
USER = Message(Role.USER, (Text("hello"),))
STRANGE = {"strange": True}


def chat(**fields: object) -> OllamaCall:
    return read_ollama_chat(
        msgspec.json.encode({"messages": HELLO, **fields}), OPTIONS, clock=CLOCK
    )


def generate(**fields: object) -> OllamaCall:
    return read_ollama_generate(
        msgspec.json.encode({"prompt": "hello", **fields}), OPTIONS, clock=CLOCK
    )


def request(**fields: object) -> GenerateRequest:
    return chat(**fields).call.requests[0]


def conversation(*messages: object, **fields: object) -> Conversation:
    prompt = request(messages=messages or HELLO, **fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def read_error(read: Any = chat, /, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    return caught.value


def test_minimal_chat_uses_server_defaults():
    parsed = chat()
    assert parsed.call.requests == (
        GenerateRequest(
            "tiny", Conversation((USER,)), constraint_param="format", add_special_tokens=False
        ),
    )
    assert (parsed.call.stream, parsed.has_prompt, parsed.keep_alive, parsed.num_ctx) == (
        True,
        True,
        None,
        None,
    )
    nothing = dict.fromkeys(set(OllamaChatBody.__struct_fields__) - {"messages"})
    assert chat(**nothing).call.requests == parsed.call.requests
    assert (
        chat(options=dict.fromkeys(OllamaOptions.__struct_fields__)).call.requests
        == parsed.call.requests
    )
    assert chat(format="", tools=[], options={}).call.requests == parsed.call.requests


def test_generate_prompt_is_conversation_unless_raw():
    request = generate(
        system="Be brief.", context=[5, 6], think=False, truncate=True
    ).call.requests[0]
    assert request.prompt == Conversation(
        (Message(Role.SYSTEM, (Text("Be brief."),)), USER),
        reasoning=ReasoningOptions(False),
        drop_oldest=True,
        preceding_ids=(5, 6),
    )
    assert (request.return_prompt, request.add_special_tokens) == (True, False)
    raw = generate(raw=True).call.requests[0]
    assert (raw.prompt, raw.return_prompt, raw.add_special_tokens) == ("hello", False, True)
    infill = generate(suffix="end")
    assert (infill.call.requests[0].prompt, infill.call.requests[0].suffix) == ("hello", "end")


def test_options_set_sampling_and_limits():
    options = {
        "temperature": 1.5,
        "top_k": 0,
        "top_p": 0.5,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 7.0,
        "num_predict": 9,
        "stop": ["END"],
        "num_ctx": 2048,
    }
    parsed = chat(options=options)
    assert parsed.call.requests[0].sampling == SamplingOptions(1.5, 0.5, 0, 0.1, 0.5, -0.5, 1.1, 7)
    assert parsed.call.requests[0].limits == GenerationLimits(max_tokens=9, stop=("END",))
    assert parsed.num_ctx == 2048


@pytest.mark.parametrize("unlimited", [-1, -2, 0, None])
def test_unlimited_num_predict_sets_no_limit(unlimited: int | None):
    assert request(options={"num_predict": unlimited, "seed": -1, "stop": "END"}) == request(
        options={"stop": ["END"]}
    )


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"num_predict": -3}, "options.num_predict"),
        ({"num_predict": 1.5}, "options.num_predict"),
        ({"num_ctx": 2**40}, "options.num_ctx"),
        ({"num_ctx": 1e300}, "options.num_ctx"),
        ({"seed": 2**63}, "options.seed"),
        ({"temperature": -1}, "options.temperature"),
        ({"repeat_penalty": 0}, "options.repeat_penalty"),
        ({"stop": [""]}, "options.stop"),
        ({"top_k": "5"}, "options.top_k"),
        ([], "options"),
    ],
)
def test_invalid_option_error_names_param(options: object, param: str):
    assert read_error(options=options).param == param


def test_format_becomes_constraint():
    assert request(format="json").constraint == AnyJsonObject()
    constraint = request(format={"type": "object"}).constraint
    assert constraint == JsonSchema('{"type":"object"}', strict=False)
    for wrong in ("yaml", 5, ["json"], True):
        assert read_error(format=wrong).param == "format"


def test_think_accepts_switch_or_level():
    assert conversation(think=True).reasoning == ReasoningOptions(True)
    assert conversation(think="low").reasoning == ReasoningOptions(True, "low")
    assert read_error(think="much").param == "think"
    assert generate(raw=True, think=True).call.warnings == (
        "think is ignored: a raw prompt determines whether the model thinks",
    )


def test_tool_results_match_calls_by_id_name_or_order():
    def call(name: str, id: str | None = None) -> dict[str, Any]:
        return {
            "function": {"name": name, "arguments": {"a": 1}},
            **({} if id is None else {"id": id}),
        }

    calls = {
        "role": "assistant",
        "thinking": "hm",
        "tool_calls": [call("f"), call("g"), call("f"), call("h", "mine")],
    }
    results = [
        {"role": "tool", "tool_call_id": "mine", "content": "h1"},
        {"role": "tool", "tool_name": "g", "content": "g1"},
        {"role": "tool", "content": "f1"},
        {"role": "tool", "tool_name": "f", "content": "f2"},
        {"role": "tool", "tool_name": "stranger", "content": "x"},
        {"role": "tool", "tool_name": "stranger", "tool_call_id": "", "content": "y"},
    ]
    _, called, *answered = conversation(*HELLO, calls, *results).messages
    assert called.parts[0] == Reasoning("hm")
    ids = [part.id for part in called.parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == 4
    tool_results = [
        part for message in answered for part in message.parts if isinstance(part, ToolResult)
    ]
    assert [result.call_id for result in tool_results[:4]] == [ids[3], ids[1], ids[0], ids[2]]
    assert [message.name for message in answered] == ["h", "g", "f", "f", "stranger", "stranger"]
    # Only a result with an id claims to answer a call.
    assert [result.answers_call for result in tool_results] == [
        True,
        False,
        False,
        False,
        False,
        False,
    ]


def test_unmatched_tool_results_take_linear_time():
    messages = msgspec.convert(
        [{"role": "assistant", "tool_calls": [{"function": {"name": "a"}}] * 20_000}]
        + [{"role": "tool", "tool_name": "b", "content": ""}] * 20_000,
        list[OllamaWireMessage],
    )
    started = time.process_time()
    read_messages(messages)
    assert time.process_time() - started < 5


def test_images_precede_text():
    data = base64.b64encode(PIXEL).decode()
    (message,) = conversation({"role": "USER", "content": "What?", "images": [data]}).messages
    assert message == Message(Role.USER, (Image(InlineMedia(PIXEL, "image/png")), Text("What?")))
    prompt = generate(images=[data]).call.requests[0].prompt
    assert isinstance(prompt, Conversation)
    assert isinstance(prompt.messages[0].parts[0], Image)
    assert read_error(messages=[{"role": "user", "images": ["?"]}]).param == "messages[0].images[0]"


def test_trailing_assistant_message_is_continued():
    begun = {"role": "assistant", "content": "The"}
    assert conversation(*HELLO, begun).template == TemplateOptions(
        add_generation_prompt=False, continue_final_message=True
    )
    called: dict[str, Any] = {**begun, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert conversation(*HELLO, called).template == TemplateOptions()
    assert conversation(*HELLO, {**begun, "content": ""}).template == TemplateOptions()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
        "arguments": "{}"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0]"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f"}}] * 2}, "tools"),
        ({"tools": [{"function": {"name": "f", "parameters": "none"}}]},
        "tools[0].function.parameters"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)  # fmt: skip
def test_invalid_field_error_names_param(fields: dict[str, Any], param: str):
    assert read_error(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"raw": True, "system": "a"}, "system"),
        ({"raw": True, "context": [1]}, "context"),
        ({"raw": True, "template": "a"}, "template"),
        ({"raw": True, "images": ["a"]}, "images"),
        ({"suffix": "a", "raw": True}, "suffix"),
        ({"suffix": "a", "system": "a"}, "suffix"),
        ({"suffix": "a", "think": True}, "suffix"),
    ],
)
def test_conflicting_fields_are_rejected(fields: dict[str, Any], param: str):
    assert read_error(generate, **fields).param == param


def test_empty_request_has_no_prompt():
    assert not chat(messages=[]).has_prompt
    assert not chat(messages=None).has_prompt
    assert not generate(prompt="", keep_alive=0).has_prompt


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (1.5, 1.5),
        (-1, math.inf),
        ("0", 0.0),
        ("300", 300.0),
        ("-1", math.inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("-1m", math.inf),
        ("1.5s", 1.5),
        (".5h", 1800.0),
        ("250ms", 0.25),
        ("+2µs", 2e-6),
    ],
)
def test_keep_alive_accepts_seconds_or_duration(value: float | str | None, seconds: float | None):
    assert read_keep_alive(value) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("text", ["", "m", "5", "5 m", "5d", "1h-30m", "٣s", "1" * 80 + "s"])
def test_keep_alive_invalid_duration_is_rejected(text: str):
    if text == "5":
        assert read_keep_alive(text) == 5.0
        return
    with pytest.raises(RequestError, match="keep_alive"):
        read_keep_alive(text)


def test_embed_truncates_and_normalizes_unlike_embeddings():
    parsed = read_embed(
        b'{"input": ["a", "b"], "dimensions": 0, "keep_alive": "5m", "options": {"num_ctx": 1}}',
        OPTIONS,
    )
    assert (parsed.texts.inputs, parsed.texts.truncate, parsed.dimensions, parsed.normalize) == (
        ("a", "b"),
        -1,
        None,
        True,
    )
    assert (parsed.keep_alive, parsed.warnings, parsed.unknown) == (300.0, (), ())
    assert read_embed(b'{"input": "a", "truncate": false}', OPTIONS).texts.truncate is None
    old = read_embeddings(b'{"prompt": "a"}', OPTIONS)
    assert (old.texts.inputs, old.texts.truncate, old.normalize) == (("a",), None, None)
    for wrong in (
        b'{"input": ["a", ""]}',
        b'{"input": 5}',
        json.dumps({"input": ["a"] * 3000}).encode(),
    ):
        with pytest.raises(RequestError):
            read_embed(wrong, OPTIONS)


def test_model_reference_accepts_name_or_model():
    assert read_model_reference(b'{"name": "a"}', OPTIONS).model == "a"
    assert (
        read_model_reference(b'{"name": "a", "model": "b", "stream": false}', OPTIONS).model == "b"
    )


def test_error_is_message_with_field_name():
    def read_message(error: DragomanError) -> object:
        return json.loads(render_ollama_error(error))["error"]

    assert read_message(EngineError("no")) == "no"
    assert read_message(Unsupported("no regex", param="response_format")) == "format: no regex"
    assert read_message(RequestError("format is wrong", param="format")) == "format is wrong"
    assert read_message(RequestError("\ud800\u2028", param="a")) == "a: ?\u2028"
    assert len(render_ollama_error(RequestError("a" * 10_000))) < 2_100


def test_model_list_has_tags_and_omits_unknown_details():
    plain = OllamaModelCard("org/a", "org/a", 0)
    tagged = OllamaModelCard("b:8b", "org/a", 0)
    models = json.loads(render_tags([plain, tagged]))["models"]
    assert [model["name"] for model in models] == ["org/a:latest", "b:8b"]
    assert models[0]["digest"] == models[1]["digest"]
    details = json.loads(render_show(plain))
    assert details["model_info"] == {"general.architecture": "unknown", "general.basename": "org/a"}
    assert not {"capabilities", "template", "parameters"} & details.keys()
    known = OllamaModelCard(
        "a", "a", 0, max_model_len=8, architecture="llama", quantization="Q4_K_M", format="gguf"
    )
    details = json.loads(render_show(known))
    assert details["model_info"]["llama.context_length"] == 8
    assert (details["details"]["families"], details["details"]["quantization_level"]) == (
        ["llama"],
        "Q4_K_M",
    )


Fields = dict[str, object]
TABLES: dict[str, tuple[ParameterTable, type[msgspec.Struct], Callable[[Fields], Any]]] = {
    "chat": (OLLAMA_CHAT, OllamaChatBody, lambda fields: chat(**fields).call),
    "generate": (OLLAMA_GENERATE, OllamaGenerateBody, lambda fields: generate(**fields).call),
    "options": (OLLAMA_OPTIONS, OllamaOptions, lambda fields: chat(options=fields).call),
    "embed": (
        OLLAMA_EMBED,
        OllamaEmbedBody,
        lambda fields: read_embed(msgspec.json.encode(fields), OPTIONS),
    ),
    "embeddings": (
        OLLAMA_EMBEDDINGS,
        OllamaEmbeddingsBody,
        lambda fields: read_embeddings(msgspec.json.encode(fields), OPTIONS),
    ),
    "model": (
        OLLAMA_MODEL,
        OllamaModelBody,
        lambda fields: read_model_reference(msgspec.json.encode(fields), OPTIONS),
    ),
}
OTHERS = [
    (name, row) for name, (table, _, _) in TABLES.items() for row in table.rows
    if row.status is not SupportStatus.HONOURED
]  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_honoured_parameters_match_struct_fields(name: str):
    table, wire, _ = TABLES[name]
    honoured = {row.name for row in table.rows if row.status is SupportStatus.HONOURED}
    # The options of embeddings are only validated and have no effect, so they count as
    # one field.
    accepted = {"options"} if name.startswith("embed") else set[str]()
    assert honoured | accepted == set(wire.__struct_fields__)


@pytest.mark.parametrize(("name", "row"), OTHERS, ids=lambda value: getattr(value, "name", value))
def test_parameter_status_matches_reader_effect(name: str, row: ParameterSupport):
    if (name, row.name) in (("embed", "options"), ("embeddings", "options")):
        return
    read = TABLES[name][2]
    path = "options." if name == "options" else ""
    for harmless in (None, *row.harmless):
        assert read({row.name: harmless}).warnings == ()
    match row.status:
        case SupportStatus.REFUSED:
            error = read_error(partial(read, {row.name: STRANGE}))
            assert (type(error), error.param) == (Unsupported, path + row.name)
        case SupportStatus.WARNED:
            (warning,) = read({row.name: STRANGE}).warnings
            assert warning.startswith(f"{path}{row.name}: ")
        case _:
            assert read({row.name: STRANGE}).warnings == ()
            assert read({row.name: STRANGE}).unknown == ()


def test_unknown_fields_are_reported():
    assert chat(foo=1, options={"bar": 1}).call.unknown == ("foo", "options.bar")


# From Ollama's api/types.go (0.12.11), and the options that older clients still send.
OLLAMA_FIELDS = {
    "chat": "model messages stream format keep_alive tools options think truncate shift logprobs "
    "top_logprobs",
    "generate": "model prompt suffix system template context stream raw format keep_alive images "
    "options think truncate"
    " shift logprobs top_logprobs width height steps",
    "options": "num_keep seed num_predict top_k top_p min_p typical_p repeat_last_n temperature "
    "repeat_penalty"
    " presence_penalty frequency_penalty stop num_ctx num_batch num_gpu main_gpu use_mmap "
    "num_thread numa low_vram"
    " f16_kv logits_all vocab_only use_mlock tfs_z mirostat mirostat_tau mirostat_eta "
    "penalize_newline"
    " embedding_only num_gqa rope_frequency_base rope_frequency_scale",
    "embed": "model input keep_alive truncate dimensions options",
    "embeddings": "model prompt keep_alive options",
    "model": "model name system template verbose options insecure username password stream",
}


@pytest.mark.parametrize("name", TABLES)
def test_parameter_table_covers_ollama_fields(name: str):
    known = {row.name for row in TABLES[name][0].rows}
    assert set(OLLAMA_FIELDS[name].split()) - known == set()
