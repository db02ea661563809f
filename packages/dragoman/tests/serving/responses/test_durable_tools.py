"""Background responses with tools of MCP servers, after every point at which their
process can die.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.serving.harness import FixedClock, ServerHarness, load_tiny_tokenizer
from tests.serving.responses import test_hosted_results
from tests.serving.responses.harness import lifespan
from tests.serving.responses.test_hosted_results import OPTIONS as RESULT_OPTIONS
from tests.serving.responses.test_hosted_results import TOOLS as RESULT_TOOLS
from tests.serving.responses.test_hosted_results import ResultServers
from tests.serving.responses.test_hosted_tools import (
    ANSWER,
    CODE,
    INCLUDE,
    OPTIONS,
    SEARCH,
    HostedServers,
)
from tests.serving.tool_servers import LocalToolServers

from dragoman.engines.scripted import (
    CallTool,
    MatchRule,
    Say,
    Script,
    ScriptedEngine,
    ScriptEntry,
    Think,
)
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import RandomIdGenerator
from dragoman.serving.routes.responses.background import STEPS_SERIES
from dragoman.serving.routes.responses.history import RESPONSE_KIND
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import Append, Change, Item, Key, SqliteStore, StoreUnavailable
from dragoman.tenants import KeyHash, Tenant, hash_key
from dragoman.tools.interface import ToolCallResult
from dragoman_check.rules.responses import check_stream

FREE: Any = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
STRICT: Any = {"type": "mcp", "server_label": "weather"}
SCRIPT = (
    ScriptEntry((Say("It is done."),), MatchRule(("result of send",))),
    ScriptEntry((CallTool("weather__send"),), MatchRule(("result of fail",))),
    ScriptEntry(
        (Think("Hm."), Say("Let me look."), CallTool("weather__look"), CallTool("weather__fail")),
        repeat=True,
    ),
)
APPROVED_SCRIPT = (
    ScriptEntry((Say("It is done."),), MatchRule(("result of send",))),
    ScriptEntry((CallTool("weather__send"),), repeat=True),
)
MIXED_SCRIPT = (
    ScriptEntry(
        (Think("Hm."), Say("Ask."), CallTool("ask", '{"city":"Bern"}')),
        MatchRule(("result of look",)),
    ),
    ScriptEntry(
        (Say("First."), CallTool("weather__look"), Say("Then."), CallTool("weather__look")),
        repeat=True,
    ),
)
HOSTED_SCRIPT = (
    ScriptEntry(ANSWER.reply, MatchRule(("1",))),
    ScriptEntry(CODE.reply, MatchRule(("Weather in Bern",))),
    ScriptEntry(SEARCH.reply, repeat=True),
)
HOSTED_TOOLS = [{"type": "web_search"}, {"type": "code_interpreter"}]
RESULT_SCRIPT = (
    ScriptEntry(test_hosted_results.ANSWER.reply, MatchRule(("a\nlate",))),
    ScriptEntry(test_hosted_results.RUN.reply, MatchRule(("[image, image/png]",))),
    ScriptEntry(test_hosted_results.DRAW.reply, MatchRule(("bern.md",))),
    ScriptEntry(test_hosted_results.SEARCH.reply, repeat=True),
)
KEY = "The server stopped while it called the tool"


class FailingStore(SqliteStore):
    """Stores nothing after its first commits, as if the process had died.

    n_left: commits that succeed.
    """

    def __init__(self, path: Path, n_left: int) -> None:
        super().__init__(path, synchronous="NORMAL")
        self.n_left = n_left
        self.has_failed = asyncio.Event()

    async def commit(self, *changes: Change) -> None:
        if self.n_left <= 0:
            self.has_failed.set()
            raise StoreUnavailable("The process has died.")
        self.n_left -= 1
        await super().commit(*changes)


class HangingToolServers(LocalToolServers):
    """Tools of which `fail` never ends, and after `look` nothing is stored."""

    def __init__(self, store: FailingStore) -> None:
        super().__init__()
        self._store = store
        self._has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        if name == "look":
            await self._has_begun.wait()
            self._store.n_left = 0
            return await super().call(name, arguments, timeout=timeout)
        self._has_begun.set()
        try:
            return await asyncio.Future()
        finally:
            self.has_ended.set()


@asynccontextmanager
async def serve(
    store: SqliteStore,
    tool_servers: LocalToolServers,
    script: tuple[ScriptEntry, ...],
    tenants: Mapping[str, Tenant] | None = None,
    options: ServingOptions = OPTIONS,
) -> AsyncGenerator[ServerHarness]:
    tokenizer = load_tiny_tokenizer()
    engine = ScriptedEngine(Script(script), tokenizer=tokenizer)
    model = ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)
    app = build_asgi_app(
        Models([model]),
        clock=FixedClock(),
        ids=RandomIdGenerator(),
        store=store,
        tool_servers=tool_servers,
        options=options,
        tenants=tenants,
    )
    async with lifespan(app):
        yield ServerHarness(app, engine)


async def read_to_end(server: ServerHarness, id: str) -> list[dict[str, Any]]:
    """Read the stream to its end, check it, and compare it with the stored response."""
    stream = await server.get(f"/v1/responses/{id}?stream=true")
    events = check_stream(stream.content)
    assert (await server.get(f"/v1/responses/{id}")).json() == events[-1]["response"]
    for number in (0, len(events) // 2, len(events) - 2):
        rest = await server.get(f"/v1/responses/{id}?stream=true&starting_after={number}")
        assert stream.content.endswith(rest.content)
        assert rest.content.count(b"event: ") == len(events) - 1 - number
    return events


def is_cut_off(item: dict[str, Any]) -> bool:
    # The type of an image has no status for that; one that failed has an error.
    is_image = item["type"] == "image_generation_call" and "error" not in item
    return item.get("status") == ("failed" if is_image else "incomplete")


def summarize(response: dict[str, Any]) -> Any:
    """Return what is equal in an interrupted response and another: a turn that was cut
    off is generated again, so its reasoning is there twice.
    """
    items: list[Any] = [
        {**item, "id": "", "call_id": "", "container_id": "", "environment": {}}
        for item in response["output"]
        if not is_cut_off(item) and item["type"] != "reasoning"
    ]
    return items, response["usage"]


async def run_interrupted(
    path: Path,
    n_commits: int,
    script: tuple[ScriptEntry, ...],
    body: dict[str, Any],
    first: str = "",
    *,
    tool_servers: LocalToolServers | None = None,
    options: ServingOptions = OPTIONS,
) -> tuple[dict[str, Any], Counter[str], bool]:
    """Begin a response in a process that dies after `n_commits`, continue it in another,
    and return it with the calls, and whether the first process has died.

    first: the input of an earlier response, whose approvals are given; may be empty.
    """
    tool_servers = tool_servers or LocalToolServers()
    failing = FailingStore(path, n_commits + (1 if first else 0))
    async with serve(failing, tool_servers, script, options=options) as server:
        if first:
            earlier = (await server.post("/v1/responses", {**body, "input": first})).json()
            approvals = [
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": item["id"],
                    "approve": True,
                }
                for item in earlier["output"]
                if item["type"] == "mcp_approval_request"
            ]
            body = {**body, "input": approvals, "previous_response_id": earlier["id"]}
        answer = await server.post("/v1/responses", {**body, "background": True})
        assert answer.status_code == 200
        id = answer.json()["id"]
        ended = asyncio.ensure_future(server.get(f"/v1/responses/{id}?stream=true"))
        failed = asyncio.ensure_future(failing.has_failed.wait())
        await asyncio.wait((ended, failed), return_when=asyncio.FIRST_COMPLETED)
        has_died = failed.done()
        for task in (ended, failed):
            task.cancel()
        await asyncio.gather(ended, failed, return_exceptions=True)
    store = SqliteStore(path, synchronous="NORMAL")
    async with serve(store, tool_servers, script, options=options) as server:
        events = await read_to_end(server, id)
    return events[-1]["response"], Counter(name for name, _ in tool_servers.calls), has_died


async def test_response_continues_after_death_at_any_commit(tmp_path: Path) -> None:
    body = {"model": "m", "input": "hi", "tools": [FREE]}
    whole, calls, _ = await run_interrupted(tmp_path / "whole.db", 1_000, SCRIPT, body)
    assert calls == {"look": 1, "fail": 1, "send": 1}
    statuses = Counter[str]()
    for n_commits in range(1, 100):
        response, calls, has_died = await run_interrupted(
            tmp_path / f"{n_commits}.db", n_commits, SCRIPT, body
        )
        if not has_died:
            break
        statuses[response["status"]] += 1
        assert calls["send"] <= 1
        assert calls["fail"] <= 1
        if response["status"] == "failed":
            assert response["error"]["message"].startswith(KEY)
            continue
        assert summarize(response) == summarize(whole)
        assert calls["send"] == calls["fail"] == 1
        assert calls["look"] <= 2
    assert statuses["completed"] > statuses["failed"] > 0


async def test_approval_request_survives_death_at_any_commit(tmp_path: Path) -> None:
    body = {"model": "m", "input": "hi", "tools": [STRICT]}
    for n_commits in range(1, 100):
        response, calls, has_died = await run_interrupted(
            tmp_path / f"{n_commits}.db", n_commits, APPROVED_SCRIPT, body
        )
        assert response["status"] == "completed"
        assert [item["type"] for item in response["output"]] == [
            "mcp_list_tools",
            "mcp_approval_request",
        ]
        assert not calls
        if not has_died:
            assert n_commits > 2
            break


async def test_client_call_is_not_doubled_by_death_at_any_commit(tmp_path: Path) -> None:
    ask = {"type": "function", "name": "ask", "parameters": {"type": "object"}}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    body = {"model": "m", "input": "hi", "tools": [FREE, ask], **logprobs}
    whole, _, _ = await run_interrupted(tmp_path / "whole.db", 1_000, MIXED_SCRIPT, body)
    for n_commits in range(1, 100):
        response, _, has_died = await run_interrupted(
            tmp_path / f"{n_commits}.db", n_commits, MIXED_SCRIPT, body
        )
        assert summarize(response) == summarize(whole)
        if not has_died:
            assert n_commits > 5
            break


@pytest.mark.parametrize("is_structured", [False, True])
async def test_hosted_calls_continue_after_death_at_any_commit(
    tmp_path: Path, is_structured: bool
) -> None:
    servers = ResultServers if is_structured else HostedServers
    script = RESULT_SCRIPT if is_structured else HOSTED_SCRIPT
    options = RESULT_OPTIONS if is_structured else OPTIONS
    tools = RESULT_TOOLS if is_structured else HOSTED_TOOLS
    include = [*INCLUDE, "file_search_call.results"]
    body = {"model": "m", "input": "hi", "tools": tools, "include": include}
    whole, _, _ = await run_interrupted(
        tmp_path / "whole.db", 1_000, script, body, tool_servers=servers(), options=options
    )
    statuses = Counter[str]()
    for n_commits in range(1, 100):
        path = tmp_path / f"{n_commits}.db"
        response, calls, has_died = await run_interrupted(
            path, n_commits, script, body, tool_servers=servers(), options=options
        )
        assert max(calls.values(), default=0) <= 1
        statuses[response["status"]] += 1
        if response["status"] == "failed":
            assert response["error"]["message"].startswith(KEY)
            assert "MCP" not in response["error"]["message"]
        else:
            assert summarize(response) == summarize(whole)
        if not has_died:
            break
    assert statuses["completed"] > statuses["failed"] > 0


async def test_approved_call_continues_after_death_at_any_commit(tmp_path: Path) -> None:
    body = {"model": "m", "tools": [STRICT]}
    statuses = Counter[str]()
    for n_commits in range(1, 100):
        response, calls, has_died = await run_interrupted(
            tmp_path / f"{n_commits}.db", n_commits, APPROVED_SCRIPT, body, "hi"
        )
        if not has_died:
            break
        statuses[response["status"]] += 1
        assert calls["send"] <= 1
        if response["status"] == "failed":
            assert response["error"]["message"].startswith(KEY)
            continue
        assert calls["send"] == 1
        (call,) = [item for item in response["output"] if item["type"] == "mcp_call"]
        assert (call["status"], call["output"]) == ("completed", "result of send")
    assert statuses["completed"] > statuses["failed"] > 0


async def test_response_with_secret_is_not_continued(tmp_path: Path) -> None:
    tool = FREE | {"server_url": "https://mcp.example.com/mcp", "authorization": "secret-1"}
    body = {"model": "m", "input": "hi", "tools": [tool]}
    response, _, _ = await run_interrupted(tmp_path / "store.db", 3, SCRIPT, body)
    assert response["status"] == "failed"
    assert "authorization" in response["error"]["message"]
    assert b"secret-1" not in (tmp_path / "store.db").read_bytes()


async def test_graceful_stop_leaves_response_to_next_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    script = (*SCRIPT[:2], ScriptEntry(SCRIPT[2].reply, repeat=True, delay=600))
    tool_servers = LocalToolServers()
    async with serve(SqliteStore(path, synchronous="NORMAL"), tool_servers, script) as server:
        body = {"model": "m", "input": "hi", "tools": [FREE], "background": True}
        id = (await server.post("/v1/responses", body)).json()["id"]
    async with serve(SqliteStore(path, synchronous="NORMAL"), tool_servers, SCRIPT) as server:
        events = await read_to_end(server, id)
    assert events[-1]["type"] == "response.completed"


async def test_responses_continue_within_limits_of_key(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    script = (*SCRIPT[:2], ScriptEntry(SCRIPT[2].reply, repeat=True, delay=600))
    tool_servers = LocalToolServers()
    headers = {"authorization": "Bearer secret"}
    tenant = Tenant(id="key_1", secrets=(KeyHash(hash_key("secret")),))
    body = {"model": "m", "input": "hi", "tools": [FREE], "background": True}
    store = SqliteStore(path, synchronous="NORMAL")
    async with serve(store, tool_servers, script, {"one": tenant}) as server:
        answers = [await server.post("/v1/responses", body, headers) for _ in range(2)]
    tenant = replace(tenant, concurrent_requests=1)
    store = SqliteStore(path, synchronous="NORMAL")
    async with serve(store, tool_servers, SCRIPT, {"one": tenant}) as server:
        for answer in answers:
            id = answer.json()["id"]
            stream = await server.get(f"/v1/responses/{id}?stream=true", headers)
            assert check_stream(stream.content)[-1]["type"] == "response.completed"


async def test_failed_response_stops_its_other_calls(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "store.db", 1_000)
    tool_servers = HangingToolServers(store)
    body = {"model": "m", "input": "hi", "tools": [FREE], "background": True}
    async with serve(store, tool_servers, SCRIPT) as server:
        assert (await server.post("/v1/responses", body)).status_code == 200
        async with asyncio.timeout(60):
            await tool_servers.has_ended.wait()


async def test_response_with_unreadable_step_fails(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    script = (*SCRIPT[:2], ScriptEntry(SCRIPT[2].reply, repeat=True, delay=600))
    store = SqliteStore(path, synchronous="NORMAL")
    async with serve(store, LocalToolServers(), script) as server:
        body = {"model": "m", "input": "hi", "tools": [FREE], "background": True}
        id = (await server.post("/v1/responses", body)).json()["id"]
        # As another version of the server could store it.
        await store.commit(Append(Key("", RESPONSE_KIND, id), STEPS_SERIES, (Item(b"{}", "new"),)))
    store = SqliteStore(path, synchronous="NORMAL")
    async with serve(store, LocalToolServers(), SCRIPT) as server:
        assert (await server.get(f"/v1/responses/{id}")).json()["status"] == "failed"
