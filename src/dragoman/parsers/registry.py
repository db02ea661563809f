"""Formats by name, and the parser of one choice made of them. Knows every format, but no tokenizer and no template.

A third party adds its own under the entry points group `dragoman.parsers`, named `reasoning.NAME` or `tools.NAME`:
a callable that takes the texts of the vocabulary's added tokens and returns a ReasoningFormat or a ToolFormat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

from ..core.syntax import ParseContext, Parser, ReasoningFormat, ToolFormat
from .base import chain
from .call_families import CALLS
from .families import HARMONY_CALLS, HARMONY_SIGNS, HARMONY_THOUGHTS, CallFamily, Signs, ThoughtFamily
from .frame import FramedFormat
from .harmony import HarmonyFormat
from .response_template import ResponseTemplateFormat
from .think import KeptThinkFormat, ThinkFormat
from .thought_families import THOUGHTS

GROUP = "dragoman.parsers"
NONE = "none"

Format = TypeVar("Format")
Makers = Mapping[str, Callable[[Collection[str]], Format]]


def _thinks(family: ThoughtFamily) -> Callable[[Collection[str]], ReasoningFormat]:
    format = KeptThinkFormat if family.kept else ThinkFormat
    return lambda added: format(
        family.begin,
        family.end,
        family.after,
        dropped=family.dropped,
        unopened=family.unopened,
        variants=family.variants,
        answer=family.answer,
        added=added,
    )


def _calls(family: CallFamily) -> Callable[[Collection[str]], ToolFormat]:
    def make(added: Collection[str]) -> ToolFormat:
        older = family.token and added and family.token not in added
        meant = next(one for one in CALLS if family.older in one.names) if older else family
        return FramedFormat(meant.frame, meant.syntax, meant.written, added)

    return make


def _harmony(added: Collection[str]) -> ToolFormat:
    return HarmonyFormat(added=added)


def _harmony_but_calls(added: Collection[str]) -> ReasoningFormat:
    return HarmonyFormat(calls=False, added=added)


REASONING: Makers[ReasoningFormat] = MappingProxyType(
    {name: _thinks(family) for family in THOUGHTS for name in family.names}
    | dict.fromkeys(HARMONY_THOUGHTS, _harmony_but_calls)
)
TOOLS: Makers[ToolFormat] = MappingProxyType(
    {name: _calls(family) for family in CALLS for name in family.names} | dict.fromkeys(HARMONY_CALLS, _harmony)
)


def reasoning(name: str, added: Collection[str] = ()) -> ReasoningFormat | None:
    """The format of this name; None for `none`. added: texts of the vocabulary's added tokens, see `is_mark` in base.

    Raises ValueError, with what there is, for a name that nobody knows.
    """
    return None if name == NONE else _find("reasoning", name, REASONING)(added)


def tools(name: str, added: Collection[str] = ()) -> ToolFormat | None:
    """As `reasoning`, for tool calls."""
    return None if name == NONE else _find("tools", name, TOOLS)(added)


def _find(kind: str, name: str, known: Makers[Format]) -> Callable[[Collection[str]], Format]:
    if name in known:
        return known[name]
    others = _installed(kind)
    if name in others:
        return others[name].load()
    names = sorted({NONE, *known, *others})
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"There is no {kind} parser {name!r}.{hint} There are: {', '.join(names)}.")


def _installed(kind: str) -> dict[str, EntryPoint]:
    prefix = kind + "."
    return {
        found.name.removeprefix(prefix): found for found in entry_points(group=GROUP) if found.name.startswith(prefix)
    }


def names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the built-in formats: of reasoning, of tools."""
    return (*REASONING, NONE), (*TOOLS, NONE)


def detect(template_source: str, added: Collection[str] = ()) -> tuple[str | None, str | None]:
    """What a model's chat template gives away: names for `reasoning` and `tools`, None where it gives nothing away."""
    source = template_source.replace("\\", "")
    if _detected([("harmony", HARMONY_SIGNS)], source):
        return HARMONY_THOUGHTS[0], HARMONY_CALLS[0]
    reasoning = _detected(((family.names[0], family.signs) for family in THOUGHTS), source)
    if reasoning is None and {"<think>", "</think>"} <= set(added):
        reasoning = "think"
    return reasoning, _detected(((family.names[0], family.signs) for family in CALLS), source)


def _detected(families: Iterable[tuple[str, Signs]], source: str) -> str | None:
    return next((name for name, signs in families if any(all(text in source for text in one) for one in signs)), None)


def parser(reasoning: ReasoningFormat | None, tools: ToolFormat | None, context: ParseContext) -> Parser:
    """The parser of one choice: reasoning first, then calls in the text that is left, if any tool is declared.

    A format that is both makes one parser. Without any, everything passes through.
    """
    if isinstance(tools, HarmonyFormat) and isinstance(reasoning, HarmonyFormat):
        return tools.parser(context)
    parsers: list[Parser] = []
    if isinstance(reasoning, ThinkFormat) and isinstance(tools, FramedFormat) and context.tools:
        parsers.append(reasoning.parser(context, () if tools.frame.leading else tools.openers))
    elif reasoning is not None:
        parsers.append(reasoning.parser(context))
    everything = isinstance(tools, ResponseTemplateFormat | HarmonyFormat)  # they read all of an answer, calls or not
    if tools is not None and id(tools) != id(reasoning) and (context.tools or everything):
        parsers.append(tools.parser(context))
    return chain(parsers)
