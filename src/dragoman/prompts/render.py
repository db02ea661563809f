"""A conversation as a prompt: text and token ids, in which nothing that a user wrote is a control token.

Every string of the user's is marked where it names a control token (see `controls`), the template is rendered,
and what is then found is the template's own. Blocking: to be called in a worker thread.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..core.errors import RequestError
from ..core.message import Message, Reasoning, Role, Text, Tool, ToolCall
from ..core.request import Conversation, ReasoningOptions
from .controls import Marker
from .messages import Reading, Visit, message_values, tool_values, visited
from .spelling import Spellings
from .template import ChatTemplate, Template
from .tokenizer import HfTokenizer
from .values import Json, NotJson, Object, decode

_NONCHARACTERS = (*range(0xFDD0, 0xFDF0), *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF)))
_TAIL = 64


T = TypeVar("T")


class Rendering(Struct, frozen=True):
    """One rendering of the template: the arguments of `ChatTemplate.render`."""

    variables: Mapping[str, Json]
    now: datetime
    characters: int


Steps = Generator[Rendering, str, T]
"""Work that needs the template rendered: it yields what to render, and is sent the text or thrown the error."""


class Rendered(Struct, frozen=True):
    """tail: the end of the text from where the assistant's turn begins; empty if it does not.

    ignored: options that this template does not read; for a warning.
    """

    text: str
    ids: tuple[int, ...]
    tail: str
    ignored: tuple[str, ...] = ()


class Pictures(Struct, frozen=True):
    """placeholder: as in `core.vision.Vision`. texts: what stands for each instead."""

    placeholder: str
    texts: tuple[str, ...]

    def put_into(self, text: str) -> str:
        """What is found is no user's: names of control tokens in what they wrote are broken by marks.

        Raises RequestError where the template does not show every image once.
        """
        pieces = text.split(self.placeholder)
        if len(pieces) != len(self.texts) + 1:
            message = f"The chat template shows {len(pieces) - 1} of the {len(self.texts)} images of these messages."
            raise RequestError(message, param="messages")
        return "".join(piece + put for piece, put in zip(pieces, (*self.texts, ""), strict=True))


class Renderer:
    """A template and the tokenizer of its model. Safe to use from several threads."""

    def __init__(self, template: Template, tokenizer: HfTokenizer) -> None:
        self._template, self._tokenizer = template, tokenizer
        controls, traits = tokenizer.controls, template.traits
        self._between = controls.completed_by(traits.literals)
        self._thoughts = frozenset(mark for mark in traits.splits & controls.names if "/" in mark)

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
        pictures: Pictures | None = None,
    ) -> Rendered:
        """As `steps`, with a template that renders in this process."""
        template = self._template
        assert isinstance(template, ChatTemplate)
        steps = self.steps(conversation, now=now, tools=tools, pictures=pictures)
        try:
            step = next(steps)
            while True:
                try:
                    text = template.render(step.variables, now=step.now, characters=step.characters)
                except RequestError as error:
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
        pictures: Pictures | None = None,
    ) -> Steps[Rendered]:
        """tools: those that the prompt shall show; None is all of the conversation's. pictures: of its images.

        `conversation.template.template` is not looked at. Raises RequestError.
        """
        reading = Reading(self._template.traits, self._thoughts, images=pictures is not None)
        shown = conversation.tools if tools is None else tools
        values = _Values(self._template, reading, conversation, shown)
        texts = values.texts()
        mark, sign = _unused([*texts, self._template.source])
        marker = Marker(self._tokenizer.controls, mark, self._between, thorough=reading.traits.replaces)
        prompt = _Prompt(values.all(marker.text), now, _size(conversation), mark)
        options = conversation.template
        if options.continue_final_message:
            _check_final(conversation.messages, options.add_generation_prompt)
            text, tail = yield from prompt.open_ended(sign)
        else:
            text, tail = yield from prompt.closed(options.add_generation_prompt)
        if pictures is not None:
            text = pictures.put_into(text)
        ids = tuple(self._tokenizer.encode_marked(text, mark, self._spelled(conversation)))
        return Rendered(text.replace(mark, ""), ids, tail.replace(mark, ""), values.ignored)

    def _spelled(self, conversation: Conversation) -> Spellings | None:
        if not conversation.said:
            return None
        return Spellings(conversation.said, self._tokenizer.control_ids, self._tokenizer.token_bytes)


class _Values:
    """What a template is given of one conversation. ignored: names that the client set and nobody reads."""

    def __init__(self, template: Template, reading: Reading, conversation: Conversation, tools: Sequence[Tool]) -> None:
        options = conversation.template
        self._reading, self._messages, self._tools = reading, conversation.messages, tools
        self._said = _options(conversation.reasoning, template)
        self._kwargs = _kwargs(options.kwargs, template)
        self._documents = _documents(options.documents)
        names = {**self._said, **self._kwargs}
        self.ignored = tuple(name for name in names if name not in template.traits.variables)

    def all(self, visit: Visit) -> Object:
        messages: list[Json] = [*message_values(self._messages, self._reading, visit)]
        kwargs: Object = {name: visited(value, visit) for name, value in self._kwargs.items()}
        given: Object = {"tools": tool_values(self._tools, visit) or None, "messages": messages}
        return {**self._said, **kwargs, **given, "documents": visited(self._documents, visit)}

    def texts(self) -> list[str]:
        """Every string of the user's."""
        found: list[str] = []

        def collect(text: str) -> str:
            found.append(text)
            return text

        self.all(collect)
        return found


