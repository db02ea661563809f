"""Tools of MCP servers in Responses, through the official SDK."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools
from tests.serving.harness import ServerHarness
from tests.serving.tool_servers import LocalToolServers, build_tool_server

from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think
from dragoman.serving.tool_loop import MAX_CALLS

FREE: Any = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
STRICT: Any = {"type": "mcp", "server_label": "weather"}
ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
END = ScriptEntry((Say("It is sunny."),))


def call(name: str, arguments: str = "{}") -> ScriptEntry:
    return ScriptEntry((CallTool(f"weather__{name}", arguments),))


async def create(server: ServerHarness, *tools: Any, **fields: Any) -> Response:
    fields = {"input": "hi", "stream": False, **fields}
    responses: Any = server.openai().responses
    return await responses.create(model="m", tools=list(tools), **fields)


async def collect(server: ServerHarness, *tools: Any, **fields: Any) -> list[ResponseStreamEvent]:
    fields = {"input": "hi", **fields}
    stream: Any = await server.openai().responses.create(
        model="m", tools=list(tools), stream=True, **fields
    )
    return [event async for event in stream]


def strip_ids(response: Response) -> Any:
    """Return the output and usage without what differs between two responses."""
    items = [item.model_dump(exclude={"id"}) for item in response.output]
    return items, response.status, response.usage


async def test_mcp_calls_run_until_turn_without_calls() -> None:
    servers = LocalToolServers()
    entries = (call("look", '{"city":"Bern"}'), call("send"), END)
    response = await create(build_tool_server(*entries, tool_servers=servers), FREE)
    assert [item.type for item in response.output] == [
        "mcp_list_tools", "mcp_call", "mcp_call", "message",
    ]  # fmt: skip
    tools, first = response.output[:2]
    assert isinstance(tools, McpListTools)
    assert [tool.name for tool in tools.tools] == ["look", "send", "fail", "lose"]
    assert isinstance(first, McpCall)
    assert (first.name, first.arguments) == ("look", '{"city":"Bern"}')
    assert (first.output, first.error, first.status) == ("result of look", None, "completed")
    assert servers.calls == [("look", '{"city":"Bern"}'), ("send", "{}")]
    assert response.output_text == "It is sunny."


async def test_mcp_stream_folds_to_whole_response() -> None:
    entries = (
        ScriptEntry((Think("Hm."), CallTool("weather__look"), CallTool("weather__fail"))),
        call("lose"),
        END,
    )
    whole = await create(build_tool_server(*entries, tool_servers=LocalToolServers()), FREE)
    events = await collect(build_tool_server(*entries, tool_servers=LocalToolServers()), FREE)
    last = events[-1]
    assert last.type == "response.completed"
    assert [one.type for one in last.response.output] == [one.type for one in whole.output]
    for one, other in zip(last.response.output, whole.output, strict=True):
        assert one.model_dump(exclude={"id"}) == other.model_dump(exclude={"id"})
    assert strip_ids(last.response) == strip_ids(whole)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.response.output
    kinds = [event.type for event in events if "mcp" in event.type]
    assert kinds[:2] == ["response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"]
    assert kinds.count("response.mcp_call.completed") == 1
    assert kinds.count("response.mcp_call.failed") == 2


async def test_mcp_error_of_tool_has_vendor_form() -> None:
    entries = (call("fail"), call("lose"), END)
    server = build_tool_server(*entries, tool_servers=LocalToolServers())
    calls = [item for item in (await create(server, FREE)).output if isinstance(item, McpCall)]
    errors = [item.error.model_dump() for item in calls if item.error is not None]
    assert errors == [
        {"type": "mcp_tool_execution_error", "content": "result of fail"},
        {"type": "http_error", "code": 502, "message": "Bad gateway."},
    ]


async def test_mcp_usage_is_sum_of_turns() -> None:
    server = build_tool_server(call("look"), END, tool_servers=LocalToolServers())
    response = await create(server, FREE)
    one_turn = await create(build_tool_server(END, tool_servers=LocalToolServers()), FREE)
    assert response.usage is not None
    assert one_turn.usage is not None
    assert response.usage.input_tokens > 2 * one_turn.usage.input_tokens
    assert response.usage.output_tokens > one_turn.usage.output_tokens


@pytest.mark.parametrize("approve", [True, False])
async def test_mcp_approval_over_previous_response(approve: bool) -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("send", '{"city":"Bern"}'), END, END, tool_servers=servers)
    first = await create(server, STRICT)
    request = first.output[-1]
    assert isinstance(request, McpApprovalRequest)
    assert (request.name, request.arguments) == ("send", '{"city":"Bern"}')
    assert (first.status, servers.calls) == ("completed", [])
    answer: Any = {
        "type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve,
    }  # fmt: skip
    ended = await create(server, STRICT, input=[answer], previous_response_id=first.id)
    assert servers.n_lists == 1
    assert servers.calls == ([("send", '{"city":"Bern"}')] if approve else [])
    calls = [item for item in ended.output if isinstance(item, McpCall)]
    assert [item.approval_request_id for item in calls] == ([request.id] if approve else [])
    later = await create(server, STRICT, previous_response_id=ended.id)
    assert later.output_text == "It is sunny."
    assert len(servers.calls) == approve


async def test_mcp_unknown_approval_is_rejected() -> None:
    server = build_tool_server(END, tool_servers=LocalToolServers())
    answer: Any = {
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True,
    }  # fmt: skip
    with pytest.raises(openai.BadRequestError) as raised:
        await create(server, STRICT, input=[answer])
    assert raised.value.param == "input[0].approval_request_id"


async def get_response(server: ServerHarness, *tools: Any, stream: bool, **fields: Any) -> Response:
    """Return the response of a stream or of a request without one."""
    if not stream:
        return await create(server, *tools, **fields)
    last = (await collect(server, *tools, **fields))[-1]
    assert last.type == "response.completed"
    return last.response


async def run_random_approvals(seed: int, *, stream: bool) -> list[Any]:
    """Let a model call random tools, approve some of them, and return what differs not
    between streams and other responses. No call may be made that is not approved.
    """
    rng = random.Random(seed)
    servers = LocalToolServers()
    names = [rng.choice(("look", "send", "fail", "lose")) for _ in range(rng.randint(1, 4))]
    calls = tuple(CallTool(f"weather__{name}") for name in names)
    begin = rng.choice(((), (Think("Hm."),), (Say("Let me see."),)))
    free: list[str] = rng.sample(["look", "send", "fail"], rng.randint(0, 3))
    tool = STRICT | {"require_approval": {"never": {"tool_names": free}}}
    server = build_tool_server(ScriptEntry((*begin, *calls)), END, END, tool_servers=servers)
    first = await get_response(server, tool, stream=stream)
    expected = sorted(name for name in names if name in free)
    assert sorted(name for name, _ in servers.calls) == expected
    requests = [item for item in first.output if isinstance(item, McpApprovalRequest)]
    assert len(requests) == len(names) - len(expected)
    if not requests:
        return [strip_ids(first)]
    answers: Any = [
        {
            "type": "mcp_approval_response",
            "approval_request_id": request.id,
            "approve": rng.random() < 0.5,
        }
        for request in requests
        if rng.random() < 0.8
    ]
    fields = {"input": answers or "hi", "previous_response_id": first.id}
    second = await get_response(server, tool, stream=stream, **fields)
    approved = {answer["approval_request_id"] for answer in answers if answer["approve"]}
    expected += [request.name for request in requests if request.id in approved]
    assert sorted(name for name, _ in servers.calls) == sorted(expected)
    results = [item for item in second.output if isinstance(item, McpCall)]
    assert {item.approval_request_id for item in results} == approved
    return [strip_ids(first), [item.type for item in second.output], second.usage]


async def test_mcp_approval_without_server_is_rejected() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("send"), END, tool_servers=servers)
    first = await create(server, STRICT)
    answer: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": first.output[-1].id,
        "approve": True,
    }
    with pytest.raises(openai.BadRequestError, match="needs its MCP server"):
        await create(server, input=[answer], previous_response_id=first.id)
    assert servers.calls == []


async def test_mcp_random_approvals_run_no_unapproved_call() -> None:
    for seed in range(30):
        whole = await run_random_approvals(seed, stream=False)
        assert await run_random_approvals(seed, stream=True) == whole


@pytest.mark.long
async def test_mcp_many_approvals_run_no_unapproved_call() -> None:
    n_requests = 0
    for seed in itertools.count():
        whole = await run_random_approvals(seed, stream=False)
        assert await run_random_approvals(seed, stream=True) == whole
        # Without an approval there is no second request; a stream asks as often.
        n_requests += 2 if len(whole) == 1 else 4
        if n_requests >= 10_000:
            return


async def test_mcp_approval_allows_one_call() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("send"), END, END, END, tool_servers=servers)
    first = await create(server, STRICT)
    answer: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": first.output[-1].id,
        "approve": True,
    }
    fields: Any = {"input": [answer], "previous_response_id": first.id}
    responses = await asyncio.gather(*(create(server, STRICT, **fields) for _ in range(3)))
    assert len(servers.calls) == 1
    calls = [item for each in responses for item in each.output if isinstance(item, McpCall)]
    assert sorted(str(item.status) for item in calls) == ["completed", "failed", "failed"]


async def test_mcp_approval_in_conversation_runs_call() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("send"), END, tool_servers=servers)
    conversation = (await server.openai().conversations.create()).id
    first = await create(server, STRICT, conversation=conversation)
    answer: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": first.output[-1].id,
        "approve": True,
    }
    ended = await create(server, STRICT, input=[answer], conversation=conversation)
    assert ended.output_text == "It is sunny."
    assert servers.calls == [("send", "{}")]
    assert servers.n_lists == 1


async def test_mcp_approval_in_sent_history_runs_call() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("send"), END, tool_servers=servers)
    first = await create(server, STRICT, store=False)
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": first.output[-1].id,
        "approve": True,
    }
    items: Any = [item.model_dump(mode="json") for item in first.output]
    ended = await create(server, STRICT, input=[*items, answer], store=False)
    assert ended.output_text == "It is sunny."
    assert servers.calls == [("send", "{}")]


@pytest.mark.parametrize("arguments", ["{", "[]", "[" * 5000])
async def test_mcp_approval_of_invalid_arguments_fails(arguments: str) -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("send"), END, tool_servers=servers)
    first = await create(server, STRICT, store=False)
    items: Any = [item.model_dump(mode="json") for item in first.output]
    items[-1]["arguments"] = arguments
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": items[-1]["id"],
        "approve": True,
    }
    ended = await create(server, STRICT, input=[*items, answer], store=False)
    (result,) = [item for item in ended.output if isinstance(item, McpCall)]
    assert (result.status, result.approval_request_id) == ("failed", items[-1]["id"])
    assert servers.calls == []


async def test_mcp_with_client_function_ends_with_its_call() -> None:
    servers = LocalToolServers()
    entry = ScriptEntry((CallTool("weather__look"), CallTool("add", '{"a": 1}')))
    response = await create(build_tool_server(entry, tool_servers=servers), FREE, ADD)
    kinds = [item.type for item in response.output]
    assert kinds == ["mcp_list_tools", "mcp_call", "function_call"]
    assert servers.calls == [("look", "{}")]


async def test_mcp_max_tool_calls_limits_calls() -> None:
    servers = LocalToolServers()
    entry = ScriptEntry((CallTool("weather__look"), CallTool("weather__look")))
    server = build_tool_server(entry, END, tool_servers=servers)
    response = await create(server, FREE, max_tool_calls=1)
    assert len(servers.calls) == 1
    assert [item.status for item in response.output if isinstance(item, McpCall)] == [
        "completed", "failed",
    ]  # fmt: skip


async def test_mcp_output_limit_counts_all_turns() -> None:
    entries = (call("look"), ScriptEntry((Say("many words " * 40),)))
    server = build_tool_server(*entries, tool_servers=LocalToolServers())
    response = await create(server, FREE, max_output_tokens=60)
    assert response.status == "incomplete"
    assert response.usage is not None
    assert response.usage.output_tokens <= 60


async def test_mcp_server_down_gives_failed_list() -> None:
    server = build_tool_server(END, tool_servers=LocalToolServers())
    response = await create(server, FREE | {"server_label": "down"})
    tools = response.output[0]
    assert isinstance(tools, McpListTools)
    assert (tools.tools, tools.error) == ([], "The server is down.")


@pytest.mark.parametrize(
    ("tool", "fields", "param"),
    [
        ({"server_label": "refused"}, {}, "tools[0]"),
        ({"server_label": None}, {}, "tools[0].server_label"),
        ({"require_approval": "maybe"}, {}, "tools[0].require_approval"),
        ({"connector_id": "connector_gmail"}, {}, "tools[0].connector_id"),
        (
            {},
            {"tool_choice": {"type": "mcp", "server_label": "weather", "name": "dig"}},
            "tool_choice.name",
        ),
    ],
)
async def test_mcp_invalid_use_names_field(tool: Any, fields: Any, param: str) -> None:
    server = build_tool_server(END, tool_servers=LocalToolServers())
    with pytest.raises(openai.BadRequestError) as raised:
        await create(server, FREE | tool, **fields)
    assert raised.value.param == param


async def test_mcp_without_tool_servers_is_rejected() -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await create(build_tool_server(END), ADD, FREE)
    assert raised.value.param == "tools[1]"


async def test_mcp_allowed_tools_filter_list_for_model() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("look"), END, tool_servers=servers)
    tool = FREE | {"allowed_tools": {"read_only": True}}
    forced: Any = {"type": "mcp", "server_label": "weather", "name": "look"}
    response = await create(server, tool, tool_choice=forced)
    assert response.output_text == "It is sunny."
    with pytest.raises(openai.BadRequestError):
        await create(server, tool, tool_choice=forced | {"name": "send"})


async def test_mcp_secrets_are_not_in_response() -> None:
    servers = LocalToolServers()
    server = build_tool_server(call("look"), END, tool_servers=servers)
    secrets: Any = {"authorization": "s3cret-token", "headers": {"x-key": "s3cret-header"}}
    response = await create(server, FREE | secrets)
    assert servers.opened[0].authorization == "s3cret-token"
    stored = await server.get(f"/v1/responses/{response.id}")
    assert "s3cret" not in response.model_dump_json() + stored.text


async def test_mcp_error_after_call_prevents_retry() -> None:
    servers = LocalToolServers()
    # A retry would find an answer.
    entries = (call("send"), ScriptEntry((Fail(503),)), END)
    server = build_tool_server(*entries, tool_servers=servers)
    client = server.openai().with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.responses.create(model="m", input="hi", tools=[FREE])
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert servers.calls == [("send", "{}")]


async def test_mcp_error_before_calls_can_be_retried() -> None:
    servers = LocalToolServers()
    server = build_tool_server(ScriptEntry((Fail(503),)), END, tool_servers=servers)
    with pytest.raises(openai.InternalServerError) as caught:
        await create(server, FREE)
    assert "x-should-retry" not in caught.value.response.headers


async def test_mcp_many_calls_of_turn_are_limited() -> None:
    servers = LocalToolServers()
    calls = tuple(CallTool("weather__look") for _ in range(MAX_CALLS + 2))
    server = build_tool_server(ScriptEntry(calls), END, tool_servers=servers)
    response = await create(server, FREE)
    results = [item for item in response.output if isinstance(item, McpCall)]
    assert [item.status for item in results] == ["completed"] * MAX_CALLS + ["failed"] * 2
    assert len(servers.calls) == MAX_CALLS
    assert response.output_text == "It is sunny."
