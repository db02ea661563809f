"""Hosted tools of Messages that an operator's MCP server runs, through the official SDK."""

from __future__ import annotations

from typing import Any, cast

import anthropic
import pytest
from anthropic.types import (
    CitationsWebSearchResultLocation,
    CodeExecutionResultBlock,
    CodeExecutionToolResultBlock,
    CodeExecutionToolResultErrorObject,
    Message,
    ServerToolUsage,
    ServerToolUseBlock,
    WebSearchToolResultBlock,
    WebSearchToolResultErrorObject,
)
from tests.serving.harness import ServerHarness
from tests.serving.tool_servers import SCHEMA, LocalToolServers, build_tool_server

from dragoman.core.message import ToolCall, ToolResult
from dragoman.core.request import Conversation
from dragoman.core.server_tools import HostedTarget
from dragoman.engines.scripted import CallTool, Say, ScriptedEngine, ScriptEntry, Think
from dragoman.serving.serving_options import ServingOptions
from dragoman.tools.interface import (
    ServerTool,
    ToolCallResult,
    ToolServerError,
    ToolServerErrorKind,
)
from dragoman_check.rules.anthropic import check_object, check_stream

URL = "https://example.com/bern"
FOUND = f'[{{"title":"Weather","url":"{URL}","text":"12 degrees"}},{{"url":"https://x.example"}}]'
SEARCH = ScriptEntry((Think("Hm."), CallTool("web_search", '{"query":"weather Bern"}')))
CODE = ScriptEntry((CallTool("code_execution", '{"code":"print(1)"}'),))
ANSWER = ScriptEntry((Say(f"It is sunny, see {URL}."),))
WEB: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}
RUN: dict[str, Any] = {"type": "code_execution_20250522", "name": "code_execution"}
OPTIONS = ServingOptions(
    hosted_tools={
        "web_search": HostedTarget("searx", "search"),
        "code_interpreter": HostedTarget("sandbox", "run"),
    }
)


class HostedServers(LocalToolServers):
    """Servers with the tools `search` and `run`.

    failure: what every call raises, or `is_error` for a failure that the tool reports.
    """

    def __init__(self, failure: ToolServerError | str = "", found: str = FOUND) -> None:
        super().__init__()
        self._failure = failure
        self._found = found

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
        if isinstance(self._failure, ToolServerError):
            raise self._failure
        text = self._found if name == "search" else "1"
        return ToolCallResult(text=text, is_error=bool(self._failure))


def build(*entries: ScriptEntry, **settings: Any) -> tuple[ServerHarness, HostedServers]:
    servers = HostedServers(**settings)
    return build_tool_server(*entries, tool_servers=servers, options=OPTIONS), servers


def build_body(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools, **fields}


async def create(server: ServerHarness, body: dict[str, Any]) -> Message:
    """Create a message, and check it strictly."""
    answer = await server.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    check_object(answer.json())
    return Message.model_validate(answer.json(), strict=True)


def read_prompt(server: ServerHarness) -> Conversation:
    engine = server.engine
    assert isinstance(engine, ScriptedEngine)
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, Conversation)
    return prompt


@pytest.mark.parametrize("version", ["20250305", "20260209", "20260318"])
async def test_messages_web_search_returns_links(version: str) -> None:
    server, servers = build(SEARCH, ANSWER)
    message = await create(server, build_body(WEB | {"type": f"web_search_{version}"}))
    assert servers.calls == [("search", '{"query":"weather Bern"}')]
    assert servers.opened[-1].label == "searx"
    _, use, result, text = message.content
    assert isinstance(use, ServerToolUseBlock)
    assert (use.name, use.input, use.id[:9]) == (
        "web_search",
        {"query": "weather Bern"},
        "srvtoolu_",
    )
    assert isinstance(result, WebSearchToolResultBlock)
    assert result.tool_use_id == use.id
    assert isinstance(result.content, list)
    found = [(link.title, link.url) for link in result.content]
    assert found == [("Weather", URL), ("https://x.example", "https://x.example")]
    assert text.type == "text"
    assert text.citations is not None
    (citation,) = text.citations
    assert isinstance(citation, CitationsWebSearchResultLocation)
    assert (citation.url, citation.title) == (URL, "Weather")
    assert citation.cited_text == "12 degrees"
    assert message.stop_reason == "end_turn"
    assert message.usage.server_tool_use == ServerToolUsage(
        web_search_requests=1, web_fetch_requests=0
    )


