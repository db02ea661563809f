"""/generate, which SGLang, TGI and LightLLM share: the body determines the dialect."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...core.errors import DragomanError
from ...dialects.base import GenerationCall
from ...dialects.sglang import read_sglang
from ...dialects.tgi import is_tgi_body, read_tgi
from ..auth import Access
from ..endpoint import EnvelopedError, HandlerResult, HttpRequest, Route, call_handler
from ..envelopes import OPENAI, TGI
from ..generate import parse_body, run_generation, run_in_thread_if_large
from ..streaming import Responder


def build_routes() -> Sequence[Route]:
    """SGLang's errors have OpenAI's format; those of TGI's bodies have TGI's, see `_generate_as_tgi`."""
    return (Route("/generate", Access.USER, OPENAI, {"POST": generate, "PUT": generate}),)


async def generate(http: HttpRequest) -> HandlerResult:
    """Generate. TGI and LightLLM share this path; the body determines the dialect."""
    body = await http.read_json()
    if await run_in_thread_if_large(is_tgi_body, body):
        return await _generate_as_tgi(http, body)
    return await run_generation(http, await parse_body(http, body, read_sglang))


async def read_generate_call(http: HttpRequest) -> GenerationCall:
    """Read a call in the dialect that its body determines.

    Raises:
        RequestError: the body is invalid.
    """
    body = await http.read_json()
    return await parse_body(http, body, read_tgi if await run_in_thread_if_large(is_tgi_body, body) else read_sglang)


async def _generate_as_tgi(http: HttpRequest, body: bytes) -> HandlerResult:
    """Generate with TGI's error format, which only the body can tell on a path that two dialects share."""
    # Errors of a stream and of its start are rendered by the request.
    tgi_request = replace(http, envelope=TGI)

    async def handle() -> Responder:
        return await run_generation(tgi_request, await parse_body(tgi_request, body, read_tgi))

    result = await call_handler(handle())
    return EnvelopedError(result, TGI) if isinstance(result, DragomanError) else result
