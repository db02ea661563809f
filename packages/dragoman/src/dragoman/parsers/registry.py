"""The registry of reasoning and tool formats: find one by name, detect one from a
template, and create its parser.

Other packages add formats in the entry point group `dragoman.parsers`, named
`reasoning.NAME` or `tools.NAME`. Each entry point is a callable that takes the texts of
the vocabulary's added tokens and returns a ReasoningFormat or a ToolFormat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from dragoman_cli.entry_points import find_entry_points, load_entry_point

from ..core.syntax import ParseContext, Parser, ReasoningFormat, ToolFormat, get_tool_names
from .call_families import CALL_FAMILIES
from .delimited_calls import DelimitedCallFormat
from .family_types import CallFamily, Fingerprints, ReasoningFamily
from .harmony import (
    HARMONY_FINGERPRINTS,
    HARMONY_REASONING_NAMES,
    HARMONY_TOOL_NAMES,
    HarmonyFormat,
)
from .parser_chain import chain_parsers
from .reasoning_families import REASONING_FAMILIES
from .response_template import ResponseTemplateFormat
from .think import InlineThinkFormat, ThinkFormat

GROUP = "dragoman.parsers"
NO_PARSER = "none"
DEFAULT_TOOL_FORMAT = "llama3_json"
"""The format of forced calls for a model without its own format: bare JSON, which needs
no marker.
"""

Format = TypeVar("Format")
FormatFactories = Mapping[str, Callable[[Collection[str]], Format]]


def _build_reasoning_factory(
    family: ReasoningFamily,
) -> Callable[[Collection[str]], ReasoningFormat]:
    format_type = InlineThinkFormat if family.keeps_in_text else ThinkFormat
    return lambda added_tokens: format_type(
        family.begin_marker,
        family.end_marker,
        family.template_suffix,
        stripped_suffix=family.stripped_suffix,
        starts_implicitly=family.starts_implicitly,
        marker_variants=family.marker_variants,
        answer_tags=family.answer_tags,
        message_end=family.message_end,
        added_tokens=added_tokens,
    )


def _build_tool_factory(family: CallFamily) -> Callable[[Collection[str]], ToolFormat]:
    def make(added_tokens: Collection[str]) -> ToolFormat:
        # Two generations of a model family share a parser name; only the newer one's
        # vocabulary has this token.
        is_older = (
            family.required_token and added_tokens and family.required_token not in added_tokens
        )
        selected = (
            next(
                candidate for candidate in CALL_FAMILIES if family.fallback_name in candidate.names
            )
            if is_older
            else family
        )
        return DelimitedCallFormat(
            selected.delimiters, selected.syntax, selected.template, added_tokens
        )

    return make


def _build_harmony(added_tokens: Collection[str]) -> ToolFormat:
    return HarmonyFormat(added_tokens=added_tokens)


def _build_harmony_reasoning(added_tokens: Collection[str]) -> ReasoningFormat:
    return HarmonyFormat(parses_calls=False, added_tokens=added_tokens)


REASONING_FACTORIES: FormatFactories[ReasoningFormat] = MappingProxyType(
    {
        name: _build_reasoning_factory(family)
        for family in REASONING_FAMILIES
        for name in family.names
    }
    | dict.fromkeys(HARMONY_REASONING_NAMES, _build_harmony_reasoning)
)
TOOL_FACTORIES: FormatFactories[ToolFormat] = MappingProxyType(
    {name: _build_tool_factory(family) for family in CALL_FAMILIES for name in family.names}
    | dict.fromkeys(HARMONY_TOOL_NAMES, _build_harmony)
)


def find_reasoning_format(name: str, added_tokens: Collection[str] = ()) -> ReasoningFormat | None:
    """Return the reasoning format of this name; None for `none`.

    added_tokens: texts of the vocabulary's added tokens, see `Buffer.is_marker`.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
    """
    return (
        None
        if name == NO_PARSER
        else _find_factory("reasoning", name, REASONING_FACTORIES)(added_tokens)
    )


def find_tool_format(name: str, added_tokens: Collection[str] = ()) -> ToolFormat | None:
    """Return the tool format of this name; None for `none`. See
    `find_reasoning_format`.
    """
    return None if name == NO_PARSER else _find_factory("tools", name, TOOL_FACTORIES)(added_tokens)


def _find_factory(
    kind: str, name: str, built_in: FormatFactories[Format]
) -> Callable[[Collection[str]], Format]:
    if name in built_in:
        return built_in[name]
    prefix = kind + "."
    if (factory := load_entry_point(GROUP, prefix + name)) is not None:
        return factory
    installed = [
        point.name.removeprefix(prefix)
        for point in find_entry_points(GROUP)
        if point.name.startswith(prefix)
    ]
    # Only after mistakes.
    from difflib import get_close_matches  # noqa: PLC0415

    names = sorted({NO_PARSER, *built_in, *installed})
    close_matches = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close_matches[0]!r}?" if close_matches else ""
    raise ValueError(f"There is no {kind} parser {name!r}.{hint} There are: {', '.join(names)}.")


def list_names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the built-in formats, for reasoning and for tools."""
    return (*REASONING_FACTORIES, NO_PARSER), (*TOOL_FACTORIES, NO_PARSER)