class _Prompt:
    """One rendering, still marked. characters: how much text the values hold."""

    def __init__(self, values: Mapping[str, Json], now: datetime, characters: int, mark: str) -> None:
        self._values, self._now = values, now
        self._characters, self._mark = characters, mark

    def closed(self, generate: bool) -> Steps[tuple[str, str]]:
        """The text and its tail. generate: the assistant's turn has begun."""
        text = yield from self._text({"add_generation_prompt": generate})
        return text, (yield from self._since(text, {})) if generate else ""

    def open_ended(self, sign: str) -> Steps[tuple[str, str]]:
        """The final message is cut off where its text ends, however the template closes it.

        As in transformers, blanks at its end are kept if the template keeps them.
        """
        messages = self._values["messages"]
        assert isinstance(messages, list)
        *earlier, final = messages
        assert isinstance(final, dict)
        text = yield from self._text({"messages": [*earlier, _appended(final, f"{sign} ")]})
        end = text.rfind(sign)
        if end < 0:
            message = "The chat template does not show the text of the message to continue."
            raise RequestError(message, param="continue_final_message")
        text = text[:end] if text.startswith(f"{sign} ", end) else text[:end].rstrip()
        return text, (yield from self._since(text, {"messages": earlier}))

    def _since(self, text: str, fewer: Object) -> Steps[str]:
        """What a text has more than the same prompt made of less."""
        try:
            before = yield from self._text(fewer)
        except RequestError:
            before = text
        return text[len(before) :] if text != before and text.startswith(before) else text[-_TAIL:]

    def _text(self, changes: Object) -> Steps[str]:
        values = {**self._values, "add_generation_prompt": False, **changes}
        text = yield Rendering(values, self._now, self._characters)
        return text.replace(_escaped(self._mark), self._mark)


def _size(conversation: Conversation) -> int:
    """About how many characters it holds."""
    try:
        return len(msgspec.json.encode(conversation))
    except UnicodeEncodeError as error:
        message = "The messages are not valid Unicode: they contain an unpaired surrogate."
        raise RequestError(message, param="messages") from error


def _check_final(messages: tuple[Message, ...], generate: bool) -> None:
    param = "continue_final_message"
    if generate:
        raise RequestError("continue_final_message and add_generation_prompt cannot be combined.", param=param)
    if not messages or messages[-1].role is not Role.ASSISTANT:
        raise RequestError("Only a final message of the assistant can be continued.", param=param)
    parts = messages[-1].parts
    if any(isinstance(part, ToolCall) for part in parts):
        raise RequestError("A message with tool calls cannot be continued.", param=param)
    if not any(isinstance(part, (Text, Reasoning)) for part in parts):
        raise RequestError("There is no text to continue.", param=param)


def _appended(message: Object, sign: str) -> Object:
    """With the sign behind the text, or behind the reasoning if there is no text yet."""
    match message["content"]:
        case [*others, {"text": str(text)}]:
            ended: Object = {"type": "text", "text": text + sign}
            return {**message, "content": [*others, ended]}
        case str(content) if content:
            return message | {"content": content + sign}
        case _:
            names = ("reasoning_content", "reasoning", "thinking")
            thoughts: Object = {name: f"{message[name]}{sign}" for name in names if name in message}
            return message | (thoughts or {"content": sign})


def _options(reasoning: ReasoningOptions, template: Template) -> Object:
    said: Object = {}
    if reasoning.enabled is not None:
        variables = template.traits.variables
        said["thinking" if "thinking" in variables - {"enable_thinking"} else "enable_thinking"] = reasoning.enabled
    return said if reasoning.effort is None else {**said, "reasoning_effort": reasoning.effort}


def _kwargs(text: str | None, template: Template) -> Object:
    value = _json(text or "{}", "chat_template_kwargs")
    if not isinstance(value, dict):
        raise RequestError("chat_template_kwargs must be an object.", param="chat_template_kwargs")
    for name in value:
        if name in template.reserved or name.startswith("return_"):
            raise RequestError(f"chat_template_kwargs may not set {name!r}.", param="chat_template_kwargs")
    return value


def _documents(text: str | None) -> Json:
    value = _json(text or "null", "documents")
    if value is not None and not isinstance(value, list):
        raise RequestError("documents must be a list.", param="documents")
    return value


def _json(text: str, param: str) -> Json:
    try:
        return decode(text)
    except NotJson as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param) from error


def _escaped(char: str) -> str:
    """As a template writes it that asks for ASCII in its JSON."""
    return json.dumps(char)[1:-1]


def _unused(texts: list[str]) -> tuple[str, str]:
    """Two characters that occur nowhere, not even as JSON escapes."""
    whole = " ".join(texts)
    free = (char for char in map(chr, _NONCHARACTERS) if char not in whole and _escaped(char) not in whole)
    found = [char for char, _ in zip(free, range(2), strict=False)]
    if len(found) < 2:
        raise RequestError("The messages use every noncharacter of Unicode.", param="messages")
    return found[0], found[1]
