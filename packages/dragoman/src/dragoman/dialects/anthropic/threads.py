"""Message threads: expands a body that continues an earlier answer into a body with the
whole conversation.

A thread's turn and the same conversation sent at once use the same reader and yield the
same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError
from ..field_errors import check_one_of, invalid_value, missing_parameter
from ..json_encoding import encode_string
from ..request_body import BodySchema, ParsedBody

_THREAD_KEY = b'"thread"'
_NULL = Raw(b"null")


class ThreadReference(Struct, frozen=True):
    type: str
    previous_message_id: str | None = None


class _ThreadBody(Struct, frozen=True):
    messages: list[Raw] | None = None
    system: Raw = _NULL
    tools: Raw = _NULL
    thread: ThreadReference | None = None


_THREAD_BODY = BodySchema(_ThreadBody)
_FIRST_TURN_FIELDS = ("system", "tools")


class StoredTurn(Struct, frozen=True):
    """The stored form of one turn.

    messages: the messages that it added.
    system, tools: fields of the thread's first turn; null in later ones.
    """

    messages: list[Raw]
    system: Raw = _NULL
    tools: Raw = _NULL


class ThreadRequest(Struct, frozen=True):
    """A request in a thread.

    previous_id: id of the answer that the request continues; None starts a thread.
    turn: the messages that the request adds.
    fields: all fields of the body.
    """

    previous_id: str | None
    turn: StoredTurn
    fields: dict[str, Raw]


class _AnswerBody(Struct, frozen=True):
    id: str
    content: list[Raw]


def read_thread(data: bytes) -> ThreadRequest | None:
    """Parse a body in a thread; None for any other. Raises RequestError."""
    if _THREAD_KEY not in data:
        # Fast path: most bodies belong to no thread and need not be parsed twice.
        return None
    body = ParsedBody(data)
    thread_body = body.decode(_THREAD_BODY)
    if thread_body.thread is None:
        return None
    kind = check_one_of(thread_body.thread.type, ("create", "continue"), "thread.type")
    if kind == "create":
        return ThreadRequest(
            None,
            StoredTurn(thread_body.messages or [], thread_body.system, thread_body.tools),
            body.fields,
        )
    if not thread_body.thread.previous_message_id:
        raise missing_parameter("thread.previous_message_id")
    for name in _FIRST_TURN_FIELDS:
        # Tools and system prompt come first in a prompt: a change would invalidate the
        # cached prefix of the whole thread.
        if not _is_absent(body.fields.get(name)):
            raise invalid_value(
                name,
                "it cannot change after the thread is created; omit it when you continue the "
                "thread",
            )
    return ThreadRequest(
        thread_body.thread.previous_message_id, StoredTurn(thread_body.messages or []), body.fields
    )


def build_full_body(request: ThreadRequest, earlier_turns: Sequence[StoredTurn]) -> bytes:
    """Build the equivalent stateless body.

    earlier_turns: the turns that the request continues, oldest first.
    """
    # The messages are joined as raw bytes: decoding and encoding could change a number
    # or an escape, and so the prompt.
    fields = {name: bytes(raw) for name, raw in request.fields.items() if name != "thread"}
    if earlier_turns:
        first_turn_fields = (("system", earlier_turns[0].system), ("tools", earlier_turns[0].tools))
        fields |= {name: bytes(raw) for name, raw in first_turn_fields if not _is_absent(raw)}
    turns = (*earlier_turns, request.turn)
    fields["messages"] = b"[%s]" % b",".join(
        bytes(message) for turn in turns for message in turn.messages
    )
    return b"{%s}" % b",".join(encode_string(name) + b":" + text for name, text in fields.items())


def encode_turn_with_answer(request: ThreadRequest, message: bytes) -> tuple[str, bytes]:
    """Return the answer's id, and the encoded turn including the answer.

    message: the full answer.
    """
    answer = msgspec.json.decode(message, type=_AnswerBody)
    content = b"[%s]" % b",".join(map(bytes, answer.content))
    answer_messages = (
        [Raw(b'{"role":"assistant","content":%s}' % content)] if answer.content else []
    )
    turn = request.turn
    return answer.id, msgspec.json.encode(
        StoredTurn([*turn.messages, *answer_messages], turn.system, turn.tools)
    )


def read_turn(data: bytes) -> StoredTurn:
    """Decode a stored turn."""
    return msgspec.json.decode(data, type=StoredTurn)


def _is_absent(raw: Raw | None) -> bool:
    return raw is None or bytes(raw).strip() == b"null"


def check_size(body: bytes, limit: int) -> None:
    """Reject a conversation that would exceed the body limit if it were sent at once.
    Raises RequestError.
    """
    if len(body) > limit:
        raise RequestError(
            f"The whole conversation has {len(body)} bytes; the maximum is {limit}.", param="thread"
        )
