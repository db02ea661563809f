"""Checks of Conversations."""

from __future__ import annotations

from ..check_catalog import Area
from ..rules.json_values import require
from ..session import Session
from .responses import request_response

CONVERSATIONS = Area(
    "conversations",
    claims=("conversations",),
    source="https://platform.openai.com/docs/api-reference/conversations",
)


async def create_conversation(s: Session) -> str:
    body = {
        "items": [{"type": "message", "role": "user", "content": "My name is Ann."}],
        "metadata": {"a": "b"},
    }
    reply = (await s.request("/v1/conversations", body, feature="conversations")).json()
    require(
        reply["object"] == "conversation" and reply["metadata"] == {"a": "b"},
        f"the conversation is {reply}",
    )
    return reply["id"]


@CONVERSATIONS.check("A conversation can be created with items and metadata, and retrieved.")
async def create(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.get(f"/v1/conversations/{id}")
    require(exchange.status == 200 and exchange.json()["id"] == id, f"status {exchange.status}")


@CONVERSATIONS.check("A response appends its input and output to its conversation.")
async def append(s: Session) -> None:
    id = await create_conversation(s)
    await request_response(s, input="And yours?", conversation=id, store=True)
    exchange = await s.get(f"/v1/conversations/{id}/items?order=asc")
    roles = [item.get("role") for item in exchange.json()["data"] if item["type"] == "message"]
    require(roles == ["user", "user", "assistant"], f"the roles are {roles}")


@CONVERSATIONS.check("The metadata of a conversation can be updated.")
async def update(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.post(f"/v1/conversations/{id}", {"metadata": {"c": "d"}})
    require(
        exchange.json().get("metadata") == {"c": "d"}, f"the response is {exchange.body[:200]!r}"
    )


@CONVERSATIONS.check("`limit`, `order` and `after` paginate the items of a conversation.")
async def pages(s: Session) -> None:
    id = await create_conversation(s)
    items = [{"type": "message", "role": "user", "content": str(number)} for number in range(3)]
    await s.post(f"/v1/conversations/{id}/items", {"items": items})
    item_ids = list[str]()
    after = ""
    has_more = True
    while has_more and len(item_ids) < 10:
        page = (await s.get(f"/v1/conversations/{id}/items?order=asc&limit=2{after}")).json()
        item_ids += [item["id"] for item in page["data"]]
        after = f"&after={page['last_id']}"
        has_more = page["has_more"]
    require(
        len(item_ids) == len(set(item_ids)) == 4,
        f"the conversation has 4 items, the pages contain {item_ids}",
    )


@CONVERSATIONS.check("A deleted conversation returns 404.")
async def delete_conversation(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.send("DELETE", f"/v1/conversations/{id}")
    require(
        exchange.status == 200 and exchange.json().get("deleted") is True,
        f"status {exchange.status}",
    )
    again = await s.get(f"/v1/conversations/{id}")
    require(again.status == 404, f"GET after the deletion returns status {again.status}")
