"""What can be done with a stored response: read, follow, list its input, cancel, delete."""

from __future__ import annotations

import msgspec

from ...core.errors import RequestError, Unsupported
from ...dialects.body import echo, invalid, one_of
from ...dialects.pages import cut, read_paging
from ...dialects.responses.kept import read_kept
from ...dialects.responses.normal import item_id
from ...dialects.responses.reader import INCLUDABLE
from ...store import Delete, Key, Record, Refused
from ..answer import Answer
from ..endpoint import Http, Whole
from .create import replay
from .past import RESPONSE, no_such_response


async def show(http: Http) -> Whole | Answer:
    record = await _record(http)
    warnings = _included(http)
    after = _starting_after(http)
    if _is_true(http, "include_obfuscation"):
        raise Unsupported(
            "'include_obfuscation' is not supported here: events are not padded.", param="include_obfuscation"
        )
    if _is_true(http, "stream"):
        background = http.service.background
        if background is None or not read_kept(record.body).told().background:
            raise RequestError(
                "This response cannot be streamed because it was not created with background=true.", param="stream"
            )
        return replay(http, background, record.key, -1 if after is None else after, warnings)
    if after is not None:
        raise invalid("starting_after", "it needs 'stream' to be true")
    return Whole(bytes(read_kept(record.body).object), warnings=warnings)


async def list_input(http: Http) -> Whole | Answer:
    asked = read_paging(http.query, descending=True)
    warnings = _included(http)
    items = map(bytes, read_kept((await _record(http)).body).input)
    return Whole(cut([(item_id(item), item) for item in items], asked), warnings=warnings)


async def cancel(http: Http) -> Whole | Answer:
    """What has ended already stays as it is, however often it is cancelled."""
    record = await _record(http)
    background = http.service.background
    if background is None or not read_kept(record.body).told().background:
        raise RequestError("Cannot cancel a synchronous response.")
    after = await background.cancel(record)
    if after is None:
        raise no_such_response(record.key.id)
    return Whole(bytes(read_kept(after.body).object))


async def delete(http: Http) -> Whole | Answer:
    """Of several at once one succeeds. What makes the response stops."""
    key, store = _key(http), http.service.store
    try:
        if store is None:
            raise no_such_response(key.id)
        await store.commit(Delete(key))
    except Refused:
        raise no_such_response(key.id) from None
    if http.service.background is not None:
        await http.service.background.forget(key)
    return Whole(msgspec.json.encode({"id": key.id, "object": "response", "deleted": True}))


def _key(http: Http) -> Key:
    return Key(http.caller.owner, RESPONSE, http.path_params["id"])


async def _record(http: Http) -> Record:
    key, store = _key(http), http.service.store
    record = None if store is None else await store.get(key)
    if record is None:
        raise no_such_response(key.id)
    return record


def _is_true(http: Http, name: str) -> bool:
    return one_of(http.query.get(name) or "false", ("true", "false"), name) == "true"


def _starting_after(http: Http) -> int | None:
    text = http.query.get("starting_after")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise invalid("starting_after", f"expected an integer >= 0, got {echo(text)}")
    return int(text)


def _included(http: Http) -> tuple[str, ...]:
    """What was kept is what is shown: nothing can be added to it afterwards."""
    asked = (value for name, value in http.query.multi_items() if name.partition("[")[0] == "include")
    return tuple(f"include: {echo(name)} is not supported" for name in asked if name not in INCLUDABLE)