@pytest.mark.parametrize("failure", ["", "is_error"])
async def test_messages_hosted_stream_equals_whole_message(failure: str) -> None:
    entries = (SEARCH, CODE, ANSWER)
    body = build_body(WEB, RUN)
    whole = await create(build(*entries, failure=failure)[0], body)
    server, _ = build(*entries, failure=failure)
    plain = check_stream((await server.post("/v1/messages", {**body, "stream": True})).content)
    server, _ = build(*entries, failure=failure)
    client = anthropic.AsyncAnthropic(
        api_key="none", base_url="http://localhost", http_client=server.http(), max_retries=0
    )
    events: list[Any] = [
        event async for event in await cast("Any", client.messages).create(**body, stream=True)
    ]
    for event, sent in zip(events, plain, strict=True):
        cast("type[anthropic.BaseModel]", type(event)).model_validate(sent, strict=True)
    server, _ = build(*entries, failure=failure)
    client = client.copy(http_client=server.http())
    async with cast("Any", client.messages).stream(**body) as stream:
        folded = await stream.get_final_message()
    ids = {"id", "tool_use_id", "signature"}
    for one, other in zip(folded.content, whole.content, strict=True):
        assert mask(one.model_dump(exclude=ids)) == mask(other.model_dump(exclude=ids))
    assert (folded.stop_reason, folded.usage) == (whole.stop_reason, whole.usage)


def mask(block: dict[str, Any]) -> dict[str, Any]:
    """Replace what is encrypted, which differs each time."""
    content = block.get("content")
    links = cast("list[dict[str, Any]]", content if isinstance(content, list) else [])
    for link in links:
        link["encrypted_content"] = bool(link["encrypted_content"])
    return block


async def test_messages_code_execution_returns_output() -> None:
    server, servers = build(CODE, ANSWER)
    message = await create(server, build_body(RUN))
    use, result, _ = message.content
    assert isinstance(use, ServerToolUseBlock)
    assert isinstance(result, CodeExecutionToolResultBlock)
    assert isinstance(result.content, CodeExecutionResultBlock)
    assert (result.content.stdout, result.content.return_code) == ("1", 0)
    assert servers.calls == [("run", '{"code":"print(1)"}')]


async def test_messages_code_execution_failure_has_return_code() -> None:
    message = await create(build(CODE, ANSWER, failure="is_error")[0], build_body(RUN))
    result = message.content[1]
    assert isinstance(result, CodeExecutionToolResultBlock)
    assert isinstance(result.content, CodeExecutionResultBlock)
    assert (result.content.stderr, result.content.return_code) == ("1", 1)


@pytest.mark.parametrize(
    ("failure", "search_code", "execution_code"),
    [
        (ToolServerError(ToolServerErrorKind.HTTP, "", 429), *["too_many_requests"] * 2),
        (ToolServerError(ToolServerErrorKind.HTTP, "", 502), *["unavailable"] * 2),
        (ToolServerError(ToolServerErrorKind.PROTOCOL, "", -32602), *["invalid_tool_input"] * 2),
        (
            ToolServerError(ToolServerErrorKind.TIMEOUT, ""),
            "unavailable",
            "execution_time_exceeded",
        ),
    ],
)
async def test_messages_hosted_failure_has_vendors_code(
    failure: ToolServerError, search_code: str, execution_code: str
) -> None:
    server, _ = build(SEARCH, CODE, ANSWER, failure=failure)
    message = await create(server, build_body(WEB, RUN))
    _, _, search, _, execution, _ = message.content
    assert isinstance(search, WebSearchToolResultBlock)
    assert isinstance(search.content, WebSearchToolResultErrorObject)
    assert search.content.error_code == search_code
    assert isinstance(execution, CodeExecutionToolResultBlock)
    assert isinstance(execution.content, CodeExecutionToolResultErrorObject)
    assert execution.content.error_code == execution_code
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 0


async def test_messages_invalid_search_arguments_are_reported() -> None:
    entry = ScriptEntry((CallTool("web_search", "[1]"),))
    message = await create(build(entry, ANSWER)[0], build_body(WEB))
    search = message.content[1]
    assert isinstance(search, WebSearchToolResultBlock)
    assert isinstance(search.content, WebSearchToolResultErrorObject)
    assert search.content.error_code == "invalid_tool_input"


