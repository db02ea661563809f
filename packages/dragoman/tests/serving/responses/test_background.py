"""Background responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.types import Message
from tests.serving.harness import ServerHarness, body, scope

from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think, Wait
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import MemoryStore, SqliteStore
from dragoman_check.rules.responses import check_object, check_stream

from .harness import build_storing_server, lifespan

END = b"data: [DONE]\n\n"
STORY = ScriptEntry(
    (Think("Hmm."), Say("Once upon a time there was a fox."), Wait(1), Say("The end.")), repeat=True
)
ASK: dict[str, Any] = {"model": "m", "input": "hi", "background": True}


class ManualSleep:
    """A `sleep` function that returns on demand."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        await self._opened.wait()

    def open(self) -> None:
        self._opened.set()


async def start(server: ServerHarness, **more: Any) -> str:
    answer = await server.post("/v1/responses", {**ASK, **more})
    assert answer.status_code == 200
    check_object(answer.json())
    assert answer.json()["status"] == "queued"
    return answer.json()["id"]


async def wait_until_ended(server: ServerHarness, id: str) -> dict[str, Any]:
    """Return the object after the response has ended, as its events show."""
    await server.get(f"/v1/responses/{id}?stream=true")
    return (await server.get(f"/v1/responses/{id}")).json()


async def stream_of(server: ServerHarness, id: str, after: int | None = None) -> bytes:
    more = "" if after is None else f"&starting_after={after}"
    return (await server.get(f"/v1/responses/{id}?stream=true{more}")).content


