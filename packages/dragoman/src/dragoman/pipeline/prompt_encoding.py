"""Encoding of prompts: renders the chat template, then tokenizes.

Large prompts are encoded in a thread, so that the event loop stays responsive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from ..core.errors import RequestError, Unsupported
from ..core.events import AppliedEdit
from ..core.message import (
    Audio,
    File,
    Image,
    InlineMedia,
    Message,
    Part,
    Text,
    Tool,
    ToolResult,
)
from ..core.prompt_images import ImageProcessor, PreparedImage
from ..core.request import Conversation, GenerateRequest
from ..core.request_checks import check_ids
from ..prompts.render import ImagePlaceholders, Renderer
from ..prompts.rendered import Rendered
from .call_terms import CallTerms
from .capability_checks import iterate_parts
from .engine_backends import TokenBackend
from .infill_encoding import encode_infill
from .request_queue import QueueShare

REUSED_IDS = "prompt_token_ids"
"""The field of `kv_transfer_params` in which vLLM sends the prompt's token ids."""

# A template needs only the positions of images; their data never passes through it.
_EMPTY_IMAGE = Image(InlineMedia(b""))
MAX_INLINE_CHARS = 4096
"""Maximum characters of a prompt that is encoded on the event loop; for so few a thread
switch costs more.
"""


class EncodedPrompt(msgspec.Struct, frozen=True):
    """An encoded prompt.

    ids: the token ids, at least one.
    text: the rendered text.
    prompt_tail: see ParseContext.
    ignored_options: template options of the request that the template does not read.
    n_dropped: number of messages left out, see `build_fitting_prompt`.
    images: the images in order, preprocessed but not yet located in the ids.
    applied_edits: see `build_edited_prompt`.
    end_ids: tokens besides end-of-sequence that end an answer to this prompt.
    """

    ids: tuple[int, ...]
    text: str
    prompt_tail: str = ""
    ignored_options: tuple[str, ...] = ()
    n_dropped: int = 0
    images: tuple[PreparedImage, ...] = ()
    applied_edits: tuple[AppliedEdit, ...] = ()
    end_ids: frozenset[int] = frozenset()


async def encode_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms
) -> EncodedPrompt:
    """Encode the prompt.

    Raises:
        RequestError: an id is outside the vocabulary, the prompt is empty, or the
            template rejects it.
    """
    prompt = request.prompt
    if request.suffix is not None:
        infill = await encode_infill(backend, request, terms.queue_share)
        text = backend.tokenizer.decode(infill.ids)
        return EncodedPrompt(infill.ids, text, end_ids=frozenset(infill.stop_ids))
    if isinstance(prompt, tuple):
        check_ids(prompt, backend.tokenizer.vocab_size, "prompt")
        return EncodedPrompt(prompt, backend.tokenizer.decode(prompt))
    if isinstance(prompt, str):
        ids = await encode_text(
            backend, prompt, terms.queue_share, add_special_tokens=request.add_special_tokens
        )
        if not ids:
            raise RequestError("The prompt is empty: it has no tokens.", param="prompt")
        return EncodedPrompt(tuple(ids), prompt)
    reused_ids = None if request.extras.kv_transfer_params is None else read_reused_ids(request)
    rendered, images = await render_conversation(backend, prompt, terms)
    if reused_ids is not None:
        # Only the parsers need the rendered text, to know whether it opens reasoning.
        check_ids(reused_ids, backend.tokenizer.vocab_size, f"kv_transfer_params.{REUSED_IDS}")
        text = backend.tokenizer.decode(reused_ids)
        return EncodedPrompt(reused_ids, text, rendered.tail, rendered.ignored_options)
    ids = add_special_tokens(backend, rendered.ids) if request.add_special_tokens else rendered.ids
    if prompt.preceding_ids:
        check_ids(prompt.preceding_ids, backend.tokenizer.vocab_size, "context")
        # The tokens that begin a text, such as BOS, are not repeated after an earlier
        # prompt.
        beginning = backend.tokenizer.wrapping.prefix
        size = len(beginning)
        repeats_beginning = prompt.preceding_ids[:size] == beginning == ids[:size]
        ids = (*prompt.preceding_ids, *(ids[size:] if repeats_beginning else ids))
    return EncodedPrompt(ids, rendered.text, rendered.tail, rendered.ignored_options, images=images)


