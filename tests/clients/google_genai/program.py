"""Google's official client against a server: prints one JSON line for each trial.
Argument: the address.
"""

from __future__ import annotations

import asyncio
import enum
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from google import genai
from google.genai import types
from pydantic import BaseModel, Field

LOOP = (
    '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] '
    "[[say 5 and 8]]"
)
BROKEN = "[[say So far]] [[error 503 out of memory]]"
CAPITAL = "What is the capital of Japan?"
SUM = "What is 17 + 26?"
WHO = "Who are you?"


class Person(BaseModel):
    """A person."""

    name: Literal["Ann", "Bob"]
    age: int = Field(ge=0, le=120)


class Name(enum.Enum):
    """A name."""

    ANN = "Ann"
    BOB = "Bob"


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def tell(name: str, work: Callable[[], dict[str, Any]]) -> None:
    try:
        result = work()
    except Exception as error:
        result = {
            "error": type(error).__name__,
            "status": getattr(error, "code", None),
            "kind": getattr(error, "status", None),
            "message": str(error),
        }
    print(json.dumps({"name": name, **result}, default=str), flush=True)


def summarize(responses: Iterable[types.GenerateContentResponse]) -> dict[str, Any]:
    """Fold the chunks of a stream, or a full response alone."""
    chunks = list(responses)
    parts = [part for chunk in chunks for part in chunk.parts or ()]
    calls = [part.function_call for part in parts if part.function_call]
    usage = chunks[-1].usage_metadata
    (last,) = chunks[-1].candidates or ()
    headers = getattr(chunks[0].sdk_http_response, "headers", None) or {}
    return {
        "text": "".join(part.text or "" for part in parts if not part.thought),
        "thoughts": "".join(part.text or "" for part in parts if part.thought),
        "calls": [[call.name, call.args] for call in calls],
        "signed": any(part.thought_signature for part in parts),
        "reason": last.finish_reason and last.finish_reason.name,
        "usage": [usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count]
        if usage
        else [],
        "warnings": headers.get("x-dragoman-warnings"),
    }


def configure(**fields: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(temperature=0, **fields)


CALLABLE = configure(
    tools=[add],
    thinking_config=types.ThinkingConfig(include_thoughts=True),
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)
AUTOMATIC = configure(tools=[add])
THINKING = configure(
    thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=-1)
)


def try_generation(client: genai.Client) -> None:
    def ask(name: str, model: str, contents: str, config: types.GenerateContentConfig) -> None:
        request: dict[str, Any] = {"model": model, "contents": contents, "config": config}

        async def collect() -> dict[str, Any]:
            stream = await client.aio.models.generate_content_stream(**request)
            return summarize([chunk async for chunk in stream])

        tell(name, lambda: summarize([client.models.generate_content(**request)]))
        tell(
            f"{name} streamed", lambda: summarize(client.models.generate_content_stream(**request))
        )
        tell(f"{name} streamed async", lambda: asyncio.run(collect()))

    ask("calls", "scripted", LOOP, CALLABLE)
    ask("text", "tiny", CAPITAL, configure())
    ask("thoughts", "tiny", SUM, THINKING)
    ask("length", "tiny", CAPITAL, configure(max_output_tokens=2))
    silent = configure(thinking_config=types.ThinkingConfig(thinking_budget=0))
    tell(
        "thoughts off",
        lambda: summarize(
            [client.models.generate_content(model="tiny", contents=SUM, config=silent)]
        ),
    )
    tell(
        "counted",
        lambda: {"tokens": client.models.count_tokens(model="tiny", contents=CAPITAL).total_tokens},
    )


