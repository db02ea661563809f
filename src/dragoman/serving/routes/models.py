"""Utility routes: models, tokenization, health, version."""

from __future__ import annotations

import anyio.to_thread
import msgspec

from ... import __version__
from ...core.errors import RequestError, Unsupported
from ...core.request import GenerateRequest
from ...dialects.anthropic import read_count_tokens, render_count_tokens
from ...dialects.models import ModelCard, render_model, render_model_list
from ...dialects.tokenize import read_detokenize, read_tokenize, render_detokenize, render_tokenize
from ...pipeline.admission import check_countable
from ...pipeline.context_edits import build_edited_prompt
from ...pipeline.models import ModelDetails, ModelSlot, ServedModel, TokenBackend, is_name_pattern
from ...pipeline.prompt_encoding import add_special_tokens, render_conversation
from ..context import build_owner_files
from ..disconnect import cancel_on_disconnect
from ..endpoint import HttpRequest, JsonResponse
from ..generate import build_reader_options, build_terms, collect_warnings, reject_unknown_fields
from ..streaming import Responder
from .messages import expand_thread

MAX_DETOKENIZED = 131_072
"""Maximum ids in one call, unless the model's context is longer."""


async def list_models(http: HttpRequest) -> JsonResponse | Responder:
    """List names, aliases and adapters. Alias patterns are omitted, since they are not names of a model."""
    slots = http.service.models.slots
    names = [(slot, name) for slot in slots for name in (slot.name, *slot.aliases) if not is_name_pattern(name)]
    slot_adapters = ((slot, slot.model.adapters) for slot in slots if slot.model is not None)
    names += [(slot, adapter.name) for slot, adapters in slot_adapters for adapter in adapters or ()]
    cards = [_build_card(slot, name) for slot, name in names]
    return JsonResponse(render_model_list(cards, http.service.options.profile))


async def show_model(http: HttpRequest) -> JsonResponse | Responder:
    name = http.path_params["model"]
    return JsonResponse(
        render_model(_build_card(http.service.models.find_slot(name), name), http.service.options.profile)
    )


def _build_card(slot: ModelSlot, name: str) -> ModelCard:
    """Capabilities are known only once the model has been loaded."""
    model, summary = slot.model, slot.summary
    details = ModelDetails() if summary is None else summary.details
    return ModelCard(
        id=name,
        created=slot.created,
        owned_by="dragoman" if model is None else model.owned_by,
        root=slot.name if model is None else _find_root(model, name),
        parent=None if name == slot.name else slot.name,
        max_model_len=None if summary is None else summary.max_model_len,
        state=slot.status,
        aliases=slot.aliases,
        capabilities=None if summary is None else summary.capabilities,
        engine=details.engine,
        quantization=details.quantization,
        revision=slot.revision,
        size=details.size,
        parameters=details.parameters,
        trained_length=details.trained_length,
        vocab_size=None if summary is None else summary.vocab_size,
        progress=slot.download_progress,
    )


def _find_root(model: ServedModel, name: str) -> str:
    """The path of an adapter, or else the root model."""
    path = next((adapter.path for adapter in model.adapters or () if adapter.name == name), None)
    return path or model.root or model.name


