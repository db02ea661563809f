"""Checks of Ollama's API: chat, generate, embeddings, models."""

from __future__ import annotations

import json
import math
from typing import Any

from ..check_catalog import Area
from ..dialects import OLLAMA_CHAT, OLLAMA_GENERATE
from ..error_bodies import check_ollama_error
from ..parsed_response import read_ollama
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_lines
from .generation import AREAS, STORY, request_stream, request_unstreamed
from .sample_schemas import PERSON, check_schema
from .sample_tools import WEATHER

CHAT = AREAS["ollama-chat"]
GENERATE = AREAS["ollama-generate"]
OTHERS = Area("ollama", claims=("ollama",), source=OLLAMA_CHAT.source)
TOOLS: list[JsonObject] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
]


async def request_chat(
    s: Session, prompt: str, limit: int, feature: str | None = None, /, **fields: Any
) -> JsonObject:
    return (
        await s.request(
            "/api/chat",
            OLLAMA_CHAT.build_request(s.model, prompt, limit, **fields),
            feature=feature,
        )
    ).json()


@CHAT.check("`/api/chat` streams unless `stream` is `false`.")
async def streams_by_default(s: Session) -> None:
    body = OLLAMA_CHAT.build_request(s.model, "Name a colour.", 16)
    del body["stream"]
    exchange = await s.request("/api/chat", body)
    lines = parse_lines(exchange.body)
    require(len(lines) > 1 and lines[-1]["done"], f"the response has {len(lines)} lines")


@CHAT.check("`done` is `true` only in the last line.")
async def stream_done(s: Session) -> None:
    states = [line["done"] for line in parse_lines((await request_stream(s, OLLAMA_CHAT)).body)]
    require(states[-1] is True and not any(states[:-1]), f"the values of done are {states}")


@CHAT.check("A response has `total_duration` and `eval_duration` in nanoseconds.")
async def durations(s: Session) -> None:
    reply = (await request_unstreamed(s, OLLAMA_CHAT)).json()
    require(
        isinstance(reply["total_duration"], int) and reply["total_duration"] > 1000,
        f"the response is {reply}",
    )
    require(
        reply["total_duration"] >= reply["eval_duration"],
        "eval_duration is longer than total_duration",
    )


@CHAT.check("A JSON Schema in `format` is enforced or rejected.")
async def schema(s: Session) -> None:
    answer = read_ollama(
        await request_chat(s, "Describe a person.", 200, "json_schema", format=PERSON)
    )
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@CHAT.check("`format: json` returns JSON, or is rejected.")
async def json_format(s: Session) -> None:
    answer = read_ollama(
        await request_chat(s, "Describe a person as JSON.", 200, "json_object", format="json")
    )
    if answer.reason != "length":
        json.loads(answer.text)


@CHAT.check("The `arguments` of a tool call are an object.")
async def tools(s: Session) -> None:
    reply = await request_chat(
        s, "What is the weather in Rome? Use the tool.", 200, "tools", tools=TOOLS
    )
    OLLAMA_CHAT.check_object(reply)


@CHAT.check("A tool call and its result in the history are accepted.")
async def tool_history(s: Session) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius"}}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "18", "tool_name": "get_weather"},
    ]
    reply = await request_chat(s, "", 16, messages=messages, tools=TOOLS)
    require(reply["done"], f"the response is {reply}")


@CHAT.check(
    "A request without messages loads the model, and returns `done_reason: load`.", level="should"
)
async def load(s: Session) -> None:
    exchange = await s.request("/api/chat", {"model": s.model, "messages": [], "stream": False})
    require(
        exchange.json().get("done_reason") == "load", f"the response is {exchange.body[:200]!r}"
    )


@CHAT.check("`num_predict: -1` (no limit) is accepted.", level="should")
async def no_limit(s: Session) -> None:
    body = OLLAMA_CHAT.build_request(s.model, "Name a colour.", -1)
    # The stream is closed after the status: the response might fill the context.
    async with s.stream("/api/chat", {**body, "stream": True}) as response:
        require(response.status == 200, f"status {response.status}")


@GENERATE.check("`/api/generate` streams unless `stream` is `false`.")
async def text_streams_by_default(s: Session) -> None:
    body = OLLAMA_GENERATE.build_request(s.model, "Name a colour.", 16)
    del body["stream"]
    lines = parse_lines((await s.request("/api/generate", body)).body)
    require(len(lines) > 1 and lines[-1]["done"], f"the response has {len(lines)} lines")


