"""Checks of Conversations."""

from __future__ import annotations

from ..rules.json_values import require
from ..session import Area, Session
from .responses import ask

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
    reply = (await s.ask("/v1/conversations", body, feature="conversations")).json()
    require(reply["object"] == "conversation" and reply["metadata"] == {"a": "b"}, f"it is {reply}")
    return reply["id"]


@CONVERSATIONS.check("A conversation is created with items and metadata, and returned.")
async def create(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.get(f"/v1/conversations/{id}")
    require(exchange.status == 200 and exchange.json()["id"] == id, f"status {exchange.status}")


@CONVERSATIONS.check("A response appends its input and its output to its conversation.")
async def append(s: Session) -> None:
    id = await create_conversation(s)
    await ask(s, input="And yours?", conversation=id, store=True)
    exchange = await s.get(f"/v1/conversations/{id}/items?order=asc")
    roles = [item.get("role") for item in exchange.json()["data"] if item["type"] == "message"]
    require(roles == ["user", "user", "assistant"], f"the roles are {roles}")


@CONVERSATIONS.check("Metadata can be changed.")
async def update(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.post(f"/v1/conversations/{id}", {"metadata": {"c": "d"}})
    require(exchange.json().get("metadata") == {"c": "d"}, f"it is {exchange.body[:200]!r}")


@CONVERSATIONS.check("Pages of items follow `limit`, `order` and `after`.")
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
        len(item_ids) == len(set(item_ids)) == 4, f"4 items were added, the pages have {item_ids}"
    )


@CONVERSATIONS.check("A deleted conversation is gone.")
async def delete_conversation(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.send("DELETE", f"/v1/conversations/{id}")
    require(
        exchange.status == 200 and exchange.json().get("deleted") is True,
        f"status {exchange.status}",
    )
    again = await s.get(f"/v1/conversations/{id}")
    require(again.status == 404, f"GET afterwards is a {again.status}")