async def tokenize(http: HttpRequest) -> JsonResponse | Responder:
    call = read_tokenize(await http.read_json(), http.service.reader_options)
    reject_unknown_fields(call.unknown, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    prompt = call.prompt
    if isinstance(prompt, str):
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise _build_no_tokenizer_error()
        check_countable(prompt, model.max_model_len, tokenizer.longest_token)
        encode = tokenizer.encode
        ids = await anyio.to_thread.run_sync(
            lambda: encode(prompt, special=True, add_special_tokens=call.add_special_tokens)
        )
    elif isinstance(model.backend, TokenBackend):
        check_countable(prompt, model.max_model_len, model.backend.tokenizer.longest_token)
        conversation = await http.service.media.resolve_conversation(build_owner_files(http), model, prompt)
        rendering = render_conversation(model.backend, conversation, build_terms(http, http.id))
        rendered = (await cancel_on_disconnect(http.on_disconnect, rendering))[0].ids
        ids = list(add_special_tokens(model.backend, rendered) if call.add_special_tokens else rendered)
    else:
        raise Unsupported("This model's engine does not render conversations; send `prompt`.", param="messages")
    strings = [_decode_token(model, id) for id in ids] if call.return_token_strs else None
    return JsonResponse(render_tokenize(ids, model.max_model_len, strings))


async def count_tokens(http: HttpRequest) -> JsonResponse | Responder:
    """Return the exact prompt length of the same call."""
    body, _ = await expand_thread(http, await http.read_json())
    call = read_count_tokens(body, build_reader_options(http))
    warnings = collect_warnings(call, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    if not isinstance(model.backend, TokenBackend):
        raise Unsupported("This model's engine does not support counting tokens.", param="model")
    check_countable(call.conversation, model.max_model_len, model.backend.tokenizer.longest_token)
    conversation = await http.service.media.resolve_conversation(build_owner_files(http), model, call.conversation)
    request = GenerateRequest(model.name, conversation, add_special_tokens=False)
    _, prompted = await build_edited_prompt(model.backend, request, build_terms(http, http.id))
    original = len(prompted.ids) + sum(edit.tokens for edit in prompted.applied_edits)
    return JsonResponse(
        render_count_tokens(len(prompted.ids), original if call.reports_edits else None), warnings=warnings
    )


async def detokenize(http: HttpRequest) -> JsonResponse | Responder:
    call = read_detokenize(await http.read_json(), http.service.reader_options)
    reject_unknown_fields(call.unknown, strict=http.service.options.strict)
    model = await http.service.models.load_and_find(call.model)
    tokenizer, max_ids = model.tokenizer, max(MAX_DETOKENIZED, model.max_model_len)
    if tokenizer is None:
        raise _build_no_tokenizer_error()
    if len(call.tokens) > max_ids:
        message = f"`tokens` has {len(call.tokens)} ids; at most {max_ids} are decoded at a time."
        raise RequestError(message, param="tokens")
    invalid_id = next((id for id in call.tokens if not 0 <= id < tokenizer.vocab_size), None)
    if invalid_id is not None:
        raise RequestError(f"Token id {invalid_id} is not in a vocabulary of {tokenizer.vocab_size}.", param="tokens")
    return JsonResponse(render_detokenize(await anyio.to_thread.run_sync(tokenizer.decode, call.tokens)))


def _decode_token(model: ServedModel, id: int) -> str:
    assert model.tokenizer is not None
    return model.tokenizer.token_bytes(id).decode("utf-8", "replace")


def _build_no_tokenizer_error() -> Unsupported:
    return Unsupported("This model's engine does not provide its tokenizer.", param="model")


async def check_health(http: HttpRequest) -> JsonResponse | Responder:
    """Return 200 with an empty body if all engines are ready, as vLLM does; otherwise 503 and the reason."""
    if http.service.models.is_closed:
        return JsonResponse(msgspec.json.encode({"reason": "the server is shutting down"}), 503)
    limit = http.service.options.progress_timeout
    for slot in http.service.models.slots:
        if slot.is_starting:
            return JsonResponse(msgspec.json.encode({"model": slot.name, "reason": f"the model is {slot.status}"}), 503)
        if slot.stalled_for > limit:
            running = 0 if slot.model is None else slot.model.progress.running
            reason = f"{running} requests are running, and nothing has come of them for {slot.stalled_for:.0f} s"
            return JsonResponse(msgspec.json.encode({"model": slot.name, "reason": reason}), 503)
    for model in http.service.models:
        for engine in model.engines:
            state = engine.health()
            if not state.ready:
                return JsonResponse(msgspec.json.encode({"model": model.name, "reason": state.reason}), 503)
    return JsonResponse(b"")


async def live(_: HttpRequest) -> JsonResponse | Responder:
    """Liveness: 200 with an empty body as long as the process responds, also during shutdown."""
    return JsonResponse(b"")


INDEX_TEXT = f"""\
Dragoman {__version__}, an inference API server.

OpenAI's clients      base_url = this address, followed by /v1
Anthropic's clients   base_url = this address
its models            GET /v1/models
its state             GET /health
"""
"""The index page for browsers."""


async def show_index(_: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(INDEX_TEXT.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))


async def show_version(_: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode({"version": __version__}))
