"""Reads a script from a YAML, JSON or JSON lines file. Every error names the file, the
entry and its line.

- Hello!                                   # a text reply, used once
- match: {contains: weather, tool: get_weather}
  reply:
    - reasoning: They want to know the weather.
    - tool: {name: get_weather, arguments: {city: Paris}}
- match: {role: tool}
  reply: It is 18 degrees.
  chunks: words
- reply: [{text: So far so}, {delay: 0.5}, {error: {status: 503, message: Out of memory}}]
  times: 2
- reply: {text: [Cut, " exactly", " so"]}
  usage: {prompt: 10, cached: 8}
  finish: length
  repeat: true
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from ...core.events import FinishReason
from .match_rule import MatchRule
from .script import (
    CallTool,
    Chunks,
    Fail,
    Part,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    Think,
    UsageOverride,
    Wait,
)


class ScriptError(ValueError):
    """An invalid script file; the message names the place and the reason."""


class _Tool(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | list[str] | str = {}
    id: str | None = None

    def to_part(self) -> CallTool:
        match self.arguments:
            case dict():
                # YAML has NaN, infinity, dates and sets; JSON does not.
                try:
                    arguments = json.dumps(self.arguments, ensure_ascii=False, allow_nan=False)
                except TypeError as error:
                    raise ValueError(
                        f"arguments of {self.name}: {error}; quote the value to make it a string"
                    ) from None
                return CallTool(self.name, arguments, self.id)
            case list():
                return CallTool(self.name, tuple(self.arguments), self.id)
            case _:
                return CallTool(self.name, self.arguments, self.id)


class _Error(Fail, frozen=True, forbid_unknown_fields=True):
    """A Fail, with unknown fields rejected."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | list[str] | None = None
    reasoning: str | list[str] | None = None
    refusal: str | list[str] | None = None
    tool: _Tool | None = None
    error: _Error | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        present = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(present) != 1:
            names = " and ".join(present) or "none"
            raise ValueError(
                f"a part is one of {', '.join(self.__struct_fields__)}; this has {names}"
            )

    def to_part(self) -> Part:
        if self.text is not None:
            return Say(_to_pieces(self.text))
        if self.reasoning is not None:
            return Think(_to_pieces(self.reasoning))
        if self.refusal is not None:
            return Refuse(_to_pieces(self.refusal))
        if self.tool is not None:
            return self.tool.to_part()
        return self.error or Wait(self.delay or 0.0)


_Reply = str | _Part | list[_Part]


class _Match(Struct, frozen=True, forbid_unknown_fields=True):
    contains: str | list[str] = []
    equals: str | None = None
    glob: str | None = None
    role: Literal["user", "tool"] | None = None
    model: str | None = None
    tool: str | None = None

    def to_match(self) -> MatchRule:
        contains = (self.contains,) if isinstance(self.contains, str) else tuple(self.contains)
        return MatchRule(contains, self.equals, self.glob, self.role, self.model, self.tool)


class _Usage(UsageOverride, frozen=True, forbid_unknown_fields=True):
    """A UsageOverride, with unknown fields rejected."""


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    reply: _Reply
    match: _Match | None = None
    more: list[_Reply] = []
    times: int | None = None
    repeat: bool = False
    delay: float = 0.0
    pace: float = 0.0
    chunks: Chunks = "tokens"
    finish: Literal["stop", "length", "context_length", "content_filter"] = "stop"
    usage: _Usage = _Usage()

    def to_entry(self) -> ScriptEntry:
        return ScriptEntry(
            _build_parts(self.reply),
            self.match.to_match() if self.match is not None else None,
            tuple(map(_build_parts, self.more)),
            self.times,
            self.repeat,
            self.delay,
            self.pace,
            self.chunks,
            FinishReason(self.finish),
            self.usage,
        )


def load_script(path: Path) -> Script:
    """Load a script. Raises ScriptError if the file cannot be read or is invalid."""
    readers = {
        ".yaml": _read_yaml,
        ".yml": _read_yaml,
        ".json": _read_json,
        ".jsonl": _read_json_lines,
        ".ndjson": _read_json_lines,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ScriptError(
            f"{path}: the name of a script file must end in one of {', '.join(readers)}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path}: {error}") from None
    entries: list[ScriptEntry] = []
    try:
        for number, (line, value) in enumerate(reader(text), 1):
            entries.append(read_entry(value, f"{path}, entry {number} (line {line})"))
    # A ScriptError is a ValueError too, but it already names the entry.
    except ScriptError:
        raise
    except (ValueError, RecursionError) as error:
        raise ScriptError(f"{path}: {error}") from None
    if not entries:
        raise ScriptError(f"{path}: a script needs at least one entry")
    return Script(tuple(entries))


def read_entry(value: object, where: str) -> ScriptEntry:
    """Read one entry from decoded JSON or YAML. where: the place for error messages.
    Raises ScriptError.
    """
    try:
        # Finds unpaired surrogates anywhere in the entry, which would fail only when
        # the reply is sent. YAML's dates, which are not JSON, must not fail here: hence
        # `default`.
        json.dumps(value, ensure_ascii=False, default=str).encode()
        if isinstance(value, str):
            return ScriptEntry((Say(value),))
        return msgspec.convert(value, _Entry).to_entry()
    except UnicodeEncodeError:
        raise ScriptError(f"{where}: an unpaired surrogate is not valid text") from None
    except (ValueError, RecursionError) as error:
        # msgspec's message, with the place first.
        problem, _, path = str(error).rpartition(" - at `$")
        message = f"{path.rstrip('`').lstrip('.')}: {problem}" if problem else str(error)
        raise ScriptError(f"{where}: {message}") from None


def _build_parts(reply: _Reply) -> tuple[Part, ...]:
    match reply:
        case str():
            return (Say(reply),)
        case _Part():
            return (reply.to_part(),)
        case list():
            return tuple(part.to_part() for part in reply)


def _to_pieces(text: str | list[str]) -> str | tuple[str, ...]:
    return text if isinstance(text, str) else tuple(text)


def _read_json_lines(text: str) -> Iterator[tuple[int, object]]:
    # Not splitlines: a JSON string may contain U+2028 and other separators unescaped.
    for line, raw in enumerate(text.split("\n"), 1):
        if raw.strip():
            try:
                yield line, json.loads(raw, object_pairs_hook=_reject_duplicate_keys)
            except ValueError as error:
                raise ValueError(f"line {line}: {error}") from None


def _read_json(text: str) -> Iterator[tuple[int, object]]:
    """Read item by item, so that each has its line number."""
    decoder = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys)
    # Parse the whole file first: its errors have positions in the file. Then parse item
    # by item, for their lines.
    document: object = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    if not isinstance(document, list):
        raise ValueError("a script is a list of entries")
    line = 1
    counted = 0
    at = text.index("[") + 1
    for _ in cast("list[object]", document):
        while text[at] in " \t\r\n,":
            at += 1
        line = line + text.count("\n", counted, at)
        counted = at
        value, at = decoder.raw_decode(text, at)
        yield line, value


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    duplicate = next((key for key in keys if keys.count(key) > 1), None)
    if duplicate is not None:
        raise ValueError(f"{duplicate!r} appears twice")
    return dict(pairs)


def _read_yaml(text: str) -> Iterator[tuple[int, object]]:
    from ...core.strict_yaml import load_yaml_items  # noqa: PLC0415 - yaml takes long to import

    items = load_yaml_items(text)
    if items is None:
        raise ValueError("a script is a list of entries")
    yield from items
