"""Errors of Responses: OpenAI's envelope with the names that fields have here, events, and what a response says of
its failure. Knows no HTTP.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from ...core.errors import ContextTooLong, DragomanError, RateLimited, RequestError
from ..base import Profile
from ..errors import openai_error
from ..text import quoted, quoted_or_null

# What fields of the core are called here, where the error comes from behind the reader.
_NAMES = (
    (re.compile(r"messages\b"), "input"),
    (re.compile(r"max_tokens\b"), "max_output_tokens"),
    (re.compile(r"response_format\.json_schema\b"), "text.format"),
    (re.compile(r"response_format\b"), "text.format"),
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"(tools\[\d+\])\.custom\b"), r"\1.format"),
)


def responses_error(error: DragomanError, profile: Profile = Profile.OPENAI) -> bytes:
    """The JSON body of an answer with status `error.status`."""
    if error.param is None or (param := _renamed(error.param)) == error.param:
        return openai_error(error, profile)
    message = error.message.replace(error.param, param)
    told = DragomanError(message, param=param, code=error.code)
    told.status = error.status
    return openai_error(told, profile)


class _Flat(Struct, frozen=True):
    message: str
    param: str | None
    code: str | None


def error_fields(error: DragomanError) -> bytes:
    """The fields of an `error` event, flat for OpenAI's clients and nested for those of Open Responses."""
    nested = responses_error(error).removeprefix(b'{"error":')[:-1]
    flat = msgspec.json.decode(nested, type=_Flat)
    return b'"code":%s,"message":%s,"param":%s,"error":%s' % (
        quoted_or_null(flat.code), quoted(flat.message), quoted_or_null(flat.param), nested,
    )  # fmt: skip


def failed_by(error: DragomanError) -> bytes:
    """The `error` of a response that failed."""
    message = msgspec.json.decode(responses_error(error).removeprefix(b'{"error":')[:-1], type=_Flat).message
    return b'{"code":"%s","message":%s}' % (_failure(error), quoted(message))


def _failure(error: DragomanError) -> bytes:
    """OpenAI's codes of a failed response. The one for a full context is not in their list, but agents know it."""
    if isinstance(error, RateLimited):
        return b"rate_limit_exceeded"
    if isinstance(error, ContextTooLong):
        return b"context_length_exceeded"
    return b"invalid_prompt" if isinstance(error, RequestError) else b"server_error"


def _renamed(param: str) -> str:
    for name, here in _NAMES:
        if found := name.match(param):
            return found.expand(here) + param[found.end() :]
    return param
