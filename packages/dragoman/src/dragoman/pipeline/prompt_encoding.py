"""Encoding of prompts: renders and tokenizes them, and shortens conversations if the
request allows it.

Large prompts are encoded in a thread, so that the event loop stays responsive. The
module also has a cache of each owner's recent prompts, to which a new prompt is
compared.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Annotated

import anyio.to_thread
import msgspec
from msgspec import Meta

from ..core.engine import check_ids
from ..core.errors import RequestError, Unsupported
from ..core.events import AppliedEdit, ClearedKind
from ..core.images import ImageProcessor, PreparedImage
from ..core.message import (
    Audio,
    File,
    Image,
    InlineMedia,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ..core.request import ClearReasoning, ClearToolResults, Conversation, GenerateRequest
from ..prompts.render import ImagePlaceholders, Rendered, Renderer
from .admission import CallTerms, iterate_parts
from .models import TokenBackend

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
    """

    ids: tuple[int, ...]
    text: str
    prompt_tail: str = ""
    ignored_options: tuple[str, ...] = ()
    n_dropped: int = 0
    images: tuple[PreparedImage, ...] = ()
    applied_edits: tuple[AppliedEdit, ...] = ()


async def encode_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms
) -> EncodedPrompt:
    """Encode the prompt.

    Raises:
        RequestError: an id is outside the vocabulary, the prompt is empty, or the
            template rejects it.
    """
    prompt = request.prompt
    if isinstance(prompt, tuple):
        check_ids(prompt, backend.tokenizer.vocab_size, "prompt")
        return EncodedPrompt(prompt, backend.tokenizer.decode(prompt))
    if isinstance(prompt, str):
        ids = await encode_text(backend, prompt, add_special_tokens=request.add_special_tokens)
        if not ids:
            raise RequestError("The prompt is empty: it has no tokens.", param="prompt")
        return EncodedPrompt(tuple(ids), prompt)
    reused_ids = read_reused_ids(request)
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


async def encode_text(backend: TokenBackend, text: str, *, add_special_tokens: bool) -> list[int]:
    """Encode a raw prompt, in which the client may write control tokens."""
    encode_ids = backend.tokenizer.encode

    def work() -> list[int]:
        return encode_ids(text, special=True, add_special_tokens=add_special_tokens)

    return work() if len(text) <= MAX_INLINE_CHARS else await anyio.to_thread.run_sync(work)


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
    images = list[bytes]()
    if vision is not None:
        placeholder = Text(vision.placeholder) if vision.uses_text_placeholder else None
        conversation, images = extract_images(conversation, placeholder)
    source = conversation.template.template
    if source is not None:
        # The template in the request is untrusted: it is rendered in a worker process.
        base = _model_renderer(backend)
        templates = backend.request_templates
        if templates is None:
            raise Unsupported(
                "This server does not accept chat templates in requests "
                "(--trust-request-chat-template).",
                param="chat_template",
            )
        renderer = await templates.renderer(base, source)
        prepared_images, placeholders = await anyio.to_thread.run_sync(
            _prepare_images, vision, images
        )
        steps = renderer.steps(
            _apply_effort(renderer, conversation),
            now=terms.now,
            tools=visible_tools,
            pictures=placeholders,
            cache_owner=terms.cache_salt,
        )
        return await templates.render(renderer, steps), prepared_images

    def work() -> tuple[Rendered, tuple[PreparedImage, ...]]:
        renderer = _model_renderer(backend)
        prepared_images, placeholders = _prepare_images(vision, images)
        prepared = _apply_effort(renderer, conversation)
        rendered = renderer.render(
            prepared,
            now=terms.now,
            tools=visible_tools,
            placeholders=placeholders,
            cache_owner=terms.cache_salt,
        )
        return rendered, prepared_images

    # Decoding images blocks, so it runs in a thread.
    is_small = not images and _estimate_size(conversation) <= MAX_INLINE_CHARS
    return work() if is_small else await anyio.to_thread.run_sync(work)


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


def _estimate_size(conversation: Conversation) -> int:
    """Estimate the prompt's characters; stops counting once the estimate is large
    enough to need a thread.
    """
    size = (
        sum([len(msgspec.json.encode(tool)) for tool in conversation.tools])
        if conversation.tools
        else 0
    )
    for message in conversation.messages:
        if size > MAX_INLINE_CHARS:
            return size
        size += len(msgspec.json.encode(message))
    return size


def truncate_prompt(encoded: EncodedPrompt, request: GenerateRequest, limit: int) -> EncodedPrompt:
    """Keep only the last tokens: as many as the request sets, or with -1 as many as
    leave room for the response.
    """
    max_ids = request.limits.truncate_prompt
    if max_ids is None:
        return encoded
    if encoded.images:
        raise Unsupported(
            "A prompt with images cannot be truncated.", param="truncate_prompt_tokens"
        )
    if max_ids < 0:
        max_ids = limit - max(1, min(request.limits.max_tokens or 1, limit - 1))
    return msgspec.structs.replace(encoded, ids=encoded.ids[-max_ids:])


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


