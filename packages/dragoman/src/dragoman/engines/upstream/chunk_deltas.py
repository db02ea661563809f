"""Reads the deltas and whole messages of Chat Completions: their texts by kind, and
their tool calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from ...core.errors import EngineError
from ...core.events import ReasoningDelta, RefusalDelta, TextDelta
from ...core.reasoning_details import ReasoningDetail, read_seal
from .answer_items import CallItem, ItemSequencer, TextKind, render_arguments
from .chunk_tokens import Tokens
from .content_parts import join_content, read_content
from .wire import CallDelta, Delta

_LEGACY_INDEX = -1
"""The index of the call in `function_call`, which has none."""


def find_single_text(delta: Delta) -> tuple[TextKind, str] | None:
    """Return the text of a delta that has nothing else but a role: content or
    reasoning, as a string. The common case.
    """
    if (
        delta.tool_calls is not None
        or delta.refusal is not None
        or delta.reasoning_details is not None
        or delta.thinking_blocks is not None
        or delta.function_call is not None
        or delta.reasoning_text is not None
        or delta.thinking is not None
        or delta.audio is not None
        or delta.images is not None
    ):
        return None
    content = delta.content
    reasoning = delta.reasoning or delta.reasoning_content
    if reasoning in (None, ""):
        return (TextDelta, content) if isinstance(content, str) and content else None
    is_single = delta.reasoning_content in (None, "", reasoning) and not content
    return (ReasoningDelta, reasoning) if is_single and isinstance(reasoning, str) else None


def read_texts(delta: Delta) -> Iterator[tuple[TextKind, str, str]]:
    """Read the texts of a delta: kind, text, and the seal of reasoning. Raises
    EngineError for content that is not text.
    """
    for name, content in (("audio", delta.audio), ("images", delta.images)):
        if content:
            raise EngineError(f"The upstream sent `{name}`, which cannot be passed on.")
    yield from _read_reasoning(delta)
    for kind, text in read_content(delta.content):
        yield kind, text, ""
    if refusal := join_content(delta.refusal, RefusalDelta):
        yield RefusalDelta, refusal, ""


def _read_reasoning(delta: Delta) -> Iterator[tuple[TextKind, str, str]]:
    fields = (delta.reasoning, delta.reasoning_content, delta.reasoning_text, delta.thinking)
    # Most servers with several of these fields repeat one text in them.
    texts = dict.fromkeys(join_content(field, ReasoningDelta) for field in fields)
    text = "".join(texts)
    details = [
        (detail.text or detail.summary or "", read_seal(detail))
        for detail in (*(delta.reasoning_details or ()), *_list_blocks(delta))
        if detail is not None
    ]
    # OpenRouter repeats the text in both fields.
    if not text or text == "".join(detail_text for detail_text, _ in details):
        for detail_text, seal in details:
            yield ReasoningDelta, detail_text, seal
        return
    yield ReasoningDelta, text, ""
    for _, seal in details:
        yield ReasoningDelta, "", seal


def _list_blocks(delta: Delta) -> Iterator[ReasoningDetail]:
    """List the entries of `thinking_blocks` that `reasoning_details` does not repeat."""
    if not delta.reasoning_details:
        for block in delta.thinking_blocks or ():
            if block is not None:
                yield ReasoningDetail(
                    "reasoning.text", block.thinking, signature=block.signature, data=block.data
                )


class ToolCallReader:
    """Reads the deltas of one choice's tool calls. new_id: creates ids for calls
    without one.
    """

    def __init__(self, choice: int, new_id: Callable[[], str]) -> None:
        self.items = ItemSequencer(choice, new_id)
        self._by_index: dict[int, CallItem] = {}
        self._order: list[CallItem] = []

    def list_deltas(self, delta: Delta) -> list[CallDelta]:
        """List the calls of a delta, the former form of one call included. Calls that
        are listed together are different ones, also without index and id.
        """
        calls = delta.tool_calls or []
        listed = [calls] if isinstance(calls, CallDelta) else [call for call in calls if call]
        # Some servers send a call in both forms.
        if delta.function_call is not None and not listed:
            listed.append(CallDelta(_LEGACY_INDEX, function=delta.function_call))
        if len(listed) < 2:
            return listed
        next_index = max(self._by_index, default=-1) + 1
        return [
            msgspec.structs.replace(call, index=next_index + i)
            if call.index is None and call.id in (None, "") and _read_delta(call)[0]
            else call
            for i, call in enumerate(listed)
        ]

    def feed(self, delta: CallDelta, tokens: Tokens = ()) -> None:
        """Feed a delta. tokens: those of the same chunk."""
        index = delta.index
        id = None if delta.id in (None, "") else str(delta.id)
        name, text = _read_delta(delta)
        if index is None:
            index = self._choose_index(id, name, text)
        call = self._by_index.get(index)
        is_another = False
        if call is not None:
            # Other servers use index 0 for all calls, some of them without ids. Some
            # create another id for every delta, but only calls have names.
            has_other_id = id is not None and call.id is not None and id != call.id
            is_another = has_other_id and bool(name)
            if call.is_complete:
                lacks_id = id is None or call.id is None
                is_named = bool(name and (text.strip() or name != (call.name or name)))
                is_another = has_other_id or (lacks_id and is_named)
        if call is None or is_another:
            call = self.items.start_call(id, custom=delta.custom is not None)
            self._by_index[index] = call
            self._order.append(call)
        elif call.custom and text and (id, name, text) == (call.id, call.name, call.text):
            # The whole call once more: the input of custom tools has no detectable end.
            return
        if call.id is None and not call.has_begun:
            call.id = id
        self.items.name_call(call, name)
        self.items.add_arguments(call, text, tokens)

    def _choose_index(self, id: str | None, name: str, text: str) -> int:
        """Choose the index of a delta without one: that of the call that it continues
        or repeats, or the next.
        """
        last = max(self._by_index, default=-1)
        if id is None:
            return last if self._by_index else 0
        same = [
            index
            for index, call in self._by_index.items()
            if call.id == id
            and name in ("", call.name)
            and not (call.is_complete and text.strip() and text != call.text)
        ]
        return same[-1] if same else last + 1

    def complete(self, wholes: Sequence[CallDelta]) -> None:
        """Compare whole calls with their deltas, and add what they have beyond them."""
        for i, whole in enumerate(wholes):
            known = self._find(whole, i)
            if known is None:
                self.feed(msgspec.structs.replace(whole, index=len(self._order)))
                known = self._order[-1]
            name, _ = _read_delta(whole)
            self.items.complete_item(known, name, _read_arguments(whole))

    def _find(self, whole: CallDelta, i: int) -> CallItem | None:
        matching = [call for call in self._order if call.id is not None and call.id == whole.id]
        if matching:
            return matching[0]
        return self._order[i] if i < len(self._order) else None


def _read_delta(delta: CallDelta) -> tuple[str, str]:
    """Read the tool's name and a fragment of its arguments."""
    named = delta.custom or delta.function or delta
    return named.name or "", render_arguments(_read_arguments(delta))


def _read_arguments(delta: CallDelta) -> object:
    if delta.custom is not None:
        return delta.custom.input
    function = delta.function
    if function is None:
        return delta.arguments
    return function.parameters if function.arguments is None else function.arguments