async def test_messages_max_uses_limits_one_tool() -> None:
    two = ScriptEntry((CallTool("web_search", "{}"), CallTool("web_search", "{}")))
    server, servers = build(two, CODE, ANSWER)
    message = await create(server, build_body(WEB | {"max_uses": 1}, RUN))
    search, refused, code = (block for block in message.content if "result" in block.type)
    assert isinstance(search, WebSearchToolResultBlock)
    assert isinstance(search.content, list)
    assert isinstance(refused, WebSearchToolResultBlock)
    assert isinstance(refused.content, WebSearchToolResultErrorObject)
    assert refused.content.error_code == "max_uses_exceeded"
    assert isinstance(code, CodeExecutionToolResultBlock)
    assert [name for name, _ in servers.calls] == ["search", "run"]
    assert read_prompt(server).tool_choice.names == ("code_execution",)


async def test_messages_hosted_blocks_are_read_back() -> None:
    server, _ = build(SEARCH, CODE, ANSWER, ANSWER)
    body = build_body(WEB, RUN)
    first = await create(server, body)
    history = [
        *body["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": "again"},
    ]
    answer = await server.post("/v1/messages", {**body, "messages": history})
    assert "x-dragoman-warnings" not in answer.headers
    parts = [part for message in read_prompt(server).messages for part in message.parts]
    assert [part.name for part in parts if isinstance(part, ToolCall)] == [
        "web_search",
        "code_execution",
    ]
    search, code = (str(part) for part in parts if isinstance(part, ToolResult))
    assert "12 degrees" in search
    assert '\\"stdout\\":\\"1\\"' in code or '"stdout":"1"' in code


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("allowed_domains", ["example.com"]),
        ("blocked_domains", ["example.com"]),
        ("user_location", {"type": "approximate", "city": "Bern"}),
        ("strict", True),
    ],
)
async def test_messages_search_option_is_ignored_with_warning(option: str, value: Any) -> None:
    server, _ = build(SEARCH, ANSWER)
    answer = await server.post("/v1/messages", build_body(WEB | {option: value}))
    assert f"tools[0].{option} is ignored" in answer.headers["x-dragoman-warnings"]


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ((WEB, WEB), "tools.1.name"),
        ((WEB, {"name": "web_search", "input_schema": {"type": "object"}}), "tools.0.name"),
        ((WEB | {"name": "find"},), "tools.0.name"),
        ((WEB | {"max_uses": 0},), "tools.0.max_uses"),
    ],
)
async def test_messages_invalid_hosted_tool_is_rejected(tools: Any, field: str) -> None:
    answer = await build(ANSWER)[0].post("/v1/messages", build_body(*tools))
    assert answer.status_code == 400
    assert field in answer.text


async def test_messages_unknown_field_of_hosted_tool_is_reported() -> None:
    server, _ = build(SEARCH, ANSWER)
    answer = await server.post("/v1/messages", build_body(WEB | {"max_searches": 3}))
    assert "tools[0].max_searches" in answer.headers["x-dragoman-warnings"]


async def test_messages_hosted_choice_forces_first_call() -> None:
    server, servers = build(SEARCH, ANSWER)
    await create(server, build_body(WEB, tool_choice={"type": "tool", "name": "web_search"}))
    assert len(servers.calls) == 1


async def test_messages_hosted_call_beside_client_call_ends_turn() -> None:
    entry = ScriptEntry((CallTool("web_search", "{}"), CallTool("add", "{}")))
    add = {"name": "add", "input_schema": {"type": "object"}}
    message = await create(build(entry)[0], build_body(WEB, add))
    kinds = [block.type for block in message.content]
    assert kinds == ["server_tool_use", "web_search_tool_result", "tool_use"]
    assert message.stop_reason == "tool_use"


async def test_messages_hosted_tool_without_name_is_rejected() -> None:
    options = ServingOptions(hosted_tools={"web_search": HostedTarget("searx")})
    server = build_tool_server(ANSWER, tool_servers=HostedServers(), options=options)
    answer = await server.post("/v1/messages", build_body(WEB, RUN))
    assert answer.status_code == 500
    assert "lists 2 tools" in answer.text


async def test_messages_hosted_tools_without_operator_are_left_out() -> None:
    server = build_tool_server(ANSWER, tool_servers=HostedServers())
    answer = await server.post("/v1/messages", build_body(WEB, RUN))
    assert answer.headers["x-dragoman-warnings"].count("cannot be run here") == 2
    assert "server_tool_use" not in answer.json()["usage"]


async def test_count_tokens_accepts_choice_of_hosted_tool() -> None:
    body = build_body(WEB, tool_choice={"type": "tool", "name": "web_search"})
    body.pop("max_tokens")
    answer = await build(ANSWER)[0].post("/v1/messages/count_tokens", body)
    assert answer.status_code == 200, answer.text
