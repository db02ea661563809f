"""The wire grammar of Responses for any server's streams and objects: OpenAI's document and Open Responses at once.

the stream:  created  [queued]  in_progress+  item*  completed | incomplete | failed  [DONE]
             in_progress may come again anywhere; an error is followed by failed; what was cancelled is incomplete
each item:   output_item.added(i)  what it says  output_item.done(i); one open at a time, i = 0, 1, 2 ...
a part:      added  delta*  done  part.done; of messages and reasoning. Calls have delta* done without a part.

sequence_number counts all events from 0. Every `.done` is the join of its deltas, the last event's object has the
items that were done.
"""

from __future__ import annotations

from .shapes import chat_logprobs, error
from .sse import DONE, named
from .violation import Json, Violation, a_count, a_key, a_text, an_array, an_object, must, objects

END = f"data: {DONE}\n\n".encode()
KEYS = (
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
    "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
)  # fmt: skip
"""What Open Responses wants of every response object, null or not."""
ENDS = ("completed", "incomplete", "failed")
STATUSES = (*ENDS, "in_progress", "queued", "cancelled")
ITEM_STATUSES = ("in_progress", "completed", "incomplete")
CUT_BY = ("max_output_tokens", "content_filter")
COMPACTION = "compaction"
"""An item without a status, whose content is told when it is done."""
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The kinds of calls, and where their text is."""


class _Kind:
    """How a part streams. opening: its frame's events. deltas: those of its text. field: where the text is."""

    def __init__(self, opening: str, deltas: str, index: str, field: str, type: str) -> None:
        self.opening, self.deltas, self.index, self.field, self.type = opening, deltas, index, field, type


OUTPUT_TEXT = _Kind("content_part", "output_text", "content_index", "text", "output_text")
REFUSAL = _Kind("content_part", "refusal", "content_index", "refusal", "refusal")
REASONING_TEXT = _Kind("content_part", "reasoning_text", "content_index", "text", "reasoning_text")
SUMMARY_TEXT = _Kind("reasoning_summary_part", "reasoning_summary_text", "summary_index", "text", "summary_text")
PARTS = {
    "message": (OUTPUT_TEXT, REFUSAL),
    "reasoning": (REASONING_TEXT, SUMMARY_TEXT),
}


def check_stream(data: bytes) -> list[Json]:
    """The events, if they keep the rules. Raises Violation."""
    must(data.endswith(END), f"the stream does not end with {DONE}")
    events = list(named(data[: -len(END)]))
    state = _State()
    for event in events:
        state.feed(event)
    must(state.ended, "the stream ends without a terminal event")
    return events


class _Part:
    """The part that is open. done: its text, once that was told."""

    def __init__(self, kind: _Kind, index: int) -> None:
        self.kind, self.index = kind, index
        self.pieces: list[str] = []
        self.scores: list[object] = []
        self.done: str | None = None


