"""Routes of a model's tokenizer, as in vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.errors import NotFound, RequestError, Unsupported
from ...core.request import GenerateRequest
from ...core.request_checks import check_ids
from ...core.tokenizer import RemoteTokenizer, Tokenizer
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.tokenize import (
    DETOKENIZE_REQUEST,
    TOKENIZE_CHAT,
    TOKENIZE_TEXT,
    DetokenizeResponse,
    TokenizeCall,
    TokenizeResponse,
    read_detokenize,
    read_tokenize,
    render_detokenize,
    render_tokenize,
)
from ...pipeline.engine_backends import TokenBackend
from ...pipeline.prompt_encoding import add_special_tokens, render_conversation
from ...pipeline.prompt_length import check_countable
from ...pipeline.served_model import ServedModel
from ...prompts.tokenizer_info import TokenizerInfo
from ..api_description import MODEL, response
from ..client_warnings import collect_warnings
from ..disconnect import cancel_on_disconnect
from ..encoding_call import render_in_thread_if_large
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..queried_model import find_queried_model
from ..request_context import build_owner_files
from ..request_terms import build_terms, find_queue_share
from ..responder import Responder
from ..route import Route, RouteGroup

MAX_DETOKENIZED = 131_072
"""Maximum number of ids in one call, unless the model's context is longer."""


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Tokens", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/tokenize",
        tokenize,
        "Tokenize a text or a conversation",
        response(TokenizeResponse),
        bodies=(TOKENIZE_TEXT, TOKENIZE_CHAT),
    )
    routes.add(
        "POST",
        "/detokenize",
        detokenize,
        "Decode token ids",
        response(DetokenizeResponse),
        bodies=(DETOKENIZE_REQUEST,),
    )
    routes.add(
        "GET",
        "/tokenizer_info",
        show_tokenizer_info,
        "Show the tokenizer's settings",
        response(TokenizerInfo),
        query=(MODEL,),
    )
    return routes.build()


async def tokenize(http: HttpRequest) -> JsonResponse | Responder:
    call = read_tokenize(await http.read_json(), http.service.generation.reader_options)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    with model.keep_loaded():
        ids, remote_strings = await _tokenize_prompt(http, model, call)

    def write() -> bytes:
        strings = remote_strings
        if call.return_token_strs and strings is None:
            assert model.tokenizer is not None, (
                "a conversation is rendered by a model with a tokenizer"
            )
            strings = _list_token_texts(model.tokenizer, ids)
        return render_tokenize(ids, model.max_model_len, strings)

    return JsonResponse(await render_in_thread_if_large(write, len(ids)), warnings=warnings)


async def _tokenize_prompt(
    http: HttpRequest, model: ServedModel, call: TokenizeCall
) -> tuple[list[int], list[str] | None]:
    """Return the prompt's ids, and the tokens' texts if an upstream has returned them.

    Raises:
        RequestError: the prompt is too long, or the model cannot tokenize it.
    """
    prompt = call.prompt
    if (remote := _find_remote_tokenizer(model)) is not None:
        if not isinstance(prompt, str):
            prompt = await http.service.generation.media.resolve_conversation(
                build_owner_files(http), model, prompt
            )
        request = GenerateRequest(model.name, prompt, add_special_tokens=call.add_special_tokens)
        work = remote.tokenize_prompt(request, with_texts=call.return_token_strs)
        tokenized = await cancel_on_disconnect(http.on_disconnect, work)
        return list(tokenized.ids), None if tokenized.texts is None else list(tokenized.texts)
    if isinstance(prompt, str):
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise _build_no_tokenizer_error()
        # A text that cannot fit into the context is rejected before it is tokenized,
        # because that would take long.
        check_countable(prompt, model.max_model_len, tokenizer.longest_token)
        encode = tokenizer.encode
        ids = await find_queue_share(http).run_in_thread(
            lambda: encode(prompt, special=True, add_special_tokens=call.add_special_tokens)
        )
        return ids, None
    if isinstance(model.backend, TokenBackend):
        check_countable(prompt, model.max_model_len, model.backend.tokenizer.longest_token)
        conversation = await http.service.generation.media.resolve_conversation(
            build_owner_files(http), model, prompt
        )
        rendering = render_conversation(model.backend, conversation, build_terms(http, http.id))
        prompt_ids = (await cancel_on_disconnect(http.on_disconnect, rendering))[0].ids
        ids = (
            add_special_tokens(model.backend, prompt_ids) if call.add_special_tokens else prompt_ids
        )
        return list(ids), None
    raise Unsupported(
        "This model's engine does not render conversations; send `prompt`.", param="messages"
    )


async def detokenize(http: HttpRequest) -> JsonResponse | Responder:
    call = read_detokenize(await http.read_json(), http.service.generation.reader_options)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    tokenizer = model.tokenizer
    max_ids = max(MAX_DETOKENIZED, model.max_model_len)
    remote = _find_remote_tokenizer(model)
    if tokenizer is None and remote is None:
        raise _build_no_tokenizer_error()
    if len(call.tokens) > max_ids:
        message = f"`tokens` has {len(call.tokens)} ids; at most {max_ids} are decoded at a time."
        raise RequestError(message, param="tokens")
    if tokenizer is None:
        assert remote is not None, "checked above"
        if call.return_token_strs:
            raise Unsupported(
                "An upstream does not return the tokens' texts.", param="return_token_strs"
            )
        with model.keep_loaded():
            text = await cancel_on_disconnect(http.on_disconnect, remote.detokenize(call.tokens))
        return JsonResponse(render_detokenize(text), warnings=warnings)
    check_ids(call.tokens, tokenizer.vocab_size, "tokens")
    text = await find_queue_share(http).run_in_thread(lambda: tokenizer.decode(call.tokens))
    if not call.return_token_strs:
        return JsonResponse(render_detokenize(text), warnings=warnings)

    def write() -> bytes:
        control_tokens = sorted(set(call.tokens).intersection(tokenizer.special_tokens.values()))
        return render_detokenize(text, _list_token_texts(tokenizer, call.tokens), control_tokens)

    return JsonResponse(await render_in_thread_if_large(write, len(call.tokens)), warnings=warnings)


def _find_remote_tokenizer(model: ServedModel) -> RemoteTokenizer | None:
    """Return the tokenizer of an upstream if the model has no local tokenizer."""
    return model.interfaces.remote_tokenizer if model.tokenizer is None else None


def _list_token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.token_bytes(id).decode("utf-8", "replace") for id in ids]


def _build_no_tokenizer_error() -> Unsupported:
    return Unsupported("This model's engine does not provide its tokenizer.", param="model")


async def show_tokenizer_info(http: HttpRequest) -> JsonResponse | Responder:
    """Show the tokenizer of the model in the query, or of the default model."""
    model = await find_queried_model(http)
    if model.tokenizer_info is None:
        raise NotFound(
            "This model's engine does not provide its tokenizer.", code="unsupported_endpoint"
        )
    return JsonResponse(msgspec.json.encode(model.tokenizer_info))
