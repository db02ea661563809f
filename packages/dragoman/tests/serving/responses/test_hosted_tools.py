"""Hosted tools of Responses that an operator's MCP server runs, through the official SDK."""

from __future__ import annotations

from typing import Any, cast

import openai
import pytest
from openai.types.responses import (
    Response,
    ResponseCodeInterpreterToolCall,
    ResponseFunctionWebSearch,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai.types.responses.response_function_web_search import ActionSearch
from openai.types.responses.response_output_text import AnnotationURLCitation
from tests.serving.harness import ServerHarness
from tests.serving.tool_servers import SCHEMA, LocalToolServers, build_tool_server

from dragoman.core.server_tools import HostedTarget
from dragoman.engines.scripted import CallTool, Say, ScriptEntry, Think
from dragoman.serving.serving_options import ServingOptions
from dragoman.tools.interface import ServerTool, ToolCallResult
from dragoman_check.rules.responses import check_object, check_stream

URL = "https://example.com/bern"
FOUND = f'[{{"title":"Weather in Bern","url":"{URL}"}},{{"url":"https://example.com/b"}}]'
SEARCH = ScriptEntry((Think("Hm."), CallTool("web_search", '{"query":"weather Bern"}')))
ANSWER = ScriptEntry((Say(f"It is sunny ([source]({URL})), see {URL}."),))
CODE = ScriptEntry((CallTool("code_interpreter", '{"code":"print(1)\\n"}'),))
OPTIONS = ServingOptions(
    hosted_tools={
        "web_search": HostedTarget("searx", "search"),
        "code_interpreter": HostedTarget("sandbox", "run"),
    }
)
INCLUDE = ["web_search_call.action.sources", "code_interpreter_call.outputs"]


class HostedServers(LocalToolServers):
    """Servers with the tools `search` and `run`."""

    def __init__(self, *, is_error: bool = False) -> None:
        super().__init__()
        self._is_error = is_error

    async def list_tools(self) -> tuple[ServerTool, ...]:
        return tuple(ServerTool(name=name, input_schema=SCHEMA) for name in ("search", "run"))

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        del timeout
        self.calls.append((name, arguments))
        return ToolCallResult(text=FOUND if name == "search" else "1", is_error=self._is_error)


def build(*entries: ScriptEntry, is_error: bool = False) -> tuple[ServerHarness, HostedServers]:
    servers = HostedServers(is_error=is_error)
    return build_tool_server(*entries, tool_servers=servers, options=OPTIONS), servers


def build_body(*types: str, **fields: Any) -> dict[str, Any]:
    tools: list[Any] = [{"type": type} for type in types]
    return {"model": "m", "input": "hi", "tools": tools, "include": INCLUDE, **fields}


async def create(server: ServerHarness, body: dict[str, Any]) -> Response:
    """Create a response, and check it strictly."""
    answer = await server.post("/v1/responses", body)
    assert answer.status_code == 200, answer.text
    check_object(answer.json())
    return Response.model_validate(answer.json(), strict=True)


async def test_web_search_runs_tool_and_cites_links() -> None:
    server, servers = build(SEARCH, ANSWER)
    response = await create(server, build_body("web_search"))
    assert servers.calls == [("search", '{"query":"weather Bern"}')]
    assert servers.opened[-1].label == "searx"
    reasoning, search, message = response.output
    assert reasoning.type == "reasoning"
    assert isinstance(search, ResponseFunctionWebSearch)
    assert isinstance(search.action, ActionSearch)
    assert (search.status, search.action.query) == ("completed", "weather Bern")
    assert [source.url for source in search.action.sources or ()] == [URL, "https://example.com/b"]
    assert isinstance(message, ResponseOutputMessage)
    (part,) = message.content
    assert isinstance(part, ResponseOutputText)
    citations = [each for each in part.annotations if isinstance(each, AnnotationURLCitation)]
    assert [part.text[each.start_index : each.end_index] for each in citations] == [URL, URL]
    assert [each.title for each in citations] == ["Weather in Bern"] * 2


@pytest.mark.parametrize("is_error", [False, True])
async def test_hosted_stream_equals_whole_response(is_error: bool) -> None:
    entries = (SEARCH, CODE, ANSWER)
    body = build_body("web_search", "code_interpreter")
    whole = await create(build(*entries, is_error=is_error)[0], body)
    server, _ = build(*entries, is_error=is_error)
    events = check_stream((await server.post("/v1/responses", {**body, "stream": True})).content)
    last = Response.model_validate(events[-1]["response"], strict=True)
    for one, other in zip(last.output, whole.output, strict=True):
        ids = {"id", "container_id"}
        assert one.model_dump(exclude=ids) == other.model_dump(exclude=ids)
    server, _ = build(*entries, is_error=is_error)
    stream: Any = await server.openai().responses.create(**body, stream=True)
    parsed: list[Any] = [event async for event in stream]
    kinds = [event.type.removeprefix("response.") for event in parsed if "_call" in event.type]
    ends = [] if is_error else ["completed"]
    assert kinds == [
        *(f"web_search_call.{stage}" for stage in ("in_progress", "searching", *ends)),
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        *(f"code_interpreter_call.{stage}" for stage in ("interpreting", *ends)),
    ]
    for event, plain in zip(parsed, events, strict=True):
        kind = cast("type[openai.BaseModel]", type(event))
        kind.model_validate(plain, strict=True)


async def test_code_interpreter_returns_code_and_outputs() -> None:
    server, servers = build(CODE, ANSWER)
    call = (await create(server, build_body("code_interpreter"))).output[0]
    assert isinstance(call, ResponseCodeInterpreterToolCall)
    assert (call.code, call.status) == ("print(1)\n", "completed")
    assert [output.model_dump() for output in call.outputs or ()] == [{"type": "logs", "logs": "1"}]
    assert servers.calls == [("run", '{"code":"print(1)\\n"}')]


async def test_hosted_outputs_are_absent_unless_included() -> None:
    server, _ = build(SEARCH, CODE, ANSWER)
    body = build_body("web_search_preview", "code_interpreter", include=[])
    output = (await create(server, body)).output
    (search,) = [item for item in output if isinstance(item, ResponseFunctionWebSearch)]
    (code,) = [item for item in output if isinstance(item, ResponseCodeInterpreterToolCall)]
    assert isinstance(search.action, ActionSearch)
    assert (search.action.sources, code.outputs) == (None, None)


async def test_hosted_tool_choice_forces_first_call() -> None:
    server, servers = build(SEARCH, ANSWER)
    choice = {"type": "web_search_preview"}
    await create(server, build_body("web_search_preview", tool_choice=choice))
    assert len(servers.calls) == 1


async def test_hosted_tool_without_operators_tool_is_left_out() -> None:
    server = build_tool_server(ANSWER, tool_servers=HostedServers())
    answer = await server.post("/v1/responses", build_body("web_search"))
    assert "cannot be run here" in answer.headers["x-dragoman-warnings"]
    assert answer.json()["tools"] == []


@pytest.mark.parametrize(
    ("type", "option", "value"),
    [
        ("web_search", "filters", {"allowed_domains": ["example.com"]}),
        ("web_search", "search_context_size", "low"),
        ("web_search", "external_web_access", False),
        ("web_search", "max_results", 3),
        ("web_search_preview", "search_content_types", ["text"]),
        ("code_interpreter", "container", "cntr_1"),
        ("code_interpreter", "container", {"type": "auto", "file_ids": ["file_1"]}),
    ],
)
async def test_hosted_option_is_reported_in_warning(type: str, option: str, value: object) -> None:
    tool = {"type": type, option: value}
    answer = await build(ANSWER)[0].post("/v1/responses", {**build_body(), "tools": [tool]})
    assert f"tools[0].{option}" in answer.headers["x-dragoman-warnings"]


async def test_hosted_tool_without_name_is_rejected() -> None:
    options = ServingOptions(hosted_tools={"web_search": HostedTarget("searx")})
    server = build_tool_server(ANSWER, tool_servers=HostedServers(), options=options)
    body: Any = build_body("web_search")
    with pytest.raises(openai.InternalServerError, match="lists 2 tools"):
        await server.openai().with_options(max_retries=0).responses.create(**body)


async def test_hosted_call_continues_with_previous_response() -> None:
    server, _ = build(SEARCH, ANSWER, ANSWER)
    first = await create(server, build_body("web_search"))
    second = await create(server, build_body("web_search", previous_response_id=first.id))
    assert second.status == "completed"
