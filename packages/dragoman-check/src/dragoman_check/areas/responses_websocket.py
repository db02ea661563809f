"""Checks of Responses over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import RESPONSES
from ..parsed_response import read_response
from ..rules.json_values import JsonObject, require
from ..session import Session
from .generation import STORY
from .responses import PATH, request_response

WEBSOCKET_DOCS = "https://platform.openai.com/docs/guides/websocket-mode"
WEBSOCKET = Area("websocket", claims=("responses", "websocket"), source=WEBSOCKET_DOCS)


def build_message(s: Session, text: str = STORY, **fields: Any) -> JsonObject:
    body = RESPONSES.build_request(s.model, text, 24)
    return {"type": "response.create", **body, **fields}


@WEBSOCKET.check("A turn over the WebSocket has the events of a stream, one per message.")
async def turn(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_message(s))
        events = await socket.receive_turn()
    for event in events:
        event.pop("dragoman_warnings", None)
    data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    RESPONSES.check_stream(f"{data}data: [DONE]\n\n".encode())


@WEBSOCKET.check("A response over the WebSocket has the same text as over HTTP.")
async def same_answer(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_message(s))
        last = (await socket.receive_turn())[-1]
    first, again = [read_response(await request_response(s)).text for _ in range(2)]
    if first != again:
        raise Skipped("repeated requests have different responses")
    require(
        read_response(last["response"]).text == first, f"the output is {last['response']['output']}"
    )


@WEBSOCKET.check("One connection serves several turns, each with its own response id.")
async def turns(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        ids: list[str] = []
        for text in ("Hi", "Go on"):
            await socket.send(build_message(s, text))
            ids.append((await socket.receive_turn())[-1]["response"]["id"])
    require(len(set(ids)) == 2, f"the ids are {ids}")


@WEBSOCKET.check(
    "`previous_response_id` continues the last response of the connection, also with "
    "`store: false`."
)
async def continue_unstored(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_message(s))
        first = (await socket.receive_turn())[-1]["response"]
        await socket.send(build_message(s, "Go on.", previous_response_id=first["id"]))
        last = (await socket.receive_turn())[-1]
    require(
        last["type"] in ("response.completed", "response.incomplete"), f"the last event is {last}"
    )
    tokens = last["response"]["usage"]["input_tokens"]
    require(
        tokens > first["usage"]["input_tokens"],
        f"{tokens} input tokens, {first['usage']['input_tokens']} in the first turn",
    )


@WEBSOCKET.check(
    "An unknown `previous_response_id` returns an error event, and the connection remains usable."
)
async def unknown_previous(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_message(s, previous_response_id="resp_unknown"))
        error = (await socket.receive_turn())[-1]
        require(
            error["type"] == "error" and error.get("status") in (400, 404), f"the event is {error}"
        )
        # Some servers, such as vLLM, use the HTTP status as the code.
        codes = ("previous_response_not_found", error["status"])
        require(error["error"].get("code") in codes, f"the error is {error['error']}")
        await socket.send(build_message(s))
        require((await socket.receive_turn())[-1]["type"] != "error", "the next turn fails")


def add_rejected() -> None:
    messages: tuple[tuple[str, str, JsonObject | str], ...] = (
        ("bad-json", "A message that is not valid JSON returns an error event.", "{"),
        (
            "unknown-type",
            "A message of an unknown type returns an error event.",
            {"type": "response.wizard"},
        ),
        (
            "bad-field",
            "A message with an invalid field returns an error event.",
            {"type": "response.create", "input": 5},
        ),
    )

    def build(message: JsonObject | str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            async with s.open_websocket(PATH) as socket:
                await socket.send(message)
                error = await socket.receive()
            require(error["type"] == "error", f"the event is {str(error)[:200]}")
            require(error["error"].get("message"), f"the error is {error}")

        return run

    for name, rule, message in messages:
        WEBSOCKET.add(f"rejects-{name}", rule, build(message))


add_rejected()


@WEBSOCKET.check("`generate: false` returns a completed response without output.", level="should")
async def prewarm(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_message(s, generate=False))
        last = (await socket.receive_turn())[-1]
    require(last["type"] == "response.completed", f"the last event is {str(last)[:300]}")
    require(not last["response"]["output"], f"the output is {last['response']['output']}")


@WEBSOCKET.check(
    "A GET request without Upgrade to the path of the WebSocket returns 400, 404, 405 or 426."
)
async def upgrade_only(s: Session) -> None:
    exchange = await s.get(PATH)
    require(exchange.status in (400, 404, 405, 426), f"status {exchange.status}")
