"""What clients need: Codex's requests, and the official SDKs run against the server itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...conformance.checks import Violation, require
from ..dialects import RESPONSES, parse_chunks, read_response
from ..registry import Area, Json, Skipped
from ..session import Exchange, Session
from .chat import PERSON, check_schema
from .generation import STORY

if TYPE_CHECKING:
    import anthropic
    import openai
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion

CODEX = Area("codex", claims=("responses", "codex"), source="https://github.com/openai/codex/tree/main/codex-rs/core")
PATH = RESPONSES.path
EXEC: Json = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
AGENTS: Json = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Agents",
    "tools": [
        {
            "type": "function",
            "name": "close_agent",
            "description": "Closes an agent",
            "strict": False,
            "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        }
    ],
}


def build_request(model: str, **fields: Any) -> Json:
    """As Codex 0.169 sends it, with fewer tools and shorter texts."""

    def message(role: str, text: str) -> Json:
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


async def ask(s: Session, **fields: Any) -> list[Json]:
    exchange = await s.ask(PATH, build_request(s.model, **fields))
    return parse_chunks(exchange.body)


@CODEX.check("Codex's own request is answered with a stream that ends in `response.completed`.")
async def request(s: Session) -> None:
    events = await ask(s)
    last = events[-1]
    is_cut = last["type"] == "response.incomplete" and last["response"]["usage"]["output_tokens"] >= 190
    require(last["type"] == "response.completed" or is_cut, f"the stream ends with {str(last)[:300]}")


@CODEX.check("Every item comes whole in `output_item.done`: Codex reads no other event of it.")
async def items_done(s: Session) -> None:
    events = await ask(s)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    require(items == events[-1]["response"]["output"] and items, f"{len(items)} items were done")


@CODEX.check("The end has the response's id and usage.")
async def end(s: Session) -> None:
    response = (await ask(s))[-1]["response"]
    require(response["id"] and response["usage"]["total_tokens"], f"usage {response.get('usage')}")


def add_tools() -> None:
    tools: tuple[tuple[str, str, Json], ...] = (
        ("web-search", "A hosted tool that the server lacks is left out, not a failure.", {"type": "web_search"}),
        ("namespace", "A namespace of tools is accepted.", AGENTS),
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
        ("local-shell", "A tool that the client runs is accepted.", {"type": "local_shell"}),
    )

    def build(tool: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            events = await ask(s, tools=[EXEC, tool], tool_choice="none")
            require(events[-1]["type"] in ("response.completed", "response.incomplete"), f"{str(events[-1])[:300]}")

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
    histories: tuple[tuple[str, str, list[Json]], ...] = (
        ("replayed-call", "A call is accepted as it was returned, with id and status.", [user, call, output]),
        (
            "replayed-reasoning",
            "Reasoning without content is accepted beside a call.",
            [user, {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}, call, output],
        ),
        (
            "goal-output",
            "An output without a call_id, with a name of its own, is accepted: Codex adds one for a goal.",
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
            "A call with a namespace is accepted.",
            [user, {**call, "name": "close_agent", "namespace": "multi_agent_v1", "arguments": "{}"}, output],
        ),
        (
            "parallel-calls",
            "Two calls and then their outputs are accepted.",
            [user, call, {**call, "id": "fc_2", "call_id": "call_2"}, output, {**output, "call_id": "call_2"}],
        ),
    )

    def build(items: list[Json]) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            events = await ask(s, input=items, tools=[EXEC, AGENTS], max_output_tokens=16)
            require(events[-1]["type"] in ("response.completed", "response.incomplete"), f"{str(events[-1])[:300]}")

        return run

    for name, rule, items in histories:
        CODEX.add(f"accepts-{name}", rule, build(items))


add_history()


@CODEX.check(
    "An output that answers no call is rejected: an agent that lost its history must learn of it.", level="should"
)
async def rejects_orphan_output(s: Session) -> None:
    items = [{"role": "user", "content": "Hi"}, {"type": "function_call_output", "call_id": "call_x", "output": "?"}]
    exchange = await s.post(PATH, {**RESPONSES.ask(s.model, "", 16), "input": items})
    require(exchange.status == 400, f"status {exchange.status}")


@CODEX.check("A call of a tool in a namespace comes back with name and namespace apart.", level="should")
async def namespaced_call(s: Session) -> None:
    fields = {"tools": [AGENTS], "tool_choice": "required", "input": "Close the agent.", "stream": False}
    exchange = await s.ask(PATH, build_request(s.model, **fields), feature="forced tools")
    calls = [item for item in exchange.json()["output"] if item["type"] == "function_call"]
    require(calls, f"no call: {str(exchange.json()['output'])[:200]}")
    found = (calls[0]["name"], calls[0].get("namespace"))
    require(found == ("close_agent", "multi_agent_v1"), f"name and namespace are {found}")


@CODEX.check("`--output-schema` (a strict JSON Schema) is enforced, or rejected.")
async def output_schema(s: Session) -> None:
    text = {"format": {"type": "json_schema", "name": "codex_output_schema", "schema": PERSON, "strict": True}}
    body = build_request(s.model, text=text, tools=[], stream=False)
    answer = read_response((await s.ask(PATH, body, feature="json_schema")).json())
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@CODEX.check("A body in gzip is read, as Codex compresses for OpenAI's provider.", level="should")
async def compressed(s: Session) -> None:
    body = gzip.compress(json.dumps(build_request(s.model, max_output_tokens=16)).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    exchange = await s.post(PATH, None, raw=body, headers=headers)
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")


@CODEX.check("Without a limit the answer may use the rest of the context: `incomplete` fails Codex's turn.")
async def default_limit(s: Session) -> None:
    body = build_request(s.model, stream=False, tools=[], input="Count from one to ten in words.")
    del body["max_output_tokens"]
    reply = (await s.ask(PATH, body)).json()
    tokens = reply["usage"]["output_tokens"]
    require(reply["status"] == "completed" or tokens > 4096, f"{reply['status']} after {tokens} tokens")


# The official SDKs

SDK = Area("sdk", claims=(), source="https://github.com/openai/openai-python")
ANTHROPIC_SDK = "https://github.com/anthropics/anthropic-sdk-python"


def need(module: str) -> None:
    if find_spec(module) is None:
        raise Skipped(f"{module} is not installed")


def open_openai(s: Session) -> openai.AsyncOpenAI:
    need("openai")
    import openai  # noqa: PLC0415 - an optional library

    record(s, "openai-python " + openai.__version__)
    key = s.target.api_key or "none"
    return openai.AsyncOpenAI(
        base_url=f"{s.target.url}/v1", api_key=key, max_retries=0, timeout=s.target.timeout, http_client=None
    )


def open_anthropic(s: Session) -> anthropic.AsyncAnthropic:
    need("anthropic")
    import anthropic  # noqa: PLC0415 - as above

    record(s, "anthropic-python " + anthropic.__version__)
    key = s.target.api_key or "none"
    return anthropic.AsyncAnthropic(base_url=s.target.url, api_key=key, max_retries=0, timeout=s.target.timeout)


def record(s: Session, name: str) -> None:
    """Count the request that an SDK will send; what it sends and gets is not seen here."""
    s.client.spend({"prompt": "", "max_tokens": 32})
    s.exchanges.append(Exchange("SDK", name, b""))


HELLO: list[Any] = [{"role": "user", "content": STORY}]


def add_sdk(rule: str, claim: str, library: str = "openai") -> Callable[[Callable[[Session], Awaitable[None]]], None]:
    """Add a check by an SDK. Whatever the SDK raises is a verdict on the server."""

    def register(body: Callable[[Session], Awaitable[None]]) -> None:
        async def run(s: Session) -> None:
            try:
                await body(s)
            except (Skipped, Violation):
                raise
            except Exception as error:
                raise Violation(f"the SDK raises {type(error).__name__}: {error}") from None

        name = getattr(body, "__name__", "").replace("_", "-")
        source = ANTHROPIC_SDK if library == "anthropic" else None
        SDK.add(name, rule, run, claims=(claim,), source=source)

    return register


@add_sdk("openai-python's stream helper puts a chat together, equal to the whole answer.", "chat")
async def chat_stream(s: Session) -> None:
    client = open_openai(s)
    fields: Any = {"model": s.model, "messages": HELLO, "max_tokens": 2000, "temperature": 0, "seed": 1}
    async with client.chat.completions.stream(**fields) as events:
        async for _ in events:
            pass
        snapshot = events.current_completion_snapshot
    whole: ChatCompletion = await client.chat.completions.create(**fields)
    again: ChatCompletion = await client.chat.completions.create(**fields)
    if whole.choices[0].message.content == again.choices[0].message.content:
        found = snapshot.choices[0].message.content or ""
        require(found == (whole.choices[0].message.content or ""), f"streamed {found!r}")


@add_sdk("openai-python reads completions, streamed and whole.", "completions")
async def completions_stream(s: Session) -> None:
    client = open_openai(s)
    pieces: list[str] = []
    async for chunk in await client.completions.create(
        model=s.model, prompt=STORY, max_tokens=16, temperature=0, seed=1, stream=True
    ):
        pieces += [choice.text for choice in chunk.choices]
    require("".join(pieces), "no text")


@add_sdk("openai-python's stream helper puts a response together.", "responses")
async def responses_stream(s: Session) -> None:
    client = open_openai(s)
    async with client.responses.stream(model=s.model, input="Name a colour.", temperature=0, store=False) as events:
        async for _ in events:
            pass
        final = await events.get_final_response()
    require(final.output_text, "the final response has no text")


@add_sdk("openai-python reads a whole response.", "responses")
async def responses_whole(s: Session) -> None:
    reply = await open_openai(s).responses.create(model=s.model, input="Name a colour.", temperature=0, store=False)
    require(reply.output_text and reply.usage, "no text or no usage")


@add_sdk("openai-python reads embeddings, which it asks for in base64.", "embeddings")
async def embeddings(s: Session) -> None:
    import openai  # noqa: PLC0415 - as above

    client = open_openai(s)
    try:
        reply = await client.embeddings.create(model=s.model, input=["a", "b"])
    except openai.BadRequestError as error:
        raise Skipped(f"the server refuses embeddings of this model: {error}") from None
    require(len(reply.data) == 2 and len(reply.data[0].embedding) > 1, "no vectors")


@add_sdk("openai-python lists the models.", "models")
async def models(s: Session) -> None:
    found = [model.id async for model in open_openai(s).models.list()]
    require(s.model in found, f"the models are {found}")


@add_sdk("openai-python raises NotFoundError (or BadRequestError) for an unknown model.", "chat")
async def error_class(s: Session) -> None:
    import openai  # noqa: PLC0415 - as above

    try:
        await open_openai(s).chat.completions.create(model="no-such-model", messages=HELLO)
    except (openai.NotFoundError, openai.BadRequestError) as error:
        require(error.message, "the error has no message")
        return
    raise Violation("it raises nothing")


@add_sdk("openai-python parses a forced tool call from a stream.", "chat")
async def chat_tools(s: Session) -> None:
    import openai  # noqa: PLC0415 - as above

    tool: Any = {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    }
    choice: Any = {"type": "function", "function": {"name": "get_time"}}
    try:
        async with open_openai(s).chat.completions.stream(
            model=s.model, messages=HELLO, tools=[tool], tool_choice=choice, max_tokens=200, temperature=0
        ) as events:
            async for _ in events:
                pass
            calls = events.current_completion_snapshot.choices[0].message.tool_calls or []
    except openai.BadRequestError as error:
        raise Skipped(f"the server refuses forced tools: {error}") from None
    require([call.function.name for call in calls] == ["get_time"], f"the calls are {calls}")


@add_sdk(
    "anthropic-python's stream helper puts a message together, equal to the whole answer.", "messages", "anthropic"
)
async def messages_stream(s: Session) -> None:
    client = open_anthropic(s)
    fields: Any = {"model": s.model, "max_tokens": 24, "messages": HELLO, "extra_body": {"temperature": 0}}
    async with client.messages.stream(**fields) as events:
        final = await events.get_final_message()
    wholes: list[Message] = [await client.messages.create(**fields) for _ in range(2)]
    texts = ["".join(block.text for block in message.content if block.type == "text") for message in (final, *wholes)]
    require(texts[0], "no text")
    require(texts[1] != texts[2] or texts[0] == texts[1], f"streamed {texts[0]!r}, whole {texts[1]!r}")
    require(final.usage.output_tokens > 0, f"usage {final.usage}")


@add_sdk("anthropic-python counts tokens.", "count-tokens", "anthropic")
async def messages_count(s: Session) -> None:
    reply = await open_anthropic(s).messages.count_tokens(model=s.model, messages=HELLO)
    require(reply.input_tokens > 0, f"it counts {reply.input_tokens}")


@add_sdk("anthropic-python raises NotFoundError (or BadRequestError) for an unknown model.", "messages", "anthropic")
async def messages_error_class(s: Session) -> None:
    client = open_anthropic(s)
    import anthropic  # noqa: PLC0415 - as above

    try:
        await client.messages.create(model="no-such-model", max_tokens=8, messages=HELLO)
    except (anthropic.NotFoundError, anthropic.BadRequestError):
        return
    raise Violation("it raises nothing")


@add_sdk("anthropic-python parses a forced tool call from a stream.", "messages", "anthropic")
async def messages_tools(s: Session) -> None:
    client = open_anthropic(s)
    import anthropic  # noqa: PLC0415 - as above

    tool: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
    choice: Any = {"type": "tool", "name": "get_time"}
    try:
        async with client.messages.stream(
            model=s.model, max_tokens=200, messages=HELLO, tools=[tool], tool_choice=choice
        ) as events:
            final = await events.get_final_message()
    except anthropic.BadRequestError as error:
        raise Skipped(f"the server refuses forced tools: {error}") from None
    names = [block.name for block in final.content if block.type == "tool_use"]
    require(names == ["get_time"], f"the calls are {names}")
