"""Prints the table of docs/client-reports.md: what agents of other projects do under
each fault. It needs their libraries, and the source archives of two of them:

    pip download --no-deps --no-binary :all: openai-agents pydantic-ai-examples
    PYTHONPATH=packages/pytest-dragoman python -m tests.client_tests.agent_table FOLDER [FAULT...]

FOLDER: where the archives are unpacked.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import logging
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from pytest_dragoman import Dragoman
from pytest_dragoman.event_loop_thread import EventLoopThread
from pytest_dragoman.faults import Fault, build_faults

TEXT = "one two three four five"
TIMEOUT = 1.0
"""Seconds; below the pause of the fault `stall`."""
PATIENCE = 20.0
"""Seconds after which an agent that goes on and on is stopped."""
MANY_REQUESTS = 10
"""A run has two answers."""


async def run_openai_agents(server: Dragoman) -> None:
    """Run examples/basic/stream_items.py of openai-agents."""
    import agents

    agents.set_tracing_disabled(disabled=True)
    agents.set_default_openai_client(
        AsyncOpenAI(base_url=server.openai_base_url, api_key="none", timeout=TIMEOUT)
    )
    server.tool_call("how_many_jokes")
    server.reply(TEXT)
    example = importlib.import_module("examples.basic.stream_items")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        await example.main()
    assert "Tool was called: how_many_jokes" in output.getvalue()
    assert TEXT in output.getvalue()


async def run_pydantic_ai(server: Dragoman) -> None:
    """Stream the agent of pydantic_ai_examples.bank_support."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    example: Any = importlib.import_module("pydantic_ai_examples.bank_support")
    answer = {"support_advice": TEXT, "block_card": False, "risk": 1}
    server.tool_call("customer_balance")
    server.tool_call("final_result", answer)
    client = AsyncOpenAI(base_url=server.openai_base_url, api_key="none", timeout=TIMEOUT)
    model = OpenAIChatModel("gpt-5.2", provider=OpenAIProvider(openai_client=client))
    with sqlite3.connect(":memory:") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE customers(id, name, balance)")
        cursor.execute("INSERT INTO customers VALUES (123, 'John', 123.45)")
        vars(example)["cur"] = cursor
        deps = example.SupportDependencies(customer_id=123, db=example.DatabaseConn(connection))
        async with example.support_agent.run_stream("My balance?", deps=deps, model=model) as run:
            output = await run.get_output()
    assert output.model_dump() == answer, f"the output is {output}"
    server.assert_usage(completion=run.usage.output_tokens)


async def run_langchain(server: Dragoman, model: Any) -> None:
    """Stream the agent of LangChain's quick start."""
    from langchain.agents import create_agent

    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        return f"It is sunny in {city}."

    server.tool_call("get_weather", {"city": "Paris"})
    server.reply(TEXT)
    agent = create_agent(model, tools=[get_weather])
    messages: list[Any] = []
    async for kind, value in agent.astream(
        {"messages": [("user", "Weather?")]}, stream_mode=["messages", "values"]
    ):
        if kind == "values":
            messages = value["messages"]
    assert messages[-1].text == TEXT, f"the text is {messages[-1].text!r}"
    usages = [message.usage_metadata for message in messages if message.type == "ai"]
    assert all(usages), "an answer has no usage"
    server.assert_usage(completion=sum(usage["output_tokens"] for usage in usages))


async def run_langchain_openai(server: Dragoman) -> None:
    from langchain_openai import ChatOpenAI

    url = server.openai_base_url
    await run_langchain(
        server,
        ChatOpenAI(model="m", base_url=url, api_key="none", timeout=TIMEOUT, stream_usage=True),
    )


async def run_langchain_anthropic(server: Dragoman) -> None:
    from langchain_anthropic import ChatAnthropic

    await run_langchain(
        server,
        ChatAnthropic(model="m", base_url=server.base_url, api_key="none", timeout=TIMEOUT),
    )


CLIENTS: Mapping[str, tuple[str, Callable[[Dragoman], Awaitable[None]]]] = {
    "`openai-agents`, Responses": ("openai-agents", run_openai_agents),
    "`pydantic-ai`, Chat": ("pydantic-ai-slim", run_pydantic_ai),
    "`langchain-openai`, Chat": ("langchain-openai", run_langchain_openai),
    "`langchain-anthropic`, Messages": ("langchain-anthropic", run_langchain_anthropic),
}


def judge(
    run: Callable[[Dragoman], Awaitable[None]], fault: Fault, loop: EventLoopThread
) -> tuple[str, list[str]]:
    """Run an agent under a fault; return what it did, and the evidence of mistakes."""
    server = Dragoman(loop, fault)
    error: Exception | None = None
    try:
        asyncio.run(asyncio.wait_for(run(server), PATIENCE))  # type: ignore[arg-type]
    except TimeoutError:
        error = AssertionError("the agent did not end")
    except Exception as raised:  # whatever the library raises
        error = raised
    findings = server.judge(error)
    outcome = server.describe(findings, error)
    if len(server.requests) > MANY_REQUESTS:
        outcome += f", {len(server.requests)} requests"
    server.close()
    return f"**{outcome}**" if findings else outcome, [each.evidence for each in findings]


def main() -> None:
    logging.disable()
    for folder in Path(sys.argv[1]).iterdir():
        sys.path.append(str(folder))
    loop = EventLoopThread()
    versions = [f"{package} {version(package)}" for package, _ in CLIENTS.values()]
    print(f"{', '.join(versions)}\n")
    print(f"| fault | {' | '.join(CLIENTS)} |")
    print("| --- |" + " --- |" * len(CLIENTS))
    lines: list[str] = []
    table = build_faults()
    for fault in [table[name] for name in sys.argv[2:] or table]:
        cells: list[str] = []
        for name, (_, run) in CLIENTS.items():
            outcome, evidence = judge(run, fault, loop)
            cells.append(outcome)
            lines += [f"- {name}, `{fault.name}`: {each}" for each in dict.fromkeys(evidence)]
        print(f"| `{fault.name}` | {' | '.join(cells)} |", flush=True)
    print("\n" + "\n".join(lines))
    loop.close()


if __name__ == "__main__":
    main()
