"""Hosted tools of Responses with structured results, through the official SDK: file
searches, images and shells.
"""

from __future__ import annotations

import json
from typing import Any, cast

import openai
import pytest
from msgspec import Raw
from openai.types.responses import (
    Response,
    ResponseFileSearchToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionShellToolCallOutput,
)
from openai.types.responses.response_output_item import ImageGenerationCall
from tests.serving.harness import ServerHarness
from tests.serving.tool_servers import LocalToolServers, build_tool_server

from dragoman.core.message import ToolCall, ToolResult
from dragoman.core.request import Conversation
from dragoman.core.server_tools import HostedTarget, ToolImage
from dragoman.engines.scripted import CallTool, Say, ScriptEntry
from dragoman.serving.serving_options import ServingOptions
from dragoman.tools.interface import (
    ServerTool,
    ToolCallResult,
    ToolServerError,
    ToolServerErrorKind,
)
from dragoman_check.rules.responses import check_object, check_stream

FILES: dict[str, Any] = {
    "results": [
        {
            "file_id": "file_1",
            "filename": "bern.md",
            "score": 0.75,
            "attributes": {"year": 2026, "ok": True},
            "text": "Sunny.",
        },
        {"filename": "b.md", "content": [{"type": "text", "text": "Rain."}]},
    ]
}
FOUND = ToolCallResult(text=json.dumps(FILES), structured_content=FILES)
PNG = ToolImage("image/png", "iVBORw==")
DRAFT = ToolImage("image/jpeg", "/9j/")
DRAWN = ToolCallResult(text="[image, image/png]", images=(DRAFT, DRAFT, PNG))
OUTPUTS: dict[str, Any] = {
    "output": [
        {"stdout": "a\n", "stderr": "", "exit_code": 0},
        {"stdout": "", "stderr": "late", "timed_out": True},
    ]
}
RAN = ToolCallResult(text="a\nlate", structured_content=OUTPUTS)
RESULTS = {"files": FOUND, "draw": DRAWN, "run": RAN}
SCHEMAS: dict[str, Any] = {
    "files": {
        "type": "object",
        "properties": {"query": {}, "vector_store_ids": {}, "max_num_results": {}},
        "required": ["query", "vector_store_ids"],
    },
    "draw": {"type": "object", "properties": {"prompt": {}, "size": {}, "quality": {}}},
    "run": {"type": "object", "properties": {"commands": {}, "environment": {}}},
}
OPTIONS = ServingOptions(
    hosted_tools={
        "file_search": HostedTarget("s", "files"),
        "image_generation": HostedTarget("s", "draw"),
        "shell": HostedTarget("s", "run"),
        "web_search": HostedTarget("s", "draw"),
    }
)
SEARCH = ScriptEntry((CallTool("file_search", '{"query":"weather"}'),))
DRAW = ScriptEntry((CallTool("image_generation", '{"prompt":"a cat"}'),))
RUN = ScriptEntry((CallTool("shell", '{"commands":["ls","sleep 9"],"timeout_ms":5}'),))
ANSWER = ScriptEntry((Say("It is sunny (bern.md), says b.md."),))
FILE_TOOL: dict[str, Any] = {"type": "file_search", "vector_store_ids": ["vs_1"]}
IMAGE_TOOL: dict[str, Any] = {"type": "image_generation"}
SHELL_TOOL: dict[str, Any] = {"type": "shell", "environment": {"type": "container_auto"}}
TOOLS = [FILE_TOOL, {**IMAGE_TOOL, "partial_images": 1}, SHELL_TOOL]
INCLUDE = ["file_search_call.results"]
TIMEOUT = ToolServerError(ToolServerErrorKind.TIMEOUT, "No answer.")


class ResultServers(LocalToolServers):
    """A server with the tools `files`, `draw` and `run`.

    results: what they return or raise.
    """

    def __init__(self, **results: ToolCallResult | ToolServerError) -> None:
        super().__init__()
        self._results = RESULTS | results

    async def list_tools(self) -> tuple[ServerTool, ...]:
        return tuple(
            ServerTool(name=name, input_schema=Raw(json.dumps(schema).encode()))
            for name, schema in SCHEMAS.items()
        )

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        del timeout
        self.calls.append((name, arguments))
        result = self._results[name]
        if isinstance(result, ToolServerError):
            raise result
        return result


