"""The OpenAI Agents SDK runs the shell and patch calls of the embedded model, streamed
and not streamed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    ApplyPatchTool,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunResult,
    RunResultStreaming,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    ShellTool,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore

QUIET = RunConfig(tracing_disabled=True)


class CallRecorder:
    """Records the calls that the SDK receives. None is run."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.operations: list[tuple[str, str, str | None]] = []

    def run(self, request: ShellCommandRequest) -> ShellResult:
        self.commands += request.data.action.commands
        return ShellResult(
            [ShellCommandOutput(stdout="README.md\n") for _ in request.data.action.commands]
        )

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        self.operations.append((operation.type, operation.path, operation.diff))
        return ApplyPatchResult("completed", "done")

    update_file = delete_file = create_file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


def agent(http: httpx2.AsyncClient, tool: Any) -> Agent[None]:
    client = openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0
    )
    settings = ModelSettings(
        temperature=0,
        tool_choice="required",
        max_tokens=400,
        extra_body={"seed": 7},
        parallel_tool_calls=False,
    )
    model = OpenAIResponsesModel(model="tiny", openai_client=client)
    return Agent(
        name="Worker",
        instructions="You work with files.",
        tools=[tool],
        model=model,
        model_settings=settings,
    )


async def run(who: Agent[None], question: str, *, streamed: bool) -> RunResult | RunResultStreaming:
    if not streamed:
        return await Runner.run(who, question, run_config=QUIET)
    result = Runner.run_streamed(who, question, run_config=QUIET)
    async for _ in result.stream_events():
        pass
    return result


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_shell_call_returned_and_output_reaches_model(
    http: httpx2.AsyncClient, streamed: bool
):
    machine = CallRecorder()
    result = await run(
        agent(http, ShellTool(executor=machine.run)), "Which files are there?", streamed=streamed
    )
    items: list[Any] = result.to_input_list()
    kinds = [str(item.get("type", "message")) for item in items]
    assert kinds[1:3] == ["shell_call", "shell_call_output"]
    assert kinds[-1] == "message"
    assert machine.commands == [
        command for item in items for command in item.get("action", {}).get("commands", [])
    ]
    counted = (await http.post("/v1/responses/input_tokens", json={"input": items})).json()
    without = [item for item in items if item.get("type") != "shell_call_output"]
    assert (
        counted["input_tokens"]
        > (await http.post("/v1/responses/input_tokens", json={"input": without})).json()[
            "input_tokens"
        ]
    )


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_apply_patch_call_returned_to_client(http: httpx2.AsyncClient, streamed: bool):
    machine = CallRecorder()
    result = await run(
        agent(http, ApplyPatchTool(editor=machine)), "Create a file.", streamed=streamed
    )
    items: list[Any] = result.to_input_list()
    (operation,) = [item["operation"] for item in items if item.get("type") == "apply_patch_call"]
    assert machine.operations == [(operation["type"], operation["path"], operation.get("diff"))]


@pytest.mark.asyncio(loop_scope="module")
async def test_stored_shell_call_continued_with_output(http: httpx2.AsyncClient):
    body = {
        "model": "tiny",
        "input": "List the files.",
        "tools": [{"type": "shell"}],
        "max_output_tokens": 400,
        # At random the call's arguments may not end within the limit.
        "temperature": 0,
    }
    first = (
        await http.post("/v1/responses", json={**body, "tool_choice": {"type": "shell"}})
    ).json()
    call = first["output"][-1]
    assert call["type"] == "shell_call"
    output = {"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    result = {"type": "shell_call_output", "call_id": call["call_id"], "output": [output]}
    second = {**body, "input": [result], "previous_response_id": first["id"]}
    answer = await http.post("/v1/responses", json=second)
    assert answer.status_code == 200
    listed = (
        await http.get(f"/v1/responses/{answer.json()['id']}/input_items", params={"order": "asc"})
    ).json()["data"]
    assert [item["type"] for item in listed] == ["shell_call_output"]
    foreign = {**second, "input": [{**result, "call_id": "call_x"}]}
    assert (await http.post("/v1/responses", json=foreign)).status_code == 400