class _Item:
    """The item that is open."""

    def __init__(self, index: int, item: Json) -> None:
        self.index, self.added = index, item
        self.kind, self.id = str(item["type"]), item["id"]
        self.part: _Part | None = None
        self.told: list[tuple[_Kind, str]] = []
        self.pieces: list[str] = []
        self.input: str | None = None

    def said(self, event: Json, name: str) -> None:
        must(event.get("item_id") == self.id, f"{event['type']} of item {event.get('item_id')!r}, not {self.id!r}")
        if self.kind in CALLS:
            self._call(event, name)
        elif self.kind == COMPACTION:
            must(name == "compaction.compacting", f"{event['type']} in a compaction")
        else:
            self._of_part(event, name)

    def _call(self, event: Json, name: str) -> None:
        field = CALLS[self.kind]
        must(self.input is None, f"{event['type']} after the end of the {field}")
        if name == f"{self.kind}_{field}.delta":
            piece = a_text(event.get("delta"), "delta")
            must(piece, "an empty delta")
            self.pieces.append(piece)
        else:
            must(name == f"{self.kind}_{field}.done", f"{event['type']} in a {self.kind}")
            self.input = a_text(event.get(field), field)
            must(self.input == "".join(self.pieces), f"{event['type']} is not the join of its deltas")

    def _of_part(self, event: Json, name: str) -> None:
        part = self.part
        if part is None:
            kind = self._begun(event, name)
            index = a_count(event.get(kind.index), kind.index)
            expected = sum(one.index == kind.index for one, _ in self.told)
            must(index == expected, f"part {index} begins, expected {expected}")
            self.part = _Part(kind, index)
            return
        must(event.get(part.kind.index) == part.index, f"{event['type']} of another part")
        if name == f"{part.kind.deltas}.delta" and part.done is None:
            _extend(part, event)
        elif name == f"{part.kind.deltas}.done" and part.done is None:
            part.done = a_text(event.get(part.kind.field), part.kind.field)
            must(part.done == "".join(part.pieces), f"{event['type']} is not the join of its deltas")
            if part.kind is OUTPUT_TEXT:
                must(event.get("logprobs") == part.scores, f"{event['type']} has other logprobs than its deltas")
        else:
            must(name == f"{part.kind.opening}.done" and part.done is not None, f"{event['type']}, where it cannot be")
            _check_part(event, part.kind, part.done or "", part.scores)
            self.told.append((part.kind, part.done or ""))
            self.part = None

    def _begun(self, event: Json, name: str) -> _Kind:
        said = an_object(event.get("part") or {}, "part").get("type")
        for kind in PARTS.get(self.kind, ()):
            if name == f"{kind.opening}.added" and said == kind.type:
                _check_part(event, kind, "", [])
                return kind
        raise Violation(f"{event['type']} in a {self.kind} without an open part")

    def end(self, item: Json) -> None:
        must(
            item.get("id") == self.id and item.get("type") == self.kind, f"item {self.index} is another when it is done"
        )
        must(self.kind == COMPACTION or item.get("status") in ENDS[:2], f"a done item is {item.get('status')!r}")
        must(self.part is None, "output_item.done while a part is open")
        if self.kind in CALLS:
            must(
                self.input is not None and item.get(CALLS[self.kind]) == self.input, "the call is not what was streamed"
            )
            for key in ("call_id", "name", "namespace"):
                must(item.get(key) == self.added.get(key), f"the call's {key} changed")
            return
        for name in ("content", "summary"):
            texts = [_text_of(part) for part in objects(item.get(name) or [], name)]
            streamed = [text for kind, text in self.told if kind.index == f"{name}_index"]
            must(texts == streamed, f"the item's {name} is not what was streamed")


def _extend(part: _Part, event: Json) -> None:
    piece = a_text(event.get("delta"), "delta")
    scores: list[object] = []
    if part.kind is OUTPUT_TEXT:
        scores = an_array(event.get("logprobs"), "logprobs")
    must(piece or scores, "an empty delta")
    part.pieces.append(piece)
    part.scores.extend(scores)


def _check_part(event: Json, kind: _Kind, text: str, scores: list[object]) -> None:
    part = an_object(event.get("part"), "part")
    must(part.get("type") == kind.type, f"a part of type {part.get('type')!r}")
    must(part.get(kind.field) == text, f"{event['type']} has another text")
    if kind is OUTPUT_TEXT:
        must(part.get("annotations") == [], f"{event['type']} has no annotations")
        must(part.get("logprobs") == scores, f"{event['type']} has other logprobs than its deltas")


def _text_of(part: Json) -> object:
    return part.get("refusal") if part.get("type") == "refusal" else part.get("text")


