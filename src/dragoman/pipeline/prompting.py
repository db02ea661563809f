"""The prompt as the model sees it: rendered by the chat template, tokenised, truncated where that was asked for.

Large prompts are worked on in a thread: the event loop serves others meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio.to_thread
import msgspec

from ..core.errors import RequestError, Unsupported
from ..core.events import Edited
from ..core.message import Text
from ..core.request import Conversation, GenerateRequest
from ..core.vision import ReadImage, Vision
from ..prompts.render import Pictures, Rendered, Renderer
from .admission import Terms
from .images import apart
from .models import TokenBackend

T = TypeVar("T")

INLINE = 4096
"""Characters up to which the work is done on the loop: a thread's hop costs more than that."""


class Prompted(msgspec.Struct, frozen=True):
    """ids: at least one. tail: see ParseContext. ignored: what the client told the template in vain.

    dropped: how many messages were left out, see `fitting`. edited: see `editing`. images: in their order, made ready
    but not placed.
    """

    ids: tuple[int, ...]
    text: str
    tail: str = ""
    ignored: tuple[str, ...] = ()
    dropped: int = 0
    images: tuple[ReadImage, ...] = ()
    edited: tuple[Edited, ...] = ()


async def prompt_of(backend: TokenBackend, request: GenerateRequest, terms: Terms) -> Prompted:
    """Raises RequestError for ids outside the vocabulary, an empty prompt, a template that refuses."""
    prompt = request.prompt
    if isinstance(prompt, tuple):
        check_ids(backend, prompt, "prompt")
        return Prompted(prompt, backend.tokenizer.decode(prompt))
    if isinstance(prompt, str):
        ids = await encode(backend, prompt, add_special_tokens=request.add_special_tokens)
        if not ids:
            raise RequestError("The prompt is empty: it has no tokens.", param="prompt")
        return Prompted(tuple(ids), prompt)
    rendered, images = await render_conversation(backend, prompt, terms)
    ids = framed(backend, rendered.ids) if request.add_special_tokens else rendered.ids
    return Prompted(ids, rendered.text, rendered.tail, rendered.ignored, images=images)


def framed(backend: TokenBackend, ids: tuple[int, ...]) -> tuple[int, ...]:
    """On top of what a chat template has written, what the tokenizer itself puts around a text (vLLM)."""
    frame = backend.tokenizer.frame
    return (*frame.before, *ids, *frame.after)


def check_ids(backend: TokenBackend, ids: tuple[int, ...], param: str) -> None:
    """Raises RequestError for an id that is not in the vocabulary."""
    size = backend.tokenizer.vocab_size
    wrong = next((id for id in ids if not 0 <= id < size), None)
    if wrong is not None:
        raise RequestError(f"Token id {wrong} is not in this model's vocabulary of {size}.", param=param)


async def encode(backend: TokenBackend, text: str, *, add_special_tokens: bool) -> list[int]:
    """A raw prompt's ids. Its author is the client, who may write control tokens in it."""
    encode = backend.tokenizer.encode
    return await _off_loop(len(text), lambda: encode(text, special=True, add_special_tokens=add_special_tokens))


async def render_conversation(
    backend: TokenBackend, conversation: Conversation, terms: Terms
) -> tuple[Rendered, tuple[ReadImage, ...]]:
    """With its images, as the model will see them.

    Raises RequestError where the template refuses, or an image cannot be decoded, Unsupported where there is no
    template.
    """
    shown = () if conversation.tool_choice.mode == "none" else None
    conversation, images = _apart(backend.vision, conversation)

    def work() -> tuple[Rendered, tuple[ReadImage, ...]]:
        renderer = _renderer(backend, conversation.template.template)
        read, pictures = _seen(backend.vision, images)
        ready = _with_effort(renderer, conversation)
        return renderer.render(ready, now=terms.now, tools=shown, pictures=pictures), read

    # A template that a request brings along has to be compiled first, and images have to be decoded.
    slow = images or conversation.template.template is not None
    return await _off_loop(INLINE + 1 if slow else _size(conversation), work)


def _apart(vision: Vision | None, conversation: Conversation) -> tuple[Conversation, list[bytes]]:
    if vision is None:
        return conversation, []
    return apart(conversation, Text(vision.placeholder) if vision.in_text else None)


def _seen(vision: Vision | None, images: Sequence[bytes]) -> tuple[tuple[ReadImage, ...], Pictures | None]:
    if vision is None or not images:
        return (), None
    read = vision.read(images)
    return read, Pictures(vision.placeholder, tuple(image.text for image in read))


def _with_effort(renderer: Renderer, conversation: Conversation) -> Conversation:
    """A template that has a switch and no degrees thinks when any effort is asked for."""
    asked, traits = conversation.reasoning, renderer.template.traits
    if asked.effort is None or traits.reasoning_effort or not traits.enable_thinking:
        return conversation
    enabled = asked.effort != "none" if asked.enabled is None else asked.enabled
    switched = msgspec.structs.replace(asked, enabled=enabled, effort=None)
    return msgspec.structs.replace(conversation, reasoning=switched)


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= INLINE else await anyio.to_thread.run_sync(work)


def _renderer(backend: TokenBackend, source: str | None) -> Renderer:
    """The model's own, or one with the template that the request brought along."""
    if backend.renderer is None:
        raise Unsupported("This model has no chat template; use /v1/completions.", param="messages")
    if source is None:
        return backend.renderer
    if not backend.trust_templates:
        raise Unsupported(
            "This server does not accept chat templates in requests (--trust-request-chat-template).",
            param="chat_template",
        )
    return backend.renderer.variant(source)


def _size(conversation: Conversation) -> int:
    """About how many characters the prompt will have; stops counting once they are many."""
    size = sum(len(msgspec.json.encode(tool)) for tool in conversation.tools)
    for message in conversation.messages:
        if size > INLINE:
            return size
        size += len(msgspec.json.encode(message))
    return size


def truncated(prompted: Prompted, request: GenerateRequest, limit: int) -> Prompted:
    """Only the last tokens, as many as the client asked for; -1 are as many as leave room for the answer."""
    keep = request.limits.truncate_prompt
    if keep is None:
        return prompted
    if prompted.images:
        raise Unsupported("A prompt with images cannot be truncated.", param="truncate_prompt_tokens")
    if keep < 0:
        keep = limit - max(1, min(request.limits.max_tokens or 1, limit - 1))
    return msgspec.structs.replace(prompted, ids=prompted.ids[-keep:])
