"""The README's claims about the embedded model, through the official SDK: streams equal
full responses.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import jsonschema_rs
import openai
import pytest
import pytest_asyncio
from openai.lib.streaming.chat import ChatCompletionStreamState

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": CITY, "strict": True},
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": CITY}}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": PERSON, "strict": True},
}


def custom(syntax: str, definition: str) -> dict[str, Any]:
    grammar = {"syntax": syntax, "definition": definition}
    return {
        "type": "custom",
        "custom": {"name": "write", "format": {"type": "grammar", "grammar": grammar}},
    }


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


CASES: dict[str, dict[str, Any]] = {
    "text": {"messages": user("Tell me a story.")},
    "greedy": {"messages": user("Count to 12."), "temperature": 0},
    "choices": {"messages": user("Hello"), "n": 3, "temperature": 1.3},
    "stop": {"messages": user("Count to 12."), "temperature": 0, "stop": [", 5", "never"]},
    "logprobs": {
        "messages": user("Tell me a story."),
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 30,
    },
    "reasoning": {"messages": user("What is 3 + 4?"), "reasoning_effort": "high", "logprobs": True},
    "schema": {
        "messages": user("Give me a JSON object for a person."),
        "response_format": FORMAT,
        "temperature": 1.5,
    },
    "required call": {
        "messages": user("How is the weather in Rome?"),
        "tools": [WEATHER],
        "tool_choice": "required",
    },
    "named call": {
        "messages": user("Hello"),
        "tools": [WEATHER, CLOCK],
        "tool_choice": {"type": "function", "function": {"name": "get_time"}},
    },
    "free call": {
        "messages": user("How is the weather in Oslo?"),
        "tools": [WEATHER, CLOCK],
        "temperature": 0,
    },
    "schema and reasoning": {
        "messages": user("Give me a JSON object for a person."),
        "response_format": FORMAT,
        "reasoning_effort": "high",
    },
    "regex": {"messages": user("Hello"), "structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}},
    "penalties": {
        "messages": user("Tell me a story."),
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.2,
        "top_k": 9,
    },
    "ids": {"messages": user("Hello"), "return_token_ids": True, "logprobs": True},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(max_model_len=2048), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await models.stop()


async def get_full(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/chat/completions", json={"max_tokens": 120, "seed": 5, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def accumulate_stream(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    """Return the object that the official SDK accumulates from the stream."""
    sdk = openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=client, max_retries=0
    )
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    chunks = await sdk.chat.completions.create(
        model="tiny",
        stream=True,
        messages=body.pop("messages"),
        stream_options={"include_usage": True},
        extra_body={"max_tokens": 120, "seed": 5, **body},
    )
    async for chunk in chunks:
        state.handle_chunk(chunk)
    return json.loads(state.current_completion_snapshot.to_json(exclude_none=True))


def comparable(answer: dict[str, Any]) -> Any:
    """Drop ids, nulls, differences due to the format (an index, an empty content), and
    cached tokens.
    """
    plain = json.loads(json.dumps(answer), object_hook=_without)
    plain["usage"].pop("prompt_tokens_details", None)
    return plain["choices"], plain["usage"]


def _without(found: dict[str, Any]) -> dict[str, Any]:
    if "function" in found:
        found = {"function": found["function"], "type": "function"}
    # The SDK does not accumulate vLLM's token ids; another test checks them.
    dropped = {key for key, value in found.items() if value is None or key == "token_ids"}
    return {
        key: value
        for key, value in found.items()
        if key not in dropped and (key, value) != ("content", "")
    }


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_stream_accumulates_to_full_response(client: httpx2.AsyncClient, name: str) -> None:
    body = CASES[name]
    assert comparable(await accumulate_stream(client, **body)) == comparable(
        await get_full(client, **body)
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_required_tool_call_validates_against_schema(client: httpx2.AsyncClient) -> None:
    answer = await get_full(client, **CASES["required call"])
    choice = answer["choices"][0]
    for call in choice["message"]["tool_calls"]:
        assert call["function"]["name"] == "get_weather"
        jsonschema_rs.validate(CITY, json.loads(call["function"]["arguments"]))
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("mode", ["required", "auto"])
async def test_custom_tool_input_matches_regex(client: httpx2.AsyncClient, mode: str) -> None:
    tool = custom("regex", "ab[cd]{3}|x")
    body = {
        "messages": user("How is the weather in Rome?"),
        "tools": [tool],
        "tool_choice": mode,
        "temperature": 1.5,
    }
    answers = [await get_full(client, **body, seed=seed) for seed in range(4)]
    calls = [
        call for answer in answers for call in answer["choices"][0]["message"].get("tool_calls", [])
    ]
    assert calls or mode == "auto"
    assert all(re.fullmatch("ab[cd]{3}|x", call["custom"]["input"]) for call in calls), calls


@pytest.mark.asyncio(loop_scope="module")
async def test_custom_tool_unenforced_grammar_warns(client: httpx2.AsyncClient) -> None:
    body = {"messages": user("Hello"), "tools": [custom("lark", 'start: "a"')], "max_tokens": 5}
    answer = await client.post("/v1/chat/completions", json=body)
    assert "tools[0].custom.format is not enforced" in answer.headers["x-dragoman-warnings"]


@pytest.mark.asyncio(loop_scope="module")
async def test_parallel_tool_calls_false_returns_one_call(client: httpx2.AsyncClient) -> None:
    for seed in range(3):
        body = {
            **CASES["required call"],
            "parallel_tool_calls": False,
            "temperature": 1.5,
            "seed": seed,
        }
        assert len((await get_full(client, **body))["choices"][0]["message"]["tool_calls"]) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_tool_choice_none_returns_no_tool_calls(client: httpx2.AsyncClient) -> None:
    body = {**CASES["free call"], "tool_choice": "none"}
    assert "tool_calls" not in (await get_full(client, **body))["choices"][0]["message"]


@pytest.mark.asyncio(loop_scope="module")
async def test_json_schema_output_validates(client: httpx2.AsyncClient) -> None:
    for name in ("schema", "schema and reasoning"):
        message = (await get_full(client, **CASES[name]))["choices"][0]["message"]
        jsonschema_rs.validate(PERSON, json.loads(message["content"]))


@pytest.mark.asyncio(loop_scope="module")
async def test_reasoning_separate_from_content(client: httpx2.AsyncClient) -> None:
    answer = await get_full(client, **CASES["reasoning"])
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] != ""
    assert "think>" not in message["content"] + message["reasoning"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_logprobs_cover_only_content_tokens(client: httpx2.AsyncClient) -> None:
    """As at OpenAI: neither reasoning, markers nor the end token have an entry."""
    for name in ("logprobs", "reasoning"):
        choice = (await get_full(client, **CASES[name]))["choices"][0]
        assert (
            "".join(entry["token"] for entry in choice["logprobs"]["content"])
            == choice["message"]["content"]
        )


@pytest.mark.asyncio(loop_scope="module")
async def test_logprobs_with_token_ids_cover_all_tokens(
    client: httpx2.AsyncClient,
) -> None:
    """As in vLLM: trainers read both and pair them."""
    choice = (await get_full(client, **CASES["ids"]))["choices"][0]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert choice["logprobs"]["content"][-1]["token"] == "<|im_end|>"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["ids", "reasoning", "stop"])
async def test_stream_token_ids_equal_full_response(client: httpx2.AsyncClient, name: str) -> None:
    body = {"max_tokens": 60, "seed": 5, **CASES[name], "return_token_ids": True}
    answer = await get_full(client, **body)
    stream = await client.post("/v1/chat/completions", json={**body, "stream": True})
    chunks = [
        json.loads(line[6:]) for line in stream.text.split("\n\n") if line.startswith("data: {")
    ]
    choices: list[Any] = [choice for chunk in chunks for choice in chunk["choices"]]
    pieces: list[list[int]] = [choice.get("token_ids") or [] for choice in choices]
    streamed = [id for piece in pieces for id in piece]
    assert streamed == answer["choices"][0]["token_ids"]
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert len(streamed) == answer["usage"]["completion_tokens"]


@pytest.mark.asyncio(loop_scope="module")
async def test_thinking_token_budget_limits_reasoning(client: httpx2.AsyncClient) -> None:
    body = {**CASES["reasoning"], "thinking_token_budget": 3, "temperature": 0}
    answer = await get_full(client, **body)
    # Three reasoning tokens and the forced end delimiter.
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 4


@pytest.mark.asyncio(loop_scope="module")
async def test_completion_echo_logprobs_scores_prompt_ids(client: httpx2.AsyncClient) -> None:
    """Batched ids, echo, logprobs 1, one token: as lm-eval sends them and slices the
    response.
    """
    ids = [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    choices = (await client.post("/v1/completions", json=body)).json()["choices"]
    for prompt_ids, choice in zip(ids, choices, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"]
        tops = choice["logprobs"]["top_logprobs"]
        assert len(logprobs) == len(prompt_ids) + 1
        assert logprobs[0] is None
        assert logprobs[-1] == max(tops[-1].values())


@pytest.mark.asyncio(loop_scope="module")
async def test_best_of_returns_highest_mean_logprob(client: httpx2.AsyncClient) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "seed": 3, "logprobs": 0}
    best = (await client.post("/v1/completions", json={**body, "best_of": 4})).json()
    each = (await client.post("/v1/completions", json={**body, "n": 4})).json()

    def mean(choice: dict[str, Any]) -> float:
        scores = choice["logprobs"]["token_logprobs"]
        return sum(scores) / len(scores)

    assert best["choices"][0]["text"] == max(each["choices"], key=mean)["text"]
    assert best["usage"]["completion_tokens"] == each["usage"]["completion_tokens"]


@pytest.mark.asyncio(loop_scope="module")
async def test_tokenize_detokenize_round_trips_text(client: httpx2.AsyncClient) -> None:
    text = "Hello <|im_start|>user é 😀"
    tokens = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == text
    rendered = (await client.post("/tokenize", json={"messages": user("Hello")})).json()
    usage = (await get_full(client, messages=user("Hello")))["usage"]
    assert rendered["count"] == usage["prompt_tokens"]
