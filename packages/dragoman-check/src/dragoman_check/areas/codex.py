"""Checks of Responses as the Codex CLI uses it: its requests, and the events that it
reads.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Area
from ..dialects import RESPONSES
from ..parsed_response import read_response
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks
from .sample_schemas import PERSON, check_schema

CODEX = Area(
    "codex",
    claims=("responses", "codex"),
    source="https://github.com/openai/codex/tree/main/codex-rs/core",
)
PATH = RESPONSES.path
EXEC: JsonObject = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}},
        "required": ["cmd"],
    },
}
AGENTS: JsonObject = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Agents",
    "tools": [
        {
            "type": "function",
            "name": "close_agent",
            "description": "Closes an agent",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {},
                "required": [],
                "additionalProperties": False,
            },
        }
    ],
}


def build_request(model: str, **fields: Any) -> JsonObject:
    """Build a request as Codex 0.169 sends it, with fewer tools and shorter texts."""

    def message(role: str, text: str) -> JsonObject:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    return {
        "model": model,
        "stream": True,
        "input": [
            message("developer", "You are an agent."),
            message("developer", "Be careful."),
            {"id": "msg_client_1", **message("user", "<environment_context>")},
            {"id": "msg_client_2", **message("user", "Say hello.")},
        ],
        "tools": [EXEC, AGENTS, {"type": "web_search"}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "check",
        "client_metadata": {"session": "check"},
        "max_output_tokens": 200,
        **fields,
    }


async def request_events(s: Session, feature: str | None = None, **fields: Any) -> list[JsonObject]:
    exchange = await s.request(PATH, build_request(s.model, **fields), feature=feature)
    return parse_chunks(exchange.body)


@CODEX.check("A request as Codex sends it returns a stream that ends with `response.completed`.")
async def request(s: Session) -> None:
    events = await request_events(s)
    last = events[-1]
    # A model that uses up `max_output_tokens` of this check (200) violates no rule.
    is_truncated = (
        last["type"] == "response.incomplete" and last["response"]["usage"]["output_tokens"] >= 190
    )
    require(
        last["type"] == "response.completed" or is_truncated,
        f"the last event is {str(last)[:300]}",
    )


@CODEX.check(
    "Every output item is complete in `output_item.done`: Codex reads no other event of an item."
)
async def items_done(s: Session) -> None:
    events = await request_events(s)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    require(
        items == events[-1]["response"]["output"] and items,
        f"the items of output_item.done are {str(items)[:300]}",
    )


@CODEX.check("The last event has the response's `id` and `usage`.")
async def end(s: Session) -> None:
    response = (await request_events(s))[-1]["response"]
    require(
        response["id"] and response["usage"]["total_tokens"],
        f"id is {response['id']!r}, usage is {response.get('usage')}",
    )


def add_tools() -> None:
    tools: tuple[tuple[str, str, JsonObject], ...] = (
        (
            "web-search",
            "A hosted tool that the server does not support does not cause an error.",
            {"type": "web_search"},
        ),
        ("namespace", "A tool namespace is accepted.", AGENTS),
        (
            "custom",
            "A custom tool with a grammar is accepted.",
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Patches",
                "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
            },
        ),
        ("local-shell", "A `local_shell` tool is accepted.", {"type": "local_shell"}),
    )

    def build(tool: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            # Codex sends custom tools only for models that its settings name.
            feature = "custom tools" if tool["type"] == "custom" else None
            # Without calls: only the declaration has to be accepted.
            events = await request_events(s, feature, tools=[EXEC, tool], tool_choice="none")
            require(
                events[-1]["type"] in ("response.completed", "response.incomplete"),
                f"the last event is {str(events[-1])[:300]}",
            )

        return run

    for name, rule, tool in tools:
        CODEX.add(f"accepts-{name}-tool", rule, build(tool))


add_tools()


def add_history() -> None:
    user = {"role": "user", "content": "Hi"}
    call = {
        "type": "function_call",
        "id": "fc_1",
        "status": "completed",
        "call_id": "call_1",
        "name": "exec_command",
        "arguments": '{"cmd":"ls"}',
    }
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}
    histories: tuple[tuple[str, str, list[JsonObject]], ...] = (
        (
            "replayed-call",
            "A function call is accepted as it was returned, with `id` and `status`.",
            [user, call, output],
        ),
        (
            "replayed-reasoning",
            "A reasoning item without content is accepted before a function call.",
            [
                user,
                {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
                call,
                output,
            ],
        ),
        (
            "goal-output",
            "A function call output with a name instead of a `call_id` is accepted: Codex adds "
            "one for a goal.",
            [
                user,
                call,
                output,
                {
                    "type": "function_call_output",
                    "id": "fco_1",
                    "name": "goal_objective",
                    "namespace": "agent",
                    "output": "be good",
                },
            ],
        ),
        (
            "namespaced-call",
            "A function call with a `namespace` is accepted.",
            [
                user,
                {**call, "name": "close_agent", "namespace": "multi_agent_v1", "arguments": "{}"},
                output,
            ],
        ),
        (
            "parallel-calls",
            "Two function calls followed by their outputs are accepted.",
            [
                user,
                call,
                {**call, "id": "fc_2", "call_id": "call_2"},
                output,
                {**output, "call_id": "call_2"},
            ],
        ),
    )

    def build(items: list[JsonObject]) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            events = await request_events(
                s, input=items, tools=[EXEC, AGENTS], max_output_tokens=16
            )
            require(
                events[-1]["type"] in ("response.completed", "response.incomplete"),
                f"the last event is {str(events[-1])[:300]}",
            )

        return run

    for name, rule, items in histories:
        CODEX.add(f"accepts-{name}", rule, build(items))


add_history()


@CODEX.check(
    "A function call output without a matching call is rejected: it shows that the client "
    "lost its history.",
    level="should",
)
async def rejects_orphan_output(s: Session) -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call_output", "call_id": "call_x", "output": "?"},
    ]
    exchange = await s.post(PATH, {**RESPONSES.build_request(s.model, "", 16), "input": items})
    require(exchange.status == 400, f"status {exchange.status}")


@CODEX.check(
    "A call of a tool in a namespace has separate `name` and `namespace` fields.", level="should"
)
async def namespaced_call(s: Session) -> None:
    fields = {
        "tools": [AGENTS],
        "tool_choice": "required",
        "input": "Close the agent.",
        "stream": False,
    }
    exchange = await s.request(PATH, build_request(s.model, **fields), feature="forced tools")
    calls = [item for item in exchange.json()["output"] if item["type"] == "function_call"]
    require(calls, f"no function call in {str(exchange.json()['output'])[:200]}")
    name_and_namespace = (calls[0]["name"], calls[0].get("namespace"))
    require(
        name_and_namespace == ("close_agent", "multi_agent_v1"),
        f"name and namespace are {name_and_namespace}",
    )


@CODEX.check("A strict JSON Schema, as `codex --output-schema` sends it, is enforced or rejected.")
async def output_schema(s: Session) -> None:
    text = {
        "format": {
            "type": "json_schema",
            "name": "codex_output_schema",
            "schema": PERSON,
            "strict": True,
        }
    }
    body = build_request(s.model, text=text, tools=[], stream=False)
    answer = read_response((await s.request(PATH, body, feature="json_schema")).json())
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@CODEX.check(
    "A gzip request body is accepted: Codex compresses requests to OpenAI.", level="should"
)
async def compressed(s: Session) -> None:
    body = gzip.compress(json.dumps(build_request(s.model, max_output_tokens=16)).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    exchange = await s.post(PATH, None, raw=body, headers=headers)
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@CODEX.check(
    "Without an output token limit, a response may use the rest of the context: Codex "
    "treats `incomplete` as a failure."
)
async def default_limit(s: Session) -> None:
    body = build_request(s.model, stream=False, tools=[], input="Count from one to ten in words.")
    del body["max_output_tokens"]
    reply = (await s.request(PATH, body)).json()
    tokens = reply["usage"]["output_tokens"]
    # A small model may never stop counting; 4,096 tokens are more than any usual
    # default limit.
    require(
        reply["status"] == "completed" or tokens > 4096,
        f"the status is {reply['status']} after {tokens} tokens",
    )
