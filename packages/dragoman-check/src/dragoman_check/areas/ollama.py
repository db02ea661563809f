"""Checks of Ollama's API: chat, generate, embeddings, models."""

from __future__ import annotations

import json
import math
from typing import Any

from ..client_answer import read_ollama
from ..dialects import OLLAMA_CHAT, OLLAMA_GENERATE
from ..error_bodies import check_ollama_error
from ..rules.json_values import require
from ..session import Area, Json, Session
from ..sse import parse_lines
from .generation import AREAS, STORY, ask_stream, ask_whole
from .sample_schemas import PERSON, check_schema
from .sample_tools import WEATHER

CHAT = AREAS["ollama-chat"]
GENERATE = AREAS["ollama-generate"]
OTHERS = Area("ollama", claims=("ollama",), source=OLLAMA_CHAT.source)
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
]


async def ask_chat(
    s: Session, prompt: str, limit: int, feature: str | None = None, /, **fields: Any
) -> Json:
    return (
        await s.ask("/api/chat", OLLAMA_CHAT.ask(s.model, prompt, limit, **fields), feature=feature)
    ).json()


@CHAT.check("A chat is a stream unless `stream` is false.")
async def streams_by_default(s: Session) -> None:
    body = OLLAMA_CHAT.ask(s.model, "Name a colour.", 16)
    del body["stream"]
    exchange = await s.ask("/api/chat", body)
    lines = parse_lines(exchange.body)
    require(len(lines) > 1 and lines[-1]["done"], f"{len(lines)} lines")


@CHAT.check("`done` is true in the last line alone.")
async def stream_done(s: Session) -> None:
    states = [line["done"] for line in parse_lines((await ask_stream(s, OLLAMA_CHAT)).body)]
    require(states[-1] is True and not any(states[:-1]), f"done is {states}")


@CHAT.check("The last line has the durations, in nanoseconds.")
async def durations(s: Session) -> None:
    reply = (await ask_whole(s, OLLAMA_CHAT)).json()
    require(
        isinstance(reply["total_duration"], int) and reply["total_duration"] > 1000,
        f"it is {reply}",
    )
    require(
        reply["total_duration"] >= reply["eval_duration"],
        "eval_duration is longer than total_duration",
    )


@CHAT.check("A JSON Schema in `format` is enforced, or rejected.")
async def schema(s: Session) -> None:
    answer = read_ollama(await ask_chat(s, "Describe a person.", 200, "json_schema", format=PERSON))
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@CHAT.check("`format: json` is answered with JSON, or rejected.")
async def json_format(s: Session) -> None:
    answer = read_ollama(
        await ask_chat(s, "Describe a person as JSON.", 200, "json_object", format="json")
    )
    if answer.reason != "length":
        json.loads(answer.text)


@CHAT.check("A call has its arguments as an object.")
async def tools(s: Session) -> None:
    reply = await ask_chat(
        s, "What is the weather in Rome? Use the tool.", 200, "tools", tools=TOOLS
    )
    OLLAMA_CHAT.judge_object(reply)


@CHAT.check("A call and its result in the history are accepted.")
async def tool_history(s: Session) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius"}}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "18", "tool_name": "get_weather"},
    ]
    reply = await ask_chat(s, "", 16, messages=messages, tools=TOOLS)
    require(reply["done"], f"it is {reply}")


@CHAT.check("A request without messages loads the model, and says so.", level="should")
async def load(s: Session) -> None:
    exchange = await s.ask("/api/chat", {"model": s.model, "messages": [], "stream": False})
    require(exchange.json().get("done_reason") == "load", f"it is {exchange.body[:200]!r}")


@CHAT.check("A limit of -1 is none.", level="should")
async def no_limit(s: Session) -> None:
    body = OLLAMA_CHAT.ask(s.model, "Name a colour.", -1)
    # The stream is closed after the status: the answer might fill the context.
    async with s.stream("/api/chat", {**body, "stream": True}) as response:
        require(response.status_code == 200, f"status {response.status_code}")


@GENERATE.check("A text is a stream unless `stream` is false.")
async def text_streams_by_default(s: Session) -> None:
    body = OLLAMA_GENERATE.ask(s.model, "Name a colour.", 16)
    del body["stream"]
    lines = parse_lines((await s.ask("/api/generate", body)).body)
    require(len(lines) > 1 and lines[-1]["done"], f"{len(lines)} lines")