def try_function_calling(client: genai.Client) -> None:
    def results(history: Iterable[types.Content] | None) -> list[Any]:
        parts = [part for content in history or () for part in content.parts or ()]
        return [
            part.function_response.response for part in parts if part.function_response is not None
        ]

    def whole() -> dict[str, Any]:
        response = client.models.generate_content(model="scripted", contents=LOOP, config=AUTOMATIC)
        history = response.automatic_function_calling_history
        return {"text": response.text, "results": results(history)}

    def streamed() -> dict[str, Any]:
        text = ""
        history: list[types.Content] = []
        for chunk in client.models.generate_content_stream(
            model="scripted", contents=LOOP, config=AUTOMATIC
        ):
            text += chunk.text or ""
            history = chunk.automatic_function_calling_history or history
        return {"text": text, "results": results(history)}

    def chat(*, is_stream: bool) -> dict[str, Any]:
        """Turns of a chat, the first of them with calls."""
        session = client.chats.create(model="scripted", config=AUTOMATIC)
        prompts = list[int]()
        texts = list[str]()
        for message in (LOOP, "[[say two]]", "[[say three]]"):
            chunks = (
                list(session.send_message_stream(message))
                if is_stream
                else [session.send_message(message)]
            )
            texts.append("".join(chunk.text or "" for chunk in chunks))
            usage = chunks[-1].usage_metadata
            prompts.append((usage and usage.prompt_token_count) or 0)
        history = session.get_history(curated=True)
        return {
            "texts": texts,
            "results": results(history),
            "roles": [content.role for content in session.get_history()],
            "prompts": prompts,
        }

    tell("loop", whole)
    tell("loop streamed", streamed)
    tell("chat", lambda: chat(is_stream=False))
    tell("chat streamed", lambda: chat(is_stream=True))
    forced = configure(
        tools=[add],
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(
                mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["add"]
            )
        ),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    tell(
        "forced",
        lambda: summarize(
            [client.models.generate_content(model="tiny", contents=SUM, config=forced)]
        ),
    )


def try_schemas(client: genai.Client) -> None:
    def ask(name: str, config: types.GenerateContentConfig, *, is_array: bool = False) -> None:
        request: dict[str, Any] = {"model": "tiny", "contents": WHO, "config": config}

        def read(chunks: Iterable[types.GenerateContentResponse]) -> dict[str, Any]:
            value = json.loads("".join(chunk.text or "" for chunk in chunks))
            people = value if is_array else [value]
            return {"valid": all(Person.model_validate(person).age >= 0 for person in people)}

        tell(f"{name} object", lambda: read([client.models.generate_content(**request)]))
        tell(
            f"{name} streamed object",
            lambda: read(client.models.generate_content_stream(**request)),
        )

    json_type = "application/json"
    classed = configure(response_mime_type=json_type, response_schema=Person)
    schema = Person.model_json_schema()
    ask("class", classed)
    ask("json", configure(response_mime_type=json_type, response_json_schema=schema))
    ask(
        "array",
        configure(response_mime_type=json_type, response_schema=list[Person]),
        is_array=True,
    )
    parsed: dict[str, Any] = {"model": "tiny", "contents": WHO, "config": classed}
    tell(
        "parsed",
        lambda: {"valid": isinstance(client.models.generate_content(**parsed).parsed, Person)},
    )
    choice = configure(response_mime_type="text/x.enum", response_schema=Name)
    tell(
        "enum",
        lambda: {
            "valid": client.models.generate_content(model="tiny", contents=WHO, config=choice).text
            in {"Ann", "Bob"}
        },
    )


def try_other_routes(client: genai.Client) -> None:
    def embed() -> dict[str, Any]:
        response = client.models.embed_content(model="tiny", contents=["a cat", "a dog"])
        return {"sizes": [len(one.values or ()) for one in response.embeddings or ()]}

    def list_async() -> dict[str, Any]:
        async def collect() -> list[str | None]:
            return [model.name async for model in await client.aio.models.list()]

        return {"names": asyncio.run(collect())}

    def show() -> dict[str, Any]:
        model = client.models.get(model="tiny")
        return {
            "model": model.name,
            "actions": model.supported_actions,
            "has_limit": bool(model.input_token_limit),
        }

    tell("embed", embed)
    tell("list", lambda: {"names": [model.name for model in client.models.list()]})
    tell("list async", list_async)
    tell("show", show)


def try_errors(client: genai.Client) -> None:
    def ask(contents: str, model: str = "scripted", **fields: Any) -> dict[str, Any]:
        return summarize(
            [client.models.generate_content(model=model, contents=contents, config=fields)]
        )

    tell("unknown", lambda: ask("a", model="other"))
    tell("audio", lambda: ask("a", response_modalities=["AUDIO"]))
    tell("cached", lambda: ask("a", cached_content="cachedContents/a"))
    tell("out of range", lambda: ask("a", top_p=2))
    tell("refused", lambda: ask("[[error 429 slowly]]"))
    tell("broken", lambda: ask(BROKEN))
    tell(
        "broken stream",
        lambda: summarize(client.models.generate_content_stream(model="scripted", contents=BROKEN)),
    )


def main(address: str) -> None:
    client = genai.Client(
        api_key="none",
        http_options=types.HttpOptions(
            base_url=address, retry_options=types.HttpRetryOptions(attempts=1)
        ),
    )
    try_generation(client)
    try_function_calling(client)
    try_schemas(client)
    try_other_routes(client)
    try_errors(client)


if __name__ == "__main__":
    main(sys.argv[1])
