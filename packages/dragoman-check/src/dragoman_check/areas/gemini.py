"""Checks of Google's Gemini API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from ..check_catalog import Area
from ..rules import gemini
from ..rules.json_values import JsonObject, require
from ..session import Session
from .gemini_parts import GEMINI_PARTS
from .generation import STORY
from .history import check_each_part, count_filler
from .sample_schemas import PERSON, check_schema
from .sample_tools import QUESTION, TIME, WEATHER
from .sampling import Sampler, add_sampling
from .several_parts import SeveralParts

GEMINI = Area("gemini", claims=("gemini",), source="https://ai.google.dev/api/generate-content")
TOOLS: list[JsonObject] = [
    {
        "functionDeclarations": [
            {
                "name": "get_weather",
                "description": "Weather of a city",
                "parametersJsonSchema": WEATHER,
            },
            {"name": "get_time", "description": "The time now", "parametersJsonSchema": TIME},
        ]
    }
]


def build_path(s: Session, method: str) -> str:
    return f"/v1beta/models/{quote(s.model)}:{method}"


def build_request(prompt: str, limit: int = 32, /, **fields: Any) -> JsonObject:
    """Build a request that is as deterministic as the API allows."""
    config = {"maxOutputTokens": limit, "temperature": 0, "seed": 1}
    return {
        "contents": [{"role": "user", "parts": [{"text": prompt}]}],
        "generationConfig": {**config, **fields.pop("generationConfig", {})},
        **fields,
    }


async def generate(
    s: Session, prompt: str = STORY, limit: int = 32, feature: str | None = None, /, **fields: Any
) -> JsonObject:
    """Return a whole answer, whose format is checked."""
    body = build_request(prompt, limit, **fields)
    answer = (await s.request(build_path(s, "generateContent"), body, feature=feature)).json()
    gemini.check_object(answer)
    return answer


def list_parts(answer: JsonObject) -> list[JsonObject]:
    return answer["candidates"][0]["content"]["parts"]


def join_text(answer: JsonObject) -> str:
    texts = [part for part in list_parts(answer) if "text" in part and not part.get("thought")]
    return "".join(part["text"] for part in texts)


def fold(chunks: list[JsonObject]) -> tuple[str, str]:
    """Return the text of chunks, and the last finish reason."""
    return "".join(map(join_text, chunks)), chunks[-1]["candidates"][0].get("finishReason")


async def check_rejected(s: Session, status: int, word: str, method: str, body: object) -> None:
    exchange = await s.post(method, body)
    require(exchange.status == status, f"status {exchange.status}")
    gemini.check_error(exchange.json())
    error = exchange.json()["error"]
    require(
        (error["code"], error["status"]) == (status, word),
        f"the code is {error['code']}, the status is {error['status']!r}",
    )


@GEMINI.check("The events of a stream with `alt=sse` add up to the whole answer.")
async def stream_equals_whole(s: Session) -> None:
    whole = await generate(s)
    exchange = await s.request(
        f"{build_path(s, 'streamGenerateContent')}?alt=sse", build_request(STORY)
    )
    kind = exchange.header("content-type") or ""
    require(kind.startswith("text/event-stream"), f"the Content-Type is {kind!r}")
    chunks = gemini.check_stream(exchange.body, allow_variants=True)
    require(len(chunks) > 1, "the stream has one chunk")
    require(fold(chunks) == fold([whole]), f"stream: {fold(chunks)}, whole: {fold([whole])}")
    counts = (
        chunks[-1]["usageMetadata"].get("candidatesTokenCount"),
        whole["usageMetadata"].get("candidatesTokenCount"),
    )
    require(counts[0] == counts[1], f"stream and whole have {counts} tokens")


@GEMINI.check("Without `alt=sse` a stream is a JSON array of the same chunks.")
async def stream_array(s: Session) -> None:
    whole = await generate(s)
    exchange = await s.request(build_path(s, "streamGenerateContent"), build_request(STORY))
    chunks = gemini.check_array(exchange.body, allow_variants=True)
    require(fold(chunks) == fold([whole]), f"array: {fold(chunks)}, whole: {fold([whole])}")


@GEMINI.check("`maxOutputTokens` limits the answer, which ends with `MAX_TOKENS`.")
async def limit(s: Session) -> None:
    answer = await generate(s, STORY, 5)
    reason = answer["candidates"][0]["finishReason"]
    count = answer["usageMetadata"]["candidatesTokenCount"]
    require((reason, count <= 5) == ("MAX_TOKENS", True), f"{reason} after {count} tokens")


@GEMINI.check("A stop sequence ends the answer before it, with `STOP`.")
async def stop(s: Session) -> None:
    text = join_text(await generate(s))
    words = text.split()
    require(len(words) > 3, f"the answer is too short: {text!r}")
    word = words[2]
    answer = await generate(s, STORY, 32, generationConfig={"stopSequences": [word]})
    require(join_text(answer) == text[: text.index(word)], f"the text is {join_text(answer)!r}")
    reason = answer["candidates"][0]["finishReason"]
    require(reason == "STOP", f"the finish reason is {reason!r}")


@GEMINI.check("`candidateCount` returns this many candidates, or is rejected.")
async def candidates(s: Session) -> None:
    config = {"candidateCount": 2, "temperature": 1}
    answer = await generate(s, STORY, 8, "n", generationConfig=config)
    indices = [candidate["index"] for candidate in answer["candidates"]]
    require(indices == [0, 1], f"the candidates are {indices}")


def add_each_part() -> None:
    def build(kind: SeveralParts) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            async def count_words(texts: Sequence[str]) -> int:
                return get_prompt_tokens(await generate(s, texts[0], 1))

            async def count(texts: Sequence[str]) -> int:
                return get_prompt_tokens(
                    await generate(s, "", 1, kind.feature, **kind.build(texts))
                )

            async def count_streamed(texts: Sequence[str]) -> int:
                path = f"{build_path(s, 'streamGenerateContent')}?alt=sse"
                exchange = await s.request(path, build_request("", 1, **kind.build(texts)))
                return get_prompt_tokens(
                    gemini.check_stream(exchange.body, allow_variants=True)[-1]
                )

            filler = await count_filler(s, GEMINI.name, count_words)
            await check_each_part(kind, filler, count, count_streamed)

        return run

    for kind in GEMINI_PARTS:
        rule = f"Each of several parts reaches the prompt: {kind.noun}."
        GEMINI.add(f"each-{kind.name}", rule, build(kind))


def get_prompt_tokens(answer: JsonObject) -> int:
    return answer["usageMetadata"]["promptTokenCount"]


add_each_part()


@GEMINI.check("`countTokens` returns the prompt tokens of the same call.")
async def count(s: Session) -> None:
    prompt = (await generate(s))["usageMetadata"]["promptTokenCount"]
    path = build_path(s, "countTokens")
    contents = {"contents": build_request(STORY)["contents"]}
    total = (await s.request(path, contents)).json()["totalTokens"]
    require(total == prompt, f"{total} tokens are counted, the prompt has {prompt}")


@GEMINI.check("`responseJsonSchema` is enforced or rejected.")
async def json_schema(s: Session) -> None:
    config = {"responseMimeType": "application/json", "responseJsonSchema": PERSON}
    answer = await generate(s, "Describe a person.", 200, "json_schema", generationConfig=config)
    if answer["candidates"][0]["finishReason"] != "MAX_TOKENS":
        check_schema(join_text(answer), PERSON)


@GEMINI.check("`responseSchema` with Google's types is enforced or rejected.")
async def openapi_schema(s: Session) -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"age": {"type": "INTEGER"}},
        "required": ["age"],
    }
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    answer = await generate(s, "Describe a person.", 200, "json_schema", generationConfig=config)
    if answer["candidates"][0]["finishReason"] != "MAX_TOKENS":
        value = json.loads(join_text(answer))
        require(isinstance(value.get("age"), int), f"the answer is {value!r}")


@GEMINI.check("The mode `ANY` forces a call of an allowed function, or is rejected.")
async def force_call(s: Session) -> None:
    calling = {"mode": "ANY", "allowedFunctionNames": ["get_weather"]}
    answer = await generate(
        s,
        QUESTION,
        300,
        "forced tools",
        tools=TOOLS,
        toolConfig={"functionCallingConfig": calling},
    )
    calls = [part["functionCall"] for part in list_parts(answer) if "functionCall" in part]
    require(calls, f"no call: the text is {join_text(answer)[:80]!r}")
    require(calls[0]["name"] == "get_weather", f"the call is of {calls[0]['name']!r}")
    check_schema(json.dumps(calls[0].get("args", {})), WEATHER)


@GEMINI.check("The mode `NONE` prevents calls.")
async def no_call(s: Session) -> None:
    config = {"functionCallingConfig": {"mode": "NONE"}}
    answer = await generate(s, QUESTION, 32, "tools", tools=TOOLS, toolConfig=config)
    calls = [part for part in list_parts(answer) if "functionCall" in part]
    require(not calls, f"the answer calls {calls}")


@GEMINI.check("A function call and its response in the history are accepted.")
async def call_history(s: Session) -> None:
    call = {"name": "get_weather", "args": {"city": "Rome", "unit": "celsius"}}
    response = {"name": "get_weather", "response": {"output": "18"}}
    contents = [
        {"role": "user", "parts": [{"text": QUESTION}]},
        {"role": "model", "parts": [{"functionCall": call}]},
        {"role": "user", "parts": [{"functionResponse": response}]},
    ]
    await generate(s, "", 16, "tools", contents=contents, tools=TOOLS)


@GEMINI.check("Fields in snake_case mean the same.", level="should")
async def snake_case(s: Session) -> None:
    body = {**build_request(STORY)}
    config = body.pop("generationConfig")
    body["generation_config"] = {
        "max_output_tokens": config["maxOutputTokens"],
        "temperature": 0,
        "seed": 1,
    }
    answer = (await s.request(build_path(s, "generateContent"), body)).json()
    expected = await generate(s)
    require(
        fold([answer]) == fold([expected]), f"snake_case: {fold([answer])}, else {fold([expected])}"
    )


@GEMINI.check("The list of models has the model, with its methods, and shows it alone.")
async def models(s: Session) -> None:
    listed = (await s.get("/v1beta/models?pageSize=1000")).json()["models"]
    name = f"models/{s.model}"
    found = [model for model in listed if model["name"] == name]
    require(found, f"the list has no {name}: {[model['name'] for model in listed][:5]}")
    methods = found[0]["supportedGenerationMethods"]
    require("generateContent" in methods, f"the methods are {methods}")
    alone = (await s.get(f"/v1beta/{quote(name)}")).json()
    require(alone["name"] == name, f"the name is {alone['name']!r}")


@GEMINI.check("An unknown model is rejected with 404 and `NOT_FOUND`.")
async def unknown_model(s: Session) -> None:
    path = "/v1beta/models/no-such-model:generateContent"
    await check_rejected(s, 404, "NOT_FOUND", path, build_request("Hi"))


@GEMINI.check("Values of a wrong type are rejected with 400 and `INVALID_ARGUMENT`.")
async def wrong_types(s: Session) -> None:
    path = build_path(s, "generateContent")
    for body in (
        build_request("Hi", generationConfig={"temperature": "hot"}),
        build_request("Hi", contents="Hi"),
        build_request("Hi", generationConfig={"responseMimeType": "text/none"}),
    ):
        await check_rejected(s, 400, "INVALID_ARGUMENT", path, body)


@GEMINI.check("`batchEmbedContents` returns the vectors of `embedContent`, in order.")
async def embeddings(s: Session) -> None:
    contents = [{"parts": [{"text": text}]} for text in ("a dog", "a cat")]
    requests = [{"model": f"models/{s.model}", "content": content} for content in contents]
    path = build_path(s, "batchEmbedContents")
    feature = "embeddings of this model"
    batch = (await s.request(path, {"requests": requests}, feature=feature)).json()["embeddings"]
    require(len(batch) == 2, f"{len(batch)} vectors for 2 texts")
    for content, vector in zip(contents, batch, strict=True):
        body = {"content": content}
        alone = (await s.request(build_path(s, "embedContent"), body)).json()["embedding"]
        pairs = zip(alone["values"], vector["values"], strict=True)
        require(
            all(abs(x - y) < 1e-3 for x, y in pairs),
            "a vector of the batch differs from that of its text alone",
        )


async def send(s: Session, prompt: str, limit: int, fields: JsonObject, feature: str | None) -> str:
    return join_text(await generate(s, prompt, limit, feature, generationConfig=fields))


add_sampling(
    Sampler(
        area=GEMINI,
        send=send,
        hot=2.0,
        seed="seed",
        narrow={"topP": 0.0001, "topK": 1},
        penalties={"frequencyPenalty": (1.9, -2.0), "presencePenalty": (1.9, -2.0)},
    )
)
