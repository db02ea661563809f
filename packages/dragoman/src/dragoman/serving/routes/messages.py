"""Anthropic's Messages API, with counting of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.reply import Reply
from ...core.request import GenerateRequest
from ...dialects.anthropic import (
    ThreadNotFound,
    ThreadUnsupported,
    read_count_tokens,
    read_messages,
    render_count_tokens,
)
from ...dialects.anthropic.errors import AnthropicErrorBody
from ...dialects.anthropic.response_schemas import MESSAGE_EVENTS, MessageResponse, TokenCount
from ...dialects.anthropic.threads import (
    ThreadRequest,
    build_full_body,
    check_size,
    encode_turn_with_answer,
    read_thread,
    read_turn,
)
from ...dialects.anthropic.wire import COUNT_REQUEST, MESSAGES_REQUEST
from ...dialects.interfaces import GenerationCall
from ...pipeline.context_editing import build_edited_prompt
from ...pipeline.engine_backends import TokenBackend
from ...pipeline.engine_token_count import count_with_engine
from ...pipeline.foreign_reasoning import drop_foreign_reasoning
from ...pipeline.prompt_length import check_countable
from ...store import Key, Put, Store
from ..api_description import EVENTS, response
from ..call_admission import admit_call, build_header
from ..call_reading import build_reader_options, parse_body, run_in_thread_if_large
from ..client_warnings import collect_warnings
from ..error_envelope import ANTHROPIC
from ..generation_handler import build_responder
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..reply_persistence import ReplyPersistence
from ..request_context import build_owner_files
from ..request_terms import build_terms
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup

THREAD_KIND = "thread"


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Messages", ANTHROPIC)
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
    call, thread_request = await read_conversation(http)
    admitted = await admit_call(http, call, build_header(http, call))
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
    return build_responder(http, call.writer(admitted.header), admitted, stream=call.stream)


async def read_conversation(http: HttpRequest) -> tuple[GenerationCall, ThreadRequest | None]:
    """Return the call with its history and the thread request. Raises as
    `expand_thread`.
    """
    body, thread_request = await expand_thread(http, await http.read_json())
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
    warnings = collect_warnings(call, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    if model.tokenizer is not None:
        check_countable(call.conversation, model.max_model_len, model.tokenizer.longest_token)
    conversation, foreign = drop_foreign_reasoning(call.conversation, model.capabilities)
    warnings += foreign
    conversation = await http.service.generation.media.resolve_conversation(
        build_owner_files(http), model, conversation
    )
    # The chat template writes the special tokens itself.
    request = GenerateRequest(model.name, conversation, add_special_tokens=False)
    if not isinstance(model.backend, TokenBackend):
        if call.reports_edits:
            warnings = (
                *warnings,
                "context_management is ignored: this model's engine builds its own prompts",
            )
        return JsonResponse(
            render_count_tokens(await count_with_engine(model, request), None), warnings=warnings
        )
    _, prompted = await build_edited_prompt(model.backend, request, build_terms(http, http.id))
    original = len(prompted.ids) + sum(edit.tokens for edit in prompted.applied_edits)
    return JsonResponse(
        render_count_tokens(len(prompted.ids), original if call.reports_edits else None),
        warnings=warnings,
    )