@GENERATE.check("With `raw`, the prompt is not longer than with the template.")
async def raw(s: Session) -> None:
    plain = (await request_unstreamed(s, OLLAMA_GENERATE)).json()["prompt_eval_count"]
    reply = (
        await s.request(
            "/api/generate",
            OLLAMA_GENERATE.build_request(s.model, STORY, 16, raw=True),
            feature="raw",
        )
    ).json()
    require(
        reply["prompt_eval_count"] <= plain,
        f"{reply['prompt_eval_count']} prompt tokens with raw, {plain} without",
    )


@OTHERS.check(
    "`/api/tags` lists the models with name, size, digest, modification time and details."
)
async def tags(s: Session) -> None:
    models = (await s.get("/api/tags")).json()["models"]
    require(models, "the list is empty")
    for model in models:
        for name in ("name", "model", "modified_at", "size", "digest", "details"):
            require(name in model, f"a model has no {name}")
        is_typed = isinstance(model["size"], int) and isinstance(model["details"], dict)
        require(is_typed, f"size is {model['size']!r}, details are {model['details']!r}")


@OTHERS.check("`/api/show` returns the details and capabilities of a model.")
async def show(s: Session) -> None:
    reply = (await s.request("/api/show", {"model": s.model})).json()
    require("completion" in reply["capabilities"], f"the capabilities are {reply['capabilities']}")
    for name in ("details", "model_info"):
        require(isinstance(reply.get(name), dict), f"{name} is {reply.get(name)!r}")


@OTHERS.check("`/api/show` returns 404 and Ollama's error body for an unknown model.")
async def show_unknown(s: Session) -> None:
    exchange = await s.post("/api/show", {"model": "no-such-model"})
    require(exchange.status == 404, f"status {exchange.status}")
    check_ollama_error(exchange.json())


@OTHERS.check("`/api/ps` lists the loaded models.")
async def ps(s: Session) -> None:
    exchange = await s.get("/api/ps")
    require(
        exchange.status == 200 and isinstance(exchange.json()["models"], list),
        f"status {exchange.status}",
    )


@OTHERS.check("`/api/version` returns a version.")
async def version(s: Session) -> None:
    text = (await s.get("/api/version")).json()["version"]
    require(text[0].isdigit(), f"the version is {text!r}")


@OTHERS.check("`/` returns `Ollama is running`: clients detect the server by it.", level="should")
async def root(s: Session) -> None:
    # The user agent is Ollama's client: a server may send browsers a web page instead.
    exchange = await s.get("/", headers={"user-agent": "ollama-python/0.6"})
    require(
        exchange.status == 200 and b"Ollama is running" in exchange.body,
        f"status {exchange.status}",
    )


@OTHERS.check("`/api/embed` returns one vector of length 1 per input.")
async def embed(s: Session) -> None:
    body = {"model": s.model, "input": ["a dog", "a cat"]}
    reply = (await s.request("/api/embed", body, feature="embeddings of this model")).json()
    vectors: list[list[float]] = reply["embeddings"]
    require(
        len(vectors) == 2 and reply["prompt_eval_count"],
        f"{len(vectors)} vectors, prompt_eval_count is {reply['prompt_eval_count']}",
    )
    norms = [math.sqrt(sum(value * value for value in vector)) for vector in vectors]
    require(all(abs(norm - 1) < 0.01 for norm in norms), f"the lengths are {norms}")
    alone: list[float] = (
        await s.request("/api/embed", {"model": s.model, "input": "a dog"})
    ).json()["embeddings"][0]
    similarities = [sum(x * y for x, y in zip(alone, vector, strict=True)) for vector in vectors]
    require(
        similarities[0] > 0.999,
        f"the first vector differs from that of the same input alone: {similarities}",
    )


@OTHERS.check("`/api/embeddings` returns one vector.")
async def embeddings(s: Session) -> None:
    body = {"model": s.model, "prompt": "a dog"}
    vector = (await s.request("/api/embeddings", body, feature="embeddings of this model")).json()[
        "embedding"
    ]
    require(
        vector and all(isinstance(value, float | int) for value in vector),
        "the embedding is empty or not a list of numbers",
    )


@OTHERS.check("A model name with the tag `:latest` refers to the same model.", level="should")
async def latest(s: Session) -> None:
    exchange = await s.post(
        "/api/chat", OLLAMA_CHAT.build_request(f"{s.model.partition(':')[0]}:latest", "Hi", 16)
    )
    require(
        exchange.status == 200 or ":" in s.model, f"status {exchange.status}: {exchange.message()}"
    )


@OTHERS.check("An unknown path below `/api` returns 404 or 405.")
async def unknown_path(s: Session) -> None:
    exchange = await s.post("/api/unknown", {})
    require(exchange.status in (404, 405), f"status {exchange.status}")