class _State:
    """Where the stream is."""

    def __init__(self) -> None:
        self.ended = False
        self._count = 0
        self._id: object = None
        self._running = self._failed = False
        self._item: _Item | None = None
        self._done: list[Json] = []

    def feed(self, event: Json) -> None:
        kind = str(event["type"])
        must(not self.ended, f"{kind} after the terminal event")
        must(
            event.get("sequence_number") == self._count,
            f"sequence_number is {event.get('sequence_number')!r}, expected {self._count}",
        )
        must(self._count or kind == "response.created", f"{kind}, where response.created has to come first")
        self._count += 1
        name = kind.removeprefix("response.")
        if kind == "error":
            _check_error_event(event)
            self._failed = True
        elif name in ("created", "queued", "in_progress", *ENDS):
            self._lifecycle(name, an_object(event.get("response"), "response"))
        else:
            must(not self._failed, f"{kind} after an error")
            must(self._running, f"{kind} before response.in_progress")
            self._output(event, name)

    def _lifecycle(self, name: str, response: Json) -> None:
        must((name == "created") == (self._id is None), f"response.{name} at event {self._count - 1}")
        self._id = self._id or response.get("id")
        must(response.get("id") == self._id, "the response's id changed")
        check_object(response)
        if name in ENDS:
            self._end(name, response)
            return
        must(not self._failed, f"response.{name} after an error")
        must(response["status"] in ("in_progress", "queued"), f"response.{name} is {response['status']!r}")
        must(response["usage"] is None, f"response.{name} has usage already")
        self._running = self._running or name == "in_progress"

    def _end(self, name: str, response: Json) -> None:
        self.ended = True
        cancelled = response["status"] == "cancelled" and name == "incomplete"
        must(response["status"] == name or cancelled, f"response.{name} is {response['status']!r}")
        must(not self._failed or name == "failed", f"response.{name} after an error")
        if name == "failed" or cancelled:
            must(response["output"][: len(self._done)] == self._done, "the output is not the items that were done")
            return
        must(self._item is None, f"response.{name} while an item is open")
        must(response["output"] == self._done, "the output is not the items that were done")
        must(response["usage"] is not None, f"response.{name} has no usage")

    def _output(self, event: Json, name: str) -> None:
        must(
            event.get("output_index") == len(self._done), f"{event['type']}: output_index {event.get('output_index')!r}"
        )
        if name == "output_item.added":
            must(self._item is None, "an item begins while another is open")
            item = an_object(event.get("item"), "item")
            _check_begun(item)
            self._item = _Item(len(self._done), item)
            return
        opened = self._item
        if opened is None:
            raise Violation(f"{event['type']} without an open item")
        if name == "output_item.done":
            item = an_object(event.get("item"), "item")
            opened.end(item)
            self._done.append(item)
            self._item = None
        else:
            opened.said(event, name)


def check_object(whole: Json) -> None:
    """A response object, in whatever state. Raises Violation."""
    for key in KEYS:
        a_key(whole, key, "the response")
    must(whole["object"] == "response", f"object is {whole['object']!r}")
    must(a_text(whole["id"], "id"), "id is empty")
    a_text(whole["model"], "model")
    a_count(whole["created_at"], "created_at")
    must(whole["status"] in STATUSES, f"status is {whole['status']!r}")
    _check_echo(whole)
    items = objects(whole["output"], "output")
    for i, item in enumerate(items):
        _check_item(item, f"output[{i}]")
    ids = [item["id"] for item in items]
    must(len(set(ids)) == len(ids), "two items have the same id")
    _check_state(whole, items)
    if whole["usage"] is not None:
        _check_usage(whole["usage"])


def _check_echo(whole: Json) -> None:
    for key in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        must(isinstance(whole[key], int | float) and not isinstance(whole[key], bool), f"{key} is no number")
    for key in ("parallel_tool_calls", "store", "background"):
        must(isinstance(whole[key], bool), f"{key} is {whole[key]!r}")
    an_object(an_object(whole["text"], "text").get("format"), "text.format")
    must("user" not in whole or whole["user"] is not None, "user is null")
    must(whole["truncation"] in ("auto", "disabled"), f"truncation is {whole['truncation']!r}")
    a_count(whole["top_logprobs"], "top_logprobs")
    for i, tool in enumerate(objects(whole["tools"], "tools")):
        if tool.get("type") == "function":
            for key in ("name", "description", "parameters", "strict"):
                a_key(tool, key, f"tools[{i}]")


