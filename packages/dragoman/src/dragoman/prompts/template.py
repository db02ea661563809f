"""What a chat template is to those that render it.

It is compiled by `chat_template`, which is imported where a model has one: jinja2 takes
as long to import as fifty modules of this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

GENERATION_MARK = "dragoman_generation_mark"
"""The variable whose value is written where the generation prompt begins; if it is not
set, nothing is written.
"""


class TemplateFeatures(Struct, frozen=True):
    """The features of a chat template.

    accepts_strings: the content of a message may be a string.
    accepts_parts: the content of a message may be a list of `{"type": "text", "text":
        ...}`.
    needs_string_arguments: a call's arguments must be JSON text, not an object:
        Functionary v3.2 concatenates them.
    accepts_null_content: the content of a message with tool calls may be None.
    supports_developer: the template handles the role `developer`.
    supports_tools: the template renders tools.
    variables: names of the variables that the template reads, except those that every
        template has.
    fields: names of attributes and keys that the template reads anywhere.
    literals: texts that the template writes or compares with.
    split_separators: separators that the template passes to `split`.
    replaces_text: the template calls `replace` on strings.
    marks_generation: the template writes `GENERATION_MARK` where the generation prompt
        begins; see `insert_generation_mark`.
    reads_generation: the template reads `add_generation_prompt`.
    shows_names: the template writes the name of a message's participant.
    """

    accepts_strings: bool
    accepts_parts: bool
    needs_string_arguments: bool
    accepts_null_content: bool
    supports_developer: bool
    supports_tools: bool
    variables: frozenset[str]
    fields: frozenset[str]
    literals: frozenset[str]
    split_separators: frozenset[str]
    replaces_text: bool
    marks_generation: bool = False
    reads_generation: bool = True
    shows_names: bool = False

    @property
    def supports_thinking(self) -> bool:
        return bool(self.variables & {"enable_thinking", "thinking"})

    @property
    def supports_reasoning_effort(self) -> bool:
        return "reasoning_effort" in self.variables


class Template(Protocol):
    """A template, whether it is rendered in this process or in a worker process.

    source: Jinja text.
    special_tokens: constants such as `bos_token` and `eos_token`.
    reserved_names: variables that a client must not set.
    """

    @property
    def source(self) -> str: ...

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    @property
    def reserved_names(self) -> frozenset[str]: ...

    @property
    def features(self) -> TemplateFeatures: ...