# Shortening: drops the oldest turns of a conversation that exceeds the model's context,
# and clears old tool results and reasoning.

PLACEHOLDER = Text("[old tool result cleared]")


async def build_edited_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms
) -> tuple[GenerateRequest, EncodedPrompt]:
    """Return the request with its edited conversation, and its prompt. Edits apply in
    order.

    An edit that would save nothing is skipped. Raises what `encode_prompt` raises.
    """
    encoded = await encode_prompt(backend, request, terms)
    prompt = request.prompt
    applied_edits = encoded.applied_edits
    if not isinstance(prompt, Conversation) or not prompt.edits:
        return request, encoded
    for edit in prompt.edits:
        if isinstance(edit, ClearReasoning):
            kind = ClearedKind.REASONING
            least_saved = 1
            is_due = True
            messages, count = _clear_reasoning(edit, prompt.messages)
        else:
            kind = ClearedKind.RESULTS
            least_saved = edit.at_least
            messages, count = _clear_results(edit, prompt.messages)
            if edit.above_uses is None:
                is_due = len(encoded.ids) > edit.above_tokens
            else:
                is_due = len(_find_result_ids(prompt.messages)) > edit.above_uses
        if not count or not is_due:
            continue
        edited_conversation = msgspec.structs.replace(prompt, messages=messages)
        shorter_prompt = await encode_prompt(
            backend, msgspec.structs.replace(request, prompt=edited_conversation), terms
        )
        # Counted by rendering again: a template may drop old reasoning by itself, and
        # then clearing it saves nothing.
        saved_tokens = len(encoded.ids) - len(shorter_prompt.ids)
        if saved_tokens >= least_saved:
            prompt = edited_conversation
            encoded = shorter_prompt
            applied_edits = (*applied_edits, AppliedEdit(kind, count, saved_tokens))
    return msgspec.structs.replace(request, prompt=prompt), msgspec.structs.replace(
        encoded, applied_edits=applied_edits
    )


def _find_result_ids(messages: Sequence[Message]) -> list[str]:
    """Return the ids of the calls that have a result, in the order of the results."""
    parts = (part for message in messages for part in message.parts)
    return list(dict.fromkeys(part.call_id for part in parts if isinstance(part, ToolResult)))


def _clear_results(
    edit: ClearToolResults, messages: Sequence[Message]
) -> tuple[tuple[Message, ...], int]:
    """Return the edited messages, and the number of results that were cleared."""
    names = {
        part.id: part.name
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCall)
    }
    results = _find_result_ids(messages)
    old_ids = results[: max(0, len(results) - edit.keep)]
    cleared_ids = {id for id in old_ids if names.get(id) not in edit.exclude}

    def clear_part(part: Part) -> Part:
        match part:
            case ToolResult(call_id) if call_id in cleared_ids:
                return msgspec.structs.replace(part, content=(PLACEHOLDER,))
            case ToolCall(id, name) if id in cleared_ids and (
                edit.inputs is None or name in edit.inputs
            ):
                # The sampled tokens contain the old arguments, so the call is now
                # rendered from its text.
                return msgspec.structs.replace(
                    part, arguments="" if part.custom else "{}", tokens=()
                )
            case _:
                return part

    edited_messages = [
        _replace_parts(message, [clear_part(part) for part in message.parts])
        for message in messages
    ]
    return tuple(edited_messages), len(cleared_ids)


def _clear_reasoning(
    edit: ClearReasoning, messages: Sequence[Message]
) -> tuple[tuple[Message, ...], int]:
    """Return the edited messages, and the number of turns that were cleared.

    An assistant turn is all assistant and tool messages up to the next user message.
    """
    turns: list[int] = []
    turn = 0
    for message in messages:
        turn += message.role is Role.USER
        turns.append(turn)
    parts = (
        (turn, part)
        for turn, message in zip(turns, messages, strict=True)
        for part in message.parts
    )
    reasoning_turns = list(
        dict.fromkeys(turn for turn, part in parts if isinstance(part, Reasoning))
    )
    cleared_turns = set(reasoning_turns[: max(0, len(reasoning_turns) - edit.keep)])
    edited_messages = tuple(
        _replace_parts(message, [part for part in message.parts if not isinstance(part, Reasoning)])
        if turn in cleared_turns
        else message
        for turn, message in zip(turns, messages, strict=True)
    )
    return edited_messages, len(cleared_turns)


