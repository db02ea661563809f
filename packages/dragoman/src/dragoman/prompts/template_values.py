"""The values that a template receives for one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import filterfalse

from ..core.errors import RequestError
from ..core.json_types import JsonObject, JsonValue
from ..core.message import Role, Tool
from ..core.request import Conversation
from .json_values import InvalidJson, decode
from .template import Template
from .template_messages import (
    MessageOptions,
    StringVisitor,
    build_message_values,
    build_tool_values,
    map_strings,
)


class TemplateValues:
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

    def build_all(
        self,
        visit: StringVisitor,
        tool_values: list[JsonValue],
        visit_message: StringVisitor | None = None,
    ) -> JsonObject:
        """Build the values of all variables.

        tool_values: the values of the tools.
        visit_message: maps the strings of messages; None means `visit`.
        """
        messages: list[JsonValue] = [
            *build_message_values(self._messages, self._message_options, visit_message or visit)
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


def _decode_json(text: str, param: str) -> JsonValue:
    try:
        return decode(text)
    except InvalidJson as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param) from error