def _check_state(whole: Json, items: list[Json]) -> None:
    """What the status says of the rest."""
    status = whole["status"]
    must((whole["error"] is not None) == (status == "failed"), f"error is {whole['error']!r} in a {status} response")
    if whole["error"] is not None:
        told = an_object(whole["error"], "error")
        must(a_text(told.get("code"), "error.code") and a_text(told.get("message"), "error.message"), "an empty error")
    cut = whole["incomplete_details"]
    must((cut is not None) == (status == "incomplete"), f"incomplete_details is {cut!r} in a {status} response")
    must(cut is None or an_object(cut, "incomplete_details").get("reason") in CUT_BY, f"cut by {cut!r}")
    must(whole["completed_at"] is None or status == "completed", f"a {status} response was completed")
    unfinished = [item for item in items if item.get("status", "completed") != "completed"]
    must(not unfinished or status != "completed", "a completed response has unfinished items")
    must(unfinished in ([], items[-1:]), "an unfinished item is not the last")


def _check_begun(item: Json) -> None:
    kind = item.get("type")
    must(kind in (*PARTS, *CALLS, COMPACTION), f"an item of type {kind!r}")
    must(a_text(item.get("id"), "id"), "an item without an id")
    if kind == COMPACTION:
        must(item.get("encrypted_content") == "", "a compaction begins with its end")
        return
    must(item.get("status") == "in_progress", f"an item begins as {item.get('status')!r}")
    if kind in CALLS:
        must(a_text(item.get("call_id"), "call_id") and a_text(item.get("name"), "name"), "a call without id or name")
        must(item.get(CALLS[kind]) == "", "a call begins with its end")
    else:
        must(not item.get("content") and not item.get("summary"), "an item begins with content")


def _check_item(item: Json, at: str) -> None:
    must(a_text(item.get("id"), f"{at}.id"), f"{at}.id is empty")
    if item.get("type") == COMPACTION:
        a_text(item.get("encrypted_content"), f"{at}.encrypted_content")
        return
    must(item.get("status") in ITEM_STATUSES, f"{at}.status is {item.get('status')!r}")
    match item.get("type"):
        case "message":
            must(item.get("role") == "assistant", f"{at}.role is {item.get('role')!r}")
            for i, part in enumerate(objects(item.get("content"), f"{at}.content")):
                _check_content(part, f"{at}.content[{i}]")
        case "reasoning":
            for name in ("summary", "content"):
                for part in objects(item.get(name, [] if name == "content" else None), f"{at}.{name}"):
                    a_text(part.get("text"), f"{at}.{name}.text")
        case "function_call" | "custom_tool_call" as kind:
            for key in ("call_id", "name", CALLS[kind]):
                a_text(item.get(key), f"{at}.{key}")
            must("namespace" not in item or item["namespace"], f"{at}.namespace is empty")
        case kind:
            raise Violation(f"{at} is of type {kind!r}")


def _check_content(part: Json, at: str) -> None:
    match part.get("type"):
        case "output_text":
            a_text(part.get("text"), f"{at}.text")
            an_array(part.get("annotations"), f"{at}.annotations")
            chat_logprobs({"content": an_array(part.get("logprobs"), f"{at}.logprobs")}, at)
        case "refusal":
            a_text(part.get("refusal"), f"{at}.refusal")
        case kind:
            raise Violation(f"{at} is of type {kind!r}")


def _check_usage(value: object) -> None:
    usage = an_object(value, "usage")
    given, made, total = (
        a_count(usage.get(key), f"usage.{key}") for key in ("input_tokens", "output_tokens", "total_tokens")
    )
    must(total == given + made, f"usage.total_tokens is {total}, expected {given + made}")
    of_input = an_object(usage.get("input_tokens_details"), "usage.input_tokens_details")
    a_count(of_input.get("cache_write_tokens"), "cache_write_tokens")
    must(a_count(of_input.get("cached_tokens"), "cached_tokens") <= given, "more cached tokens than input tokens")
    of_output = an_object(usage.get("output_tokens_details"), "usage.output_tokens_details")
    must(
        a_count(of_output.get("reasoning_tokens"), "reasoning_tokens") <= made,
        "more reasoning_tokens than output_tokens",
    )


def _check_error_event(event: Json) -> None:
    """Flat as OpenAI has it, nested as Open Responses has it; both say the same."""
    nested = an_object(event.get("error"), "error")
    error(nested)
    for key in ("code", "message", "param"):
        a_key(event, key, "the error")
        must(event[key] == nested[key], f"the flat {key} is not the nested one")
