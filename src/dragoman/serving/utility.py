"""Handlers of the routes that generate nothing: models, tokenising, health."""

from __future__ import annotations

import anyio.to_thread
import msgspec

from .. import __version__
from ..core.errors import RequestError, Unsupported
from ..core.request import GenerateRequest
from ..dialects.anthropic import count_tokens_answer, read_count_tokens
from ..dialects.models import ModelCard, model_list, model_object
from ..dialects.tokenize import detokenize_answer, read_detokenize, read_tokenize, tokenize_answer
from ..pipeline.admission import check_countable
from ..pipeline.editing import edited_prompt
from ..pipeline.models import Place, ServedModel, TokenBackend, is_pattern
from ..pipeline.prompting import framed, render_conversation
from .answer import Answer
from .endpoint import Http, Whole
from .generate import reading, refuse_unknown, terms, what_is_ignored
from .leaving import unless_gone
from .party import files_of
from .threads import whole_conversation

MAX_DETOKENIZED = 131_072
"""Ids in one call, unless the model's context holds more."""


async def list_models(http: Http) -> Whole | Answer:
    """Patterns are no names that a client could ask for."""
    places = http.service.models.places
    names = [(place, name) for place in places for name in (place.name, *place.aliases) if not is_pattern(name)]
    adapted = ((place, place.model.adapters) for place in places if place.model is not None)
    names += [(place, adapter.name) for place, adapters in adapted for adapter in adapters or ()]
    cards = [_card(place, name) for place, name in names]
    return Whole(model_list(cards, http.service.options.profile))


async def show_model(http: Http) -> Whole | Answer:
    name = http.path_params["model"]
    return Whole(model_object(_card(http.service.models.place(name), name), http.service.options.profile))


def _card(place: Place, name: str) -> ModelCard:
    """What one that is not loaded can do is known once it has been."""
    model, traits = place.model, place.traits
    return ModelCard(
        id=name,
        created=place.created,
        owned_by="dragoman" if model is None else model.owned_by,
        root=place.name if model is None else _root(model, name),
        parent=None if name == place.name else place.name,
        max_model_len=None if traits is None else traits.max_model_len,
        state=place.state.value,
        aliases=place.aliases,
        abilities=None if traits is None else traits.abilities,
    )


def _root(model: ServedModel, name: str) -> str:
    """Of an adapter: where it lies."""
    path = next((adapter.path for adapter in model.adapters or () if adapter.name == name), None)
    return path or model.root or model.name


async def tokenize(http: Http) -> Whole | Answer:
    call = read_tokenize(await http.json(), http.service.reading)
    refuse_unknown(call.unknown, strict=http.service.options.strict)
    model = await http.service.models.ready(call.model)
    prompt = call.prompt
    if isinstance(prompt, str):
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise _no_tokenizer()
        check_countable(prompt, model.max_model_len, tokenizer.longest_token)
        encode = tokenizer.encode
        ids = await anyio.to_thread.run_sync(
            lambda: encode(prompt, special=True, add_special_tokens=call.add_special_tokens)
        )
    elif isinstance(model.backend, TokenBackend):
        check_countable(prompt, model.max_model_len, model.backend.tokenizer.longest_token)
        talk = await http.service.media.in_conversation(files_of(http), model, prompt)
        rendering = render_conversation(model.backend, talk, terms(http, http.id))
        rendered = (await unless_gone(http.watch, rendering))[0].ids
        ids = list(framed(model.backend, rendered) if call.add_special_tokens else rendered)
    else:
        raise Unsupported("This model's engine does not render conversations; send `prompt`.", param="messages")
    strings = [_text(model, id) for id in ids] if call.return_token_strs else None
    return Whole(tokenize_answer(ids, model.max_model_len, strings))


async def count_tokens(http: Http) -> Whole | Answer:
    """Exactly what the prompt of the same call would be."""
    body, _ = await whole_conversation(http, await http.json())
    call = read_count_tokens(body, reading(http))
    warnings = what_is_ignored(call, strict=http.service.options.strict)
    model = await http.service.models.ready(call.model)
    if not isinstance(model.backend, TokenBackend):
        raise Unsupported("This model's engine does not support counting tokens.", param="model")
    check_countable(call.conversation, model.max_model_len, model.backend.tokenizer.longest_token)
    talk = await http.service.media.in_conversation(files_of(http), model, call.conversation)
    request = GenerateRequest(model.name, talk, add_special_tokens=False)
    _, prompted = await edited_prompt(model.backend, request, terms(http, http.id))
    original = len(prompted.ids) + sum(edit.tokens for edit in prompted.edited)
    return Whole(count_tokens_answer(len(prompted.ids), original if call.tells_edits else None), warnings=warnings)


async def detokenize(http: Http) -> Whole | Answer:
    call = read_detokenize(await http.json(), http.service.reading)
    refuse_unknown(call.unknown, strict=http.service.options.strict)
    model = await http.service.models.ready(call.model)
    tokenizer, most = model.tokenizer, max(MAX_DETOKENIZED, model.max_model_len)
    if tokenizer is None:
        raise _no_tokenizer()
    if len(call.tokens) > most:
        message = f"`tokens` has {len(call.tokens)} ids; at most {most} are decoded at a time."
        raise RequestError(message, param="tokens")
    wrong = next((id for id in call.tokens if not 0 <= id < tokenizer.vocab_size), None)
    if wrong is not None:
        raise RequestError(f"Token id {wrong} is not in a vocabulary of {tokenizer.vocab_size}.", param="tokens")
    return Whole(detokenize_answer(await anyio.to_thread.run_sync(tokenizer.decode, call.tokens)))


def _text(model: ServedModel, id: int) -> str:
    assert model.tokenizer is not None
    return model.tokenizer.token_bytes(id).decode("utf-8", "replace")


def _no_tokenizer() -> Unsupported:
    return Unsupported("This model's engine does not provide its tokenizer.", param="model")


async def health(http: Http) -> Whole | Answer:
    """200 with an empty body when every engine takes work, as vLLM; 503 and the reason otherwise."""
    if http.service.models.closed:
        return Whole(msgspec.json.encode({"reason": "the server is shutting down"}), 503)
    limit = http.service.options.progress_timeout
    for place in http.service.models.places:
        if place.stalled_for > limit:
            running = 0 if place.model is None else place.model.progress.running
            reason = f"{running} requests are running, and nothing has come of them for {place.stalled_for:.0f} s"
            return Whole(msgspec.json.encode({"model": place.name, "reason": reason}), 503)
    for model in http.service.models:
        for engine in model.engines:
            state = engine.health()
            if not state.ready:
                return Whole(msgspec.json.encode({"model": model.name, "reason": state.reason}), 503)
    return Whole(b"")


async def live(_: Http) -> Whole | Answer:
    """200 with an empty body as long as the process answers, whatever its engines do and also while it shuts down."""
    return Whole(b"")


FRONT = f"""\
Dragoman {__version__}, an inference API server.

OpenAI's clients      base_url = this address, followed by /v1
Anthropic's clients   base_url = this address
its models            GET /v1/models
its state             GET /health
"""
"""For whoever opens the address in a browser."""


async def front(_: Http) -> Whole | Answer:
    return Whole(FRONT.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))


async def version(_: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode({"version": __version__}))
