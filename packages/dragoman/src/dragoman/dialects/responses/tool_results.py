"""Reads what the operator's tools return for hosted tools: the files that a search has
found, and the output of commands.

The shapes are those that `docs/mcp.md` documents. A tool may return anything, so what
does not fit is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from ...core.server_tools import TIMED_OUT, ToolOutcome
from ..json_encoding import encode_int, encode_string, encode_string_or_null, escape_line_breaks

MAX_RESULTS = 50
"""Maximum files of a search: the highest `max_num_results`."""
MAX_OUTPUTS = 100
"""Maximum outputs of commands of one call."""
MAX_ATTRIBUTES = 16
"""OpenAI's limit of a file's attributes."""
_MAX_NAME = 512
_MAX_SAFE_INTEGER = 2**53

Fields = Mapping[str, object]


class FoundFile(Struct, frozen=True, kw_only=True):
    """A result of a file search; what the tool did not return is None."""

    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    text: str | None = None
    attributes: dict[str, str | float | bool] | None = None

    def render(self) -> bytes:
        attributes = b"null" if self.attributes is None else _encode(self.attributes)
        return b'{"file_id":%s,"filename":%s,"score":%s,"attributes":%s,"text":%s}' % (
            encode_string_or_null(self.file_id), encode_string_or_null(self.filename),
            b"null" if self.score is None else _encode(self.score), attributes,
            encode_string_or_null(self.text),
        )  # fmt: skip


class CommandOutput(Struct, frozen=True, kw_only=True):
    """What a command has written. exit_code: None if it did not end in time."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = 0

    def render(self) -> bytes:
        outcome = (
            b'{"type":"timeout"}'
            if self.exit_code is None
            else b'{"type":"exit","exit_code":%s}' % encode_int(self.exit_code)
        )
        return b'{"stdout":%s,"stderr":%s,"outcome":%s}' % (
            encode_string(self.stdout),
            encode_string(self.stderr),
            outcome,
        )


def read_found_files(outcome: ToolOutcome) -> list[FoundFile]:
    """Read the results of a search. Output in another form is one result with text."""
    entries = _find_list(_decode(outcome.structured), _RESULT_LISTS)
    if entries is None:
        entries = _find_list(_decode(outcome.text), _RESULT_LISTS)
    if entries is None:
        return [FoundFile(text=outcome.text)] if outcome.text else []
    files = (_read_file(entry) for entry in map(_get_fields, entries) if entry)
    return [file for file in files if file != FoundFile()][:MAX_RESULTS]


def read_command_outputs(outcome: ToolOutcome) -> list[CommandOutput]:
    """Read the outputs of the commands of a call that was made. Output in another form is
    that of one command.
    """
    exit_code = 0 if outcome.failure is None else 1
    structured = _decode(outcome.structured)
    entries = _find_list(structured, ("output",))
    if entries is None:
        fields = _get_fields(structured)
        entries = [fields] if fields.keys() & _OUTPUT_FIELDS else []
    outputs = [_read_output(entry, exit_code) for entry in map(_get_fields, entries) if entry]
    if outputs:
        return outputs[:MAX_OUTPUTS]
    if outcome.failure is None:
        return [CommandOutput(stdout=outcome.text)]
    has_time = outcome.code != TIMED_OUT
    return [CommandOutput(stderr=outcome.text, exit_code=exit_code if has_time else None)]


_RESULT_LISTS = ("results", "data", "result")
"""Names of a list of results: ours, that of OpenAI's search of a vector store, and the
one in which FastMCP wraps a list.
"""
_OUTPUT_FIELDS = {"stdout", "stderr", "exit_code", "timed_out", "outcome"}


def _find_list(value: object, names: Sequence[str]) -> list[object] | None:
    if isinstance(value, list):
        return cast("list[object]", value)
    fields = _get_fields(value)
    lists = (fields[name] for name in names if isinstance(fields.get(name), list))
    return cast("list[object] | None", next(lists, None))


def _read_file(fields: Fields) -> FoundFile:
    attributes = {
        name: attribute
        for name, value in _get_fields(fields.get("attributes")).items()
        if (attribute := value if isinstance(value, str | bool) else _get_number(value)) is not None
    }
    return FoundFile(
        file_id=_get_text(fields, "file_id", _MAX_NAME),
        filename=_get_text(fields, "filename", _MAX_NAME),
        score=_get_number(fields.get("score")),
        text=_get_text(fields, "text") or _join_content(fields.get("content")),
        attributes=dict(list(attributes.items())[:MAX_ATTRIBUTES]) or None,
    )


def _join_content(content: object) -> str | None:
    """Return a text, or the texts of a list of parts."""
    if isinstance(content, str):
        return content or None
    parts = cast("list[object]", content) if isinstance(content, list) else []
    texts = (_get_text(_get_fields(part), "text") for part in parts)
    return "\n".join(filter(None, texts)) or None


def _read_output(fields: Fields, exit_code: int) -> CommandOutput:
    outcome = _get_fields(fields.get("outcome"))
    codes = (fields.get("exit_code"), outcome.get("exit_code"))
    code = next((code for code in codes if type(code) is int and abs(code) < 2**31), exit_code)
    has_timed_out = fields.get("timed_out") is True or outcome.get("type") == "timeout"
    return CommandOutput(
        stdout=_get_text(fields, "stdout") or "",
        stderr=_get_text(fields, "stderr") or "",
        exit_code=None if has_timed_out else code,
    )


def _decode(text: str | None) -> object:
    try:
        return None if not text else msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _encode(value: object) -> bytes:
    return escape_line_breaks(msgspec.json.encode(value))


def _get_fields(value: object) -> Fields:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _get_text(fields: Fields, name: str, max_length: int | None = None) -> str | None:
    value = fields.get(name)
    return value[:max_length] or None if isinstance(value, str) else None


def _get_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Larger integers have no exact double.
    return value if math.isfinite(value) and abs(value) <= _MAX_SAFE_INTEGER else None
