"""Checks of Responses over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..client_answer import read_response
from ..dialects import RESPONSES
from ..rules.json_values import require
from ..session import Area, Exchange, Json, Session, Skipped
from .generation import STORY
from .responses import PATH, ask

WEBSOCKET_DOCS = "https://platform.openai.com/docs/guides/websocket-mode"


WEBSOCKET = Area("websocket", claims=("responses", "websocket"), source=WEBSOCKET_DOCS)


def build_frame(s: Session, text: str = STORY, **fields: Any) -> Json:
    body = RESPONSES.ask(s.model, text, 24)
    return {"type": "response.create", **body, **fields}


@WEBSOCKET.check("A turn over the WebSocket has the events of a stream, one for each frame.")
async def turn(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s))
        events = await socket.receive_turn()
    for event in events:
        event.pop("dragoman_warnings", None)
    data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    RESPONSES.judge(f"{data}data: [DONE]\n\n".encode())


@WEBSOCKET.check("The answer over the WebSocket is the answer over HTTP.")
async def same_answer(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s))
        last = (await socket.receive_turn())[-1]
    first, again = [read_response(await ask(s)).text for _ in range(2)]
    if first != again:
        raise Skipped("answers to the same request differ")
    require(read_response(last["response"]).text == first, f"it is {last['response']['output']}")


@WEBSOCKET.check("Several turns run on one connection, each with ids of its own.")
async def turns(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        ids: list[str] = []
        for text in ("Hi", "Go on"):
            await socket.send(build_frame(s, text))
            ids.append((await socket.receive_turn())[-1]["response"]["id"])
    require(len(set(ids)) == 2, f"the ids are {ids}")


@WEBSOCKET.check("`previous_response_id` continues the last response, also with `store: false`.")
async def continue_unstored(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s))
        first = (await socket.receive_turn())[-1]["response"]
        await socket.send(build_frame(s, "Go on.", previous_response_id=first["id"]))
        last = (await socket.receive_turn())[-1]
    require(last["type"] in ("response.completed", "response.incomplete"), f"it ended with {last}")
    tokens = last["response"]["usage"]["input_tokens"]
    require(
        tokens > first["usage"]["input_tokens"],
        f"{tokens} input tokens, before {first['usage']['input_tokens']}",
    )


@WEBSOCKET.check("An unknown `previous_response_id` is an error frame, and the connection goes on.")
async def unknown_previous(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s, previous_response_id="resp_unknown"))
        error = (await socket.receive_turn())[-1]
        require(
            error["type"] == "error" and error.get("status") in (400, 404), f"the frame is {error}"
        )
        # Some servers, such as vLLM, use the HTTP status as the code.
        codes = ("previous_response_not_found", error["status"])
        require(error["error"].get("code") in codes, f"the error is {error['error']}")
        await socket.send(build_frame(s))
        require((await socket.receive_turn())[-1]["type"] != "error", "the next turn fails, too")


def add_frames() -> None:
    frames: tuple[tuple[str, str, Json | str], ...] = (
        ("bad-json", "A frame that is not JSON is an error frame.", "{"),
        (
            "unknown-type",
            "A frame of an unknown type is an error frame.",
            {"type": "response.wizard"},
        ),
        (
            "bad-field",
            "A frame with an invalid field is an error frame.",
            {"type": "response.create", "input": 5},
        ),
    )

    def build(frame: Json | str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            async with s.open_websocket(PATH) as socket:
                await socket.send(frame)
                error = await socket.receive()
            require(error["type"] == "error", f"the frame is {str(error)[:200]}")
            require(error["error"].get("message"), f"the error is {error}")

        return run

    for name, rule, frame in frames:
        WEBSOCKET.add(f"rejects-{name}", rule, build(frame))


add_frames()


@WEBSOCKET.check("`generate: false` prepares a turn without output.", level="should")
async def prewarm(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s, generate=False))
        last = (await socket.receive_turn())[-1]
    require(last["type"] == "response.completed", f"it ended with {str(last)[:300]}")
    require(not last["response"]["output"], f"the output is {last['response']['output']}")


@WEBSOCKET.check(
    "A request without an Upgrade to the WebSocket's path is answered or refused as any other."
)
async def upgrade_only(s: Session) -> None:
    exchange: Exchange = await s.get(PATH)
    require(exchange.status in (400, 404, 405, 426), f"status {exchange.status}")
