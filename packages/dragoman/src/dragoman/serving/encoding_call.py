"""A call that computes embeddings or scores, within the limits of its key."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import anyio.to_thread

from ..core.encoder_requests import Embeddings, TextInputs
from ..core.trace_context import SpanContext
from ..dialects.interfaces import Header
from ..pipeline.embedding import embed
from ..pipeline.engine_timeout import limit_call_time
from ..pipeline.request_queue import QueueShare
from ..pipeline.served_model import ServedModel
from .call_observer import find_trace, observe_call
from .client_warnings import WarningSource, collect_warnings
from .disconnect import cancel_on_disconnect
from .http_request import HttpRequest
from .request_terms import find_queue_share, request_timeout
from .tenancy import EMBEDDINGS

LARGE_RESPONSE = 4096
"""Count of numbers above which a response is rendered in a thread, because it would
block the event loop.
"""


class ComputedResult(Protocol):
    """Embeddings or scores."""

    @property
    def prompt_tokens(self) -> int: ...


T = TypeVar("T", bound=ComputedResult)


class InputCall(WarningSource, Protocol):
    """The common interface of the parsed bodies of these routes."""

    @property
    def model(self) -> str: ...


async def find_model(http: HttpRequest, call: InputCall) -> tuple[ServedModel, tuple[str, ...]]:
    """Load the model; return it with the warnings for the client.

    Raises:
        RequestError: the server is strict and there are warnings.
    """
    warnings = collect_warnings(call, strict=http.service.options.strict)
    return await http.service.models.load_and_find(call.model), warnings


def build_result_header(http: HttpRequest, prefix: str, model: ServedModel) -> Header:
    service = http.service
    return Header(
        service.ids.new(prefix),
        int(service.clock.now()),
        model.name,
        service.generation.fingerprint,
    )


async def run_computation(
    http: HttpRequest,
    model: ServedModel,
    share: QueueShare,
    compute: Callable[[SpanContext | None], Coroutine[Any, Any, T]],
) -> T:
    """Run an embedding or scoring; cancel it at its deadline or when the client
    disconnects.

    Its tokens are charged to the API key at the end, when their number is known.

    share: the caller's, which `compute` uses too.
    compute: gets the `trace` of its request.
    """
    timeout = request_timeout(http)
    observer = await observe_call(http, model.name, EMBEDDINGS)
    with observer or nullcontext():
        model.queues.encoding.check_capacity(share)
        if (permit := http.service.generation.start_limiter.acquire()) is not None:
            await permit
        work = compute(find_trace(http, observer))
        result = await cancel_on_disconnect(http.on_disconnect, limit_call_time(work, timeout))
        if observer is not None:
            observer.record_computation(result.prompt_tokens)
        return result


async def embed_texts(
    http: HttpRequest,
    model: ServedModel,
    texts: TextInputs,
    dimensions: int | None,
    normalize: bool | None = None,
) -> Embeddings:
    """Embed texts, see `embed`, while the model stays loaded."""
    with model.keep_loaded():
        share = find_queue_share(http)
        return await run_computation(
            http,
            model,
            share,
            lambda trace: embed(
                model, texts, dimensions, normalize, queue_share=share, trace=trace
            ),
        )


async def render_in_thread_if_large(write: Callable[[], bytes], numbers: int) -> bytes:
    return write() if numbers <= LARGE_RESPONSE else await anyio.to_thread.run_sync(write)
