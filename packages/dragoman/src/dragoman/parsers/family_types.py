"""The types that describe the formats of a model family."""

from __future__ import annotations

from msgspec import Struct

from .delimited_calls import CallSyntaxSpec, CallTemplate, Delimiters

Fingerprints = tuple[tuple[str, ...], ...]
"""Sets of texts; a chat template that contains all texts of one set belongs to the
family.
"""


class ReasoningFamily(Struct, frozen=True):
    """A family of models with the same reasoning format.

    names: the first is the format's name, the others are aliases used by other servers
        or models.
    models: the models, for the documentation.
    keeps_in_text: reasoning stays in the text, see InlineThinkFormat.
    fingerprints: identify the family's chat templates.

    The other fields are parameters of ThinkFormat.
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
    """A family of models with the same tool call format.

    names: the first is the format's name, the others are aliases used by other servers
        or models.
    models: the models, for the documentation.
    template: the texts around enforced calls.
    fingerprints: identify the family's chat templates.
    required_token: an added token of this family's vocabularies; "" for none.
    fallback_name: the family to use instead where the vocabulary lacks
        `required_token`.
    """

    names: tuple[str, ...]
    models: str
    delimiters: Delimiters
    syntax: CallSyntaxSpec
    template: CallTemplate = CallTemplate()
    fingerprints: Fingerprints = ()
    required_token: str = ""
    fallback_name: str = ""