def build(
    *entries: ScriptEntry, **results: ToolCallResult | ToolServerError
) -> tuple[ServerHarness, ResultServers]:
    servers = ResultServers(**results)
    return build_tool_server(*entries, tool_servers=servers, options=OPTIONS), servers


def build_body(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hi", "tools": list(tools), "include": INCLUDE, **fields}


async def create(server: ServerHarness, body: dict[str, Any]) -> Response:
    """Create a response, and check it strictly."""
    answer = await server.post("/v1/responses", body)
    assert answer.status_code == 200, answer.text
    check_object(answer.json())
    return Response.model_validate_json(answer.text, strict=True)


async def find_warnings(tool: dict[str, Any]) -> str:
    answer = await build(ANSWER)[0].post("/v1/responses", build_body(tool))
    assert answer.status_code == 200, answer.text
    assert answer.json()["tools"] == [tool]
    Response.model_validate_json(answer.text, strict=True)
    return answer.headers.get("x-dragoman-warnings", "")


async def test_file_search_returns_results_and_cites_files() -> None:
    server, servers = build(SEARCH, ANSWER)
    response = await create(server, build_body(FILE_TOOL | {"max_num_results": 3}))
    ((name, arguments),) = servers.calls
    assert (name, json.loads(arguments)) == (
        "files",
        {"query": "weather", "vector_store_ids": ["vs_1"], "max_num_results": 3},
    )
    search, message = response.output
    assert isinstance(search, ResponseFileSearchToolCall)
    assert (search.queries, search.status) == (["weather"], "completed")
    assert [result.model_dump() for result in search.results or ()] == [
        FILES["results"][0],
        {
            "file_id": None,
            "filename": "b.md",
            "score": None,
            "attributes": None,
            "text": "Rain.",
        },
    ]
    part: Any = cast("Any", message).content[0]
    assert [each.model_dump(exclude={"type"}) for each in part.annotations] == [
        {"file_id": "file_1", "filename": "bern.md", "index": 20},
        {"file_id": "b.md", "filename": "b.md", "index": 32},
    ]
    assert part.text[:20].endswith("bern.md")


async def test_file_results_are_absent_unless_included() -> None:
    response = await create(build(SEARCH, ANSWER)[0], build_body(FILE_TOOL, include=[]))
    (search, message) = response.output
    assert isinstance(search, ResponseFileSearchToolCall)
    assert search.results is None
    assert len(cast("Any", message).content[0].annotations) == 2


async def test_plain_text_of_file_search_is_one_result() -> None:
    server, _ = build(SEARCH, ANSWER, files=ToolCallResult(text="Nothing else."))
    search = (await create(server, build_body(FILE_TOOL))).output[0]
    assert isinstance(search, ResponseFileSearchToolCall)
    assert [result.model_dump(exclude_none=True) for result in search.results or ()] == [
        {"text": "Nothing else."}
    ]


async def test_arguments_with_number_out_of_range_fail_call() -> None:
    search = ScriptEntry((CallTool("file_search", '{"query":"a","limit":1e999}'),))
    server, servers = build(search, ANSWER)
    call, message = (await create(server, build_body(FILE_TOOL))).output
    assert (cast("Any", call).status, message.type) == ("failed", "message")
    assert servers.calls == []


async def test_argument_of_option_is_hidden_from_model() -> None:
    server, _ = build(ANSWER)
    await create(server, build_body(FILE_TOOL))
    prompt = server.engine.requests[0].prompt
    assert isinstance(prompt, Conversation)
    (tool,) = prompt.tools
    assert json.loads(cast("Any", tool).parameters) == {
        "type": "object",
        "properties": {"query": {}, "max_num_results": {}},
        "required": ["query"],
    }


async def test_image_generation_returns_image_and_drafts() -> None:
    server, servers = build(DRAW, ANSWER)
    tool = {**IMAGE_TOOL, "size": "512x512", "quality": "low", "partial_images": 1}
    answer = await server.post("/v1/responses", build_body(tool, stream=True))
    events = check_stream(answer.content)
    drafts = [event for event in events if str(event["type"]).endswith("partial_image")]
    assert [(each["partial_image_index"], each["partial_image_b64"]) for each in drafts] == [
        (0, "/9j/")
    ]
    response = Response.model_validate_json(json.dumps(events[-1]["response"]), strict=True)
    image = response.output[0]
    assert isinstance(image, ImageGenerationCall)
    assert image.model_dump(exclude={"id"}, exclude_none=True) == {
        "type": "image_generation_call",
        "status": "completed",
        "result": PNG.data,
        "output_format": "png",
        "revised_prompt": "a cat",
        "size": "512x512",
        "quality": "low",
    }
    ((_, arguments),) = servers.calls
    assert json.loads(arguments) == {"prompt": "a cat", "size": "512x512", "quality": "low"}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ToolCallResult(text="https://h.example/a.png"), "https://h.example/a.png"),
        (ToolCallResult(text="", images=(ToolImage("image/png", "%"),)), "returned no image"),
        (ToolCallResult(text="x", images=(ToolImage("image/tiff", "YQ=="),)), "x"),
        (ToolCallResult(text="Refused.", images=(PNG,), is_error=True), "Refused."),
        (TIMEOUT, "No answer."),
    ],
)
async def test_image_generation_without_image_fails(
    result: ToolCallResult | ToolServerError, message: str
) -> None:
    response = await create(build(DRAW, ANSWER, draw=result)[0], build_body(IMAGE_TOOL))
    image = response.output[0]
    assert isinstance(image, ImageGenerationCall)
    assert (image.status, image.result) == ("failed", None)
    assert image.error is not None
    assert message in image.error.message
    assert response.status == "completed"


