"""Checks of the stored state of Responses."""

from __future__ import annotations

import asyncio

from ..dialects import RESPONSES
from ..rules.json_values import require
from ..session import Area, Json, Session, Skipped
from ..sse import parse_chunks
from .generation import STORY, ask_whole
from .responses import PATH, ask

STATE_DOCS = "https://platform.openai.com/docs/guides/conversation-state"


STATE = Area("state", claims=("responses", "state"), source=STATE_DOCS)


async def share_stored(s: Session) -> Json:
    async def build() -> Json:
        reply = await ask(s, "store", store=True)
        exchange = await s.get(f"{PATH}/{reply['id']}")
        # A server that stores nothing also answers with 200; only reading the response
        # back shows it.
        if exchange.status != 200 and s.target.profile == "auto":
            raise Skipped(f"the server does not store responses: GET is a {exchange.status}")
        return reply

    return await s.share("state.stored", build)


@STATE.check("A stored response is returned as it was.")
async def retrieve(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.get(f"{PATH}/{reply['id']}")
    require(exchange.status == 200, f"status {exchange.status}")
    stored = exchange.json()
    for name in ("id", "output", "status", "usage", "created_at"):
        require(stored[name] == reply[name], f"{name} is {stored[name]!r}, it was {reply[name]!r}")


@STATE.check("A streamed response is stored, too, as its last event has it.")
async def retrieve_streamed(s: Session) -> None:
    await share_stored(s)
    exchange = await s.ask(PATH, {**RESPONSES.ask_stream(s.model, STORY, 24), "store": True})
    last = parse_chunks(exchange.body)[-1]["response"]
    stored = await s.get(f"{PATH}/{last['id']}")
    require(
        stored.status == 200 and stored.json()["output"] == last["output"],
        f"status {stored.status}",
    )


@STATE.check("With `store: false` nothing is stored.")
async def store_false(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=False)
    exchange = await s.get(f"{PATH}/{reply['id']}")
    require(exchange.status == 404, f"status {exchange.status}")


@STATE.check("`previous_response_id` puts the earlier turns into the prompt.")
async def continue_response(s: Session) -> None:
    first = await share_stored(s)
    alone = await ask(s, input="Go on.")
    second = await ask(s, input="Go on.", previous_response_id=first["id"])
    require(
        second["previous_response_id"] == first["id"], f"it is {second['previous_response_id']!r}"
    )
    counts = second["usage"]["input_tokens"], alone["usage"]["input_tokens"]
    # The prompt also has the first turn's question and answer.
    require(counts[0] >= counts[1] + 10, f"{counts[0]} input tokens, alone {counts[1]}")


@STATE.check("Earlier `instructions` do not apply to the next response.")
async def continue_without_instructions(s: Session) -> None:
    await share_stored(s)
    counts: list[int] = []
    for instructions in ("Be brief.", "apple " * 60):
        first = await ask(s, store=True, input="Hi", instructions=instructions)
        second = await ask(
            s, input="Go on.", previous_response_id=first["id"], max_output_tokens=16
        )
        # The length of the first answer differs, so it is subtracted from the count.
        counts.append(second["usage"]["input_tokens"] - first["usage"]["output_tokens"])
    require(
        abs(counts[0] - counts[1]) < 20,
        f"60 words more of earlier instructions: {counts} input tokens",
    )


@STATE.check("The input items of a response are listed, each with id and type.")
async def input_items(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.get(f"{PATH}/{reply['id']}/input_items")
    require(exchange.status == 200, f"status {exchange.status}")
    page = exchange.json()
    require(page["object"] == "list" and page["data"], f"the page is {page}")
    for item in page["data"]:
        require(item["id"] and item["type"], f"an item is {item}")
    for name in ("first_id", "last_id", "has_more"):
        require(name in page, f"the page has no {name}")


@STATE.check("A deleted response is gone.")
async def delete(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=True)
    exchange = await s.send("DELETE", f"{PATH}/{reply['id']}")
    require(exchange.status == 200, f"status {exchange.status}")
    require(exchange.json().get("deleted") is True, f"the answer is {exchange.json()}")
    for method in ("GET", "DELETE"):
        again = await s.send(method, f"{PATH}/{reply['id']}")
        require(again.status == 404, f"{method} afterwards is a {again.status}")
        RESPONSES.check_error(again.json())


@STATE.check("A deleted response cannot be continued.")
async def continue_deleted(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=True)
    await s.send("DELETE", f"{PATH}/{reply['id']}")
    exchange = await s.post(
        PATH, RESPONSES.ask(s.model, "Go on.", 16, previous_response_id=reply["id"])
    )
    require(exchange.status in (400, 404), f"status {exchange.status}")
    require(b"previous_response" in exchange.body, f"the error is {exchange.message()!r}")


@STATE.check("Of concurrent deletions of a response exactly one succeeds.")
async def delete_once(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=True)
    exchanges = await asyncio.gather(*(s.send("DELETE", f"{PATH}/{reply['id']}") for _ in range(5)))
    statuses = sorted(exchange.status for exchange in exchanges)
    require(statuses == [200, 404, 404, 404, 404], f"statuses {statuses}")


@STATE.check("An unknown response is a 404 with an error body.")
async def unknown(s: Session) -> None:
    await share_stored(s)
    exchange = await s.get(f"{PATH}/resp_unknown")
    require(exchange.status == 404, f"status {exchange.status}")
    RESPONSES.check_error(exchange.json())


@STATE.check("A response that did not run in the background cannot be cancelled.")
async def cancel_synchronous(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.post(f"{PATH}/{reply['id']}/cancel", {})
    require(exchange.status == 400, f"status {exchange.status}")


@STATE.check(
    "`/v1/responses/input_tokens` counts what the usage of the same request will be.",
    claims=("input-tokens",),
)
async def input_tokens(s: Session) -> None:
    exchange = await s.post(f"{PATH}/input_tokens", {"model": s.model, "input": STORY})
    if exchange.status in (400, 404, 405) and s.target.profile == "auto":
        raise Skipped(f"the server does not count tokens: {exchange.message()}")
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
    expected = (await ask_whole(s, RESPONSES)).json()["usage"]["input_tokens"]
    require(
        exchange.json()["input_tokens"] == expected, f"counted {exchange.json()}, usage {expected}"
    )
