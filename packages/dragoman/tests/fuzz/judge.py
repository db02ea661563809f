"""Check what must hold for any response to any request, in every dialect and with any
engine.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from dragoman_check.rules import (
    anthropic,
    chat,
    completions,
    gemini,
    ollama,
    openai_values,
    responses,
    sglang,
    tgi,
)
from dragoman_check.rules.json_values import Violation, require, require_object

from .exchange import Request, Response

LEAKS = re.compile(
    rb"Traceback|File "
    rb"\\?\"|site-packages|/dragoman/\w+/|\b\w+\.py\b|/tmp/|/usr/lib|/home/|0x[0-9a-f]{8}"
)
"""Texts that a body may contain only if the request did: tracebacks, paths of the
server, memory addresses.
"""
EXPECTED = frozenset({501, 503})
"""Documented 5xx statuses, whose bodies state the reason."""
_REASONS = ("repetition", "abort", "error", "cache_threshold")
_BY_CLIENT = ("/v1/models", "/v1/files")
"""Paths of both vendors: a header selects the dialect."""
_TGI = ("/generate_stream", "/info")
_SHARED = ("/", "/generate")
"""Paths of several dialects: the body selects the dialect."""


def check_response(request: Request, response: Response, *, failing: bool = False) -> None:
    """Check a response. Raises Violation. failing: the engine was made to fail, so that
    any 5xx is its error.
    """
    if request.leave_after is not None and not response.is_complete:
        return
    require(response.status, "there is no response")
    require(
        failing or response.status < 500 or response.status in EXPECTED,
        f"the status is {response.status}",
    )
    _check_leaks(request, response)
    require(response.is_complete or failing, "the response breaks off")
    if request.method == "HEAD" or response.status == 204:
        require(not response.body, "a body where there must be none")
    elif response.status >= 400:
        check_error(request, response)
    elif response.is_stream:
        check_stream(request, response.body)
    elif response.headers.get("content-type", "").startswith("application/json") and response.body:
        _check_whole(request, json.loads(response.body, parse_constant=_refuse))


def _check_leaks(request: Request, response: Response) -> None:
    found = {match.group() for match in LEAKS.finditer(response.body)}
    request_text = (
        request.body + request.path.encode() + request.query + repr(request.headers).encode()
    )
    require(all(leak in request_text for leak in found), f"the body tells of the server: {found}")


def _refuse(name: str) -> float:
    raise Violation(f"{name} is not JSON")


def check_error(request: Request, response: Response) -> None:
    """Check that an error has the envelope of the path's dialect."""
    kind = response.headers.get("content-type", "")
    require(kind.startswith("application/json"), f"an error as {kind}")
    body = require_object(json.loads(response.body), "the error")
    if response.status == 503 and body.keys() <= {"model", "reason"}:
        require(body.get("reason"), "a health check without a reason")
        return
    path = request.path
    names_anthropic = "anthropic-version" in request.headers
    # No route has the path or a parent of it: the header decides here too.
    is_unknown = b"No such route" in response.body and b'"type":"error"' in response.body
    if _is_below(path, "/api") and not _is_below(path, "/api/v0", "/api/v1"):
        ollama.check_error(body)
    elif _is_below(path, "/v1beta") or path.endswith(_GEMINI):
        gemini.check_error(body)
    elif _is_below(path, "/v1/messages") or (
        names_anthropic and (_is_below(path, *_BY_CLIENT) or is_unknown)
    ):
        anthropic.check_error(body)
    elif _is_below(path, *_TGI) or (path in _SHARED and "error_type" in body):
        tgi.check_error(body)
    else:
        openai_values.check_error(body.get("error"))


_GEMINI = (
    ":generateContent",
    ":streamGenerateContent",
    ":countTokens",
    ":embedContent",
    ":batchEmbedContents",
)


def _is_below(path: str, *routes: str) -> bool:
    return any(path == route or path.startswith(f"{route}/") for route in routes)


def check_stream(request: Request, data: bytes) -> None:
    """Check a stream's grammar, which also applies to streams that end with an error."""
    sent = _read_sent_body(request)
    match request.route:
        case "/v1/chat/completions":
            chat.check_stream(data, include_usage=_wants_usage(sent), extra_reasons=_REASONS)
        case "/v1/completions":
            completions.check_stream(data, include_usage=_wants_usage(sent), extra_reasons=_REASONS)
        case "/v1/responses" | "/v1/responses/{id}":
            # A resumed stream begins in the middle.
            if b"starting_after" not in request.query:
                responses.check_stream(data)
        case "/v1/messages":
            anthropic.check_stream(data)
        case "/generate_stream":
            tgi.check_stream(data, prefix=_prompt_of(sent))
        case "/generate" if "inputs" in sent:
            tgi.check_stream(data, prefix=_prompt_of(sent))
        case "/generate":
            sglang.check_stream(data, choices=_choices_of(sent))
        case "/api/chat" | "/api/generate":
            ollama.check_stream(data, is_chat=request.route == "/api/chat")
        case route if route.endswith(":streamGenerateContent"):
            gemini.check_stream(data)
        case "/api/pull":
            require(data.endswith(b"\n"), "the stream ends inside a line")
        case _:
            require(data.endswith(b"\n\n") or not data, "the stream ends inside an event")


def _check_whole(request: Request, whole: Any) -> None:
    if request.method != "POST":
        return
    match request.route:
        case "/v1/chat/completions":
            chat.check_object(whole, extra_reasons=_REASONS)
        case "/v1/completions":
            completions.check_object(whole, extra_reasons=_REASONS)
        case "/v1/responses":
            responses.check_object(whole)
        case "/v1/messages":
            anthropic.check_object(whole)
        case "/api/chat" | "/api/generate":
            ollama.check_object(whole, is_chat=request.route == "/api/chat")
        case _:
            pass


def _read_sent_body(request: Request) -> dict[str, Any]:
    """Return the request's body. The request succeeded, so the body is an object."""
    try:
        sent = json.loads(request.body or b"{}")
    except ValueError:
        return {}
    return _object(sent)


def _array(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _choices_of(sent: dict[str, Any]) -> int:
    """Count the choices of SGLang's prompts, each with its own `n` if the parameters
    are a list.
    """
    text = sent.get("text")
    ids = sent.get("input_ids")
    params = sent.get("sampling_params")
    prompts = len(_array(text)) or sum(isinstance(one, list) for one in _array(ids)) or 1
    each = _array(params) or [params] * prompts
    return sum(_object(one).get("n") or 1 for one in each)


def _wants_usage(sent: dict[str, Any]) -> bool:
    return _object(sent.get("stream_options")).get("include_usage") is True


def _prompt_of(sent: dict[str, Any]) -> str:
    full = _object(sent.get("parameters")).get("return_full_text") is True
    inputs = sent.get("inputs")
    return inputs if full and isinstance(inputs, str) else ""