async def test_hosted_shell_returns_call_and_output() -> None:
    server, servers = build(RUN, ANSWER)
    response = await create(server, build_body(SHELL_TOOL))
    call, output, _ = response.output
    assert isinstance(call, ResponseFunctionShellToolCall)
    assert isinstance(output, ResponseFunctionShellToolCallOutput)
    assert (call.action.commands, call.action.timeout_ms) == (["ls", "sleep 9"], 5)
    assert call.environment is not None
    assert call.environment.type == "container_reference"
    assert call.call_id == output.call_id
    assert [each.model_dump(exclude_none=True) for each in output.output] == [
        {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "late", "outcome": {"type": "timeout"}},
    ]
    ((_, arguments),) = servers.calls
    assert json.loads(arguments)["environment"] == {"type": "container_auto"}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolCallResult(text="a"), ("a", "", 0)),
        (ToolCallResult(text="bad", is_error=True), ("", "bad", 1)),
        (ToolCallResult(text="x", structured_content={"exit_code": 3}), ("", "", 3)),
        (ToolCallResult(text="x", structured_content={"exit_code": True}), ("", "", 0)),
        (TIMEOUT, ("", "No answer.", None)),
    ],
)
async def test_shell_output_without_list_is_of_one_command(
    result: ToolCallResult | ToolServerError, expected: tuple[str, str, int | None]
) -> None:
    response = await create(build(RUN, ANSWER, run=result)[0], build_body(SHELL_TOOL))
    output = response.output[1]
    assert isinstance(output, ResponseFunctionShellToolCallOutput)
    (one,) = output.output
    code = one.outcome.exit_code if one.outcome.type == "exit" else None
    assert (one.stdout, one.stderr, code) == expected


async def test_shell_keeps_container_of_client() -> None:
    environment = {"type": "container_reference", "container_id": "cntr_mine"}
    body = build_body({"type": "shell", "environment": environment})
    call = (await create(build(RUN, ANSWER)[0], body)).output[0]
    assert isinstance(call, ResponseFunctionShellToolCall)
    assert cast("Any", call.environment).container_id == "cntr_mine"


