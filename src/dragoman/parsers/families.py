"""What a family of models is known by: its names, its marks, and what gives it away in a chat template.

The families themselves are in `thought_families` and `call_families`.
"""

from __future__ import annotations

from msgspec import Struct

from .frame import Frame, Syntax, Written

Signs = tuple[tuple[str, ...], ...]
"""Sets of texts; a chat template that has all texts of one set is of this family."""


class ThoughtFamily(Struct, frozen=True):
    """names: the first is the one in use, the others are what other servers or models call the same.

    The rest but `kept` is what ThinkFormat takes. kept: reasoning stays in the text, see KeptThinkFormat.
    """

    names: tuple[str, ...]
    models: str
    begin: str = "<think>"
    end: str = "</think>"
    after: str = ""
    dropped: str = "\n\n"
    unopened: bool = False
    kept: bool = False
    variants: tuple[tuple[str, str], ...] = ()
    answer: tuple[str, str] | None = None
    signs: Signs = ()


class CallFamily(Struct, frozen=True):
    """token, older: where the vocabulary is without this token, the family of that name is meant."""

    names: tuple[str, ...]
    models: str
    frame: Frame
    syntax: Syntax
    written: Written = Written()
    signs: Signs = ()
    token: str = ""
    older: str = ""


HARMONY_THOUGHTS, HARMONY_CALLS = ("openai_gptoss", "gpt_oss", "gpt-oss"), ("openai", "gpt_oss", "gpt-oss", "harmony")
"""gpt-oss: its messages are no marks around a thought or around calls, so that it has a parser of its own."""
HARMONY_SIGNS: Signs = (("<|channel|>", "<|message|>", "<|start|>"),)
