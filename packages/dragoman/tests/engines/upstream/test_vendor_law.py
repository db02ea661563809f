"""The output of a server through an upstream with a vendor's own API is the same.

The upstream is Dragoman with all of its routes; the server in front uses only those of
the vendor's API. Fields that the vendor's API cannot represent (logprobs, ids,
refusals) are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import httpx2
import msgspec
import pytest
from tests.engines.upstream.relays import VLLM, direct, relay
from tests.engines.upstream.test_law import (
    Sending,
    chat,
    messages,
    plain,
    responses,
    whole_and_streamed,
)
from tests.laws.anthropic_sdk import AnthropicSdk
from tests.laws.responses_sdk import ResponsesSdk
from tests.laws.sdk import OpenAiSdk
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.message import Reasoning, ToolCall, ToolResult
from dragoman.core.request import Conversation
from dragoman.engines.scripted import (
    CallTool,
    Fail,
    Refuse,
    Say,
    Script,
    ScriptedEngine,
    ScriptEntry,
    Think,
)
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman_check.rules import anthropic as anthropic_grammar
from dragoman_check.rules import chat as chat_grammar
from dragoman_check.rules import responses as responses_grammar

KINDS = ("anthropic", "responses", "gemini")
CALL = CallTool("add", '{"a": 1, "b": [2, {}]}', id="call_one")
REPLIES = {
    "text": (Say("One two three four."),),
    "bytes": (Say("Grüße, 日本! 😀"),),
    "call": (Say("I add."), CALL),
    "calls": (
        CALL,
        CallTool("add", "{}", id="call_two"),
        CallTool("add", '{"a": "}"}', id="call_three"),
    ),
    "text after a call": (CALL, Say("There it is.")),
    "nothing": (),
}
LIMIT = 100
BODIES = {
    "chat": chat(max_tokens=LIMIT),
    "chat cut short": chat(max_tokens=5),
    "chat with a stop": chat(max_tokens=LIMIT, stop=["three"]),
    "responses": responses(max_output_tokens=LIMIT),
    "messages": messages(),
    "messages with a stop": messages(stop_sequences=["three"]),
}
THOUGHT = (Think("Let me think."), Say("Done."))
ERRING = (chat(max_tokens=LIMIT), responses(), messages())


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return load_tiny_tokenizer()


def build_scripted(tokenizer: HfTokenizer, *entries: ScriptEntry) -> tuple[Models, ScriptedEngine]:
    engine = ScriptedEngine(Script(entries), tokenizer=tokenizer)
    return Models([ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)]), engine


def repeating(tokenizer: HfTokenizer, *parts: Any) -> Models:
    return build_scripted(tokenizer, ScriptEntry(parts, repeat=True))[0]


def without_sizes(body: bytes) -> bytes:
    """Drop the token counts of a prompt whose tools are declared in another dialect."""
    body = re.sub(rb'"(prompt_tokens|input_tokens|total_tokens)":\d+', rb'"\1":0', body)
    return re.sub(rb'"(cache[a-z_]*tokens)":(\d+|null)', rb'"\1":0', body)


def without_json_style(body: bytes) -> bytes:
    """Drop what Gemini's API does not carry: the spaces of arguments, which are an
    object there, and tokens written to the cache.
    """
    body = re.sub(rb'([:,]) (?=[\\"\[{\d])', rb"\1", body)
    return body.replace(b',"cache_write_tokens":0', b"")


def list_cases(kind: str, reply: str) -> dict[str, Sending]:
    """The requests whose responses are the same through the API of this kind."""
    cases: dict[str, Sending] = {}
    for name, (path, body) in whole_and_streamed(BODIES).items():
        # Arguments arrive in other pieces, and truncated ones have other rules in the
        # vendors' APIs: see the test below.
        if CALL in REPLIES[reply] and (body["stream"] or name == "chat cut short"):
            continue
        # Responses has no stop strings: they are applied here, and the vendor's counts
        # never come. Gemini does not say that a stop string ended an answer.
        if kind in ("responses", "gemini") and "stop" in name and reply == "text":
            continue
        cases[name] = (path, body)
    return cases


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("kind", KINDS)
async def test_scripted_responses_match_through_vendor_api(
    tokenizer: HfTokenizer, kind: str, reply: str
) -> None:
    cases = list_cases(kind, reply)
    async with direct(repeating(tokenizer, *REPLIES[reply]), VLLM) as client:
        expected = [await client.post(path, json=body) for path, body in cases.values()]
    async with relay(repeating(tokenizer, *REPLIES[reply]), VLLM, kind=kind) as client:
        found = [await client.post(path, json=body) for path, body in cases.values()]
    assert [each.status_code for each in (*found, *expected)] == [200] * 2 * len(cases)
    for name, *answers in zip(cases, found, expected, strict=True):
        bodies = [without_sizes(plain(answer.content)) for answer in answers]
        if kind == "gemini":
            bodies = [without_json_style(body) for body in bodies]
        assert bodies[0] == bodies[1], name


def check_chat(full: dict[str, Any], stream: bytes) -> None:
    chat_grammar.check_stream(stream, include_usage=False)
    streamed = json.loads(OpenAiSdk().chat(stream).to_json(warnings=False))
    assert comparable(streamed["choices"]) == comparable(full["choices"])


def check_messages(full: dict[str, Any], stream: bytes) -> None:
    anthropic_grammar.check_stream(stream)
    streamed = json.loads(AnthropicSdk().message(stream).to_json(warnings=False))
    assert comparable({**streamed, "id": ""}) == comparable({**full, "id": ""})


def check_responses(full: dict[str, Any], stream: bytes) -> None:
    responses_grammar.check_stream(stream)
    last, _ = ResponsesSdk().response(stream)
    streamed = json.loads(last.to_json(warnings=False))
    assert comparable(streamed["output"]) == comparable(full["output"])


SDKS: dict[str, tuple[tuple[str, dict[str, Any]], Callable[[dict[str, Any], bytes], None]]] = {
    "chat": (chat(max_tokens=LIMIT), check_chat),
    "messages": (messages(), check_messages),
    "responses": (responses(max_output_tokens=LIMIT), check_responses),
}


def comparable(value: Any) -> Any:
    """Drop nulls, fields that the SDK adds, ids, and encrypted values, which differ
    each time.
    """
    if isinstance(value, dict):
        fields = {key: comparable(item) for key, item in cast(dict[str, Any], value).items()}
        left_out = (
            "parsed",
            "parsed_arguments",
            "encrypted_content",
            "data",
            "id",
            "call_id",
            "index",
            "status",
        )
        if str(fields.get("signature")).startswith(("openai:", "gemini:")):
            del fields["signature"]
        return {
            key: item
            for key, item in fields.items()
            if item not in (None, "") and key not in left_out
        }
    return (
        [comparable(item) for item in cast(list[Any], value)] if isinstance(value, list) else value
    )


@pytest.mark.parametrize(
    "reply", [THOUGHT, (Think("Two."), CALL), (Refuse("I would rather not."),), *REPLIES.values()]
)
@pytest.mark.parametrize("kind", KINDS)
async def test_sdk_stream_matches_response(
    tokenizer: HfTokenizer, kind: str, reply: tuple[Any, ...]
) -> None:
    async with relay(repeating(tokenizer, *reply), kind=kind) as client:
        for (path, body), check in SDKS.values():
            full = await client.post(path, json=body)
            stream = await client.post(path, json={**body, "stream": True})
            assert (full.status_code, stream.status_code) == (200, 200)
            check(full.json(), stream.content)


STRICT = msgspec.structs.replace(VLLM, reasoning_verification="strict")
"""An upstream that rejects reasoning other than its own, unchanged, as the vendors do.
"""
FIRST = ScriptEntry((Think("I have to add."), CALL))
SECOND = ScriptEntry((Think("So it is 3."), Say("3")))


async def continue_chat(client: httpx2.AsyncClient) -> dict[str, Any]:
    path, body = chat(max_tokens=LIMIT)
    message = (await client.post(path, json=body)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
    fields = {key: value for key, value in message.items() if value is not None}
    return (
        await client.post(path, json={**body, "messages": [*body["messages"], fields, result]})
    ).json()


async def continue_messages(client: httpx2.AsyncClient) -> dict[str, Any]:
    path, body = messages()
    content = (await client.post(path, json=body)).json()["content"]
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "3"}
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    return (await client.post(path, json={**body, "messages": [*body["messages"], *turns]})).json()


async def continue_responses(client: httpx2.AsyncClient) -> dict[str, Any]:
    path, body = responses(max_output_tokens=LIMIT)
    output = (await client.post(path, json=body)).json()["output"]
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "3"}
    return (
        await client.post(path, json={**body, "input": [*body["input"], *output, result]})
    ).json()


@pytest.mark.parametrize("options", [VLLM, STRICT], ids=["lenient", "strict"])
@pytest.mark.parametrize("go_on", [continue_chat, continue_messages, continue_responses])
@pytest.mark.parametrize("kind", KINDS)
async def test_thinking_roundtrip_to_vendor_is_unchanged(
    tokenizer: HfTokenizer, kind: str, go_on: Callable[[httpx2.AsyncClient], Any], options: Any
) -> None:
    behind, engine = build_scripted(tokenizer, FIRST, SECOND)
    async with relay(behind, options, kind=kind, behind_options=STRICT) as client:
        answer = await go_on(client)
    assert "3" in json.dumps(answer.get("choices") or answer.get("content") or answer["output"])
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, Conversation)
    parts = [part for message in prompt.messages[-2:] for part in message.parts]
    assert parts[0] == Reasoning("I have to add.")
    assert isinstance(parts[1], ToolCall)
    assert json.loads(parts[1].arguments) == {"a": 1, "b": [2, {}]}
    assert isinstance(parts[2], ToolResult)
    assert parts[2].call_id == parts[1].id


@pytest.mark.parametrize("kind", KINDS)
async def test_modified_thinking_is_rejected_by_vendor(tokenizer: HfTokenizer, kind: str) -> None:
    behind, _ = build_scripted(tokenizer, FIRST, SECOND)
    path, body = messages()
    async with relay(behind, kind=kind, behind_options=STRICT) as client:
        content = (await client.post(path, json=body)).json()["content"]
        prefix = {"responses": "openai:", "gemini": "gemini:"}.get(kind, "")
        content[0]["signature"] = f"{prefix}AAAA"
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "3"}
        turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        answer = await client.post(path, json={**body, "messages": [*body["messages"], *turns]})
    assert answer.status_code == 400
    assert re.search("thinking|encrypted_content|thoughtSignature", answer.text)


@pytest.mark.parametrize("kind", KINDS)
async def test_vendor_reasoning_is_dropped_for_other_model(
    tokenizer: HfTokenizer, kind: str
) -> None:
    """Two models of one server: only the vendor can say whether a signature is its own."""
    behind, _ = build_scripted(tokenizer, FIRST)
    path, body = messages()
    async with relay(behind, kind=kind) as client:
        content = (await client.post(path, json=body)).json()["content"]
    here, engine = build_scripted(tokenizer, ScriptEntry((Say("ok"),), repeat=True))
    turns = [
        {"role": "assistant", "content": [content[0], {"type": "text", "text": "b"}]},
        body["messages"][0],
    ]
    async with direct(here) as client:
        answer = await client.post(path, json={**body, "messages": [*body["messages"], *turns]})
    assert "signature was not created by this server" in answer.headers["x-dragoman-warnings"]
    assert "I have to add" not in str(engine.requests[-1].prompt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_error_before_stream_keeps_status(
    tokenizer: HfTokenizer, kind: str, status: int
) -> None:
    async with relay(repeating(tokenizer, Fail(status, "No.")), kind=kind) as client:
        for (path, body), stream in product(ERRING, (False, True)):
            answer = await client.post(path, json={**body, "stream": stream})
            expected = 529 if status == 503 and path == "/v1/messages" else status
            assert answer.status_code == expected, answer.text


@pytest.mark.parametrize("kind", KINDS)
async def test_error_during_stream_uses_client_dialect(tokenizer: HfTokenizer, kind: str) -> None:
    async with relay(repeating(tokenizer, Say("One two"), Fail(503, "No.")), kind=kind) as client:
        for path, body in ERRING:
            full = await client.post(path, json=body)
            stream = await client.post(path, json={**body, "stream": True})
            assert full.status_code in (503, 529)
            assert stream.status_code == 200
            assert "error" in stream.text
            assert not re.search(
                r'"stop_reason":"end_turn"|"finish_reason":"stop"|response\.completed',
                stream.text,
            )


@pytest.mark.parametrize("kind", KINDS)
async def test_unsupported_vendor_parameter_is_rejected_or_warned(
    tokenizer: HfTokenizer, kind: str
) -> None:
    async with relay(repeating(tokenizer, Say("Hi")), kind=kind) as client:
        for name, value in {
            "logprobs": True,
            "prompt_logprobs": 1,
            "return_token_ids": True,
        }.items():
            path, body = chat(max_tokens=LIMIT, **{name: value})
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        answer = await client.post(
            "/v1/completions", json={"model": "m", "prompt": "Once", "max_tokens": 3}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
        path, body = chat(max_tokens=LIMIT, seed=5, presence_penalty=1, min_p=0.1)
        warnings = (await client.post(path, json=body)).headers["x-dragoman-warnings"]
    ignored = {"min_p"} if kind == "gemini" else {"seed", "presence_penalty", "min_p"}
    assert set(re.findall(r"(\w+) is ignored", warnings)) == ignored


@pytest.mark.parametrize("kind", KINDS)
async def test_count_tokens_uses_vendor_count(tokenizer: HfTokenizer, kind: str) -> None:
    path, body = messages()
    counted = {key: value for key, value in body.items() if key != "max_tokens"}
    async with relay(repeating(tokenizer, Say("Hi")), kind=kind) as client:
        count = (await client.post(f"{path}/count_tokens", json=counted)).json()["input_tokens"]
        assert count == (await client.post(path, json=body)).json()["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_n_choices_are_sent_as_separate_requests(
    tokenizer: HfTokenizer, kind: str, streamed: bool
) -> None:
    path, body = chat(max_tokens=LIMIT, n=3, stream=streamed)
    one = {**body, "n": 1, "stream": False}
    entries = [
        ScriptEntry((Think("Hm."), Say(word), CALL))
        for word in ("One two", "Three", "Four", "Five")
    ]
    behind, engine = build_scripted(tokenizer, *entries)
    async with relay(behind, kind=kind) as client:
        answer = await client.post(
            path, json=body | ({"stream_options": {"include_usage": True}} if streamed else {})
        )
        single = (await client.post(path, json=one)).json()
    assert answer.status_code == 200
    assert len(engine.requests) == 4
    assert all(request.choices == 1 for request in engine.requests)
    if streamed:
        chat_grammar.check_stream(answer.content, include_usage=True)
        full = json.loads(OpenAiSdk().chat(answer.content).to_json(warnings=False))
    else:
        full = answer.json()
    assert [choice["index"] for choice in full["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in full["choices"]} == {
        "One two",
        "Three",
        "Four",
    }
    assert [choice["finish_reason"] for choice in full["choices"]] == ["tool_calls"] * 3
    # Each of them is billed.
    assert full["usage"]["prompt_tokens"] == 3 * single["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_n_choices_with_one_failure_fail_request(tokenizer: HfTokenizer, kind: str) -> None:
    behind, _ = build_scripted(
        tokenizer,
        ScriptEntry((Say("One"),)),
        ScriptEntry((Fail(429, "No."),)),
        ScriptEntry((Say("Two"),)),
    )
    path, body = chat(max_tokens=LIMIT, n=2)
    async with relay(behind, kind=kind) as client:
        assert (await client.post(path, json=body)).status_code == 429


@pytest.mark.parametrize("kind", [*KINDS, "compatible"])
async def test_neutral_parameter_values_cause_no_warning(tokenizer: HfTokenizer, kind: str) -> None:
    off = {
        "top_k": -1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_p": 1,
    }
    path, body = chat(max_tokens=LIMIT, logit_bias={}, bad_words=[], **off)
    strict = msgspec.structs.replace(VLLM, strict=True)
    async with relay(repeating(tokenizer, Say("Hi")), strict, kind=kind) as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert "x-dragoman-warnings" not in answer.headers
        assert (await client.post(path, json={**body, "min_p": 0.5})).status_code == 400


@pytest.mark.parametrize(
    ("kind", "case", "param"),
    [
        (
            "responses",
            chat(max_tokens=LIMIT, messages=[{"role": "user", "content": ""}]),
            "messages",
        ),
        ("responses", chat(max_tokens=2**40), "max_tokens"),
        ("openai", chat(max_tokens=2**40), "max_tokens"),
        ("responses", responses(max_output_tokens=2**40), "max_output_tokens"),
    ],
)
async def test_warnings_and_errors_use_field_names_of_client(
    tokenizer: HfTokenizer, kind: str, case: tuple[str, dict[str, Any]], param: str
) -> None:
    path, body = case
    async with relay(repeating(tokenizer, Say("Hi")), kind=kind) as client:
        answer = await client.post(path, json=body)
    if answer.status_code == 200:
        assert answer.headers["x-dragoman-warnings"].startswith(f"{param} is reduced")
    else:
        assert answer.json()["error"]["param"] == param, answer.text
        assert f"'{param}'" in answer.json()["error"]["message"]


async def test_final_assistant_message_causes_continuation_warning(
    tokenizer: HfTokenizer,
) -> None:
    path, body = chat(max_tokens=LIMIT)
    messages = [*body["messages"], {"role": "assistant", "content": "The"}]
    async with relay(repeating(tokenizer, Say("Hi")), kind="anthropic") as client:
        answer = await client.post(path, json={**body, "messages": messages})
        assert "the upstream continues the last message" in answer.headers["x-dragoman-warnings"]
        wanted = {"continue_final_message": True, "add_generation_prompt": False}
        answer = await client.post(path, json={**body, "messages": messages, **wanted})
        assert "x-dragoman-warnings" not in answer.headers
