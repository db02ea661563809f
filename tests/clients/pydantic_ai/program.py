"""Pydantic AI against a server, dialect by dialect: prints one JSON line for each
trial. Argument: the address.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any, Literal

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, Embedder, ModelMessagesTypeAdapter, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

LOOP = (
    '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] '
    "[[say 5 and 8]]"
)

SUMMARIES = OpenAIResponsesModelSettings(openai_reasoning_summary="auto")
"""Pydantic AI shows only summaries of reasoning in Responses."""


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    age: int = Field(ge=0, le=120)


def agent(model: Model, **more: Any) -> Agent[None, Any]:
    created: Agent[None, Any] = Agent(model, instructions="Be kind.", retries=0, **more)

    @created.tool_plain
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    return created


def summarize(result: Any) -> dict[str, Any]:
    """Return the final output, the steps before it, and the usage."""
    parts = [part for message in result.all_messages() for part in message.parts]
    return {
        "text": result.output,
        "thoughts": [part.content for part in parts if part.part_kind == "thinking"],
        "calls": [part.args_as_dict() for part in parts if part.part_kind == "tool-call"],
        "results": [part.content for part in parts if part.part_kind == "tool-return"],
        "usage": [result.usage.requests, result.usage.input_tokens, result.usage.output_tokens],
    }


async def run_without_stream(model: Model) -> dict[str, Any]:
    return summarize(await agent(model).run(LOOP))


async def run_with_stream(model: Model) -> dict[str, Any]:
    async with agent(model).iter(LOOP) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
    return summarize(run.result)


async def continue_conversation(model: Model) -> dict[str, Any]:
    """Continue a conversation whose messages were serialized to JSON."""
    first = await agent(model).run(LOOP)
    past = ModelMessagesTypeAdapter.validate_json(
        ModelMessagesTypeAdapter.dump_json(first.all_messages())
    )
    return {"text": (await agent(model).run("[[say again]]", message_history=past)).output}


async def run_through_all_dialects(models: list[Model]) -> dict[str, Any]:
    """Continue one conversation in every dialect."""
    past = None
    texts = list[str]()
    for model in models:
        result = await agent(model).run(LOOP, message_history=past)
        past = result.all_messages()
        texts.append(result.output)
    return {"texts": texts}


async def run_broken(model: Model) -> dict[str, Any]:
    async with agent(model).run_stream("[[say So far]] [[error 503 out of memory]]") as run:
        return {"text": await run.get_output()}


async def run_structured(model: Model, output: Any, *, stream: bool) -> dict[str, Any]:
    one: Agent[None, Any] = Agent(
        model, output_type=output, retries=0, model_settings={"max_tokens": 200}
    )
    if not stream:
        return {"valid": isinstance((await one.run("Who are you?")).output, Person)}
    async with one.run_stream("Who are you?") as run:
        return {"valid": isinstance(await run.get_output(), Person)}


async def run_embeddings(openai: AsyncOpenAI) -> dict[str, Any]:
    model = OpenAIEmbeddingModel("tiny", provider=OpenAIProvider(openai_client=openai))
    return {
        "sizes": [
            len(vector)
            for vector in (await Embedder(model).embed_documents(["a cat", "a dog"])).embeddings
        ]
    }


async def run_trial(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await work
    except Exception as error:
        return {
            "error": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "message": str(error),
        }


async def main(address: str) -> None:
    openai = AsyncOpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0)
    anthropic = AsyncAnthropic(api_key="none", base_url=address, max_retries=0)

    def models(name: str) -> dict[str, Model]:
        there = OpenAIProvider(openai_client=openai)
        return {
            "chat": OpenAIChatModel(name, provider=there),
            "responses": OpenAIResponsesModel(name, provider=there, settings=SUMMARIES),
            "messages": AnthropicModel(
                name, provider=AnthropicProvider(anthropic_client=anthropic)
            ),
        }

    async def say(name: str, work: Awaitable[dict[str, Any]]) -> None:
        print(json.dumps({"name": name, **await run_trial(work)}), flush=True)

    for dialect, model in models("scripted").items():
        await say(f"{dialect} whole", run_without_stream(model))
        await say(f"{dialect} streamed", run_with_stream(model))
        await say(f"{dialect} kept", continue_conversation(model))
        await say(f"{dialect} refused", agent(model).run("[[error 429 slowly]]"))
        await say(f"{dialect} broken", run_broken(model))
    await say("handed over", run_through_all_dialects(list(models("scripted").values())))
    for dialect, model in models("tiny").items():
        # In Anthropic's dialect it uses schemas only for models with known names.
        outputs = {
            "tool": ToolOutput(Person),
            **({} if dialect == "messages" else {"native": NativeOutput(Person)}),
        }
        for name, output in outputs.items():
            await say(f"{dialect} {name} object", run_structured(model, output, stream=False))
            await say(
                f"{dialect} {name} streamed object", run_structured(model, output, stream=True)
            )
    await say("embeddings", run_embeddings(openai))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