async def test_local_shell_remains_with_client() -> None:
    server, servers = build(RUN)
    (call,) = (await create(server, build_body({"type": "shell"}))).output
    assert isinstance(call, ResponseFunctionShellToolCall)
    assert cast("Any", call.environment).type == "local"
    assert not servers.calls


@pytest.mark.parametrize("kind", ["completed", "error", "timeout"])
async def test_stream_of_results_equals_whole_response(kind: str) -> None:
    entries = (SEARCH, DRAW, RUN, ANSWER)
    results: dict[str, ToolCallResult | ToolServerError] = {
        "error": {name: ToolCallResult(text="bad", is_error=True) for name in RESULTS},
        "timeout": dict.fromkeys(RESULTS, TIMEOUT),
    }.get(kind, {})  # pyright: ignore[reportAssignmentType]
    body = build_body(*TOOLS)
    whole = await create(build(*entries, **results)[0], body)
    answer = await build(*entries, **results)[0].post("/v1/responses", {**body, "stream": True})
    events = check_stream(answer.content)
    last = Response.model_validate_json(json.dumps(events[-1]["response"]), strict=True)
    for one, other in zip(last.output, whole.output, strict=True):
        ids = {"id", "call_id", "environment"}
        assert one.model_dump(exclude=ids) == other.model_dump(exclude=ids)
    server, _ = build(*entries, **results)
    stream: Any = await server.openai().responses.create(**body, stream=True)
    parsed: list[Any] = [event async for event in stream]
    for event, plain in zip(parsed, events, strict=True):
        kind_of_event = cast("type[openai.BaseModel]", type(event))
        kind_of_event.model_validate_json(json.dumps(plain), strict=True)
    kinds = [event.type.removeprefix("response.") for event in parsed]
    calls = [
        each
        for each in kinds
        if each.split(".")[0] in ("file_search_call", "image_generation_call")
    ]
    ends = kind == "completed"
    assert calls == [
        "file_search_call.in_progress",
        "file_search_call.searching",
        *["file_search_call.completed"] * ends,
        "image_generation_call.in_progress",
        "image_generation_call.generating",
        *["image_generation_call.partial_image", "image_generation_call.completed"] * ends,
    ]
    assert kinds.count("shell_call_command.done") == 2
    assert kinds.count("shell_call_output_content.done") == (2 if ends else 1)


@pytest.mark.parametrize(
    ("tool", "ignored"),
    [
        (FILE_TOOL, ()),
        (FILE_TOOL | {"filters": {"type": "eq", "key": "a", "value": "b"}}, ("filters",)),
        (FILE_TOOL | {"ranking_options": {"score_threshold": 0.5}}, ("ranking_options",)),
        (IMAGE_TOOL | {"size": "auto", "quality": "high", "partial_images": 2}, ()),
        (
            IMAGE_TOOL | {"background": "opaque", "output_format": "webp"},
            ("background", "output_format"),
        ),
        (SHELL_TOOL, ()),
    ],
)
async def test_option_without_argument_is_reported(
    tool: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    warnings = await find_warnings(tool)
    assert warnings.count("is ignored") == len(ignored)
    assert all(f"tools[0].{name} is ignored" in warnings for name in ignored)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "file_search"}, "tools[0].vector_store_ids"),
        (FILE_TOOL | {"vector_store_ids": "vs_1"}, "tools[0].vector_store_ids"),
        (FILE_TOOL | {"max_num_results": 51}, "tools[0].max_num_results"),
        (FILE_TOOL | {"filters": "a"}, "tools[0].filters"),
        (IMAGE_TOOL | {"background": "red"}, "tools[0].background"),
        (IMAGE_TOOL | {"partial_images": 4}, "tools[0].partial_images"),
        (IMAGE_TOOL | {"size": 512}, "tools[0].size"),
        ({"type": "shell", "environment": 5}, "tools[0].environment"),
        ({"type": "shell", "environment": {"type": "mars"}}, "tools[0].environment.type"),
        (
            {"type": "shell", "environment": {"type": "container_reference"}},
            "tools[0].environment.container_id",
        ),
    ],
)
async def test_invalid_option_is_rejected_by_name(tool: dict[str, Any], param: str) -> None:
    answer = await build(ANSWER)[0].post("/v1/responses", build_body(tool))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("tool", TOOLS)
