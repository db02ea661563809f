"""Ten turns of the OpenAI Agents SDK with the embedded model and constrained calls,
chained and replayed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunResult,
    function_tool,
)

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore

CITIES = ("Rome", "Oslo", "Paris", "Lima", "Tokyo", "Cairo")
QUIET = RunConfig(tracing_disabled=True)


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It is {10 + len(city)} degrees and sunny."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


def agent(http: httpx2.AsyncClient, temperature: float) -> Agent[None]:
    client = openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0
    )
    return Agent(
        name="Weather",
        instructions="You tell the weather.",
        tools=[get_weather],
        model=OpenAIResponsesModel(model="tiny", openai_client=client),
        model_settings=ModelSettings(
            temperature=temperature, tool_choice="required", max_tokens=100, extra_body={"seed": 7}
        ),
    )


async def run_chained(who: Agent[None]) -> list[RunResult]:
    results: list[RunResult] = []
    for city in CITIES:
        previous = results[-1].last_response_id if results else None
        question = f"How is the weather in {city}?"
        results.append(
            await Runner.run(who, question, previous_response_id=previous, run_config=QUIET)
        )
    return results


async def run_replayed(who: Agent[None]) -> list[RunResult]:
    results: list[RunResult] = []
    for city in CITIES:
        past: list[Any] = results[-1].to_input_list() if results else []
        question: Any = {"role": "user", "content": f"How is the weather in {city}?"}
        results.append(await Runner.run(who, [*past, question], run_config=QUIET))
    return results


def usages(results: list[RunResult]) -> list[tuple[int, int]]:
    """Return (input tokens, cached tokens) of every response."""
    usage_list = [response.usage for result in results for response in result.raw_responses]
    return [(usage.input_tokens, usage.input_tokens_details.cached_tokens) for usage in usage_list]


@pytest.mark.asyncio(loop_scope="module")
async def test_agent_turns_chained_match_replayed_and_other_dialects(
    http: httpx2.AsyncClient,
):
    who = agent(http, temperature=0)
    chain = await run_chained(who)
    calls = [item for result in chain for item in result.new_items if item.type == "tool_call_item"]
    assert len(calls) >= len(CITIES)
    replay = await run_replayed(who)
    assert [tokens for tokens, _ in usages(chain)] == [tokens for tokens, _ in usages(replay)]
    for usage_list in (usages(chain), usages(replay)):
        # All prompts but the first begin with the previous one.
        assert (
            sum(cached for _, cached in usage_list[1:])
            / sum(tokens for tokens, _ in usage_list[1:])
            > 0.85
        )
    items: list[Any] = replay[-1].to_input_list()
    responses, chat, messages = await count_prompt_tokens(http, items)
    assert (chat, messages) == (responses, responses)


async def count_prompt_tokens(
    http: httpx2.AsyncClient, items: list[dict[str, Any]]
) -> tuple[int, int, int]:
    """Return the number of prompt tokens of a conversation in each dialect."""
    schema = get_weather.params_json_schema
    named = {"name": "get_weather", "description": get_weather.description}
    function = {**named, "parameters": schema, "strict": True}
    system = "You tell the weather."
    question = {"role": "user", "content": "And which was best?"}
    responses = {
        "input": [*items, question],
        "instructions": system,
        "tools": [{"type": "function", **function}],
    }
    chat = {
        "messages": [{"role": "system", "content": system}, *as_chat(items), question],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 1,
    }
    messages = {
        "system": system,
        "messages": [*map(as_message, items), question],
        "tools": [{**named, "input_schema": schema, "strict": True}],
    }
    requests = [("/v1/responses/input_tokens", responses), ("/v1/chat/completions", chat)]
    requests.append(("/v1/messages/count_tokens", messages))
    counts = [(await http.post(path, json=body)).json() for path, body in requests]
    return counts[0]["input_tokens"], counts[1]["usage"]["prompt_tokens"], counts[2]["input_tokens"]


def as_chat(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert to chat messages. Calls belong to the assistant's message before them, as
    in Responses.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                if messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant"})
                called = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": called}
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append(
                    {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
                )
            case _:
                messages.append({"role": item["role"], "content": text_of(item)})
    return messages


def as_message(item: dict[str, Any]) -> dict[str, Any]:
    match item.get("type", "message"):
        case "function_call":
            use = {"type": "tool_use", "id": item["call_id"], "name": item["name"]}
            return {
                "role": "assistant",
                "content": [{**use, "input": json.loads(item["arguments"])}],
            }
        case "function_call_output":
            result = {
                "type": "tool_result",
                "tool_use_id": item["call_id"],
                "content": item["output"],
            }
            return {"role": "user", "content": [result]}
        case _:
            return {"role": item["role"], "content": text_of(item)}


def text_of(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.asyncio(loop_scope="module")
async def test_response_chain_prefix_cache_hits_sampled_tokens(http: httpx2.AsyncClient):
    """At a high temperature the model samples tokens that no tokenizer would choose.
    The prefix cache has those.
    """
    hot = {"model": "tiny", "temperature": 1.9}
    letters = {"seed": 1, "structured_outputs": {"regex": "[a-z ]{100,150}"}}
    first = (
        await http.post("/v1/responses", json={**hot, **letters, "input": "Tell me a story."})
    ).json()
    body = {**hot, "input": "And?", "previous_response_id": first["id"]}
    second = (await http.post("/v1/responses", json=body)).json()["usage"]
    before = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert second["input_tokens_details"]["cached_tokens"] > before - 17
    replay = [
        {"role": "user", "content": "Tell me a story."},
        *first["output"],
        {"role": "user", "content": "And?"},
    ]
    again = (
        await http.post("/v1/responses/input_tokens", json={"model": "tiny", "input": replay})
    ).json()
    assert again["input_tokens"] != second["input_tokens"]
