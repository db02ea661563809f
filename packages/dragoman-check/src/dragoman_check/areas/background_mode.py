"""Checks of Responses in background mode."""

from __future__ import annotations

import asyncio
from typing import Any

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import RESPONSES
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks
from .generation import STORY
from .responses import PATH, request_response

BACKGROUND_DOCS = "https://platform.openai.com/docs/guides/background"
POLL_TIMEOUT = 30.0
"""Seconds within which a background response must end."""
BACKGROUND = Area("background", claims=("responses", "background"), source=BACKGROUND_DOCS)


async def start_background(s: Session, **fields: Any) -> JsonObject:
    return await request_response(s, "background", background=True, store=True, **fields)


async def poll(s: Session, id: str) -> JsonObject:
    """Poll a response until it has ended, and return it. Raises Violation after
    `POLL_TIMEOUT`.
    """
    for number in range(200):
        reply = (await s.get(f"{PATH}/{id}")).json()
        if reply["status"] not in ("queued", "in_progress"):
            return reply
        require(
            number * 0.15 < POLL_TIMEOUT,
            f"the status is still {reply['status']} after {POLL_TIMEOUT:g} s",
        )
        await asyncio.sleep(min(0.02 * (number + 1), 0.2))
    raise Skipped("the response has not ended within 200 polls")


@BACKGROUND.check(
    "A background response is returned immediately, and reaches a final status while it is polled."
)
async def run(s: Session) -> None:
    reply = await start_background(s)
    require(
        reply["background"] is True
        and reply["status"] in ("queued", "in_progress", "completed", "incomplete"),
        f"background is {reply['background']}, status is {reply['status']}",
    )
    done = await poll(s, reply["id"])
    require(
        done["status"] in ("completed", "incomplete") and done["output"],
        f"the final status is {done['status']}",
    )


@BACKGROUND.check(
    "Cancelling a background response returns the status `cancelled`, also the second time."
)
async def cancel(s: Session) -> None:
    reply = await start_background(s, input="Write a very long story.", max_output_tokens=1000)
    statuses: list[str] = []
    for _ in range(2):
        exchange = await s.post(f"{PATH}/{reply['id']}/cancel", {})
        require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
        statuses.append(exchange.json()["status"])
    require(statuses[0] == statuses[1], f"the statuses are {statuses}")
    require(statuses[0] in ("cancelled", "completed", "incomplete"), f"the status is {statuses[0]}")


@BACKGROUND.check("`starting_after` resumes a stream after the event with that sequence number.")
async def resume(s: Session) -> None:
    body = {**RESPONSES.build_stream_request(s.model, STORY, 24), "background": True, "store": True}
    events = parse_chunks((await s.request(PATH, body, feature="background")).body)
    id = events[0]["response"]["id"]
    exchange = await s.get(f"{PATH}/{id}?stream=true&starting_after=2")
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
    resumed = parse_chunks(exchange.body)
    require(
        resumed == events[3:],
        f"events {[e['sequence_number'] for e in resumed]}, expected "
        f"{[e['sequence_number'] for e in events[3:]]}",
    )


@BACKGROUND.check("The stream of a background response has valid events in a valid order.")
async def stream_form(s: Session) -> None:
    body = {**RESPONSES.build_stream_request(s.model, STORY, 24), "background": True, "store": True}
    RESPONSES.check_stream((await s.request(PATH, body, feature="background")).body)


@BACKGROUND.check("A background request with `store: false` is rejected.", level="should")
async def needs_store(s: Session) -> None:
    await start_background(s)
    exchange = await s.post(
        PATH, RESPONSES.build_request(s.model, STORY, 16, background=True, store=False)
    )
    require(exchange.status == 400, f"status {exchange.status}")