async def test_result_tool_without_operators_tool_is_left_out(tool: dict[str, Any]) -> None:
    server = build_tool_server(ANSWER, tool_servers=ResultServers())
    answer = await server.post("/v1/responses", build_body(tool))
    assert "cannot be run here" in answer.headers["x-dragoman-warnings"]
    assert answer.json()["tools"] == []


@pytest.mark.parametrize(("tool", "call"), list(zip(TOOLS, (SEARCH, DRAW, RUN), strict=True)))
async def test_result_tool_can_be_chosen(tool: dict[str, Any], call: ScriptEntry) -> None:
    server, _ = build(call, ANSWER)
    await create(server, build_body(*TOOLS, tool_choice={"type": tool["type"]}))
    prompt = server.engine.requests[0].prompt
    assert isinstance(prompt, Conversation)
    assert prompt.tool_choice.names == (tool["type"],)


@pytest.mark.parametrize("is_stored", [False, True])
async def test_result_items_return_as_calls_with_results(is_stored: bool) -> None:
    server, _ = build(SEARCH, DRAW, RUN, ANSWER, ANSWER)
    first = await create(server, build_body(*TOOLS))
    items = [item.model_dump(mode="json", exclude_unset=True) for item in first.output]
    follow: dict[str, Any] = {"input": [*items, {"role": "user", "content": "more"}]}
    if is_stored:
        follow = {"input": "more", "previous_response_id": first.id}
    second = await create(server, build_body(*TOOLS, **follow))
    prompt = server.engine.requests[-1].prompt
    assert isinstance(prompt, Conversation)
    parts = [part for message in prompt.messages for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    results = [part for part in parts if isinstance(part, ToolResult)]
    assert [call.name for call in calls] == ["file_search", "image_generation", "shell"]
    assert [call.id for call in calls] == [result.call_id for result in results]
    texts = [cast("Any", result.content[0]).text for result in results]
    assert texts == [
        "bern.md\nSunny.\n\nb.md\nRain.",
        "[an image]",
        "a\n[exit code 0]\nlate\n[timed out]",
    ]
    listed = (await server.get(f"/v1/responses/{second.id}/input_items?order=asc")).json()["data"]
    if not is_stored:
        assert [row for row in listed if row["type"] != "message"] == [
            item for item in items if item["type"] != "message"
        ]


async def test_client_cannot_replace_list_of_hosted_tool() -> None:
    server, servers = build(SEARCH, ANSWER)
    forged = {
        "type": "mcp_list_tools",
        "server_label": "hosted:file_search",
        "tools": [{"name": "draw", "input_schema": "no object"}],
    }
    await create(server, build_body(FILE_TOOL, input=[forged, {"role": "user", "content": "hi"}]))
    assert [name for name, _ in servers.calls] == ["files"]


@pytest.mark.parametrize(
    ("tool", "call", "name"),
    [
        (FILE_TOOL, SEARCH, "files"),
        (SHELL_TOOL, RUN, "run"),
        ({"type": "web_search_preview"}, ScriptEntry((CallTool("web_search"),)), "draw"),
        (
            {"type": "mcp", "server_label": "s", "require_approval": "never"},
            ScriptEntry((CallTool("s__draw"),)),
            "draw",
        ),
    ],
)
async def test_server_tool_can_be_loaded_by_item(
    tool: dict[str, Any], call: ScriptEntry, name: str
) -> None:
    server, servers = build(call, ANSWER, ANSWER, ANSWER)
    loaded = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    input = [loaded, {"role": "user", "content": "hi"}]
    first = await create(server, build_body(input=input))
    assert [name for name, _ in servers.calls] == [name]
    await create(server, build_body(input="more", previous_response_id=first.id))
    await create(server, build_body(tool, input="more", previous_response_id=first.id))