async def test_background_response_runs_without_client_until_completed() -> None:
    server = build_storing_server(ScriptEntry((Say("Yes."),)))
    client = server.openai()
    response = await client.responses.create(model="m", input="hi", background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    await wait_until_ended(server, response.id)
    response = await client.responses.retrieve(response.id)
    assert (response.status, response.output_text, response.background) == (
        "completed",
        "Yes.",
        True,
    )


async def test_background_stream_starts_queued_and_ends_with_object() -> None:
    server = build_storing_server(
        ScriptEntry((Think("Hmm."), Say("Yes."), CallTool("add")), repeat=True)
    )
    tools: Any = [{"type": "function", "name": "add", "parameters": {}, "strict": False}]
    answer = await server.post("/v1/responses", {**ASK, "stream": True, "tools": tools})
    events = check_stream(answer.content)
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert events[0]["response"]["status"] == "queued"
    assert (await server.get(f"/v1/responses/{events[0]['response']['id']}")).json() == events[-1][
        "response"
    ]


async def test_background_stream_resumes_with_identical_bytes() -> None:
    gate = ManualSleep()
    server = build_storing_server(STORY, sleep=gate)
    id = await start(server)
    followed = asyncio.create_task(stream_of(server, id))
    gate.open()
    full = await followed
    parts = full.removesuffix(END).split(b"\n\n")[:-1]
    assert len(check_stream(full)) == len(parts)
    for last in range(-1, len(parts)):
        rest = b"".join(part + b"\n\n" for part in parts[last + 1 :])
        assert await stream_of(server, id, None if last < 0 else last) == rest + END


async def test_background_stream_sdk_resumes_after_cutoff() -> None:
    server = build_storing_server(STORY, sleep=(gate := ManualSleep()))
    gate.open()
    client = server.openai()
    stream = await client.responses.create(model="m", input="hi", background=True, stream=True)
    events = [event async for event in stream]
    assert events[0].type == "response.created"
    id = events[0].response.id
    rest = await client.responses.retrieve(
        id, stream=True, starting_after=events[4].sequence_number
    )
    assert [event.to_json() async for event in rest] == [event.to_json() for event in events[5:]]
    async with client.responses.stream(response_id=id) as again:
        assert (
            await again.get_final_response()
        ).output_text == "Once upon a time there was a fox.The end."


async def test_background_cancel_stops_run_and_is_idempotent() -> None:
    server = build_storing_server(STORY, sleep=ManualSleep())
    client, id = server.openai(), await start(server)
    await until(lambda: server.engine.num_running == 1)
    response = await client.responses.cancel(id)
    assert response.status == "cancelled"
    assert server.engine.num_running == 0
    assert await client.responses.cancel(id) == response == await client.responses.retrieve(id)
    events = check_stream(await stream_of(server, id))
    assert events[-1]["response"]["status"] == "cancelled"
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        await client.responses.create(model="m", input="hi", previous_response_id=id)


async def test_background_cancel_after_completion_has_no_effect() -> None:
    server = build_storing_server(ScriptEntry((Say("Yes."),)))
    id = await start(server)
    full = await wait_until_ended(server, id)
    answer = await server.post(f"/v1/responses/{id}/cancel", None)
    assert answer.json() == full
    assert full["status"] == "completed"


async def test_background_delete_stops_run() -> None:
    server = build_storing_server(STORY, sleep=ManualSleep())
    id = await start(server)
    await until(lambda: server.engine.num_running == 1)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    # Not with an HTTP client, whose transport reads the whole body: deletion before the
    # stream begins gives a 404.
    request_scope = {**scope(f"/v1/responses/{id}", method="GET"), "query_string": b"stream=true"}
    following = asyncio.ensure_future(server.app(request_scope, asyncio.Queue[Message]().get, send))
    await until(lambda: b"response.created" in b"".join(body(*sent)))
    await server.openai().responses.delete(id)
    await until(lambda: server.engine.num_running == 0)
    await following
    assert sent[0]["status"] == 200
    assert b"event: error" in b"".join(body(*sent))


async def test_background_failure_includes_error_message() -> None:
    server = build_storing_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke"))))
    id = await start(server)
    full = await wait_until_ended(server, id)
    assert (full["status"], full["error"]["message"]) == ("failed", "the engine broke")
    assert [event["type"] for event in check_stream(await stream_of(server, id))[-2:]] == [
        "error",
        "response.failed",
    ]


async def test_background_running_response_rejects_continuation() -> None:
    server = build_storing_server(STORY, sleep=(gate := ManualSleep()))
    id = await start(server)
    await until(lambda: server.engine.num_running == 1)
    answer = await server.post(
        "/v1/responses", {"model": "m", "input": "hi", "previous_response_id": id}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "previous_response_id"
    gate.open()
    await wait_until_ended(server, id)
    answer = await server.post(
        "/v1/responses", {"model": "m", "input": "hi", "previous_response_id": id}
    )
    assert answer.status_code == 200


async def test_background_response_added_to_conversation_when_done() -> None:
    server = build_storing_server(ScriptEntry((Say("Yes."),)))
    client = server.openai()
    conversation = await client.conversations.create()
    await wait_until_ended(server, await start(server, conversation=conversation.id))
    items = await client.conversations.items.list(conversation.id)
    assert [item.role for item in items.data] == ["assistant", "user"]  # type: ignore[union-attr]


async def test_background_response_fails_when_conversation_deleted() -> None:
    server = build_storing_server(STORY, sleep=(gate := ManualSleep()))
    client = server.openai()
    conversation = await client.conversations.create()
    id = await start(server, conversation=conversation.id)
    await until(lambda: server.engine.num_running == 1)
    await client.conversations.delete(conversation.id)
    gate.open()
    failed = await wait_until_ended(server, id)
    assert failed["error"]["message"].endswith("not found.")
    # Text that was generated before the store failed is in the stream and in the
    # output.
    assert [item["type"] for item in failed["output"]] == ["reasoning", "message"]
    check_stream(await stream_of(server, id))


async def test_background_limit_reached_returns_429() -> None:
    server = build_storing_server(
        STORY, sleep=(gate := ManualSleep()), options=ServingOptions(max_background=1)
    )
    id = await start(server)
    answer = await server.post("/v1/responses", ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    gate.open()
    await wait_until_ended(server, id)
    await start(server)


async def test_background_limit_holds_for_concurrent_starts(tmp_path: Path) -> None:
    # Its commits take time, in which the others start.
    store = SqliteStore(tmp_path / "store.db")
    server = build_storing_server(
        STORY,
        store=store,
        sleep=(gate := ManualSleep()),
        options=ServingOptions(max_background=3),
    )
    async with lifespan(server.app):
        answers = await asyncio.gather(*(server.post("/v1/responses", ASK) for _ in range(12)))
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 9
        gate.open()


async def test_background_slots_are_shared_between_keys(tmp_path: Path) -> None:
    keys = {name: {"authorization": f"Bearer {name}"} for name in ("a", "b")}
    server = build_storing_server(
        STORY,
        store=SqliteStore(tmp_path / "store.db"),
        sleep=(gate := ManualSleep()),
        options=ServingOptions(max_background=8, api_key=tuple(keys)),
    )

    async def start_many(key: str, number: int) -> list[int]:
        answers = await asyncio.gather(
            *(server.post("/v1/responses", ASK, headers=keys[key]) for _ in range(number))
        )
        return sorted(answer.status_code for answer in answers)

    async with lifespan(server.app):
        assert await start_many("b", 20) == [200] * 6 + [429] * 14
        assert await start_many("a", 3) == [200] * 2 + [429]
        gate.open()
        await until(lambda: server.engine.num_running == 0)


async def test_background_run_of_dead_process_is_failed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    before = build_storing_server(STORY, store=store, sleep=ManualSleep())
    id = await start(before)
    await until(lambda: before.engine.num_running == 1)
    await store.close()
    after = build_storing_server(STORY, store=SqliteStore(tmp_path / "store.db"))
    async with lifespan(after.app):
        full = (await after.get(f"/v1/responses/{id}")).json()
        assert full["status"] == "failed"
        assert check_stream(await stream_of(after, id))[-1]["response"] == full


async def test_background_runs_fail_on_server_shutdown(tmp_path: Path) -> None:
    server = build_storing_server(
        STORY, store=SqliteStore(tmp_path / "store.db"), sleep=ManualSleep()
    )
    async with lifespan(server.app):
        id = await start(server)
        await until(lambda: server.engine.num_running == 1)
    assert server.engine.num_running == 0
    async with lifespan(server.app):
        full = (await server.get(f"/v1/responses/{id}")).json()
        assert (full["status"], full["error"]["code"]) == ("failed", "server_error")
        check_stream(await stream_of(server, id))


async def test_background_response_followed_and_cancelled_elsewhere() -> None:
    store = MemoryStore()
    one = build_storing_server(STORY, store=store, sleep=ManualSleep())
    other = build_storing_server(STORY, store=store)
    id = await start(one)
    await until(lambda: one.engine.num_running == 1)
    followed = asyncio.create_task(stream_of(other, id))
    response = await other.openai().responses.cancel(id)
    assert check_stream(await followed)[-1]["response"] == response.model_dump(exclude_unset=True)
    async with lifespan(one.app):
        await until(lambda: one.engine.num_running == 0)


@pytest.mark.parametrize(
    "query", ["stream=true&starting_after=-1", "stream=true&starting_after=x", "starting_after=1"]
)
async def test_background_stream_invalid_starting_after_rejected(query: str) -> None:
    server = build_storing_server(ScriptEntry((Say("Yes."),)))
    answer = await server.get(f"/v1/responses/{await start(server)}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


async def test_background_without_store_rejected() -> None:
    server = build_storing_server(ScriptEntry((Say("Yes."),)))
    answer = await server.post("/v1/responses", {**ASK, "store": False})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "background")


async def until(so: Callable[[], bool]) -> None:
    while not so():  # noqa: ASYNC110 - the test's own limit ends it
        await asyncio.sleep(0)


async def test_background_run_continues_after_client_disconnect() -> None:
    store = MemoryStore()
    server = build_storing_server(STORY, store=store, sleep=(gate := ManualSleep()))
    leaving = asyncio.create_task(server.post("/v1/responses", {**ASK, "stream": True}))
    await until(lambda: server.engine.num_running == 1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    (record,) = await store.load_page("", "response")
    gate.open()
    assert (await wait_until_ended(server, record.key.id))["status"] == "completed"


@pytest.mark.parametrize("query", ["include_obfuscation=true", "stream=perhaps"])
async def test_background_stream_unsupported_query_rejected_by_name(query: str) -> None:
    server = build_storing_server(ScriptEntry((Say("Yes."),)))
    answer = await server.get(f"/v1/responses/{await start(server)}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
