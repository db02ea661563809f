"""`context_management`: what of a conversation may be cleared, and how an answer tells what was."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.events import Cleared, Edited
from ...core.request import ClearReasoning, ClearResults, Edit
from ..body import invalid, json_value, missing, one_of
from .wire import ContextManagement, Measure, WireEdit

TOOL_USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"

TRIGGER, KEPT_USES, KEPT_TURNS = 100_000, 3, 1
"""Anthropic's defaults."""


def read_edits(management: ContextManagement | None, warnings: list[str]) -> tuple[Edit, ...]:
    """warnings: of the edits that are not made are added. Raises RequestError."""
    out: list[Edit] = []
    for i, edit in enumerate(management.edits or () if management else ()):
        at = f"context_management.edits[{i}]"
        if edit.type == TOOL_USES:
            out.append(_results(edit, at))
        elif edit.type == THINKING:
            out += _reasoning(edit, at)
        else:
            warnings.append(f"{at}: {edit.type[:64]} is not supported")
    return tuple(out)


def _results(edit: WireEdit, at: str) -> ClearResults:
    tokens, uses = TRIGGER, None
    if (trigger := edit.trigger) is not None:
        value = _value(trigger, ("input_tokens", "tool_uses"), f"{at}.trigger")
        tokens, uses = (value, None) if trigger.type == "input_tokens" else (TRIGGER, value)
    least = edit.clear_at_least
    inputs = edit.clear_tool_inputs
    return ClearResults(
        above_tokens=tokens,
        above_uses=uses,
        keep=_kept(edit, "tool_uses", KEPT_USES, at),
        at_least=1 if least is None else max(1, _value(least, ("input_tokens",), f"{at}.clear_at_least")),
        exclude=frozenset(edit.exclude_tools or ()),
        inputs=frozenset(inputs) if isinstance(inputs, list) else None if inputs else frozenset(),
    )


def _reasoning(edit: WireEdit, at: str) -> tuple[ClearReasoning, ...]:
    """What past thinking a model sees is its template's business where all is kept."""
    told = (edit.trigger, edit.clear_at_least, edit.exclude_tools, edit.clear_tool_inputs)
    if any(each is not None for each in told):
        raise invalid(at, f"{THINKING} has `keep` and nothing else")
    if json_value(edit.keep, f"{at}.keep") in ("all", {"type": "all"}):
        return ()
    keep = _kept(edit, "thinking_turns", KEPT_TURNS, at)
    if not keep:
        raise invalid(f"{at}.keep.value", "expected an integer >= 1")
    return (ClearReasoning(keep),)


def _kept(edit: WireEdit, unit: str, default: int, at: str) -> int:
    said = json_value(edit.keep, f"{at}.keep")
    if said is None:
        return default
    try:
        measure = msgspec.convert(said, Measure)
    except msgspec.ValidationError:
        raise invalid(f"{at}.keep", f'expected {{"type": "{unit}", "value": ...}}') from None
    return _value(measure, (unit,), f"{at}.keep")


def _value(measure: Measure, units: Sequence[str], at: str) -> int:
    one_of(measure.type, units, f"{at}.type")
    if measure.value is None:
        raise missing(f"{at}.value")
    return measure.value


def applied_edits(edits: Sequence[Edited]) -> bytes:
    """The `context_management` of an answer."""
    return b'{"applied_edits":[%s]}' % b",".join(map(_applied, edits))


def _applied(edit: Edited) -> bytes:
    name, unit = (TOOL_USES, "tool_uses") if edit.cleared is Cleared.RESULTS else (THINKING, "thinking_turns")
    said = f'{{"type":"{name}","cleared_{unit}":{edit.count},"cleared_input_tokens":{edit.tokens}}}'
    return said.encode()