def _replace_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Replace a message's parts. Without parts it gets an empty text, so that roles
    still alternate.
    """
    return msgspec.structs.replace(message, parts=tuple(parts) or (Text(""),))


RESERVED_FRACTION = 8
"""Divisor of the context: when turns are dropped, this part of it is left free.
Otherwise the next request would have to drop turns again, and the prefix cache would
never be hit.
"""


async def build_fitting_prompt(
    backend: TokenBackend, request: GenerateRequest, terms: CallTerms, limit: int
) -> EncodedPrompt:
    """Return the prompt; if it does not fit and the request allows it, the prompt of
    fewer messages.

    The result may still not fit, if dropping all turns that may be dropped is not
    enough. Raises what `encode_prompt` raises.
    """
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not (prompt.edits or prompt.drop_oldest):
        return await encode_prompt(backend, request, terms)
    request, encoded = await build_edited_prompt(backend, request, terms)
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not prompt.drop_oldest:
        return encoded
    max_tokens = request.limits.max_tokens
    if len(encoded.ids) + max(1, min(max_tokens or 1, limit // 2)) <= limit:
        return encoded
    prompt_limit = limit - max(
        1, min(limit // RESERVED_FRACTION if max_tokens is None else max_tokens, limit // 2)
    )
    turns = find_droppable_turns(prompt.messages)

    async def encode_without(count: int) -> EncodedPrompt:
        dropped = {index for turn in turns[:count] for index in turn}
        messages = tuple(
            message for index, message in enumerate(prompt.messages) if index not in dropped
        )
        shorter_prompt = await encode_prompt(
            backend,
            msgspec.structs.replace(
                request, prompt=msgspec.structs.replace(prompt, messages=messages)
            ),
            terms,
        )
        return msgspec.structs.replace(
            shorter_prompt, n_dropped=len(dropped), applied_edits=encoded.applied_edits
        )

    # By bisection: each try renders and tokenizes the conversation, so a linear search
    # would be quadratic.
    low = 1
    high = len(turns)
    while low < high:
        middle = (low + high) // 2
        if len((await encode_without(middle)).ids) <= prompt_limit:
            high = middle
        else:
            low = middle + 1
    return await encode_without(high) if turns else encoded


def build_dropped_warning(dropped: int, limit: int) -> str:
    return (
        f"truncation: the {dropped} oldest messages were omitted to fit the context of {limit} "
        f"tokens"
    )


def find_droppable_turns(messages: Sequence[Message]) -> list[list[int]]:
    """Indices of the messages of each turn, in the order in which they may be dropped.

    A user message and everything up to the next user message form a turn. After the
    last user message, each message with calls forms a turn with its results. System
    messages, the last user message and the last turn stay.
    """
    last_question = max(
        (index for index, message in enumerate(messages) if message.role is Role.USER), default=-1
    )
    turns: list[list[int]] = []
    turn_of_call: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        turn = (
            turns[-1] if turns and index < last_question and message.role is not Role.USER else None
        )
        # A result without its call, or the reverse, is an error for most templates, so
        # both are dropped together.
        for part in message.parts:
            if isinstance(part, ToolResult):
                turn = turn_of_call.get(part.call_id, turn)
        if turn is None:
            turn = list[int]()
            turns.append(turn)
        turn.append(index)
        turn_of_call |= {part.id: turn for part in message.parts if isinstance(part, ToolCall)}
    last_index = max((turn[-1] for turn in turns), default=-1)
    return [turn for turn in turns if last_question not in turn and last_index not in turn]


# Recent prompts of each owner, for comparison with a new one. Bounded, and in memory
# only.

Prompt = tuple[int, ...]


class RecentPrompts:
    """An LRU cache of prompts.

    max_owners: maximum pairs of owner and model; the least recently active one is
        evicted.
    max_prompts: maximum prompts per owner and model.
    max_tokens: length of the longest prompt that is cached, in tokens.
    """

    def __init__(
        self, max_owners: int = 64, max_prompts: int = 8, max_tokens: int = 131_072
    ) -> None:
        self._max_owners = max_owners
        self._max_prompts = max_prompts
        self._max_tokens = max_tokens
        self._prompts: OrderedDict[tuple[str, str], deque[Prompt]] = OrderedDict()

    def remember(self, owner: str, model: str, prompt: Prompt) -> None:
        if len(prompt) > self._max_tokens:
            return
        prompts = self._prompts.setdefault((owner, model), deque(maxlen=self._max_prompts))
        prompts.append(prompt)
        self._prompts.move_to_end((owner, model))
        while len(self._prompts) > self._max_owners:
            self._prompts.popitem(last=False)

    def find_closest(self, owner: str, model: str, prompt: Prompt) -> Prompt | None:
        """Return this owner's prompt with the longest common prefix; the latest of
        equally long ones.
        """
        candidates: Iterable[Prompt] = reversed(self._prompts.get((owner, model), ()))
        return max(
            candidates, key=lambda candidate: count_common_prefix(candidate, prompt), default=None
        )


def count_common_prefix(first: Prompt, second: Prompt) -> int:
    """Return the length of the common prefix.

    This is a binary search over slices, whose comparison runs in C, unlike a loop over
    tokens.
    """
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        # Slices begin at `low`, as all before is known to be equal; together they are
        # no longer than the prompt.
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
