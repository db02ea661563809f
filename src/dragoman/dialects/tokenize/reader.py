"""Bodies of /tokenize and /detokenize to what was asked."""

from __future__ import annotations

from msgspec import Struct

from ...core.errors import RequestError
from ...core.request import Conversation
from ..base import ReaderOptions
from ..body import Body, Shape, missing
from ..chat.reader import declared_tools, read_prompting
from ..chat.wire import Prompting
from ..fields import TokenId, model_of
from .parameters import DETOKENIZE, TOKENIZE


class TokenizeCall(Struct, frozen=True):
    """prompt: a text, or a conversation to be rendered first. warnings, unknown: as in `Call`."""

    model: str
    prompt: Conversation | str
    add_special_tokens: bool
    return_token_strs: bool
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class DetokenizeCall(Struct, frozen=True):
    model: str
    tokens: tuple[int, ...]
    unknown: tuple[str, ...] = ()


class _Common(Struct, frozen=True, kw_only=True):
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class _TextBody(_Common, frozen=True, kw_only=True):
    prompt: str


class _DetokenizeBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


_COMMON, _TEXT, _PROMPTING = Shape(_Common), Shape(_TextBody), Shape(Prompting)
_DETOKENIZE = Shape(_DetokenizeBody)


def read_tokenize(data: bytes, options: ReaderOptions) -> TokenizeCall:
    parsed = Body(data)
    if "messages" in parsed.fields and "prompt" in parsed.fields:
        raise RequestError("Send either 'prompt' or 'messages', not both.", param="prompt", code="invalid_value")
    return _tokenize_chat(parsed, options) if "messages" in parsed.fields else _tokenize_text(parsed, options)


def _tokenize_text(parsed: Body, options: ReaderOptions) -> TokenizeCall:
    if "prompt" not in parsed.fields:
        raise missing("prompt")
    body = parsed.read(_TEXT)
    warnings, unknown = TOKENIZE.judge(parsed.others(_TEXT.names))
    return TokenizeCall(
        model_of(body.model, options),
        body.prompt,
        body.add_special_tokens is not False,
        bool(body.return_token_strs),
        tuple(warnings),
        unknown,
    )


def _tokenize_chat(parsed: Body, options: ReaderOptions) -> TokenizeCall:
    body, prompting = parsed.read(_COMMON), parsed.read(_PROMPTING)
    warnings, unknown = TOKENIZE.judge(parsed.others(_COMMON.names, _PROMPTING.names))
    conversation = read_prompting(prompting, declared_tools(prompting.tools, warnings))
    return TokenizeCall(
        model_of(body.model, options),
        conversation,
        bool(body.add_special_tokens),
        bool(body.return_token_strs),
        tuple(warnings),
        unknown,
    )


def read_detokenize(data: bytes, options: ReaderOptions) -> DetokenizeCall:
    parsed = Body(data)
    body = parsed.read(_DETOKENIZE)
    _, unknown = DETOKENIZE.judge(parsed.others(_DETOKENIZE.names))
    return DetokenizeCall(model_of(body.model, options), tuple(body.tokens), unknown)
