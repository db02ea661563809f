"""Anthropic's Messages API, with counting of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ...core.events import Event
from ...core.reply import Reply
from ...dialects.anthropic import (
    ThreadNotFound,
    ThreadUnsupported,
    read_count_tokens,
    read_messages,
    render_count_tokens,
)
from ...dialects.anthropic.cache_diagnostics import (
    NO_DIVERGENCE,
    NOT_FOUND,
    UNAVAILABLE,
    PromptFingerprint,
    build_fingerprint,
    read_diagnostics,
    render_diagnosis,
)
from ...dialects.anthropic.errors import ANTHROPIC_ERRORS, AnthropicErrorBody
from ...dialects.anthropic.response_schemas import MESSAGE_EVENTS, MessageResponse, TokenCount
from ...dialects.anthropic.threads import (
    ThreadRequest,
    build_full_body,
    check_size,
    encode_turn_with_answer,
    read_thread,
    read_turn,
)
from ...dialects.anthropic.wire import (
    COUNT_REQUEST,
    MESSAGES_REQUEST,
    CacheDiagnosticsOptions,
)
from ...dialects.anthropic.writer import MessagesWriter
from ...dialects.interfaces import GenerationCall
from ...pipeline.driver import Stage
from ...store import CommitConflict, Key, Put, Store, StoreUnavailable, is_storable
from ..api_description import EVENTS, response
from ..call_admission import admit_call, attach_server_tools, build_header
from ..call_reading import build_reader_options, parse_body, run_in_thread_if_large
from ..generation_handler import build_responder
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..prompt_count import count_prompt
from ..reply_persistence import ReplyPersistence
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup

THREAD_KIND = "thread"
FINGERPRINT_KIND = "fingerprint"
FINGERPRINT_TTL = 86_400
"""Seconds for which a later request can be compared with one."""


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Messages", ANTHROPIC_ERRORS)
    routes.add(
        "POST",
        "/v1/messages",
        create,
        "Answer a conversation",
        response(MessageResponse),
        response(*MESSAGE_EVENTS, AnthropicErrorBody, media=EVENTS),
        bodies=(MESSAGES_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the tokens of a prompt",
        response(TokenCount),
        bodies=(COUNT_REQUEST,),
    )
    return routes.build()


async def create(http: HttpRequest) -> JsonResponse | Responder:
    """Create a message.

    In a thread, the history is loaded first, and the new turn is stored before the last
    event is sent.
    """
    data = await http.read_json()
    call, thread_request = await read_conversation(http, data)
    call = await attach_server_tools(http, call)
    header = build_header(http, call)
    writer = call.writer(header)
    diagnostics = await run_in_thread_if_large(read_diagnostics, data)
    put: Put | None = None
    if diagnostics is not None:
        assert isinstance(writer, MessagesWriter)
        fingerprint = await run_in_thread_if_large(
            lambda _: build_fingerprint(call.requests[0]), data
        )
        writer.add_diagnostics(await diagnose_cache(http, diagnostics, fingerprint))
        put = _build_fingerprint_put(http, writer.id, fingerprint)
    admitted = await admit_call(http, call, header)
    if put is not None and http.service.store is not None:
        admitted.run.batches.add_stage(FingerprintStorage(http.service.store, put))
    if thread_request is not None:
        store = _require_store(http)
        owner = http.caller.owner
        previous_id = thread_request.previous_id
        # A separate writer: the streaming writer's state must not affect the stored
        # turn.
        stored_writer = call.writer(admitted.header)

        async def persist(reply: Reply) -> None:
            id, turn = encode_turn_with_answer(thread_request, stored_writer.render_full(reply))
            await store.commit(
                Put(Key(owner, THREAD_KIND, id), admitted.header.created, turn, parent=previous_id)
            )

        admitted.run.batches.add_stage(ReplyPersistence(persist))
    return build_responder(http, writer, admitted, stream=call.stream)


async def diagnose_cache(
    http: HttpRequest, options: CacheDiagnosticsOptions, fingerprint: PromptFingerprint
) -> bytes:
    """Compare a prompt with that of an earlier answer; return the field `diagnostics`."""
    previous_id = options.previous_message_id
    if previous_id is None:
        return NO_DIVERGENCE
    store = http.service.store
    if store is None:
        return UNAVAILABLE
    if not is_storable(previous_id):
        return NOT_FOUND
    try:
        record = await store.get(Key(http.caller.owner, FINGERPRINT_KIND, previous_id))
    except StoreUnavailable:
        # The answer itself needs no store.
        return UNAVAILABLE
    if record is None:
        return NOT_FOUND
    previous = msgspec.msgpack.decode(record.body, type=PromptFingerprint)
    return render_diagnosis(previous, fingerprint)


def _build_fingerprint_put(http: HttpRequest, id: str, fingerprint: PromptFingerprint) -> Put:
    now = http.service.clock.now()
    return Put(
        Key(http.caller.owner, FINGERPRINT_KIND, id),
        int(now),
        msgspec.msgpack.encode(fingerprint),
        expires=now + FINGERPRINT_TTL,
    )


class FingerprintStorage(Stage):
    """Stores the fingerprint of a prompt before the client gets the last event. A
    rejected call, whose id no client has, stores none.
    """

    __slots__ = ("_put", "_store")

    def __init__(self, store: Store, put: Put) -> None:
        self._store = store
        self._put = put

    def feed(self, batch: list[Event]) -> list[Event]:
        return batch

    async def finish(self) -> None:
        # A client may use its own `request_id` twice; the first one stays. A store that
        # fails only makes later diagnoses unavailable.
        with suppress(CommitConflict, StoreUnavailable):
            await self._store.commit(self._put)


async def read_conversation(
    http: HttpRequest, body: bytes
) -> tuple[GenerationCall, ThreadRequest | None]:
    """Return the call with its history and the thread request. Raises as
    `expand_thread`.
    """
    body, thread_request = await expand_thread(http, body)
    return await parse_body(http, body, read_messages), thread_request


async def expand_thread(http: HttpRequest, body: bytes) -> tuple[bytes, ThreadRequest | None]:
    """Return the equivalent stateless body, and the thread request if there is one.

    Raises:
        ThreadNotFound: a part of the history is missing.
        ThreadUnsupported: storage is disabled.
    """
    thread_request = await run_in_thread_if_large(read_thread, body)
    if thread_request is None:
        return body, None
    store = _require_store(http)
    if thread_request.previous_id is None:
        return build_full_body(thread_request, ()), thread_request
    chain = await store.load_chain(Key(http.caller.owner, THREAD_KIND, thread_request.previous_id))
    if chain is None or not chain.is_complete:
        raise ThreadNotFound(thread_request.previous_id)
    body = build_full_body(thread_request, [read_turn(record.body) for record in chain.records])
    # The limit of a body also applies to a thread's whole conversation.
    check_size(body, http.service.options.max_body_bytes)
    return body, thread_request


def _require_store(http: HttpRequest) -> Store:
    """Return the store. Raises ThreadUnsupported: storage is disabled; the SDK then
    sends the whole conversation.
    """
    if http.service.store is None:
        raise ThreadUnsupported
    return http.service.store


async def count_tokens(http: HttpRequest) -> JsonResponse | Responder:
    """Return the number of prompt tokens that the same call would have."""
    body, _ = await expand_thread(http, await http.read_json())
    call = read_count_tokens(body, build_reader_options(http))
    count = await count_prompt(http, call)
    warnings = count.warnings
    original = None
    if call.reports_edits and count.removed is None:
        warnings += ("context_management is ignored: this model's engine builds its own prompts",)
    elif call.reports_edits:
        original = count.tokens + (count.removed or 0)
    return JsonResponse(render_count_tokens(count.tokens, original), warnings=warnings)