@GENERATE.check("`raw` leaves out the template: the prompt is shorter.")
async def raw(s: Session) -> None:
    plain = (await ask_whole(s, OLLAMA_GENERATE)).json()["prompt_eval_count"]
    reply = (
        await s.ask(
            "/api/generate", OLLAMA_GENERATE.ask(s.model, STORY, 16, raw=True), feature="raw"
        )
    ).json()
    require(
        reply["prompt_eval_count"] <= plain,
        f"raw {reply['prompt_eval_count']}, else {plain} tokens",
    )


@GENERATE.check("`system` is part of the prompt.")
async def system(s: Session) -> None:
    plain = (await ask_whole(s, OLLAMA_GENERATE)).json()["prompt_eval_count"]
    body = OLLAMA_GENERATE.ask(s.model, STORY, 16, system="apple " * 30)
    with_system = (await s.ask("/api/generate", body)).json()["prompt_eval_count"]
    require(with_system > plain + 20, f"30 words of system: {plain} and {with_system} tokens")


@OTHERS.check("The models are listed with name, size, digest, time and details.")
async def tags(s: Session) -> None:
    models = (await s.get("/api/tags")).json()["models"]
    require(models, "no model")
    for model in models:
        for name in ("name", "model", "modified_at", "size", "digest", "details"):
            require(name in model, f"a model has no {name}")
        is_typed = isinstance(model["size"], int) and isinstance(model["details"], dict)
        require(is_typed, f"size is {model['size']!r}, details are {model['details']!r}")


@OTHERS.check("`/api/show` has the model's details and capabilities.")
async def show(s: Session) -> None:
    reply = (await s.ask("/api/show", {"model": s.model})).json()
    require("completion" in reply["capabilities"], f"capabilities {reply['capabilities']}")
    for name in ("details", "model_info"):
        require(isinstance(reply.get(name), dict), f"{name} is {reply.get(name)!r}")


@OTHERS.check("An unknown model of `/api/show` is a 404 with Ollama's error.")
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


@OTHERS.check("`/api/version` has a version.")
async def version(s: Session) -> None:
    text = (await s.get("/api/version")).json()["version"]
    require(text[0].isdigit(), f"the version is {text!r}")


@OTHERS.check("`/` is answered, as clients look there for a server.", level="should")
async def root(s: Session) -> None:
    # The user agent is Ollama's client: a server with a web page may answer browsers
    # differently.
    exchange = await s.get("/", headers={"user-agent": "ollama-python/0.6"})
    require(
        exchange.status == 200 and b"Ollama is running" in exchange.body,
        f"status {exchange.status}",
    )


@OTHERS.check("`/api/embed` has one vector for each text, of length 1.")
async def embed(s: Session) -> None:
    body = {"model": s.model, "input": ["a dog", "a cat"]}
    reply = (await s.ask("/api/embed", body, feature="embeddings of this model")).json()
    vectors: list[list[float]] = reply["embeddings"]
    require(
        len(vectors) == 2 and reply["prompt_eval_count"],
        f"{len(vectors)} vectors, {reply['prompt_eval_count']} tokens",
    )
    norms = [math.sqrt(sum(value * value for value in vector)) for vector in vectors]
    require(all(abs(norm - 1) < 0.01 for norm in norms), f"their lengths are {norms}")
    alone: list[float] = (await s.ask("/api/embed", {"model": s.model, "input": "a dog"})).json()[
        "embeddings"
    ][0]
    similarities = [sum(x * y for x, y in zip(alone, vector, strict=True)) for vector in vectors]
    require(
        similarities[0] > 0.999,
        f"the first text's vector alone is not the first of the list: {similarities}",
    )


@OTHERS.check("`/api/embeddings` has one vector.")
async def embeddings(s: Session) -> None:
    body = {"model": s.model, "prompt": "a dog"}
    vector = (await s.ask("/api/embeddings", body, feature="embeddings of this model")).json()[
        "embedding"
    ]
    require(
        vector and all(isinstance(value, float | int) for value in vector),
        "the embedding is empty or not a list of numbers",
    )


@OTHERS.check("A model's name with `:latest` is the same model.", level="should")
async def latest(s: Session) -> None:
    exchange = await s.post(
        "/api/chat", OLLAMA_CHAT.ask(f"{s.model.partition(':')[0]}:latest", "Hi", 16)
    )
    require(
        exchange.status == 200 or ":" in s.model, f"status {exchange.status}: {exchange.message()}"
    )


@OTHERS.check("An unknown path below /api is a 404.")
async def unknown_path(s: Session) -> None:
    exchange = await s.post("/api/unknown", {})
    require(exchange.status in (404, 405), f"status {exchange.status}")
