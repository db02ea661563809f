"""The prompt as the model sees it: rendered by the chat template, tokenised, truncated where that was asked for.

Large prompts are worked on in a thread: the event loop serves others meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio.to_thread
import msgspec

from ..core.errors import RequestError, Unsupported
from ..core.events import AppliedEdit
from ..core.message import Text, Tool
from ..core.request import Conversation, GenerateRequest
from ..core.vision import ImageProcessor, PreparedImage
from ..prompts.render import ImagePlaceholders, Rendered, Renderer
from .admission import CallTerms
from .images import extract_images
from .models import TokenBackend

T = TypeVar("T")

MAX_INLINE_CHARS = 4096
"""Characters up to which the work is done on the loop: a thread's hop costs more than that."""


class EncodedPrompt(msgspec.Struct, frozen=True):
    """ids: at least one. tail: see ParseContext. ignored: what the client told the template in vain.

    dropped: how many messages were left out, see `fitting`. edited: see `editing`. images: in their order, made ready
    but not placed.
    """

    ids: tuple[int, ...]
    text: str
    prompt_tail: str = ""
    ignored_options: tuple[str, ...] = ()
    n_dropped: int = 0
    images: tuple[PreparedImage, ...] = ()
    applied_edits: tuple[AppliedEdit, ...] = ()


async def encode_prompt(backend: TokenBackend, request: GenerateRequest, terms: CallTerms) -> EncodedPrompt:
    """Raises RequestError for ids outside the vocabulary, an empty prompt, a template that refuses."""
    prompt = request.prompt
    if isinstance(prompt, tuple):
        check_ids(backend, prompt, "prompt")
        return EncodedPrompt(prompt, backend.tokenizer.decode(prompt))
    if isinstance(prompt, str):
        ids = await encode_text(backend, prompt, add_special_tokens=request.add_special_tokens)
        if not ids:
            raise RequestError("The prompt is empty: it has no tokens.", param="prompt")
        return EncodedPrompt(tuple(ids), prompt)
    rendered, images = await render_conversation(backend, prompt, terms)
    ids = add_special_tokens(backend, rendered.ids) if request.add_special_tokens else rendered.ids
    return EncodedPrompt(ids, rendered.text, rendered.tail, rendered.ignored_options, images=images)


def add_special_tokens(backend: TokenBackend, ids: tuple[int, ...]) -> tuple[int, ...]:
    """On top of what a chat template has written, what the tokenizer itself puts around a text (vLLM)."""
    wrapping = backend.tokenizer.wrapping
    return (*wrapping.prefix, *ids, *wrapping.suffix)


def check_ids(backend: TokenBackend, ids: tuple[int, ...], param: str) -> None:
    """Raises RequestError for an id that is not in the vocabulary."""
    size = backend.tokenizer.vocab_size
    invalid_id = next((id for id in ids if not 0 <= id < size), None)
    if invalid_id is not None:
        raise RequestError(f"Token id {invalid_id} is not in this model's vocabulary of {size}.", param=param)


async def encode_text(backend: TokenBackend, text: str, *, add_special_tokens: bool) -> list[int]:
    """A raw prompt's ids. Its author is the client, who may write control tokens in it."""
    encode_ids = backend.tokenizer.encode
    return await _run_off_loop(len(text), lambda: encode_ids(text, special=True, add_special_tokens=add_special_tokens))


async def render_conversation(
    backend: TokenBackend, conversation: Conversation, terms: CallTerms
) -> tuple[Rendered, tuple[PreparedImage, ...]]:
    """With its images, as the model will see them.

    Raises RequestError where the template refuses, or an image cannot be decoded, Unsupported where there is no
    template.
    """
    visible_tools = () if conversation.tool_choice.mode == "none" else None
    conversation, images = _extract_images(backend.vision, conversation)
    source = conversation.template.template
    if source is not None:
        return await _render_untrusted(backend, conversation, images, source, terms, visible_tools)

    def work() -> tuple[Rendered, tuple[PreparedImage, ...]]:
        renderer = _model_renderer(backend)
        read_images, placeholders = _read_images(backend.vision, images)
        prepared = _apply_effort(renderer, conversation)
        return renderer.render(prepared, now=terms.now, tools=visible_tools, placeholders=placeholders), read_images

    # Images have to be decoded.
    return await _run_off_loop(MAX_INLINE_CHARS + 1 if images else _estimate_size(conversation), work)


