"""vLLM's /tokenize, with its inverse /detokenize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Struct

from ..core.errors import RequestError
from ..core.request import Conversation
from .bounds import TokenId
from .chat.reader import add_messages, read_template_fields
from .chat.tool_reader import read_tools
from .chat.wire import CHAT_NESTED, CHAT_PROMPT, ChatMessageFields, ChatTemplateFields
from .field_errors import missing_parameter
from .generation_fields import resolve_model
from .interfaces import ReaderOptions
from .json_body import HELLO, JsonBody
from .json_encoding import replace_surrogates
from .parameter_table import Note, ParameterTable, accept, reject
from .request_body import BodySchema, ParsedBody


class TokenizeCall(Struct, frozen=True):
    """A parsed /tokenize request.

    prompt: a text, or a conversation that is rendered first.
    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    prompt: Conversation | str
    add_special_tokens: bool
    return_token_strs: bool
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class DetokenizeCall(Struct, frozen=True):
    """A parsed /detokenize request.

    return_token_strs: also return the text of each token.
    """

    model: str
    tokens: tuple[int, ...]
    return_token_strs: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class TokenizeFields(Struct, frozen=True, kw_only=True):
    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    add_special_tokens: Annotated[
        bool | None, Note("true by default for a prompt, false for messages")
    ] = None
    return_token_strs: bool | None = None


class TokenizeTextBody(TokenizeFields, frozen=True, kw_only=True):
    prompt: Annotated[str, Note("a string; alternative to messages")]


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    tokens: list[TokenId]
    return_token_strs: Annotated[
        bool | None, Note("each token's text, and which tokens are control tokens")
    ] = None


TOKENIZE = ParameterTable(
    "tokenize",
    (TokenizeTextBody, *CHAT_PROMPT),
    (
        *reject("media_io_kwargs", "media processing is configured by the server", {}),
        *reject("mm_processor_kwargs", "media processing is configured by the server", {}),
    ),
    notes=dict.fromkeys(
        [name for struct in CHAT_PROMPT for name in struct.__struct_fields__], "as in chat"
    ),
)
DETOKENIZE = ParameterTable(
    "detokenize",
    (DetokenizeBody,),
    accept("skip_special_tokens", note="ignored, as in vLLM: every token is decoded"),
)


TOKENIZE_TEXT = JsonBody(
    "TokenizeTextRequest", (TokenizeTextBody,), TOKENIZE, example={"prompt": "Hello"}
)
TOKENIZE_CHAT = JsonBody(
    "TokenizeChatRequest", (*CHAT_PROMPT, TokenizeFields), TOKENIZE, example={"messages": HELLO}
)
DETOKENIZE_REQUEST = JsonBody(
    "DetokenizeRequest", (DetokenizeBody,), DETOKENIZE, example={"tokens": [5, 6, 7]}
)

_COMMON = BodySchema(TokenizeFields)
_TEXT = BodySchema(TokenizeTextBody)
_MESSAGES = BodySchema(ChatMessageFields, CHAT_NESTED)
_TEMPLATE_FIELDS = BodySchema(ChatTemplateFields, CHAT_NESTED)
_DETOKENIZE = BodySchema(DetokenizeBody)


def read_tokenize(data: bytes, options: ReaderOptions) -> TokenizeCall:
    parsed = ParsedBody(data)
    # Typed clients send null for the one of the two that they do not use.
    has_prompt, has_messages = (
        bytes(parsed.fields.get(name, b"null")) != b"null" for name in ("prompt", "messages")
    )
    if has_prompt and has_messages:
        raise RequestError(
            "Send either 'prompt' or 'messages', not both.", param="prompt", code="invalid_value"
        )
    if has_messages:
        body = parsed.decode(_COMMON)
        messages = parsed.decode(_MESSAGES)
        prompting = parsed.decode(_TEMPLATE_FIELDS)
        warnings, unknown = TOKENIZE.classify_body(parsed, _COMMON, _MESSAGES, _TEMPLATE_FIELDS)
        prompt = add_messages(
            read_template_fields(prompting, read_tools(prompting.tools or (), warnings)),
            messages.messages,
            warnings,
            asks_generation=bool(prompting.add_generation_prompt),
        )
        add_special_tokens = bool(body.add_special_tokens)
    elif has_prompt:
        body = parsed.decode(_TEXT)
        warnings, unknown = TOKENIZE.classify_body(parsed, _TEXT)
        prompt = body.prompt
        add_special_tokens = body.add_special_tokens is not False
    else:
        raise missing_parameter("prompt")
    return TokenizeCall(
        resolve_model(body.model, options),
        prompt,
        add_special_tokens,
        bool(body.return_token_strs),
        tuple(warnings),
        unknown,
    )


def read_detokenize(data: bytes, options: ReaderOptions) -> DetokenizeCall:
    parsed = ParsedBody(data)
    body = parsed.decode(_DETOKENIZE)
    warnings, unknown = DETOKENIZE.classify_body(parsed, _DETOKENIZE)
    return DetokenizeCall(
        resolve_model(body.model, options),
        tuple(body.tokens),
        bool(body.return_token_strs),
        tuple(warnings),
        unknown,
    )


class TokenizeResponse(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


class DetokenizeResponse(Struct, frozen=True, omit_defaults=True):
    """A decoded text.

    token_strs: each token's text, if requested; an extension to vLLM.
    control_tokens: ids of the control tokens among them, ascending, if requested; an
        extension to vLLM.
    """

    prompt: str
    token_strs: Sequence[str] | None = None
    control_tokens: Sequence[int] | None = None


def render_tokenize(
    tokens: Sequence[int], max_model_len: int, strings: Sequence[str] | None = None
) -> bytes:
    """Render a response. strings: each token's text, if `return_token_strs` requested
    it.
    """
    texts = None if strings is None else [replace_surrogates(text) for text in strings]
    return msgspec.json.encode(TokenizeResponse(len(tokens), max_model_len, tokens, texts))


def render_detokenize(
    prompt: str, strings: Sequence[str] | None = None, control_tokens: Sequence[int] | None = None
) -> bytes:
    """Render a response. strings, control_tokens: if `return_token_strs` requested
    them.
    """
    texts = None if strings is None else [replace_surrogates(text) for text in strings]
    return msgspec.json.encode(
        DetokenizeResponse(replace_surrogates(prompt), texts, control_tokens)
    )
