"""OpenAI's error envelope, with the names that fields have in Responses. Knows no HTTP."""

from __future__ import annotations

import re

from ...core.errors import DragomanError
from ..base import Profile
from ..errors import openai_error

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


def _renamed(param: str) -> str:
    for name, here in _NAMES:
        if found := name.match(param):
            return found.expand(here) + param[found.end() :]
    return param
