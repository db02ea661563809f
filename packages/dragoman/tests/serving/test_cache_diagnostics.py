"""Cache diagnostics of Messages: why a prompt cannot reuse the prefix of an earlier one."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types.beta import BetaMessage
from tests.serving.background_server import run_background_server
from tests.serving.harness import ServerHarness, build_server
from tests.serving.test_message_batches import sdk

from dragoman.engines.scripted import Say, ScriptEntry
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import Change, Key, MemoryStore, Record, StoreUnavailable

QUESTION = "What is the capital of Japan? Answer in one word, please."
TURN: dict[str, Any] = {"role": "user", "content": QUESTION}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
BASE: dict[str, Any] = {"model": "m", "max_tokens": 10, "system": "Be brief.", "messages": [TURN]}


async def ask(
    server: ServerHarness, previous: str | None, *, stream: bool = False, **fields: Any
) -> BetaMessage:
    messages: Any = sdk(server).beta.messages
    body = {**BASE, **fields, "diagnostics": {"previous_message_id": previous}}
    if not stream:
        return await messages.create(**body)
    async with messages.stream(**body) as events:
        return await events.get_final_message()


def find_reason(message: BetaMessage) -> str | None:
    if message.diagnostics is None:
        return None
    reason = message.diagnostics.cache_miss_reason
    assert reason is not None
    tokens = getattr(reason, "cache_missed_input_tokens", None)
    assert (tokens is not None) == reason.type.endswith("_changed")
    return reason.type


ANSWERED = [TURN, {"role": "assistant", "content": "Tokyo."}, {"role": "user", "content": "Why?"}]
MARKED = {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"messages": ANSWERED}, None),
        ({"messages": [TURN, {"role": "user", "content": "Be quick."}]}, None),
        ({"messages": [{"role": "user", "content": [MARKED]}]}, None),
        ({"max_tokens": 11, "stop_sequences": ["x"]}, None),
        ({"system": "Be quick."}, "system_changed"),
        ({"system": "Be quick.", "tools": [TOOL]}, "system_changed"),
        ({"tools": [TOOL]}, "tools_changed"),
        ({"tools": [TOOL], "messages": ANSWERED[2:]}, "tools_changed"),
        ({"messages": ANSWERED[2:]}, "messages_changed"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "unavailable"),
    ],
    ids=str,
)
async def test_cache_diagnosis_names_first_change(
    fields: dict[str, Any], reason: str | None, stream: bool
) -> None:
    async with run_background_server() as server:
        first = await ask(server, None)
        assert first.diagnostics is None
        second = await ask(server, first.id, stream=stream, **fields)
        assert find_reason(second) == reason


async def test_cache_diagnosis_counts_tokens_after_change() -> None:
    async with run_background_server() as server:
        first = await ask(server, None, messages=ANSWERED)
        missed: list[int] = []
        for changed in (ANSWERED[1:], [*ANSWERED[:2], TURN]):
            message = await ask(server, first.id, messages=changed)
            assert message.diagnostics is not None
            reason = message.diagnostics.cache_miss_reason
            assert reason is not None
            assert reason.type == "messages_changed"
            missed.append(reason.cache_missed_input_tokens)
        whole, last = missed
        assert whole > len(QUESTION) // 4 > last > 0


async def test_cache_diagnosis_of_other_id_is_not_found() -> None:
    async with run_background_server() as server:
        for previous in ("msg_gone", "\0"):
            message = await ask(server, previous)
            assert find_reason(message) == "previous_message_not_found"


async def test_cache_diagnosis_needs_store() -> None:
    server = build_server(ScriptEntry((Say("Hello."),), repeat=True))
    first = await server.post("/v1/messages", {**BASE, "diagnostics": {}})
    assert first.json()["diagnostics"] is None
    compared = {"previous_message_id": first.json()["id"]}
    second = await server.post("/v1/messages", {**BASE, "diagnostics": compared})
    assert second.json()["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}


class FailingStore(MemoryStore):
    """A store that cannot be reached."""

    async def get(self, key: Key) -> Record | None:
        raise StoreUnavailable("The database is down.")

    async def commit(self, *changes: Change) -> None:
        raise StoreUnavailable("The database is down.")


@pytest.mark.parametrize("stream", [False, True])
async def test_cache_diagnosis_is_unavailable_if_store_fails(stream: bool) -> None:
    async with run_background_server(store=FailingStore()) as server:
        first = await ask(server, None, stream=stream)
        assert first.diagnostics is None
        assert find_reason(await ask(server, first.id, stream=stream)) == "unavailable"


async def test_cache_diagnosis_ignores_rejected_call() -> None:
    async with run_background_server(options=ServingOptions(strict=True)) as server:
        body: dict[str, Any] = {**BASE, "diagnostics": {}, "request_id": "r"}
        unknown = {**body, "system": "Be quick.", "unknown": 1}
        assert (await server.post("/v1/messages", unknown)).status_code == 400
        previous = (await server.post("/v1/messages", body)).json()["id"]
        assert find_reason(await ask(server, previous)) is None


async def test_message_without_diagnostics_has_no_such_field() -> None:
    async with run_background_server() as server:
        answer = await server.post("/v1/messages", {**BASE, "diagnostics": None})
        assert answer.status_code == 200
        assert "diagnostics" not in answer.json()


async def test_cache_diagnosis_of_invalid_id_names_field() -> None:
    async with run_background_server() as server:
        wrong = {"previous_message_id": 5}
        answer = await server.post("/v1/messages", {**BASE, "diagnostics": wrong})
        assert answer.status_code == 400
        assert "diagnostics.previous_message_id" in answer.text
