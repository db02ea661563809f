"""Checks of the stored state of Responses."""

from __future__ import annotations

import asyncio

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..dialects import RESPONSES
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks
from .generation import STORY, request_unstreamed
from .responses import PATH, request_response

STATE_DOCS = "https://platform.openai.com/docs/guides/conversation-state"
STATE = Area("state", claims=("responses", "state"), source=STATE_DOCS)


async def share_stored(s: Session) -> JsonObject:
    async def build() -> JsonObject:
        reply = await request_response(s, "store", store=True)
        exchange = await s.get(f"{PATH}/{reply['id']}")
        # A server that stores nothing also returns 200; only a GET shows it.
        if exchange.status != 200 and s.target.profile == "auto":
            raise Skipped(
                f"the server does not store responses: GET returns status {exchange.status}"
            )
        return reply

    return await s.share("state.stored", build)


@STATE.check("A stored response is returned unchanged.")
async def retrieve(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.get(f"{PATH}/{reply['id']}")
    require(exchange.status == 200, f"status {exchange.status}")
    stored = exchange.json()
    for name in ("id", "output", "status", "usage", "created_at"):
        require(
            stored[name] == reply[name],
            f"stored {name} is {stored[name]!r}, returned was {reply[name]!r}",
        )


@STATE.check("A streamed response is stored with the output of its last event.")
async def retrieve_streamed(s: Session) -> None:
    await share_stored(s)
    exchange = await s.request(
        PATH, {**RESPONSES.build_stream_request(s.model, STORY, 24), "store": True}
    )
    last = parse_chunks(exchange.body)[-1]["response"]
    stored = await s.get(f"{PATH}/{last['id']}")
    require(
        stored.status == 200 and stored.json()["output"] == last["output"],
        f"status {stored.status}",
    )


@STATE.check("A response with `store: false` is not stored.")
async def store_false(s: Session) -> None:
    await share_stored(s)
    reply = await request_response(s, store=False)
    exchange = await s.get(f"{PATH}/{reply['id']}")
    require(exchange.status == 404, f"status {exchange.status}")


@STATE.check("`previous_response_id` adds the earlier turns to the prompt.")
async def continue_response(s: Session) -> None:
    first = await share_stored(s)
    alone = await request_response(s, input="Go on.")
    second = await request_response(s, input="Go on.", previous_response_id=first["id"])
    require(
        second["previous_response_id"] == first["id"],
        f"previous_response_id is {second['previous_response_id']!r}",
    )
    counts = second["usage"]["input_tokens"], alone["usage"]["input_tokens"]
    # The prompt also contains the input and the output of the first turn.
    require(
        counts[0] >= counts[1] + 10,
        f"{counts[0]} input tokens, {counts[1]} without previous_response_id",
    )


@STATE.check("`instructions` of an earlier response do not apply to the next response.")
async def continue_without_instructions(s: Session) -> None:
    await share_stored(s)
    counts: list[int] = []
    for instructions in ("Be brief.", "apple " * 60):
        first = await request_response(s, store=True, input="Hi", instructions=instructions)
        second = await request_response(
            s, input="Go on.", previous_response_id=first["id"], max_output_tokens=16
        )
        # The lengths of the first responses differ, so they are subtracted.
        counts.append(second["usage"]["input_tokens"] - first["usage"]["output_tokens"])
    require(
        abs(counts[0] - counts[1]) < 20,
        f"input tokens after instructions of 2 and 60 words: {counts}",
    )


@STATE.check(
    "`GET /v1/responses/{id}/input_items` lists the input items, each with `id` and `type`."
)
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


@STATE.check("A deleted response returns 404.")
async def delete(s: Session) -> None:
    await share_stored(s)
    reply = await request_response(s, store=True)
    exchange = await s.send("DELETE", f"{PATH}/{reply['id']}")
    require(exchange.status == 200, f"status {exchange.status}")
    require(exchange.json().get("deleted") is True, f"the response is {exchange.json()}")
    for method in ("GET", "DELETE"):
        again = await s.send(method, f"{PATH}/{reply['id']}")
        require(again.status == 404, f"{method} after the deletion returns status {again.status}")
        RESPONSES.check_error(again.json())


@STATE.check("A deleted response is rejected as `previous_response_id`.")
async def continue_deleted(s: Session) -> None:
    await share_stored(s)
    reply = await request_response(s, store=True)
    await s.send("DELETE", f"{PATH}/{reply['id']}")
    exchange = await s.post(
        PATH, RESPONSES.build_request(s.model, "Go on.", 16, previous_response_id=reply["id"])
    )
    require(exchange.status in (400, 404), f"status {exchange.status}")
    require(b"previous_response" in exchange.body, f"the error is {exchange.message()!r}")


@STATE.check("Exactly one of several concurrent deletions of a response succeeds.")
async def delete_once(s: Session) -> None:
    await share_stored(s)
    reply = await request_response(s, store=True)
    exchanges = await asyncio.gather(*(s.send("DELETE", f"{PATH}/{reply['id']}") for _ in range(5)))
    statuses = sorted(exchange.status for exchange in exchanges)
    require(statuses == [200, 404, 404, 404, 404], f"the statuses are {statuses}")


@STATE.check("An unknown response returns 404 and an error body.")
async def unknown(s: Session) -> None:
    await share_stored(s)
    exchange = await s.get(f"{PATH}/resp_unknown")
    require(exchange.status == 404, f"status {exchange.status}")
    RESPONSES.check_error(exchange.json())


@STATE.check("Cancelling a response that did not run in the background is rejected.")
async def cancel_synchronous(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.post(f"{PATH}/{reply['id']}/cancel", {})
    require(exchange.status == 400, f"status {exchange.status}")


@STATE.check(
    "`/v1/responses/input_tokens` returns the `input_tokens` that usage reports for the "
    "same request.",
    claims=("input-tokens",),
)
async def input_tokens(s: Session) -> None:
    exchange = await s.post(f"{PATH}/input_tokens", {"model": s.model, "input": STORY})
    if exchange.status in (400, 404, 405) and s.target.profile == "auto":
        raise Skipped(f"the server does not count tokens: {exchange.message()}")
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
    expected = (await request_unstreamed(s, RESPONSES)).json()["usage"]["input_tokens"]
    require(
        exchange.json()["input_tokens"] == expected,
        f"the count is {exchange.json()}, usage reports {expected}",
    )
