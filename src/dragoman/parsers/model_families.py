"""What a family of models is known by: its names, its marks, and what gives it away in a chat template.

The families themselves are in `thought_families` and `call_families`.
"""

from __future__ import annotations

from msgspec import Struct

from .delimited_calls import CallSyntaxSpec, CallTemplate, Delimiters

Fingerprints = tuple[tuple[str, ...], ...]
"""Sets of texts; a chat template that has all texts of one set is of this family."""


class ReasoningFamily(Struct, frozen=True):
    """names: the first is the one in use, the others are what other servers or models call the same.

    The rest but `kept` is what ThinkFormat takes. kept: reasoning stays in the text, see KeptThinkFormat.
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
    fingerprints: Fingerprints = ()


class CallFamily(Struct, frozen=True):
    """token, older: where the vocabulary is without this token, the family of that name is meant."""

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
"""gpt-oss: its messages are no marks around a thought or around calls, so that it has a parser of its own."""
HARMONY_FINGERPRINTS: Fingerprints = (("<|channel|>", "<|message|>", "<|start|>"),)
