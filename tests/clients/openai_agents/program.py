"""The OpenAI Agents SDK against a server: prints one JSON line for each trial.
Argument: the address.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from agents import (
    Agent,
    HostedMCPTool,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.models.openai_responses import OpenAIResponsesWSModel
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

LOOP = (
    '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] '
    "[[say 5 and 8]]"
)
DELTAS = "response.output_text.delta"


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    age: int = Field(ge=0, le=120)


def agent(model: Model, **more: Any) -> Agent[None]:
    given: dict[str, Any] = {
        "tools": [add],
        "model_settings": ModelSettings(include_usage=True),
        **more,
    }
    return Agent(name="main", model=model, **given)


def summarize(result: Any) -> dict[str, Any]:
    """Return the final output, the steps before it, and the usage."""
    usage = result.context_wrapper.usage
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    return {
        "text": result.final_output,
        "items": [item.type for item in result.new_items],
        "outputs": outputs,
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens],
    }


async def run_without_stream(model: Model) -> dict[str, Any]:
    return summarize(await Runner.run(agent(model), LOOP))


async def run_with_stream(model: Model) -> dict[str, Any]:
    running = Runner.run_streamed(agent(model), LOOP)
    deltas = [
        event.data.delta
        async for event in running.stream_events()
        if event.type == "raw_response_event" and event.data.type == DELTAS
    ]
    return {"deltas": "".join(deltas), **summarize(running)}


async def run_handoff(model: Model) -> dict[str, Any]:
    script = "[[tool transfer_to_billing {}]] [[then]] [[say paid]]"
    result = await Runner.run(agent(model, handoffs=[Agent(name="billing", model=model)]), script)
    return {"text": result.final_output, "agent": result.last_agent.name}


async def run_nested_agent(model: Model) -> dict[str, Any]:
    tool = Agent(name="sub", model=model).as_tool("sub", "Asks another agent.")
    script = '[[tool sub {"input": "[[say inner]]"}]] [[then]] [[say outer]]'
    result = summarize(await Runner.run(agent(model, tools=[tool]), script))
    return {"text": result["text"], "outputs": result["outputs"]}


async def run_refused(model: Model) -> dict[str, Any]:
    return summarize(await Runner.run(agent(model), "[[error 429 slowly]]"))


async def run_broken(model: Model) -> dict[str, Any]:
    running = Runner.run_streamed(agent(model), "[[say So far]] [[error 503 out of memory]]")
    async for _ in running.stream_events():
        pass
    return summarize(running)


async def run_with_session(model: Model, session: Any) -> dict[str, Any]:
    first = await Runner.run(agent(model), LOOP, session=session)
    second = await Runner.run(agent(model), "[[say again]]", session=session)
    items = await session.get_items()
    return {"texts": [first.final_output, second.final_output], "items": len(items)}


async def run_structured(model: Model, *, stream: bool) -> dict[str, Any]:
    one = agent(model, tools=[], output_type=Person)
    if not stream:
        return {"valid": isinstance((await Runner.run(one, "Who are you?")).final_output, Person)}
    running = Runner.run_streamed(one, "Who are you?")
    async for _ in running.stream_events():
        pass
    return {"valid": isinstance(running.final_output, Person)}


async def run_continued(model: Model) -> dict[str, Any]:
    first = await Runner.run(agent(model), LOOP, auto_previous_response_id=True)
    second = await Runner.run(
        agent(model), "[[say again]]", previous_response_id=first.last_response_id
    )
    return {"texts": [first.final_output, second.final_output]}


async def run_conversation(model: Model, client: AsyncOpenAI) -> dict[str, Any]:
    id = (await client.conversations.create()).id
    texts = [
        (await Runner.run(agent(model), prompt, conversation_id=id)).final_output
        for prompt in (LOOP, "[[say again]]")
    ]
    types = [item.type async for item in client.conversations.items.list(id, order="asc")]
    return {"texts": texts, "kept": types}


async def run_hosted_mcp(model: Model, *, require_approval: Any, stream: bool) -> dict[str, Any]:
    tool = HostedMCPTool(
        tool_config={
            "type": "mcp",
            "server_label": "weather",
            "require_approval": require_approval,
        },
        on_approval_request=lambda request: {"approve": request.data.name == "look"},
    )
    script = '[[tool weather__look {"city": "Bern"}]] [[then]] [[say sunny]]'
    if not stream:
        result = await Runner.run(agent(model, tools=[tool]), script)
    else:
        result = Runner.run_streamed(agent(model, tools=[tool]), script)
        async for _ in result.stream_events():
            pass
    raws: list[Any] = [item.raw_item for item in result.new_items]
    return {
        "text": result.final_output,
        "items": [item.type for item in result.new_items],
        "outputs": [raw.output for raw in raws if getattr(raw, "type", "") == "mcp_call"],
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
    set_tracing_disabled(True)
    client = AsyncOpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0)
    makers: dict[str, Callable[[str], Model]] = {
        "chat": lambda name: OpenAIChatCompletionsModel(model=name, openai_client=client),
        "responses": lambda name: OpenAIResponsesModel(model=name, openai_client=client),
        "socket": lambda name: OpenAIResponsesWSModel(model=name, openai_client=client),
    }

    async def say(name: str, work: Awaitable[dict[str, Any]]) -> None:
        print(json.dumps({"name": name, **await run_trial(work)}), flush=True)

    for kind, make in makers.items():
        scripted = make("scripted")
        tiny = make("tiny")
        await say(f"{kind} whole", run_without_stream(scripted))
        await say(f"{kind} streamed", run_with_stream(scripted))
        await say(f"{kind} handoff", run_handoff(scripted))
        await say(f"{kind} nested", run_nested_agent(scripted))
        await say(f"{kind} session", run_with_session(scripted, SQLiteSession(kind)))
        await say(f"{kind} refused", run_refused(scripted))
        await say(f"{kind} broken", run_broken(scripted))
        await say(f"{kind} object", run_structured(tiny, stream=False))
        await say(f"{kind} streamed object", run_structured(tiny, stream=True))
    for kind in ("responses", "socket"):
        for approval in ("never", "always"):
            for stream in (False, True):
                work = run_hosted_mcp(
                    makers[kind]("scripted"), require_approval=approval, stream=stream
                )
                await say(f"{kind} mcp {approval} {stream}", work)
    responses = makers["responses"]("scripted")
    await say("continued", run_continued(responses))
    await say("conversation", run_conversation(responses, client))
    await say(
        "conversations session",
        run_with_session(responses, OpenAIConversationsSession(openai_client=client)),
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
