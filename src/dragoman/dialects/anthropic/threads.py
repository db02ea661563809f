"""Message threads: a body that names an earlier answer becomes the body of the whole conversation. Knows no store.

So a turn of a thread and the same conversation sent whole are read by the same reader and give the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError
from ..body import Body, Shape, invalid, missing, one_of
from ..text import quoted

_MARK = b'"thread"'
_NULL = Raw(b"null")


class _Thread(Struct, frozen=True):
    type: str
    previous_message_id: str | None = None


class _Threaded(Struct, frozen=True):
    messages: list[Raw] | None = None
    system: Raw = _NULL
    tools: Raw = _NULL
    thread: _Thread | None = None


_THREADED = Shape(_Threaded)
_ONCE = ("system", "tools")


class Turn(Struct, frozen=True):
    """What is kept of one turn: what it added. system, tools: of the turn that began the thread."""

    messages: list[Raw]
    system: Raw = _NULL
    tools: Raw = _NULL


class ThreadOrder(Struct, frozen=True):
    """A body of a thread. previous: the id of the answer that it continues; None begins one. own: what it adds."""

    previous: str | None
    own: Turn
    fields: dict[str, Raw]


class _Answer(Struct, frozen=True):
    id: str
    content: list[Raw]


def read_thread(data: bytes) -> ThreadOrder | None:
    """None for a body that is in no thread. Raises RequestError."""
    if _MARK not in data:
        # Most bodies: they are read once.
        return None
    body = Body(data)
    said = body.read(_THREADED)
    if said.thread is None:
        return None
    kind = one_of(said.thread.type, ("create", "continue"), "thread.type")
    if kind == "create":
        return ThreadOrder(None, Turn(said.messages or [], said.system, said.tools), body.fields)
    if not said.thread.previous_message_id:
        raise missing("thread.previous_message_id")
    for name in _ONCE:
        if not _is_absent(body.fields.get(name)):
            raise invalid(name, "it cannot change after the thread is created; omit it when you continue the thread")
    return ThreadOrder(said.thread.previous_message_id, Turn(said.messages or []), body.fields)


def whole_body(order: ThreadOrder, earlier: Sequence[Turn]) -> bytes:
    """The same request without a memory. earlier: the turns that it continues, the first one first."""
    fields = {name: bytes(raw) for name, raw in order.fields.items() if name != "thread"}
    if earlier:
        once = (("system", earlier[0].system), ("tools", earlier[0].tools))
        fields |= {name: bytes(raw) for name, raw in once if not _is_absent(raw)}
    turns = (*earlier, order.own)
    fields["messages"] = b"[%s]" % b",".join(bytes(message) for turn in turns for message in turn.messages)
    return b"{%s}" % b",".join(quoted(name) + b":" + text for name, text in fields.items())


def turn_with_answer(order: ThreadOrder, message: bytes) -> tuple[str, bytes]:
    """The answer's id, and what is kept. message: the whole answer."""
    answer = msgspec.json.decode(message, type=_Answer)
    content = b"[%s]" % b",".join(map(bytes, answer.content))
    said = [Raw(b'{"role":"assistant","content":%s}' % content)] if answer.content else []
    own = order.own
    return answer.id, msgspec.json.encode(Turn([*own.messages, *said], own.system, own.tools))


def read_turn(data: bytes) -> Turn:
    """What was kept."""
    return msgspec.json.decode(data, type=Turn)


def _is_absent(raw: Raw | None) -> bool:
    return raw is None or bytes(raw).strip() == b"null"


def check_size(body: bytes, limit: int) -> None:
    """Raises RequestError for a conversation that could not have been sent whole either."""
    if len(body) > limit:
        raise RequestError(f"The whole conversation has {len(body)} bytes; {limit} are allowed.", param="thread")
