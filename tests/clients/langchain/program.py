"""LangChain against a server, dialect by dialect: prints one JSON line for each.
Argument: the address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

LOOP = (
    '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] '
    "[[say 5 and 8]]"
)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Person(BaseModel):
    """A person."""

    name: Literal["Ann", "Bob"]
    age: int = Field(ge=0, le=120)


def models(address: str, name: str) -> dict[str, Any]:
    there: dict[str, Any] = {"api_key": "none", "base_url": f"{address}/v1", "max_retries": 0}
    return {
        "chat": ChatOpenAI(model=name, stream_usage=True, **there),
        "responses": ChatOpenAI(model=name, use_responses_api=True, **there),
        "messages": ChatAnthropic(
            model_name=name, max_tokens=256, **(there | {"base_url": address})
        ),
    }


def run_trial(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "message": str(error),
        }


def run_tool_loop(model: Any) -> dict[str, Any]:
    messages = create_agent(model, [add]).invoke({"messages": [("user", LOOP)]})["messages"]
    calls = [call["args"] for message in messages for call in getattr(message, "tool_calls", [])]
    results = [message.content for message in messages if message.type == "tool"]
    return {"text": messages[-1].text, "calls": calls, "results": results}


def fold_stream(model: Any, words: str, *, bound: bool = False) -> dict[str, Any]:
    """Return the sum of a stream's chunks, as LangChain adds them."""
    whole: Any = None
    for chunk in (model.bind_tools([add]) if bound else model).stream(words):
        whole = chunk if whole is None else whole + chunk
    return summarize(whole)


def summarize(message: Any) -> dict[str, Any]:
    usage = message.usage_metadata or {}
    calls = [(call["name"], call["args"]) for call in message.tool_calls]
    return {
        "text": message.text,
        "calls": calls,
        "usage": [usage.get("input_tokens"), usage.get("output_tokens")],
    }


def get_structured(model: Any, method: str) -> dict[str, Any]:
    structured = model.with_structured_output(Person, method=method).invoke("Who are you?")
    return {"valid": isinstance(structured, Person), "age": structured.age}


def main(address: str) -> None:
    def say(name: str, work: Callable[[], dict[str, Any]]) -> None:
        print(json.dumps({"name": name, **run_trial(work)}), flush=True)

    for name, model in models(address, "scripted").items():
        say(f"{name} loop", lambda model=model: run_tool_loop(model))
        say(f"{name} whole", lambda model=model: summarize(model.bind_tools([add]).invoke(LOOP)))
        say(f"{name} streamed", lambda model=model: fold_stream(model, LOOP, bound=True))
        say(f"{name} refused", lambda model=model: summarize(model.invoke("[[error 429 slowly]]")))
        say(
            f"{name} broken",
            lambda model=model: fold_stream(model, "[[say So far]] [[error 503 out of memory]]"),
        )
    for name, model in models(address, "tiny").items():
        for method in ("json_schema", "function_calling"):
            say(
                f"{name} {method}", lambda model=model, method=method: get_structured(model, method)
            )
    there: dict[str, Any] = {"api_key": "none", "base_url": f"{address}/v1", "max_retries": 0}
    plain = OpenAI(model="scripted", **there)
    say("completions whole", lambda: {"text": plain.invoke("[[say 5 and 8]]")})
    say("completions streamed", lambda: {"text": "".join(plain.stream("[[say 5 and 8]]"))})
    vectors = OpenAIEmbeddings(model="tiny", check_embedding_ctx_length=False, **there)
    say(
        "embeddings",
        lambda: {"sizes": [len(vector) for vector in vectors.embed_documents(["a cat", "a dog"])]},
    )


if __name__ == "__main__":
    main(sys.argv[1])
