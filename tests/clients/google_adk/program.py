"""Google's Agent Development Kit against a server: prints one JSON line for each trial.
Argument: the address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel

LOOP = (
    '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] '
    "[[say 5 and 8]]"
)
BROKEN = "[[say So far]] [[error 503 out of memory]]"
MODES = {"whole": StreamingMode.NONE, "streamed": StreamingMode.SSE}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def ask(
    address: str,
    mode: StreamingMode,
    *prompts: str,
    model: str = "scripted",
    tools: tuple[Callable[..., Any], ...] = (),
    output_schema: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """Run an agent for each prompt of a session, and fold its events."""
    agent = LlmAgent(
        name="calculator",
        model=Gemini(model=model, base_url=address),
        instruction="Calculate.",
        tools=list(tools),
        output_schema=output_schema,
    )
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="me")
    texts: list[str] = []
    deltas: list[str] = []
    calls: list[Any] = []
    results: list[Any] = []
    for prompt in prompts:
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for event in runner.run_async(
            user_id="me",
            session_id=session.id,
            new_message=message,
            run_config=RunConfig(streaming_mode=mode),
        ):
            parts = event.content.parts or [] if event.content else []
            text = "".join(part.text or "" for part in parts if not part.thought)
            if event.partial:
                deltas.append(text)
                continue
            texts += [text] if text else []
            calls += [[call.name, call.args] for call in event.get_function_calls()]
            results += [answer.response for answer in event.get_function_responses()]
    return {"texts": texts, "deltas": "".join(deltas), "calls": calls, "results": results}


async def main(address: str) -> None:
    logging.disable()
    for kind, mode in MODES.items():
        trials = {
            "loop": lambda mode=mode: ask(address, mode, LOOP, tools=(add,)),
            "session": lambda mode=mode: ask(address, mode, "[[say one]]", "[[say two]]"),
            "object": lambda mode=mode: ask(
                address, mode, "Who are you?", model="tiny", output_schema=Person
            ),
            "broken": lambda mode=mode: ask(address, mode, BROKEN),
            "unknown": lambda mode=mode: ask(address, mode, "Hi", model="other"),
        }
        for name, run in trials.items():
            try:
                result = await run()
            except Exception as error:
                result = {"error": type(error).__name__, "message": str(error)}
            print(json.dumps({"name": f"{name} {kind}", **result}), flush=True)


asyncio.run(main(sys.argv[1]))
