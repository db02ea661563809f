"""Formats by name, and the parser of one choice made of them. Knows every format, but no tokenizer and no template.

A third party adds its own under the entry points group `dragoman.parsers`, named `reasoning.NAME` or `tools.NAME`:
a callable that takes the texts of the vocabulary's added tokens and returns a ReasoningFormat or a ToolFormat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

from ..core.syntax import ParseContext, Parser, ReasoningFormat, ToolFormat
from .base import chain
from .hermes import CLOSE, OPEN, HermesFormat
from .response_template import ResponseTemplateFormat
from .think import ThinkFormat

GROUP = "dragoman.parsers"
NONE = "none"

Format = TypeVar("Format")
Makers = Mapping[str, Callable[[Collection[str]], Format]]


def _think(added: Collection[str]) -> ReasoningFormat:
    return ThinkFormat(added=added)


def _think_unopened(added: Collection[str]) -> ReasoningFormat:
    return ThinkFormat(unopened=True, added=added)


def _hermes(added: Collection[str]) -> ToolFormat:
    return HermesFormat(added=added)


REASONING: Makers[ReasoningFormat] = MappingProxyType(
    {"think": _think, "deepseek_r1": _think, "qwen3": _think, "think_unopened": _think_unopened}
)
TOOLS: Makers[ToolFormat] = MappingProxyType(
    {"hermes": _hermes, "qwen2_5": _hermes, "qwen25": _hermes, "qwen3": _hermes}
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
    thinks = "<think>" in source or "</think>" in source or {"<think>", "</think>"} <= set(added)
    as_json = OPEN in source and CLOSE in source and '"name"' in source and "arguments" in source
    as_xml = "<function=" in source or "<arg_key>" in source or "<parameter" in source
    return "think" if thinks else None, "hermes" if as_json and not as_xml else None


def parser(reasoning: ReasoningFormat | None, tools: ToolFormat | None, context: ParseContext) -> Parser:
    """The parser of one choice: reasoning first, then calls in the text that is left, if any tool is declared.

    A format that is both makes one parser. Without any, everything passes through.
    """
    parsers = [] if reasoning is None else [reasoning.parser(context)]
    everything = isinstance(tools, ResponseTemplateFormat)  # it reads all of an answer, calls or not
    if tools is not None and id(tools) != id(reasoning) and (context.tools or everything):
        parsers.append(tools.parser(context))
    return chain(parsers)
