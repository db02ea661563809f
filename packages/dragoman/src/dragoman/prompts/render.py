"""Renders a conversation to text and token ids. No user text becomes a control token.

Names of control tokens in user text are broken (see `control_tokens`) before the
template is rendered; the control tokens found afterwards are the template's. Rendering
blocks, so call it in a worker thread.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
from msgspec import Struct

from ..core.errors import RequestError
from ..core.json_types import JsonObject, JsonValue
from ..core.message import (
    Message,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
)
from ..core.request import Conversation
from .control_tokens import ControlTokenBreaker
from .hf_tokenizer import HfTokenizer
from .rendered import Rendered, cut_tail
from .shared_json import SharedJson
from .specialized_prompts import SpecializedPrompts
from .template import GENERATION_MARK, Template
from .template_messages import MessageOptions, build_tool_values
from .template_values import TemplateValues
from .token_replay import SampledPrefixes
from .tool_value_cache import ToolValueCache
from .unused_chars import USUAL_MARKS, choose_unused_chars, escape_char, may_have_usual_marks

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

T = TypeVar("T")


class Rendering(Struct, frozen=True):
    """One rendering of the template: the arguments of `ChatTemplate.render`.

    characters: size of the variables' texts, on which the sandbox's budget depends.
    shared_json: see `ChatTemplate.render`.
    """

    variables: Mapping[str, JsonValue]
    now: datetime
    characters: int
    shared_json: SharedJson


Steps = Generator[Rendering, str, T]
"""Work that needs renderings of the template: it yields each rendering, and receives
its text or error.
"""


class ImagePlaceholders(Struct, frozen=True):
    """The replacements of image placeholders.

    placeholder: see `core.prompt_images.ImageProcessor`.
    replacements: the text for each image.
    """

    placeholder: str
    replacements: tuple[str, ...]

    def insert_into(self, text: str) -> str:
        """Replace the placeholders. User text contains none, as control tokens in it
        are broken.

        Raises:
            RequestError: the template does not render every image exactly once.
        """
        pieces = text.split(self.placeholder)
        if len(pieces) != len(self.replacements) + 1:
            message = (
                f"The chat template shows {len(pieces) - 1} of the {len(self.replacements)} "
                f"images of these messages."
            )
            raise RequestError(message, param="messages")
        return "".join(
            piece + replacement
            for piece, replacement in zip(pieces, (*self.replacements, ""), strict=True)
        )


class Renderer:
    """Renders conversations with a template and its model's tokenizer. Thread-safe."""

    def __init__(self, template: Template, tokenizer: HfTokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        control_tokens = tokenizer.control_tokens
        features = template.features
        self._may_have_marks = may_have_usual_marks(
            template.source.encode("utf-8", "surrogatepass")
        )
        completable = control_tokens.find_completed_names(features.literals)
        reasoning_markers = frozenset(
            marker for marker in features.split_separators & control_tokens.names if "/" in marker
        )
        # For conversations without images, and with; the index is a bool.
        self._message_options = tuple(
            MessageOptions(features, reasoning_markers, allows_images=allows)
            for allows in (False, True)
        )
        self._build_breaker = partial(
            ControlTokenBreaker,
            control_tokens,
            completable=completable,
            breaks_all_starts=features.replaces_text,
        )
        self._usual_breaker = self._build_breaker(USUAL_MARKS.break_char)
        self._tool_values = ToolValueCache(self._usual_breaker.break_text)
        self.specialized = SpecializedPrompts(
            template, tokenizer, self._message_options[False], self._usual_breaker
        )
        """Renders conversations without the template, if it is known what it does."""

    @property
    def template(self) -> Template:
        return self._template

    @property
    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    def render(
        self,
        conversation: Conversation,
        *,
        now: datetime,
        tools: tuple[Tool, ...] | None = None,
        placeholders: ImagePlaceholders | None = None,
        cache_owner: str | None = None,
    ) -> Rendered:
        """Run `steps` with a template that renders in this process, unless what it does
        with such a conversation is known.
        """
        template = cast("ChatTemplate", self._template)
        if placeholders is None and cache_owner is not None:
            rendered = self.specialized.render(
                conversation, now=now, tools=tools, owner=cache_owner
            )
            if rendered is not None:
                return rendered
        steps = self.steps(
            conversation, now=now, tools=tools, pictures=placeholders, cache_owner=cache_owner
        )
        try:
            step = next(steps)
            while True:
                try:
                    text = template.render(
                        step.variables,
                        now=step.now,
                        characters=step.characters,
                        shared_json=step.shared_json,
                    )
                except RequestError as error:
                    # The steps may handle the rejection: some render a shorter
                    # conversation for comparison.
                    step = steps.throw(error)
                else:
                    step = steps.send(text)
        except StopIteration as done:
            return done.value

    def has_cached_tools(self, tools: tuple[Tool, ...], cache_owner: str) -> bool:
        """Whether a prompt with these tools takes no longer than one of few tools."""
        return self._tool_values.has(cache_owner, tools)

    def steps(
        self,
        conversation: Conversation,
        *,
        now: datetime,
        tools: tuple[Tool, ...] | None = None,
        pictures: ImagePlaceholders | None = None,
        cache_owner: str | None = None,
    ) -> Steps[Rendered]:
        """Render in steps; `conversation.template.template` is ignored.

        tools: the tools that the prompt shows; None means all of the conversation's.
        pictures: placeholders of the conversation's images; None if it has none.
        cache_owner: see `HfTokenizer.encode_broken` and `ToolValueCache`.

        Raises:
            RequestError: the template rejects the conversation.
        """
        message_options = self._message_options[pictures is not None]
        visible_tools = conversation.tools if tools is None else tools
        values = TemplateValues(self._template, message_options, conversation, visible_tools)
        try:
            # The JSON contains every text that the template can receive.
            encoded = msgspec.json.encode(conversation)
        except UnicodeEncodeError as error:
            message = "The messages are not valid Unicode: they contain an unpaired surrogate."
            raise RequestError(message, param="messages") from error
        # Almost no conversation contains a noncharacter or an escape. Only for those
        # that do, all texts are searched for characters that are not in use.
        if self._may_have_marks or may_have_usual_marks(encoded):
            marks = choose_unused_chars(" ".join([*values.collect_texts(), self._template.source]))
            breaker = self._build_breaker(marks.break_char)
            tools_json = SharedJson(build_tool_values(visible_tools, breaker.break_text))
        else:
            marks = USUAL_MARKS
            breaker = self._usual_breaker
            tools_json = self._tool_values.find_or_build(cache_owner, visible_tools)
        break_char = marks.break_char
        variables = values.build_all(breaker.break_text, tools_json.values)
        prompt = _Prompt(Rendering(variables, now, len(encoded), tools_json), break_char)
        options = conversation.template
        if options.continue_final_message:
            _check_final_message(conversation.messages, options.add_generation_prompt)
            text, tail = yield from prompt.render_open_ended(marks.marker_char)
        else:
            mark_char = marks.marker_char if message_options.features.marks_generation else None
            text, tail = yield from prompt.render_closed(
                options.add_generation_prompt,
                mark_char,
                has_prompt=message_options.features.reads_generation,
            )
        if pictures is not None:
            text = pictures.insert_into(text)
        tokenizer = self._tokenizer
        prefixes = None
        if conversation.sampled_turns:
            prefixes = SampledPrefixes(
                conversation.sampled_turns, tokenizer.control_ids, tokenizer.token_bytes
            )
        ids = tuple(tokenizer.encode_broken(text, break_char, prefixes, cache_owner=cache_owner))
        return Rendered(
            text.replace(break_char, ""), ids, tail.replace(break_char, ""), values.ignored_options
        )


class _Prompt:
    """One prompt, whose texts still contain break characters.

    rendering: with the variables that all its renderings have.
    """

    def __init__(self, rendering: Rendering, break_char: str) -> None:
        self._rendering = rendering
        self._break_char = break_char

    def render_closed(
        self, generate: bool, mark_char: str | None, *, has_prompt: bool
    ) -> Steps[tuple[str, str]]:
        """Return the text and its tail.

        generate: whether to add the generation prompt.
        mark_char: the character that the template writes at the beginning of the
        generation prompt; None if it marks none.
        has_prompt: the template has a generation prompt.
        """
        if generate and mark_char is not None:
            marked = yield from self._render_text(
                {"add_generation_prompt": True, GENERATION_MARK: mark_char}
            )
            before, _, tail = marked.rpartition(mark_char)
            text = before + tail
            return text, tail or cut_tail(text)
        text = yield from self._render_text({"add_generation_prompt": generate})
        if not generate:
            return text, ""
        return text, (yield from self._find_tail(text, {})) if has_prompt else cut_tail(text)

    def render_open_ended(self, end_marker: str) -> Steps[tuple[str, str]]:
        """Cut the prompt where the text of the final message ends, however the template
        closes it.

        As in transformers, white space at its end stays if the template does not trim
        the message.
        """
        messages = self._rendering.variables["messages"]
        assert isinstance(messages, list)
        *earlier, final = messages
        assert isinstance(final, dict)
        text = yield from self._render_text(
            {"messages": [*earlier, _append_end_marker(final, f"{end_marker} ")]}
        )
        end = text.rfind(end_marker)
        if end < 0:
            message = "The chat template does not show the text of the message to continue."
            raise RequestError(message, param="continue_final_message")
        # If the space after the marker is missing, the template trims the message, and
        # would have removed the white space at its end too.
        text = text[:end] if text.startswith(f"{end_marker} ", end) else text[:end].rstrip()
        return text, (yield from self._find_tail(text, {"messages": earlier}))

    def _find_tail(self, text: str, changes: JsonObject) -> Steps[str]:
        """Return the end of the text that the same prompt with these changes lacks."""
        try:
            shorter_text = yield from self._render_text(changes)
        # The template may not accept the shorter conversation, such as one that ends
        # with the assistant.
        except RequestError:
            shorter_text = text
        return (
            text[len(shorter_text) :]
            if text != shorter_text and text.startswith(shorter_text)
            else cut_tail(text)
        )

    def _render_text(self, changes: JsonObject) -> Steps[str]:
        rendering = self._rendering
        values = {**rendering.variables, "add_generation_prompt": False, **changes}
        text = yield Rendering(values, rendering.now, rendering.characters, rendering.shared_json)
        # A template's `tojson` may have escaped the break character.
        return (
            text.replace(escape_char(self._break_char), self._break_char) if "\\u" in text else text
        )


def _check_final_message(messages: tuple[Message, ...], generate: bool) -> None:
    param = "continue_final_message"
    if generate:
        raise RequestError(
            "continue_final_message and add_generation_prompt cannot be combined.", param=param
        )
    if not messages or messages[-1].role is not Role.ASSISTANT:
        raise RequestError("Only a final message of the assistant can be continued.", param=param)
    parts = messages[-1].parts
    if any(isinstance(part, ToolCall) for part in parts):
        raise RequestError("A message with tool calls cannot be continued.", param=param)
    if not any(isinstance(part, (Text, Reasoning)) for part in parts):
        raise RequestError("There is no text to continue.", param=param)


def _append_end_marker(message: JsonObject, end_marker: str) -> JsonObject:
    """Append the end marker to the text, or to the reasoning if there is no text yet."""
    match message["content"]:
        case [*earlier_parts, {"text": str(text)}]:
            extended_part: JsonObject = {"type": "text", "text": text + end_marker}
            return {**message, "content": [*earlier_parts, extended_part]}
        case str(content) if content:
            return message | {"content": content + end_marker}
        case _:
            names = ("reasoning_content", "reasoning", "thinking")
            reasoning_fields: JsonObject = {
                name: f"{message[name]}{end_marker}" for name in names if name in message
            }
            return message | (reasoning_fields or {"content": end_marker})
