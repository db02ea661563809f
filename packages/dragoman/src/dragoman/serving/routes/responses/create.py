"""The routes that read a Responses body: create, compact, count input tokens.

Responses can be streamed, complete, or generated in the background.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

from ....core.errors import DragomanError, Unsupported
from ....core.request import Conversation
from ....dialects.interfaces import GenerationCall, ReaderOptions
from ....dialects.responses import ResponsesCall, read_responses, render_input_tokens
from ....dialects.responses.errors import RESPONSES_ERRORS, render_error_fields
from ....dialects.responses.event_schemas import RESPONSE_EVENTS
from ....dialects.responses.response_schemas import Compaction, InputTokenCount, ResponseObject
from ....dialects.responses.stored_events import StoredEvent, build_event
from ....dialects.responses.wire import RESPONSE_REQUEST
from ....dialects.server_sent_events import DONE, KEEPALIVE_COMMENT
from ....pipeline.engine_backends import TokenBackend
from ....pipeline.engine_token_count import count_with_engine
from ....pipeline.prompt_length import check_countable
from ....pipeline.prompt_truncation import build_dropped_warning, build_fitting_prompt
from ....store import Key
from ...api_description import EVENTS, response
from ...call_admission import admit_call, build_header
from ...call_reading import read_call
from ...client_warnings import collect_warnings
from ...generation_handler import build_responder, build_stream_headers
from ...handler_result import JsonResponse
from ...http_request import HttpRequest
from ...replay_responder import ReplayResponder
from ...request_context import build_owner_files
from ...request_terms import build_terms
from ...responder import Responder
from ...route import RequestCost, Route, RouteGroup
from .background import BackgroundRuns, start_run
from .conversation_locks import ConversationLocks
from .history import RESPONSE_KIND
from .turn import open_turn, prepend_history, render_own_items


def build_routes(
    background: BackgroundRuns | None, conversation_locks: ConversationLocks
) -> Sequence[Route]:
    routes = RouteGroup("Responses", RESPONSES_ERRORS)
    routes.add(
        "POST",
        "/v1/responses",
        partial(create, background, conversation_locks),
        "Create a response",
        response(ResponseObject),
        response(*RESPONSE_EVENTS, media=EVENTS),
        bodies=(RESPONSE_REQUEST,),
        generates=True,
        description="Streaming, non-streaming or background. The same path accepts "
        "WebSocket connections.",
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/v1/responses/compact",
        compact,
        "Compact a conversation",
        response(Compaction),
        bodies=(RESPONSE_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/v1/responses/input_tokens",
        count_input_tokens,
        "Count the tokens of a response's prompt",
        response(InputTokenCount),
        bodies=(RESPONSE_REQUEST,),
    )
    return routes.build()


async def create(
    background: BackgroundRuns | None, conversation_locks: ConversationLocks, http: HttpRequest
) -> JsonResponse | Responder:
    now = http.service.clock.now

    def read(body: bytes, options: ReaderOptions) -> ResponsesCall:
        return read_responses(body, options, now=lambda: int(now()))

    responses_call = await read_call(http, read)
    if not responses_call.background:
        turn = await open_turn(http, responses_call, conversation_locks)
        turn.store_at_end(keeps_history=False)
        return build_responder(http, turn.writer, turn.admitted, stream=responses_call.call.stream)
    if background is None:
        raise Unsupported(
            "'background' is not supported here: this server has no store (--store none).",
            param="background",
        )
    # Checked before the prompt is rendered, to reject cheaply; `start` checks again.
    background.check_limit(http.caller.owner)
    turn = await open_turn(http, responses_call, conversation_locks)
    response_object = await start_run(background, turn)
    if responses_call.call.stream:
        # Also the first stream is read from the store, so that a resumed stream is
        # identical.
        key = Key(http.caller.owner, RESPONSE_KIND, turn.header.id)
        return build_replay(http, background, key, -1, turn.admitted.warnings)
    return JsonResponse(response_object, warnings=turn.admitted.warnings)


def build_replay(
    http: HttpRequest,
    background: BackgroundRuns,
    key: Key,
    starting_after: int,
    warnings: tuple[str, ...] = (),
) -> Responder:
    """Build a responder with a stored response's events numbered above
    `starting_after`, and with new ones.
    """
    framing = _ReplayFraming(starting_after)
    response_start = http.build_response_start(build_stream_headers(http, warnings))
    return ReplayResponder(
        framing.render(background.follow(key, starting_after)),
        framing,
        response_start,
        http.service.stream_monitor,
    )


class _ReplayFraming:
    """Framing of a replayed stream. Keepalives are comments, because additional events
    would break the numbering.
    """

    def __init__(self, starting_after: int) -> None:
        self._last_number = starting_after

    end = DONE
    keepalive = KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return (
            build_event(self._last_number + 1, b"error", render_error_fields(error)).render() + DONE
        )

    async def render(self, batches: AsyncGenerator[list[StoredEvent]]) -> AsyncGenerator[bytes]:
        async for events in batches:
            self._last_number = events[-1].number
            yield b"".join(event.render() for event in events)


async def compact(http: HttpRequest) -> JsonResponse | Responder:
    """Let the model summarize a conversation, through the normal generation path."""
    responses_call = await read_call(http, partial(read_responses, compact=True))
    if responses_call.background:
        raise Unsupported("Compaction is not supported in the background.", param="background")
    header = build_header(http, responses_call.call)
    responses_call, history = await prepend_history(http, responses_call)
    admitted = await admit_call(http, responses_call.call, header)
    items = (*history.items, *render_own_items(responses_call, header.id))
    writer = responses_call.create_compacted_writer(header, items)
    return build_responder(http, writer, admitted, stream=False)


async def read_call_with_history(http: HttpRequest) -> GenerationCall:
    """Return the call with its history; nothing is stored.

    Raises:
        RequestError: the request is invalid.
    """
    responses_call, _ = await prepend_history(http, await read_call(http, read_responses))
    return responses_call.call


async def count_input_tokens(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call_with_history(http)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    request = call.requests[0]
    model = await http.service.models.load_and_find(request.model)
    tokenizer = model.tokenizer
    if isinstance(request.prompt, Conversation) and tokenizer is not None:
        check_countable(request.prompt, model.max_model_len, tokenizer.longest_token)
    request = await http.service.generation.media.resolve_request(
        build_owner_files(http), model, request
    )
    if not isinstance(model.backend, TokenBackend):
        return JsonResponse(
            render_input_tokens(await count_with_engine(model, request)), warnings=warnings
        )
    prompted = await build_fitting_prompt(
        model.backend, request, build_terms(http, http.id), model.max_model_len
    )
    dropped = (
        [build_dropped_warning(prompted.n_dropped, model.max_model_len)]
        if prompted.n_dropped
        else []
    )
    return JsonResponse(render_input_tokens(len(prompted.ids)), warnings=(*warnings, *dropped))