def detect_formats(
    template_source: str, added_tokens: Collection[str] = ()
) -> tuple[str | None, str | None]:
    """Detect the formats from a chat template. Return the names for reasoning and for
    tools, None if none matches.
    """
    # A template's string literals escape quotes (`\"name\"`); the fingerprints do not.
    source = template_source.replace("\\", "")
    if _match_fingerprints([("harmony", HARMONY_FINGERPRINTS)], source):
        return HARMONY_REASONING_NAMES[0], HARMONY_TOOL_NAMES[0]
    reasoning = _match_fingerprints(
        ((family.names[0], family.fingerprints) for family in REASONING_FAMILIES), source
    )
    # A template may leave both markers to the model; then only the vocabulary shows
    # that it reasons.
    if reasoning is None and {"<think>", "</think>"} <= set(added_tokens):
        reasoning = "think"
    return reasoning, _match_fingerprints(
        ((family.names[0], family.fingerprints) for family in CALL_FAMILIES), source
    )


def _match_fingerprints(families: Iterable[tuple[str, Fingerprints]], source: str) -> str | None:
    return next(
        (
            name
            for name, fingerprints in families
            if any(all(text in source for text in fingerprint) for fingerprint in fingerprints)
        ),
        None,
    )


def create_parser(
    reasoning: ReasoningFormat | None, tools: ToolFormat | None, context: ParseContext
) -> Parser:
    """Create the parser of one choice: reasoning first, then calls in the remaining
    text, if any tool is declared.

    A format of both yields one parser. Without a format all events pass through
    unchanged.
    """
    if isinstance(tools, HarmonyFormat) and isinstance(reasoning, HarmonyFormat):
        return tools.create_parser(context)
    parsers: list[Parser] = []
    if (
        isinstance(reasoning, ThinkFormat)
        and isinstance(tools, DelimitedCallFormat)
        and context.tools
    ):
        openers = () if tools.delimiters.leading else tools.call_openers
        list_heads = partial(tools.list_call_heads, get_tool_names(context.tools))
        parsers.append(reasoning.create_parser(context, openers, list_heads))
    elif reasoning is not None:
        parsers.append(reasoning.create_parser(context))
    # These parsers read the whole response, with or without calls.
    parses_everything = isinstance(tools, ResponseTemplateFormat | HarmonyFormat)
    # A response template is both formats, and must not parse its own output a second
    # time.
    if tools is not None and id(tools) != id(reasoning) and (context.tools or parses_everything):
        parsers.append(tools.create_parser(context))
    return parsers[0] if len(parsers) == 1 else chain_parsers(parsers)
