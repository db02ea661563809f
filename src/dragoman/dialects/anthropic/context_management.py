"""`context_management`: parses context edits, and renders the applied ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.events import AppliedEdit, ClearedKind
from ...core.request import ClearReasoning, ClearToolResults, Edit
from ..body import check_one_of, invalid_value, missing_parameter, read_json_value
from .wire import ContextManagement, EditThreshold, WireEdit

CLEAR_TOOL_USES, CLEAR_THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"

DEFAULT_TRIGGER_TOKENS, DEFAULT_KEEP_USES, DEFAULT_KEEP_TURNS = 100_000, 3, 1
"""Anthropic's defaults."""


def read_edits(management: ContextManagement | None, warnings: list[str]) -> tuple[Edit, ...]:
    """Parse the edits. Appends to `warnings` for unsupported ones. Raises RequestError."""
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
    above_tokens, above_uses = DEFAULT_TRIGGER_TOKENS, None
    if (trigger := edit.trigger) is not None:
        value = _read_threshold(trigger, ("input_tokens", "tool_uses"), f"{path}.trigger")
        above_tokens, above_uses = (value, None) if trigger.type == "input_tokens" else (DEFAULT_TRIGGER_TOKENS, value)
    clear_at_least = edit.clear_at_least
    inputs = edit.clear_tool_inputs
    return ClearToolResults(
        above_tokens=above_tokens,
        above_uses=above_uses,
        keep=_read_keep(edit, "tool_uses", DEFAULT_KEEP_USES, path),
        # Less than one token cleared would be no edit, and would be reported as applied.
        at_least=1
        if clear_at_least is None
        else max(1, _read_threshold(clear_at_least, ("input_tokens",), f"{path}.clear_at_least")),
        exclude=frozenset(edit.exclude_tools or ()),
        inputs=frozenset(inputs) if isinstance(inputs, list) else None if inputs else frozenset(),
    )


def _read_thinking_edit(edit: WireEdit, path: str) -> tuple[ClearReasoning, ...]:
    """Parse a thinking edit. `keep: all` is a no-op: the template decides which past thinking is included."""
    other_fields = (edit.trigger, edit.clear_at_least, edit.exclude_tools, edit.clear_tool_inputs)
    # A misplaced option would otherwise be ignored in silence, and the client would rely on it.
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
        raise invalid_value(f"{path}.keep", f'expected {{"type": "{unit}", "value": ...}}') from None
    return _read_threshold(threshold, (unit,), f"{path}.keep")


def _read_threshold(threshold: EditThreshold, units: Sequence[str], path: str) -> int:
    check_one_of(threshold.type, units, f"{path}.type")
    if threshold.value is None:
        raise missing_parameter(f"{path}.value")
    return threshold.value


def render_applied_edits(edits: Sequence[AppliedEdit]) -> bytes:
    """The `context_management` of a response."""
    return b'{"applied_edits":[%s]}' % b",".join(map(_render_edit, edits))


def _render_edit(edit: AppliedEdit) -> bytes:
    name, unit = (
        (CLEAR_TOOL_USES, "tool_uses") if edit.cleared is ClearedKind.RESULTS else (CLEAR_THINKING, "thinking_turns")
    )
    text = f'{{"type":"{name}","cleared_{unit}":{edit.count},"cleared_input_tokens":{edit.tokens}}}'
    return text.encode()
