"""Handlers that tell what a prompt becomes, and send it to no engine. Each caller sees what it sent itself, no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ..core.errors import NotFound, Unsupported
from ..dialects.base import Call, ReaderOptions
from ..dialects.chat import read_chat
from ..dialects.completions import read_completions
from ..dialects.explain import Difference, Explained, explanation
from ..dialects.generate import read_generate, rendering
from ..pipeline.models import ServedModel, TokenBackend
from ..pipeline.prepare import TokenJob
from ..pipeline.recent import common
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Whole
from .generate import Admitted, new_header, prepare_call, read_call
from .responses.count import read_continued
from .sglang import read_either
from .threads import read_conversation

Read = Callable[[Http], Awaitable[Call]]
"""What is asked, with all that comes before it."""

SHOWN = 16
"""Tokens of each prompt that are shown where two part."""


def rendered(read: Read, *, several: bool = False) -> Handler:
    """vLLM's `render`: bodies for /inference/v1/generate. several: a list of them, one a prompt."""

    async def handle(http: Http) -> Whole | Answer:
        _require(http)
        call, admitted, _, jobs = await _prepared(http, read)
        if any(job.requests[0].images for job in jobs):
            raise Unsupported("A prompt with images cannot be returned as token ids.", param="messages")
        asked = zip(call.requests, jobs, strict=True)
        bodies: list[bytes] = [rendering(admitted.header.id, request, job.requests[0]) for request, job in asked]
        warnings = admitted.warnings
        if any(job.requests[0].matcher is not None for job in jobs):
            warnings = (*warnings, "the grammar of the answer is omitted: it cannot be serialized")
        return Whole(b"[" + b",".join(bodies) + b"]" if several else bodies[0], warnings=warnings)

    return handle


def explained(read: Read) -> Handler:
    """The prompt's text and tokens, what of it is cached, and where it parts from the caller's earlier ones."""

    async def handle(http: Http) -> Whole | Answer:
        _require(http)
        _, admitted, model, (job, *more) = await _prepared(http, read)
        if more:
            raise Unsupported("One prompt can be explained at a time.", param="prompt")
        made = _explained(http, model, job, admitted)
        return Whole(explanation(made), warnings=admitted.warnings)

    return handle


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    """Beneath each route that generates. Those that are TGI's alone take the bodies of /generate."""
    chat, completions = _by(read_chat), _by(read_completions)
    reading: dict[str, Read] = {
        "/v1/chat/completions": chat,
        "/v1/completions": completions,
        "/v1/responses": read_continued,
        "/v1/messages": _conversation,
        "/inference/v1/generate": _by(read_generate),
        "/generate": read_either,
    }
    table: dict[str, Handler] = {f"{path}/explain": explained(read) for path, read in reading.items()}
    table["/v1/chat/completions/render"] = rendered(chat)
    table["/v1/completions/render"] = rendered(completions, several=True)
    return {path: (Access.USER, {"POST": handler}) for path, handler in table.items()}


def _by(read: Callable[[bytes, ReaderOptions], Call]) -> Read:
    """Of a dialect whose bodies have everything in them."""
    return lambda http: read_call(http, read)


async def _conversation(http: Http) -> Call:
    call, _ = await read_conversation(http)
    return call


def _require(http: Http) -> None:
    if not http.service.options.explain:
        raise NotFound("Explaining prompts is disabled on this server (--explain).", code="unsupported_endpoint")


async def _prepared(http: Http, read: Read) -> tuple[Call, Admitted, ServedModel, tuple[TokenJob, ...]]:
    """All that is done before the engine is asked, and nothing after it. Raises RequestError."""
    call = await read(http)
    header = new_header(http, call)
    admitted = await prepare_call(http, call, header)
    await admitted.run.batches.aclose()
    jobs = tuple(job for job in admitted.run.jobs if isinstance(job, TokenJob))
    if len(jobs) != len(admitted.run.jobs):
        raise Unsupported("This model's engine builds its own prompts.", param="model")
    return call, admitted, http.service.models.find(header.model), jobs


def _explained(http: Http, model: ServedModel, job: TokenJob, admitted: Admitted) -> Explained:
    request, backend = job.requests[0], model.backend
    cache = backend.cache if isinstance(backend, TokenBackend) else None
    return Explained(
        model.name,
        job.prompt_text,
        job.prompt,
        tuple(job.vocabulary.token(id, None).text for id in job.prompt),
        request.max_tokens,
        None if cache is None or request.images else cache.cached_tokens(job.prompt, request.cache_salt),
        _difference(http, model, job),
        admitted.warnings,
    )


def _difference(http: Http, model: ServedModel, job: TokenJob) -> Difference | None:
    recent = http.service.recent
    earlier = None if recent is None else recent.closest(http.caller.owner, model.name, job.prompt)
    tokenizer = model.tokenizer
    if earlier is None or tokenizer is None:
        return None
    shared = common(earlier, job.prompt)
    if shared == len(earlier):
        return Difference(len(earlier), shared, None)
    return Difference(
        len(earlier),
        shared,
        shared,
        tokenizer.decode(job.prompt[max(0, shared - SHOWN) : shared]),
        tokenizer.decode(earlier[shared : shared + SHOWN]),
        tokenizer.decode(job.prompt[shared : shared + SHOWN]),
    )
