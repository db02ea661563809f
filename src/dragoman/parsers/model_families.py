"""The description of a model family: its names, its markers, and its fingerprints in chat templates.

The families themselves are in `reasoning_families` and `call_families`.
"""

from __future__ import annotations

from msgspec import Struct

from .delimited_calls import CallSyntaxSpec, CallTemplate, Delimiters

Fingerprints = tuple[tuple[str, ...], ...]
"""Sets of texts; a chat template that contains all texts of one set belongs to the family."""


class ReasoningFamily(Struct, frozen=True):
    """A family of reasoning models.

    names: the first is the current one, the others are aliases in other servers or models.
    models: for the documentation.
    keeps_in_text: reasoning stays in the text, see InlineThinkFormat.

    The others are parameters of ThinkFormat.
    """

    names: tuple[str, ...]
    models: str
    begin_marker: str = "<think>"
    end_marker: str = "</think>"
    template_suffix: str = ""
    stripped_suffix: str = "\n\n"
    starts_implicitly: bool = False
    keeps_in_text: bool = False
    marker_variants: tuple[tuple[str, str], ...] = ()
    answer_tags: tuple[str, str] | None = None
    message_end: str = ""
    fingerprints: Fingerprints = ()


class CallFamily(Struct, frozen=True):
    """A family of tool call formats.

    required_token, fallback_name: where the vocabulary lacks this token, the family of that name is used.
    """

    names: tuple[str, ...]
    models: str
    delimiters: Delimiters
    syntax: CallSyntaxSpec
    template: CallTemplate = CallTemplate()
    fingerprints: Fingerprints = ()
    required_token: str = ""
    fallback_name: str = ""


HARMONY_REASONING_NAMES, HARMONY_TOOL_NAMES = (
    ("openai_gptoss", "gpt_oss", "gpt-oss"),
    ("openai", "gpt_oss", "gpt-oss", "harmony"),
)
"""gpt-oss: its markers separate messages instead of enclosing reasoning or calls, so it has a parser of its own."""
HARMONY_FINGERPRINTS: Fingerprints = (("<|channel|>", "<|message|>", "<|start|>"),)
