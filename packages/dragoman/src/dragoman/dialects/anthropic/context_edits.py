"""Context edits of Messages: the requested ones, the applied ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.events import (
    AppliedEdit,
    ClearedKind,
)
from ...core.request import ClearReasoning, ClearToolResults, Edit
from ..field_errors import check_one_of, invalid_value, missing_parameter
from ..request_body import read_json_value
from .wire import ContextManagement, EditThreshold, WireEdit

CLEAR_TOOL_USES = "clear_tool_uses_20250919"


CLEAR_THINKING = "clear_thinking_20251015"


DEFAULT_TRIGGER_TOKENS = 100_000


DEFAULT_KEEP_USES = 3


DEFAULT_KEEP_TURNS = 1
"""Anthropic's defaults: prompt tokens that trigger an edit, and tool uses and thinking
turns that it keeps.
"""


def read_edits(management: ContextManagement | None, warnings: list[str]) -> tuple[Edit, ...]:
    """Parse the context edits of a request. Raises RequestError.

    warnings: receives a warning for each unsupported edit.
    """
    edits: list[Edit] = []
    for i, edit in enumerate(management.edits or () if management else ()):
        path = f"context_management.edits[{i}]"
        if edit.type == CLEAR_TOOL_USES:
            edits.append(_read_tool_results_edit(edit, path))
        elif edit.type == CLEAR_THINKING:
            edits += _read_thinking_edit(edit, path)
        else:
            warnings.append(f"{path}: {edit.type[:64]} is not supported")
    return tuple(edits)


def _read_tool_results_edit(edit: WireEdit, path: str) -> ClearToolResults:
    above_tokens = DEFAULT_TRIGGER_TOKENS
    above_uses = None
    if (trigger := edit.trigger) is not None:
        value = _read_threshold(trigger, ("input_tokens", "tool_uses"), f"{path}.trigger")
        above_tokens, above_uses = (
            (value, None) if trigger.type == "input_tokens" else (DEFAULT_TRIGGER_TOKENS, value)
        )
    clear_at_least = edit.clear_at_least
    inputs = edit.clear_tool_inputs
    return ClearToolResults(
        above_tokens=above_tokens,
        above_uses=above_uses,
        keep=_read_keep(edit, "tool_uses", DEFAULT_KEEP_USES, path),
        # At least 1: an edit that clears nothing must not be reported as applied.
        at_least=1
        if clear_at_least is None
        else max(1, _read_threshold(clear_at_least, ("input_tokens",), f"{path}.clear_at_least")),
        exclude=frozenset(edit.exclude_tools or ()),
        inputs=frozenset(inputs) if isinstance(inputs, list) else None if inputs else frozenset(),
    )


def _read_thinking_edit(edit: WireEdit, path: str) -> tuple[ClearReasoning, ...]:
    """Parse a thinking edit. `keep: all` is a no-op: the template decides which past
    thinking is included.
    """
    other_fields = (edit.trigger, edit.clear_at_least, edit.exclude_tools, edit.clear_tool_inputs)
    # Options of other edits are rejected, since a client would rely on them.
    if any(field is not None for field in other_fields):
        raise invalid_value(path, f"{CLEAR_THINKING} has `keep` and nothing else")
    if read_json_value(edit.keep, f"{path}.keep") in ("all", {"type": "all"}):
        return ()
    keep = _read_keep(edit, "thinking_turns", DEFAULT_KEEP_TURNS, path)
    if not keep:
        raise invalid_value(f"{path}.keep.value", "expected an integer >= 1")
    return (ClearReasoning(keep),)


def _read_keep(edit: WireEdit, unit: str, default: int, path: str) -> int:
    value = read_json_value(edit.keep, f"{path}.keep")
    if value is None:
        return default
    try:
        threshold = msgspec.convert(value, EditThreshold)
    except msgspec.ValidationError:
        raise invalid_value(
            f"{path}.keep", f'expected {{"type": "{unit}", "value": ...}}'
        ) from None
    return _read_threshold(threshold, (unit,), f"{path}.keep")


def _read_threshold(threshold: EditThreshold, units: Sequence[str], path: str) -> int:
    check_one_of(threshold.type, units, f"{path}.type")
    if threshold.value is None:
        raise missing_parameter(f"{path}.value")
    return threshold.value


def render_applied_edits(edits: Sequence[AppliedEdit]) -> bytes:
    """Serialize the `context_management` of a response."""
    results = (CLEAR_TOOL_USES, "tool_uses")
    thinking = (CLEAR_THINKING, "thinking_turns")
    entries: list[str] = []
    for edit in edits:
        name, unit = results if edit.cleared is ClearedKind.RESULTS else thinking
        entries.append(
            f'{{"type":"{name}","cleared_{unit}":{edit.count},"cleared_input_tokens":{edit.tokens}}}'
        )
    return f'{{"applied_edits":[{",".join(entries)}]}}'.encode()
