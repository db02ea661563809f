"""Renders a conversation to text and token ids. No user text becomes a control token.

Names of control tokens in user text are broken (see `control_tokens`) before the
template is rendered; the control tokens found afterwards are the template's. Rendering
blocks, so call it in a worker thread.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import filterfalse, islice
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
from .json_values import InvalidJson, decode
from .template import GENERATION_MARK, Template
from .template_messages import (
    MessageOptions,
    StringVisitor,
    build_message_values,
    build_tool_values,
    map_strings,
)
from .token_replay import SampledPrefixes
from .tool_value_cache import ToolValueCache

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

_NONCHARACTERS = (
    *range(0xFDD0, 0xFDF0),
    *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF)),
)
_USUAL_MARKS = chr(_NONCHARACTERS[0]), chr(_NONCHARACTERS[1])
_NONCHARACTER_STARTS = (b"\xef\xb7", b"\\u")
"""The first bytes of the noncharacters up to U+FDEF in UTF-8, and of any JSON escape,
however deeply it is nested.
"""
_MAX_TAIL_CHARS = 64


T = TypeVar("T")


class Rendering(Struct, frozen=True):
    """One rendering of the template: the arguments of `ChatTemplate.render`.

    characters: size of the variables' texts, on which the sandbox's budget depends.
    """

    variables: Mapping[str, JsonValue]
    now: datetime
    characters: int


Steps = Generator[Rendering, str, T]
"""Work that needs renderings of the template: it yields each rendering, and receives
its text or error.
"""


class Rendered(Struct, frozen=True):
    """A rendered conversation.

    text: the prompt.
    ids: its token ids.
    tail: the end of the text from the start of the assistant's turn; empty if it does
        not start.
    ignored_options: options that the template does not read; for a warning.
    """

    text: str
    ids: tuple[int, ...]
    tail: str
    ignored_options: tuple[str, ...] = ()


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
        source = template.source.encode("utf-8", "surrogatepass")
        self._has_noncharacters = any(start in source for start in _NONCHARACTER_STARTS)
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
        self._usual_breaker = self._build_breaker(_USUAL_MARKS[0])
        self._tool_values = ToolValueCache(self._usual_breaker.break_text)

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
        """Run `steps` with a template that renders in this process."""
        template = cast("ChatTemplate", self._template)
        steps = self.steps(
            conversation, now=now, tools=tools, pictures=placeholders, cache_owner=cache_owner
        )
        try:
            step = next(steps)
            while True:
                try:
                    text = template.render(step.variables, now=step.now, characters=step.characters)
                except RequestError as error:
                    # The steps may handle the rejection: some render a shorter
                    # conversation for comparison.
                    step = steps.throw(error)
                else:
                    step = steps.send(text)
        except StopIteration as done:
            return done.value

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
        values = _TemplateValues(self._template, message_options, conversation, visible_tools)
        try:
            # The JSON contains every text that the template can receive.
            encoded = msgspec.json.encode(conversation)
        except UnicodeEncodeError as error:
            message = "The messages are not valid Unicode: they contain an unpaired surrogate."
            raise RequestError(message, param="messages") from error
        # Almost no conversation contains a noncharacter or an escape. Only for those
        # that do, all texts are searched for characters that are not in use.
        if (
            self._has_noncharacters
            or _NONCHARACTER_STARTS[0] in encoded
            or _NONCHARACTER_STARTS[1] in encoded
        ):
            break_char, marker_char = choose_unused_chars(
                " ".join([*values.collect_texts(), self._template.source])
            )
            breaker = self._build_breaker(break_char)
            tool_values = build_tool_values(visible_tools, breaker.break_text)
        else:
            (break_char, marker_char) = _USUAL_MARKS
            breaker = self._usual_breaker
            tool_values = (
                self._tool_values.find_or_build(cache_owner, visible_tools) if visible_tools else []
            )
        variables = values.build_all(breaker.break_text, tool_values)
        prompt = _Prompt(variables, now, len(encoded), break_char)
        options = conversation.template
        if options.continue_final_message:
            _check_final_message(conversation.messages, options.add_generation_prompt)
            text, tail = yield from prompt.render_open_ended(marker_char)
        else:
            mark_char = marker_char if message_options.features.marks_generation else None
            text, tail = yield from prompt.render_closed(options.add_generation_prompt, mark_char)
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


class _TemplateValues:
    """The values that a template receives for one conversation.

    ignored_options: options of the request that the template does not read.
    """

    def __init__(
        self,
        template: Template,
        message_options: MessageOptions,
        conversation: Conversation,
        tools: Sequence[Tool],
    ) -> None:
        options = conversation.template
        self._message_options = message_options
        self._messages = conversation.messages
        self._tools = tools
        reasoning = conversation.reasoning
        self._reasoning_variables: JsonObject = {}
        if reasoning.enabled is not None:
            # DeepSeek's and Granite's templates call the switch `thinking`, most others
            # as Qwen3 does.
            has_thinking = "thinking" in template.features.variables - {"enable_thinking"}
            self._reasoning_variables["thinking" if has_thinking else "enable_thinking"] = (
                reasoning.enabled
            )
        if reasoning.effort is not None:
            self._reasoning_variables["reasoning_effort"] = reasoning.effort
        kwargs = _decode_json(options.kwargs, "chat_template_kwargs") if options.kwargs else {}
        if not isinstance(kwargs, dict):
            raise RequestError(
                "chat_template_kwargs must be an object.", param="chat_template_kwargs"
            )
        for name in kwargs:
            # `return_...` are options of transformers' `apply_chat_template` for its
            # result, not variables.
            if name in template.reserved_names or name.startswith("return_"):
                raise RequestError(
                    f"chat_template_kwargs may not set {name!r}.", param="chat_template_kwargs"
                )
        documents = _decode_json(options.documents, "documents") if options.documents else None
        if documents is not None and not isinstance(documents, list):
            raise RequestError("documents must be a list.", param="documents")
        self._kwargs = kwargs
        self._documents = documents
        read_variables = template.features.variables
        names = [*self._reasoning_variables, *self._kwargs]
        if self._documents:
            names.append("documents")
        ignored_options = [*filterfalse(read_variables.__contains__, names)]
        if not template.features.shows_names:
            for message in self._messages:
                # A result names its tool, which its call names already.
                if message.name is not None and message.role is not Role.TOOL:
                    ignored_options.append("messages[].name")
                    break
        self.ignored_options = tuple(ignored_options)

    def build_all(self, visit: StringVisitor, tool_values: list[JsonValue]) -> JsonObject:
        """Build the values of all variables.

        tool_values: the values of the tools.
        """
        messages: list[JsonValue] = [
            *build_message_values(self._messages, self._message_options, visit)
        ]
        values = dict(self._reasoning_variables)
        for name, value in self._kwargs.items():
            values[name] = map_strings(value, visit)
        values["tools"] = tool_values or None
        values["messages"] = messages
        values["documents"] = (
            None if self._documents is None else map_strings(self._documents, visit)
        )
        return values

    def collect_texts(self) -> list[str]:
        """Return all strings of user text."""
        collected: list[str] = []

        def collect(text: str) -> str:
            collected.append(text)
            return text

        self.build_all(collect, build_tool_values(self._tools, collect))
        return collected


class _Prompt:
    """One prompt, whose texts still contain break characters.

    n_chars: number of characters in the values.
    """

    def __init__(
        self, values: Mapping[str, JsonValue], now: datetime, n_chars: int, break_char: str
    ) -> None:
        self._values = values
        self._now = now
        self._n_chars = n_chars
        self._break_char = break_char

    def render_closed(self, generate: bool, mark_char: str | None) -> Steps[tuple[str, str]]:
        """Return the text and its tail.

        generate: whether to add the generation prompt.
        mark_char: the character that the template writes at the beginning of the
        generation prompt; None if it marks none.
        """
        if generate and mark_char is not None:
            marked = yield from self._render_text(
                {"add_generation_prompt": True, GENERATION_MARK: mark_char}
            )
            before, _, tail = marked.rpartition(mark_char)
            text = before + tail
            return text, tail or text[-_MAX_TAIL_CHARS:]
        text = yield from self._render_text({"add_generation_prompt": generate})
        return text, (yield from self._find_tail(text, {})) if generate else ""

    def render_open_ended(self, end_marker: str) -> Steps[tuple[str, str]]:
        """Cut the prompt where the text of the final message ends, however the template
        closes it.

        As in transformers, white space at its end stays if the template does not trim
        the message.
        """
        messages = self._values["messages"]
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
            else text[-_MAX_TAIL_CHARS:]
        )

    def _render_text(self, changes: JsonObject) -> Steps[str]:
        values = {**self._values, "add_generation_prompt": False, **changes}
        text = yield Rendering(values, self._now, self._n_chars)
        # A template's `tojson` may have escaped the break character.
        return (
            text.replace(_escape_char(self._break_char), self._break_char)
            if "\\u" in text
            else text
        )


def choose_unused_chars(texts: str) -> tuple[str, str]:
    """Choose two characters that occur nowhere in the texts, not even as JSON escapes."""
    # Noncharacters are never assigned (Unicode, 23.7), so real text rarely has any; 66
    # exist to choose from.
    unused_chars = (
        char
        for char in map(chr, _NONCHARACTERS)
        if char not in texts and _escape_char(char) not in texts
    )
    chars = tuple(islice(unused_chars, 2))
    if len(chars) < 2:
        raise RequestError("The messages use every noncharacter of Unicode.", param="messages")
    return chars[0], chars[1]


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


def _decode_json(text: str, param: str) -> JsonValue:
    try:
        return decode(text)
    except InvalidJson as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param) from error


def _escape_char(char: str) -> str:
    """Return the character as ASCII-only JSON escapes it."""
    return json.dumps(char)[1:-1]