def read_reused_ids(request: GenerateRequest) -> tuple[int, ...] | None:
    """Return this conversation's ids that a router forwards from the prefill server of
    a disaggregated pair, if any.

    As in vLLM 0.33 (`renderers/online_renderer.py`), a conversation with media is
    rendered instead. Raises RequestError if the field is not a non-empty list of ids.
    """
    prompt = request.prompt
    text = request.extras.kv_transfer_params
    if text is None or REUSED_IDS not in text or not isinstance(prompt, Conversation):
        return None
    ids = _decode_transfer(text).get(REUSED_IDS)
    # The ids hold placeholders of the other server's images, which this one has not
    # processed.
    if ids is None or any(
        isinstance(part, Image | Audio | File) for part in iterate_parts(prompt.messages)
    ):
        return None
    try:
        reused_ids = msgspec.convert(ids, tuple[Annotated[int, Meta(ge=0)], ...])
    except msgspec.ValidationError:
        reused_ids = ()
    if not reused_ids:
        param = f"kv_transfer_params.{REUSED_IDS}"
        raise RequestError(
            f"Invalid value for '{param}': expected a non-empty array of token ids.", param=param
        )
    return reused_ids


def strip_reused_ids(transfer: str) -> str:
    """Return the `kv_transfer_params` for the engine: JSON text without the prompt's
    ids.
    """
    if REUSED_IDS not in transfer:
        return transfer
    fields = _decode_transfer(transfer)
    fields.pop(REUSED_IDS, None)
    return msgspec.json.encode(fields).decode()


def _decode_transfer(text: str) -> dict[str, object]:
    return msgspec.json.decode(text, type=dict[str, object])