async def _render_untrusted(
    backend: TokenBackend,
    conversation: Conversation,
    images: list[bytes],
    source: str,
    terms: CallTerms,
    shown: tuple[Tool, ...] | None,
) -> tuple[Rendered, tuple[PreparedImage, ...]]:
    """With the template that the request brought along, which runs in a process of its own."""
    base, templates = _model_renderer(backend), backend.request_templates
    if templates is None:
        raise Unsupported(
            "This server does not take chat templates from requests (--trust-request-chat-template).",
            param="chat_template",
        )
    renderer = await templates.renderer(base, source)
    read, pictures = await anyio.to_thread.run_sync(_read_images, backend.vision, images)
    ready = _apply_effort(renderer, conversation)
    steps = renderer.steps(ready, now=terms.now, tools=shown, pictures=pictures)
    return await templates.render(renderer, steps), read


def _extract_images(vision: ImageProcessor | None, conversation: Conversation) -> tuple[Conversation, list[bytes]]:
    if vision is None:
        return conversation, []
    return extract_images(conversation, Text(vision.placeholder) if vision.uses_text_placeholder else None)


def _read_images(
    vision: ImageProcessor | None, images: Sequence[bytes]
) -> tuple[tuple[PreparedImage, ...], ImagePlaceholders | None]:
    if vision is None or not images:
        return (), None
    read_images = vision.prepare(images)
    return read_images, ImagePlaceholders(vision.placeholder, tuple(image.text for image in read_images))


def _apply_effort(renderer: Renderer, conversation: Conversation) -> Conversation:
    """A template that has a switch and no degrees thinks when any effort is asked for."""
    reasoning, features = conversation.reasoning, renderer.template.features
    if reasoning.effort is None or features.supports_reasoning_effort or not features.supports_thinking:
        return conversation
    enabled = reasoning.effort != "none" if reasoning.enabled is None else reasoning.enabled
    switched_reasoning = msgspec.structs.replace(reasoning, enabled=enabled, effort=None)
    return msgspec.structs.replace(conversation, reasoning=switched_reasoning)


async def _run_off_loop(n_chars: int, work: Callable[[], T]) -> T:
    return work() if n_chars <= MAX_INLINE_CHARS else await anyio.to_thread.run_sync(work)


def _model_renderer(backend: TokenBackend) -> Renderer:
    if backend.renderer is None:
        raise Unsupported("This model has no chat template; use /v1/completions.", param="messages")
    return backend.renderer


def _estimate_size(conversation: Conversation) -> int:
    """About how many characters the prompt will have; stops counting once they are many."""
    size = sum(len(msgspec.json.encode(tool)) for tool in conversation.tools)
    for message in conversation.messages:
        if size > MAX_INLINE_CHARS:
            return size
        size += len(msgspec.json.encode(message))
    return size


def truncate_prompt(encoded: EncodedPrompt, request: GenerateRequest, limit: int) -> EncodedPrompt:
    """Only the last tokens, as many as the client asked for; -1 are as many as leave room for the answer."""
    max_ids = request.limits.truncate_prompt
    if max_ids is None:
        return encoded
    if encoded.images:
        raise Unsupported("A prompt with images cannot be truncated.", param="truncate_prompt_tokens")
    if max_ids < 0:
        max_ids = limit - max(1, min(request.limits.max_tokens or 1, limit - 1))
    return msgspec.structs.replace(encoded, ids=encoded.ids[-max_ids:])