def add_special_tokens(backend: TokenBackend, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Add the tokenizer's own special tokens to a rendered chat prompt, as vLLM's
    `add_special_tokens` does.
    """
    wrapping = backend.tokenizer.wrapping
    return (*wrapping.prefix, *ids, *wrapping.suffix)


async def encode_text(
    backend: TokenBackend, text: str, queue_share: QueueShare, *, add_special_tokens: bool
) -> list[int]:
    """Encode a raw prompt, in which the client may write control tokens."""
    encode_ids = backend.tokenizer.encode

    def work() -> list[int]:
        return encode_ids(text, special=True, add_special_tokens=add_special_tokens)

    return work() if len(text) <= MAX_INLINE_CHARS else await queue_share.run_in_thread(work)


async def render_conversation(
    backend: TokenBackend, conversation: Conversation, terms: CallTerms
) -> tuple[Rendered, tuple[PreparedImage, ...]]:
    """Render a conversation and preprocess its images.

    Raises:
        RequestError: the template rejects the conversation, or an image cannot be
            decoded.
        Unsupported: there is no template.
    """
    # As in OpenAI's API, with `none` the model does not see the tools.
    visible_tools = () if conversation.tool_choice.mode == "none" else None
    vision = backend.vision
    images: list[bytes] = []
    if vision is not None:
        placeholder = Text(vision.placeholder) if vision.uses_text_placeholder else None
        conversation, images = extract_images(conversation, placeholder)
    if conversation.template.template is not None:
        return await _render_request_template(backend, conversation, terms, visible_tools, images)
    renderer = _model_renderer(backend)
    prepared = (
        conversation
        if conversation.reasoning.effort is None
        else _apply_effort(renderer, conversation)
    )
    if not images:
        rendered = renderer.specialized.render(
            prepared,
            now=terms.now,
            tools=visible_tools,
            owner=terms.cache_salt,
            max_known=MAX_INLINE_CHARS,
        )
        if rendered is not None:
            return rendered, ()

    def work() -> tuple[Rendered, tuple[PreparedImage, ...]]:
        prepared_images, placeholders = _prepare_images(vision, images) if images else ((), None)
        rendered = renderer.render(
            prepared,
            now=terms.now,
            tools=visible_tools,
            placeholders=placeholders,
            cache_owner=terms.cache_salt,
        )
        return rendered, prepared_images

    # Decoding images blocks, so it runs in a thread.
    is_small = (
        not images
        and _has_few_chars(conversation.messages)
        and (
            _has_few_chars(conversation.tools)
            or renderer.has_cached_tools(conversation.tools, terms.cache_salt)
        )
    )
    return work() if is_small else await terms.queue_share.run_in_thread(work)


async def _render_request_template(
    backend: TokenBackend,
    conversation: Conversation,
    terms: CallTerms,
    visible_tools: tuple[Tool, ...] | None,
    images: list[bytes],
) -> tuple[Rendered, tuple[PreparedImage, ...]]:
    """Render the template in the request: it is untrusted, so a worker process does."""
    source = conversation.template.template
    assert source is not None
    base = _model_renderer(backend)
    templates = backend.request_templates
    if templates is None:
        raise Unsupported(
            "This server does not accept chat templates in requests "
            "(--trust-request-chat-template).",
            param="chat_template",
        )
    renderer = await templates.renderer(base, source, terms.queue_share.name)
    prepared_images, placeholders = await terms.queue_share.run_in_thread(
        lambda: _prepare_images(backend.vision, images)
    )
    steps = renderer.steps(
        _apply_effort(renderer, conversation),
        now=terms.now,
        tools=visible_tools,
        pictures=placeholders,
        cache_owner=terms.cache_salt,
    )
    rendered = await templates.render(renderer, steps, terms.queue_share.name)
    return rendered, prepared_images


def _prepare_images(
    vision: ImageProcessor | None, images: Sequence[bytes]
) -> tuple[tuple[PreparedImage, ...], ImagePlaceholders | None]:
    if vision is None or not images:
        return (), None
    prepared_images = vision.prepare(images)
    return prepared_images, ImagePlaceholders(
        vision.placeholder, tuple(image.text for image in prepared_images)
    )


def _apply_effort(renderer: Renderer, conversation: Conversation) -> Conversation:
    """Map the reasoning effort to the template's thinking switch, if it has a switch
    but no effort levels.
    """
    reasoning = conversation.reasoning
    features = renderer.template.features
    if (
        reasoning.effort is None
        or features.supports_reasoning_effort
        or not features.supports_thinking
    ):
        return conversation
    enabled = reasoning.effort != "none" if reasoning.enabled is None else reasoning.enabled
    switched_reasoning = msgspec.structs.replace(reasoning, enabled=enabled, effort=None)
    return msgspec.structs.replace(conversation, reasoning=switched_reasoning)


def _model_renderer(backend: TokenBackend) -> Renderer:
    if backend.renderer is None:
        raise Unsupported("This model has no chat template; use /v1/completions.", param="messages")
    return backend.renderer


def _has_few_chars(values: Sequence[Message] | Sequence[Tool]) -> bool:
    """Whether these are encoded on the event loop."""
    size = 0
    for value in values:
        size += len(msgspec.json.encode(value))
        if size > MAX_INLINE_CHARS:
            return False
    return True


def extract_images(
    conversation: Conversation, placeholder: Text | None = None
) -> tuple[Conversation, list[bytes]]:
    """Return the conversation without image data, and the data in order.

    placeholder: replaces each image.

    Raises:
        Unsupported: an image is given by URL and not as data.
    """
    if not any(_has_image(part) for message in conversation.messages for part in message.parts):
        return conversation, []
    image_data: list[bytes] = []
    replacement = placeholder or _EMPTY_IMAGE
    messages = [
        msgspec.structs.replace(
            message,
            parts=tuple(_replace_image(part, image_data, replacement) for part in message.parts),
        )
        for message in conversation.messages
    ]
    return msgspec.structs.replace(conversation, messages=tuple(messages)), image_data


def _has_image(part: Part) -> bool:
    return isinstance(part, Image) or (
        isinstance(part, ToolResult) and any(map(_has_image, part.content))
    )


def _replace_image(part: Part, image_data: list[bytes], replacement: Image | Text) -> Part:
    match part:
        case Image(source=InlineMedia(data)):
            image_data.append(data)
            return replacement
        case Image():
            raise Unsupported(
                "This engine accepts only images that are included in the request.",
                param="messages",
            )
        case ToolResult(content=content):
            content_parts = tuple(
                _replace_image(item, image_data, replacement) if isinstance(item, Image) else item
                for item in content
            )
            return ToolResult(part.call_id, content_parts, part.is_error)  # pyright: ignore[reportArgumentType]
        case _:
            return part
